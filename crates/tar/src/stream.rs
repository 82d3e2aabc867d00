//! Parses a tar stream piece by piece, however it is split. It holds at most one header and the records of one entry.
//!
//! Lenient for unusual archives: an owner, mode or time that cannot be parsed gets a default, and entries of unknown
//! types are skipped. Of the forms of sparse files it takes version 1.0 of PAX records, which GNU tar writes with
//! `--sparse --format=pax`.

use crate::header::{Header, text};
use crate::pax::{self, XATTR};
use crate::sparse::MapReader;
use crate::{BLOCK, TarEntry, TarKind, Xattrs, padding};

/// LIMIT: bytes of records of one entry; extended attributes may have 64 KiB each.
pub const RECORDS_MAX: u64 = 1 << 20;

/// The id of an owner whose number cannot be parsed.
pub const UNKNOWN_ID: u64 = u64::MAX;

/// Why a stream is not an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    #[error("the stream is not a tar archive, or a damaged one")]
    Damaged,
    #[error("an entry's records are too long")]
    RecordsTooLong,
    #[error("the archive ends in the middle of an entry")]
    Incomplete,
}

/// Receives the entries of a stream.
pub trait Receiver {
    type Error: From<StreamError>;
    /// The next entry. Its data follows, even if it is not a file; of a file with a map only the pieces in the map.
    fn begin(&mut self, entry: TarEntry) -> Result<(), Self::Error>;
    /// A sparse file in another form: its map is not parsed. If this is no error, its data is skipped.
    fn sparse(&mut self, entry: &TarEntry) -> Result<(), Self::Error>;
    fn content(&mut self, bytes: &[u8]) -> Result<(), Self::Error>;
    /// The entry is complete.
    fn end(&mut self) -> Result<(), Self::Error>;
}

/// The state of the parser.
pub struct StreamReader {
    stage: ReaderStage,
    block: [u8; BLOCK],
    filled: usize,
    pending: PendingRecords,
    records: Vec<u8>,
    /// Padding after the content of the current entry.
    padding: usize,
}

enum ReaderStage {
    Header,
    Content {
        left: u64,
    },
    /// The map before the data of a sparse file.
    Map {
        left: u64,
        entry: Box<(TarEntry, MapReader)>,
    },
    /// Records of the following entry; `kind` is the type byte of their header.
    Records {
        kind: u8,
        left: u64,
    },
    Skipped {
        left: u64,
    },
    /// Zeros up to the next block.
    Padding {
        left: usize,
    },
    Ended,
}

impl Default for StreamReader {
    fn default() -> Self {
        Self {
            stage: ReaderStage::Header,
            block: [0; BLOCK],
            filled: 0,
            pending: PendingRecords::default(),
            records: Vec::new(),
            padding: 0,
        }
    }
}

impl StreamReader {
    /// Processes the next bytes of the stream.
    pub fn push<R: Receiver>(&mut self, mut bytes: &[u8], to: &mut R) -> Result<(), R::Error> {
        while !bytes.is_empty() {
            bytes = match &mut self.stage {
                ReaderStage::Header => self.header(bytes, to)?,
                ReaderStage::Content { left } => {
                    let (now, rest) = split(bytes, *left);
                    to.content(now)?;
                    *left -= now.len() as u64;
                    if *left == 0 {
                        to.end()?;
                        self.pad();
                    }
                    rest
                }
                ReaderStage::Map { left, entry } => {
                    let (now, rest) = split(bytes, *left);
                    let used = entry.1.push(now).ok_or(StreamError::Damaged)?;
                    *left -= used as u64;
                    if entry.1.is_complete() {
                        self.end_of_map(to)?;
                    } else if *left == 0 {
                        return Err(StreamError::Damaged.into());
                    }
                    if used < now.len() { &bytes[used..] } else { rest }
                }
                ReaderStage::Records { kind, left } => {
                    let (now, rest) = split(bytes, *left);
                    self.records.extend_from_slice(now);
                    *left -= now.len() as u64;
                    if *left == 0 {
                        let records = std::mem::take(&mut self.records);
                        self.pending.take(*kind, &records).ok_or(StreamError::Damaged)?;
                        self.pad();
                    }
                    rest
                }
                ReaderStage::Skipped { left } => {
                    let (now, rest) = split(bytes, *left);
                    *left -= now.len() as u64;
                    if *left == 0 {
                        self.pad();
                    }
                    rest
                }
                ReaderStage::Padding { left } => {
                    let (now, rest) = split(bytes, *left as u64);
                    *left -= now.len();
                    if *left == 0 {
                        self.stage = ReaderStage::Header;
                    }
                    rest
                }
                // Writers pad an archive to their own record size.
                ReaderStage::Ended => return Ok(()),
            };
        }
        Ok(())
    }

    /// Checks that the stream ended at the end of an archive.
    pub fn finish(&self) -> Result<(), StreamError> {
        match self.stage {
            ReaderStage::Ended => Ok(()),
            ReaderStage::Header if self.filled == 0 => Ok(()),
            _ => Err(StreamError::Incomplete),
        }
    }

    /// Begins the entry of a sparse file. Its data follows.
    fn end_of_map<R: Receiver>(&mut self, to: &mut R) -> Result<(), R::Error> {
        let ReaderStage::Map { left, entry } = std::mem::replace(&mut self.stage, ReaderStage::Header) else {
            return Ok(());
        };
        let (mut entry, map) = *entry;
        entry.map = Some(map.finish(entry.size, left).ok_or(StreamError::Damaged)?);
        to.begin(entry)?;
        if left == 0 {
            to.end()?;
            self.pad();
        } else {
            self.stage = ReaderStage::Content { left };
        }
        Ok(())
    }

    fn header<'a, R: Receiver>(&mut self, bytes: &'a [u8], to: &mut R) -> Result<&'a [u8], R::Error> {
        let (now, rest) = split(bytes, (BLOCK - self.filled) as u64);
        self.block[self.filled..self.filled + now.len()].copy_from_slice(now);
        self.filled += now.len();
        if self.filled < BLOCK {
            return Ok(rest);
        }
        self.filled = 0;
        if self.block == [0; BLOCK] {
            self.stage = ReaderStage::Ended;
            return Ok(rest);
        }
        let header = Header::new(&self.block).ok_or(StreamError::Damaged)?;
        let size = header.size().ok_or(StreamError::Damaged)?;
        let (stage, size) = match header.kind() {
            b'x' | b'L' | b'K' if size > RECORDS_MAX => return Err(StreamError::RecordsTooLong.into()),
            kind @ (b'x' | b'L' | b'K') => (ReaderStage::Records { kind, left: size }, size),
            0 | b'0'..=b'7' | b'S' => {
                let (entry, stored, form) = entry(&header, size, std::mem::take(&mut self.pending));
                let stage = match form {
                    FileForm::Whole => {
                        to.begin(entry)?;
                        if stored == 0 {
                            to.end()?;
                        }
                        ReaderStage::Content { left: stored }
                    }
                    FileForm::MapBeforeData if stored == 0 || i64::try_from(entry.size).is_err() => {
                        return Err(StreamError::Damaged.into());
                    }
                    FileForm::MapBeforeData => {
                        ReaderStage::Map { left: stored, entry: Box::new((entry, MapReader::default())) }
                    }
                    FileForm::OtherSparse => {
                        to.sparse(&entry)?;
                        ReaderStage::Skipped { left: stored }
                    }
                };
                (stage, stored)
            }
            _ => (ReaderStage::Skipped { left: size }, size),
        };
        self.records.clear();
        self.padding = padding(size);
        // An entry without content is followed by the next header.
        self.stage = if size == 0 { ReaderStage::Header } else { stage };
        Ok(rest)
    }

    fn pad(&mut self) {
        self.stage = match self.padding {
            0 => ReaderStage::Header,
            left => ReaderStage::Padding { left },
        };
    }
}

fn split(bytes: &[u8], most: u64) -> (&[u8], &[u8]) {
    bytes.split_at(usize::try_from(most).map_or(bytes.len(), |most| most.min(bytes.len())))
}

/// Records for the following entry.
#[derive(Default)]
struct PendingRecords {
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    mtime_s: Option<i64>,
    xattrs: Xattrs,
    sparse: pax::Sparse,
}

/// How the data of an entry is stored.
enum FileForm {
    Whole,
    MapBeforeData,
    OtherSparse,
}

impl PendingRecords {
    /// `None`: they are not valid records.
    fn take(&mut self, kind: u8, mut records: &[u8]) -> Option<()> {
        match kind {
            b'L' => self.name = Some(text(records).to_vec()),
            b'K' => self.link = Some(text(records).to_vec()),
            _ => {
                while !records.is_empty() {
                    let (key, value, rest) = pax::split_record(records)?;
                    self.take_pax(key, value)?;
                    records = rest;
                }
            }
        }
        Some(())
    }

    fn take_pax(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        match key {
            b"path" => self.name = Some(value.to_vec()),
            b"linkpath" => self.link = Some(value.to_vec()),
            b"size" => self.size = Some(pax::decimal(value)?),
            b"uid" => self.uid = pax::decimal(value),
            b"gid" => self.gid = pax::decimal(value),
            b"mtime" => {
                let whole = value.split(|b| *b == b'.').next().unwrap_or_default();
                self.mtime_s = std::str::from_utf8(whole).ok().and_then(|s| s.parse().ok());
            }
            _ => {
                if let Some(name) = key.strip_prefix(XATTR) {
                    self.xattrs.push((name.to_vec(), value.to_vec()));
                } else if let Some(name) = key.strip_prefix(b"GNU.sparse.") {
                    self.sparse.take(name, value).ok()?;
                }
            }
        }
        Some(())
    }
}

/// The entry of a header with its records applied, the bytes after the header, and their form.
fn entry(header: &Header<'_>, stored: u64, records: PendingRecords) -> (TarEntry, u64, FileForm) {
    let is_old_sparse = header.kind() == b'S';
    let mut name = Vec::new();
    match records.sparse.name.as_ref().or(records.name.as_ref()) {
        Some(long) => name.clone_from(long),
        None => header.name(&mut name),
    }
    let mut kind = match header.kind() {
        b'1' => TarKind::HardLink,
        b'2' => TarKind::Symlink,
        b'3' => TarKind::CharDevice,
        b'4' => TarKind::BlockDevice,
        b'5' => TarKind::Folder,
        b'6' => TarKind::Fifo,
        _ => TarKind::File,
    };
    // Links and the like have no content, whatever size some writers set.
    let mut stored = if kind == TarKind::File { stored } else { 0 };
    // Old writers do not mark folders. Only the full name tells: a header's name may be cut after a slash.
    if kind == TarKind::File && !is_old_sparse && name.ends_with(b"/") {
        kind = TarKind::Folder;
    }
    let (mut form, mut size) = (FileForm::Whole, stored);
    if is_old_sparse {
        form = FileForm::OtherSparse;
    } else if kind == TarKind::File {
        stored = records.size.unwrap_or(stored);
        size = stored;
        match records.sparse.real_size {
            Some(real) if records.sparse.has_map_before_data() => {
                (form, size) = (FileForm::MapBeforeData, real)
            }
            _ if records.sparse.is_named => form = FileForm::OtherSparse,
            _ => {}
        }
    }
    let entry = TarEntry {
        name,
        kind,
        link: records.link.unwrap_or_else(|| header.link().to_vec()),
        mode: u32::try_from(header.mode().unwrap_or(0o644) & 0o7777).unwrap_or(0),
        uid: records.uid.or(header.uid()).unwrap_or(UNKNOWN_ID),
        gid: records.gid.or(header.gid()).unwrap_or(UNKNOWN_ID),
        mtime: (records.mtime_s.or(header.mtime()).unwrap_or(0), 0),
        size,
        map: None,
        xattrs: records.xattrs,
    };
    (entry, stored, form)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::write::push_header;

    #[derive(Default)]
    struct RecordedEvents(Vec<(TarEntry, Vec<u8>, bool)>);

    impl Receiver for RecordedEvents {
        type Error = StreamError;
        fn begin(&mut self, entry: TarEntry) -> Result<(), StreamError> {
            self.0.push((entry, Vec::new(), false));
            Ok(())
        }
        fn sparse(&mut self, _: &TarEntry) -> Result<(), StreamError> {
            Ok(())
        }
        fn content(&mut self, bytes: &[u8]) -> Result<(), StreamError> {
            self.0.last_mut().unwrap().1.extend_from_slice(bytes);
            Ok(())
        }
        fn end(&mut self) -> Result<(), StreamError> {
            self.0.last_mut().unwrap().2 = true;
            Ok(())
        }
    }

    fn file(path: &[u8], content: &[u8]) -> TarEntry {
        TarEntry {
            name: path.to_vec(),
            mode: 0o640,
            uid: 7,
            gid: 5_000_000,
            size: content.len() as u64,
            mtime: (1_700_000_000, 0),
            xattrs: vec![(b"user.x".to_vec(), b"a=\n\0b".to_vec())],
            ..TarEntry::default()
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_whatever_the_pieces(
            files in prop::collection::vec(("[a-z/]{1,200}[a-z]", prop::collection::vec(any::<u8>(), 0..1500)), 0..5),
            piece in 1usize..1500,
        ) {
            let mut wire = Vec::new();
            for (path, content) in &files {
                push_header(&mut wire, &file(path.as_bytes(), content));
                wire.extend_from_slice(content);
                wire.resize(wire.len().next_multiple_of(BLOCK), 0);
            }
            wire.resize(wire.len() + 2 * BLOCK, 0);
            let (mut reader, mut seen) = (StreamReader::default(), RecordedEvents::default());
            for piece in wire.chunks(piece) {
                reader.push(piece, &mut seen).unwrap();
            }
            reader.finish().unwrap();
            prop_assert_eq!(seen.0.len(), files.len());
            for ((entry, content, ended), (path, sent)) in seen.0.iter().zip(&files) {
                prop_assert!(*ended);
                prop_assert_eq!(&entry.name, path.as_bytes());
                prop_assert_eq!(content, sent);
                prop_assert_eq!((entry.uid, entry.gid, entry.mode), (7, 5_000_000, 0o640));
                prop_assert_eq!(&entry.xattrs, &file(b"", b"").xattrs);
            }
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..3000), keep in any::<bool>()) {
            let mut wire = bytes;
            if keep {
                // A valid first header reaches more of the parser.
                let mut good = Vec::new();
                push_header(&mut good, &file(b"x", &[0; 700]));
                good.extend_from_slice(&wire);
                wire = good;
            }
            let mut reader = StreamReader::default();
            let _ = reader.push(&wire, &mut RecordedEvents::default());
            let _ = reader.finish();
        }
    }

    #[test]
    fn a_sparse_file_arrives_as_its_map_and_its_data() {
        let map = vec![(4_096, 3), (1 << 40, 600)];
        let holes = TarEntry { size: 1 << 41, map: Some(map.clone()), ..file(b"holes", b"") };
        let empty = TarEntry { size: 1 << 41, map: Some(vec![]), ..file(b"empty", b"") };
        let mut wire = Vec::new();
        push_header(&mut wire, &holes);
        wire.extend_from_slice(&[7; 603]);
        wire.resize(wire.len().next_multiple_of(BLOCK), 0);
        push_header(&mut wire, &empty);
        push_header(&mut wire, &file(b"after", b"x"));
        wire.extend_from_slice(b"x");
        wire.resize(wire.len().next_multiple_of(BLOCK) + 2 * BLOCK, 0);
        for piece in [1, 100, 512, wire.len()] {
            let (mut reader, mut seen) = (StreamReader::default(), RecordedEvents::default());
            for piece in wire.chunks(piece) {
                reader.push(piece, &mut seen).unwrap();
            }
            reader.finish().unwrap();
            let told = seen.0.iter().map(|(entry, content, ended)| {
                (&entry.name[..], entry.size, entry.map.clone(), content.len(), *ended)
            });
            let told: Vec<_> = told.collect();
            assert_eq!(
                told,
                [
                    (&b"holes"[..], 1 << 41, Some(map.clone()), 603, true),
                    (b"empty", 1 << 41, Some(vec![]), 0, true),
                    (b"after", 1, None, 1, true)
                ]
            );
        }
    }

    #[test]
    fn a_map_that_lies_is_refused() {
        let lying = |map: Vec<(u64, u64)>, size| {
            let mut wire = Vec::new();
            push_header(&mut wire, &TarEntry { size, map: Some(map), ..file(b"a", b"") });
            wire.resize(wire.len() + 8 * BLOCK, 1);
            StreamReader::default().push(&wire, &mut RecordedEvents::default())
        };
        for (map, size) in [
            (vec![(0, 2_000)], 100),
            (vec![(10, 5), (0, 5)], 100),
            (vec![(u64::MAX, 5)], 100),
            (vec![(0, 5)], u64::MAX),
        ] {
            assert_eq!(lying(map.clone(), size), Err(StreamError::Damaged), "{map:?}");
        }
    }

    #[test]
    fn a_long_name_that_is_cut_behind_a_slash_is_still_a_file() {
        let path = format!("{}/name", "d".repeat(99));
        let mut wire = vec![0; 7];
        push_header(&mut wire, &file(path.as_bytes(), b"hello"));
        wire.extend_from_slice(b"hello");
        let (mut reader, mut seen) = (StreamReader::default(), RecordedEvents::default());
        reader.push(&wire[7..], &mut seen).unwrap();
        assert_eq!((seen.0[0].0.kind, &seen.0[0].1[..]), (TarKind::File, &b"hello"[..]));
    }

    #[test]
    fn an_archive_that_is_cut_or_none_is_refused() {
        let mut wire = Vec::new();
        push_header(&mut wire, &file(b"a", b"hello"));
        wire.extend_from_slice(b"hel");
        let mut reader = StreamReader::default();
        reader.push(&wire, &mut RecordedEvents::default()).unwrap();
        assert!(reader.finish().is_err());
        assert!(StreamReader::default().push(&[b'x'; 600], &mut RecordedEvents::default()).is_err());
    }

    #[test]
    fn endless_records_are_refused_before_memory_is_taken() {
        let mut entry = file(b"a", b"");
        entry.xattrs = vec![(b"user.x".to_vec(), vec![b'v'; 2 << 20])];
        let mut wire = Vec::new();
        push_header(&mut wire, &entry);
        assert!(StreamReader::default().push(&wire, &mut RecordedEvents::default()).is_err());
    }

    #[test]
    fn any_stream_is_read_the_same_however_it_is_cut() {
        let read = |bytes: &[u8], piece: usize| {
            let (mut reader, mut seen) = (StreamReader::default(), RecordedEvents::default());
            let pushed = bytes.chunks(piece).try_for_each(|piece| reader.push(piece, &mut seen));
            let is_whole = pushed.is_ok() && reader.finish().is_ok();
            let entries = seen.0.into_iter().map(|(entry, content, ended)| (entry.name, content, ended));
            (is_whole, entries.collect::<Vec<_>>())
        };
        atoll_robustness::check("tar_stream", |bytes| {
            let whole = read(bytes, bytes.len().max(1));
            assert!(whole.1.iter().map(|(_, content, _)| content.len()).sum::<usize>() <= bytes.len());
            assert_eq!(read(bytes, 7), whole);
        });
    }
}
