//! Writes an archive: ustar, with PAX records only if a value does not fit. The same entries give the same bytes.

use std::io::{self, Read, Write};

use crate::header::{HeaderFields, NAME_ROOM};
use crate::pax::{XATTR, push_record};
use crate::sparse::map_block;
use crate::{BLOCK, TarEntry, TarKind, padding};

/// The name in the header of a sparse file, whose own name is in a record: readers without these records see an odd file.
const SPARSE_NAME: &[u8] = b"GNUSparseFile.0";
/// The largest number that eleven octal digits hold.
const SIZE_MAX: u64 = 0o777_7777_7777;
/// The largest number that seven octal digits hold.
const ID_MAX: u64 = 0o777_7777;

/// An archive being written.
pub struct Archive<W> {
    to: W,
    bytes: u64,
}

impl<W: Write> Archive<W> {
    pub fn new(to: W) -> Self {
        Self { to, bytes: 0 }
    }

    /// Writes the header of an entry. For a file its data follows: [`TarEntry::data_bytes`] with [`Archive::data`], then
    /// [`Archive::pad`] of as many.
    pub fn entry(&mut self, entry: &TarEntry) -> io::Result<()> {
        let mut head = Vec::with_capacity(BLOCK);
        push_header(&mut head, entry);
        self.put(&head)
    }

    pub fn data(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.put(bytes)
    }

    /// Fills the last block of so much data.
    pub fn pad(&mut self, size: u64) -> io::Result<()> {
        self.put(&[0; BLOCK][..padding(size)])
    }

    /// Ends the archive; returns the inner writer and the length.
    pub fn finish(mut self) -> io::Result<(W, u64)> {
        self.put(&[0; 2 * BLOCK])?;
        self.to.flush()?;
        Ok((self.to, self.bytes))
    }

    /// Writes a file whose `size` bytes come from `from`.
    pub fn file_from(&mut self, entry: &TarEntry, from: &mut impl Read) -> io::Result<()> {
        self.entry(entry)?;
        let copied = io::copy(&mut from.take(entry.size), &mut self.to)?;
        self.bytes += copied;
        if copied < entry.size {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.pad(entry.size)
    }

    /// Writes a whole small file.
    pub fn file(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.file_header(name, bytes.len() as u64)?;
        self.data(bytes)?;
        self.pad(bytes.len() as u64)
    }

    /// Writes the header of a generated file.
    pub fn file_header(&mut self, name: &str, size: u64) -> io::Result<()> {
        let kind = if name.ends_with('/') { TarKind::Folder } else { TarKind::File };
        let mode = if kind == TarKind::Folder { 0o755 } else { 0o644 };
        self.entry(&TarEntry { name: name.as_bytes().to_owned(), kind, mode, size, ..TarEntry::default() })
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.bytes += bytes.len() as u64;
        self.to.write_all(bytes)
    }
}

/// Adds the header of an entry to `out`, with PAX records before it if they are needed, and the map of a sparse file after it.
pub fn push_header(out: &mut Vec<u8>, entry: &TarEntry) {
    let records = records(entry);
    if !records.is_empty() {
        let size = records.len() as u64;
        let fields =
            HeaderFields { kind: b'x', name: b"PaxHeaders/entry", mode: 0o644, size, ..Default::default() };
        out.extend_from_slice(&fields.block());
        out.extend_from_slice(&records);
        out.extend_from_slice(&[0; BLOCK][..padding(size)]);
    }
    let kind = match entry.kind {
        TarKind::File => b'0',
        TarKind::HardLink => b'1',
        TarKind::Symlink => b'2',
        TarKind::CharDevice => b'3',
        TarKind::BlockDevice => b'4',
        TarKind::Folder => b'5',
        TarKind::Fifo => b'6',
    };
    let (name, map) = match sparse_map(entry) {
        Some(map) => (SPARSE_NAME, map_block(map)),
        None => (&entry.name[..], Vec::new()),
    };
    let stored = map.len() as u64 + entry.data_bytes();
    let fields = HeaderFields {
        kind,
        name,
        link: &entry.link,
        mode: entry.mode,
        uid: entry.uid.min(ID_MAX),
        gid: entry.gid.min(ID_MAX),
        size: if entry.kind == TarKind::File { stored.min(SIZE_MAX) } else { 0 },
        mtime: u64::try_from(entry.mtime.0).unwrap_or(0).min(SIZE_MAX),
        ..Default::default()
    };
    out.extend_from_slice(&fields.block());
    out.extend_from_slice(&map);
}

/// The map of a file with holes.
fn sparse_map(entry: &TarEntry) -> Option<&[(u64, u64)]> {
    entry.map.as_deref().filter(|_| entry.kind == TarKind::File)
}

/// The values that do not fit into the header, as records.
fn records(entry: &TarEntry) -> Vec<u8> {
    let mut records = Vec::new();
    let mut add = |key: &[u8], value: &[u8]| push_record(&mut records, key, value);
    let mut xattrs: Vec<_> = entry.xattrs.iter().collect();
    xattrs.sort();
    for (name, value) in xattrs {
        add(&[XATTR, &name[..]].concat(), value);
    }
    if entry.uid > ID_MAX {
        add(b"uid", entry.uid.to_string().as_bytes());
    }
    if entry.gid > ID_MAX {
        add(b"gid", entry.gid.to_string().as_bytes());
    }
    if entry.link.len() > NAME_ROOM {
        add(b"linkpath", &entry.link);
    }
    if entry.mtime.0 < 0 {
        add(b"mtime", entry.mtime.0.to_string().as_bytes());
    }
    if entry.name.len() > NAME_ROOM && sparse_map(entry).is_none() {
        add(b"path", &entry.name);
    }
    let map_bytes = sparse_map(entry).map_or(0, |map| map_block(map).len() as u64);
    let stored = map_bytes + entry.data_bytes();
    if entry.kind == TarKind::File && stored > SIZE_MAX {
        add(b"size", stored.to_string().as_bytes());
    }
    if sparse_map(entry).is_some() {
        add(b"GNU.sparse.major", b"1");
        add(b"GNU.sparse.minor", b"0");
        add(b"GNU.sparse.name", &entry.name);
        add(b"GNU.sparse.realsize", entry.size.to_string().as_bytes());
    }
    records
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::read;

    #[test]
    fn a_file_with_holes_is_read_back_with_them() {
        let name = [&b"d/"[..], &[b'n'; 300]].concat();
        let map = vec![(1 << 20, 3), (1 << 40, 700)];
        let entry = TarEntry { name, size: (1 << 41) + 1, map: Some(map), ..TarEntry::default() };
        let mut archive = Archive::new(Vec::new());
        archive.entry(&entry).unwrap();
        archive.data(&[7; 703]).unwrap();
        archive.pad(703).unwrap();
        archive.file("after", b"abc").unwrap();
        let bytes = archive.finish().unwrap().0;
        assert!(bytes.len() < 8 << 10);
        let (mut archive, mut read) = (read::Archive::new(&bytes[..]), TarEntry::default());
        assert!(archive.next(&mut read).unwrap());
        assert_eq!((&read.name, read.size, &read.map), (&entry.name, entry.size, &entry.map));
        assert_eq!(archive.data().unwrap(), [7; 703]);
        assert!(archive.next(&mut read).unwrap());
        assert_eq!((&read.name[..], read.size), (&b"after"[..], 3));
    }

    #[test]
    fn what_is_written_is_read_back() {
        let long: Vec<u8> = [&b"d/"[..], &[b'n'; 300]].concat();
        let odd = TarEntry {
            name: long.clone(),
            mode: 0o4755,
            uid: 3_000_000,
            gid: 7,
            mtime: (-5, 0),
            size: 3,
            xattrs: vec![(b"user.b".to_vec(), vec![0, b'\n', 255]), (b"user.a".to_vec(), vec![])],
            ..TarEntry::default()
        };
        let link =
            TarEntry { name: b"l\xff".to_vec(), kind: TarKind::Symlink, link: long, ..TarEntry::default() };
        let mut archive = Archive::new(Vec::new());
        archive.entry(&odd).unwrap();
        archive.data(b"abc").unwrap();
        archive.pad(3).unwrap();
        archive.entry(&link).unwrap();
        let (bytes, length) = archive.finish().unwrap();
        assert_eq!(bytes.len() as u64, length);
        let mut archive = read::Archive::new(&bytes[..]);
        let mut entry = TarEntry::default();
        assert!(archive.next(&mut entry).unwrap());
        assert_eq!(
            (&entry.name, entry.mode, entry.uid, entry.mtime),
            (&odd.name, 0o4755, 3_000_000, (-5, 0))
        );
        assert_eq!(entry.xattrs, [(b"user.a".to_vec(), vec![]), (b"user.b".to_vec(), vec![0, b'\n', 255])]);
        assert_eq!(archive.data().unwrap(), b"abc");
        assert!(archive.next(&mut entry).unwrap());
        assert_eq!((entry.name, entry.link), (link.name, link.link));
        assert!(!archive.next(&mut TarEntry::default()).unwrap());
    }
}
