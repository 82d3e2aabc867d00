//! One tar header: 512 bytes of ustar, with PAX records for what they cannot hold. Reads GNU's long names too.

use crate::error::AgentError;

pub(super) const BLOCK: usize = 512;

/// LIMIT: records of one entry; extended attributes may hold 64 KiB each.
pub(super) const EXTRA_MAX: u64 = 1 << 20;

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TarKind {
    File,
    Folder,
    Symlink,
    Hardlink,
    Fifo,
    Device,
    /// Records for the next entry: PAX, GNU's long name, GNU's long link, and what is for nobody.
    Pax,
    LongName,
    LongLink,
    Ignored,
    /// GNU's own form of files with holes.
    Sparse,
}

/// An entry, its records applied.
#[derive(Debug, Clone)]
pub(super) struct TarEntry {
    pub(super) path: Vec<u8>,
    pub(super) link: Vec<u8>,
    pub(super) kind: TarKind,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) size: u64,
    pub(super) modified_s: i64,
    pub(super) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// What records said of the entry that follows them.
#[derive(Debug, Default)]
pub(super) struct Extra {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u32>,
    gid: Option<u32>,
    modified_s: Option<i64>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    sparse: bool,
}

fn broken() -> AgentError {
    AgentError::Invalid("the stream is not a tar archive, or a damaged one".into())
}

impl TarEntry {
    /// Reads a header. `None`: a block of zeros, which ends an archive.
    pub(super) fn read(block: &[u8; BLOCK]) -> Result<Option<Self>, AgentError> {
        if block.iter().all(|b| *b == 0) {
            return Ok(None);
        }
        let sum = block.iter().enumerate();
        let sum: u64 = sum.map(|(at, b)| if (148..156).contains(&at) { 32 } else { u64::from(*b) }).sum();
        if number(&block[148..156]) != Some(sum) {
            return Err(broken());
        }
        let mut path = text(&block[..100]).to_vec();
        if &block[257..263] == b"ustar\0" && block[345] != 0 {
            path = [text(&block[345..500]), b"/", &path].concat();
        }
        let kind = match block[156] {
            b'0' | 0 | b'7' => TarKind::File,
            b'1' => TarKind::Hardlink,
            b'2' => TarKind::Symlink,
            b'3' | b'4' => TarKind::Device,
            b'5' => TarKind::Folder,
            b'6' => TarKind::Fifo,
            b'x' => TarKind::Pax,
            b'L' => TarKind::LongName,
            b'K' => TarKind::LongLink,
            b'S' => TarKind::Sparse,
            _ => TarKind::Ignored,
        };
        let id = |at: usize| number(&block[at..at + 8]).and_then(|id| u32::try_from(id).ok());
        let size = number(&block[124..136]).ok_or_else(broken)?;
        Ok(Some(Self {
            path,
            link: text(&block[157..257]).to_vec(),
            kind,
            mode: (number(&block[100..108]).unwrap_or(0o644) & 0o7777) as u32,
            uid: id(108).unwrap_or(NOBODY),
            gid: id(116).unwrap_or(NOBODY),
            // Links and the like have no content, whatever some writers put here.
            size: match kind {
                TarKind::Hardlink | TarKind::Symlink | TarKind::Folder | TarKind::Fifo | TarKind::Device => 0,
                TarKind::File
                | TarKind::Pax
                | TarKind::LongName
                | TarKind::LongLink
                | TarKind::Ignored
                | TarKind::Sparse => size,
            },
            modified_s: number(&block[136..148]).and_then(|s| i64::try_from(s).ok()).unwrap_or(0),
            xattrs: Vec::new(),
        }))
    }

    /// Applies what records said before.
    pub(super) fn with(mut self, extra: Extra) -> Self {
        self.path = extra.path.unwrap_or(self.path);
        // Old writers have no sign for folders. Only the whole name tells: a header's may be cut behind a slash.
        if self.kind == TarKind::File && self.path.ends_with(b"/") {
            self.kind = TarKind::Folder;
        }
        self.link = extra.link.unwrap_or(self.link);
        if self.kind == TarKind::File {
            self.size = extra.size.unwrap_or(self.size);
            if extra.sparse {
                self.kind = TarKind::Sparse;
            }
        }
        self.uid = extra.uid.unwrap_or(self.uid);
        self.gid = extra.gid.unwrap_or(self.gid);
        self.modified_s = extra.modified_s.unwrap_or(self.modified_s);
        self.xattrs = extra.xattrs;
        self
    }

    /// The header's bytes, PAX records before it where they are needed.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let mut records = Vec::new();
        if self.path.len() > 100 {
            record(&mut records, b"path", &self.path);
        }
        if self.link.len() > 100 {
            record(&mut records, b"linkpath", &self.link);
        }
        if self.size >= 1 << 33 {
            record(&mut records, b"size", self.size.to_string().as_bytes());
        }
        for (key, id) in [(b"uid", self.uid), (b"gid", self.gid)] {
            if id >= 1 << 21 {
                record(&mut records, key, id.to_string().as_bytes());
            }
        }
        for (name, value) in &self.xattrs {
            record(&mut records, &[XATTR, name].concat(), value);
        }
        if !records.is_empty() {
            out.extend_from_slice(&self.block(b'x', b"././@PaxHeader", b"", records.len() as u64));
            out.extend_from_slice(&records);
            // By their own length: `out` need not begin where a block does.
            out.resize(out.len() + records.len().wrapping_neg() % BLOCK, 0);
        }
        let sign = match self.kind {
            TarKind::Folder => b'5',
            TarKind::Symlink => b'2',
            TarKind::Hardlink => b'1',
            TarKind::Fifo => b'6',
            _ => b'0',
        };
        out.extend_from_slice(&self.block(sign, &self.path, &self.link, self.size));
    }

    fn block(&self, sign: u8, path: &[u8], link: &[u8], size: u64) -> [u8; BLOCK] {
        let mut block = [0u8; BLOCK];
        put(&mut block[..100], path);
        octal(&mut block[100..108], u64::from(self.mode & 0o7777));
        octal(&mut block[108..116], u64::from(self.uid));
        octal(&mut block[116..124], u64::from(self.gid));
        octal(&mut block[124..136], size);
        octal(&mut block[136..148], u64::try_from(self.modified_s).unwrap_or(0));
        block[148..156].fill(b' ');
        block[156] = sign;
        put(&mut block[157..257], link);
        block[257..265].copy_from_slice(b"ustar\x0000");
        let sum: u64 = block.iter().map(|b| u64::from(*b)).sum();
        octal(&mut block[148..155], sum);
        block
    }
}

const XATTR: &[u8] = b"SCHILY.xattr.";
const NOBODY: u32 = 65_534;

impl Extra {
    pub(super) fn long_name(&mut self, value: &[u8]) {
        self.path = Some(text(value).to_vec());
    }

    pub(super) fn long_link(&mut self, value: &[u8]) {
        self.link = Some(text(value).to_vec());
    }

    /// PAX: `length key=value\n`, any number of them.
    pub(super) fn pax(&mut self, mut records: &[u8]) -> Result<(), AgentError> {
        while !records.is_empty() {
            let space = records.iter().position(|b| *b == b' ').ok_or_else(broken)?;
            let len = decimal(&records[..space]).and_then(|len| usize::try_from(len).ok());
            let record = len.and_then(|len| records.get(space + 1..len)).ok_or_else(broken)?;
            records = &records[space + 1 + record.len()..];
            let record = record.strip_suffix(b"\n").ok_or_else(broken)?;
            let equals = record.iter().position(|b| *b == b'=').ok_or_else(broken)?;
            self.take(&record[..equals], &record[equals + 1..])?;
        }
        Ok(())
    }

    fn take(&mut self, key: &[u8], value: &[u8]) -> Result<(), AgentError> {
        let id = || decimal(value).map(|id| u32::try_from(id).unwrap_or(NOBODY));
        match key {
            b"path" => self.path = Some(value.to_vec()),
            b"linkpath" => self.link = Some(value.to_vec()),
            b"size" => self.size = Some(decimal(value).ok_or_else(broken)?),
            b"uid" => self.uid = id(),
            b"gid" => self.gid = id(),
            b"mtime" => {
                let whole = value.split(|b| *b == b'.').next().unwrap_or_default();
                self.modified_s = std::str::from_utf8(whole).ok().and_then(|s| s.parse().ok());
            }
            _ if key.starts_with(b"GNU.sparse.") => self.sparse = true,
            _ => {
                if let Some(name) = key.strip_prefix(XATTR) {
                    self.xattrs.push((name.to_vec(), value.to_vec()));
                }
            }
        }
        Ok(())
    }
}

/// Up to the first NUL.
fn text(field: &[u8]) -> &[u8] {
    field.split(|b| *b == 0).next().unwrap_or_default()
}

fn decimal(digits: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(digits).ok().filter(|text| !text.starts_with('+'))?;
    digits.parse().ok()
}

/// Octal digits, or GNU's form for large numbers: the first bit set, the rest big-endian.
fn number(field: &[u8]) -> Option<u64> {
    match field.split_first() {
        Some((0x80, rest)) => rest
            .iter()
            .try_fold(0u64, |sum, b| sum.checked_mul(256).and_then(|sum| sum.checked_add(u64::from(*b)))),
        _ => {
            let digits = text(field);
            let digits = std::str::from_utf8(digits).ok()?.trim_matches(' ');
            if digits.is_empty() {
                return Some(0);
            }
            u64::from_str_radix(digits, 8).ok()
        }
    }
}

fn put(field: &mut [u8], value: &[u8]) {
    let len = value.len().min(field.len());
    field[..len].copy_from_slice(&value[..len]);
}

/// A number that does not fit is in a record too; the field then says zero.
fn octal(field: &mut [u8], value: u64) {
    let digits = field.len() - 1;
    let value = if value >> (3 * digits) == 0 { value } else { 0 };
    put(field, format!("{value:0digits$o}\0").as_bytes());
}

/// The length counts its own digits.
fn record(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut len = rest + 1;
    while len.to_string().len() + rest != len {
        len = len.to_string().len() + rest;
    }
    out.extend_from_slice(len.to_string().as_bytes());
    out.push(b' ');
    out.extend_from_slice(key);
    out.push(b'=');
    out.extend_from_slice(value);
    out.push(b'\n');
}
