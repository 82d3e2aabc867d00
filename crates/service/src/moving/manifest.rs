//! The content of a tar stream as a digest: path, type, mode, owner, size, target of a link and SHA-256 of every entry. The
//! agent packs in a fixed order, so two folders are the same if their digests are. Memory does not depend on the size.
//!
//! Two file systems store the same zeros differently, as a hole or as data. So blocks of zeros are no part of the SHA-256 of a
//! file, and each other block comes with its offset. A hole of a terabyte costs nothing.

use atoll_model::{LeftBehind, LeftBehindKind};
use atoll_tar::sparse::DataCursor;
use atoll_tar::stream::{Receiver, StreamError, StreamReader};
use atoll_tar::{TarEntry, TarKind, shown};
use sha2::{Digest, Sha256};

use super::owners::{FileOwner, OwnerMapping};

/// LIMIT: entries whose digests are kept to name the first one that differs; 2 MiB.
const MARKS_MAX: usize = 1 << 18;

/// What an entry takes on a disk beside its names and data.
const ENTRY_BYTES: u64 = 512;
/// What a piece of a sparse file takes on a disk beside its data.
const EXTENT_BYTES: usize = 16;
/// The unit of zeros that are left out of a digest.
const ZEROS: usize = 4_096;

/// The digest of a stream.
#[derive(Default)]
pub(crate) struct Manifest {
    reader: Option<StreamReader>,
    records: Records,
}

struct Records {
    /// Everything but owners.
    content: Sha256,
    /// As the copy is to have them.
    owners: Sha256,
    mapping: OwnerMapping,
    /// The user whose files are not counted as those of others.
    user: Option<FileOwner>,
    others: LeftBehind,
    entries: u64,
    bytes: u64,
    /// The bytes of data that the headers of all files so far announce, before they are read.
    announced_bytes: u64,
    /// The bytes of names, targets of links and attributes, and some for each entry.
    entry_bytes: u64,
    top: Option<TopFolder>,
    entry: Option<(TarEntry, FileDigest)>,
    /// The beginnings of the digests of the first entries.
    marks: Vec<u64>,
    /// Those of the manifest that this one has to equal.
    expected: Option<Vec<u64>>,
    differs_at: Option<String>,
}

impl Default for Records {
    fn default() -> Self {
        Self {
            content: Sha256::new(),
            owners: Sha256::new(),
            mapping: OwnerMapping::Kept,
            user: None,
            others: LeftBehind { kind: LeftBehindKind::Owners, names: Vec::new(), count: 0 },
            entries: 0,
            bytes: 0,
            announced_bytes: 0,
            entry_bytes: 0,
            top: None,
            entry: None,
            marks: Vec::new(),
            expected: None,
            differs_at: None,
        }
    }
}

/// The folder itself. It is not part of the digest: the target may have its own, such as the home of a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TopFolder {
    pub(crate) mode: u32,
    /// As the copy is to have it.
    pub(crate) owner: FileOwner,
}

/// A finished manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FolderDigest {
    content: [u8; 32],
    owners: [u8; 32],
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
    pub(crate) top: Option<TopFolder>,
    /// Entries that belong to others than the user of commands.
    pub(crate) others: LeftBehind,
    marks: Vec<u64>,
    differs_at: Option<String>,
}

/// The result of a comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Comparison {
    Same,
    /// Only owners are different.
    OtherOwners,
    /// The name of the first entry that differs, as far as it is known.
    Different(Option<String>),
}

impl Manifest {
    /// A manifest whose owners change on the way to the target. `user`: the user of commands at the source.
    pub(crate) fn of_source(mapping: OwnerMapping, user: Option<FileOwner>) -> Self {
        Self { reader: None, records: Records { mapping, user, ..Records::default() } }
    }

    /// A manifest that is to equal another one.
    pub(crate) fn like(other: &FolderDigest) -> Self {
        let records = Records { expected: Some(other.marks.clone()), ..Records::default() };
        Self { reader: None, records }
    }

    /// Processes the next bytes of the stream.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<(), StreamError> {
        self.reader.get_or_insert_default().push(bytes, &mut self.records)
    }

    /// Entries and bytes of files so far.
    pub(crate) const fn counts(&self) -> (u64, u64) {
        (self.records.entries, self.records.bytes)
    }

    /// The bytes of data of all files whose headers were read, including the file whose content is still being read. Holes do not
    /// count.
    pub(crate) const fn announced_bytes(&self) -> u64 {
        self.records.announced_bytes
    }

    /// About what the entries themselves take on a disk. Files without data are not free.
    pub(crate) const fn entry_bytes(&self) -> u64 {
        self.records.entry_bytes
    }

    /// The digest, if the stream is complete.
    pub(crate) fn finish(self) -> Result<FolderDigest, StreamError> {
        self.reader.unwrap_or_default().finish()?;
        let Records { content, owners, entries, bytes, top, others, marks, differs_at, .. } = self.records;
        let (content, owners) = (content.finalize().into(), owners.finalize().into());
        Ok(FolderDigest { content, owners, entries, bytes, top, others, marks, differs_at })
    }
}

impl FolderDigest {
    /// Compares the copy with its source.
    pub(crate) fn compare(&self, copy: &Self) -> Comparison {
        // The bytes of data are not compared: another file system may store other holes.
        if (self.content, self.entries) != (copy.content, copy.entries) {
            return Comparison::Different(copy.differs_at.clone());
        }
        if self.owners == copy.owners { Comparison::Same } else { Comparison::OtherOwners }
    }
}

impl Records {
    fn record(&mut self, entry: &TarEntry, sha256: [u8; 32]) {
        let mut record = Sha256::new();
        let link = if entry.kind == TarKind::HardLink { plain(&entry.link) } else { &entry.link[..] };
        // A length before each text: no two lists of entries are written the same.
        for text in [plain(&entry.name), link] {
            record.update((text.len() as u64).to_be_bytes());
            record.update(text);
        }
        // A link has no permissions of its own.
        let mode = if entry.kind == TarKind::Symlink { 0 } else { entry.mode & 0o7777 };
        record.update([kind(entry.kind)]);
        record.update(mode.to_be_bytes());
        record.update(entry.size.to_be_bytes());
        record.update(sha256);
        let record: [u8; 32] = record.finalize().into();
        self.content.update(record);
        let before = FileOwner::of(entry);
        let owner = self.mapping.apply(before);
        self.owners.update(owner.uid.to_be_bytes());
        self.owners.update(owner.gid.to_be_bytes());
        if self.user.is_some_and(|user| user != before) {
            self.others.add(shown(plain(&entry.name)));
        }
        self.mark(record, entry);
        self.entries += 1;
    }

    fn mark(&mut self, record: [u8; 32], entry: &TarEntry) {
        let mut mark = [0; 8];
        mark.copy_from_slice(&record[..8]);
        let mark = u64::from_be_bytes(mark);
        let at = usize::try_from(self.entries).unwrap_or(usize::MAX);
        let is_other = match &self.expected {
            Some(expected) if at < MARKS_MAX => expected.get(at) != Some(&mark),
            Some(_) | None => false,
        };
        if is_other && self.differs_at.is_none() {
            self.differs_at = Some(shown(&entry.name));
        }
        if self.expected.is_none() && at < MARKS_MAX {
            self.marks.push(mark);
        }
    }
}

impl Receiver for Records {
    type Error = StreamError;

    fn begin(&mut self, entry: TarEntry) -> Result<(), StreamError> {
        if entry.kind == TarKind::Folder && entry.name.iter().all(|byte| matches!(byte, b'.' | b'/')) {
            let owner = self.mapping.apply(FileOwner::of(&entry));
            self.top = Some(TopFolder { mode: entry.mode & 0o7777, owner });
            return Ok(());
        }
        self.announced_bytes = self.announced_bytes.saturating_add(entry.data_bytes());
        let attributes = entry.xattrs.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
        let extents = entry.map.as_ref().map_or(0, |map| map.len() * EXTENT_BYTES);
        let bytes = entry.name.len() + entry.link.len() + attributes + extents;
        self.entry_bytes += ENTRY_BYTES + bytes as u64;
        let digest = FileDigest::new(&entry);
        self.entry = Some((entry, digest));
        Ok(())
    }

    fn sparse(&mut self, _entry: &TarEntry) -> Result<(), StreamError> {
        // An agent writes no other form.
        Err(StreamError::Damaged)
    }

    fn content(&mut self, bytes: &[u8]) -> Result<(), StreamError> {
        if let Some((_, digest)) = &mut self.entry {
            digest.update(bytes);
            self.bytes += bytes.len() as u64;
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), StreamError> {
        if let Some((entry, digest)) = self.entry.take() {
            self.record(&entry, digest.finish());
        }
        Ok(())
    }
}

/// The digest of the data of one file.
struct FileDigest {
    sha256: Sha256,
    cursor: DataCursor,
    /// The current block, and its number.
    block: Box<[u8; ZEROS]>,
    at: u64,
}

impl FileDigest {
    fn new(entry: &TarEntry) -> Self {
        let cursor = DataCursor::new(entry);
        Self { sha256: Sha256::new(), cursor, block: Box::new([0; ZEROS]), at: 0 }
    }

    fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty()
            && let Some((mut offset, mut now, rest)) = self.cursor.next(bytes)
        {
            while !now.is_empty() {
                if offset / ZEROS as u64 != self.at {
                    self.end_block();
                    self.at = offset / ZEROS as u64;
                }
                // Below 4,096.
                let from = usize::try_from(offset % ZEROS as u64).unwrap_or(0);
                let count = now.len().min(self.block.len() - from);
                self.block[from..from + count].copy_from_slice(&now[..count]);
                (offset, now) = (offset + count as u64, &now[count..]);
            }
            bytes = rest;
        }
    }

    fn end_block(&mut self) {
        if self.block.iter().any(|byte| *byte != 0) {
            self.sha256.update(self.at.to_be_bytes());
            self.sha256.update(self.block.as_slice());
            self.block.fill(0);
        }
    }

    fn finish(mut self) -> [u8; 32] {
        self.end_block();
        self.sha256.finalize().into()
    }
}

/// A name without the signs that only some writers add: `./` before it and `/` after a folder.
fn plain(name: &[u8]) -> &[u8] {
    let name = name.strip_prefix(b"./").unwrap_or(name);
    name.strip_suffix(b"/").unwrap_or(name)
}

const fn kind(kind: TarKind) -> u8 {
    match kind {
        TarKind::File => b'f',
        TarKind::Folder => b'd',
        TarKind::Symlink => b'l',
        TarKind::HardLink => b'h',
        TarKind::Fifo => b'p',
        TarKind::CharDevice => b'c',
        TarKind::BlockDevice => b'b',
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use atoll_tar::write::push_header;
    use atoll_tar::{BLOCK, padding};

    use super::*;

    fn file(name: &str, content: &[u8]) -> (TarEntry, Vec<u8>) {
        let size = content.len() as u64;
        let entry = TarEntry { name: name.into(), mode: 0o640, uid: 7, size, ..TarEntry::default() };
        (entry, content.to_vec())
    }

    fn tar(entries: &[(TarEntry, Vec<u8>)]) -> Vec<u8> {
        let mut out = Vec::new();
        let top =
            TarEntry { name: b"./".to_vec(), kind: TarKind::Folder, mode: 0o700, ..TarEntry::default() };
        push_header(&mut out, &top);
        for (entry, content) in entries {
            push_header(&mut out, entry);
            out.extend_from_slice(content);
            out.resize(out.len() + padding(content.len() as u64), 0);
        }
        out.resize(out.len() + 2 * BLOCK, 0);
        out
    }

    #[test]
    fn the_data_of_a_file_counts_as_soon_as_its_header_is_read_and_holes_do_not() {
        let (mut huge, _) = file("huge", b"");
        huge.size = 1 << 40;
        let announced = |entry: &TarEntry| {
            let mut header = Vec::new();
            push_header(&mut header, entry);
            let mut manifest = Manifest::default();
            manifest.push(&header).unwrap();
            assert_eq!(manifest.counts(), (0, 0));
            manifest.announced_bytes()
        };
        assert_eq!(announced(&huge), 1 << 40);
        huge.map = Some(vec![(0, 5), (1 << 39, 7)]);
        assert_eq!(announced(&huge), 12);
    }

    #[test]
    fn zeros_and_holes_are_the_same_content() {
        let mut whole = vec![0; 20_000];
        whole[5_000..5_010].fill(1);
        whole[12_290..16_390].fill(2);
        let digest_of = |map: Option<Vec<(u64, u64)>>, chunk: usize| {
            let (mut entry, _) = file("a", b"");
            entry.size = 20_000;
            let pieces = map.clone().unwrap_or_else(|| vec![(0, 20_000)]);
            let at = |number: u64| usize::try_from(number).unwrap();
            let data: Vec<u8> = pieces
                .iter()
                .flat_map(|(from, length)| whole[at(*from)..at(from + length)].to_vec())
                .collect();
            entry.map = map;
            let mut stream = Vec::new();
            push_header(&mut stream, &entry);
            stream.extend_from_slice(&data);
            stream.resize(stream.len().next_multiple_of(512) + 1_024, 0);
            let mut manifest = Manifest::default();
            for chunk in stream.chunks(chunk) {
                manifest.push(chunk).unwrap();
            }
            manifest.finish().unwrap()
        };
        let all = digest_of(None, 1_000);
        for map in [
            vec![(4_096, 4_096), (12_288, 7_712)],
            vec![(5_000, 10), (12_290, 4_100)],
            vec![(0, 6_000), (12_288, 5_000), (18_000, 2_000)],
        ] {
            for chunk in [1, 700, 100_000] {
                assert_eq!(all.compare(&digest_of(Some(map.clone()), chunk)), Comparison::Same, "{map:?}");
            }
        }
        // Data at another place is another file.
        let moved = digest_of(Some(vec![(0, 10), (5_000, 10)]), 700);
        assert!(matches!(all.compare(&moved), Comparison::Different(_)));
    }

    fn digest(mut manifest: Manifest, stream: &[u8]) -> FolderDigest {
        for chunk in stream.chunks(700) {
            manifest.push(chunk).unwrap();
        }
        manifest.finish().unwrap()
    }

    #[test]
    fn every_property_of_an_entry_counts() {
        let base = vec![file("a", b"1"), file("b\nc", b"")];
        let first = digest(Manifest::default(), &tar(&base));
        assert_eq!((first.entries, first.bytes), (2, 1));
        assert_eq!(first.top, Some(TopFolder { mode: 0o700, owner: FileOwner { uid: 0, gid: 0 } }));
        let compared = |change: fn(&mut TarEntry)| {
            let mut other = base.clone();
            change(&mut other[1].0);
            first.compare(&digest(Manifest::like(&first), &tar(&other)))
        };
        assert_eq!(compared(|_| {}), Comparison::Same);
        let different = Comparison::Different(Some(shown(b"b\nc")));
        assert_eq!(compared(|entry| entry.mode = 0o4640), different);
        assert_eq!(compared(|entry| entry.kind = TarKind::Fifo), different);
        assert_eq!(
            compared(|entry| (entry.kind, entry.link) = (TarKind::HardLink, b"a".to_vec())),
            different
        );
        assert_eq!(compared(|entry| entry.uid = 8), Comparison::OtherOwners);
        assert_eq!(compared(|entry| entry.gid = 8), Comparison::OtherOwners);
        assert_eq!(compared(|entry| entry.mtime = (5, 0)), Comparison::Same, "times are not compared");
        assert!(matches!(compared(|entry| entry.name = b"bc".to_vec()), Comparison::Different(_)));
        assert_eq!(
            compared(|entry| entry.name = b"./b\nc".to_vec()),
            Comparison::Same,
            "as GNU tar writes it"
        );
    }

    #[test]
    fn other_content_and_missing_or_additional_entries_are_found() {
        let first = digest(Manifest::default(), &tar(&[file("a", b"1"), file("b", b"2")]));
        let compare = |entries: &[_]| first.compare(&digest(Manifest::like(&first), &tar(entries)));
        let at = |name: &str| Comparison::Different(Some(shown(name.as_bytes())));
        assert_eq!(compare(&[file("a", b"1"), file("b", b"3")]), at("b"));
        assert_eq!(compare(&[file("a", b"1"), file("b", b"2"), file("c", b"")]), at("c"));
        assert_eq!(compare(&[file("a", b"1")]), Comparison::Different(None));
    }

    #[test]
    fn a_stream_that_ends_early_is_no_manifest() {
        let stream = tar(&[file("a", &[1; 2_000])]);
        let mut manifest = Manifest::default();
        manifest.push(&stream[..1_500]).unwrap();
        assert_eq!(manifest.finish().unwrap_err(), StreamError::Incomplete);
    }
}
