//! A layer as a tar, written entry by entry, so that a test can also write what no honest tool would.

use std::io::Write;

use tar::{EntryType, Header};

/// A tar that grows; paths are written to the archive as given, without normalization.
#[derive(Debug, Clone, Default)]
pub struct Layer {
    tar: Vec<u8>,
    owner: (u64, u64),
}

impl Layer {
    /// An empty one; entries belong to root until [`Layer::owner`] says otherwise.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whose the following entries are.
    pub fn owner(mut self, uid: u64, gid: u64) -> Self {
        self.owner = (uid, gid);
        self
    }

    /// A folder.
    pub fn folder(self, path: &str, mode: u32) -> Self {
        self.entry(EntryType::Directory, path.as_bytes(), mode, b"", b"", &[])
    }

    /// A file.
    pub fn file(self, path: &str, mode: u32, content: impl AsRef<[u8]>) -> Self {
        self.entry(EntryType::Regular, path.as_bytes(), mode, b"", content.as_ref(), &[])
    }

    /// A file with attributes, by their names as the kernel says them.
    pub fn file_with(self, path: &str, mode: u32, content: &[u8], attributes: &[(&str, &[u8])]) -> Self {
        self.entry(EntryType::Regular, path.as_bytes(), mode, b"", content, attributes)
    }

    /// A symbolic link.
    pub fn link(self, path: &str, to: &str) -> Self {
        self.entry(EntryType::Symlink, path.as_bytes(), 0o777, to.as_bytes(), b"", &[])
    }

    /// A hard link.
    pub fn hard(self, path: &str, to: &str) -> Self {
        self.entry(EntryType::Link, path.as_bytes(), 0o644, to.as_bytes(), b"", &[])
    }

    /// A device node, block or character.
    pub fn device(self, path: &str, kind: EntryType, major: u32, minor: u32) -> Self {
        let mut header = self.header(kind, 0o666);
        header.set_device_major(major).expect("ustar");
        header.set_device_minor(minor).expect("ustar");
        self.with_header(header, path.as_bytes(), b"", b"", &[])
    }

    /// A named pipe.
    pub fn pipe(self, path: &str) -> Self {
        self.entry(EntryType::Fifo, path.as_bytes(), 0o600, b"", b"", &[])
    }

    /// Any entry at all.
    pub fn entry(
        self,
        kind: EntryType,
        path: &[u8],
        mode: u32,
        to: &[u8],
        content: &[u8],
        attributes: &[(&str, &[u8])],
    ) -> Self {
        let header = self.header(kind, mode);
        self.with_header(header, path, to, content, attributes)
    }

    fn header(&self, kind: EntryType, mode: u32) -> Header {
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(self.owner.0);
        header.set_gid(self.owner.1);
        header.set_mtime(1_700_000_000);
        header
    }

    fn with_header(
        mut self,
        mut header: Header,
        path: &[u8],
        to: &[u8],
        content: &[u8],
        attributes: &[(&str, &[u8])],
    ) -> Self {
        let mut records = Vec::new();
        let name_size = header.as_old().name.len();
        if path.len() > name_size || path.contains(&0) {
            record(&mut records, "path", path);
        }
        if to.len() > name_size {
            record(&mut records, "linkpath", to);
        }
        for (name, value) in attributes {
            record(&mut records, &format!("SCHILY.xattr.{name}"), value);
        }
        if !records.is_empty() {
            let mut more = self.header(EntryType::XHeader, 0o644);
            more.as_old_mut().name[..3].copy_from_slice(b"pax");
            self.put(more, &records);
        }
        let old = header.as_old_mut();
        copy(&mut old.name, path);
        copy(&mut old.linkname, to);
        self.put(header, content);
        self
    }

    fn put(&mut self, mut header: Header, content: &[u8]) {
        header.set_size(content.len() as u64);
        header.set_cksum();
        self.tar.extend_from_slice(header.as_bytes());
        self.tar.extend_from_slice(content);
        self.tar.resize(self.tar.len().next_multiple_of(512), 0);
    }

    /// Bytes as they are, for what is no entry.
    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.tar.extend_from_slice(bytes);
        self
    }

    /// The whole archive with its end.
    pub fn tar(&self) -> Vec<u8> {
        let mut tar = self.tar.clone();
        tar.resize(tar.len() + 1024, 0);
        tar
    }
}

fn copy(field: &mut [u8], value: &[u8]) {
    let length = value.len().min(field.len());
    field[..length].copy_from_slice(&value[..length]);
}

/// One record of an extended header: its own length in decimal, a space, name, value, line end.
fn record(records: &mut Vec<u8>, name: &str, value: &[u8]) {
    let rest = 1 + name.len() + 1 + value.len() + 1;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    write!(records, "{length} {name}=").expect("memory");
    records.extend_from_slice(value);
    records.push(b'\n');
}
