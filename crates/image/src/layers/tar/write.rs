//! Writing an archive: ustar, with PAX records only where ustar has no room. The same entries give the same bytes.

use std::io::{self, Write};

use super::{BLOCK, TarEntry, TarKind};

/// The largest number that eleven octal digits hold.
const SIZE_MAX: u64 = 0o777_7777_7777;
/// The largest number that seven octal digits hold.
const ID_MAX: u64 = 0o777_7777;
/// How much a name or link has room for in a header.
const FIELD: usize = 100;

/// An archive being written.
pub(crate) struct Archive<W> {
    to: W,
    bytes: u64,
}

impl<W: Write> Archive<W> {
    pub(crate) fn new(to: W) -> Self {
        Self { to, bytes: 0 }
    }

    /// Writes the header of an entry. For a file its data follows: `size` bytes by [`Archive::data`], then
    /// [`Archive::pad`].
    pub(crate) fn entry(&mut self, entry: &TarEntry) -> io::Result<()> {
        let records = records(entry);
        if !records.is_empty() {
            let mut block = [0; BLOCK];
            block[..16].copy_from_slice(b"PaxHeaders/entry");
            fields(&mut block, b'x', 0o644, (0, 0), records.len() as u64, 0);
            self.put(&block)?;
            self.put(&records)?;
            self.pad(records.len() as u64)?;
        }
        let mut block = [0; BLOCK];
        put_text(&mut block[..FIELD], &entry.name);
        put_text(&mut block[157..257], &entry.link);
        let kind = match entry.kind {
            TarKind::File => b'0',
            TarKind::HardLink => b'1',
            TarKind::Symlink => b'2',
            TarKind::CharDevice => b'3',
            TarKind::BlockDevice => b'4',
            TarKind::Folder => b'5',
            TarKind::Fifo => b'6',
        };
        let size = if entry.kind == TarKind::File { entry.size.min(SIZE_MAX) } else { 0 };
        let mtime = u64::try_from(entry.mtime.0).unwrap_or(0).min(SIZE_MAX);
        let ids = (entry.uid.min(ID_MAX), entry.gid.min(ID_MAX));
        fields(&mut block, kind, entry.mode, ids, size, mtime);
        self.put(&block)
    }

    pub(crate) fn data(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.put(bytes)
    }

    /// Fills the last block of so much data.
    pub(crate) fn pad(&mut self, size: u64) -> io::Result<()> {
        let rest = usize::try_from(size.wrapping_neg() % BLOCK as u64).unwrap_or(0);
        self.put(&[0; BLOCK][..rest])
    }

    /// Ends the archive; answers what it was written to and how long it is.
    pub(crate) fn finish(mut self) -> io::Result<(W, u64)> {
        self.put(&[0; 2 * BLOCK])?;
        self.to.flush()?;
        Ok((self.to, self.bytes))
    }

    /// A whole file of its own, for the small ones.
    pub(crate) fn file(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.file_header(name, bytes.len() as u64)?;
        self.data(bytes)?;
        self.pad(bytes.len() as u64)
    }

    /// The header of a file of our own making.
    pub(crate) fn file_header(&mut self, name: &str, size: u64) -> io::Result<()> {
        let kind = if name.ends_with('/') { TarKind::Folder } else { TarKind::File };
        let mode = if kind == TarKind::Folder { 0o755 } else { 0o644 };
        self.entry(&TarEntry { name: name.as_bytes().to_owned(), kind, mode, size, ..TarEntry::default() })
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.bytes += bytes.len() as u64;
        self.to.write_all(bytes)
    }
}

fn fields(block: &mut [u8; BLOCK], kind: u8, mode: u32, ids: (u64, u64), size: u64, mtime: u64) {
    put_octal(&mut block[100..108], u64::from(mode & 0o7777));
    put_octal(&mut block[108..116], ids.0);
    put_octal(&mut block[116..124], ids.1);
    put_octal(&mut block[124..136], size);
    put_octal(&mut block[136..148], mtime);
    block[156] = kind;
    block[257..265].copy_from_slice(b"ustar\x0000");
    block[148..156].fill(b' ');
    let sum: u64 = block.iter().map(|&byte| u64::from(byte)).sum();
    put_octal(&mut block[148..155], sum);
}

/// As much of a text as fits; what does not is in the PAX records.
fn put_text(field: &mut [u8], text: &[u8]) {
    let some = text.len().min(field.len());
    field[..some].copy_from_slice(&text[..some]);
}

/// Octal digits with zeros in front and a NUL behind.
fn put_octal(field: &mut [u8], mut number: u64) {
    let last = field.len() - 1;
    for digit in field[..last].iter_mut().rev() {
        *digit = b'0' + u8::try_from(number & 7).unwrap_or(0);
        number >>= 3;
    }
    field[last] = 0;
}

/// Everything that the header has no room for, by key.
fn records(entry: &TarEntry) -> Vec<u8> {
    let mut records = Vec::new();
    let mut add = |key: &[u8], value: &[u8]| {
        // The length counts its own digits: one more of them may make the record long enough for yet another.
        let rest = key.len() + value.len() + 3;
        let mut length = rest + 1;
        while length != rest + length.to_string().len() {
            length = rest + length.to_string().len();
        }
        records.extend_from_slice(length.to_string().as_bytes());
        records.push(b' ');
        records.extend_from_slice(key);
        records.push(b'=');
        records.extend_from_slice(value);
        records.push(b'\n');
    };
    let mut xattrs: Vec<_> = entry.xattrs.iter().collect();
    xattrs.sort();
    for (name, value) in xattrs {
        add(&[b"SCHILY.xattr.", &name[..]].concat(), value);
    }
    if entry.uid > ID_MAX {
        add(b"uid", entry.uid.to_string().as_bytes());
    }
    if entry.gid > ID_MAX {
        add(b"gid", entry.gid.to_string().as_bytes());
    }
    if entry.link.len() > FIELD {
        add(b"linkpath", &entry.link);
    }
    if entry.mtime.0 < 0 {
        add(b"mtime", entry.mtime.0.to_string().as_bytes());
    }
    if entry.name.len() > FIELD {
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
    use super::super::read;
    use super::*;

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
