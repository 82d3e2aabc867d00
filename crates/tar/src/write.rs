//! Writes an archive: ustar, with PAX records only if a value does not fit. The same entries give the same bytes.

use std::io::{self, Read, Write};

use crate::header::{HeaderFields, NAME_ROOM};
use crate::pax::{XATTR, push_record};
use crate::{BLOCK, TarEntry, TarKind, padding};

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

    /// Writes the header of an entry. For a file its data follows: `size` bytes with [`Archive::data`], then
    /// [`Archive::pad`].
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

/// Adds the header of an entry to `out`, with PAX records before it if they are needed.
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
    let fields = HeaderFields {
        kind,
        name: &entry.name,
        link: &entry.link,
        mode: entry.mode,
        uid: entry.uid.min(ID_MAX),
        gid: entry.gid.min(ID_MAX),
        size: if entry.kind == TarKind::File { entry.size.min(SIZE_MAX) } else { 0 },
        mtime: u64::try_from(entry.mtime.0).unwrap_or(0).min(SIZE_MAX),
        ..Default::default()
    };
    out.extend_from_slice(&fields.block());
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
    if entry.name.len() > NAME_ROOM {
        add(b"path", &entry.name);
    }
    if entry.kind == TarKind::File && entry.size > SIZE_MAX {
        add(b"size", entry.size.to_string().as_bytes());
    }
    records
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::read;

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
