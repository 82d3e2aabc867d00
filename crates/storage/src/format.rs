//! The stream that layers are packed into: a strict kind of tar.
//!
//! - It begins with a global header `ATOLL.layer=1` and ends with two empty blocks; any byte after them is an error.
//! - Folders are before their entries, in the order of a walk: each entry is in a folder that is still open.
//! - Data that does not fit a header is in pax records, with the usual keys: `path`, `linkpath`, `mtime`,
//!   `SCHILY.xattr.*`, `GNU.sparse.*` of version 1.0. So any tar program can list and read the stream. Only an
//!   attribute whose name contains a `=` has a key that is specific to Atoll.
//! - Ids are canonical, names are bytes, whiteouts are character devices 0/0, sockets are left out.

use std::io::{self, Read, Write};

use atoll_tar::header::{ChecksumForm, Dialect, Header, HeaderFields, NAME_ROOM};
pub(crate) use atoll_tar::padding;
use atoll_tar::pax;

pub(crate) use atoll_tar::BLOCK;
/// LIMIT: the records of one entry. Kernels take 64 KiB of names of attributes; this is room for some of them being large.
pub(crate) const RECORDS_MOST: usize = 16 << 20;
/// LIMIT: pieces of one sparse file. Where there are more, small holes are written out.
pub(crate) const PIECES_MOST: usize = 64 << 10;
/// Ids of a sandbox are below this.
pub const IDS: u32 = 1 << 16;

const VERSION_KEY: &[u8] = b"ATOLL.layer";
const VERSION: &[u8] = b"1";
pub(crate) use atoll_tar::pax::XATTR;
/// The name in hexadecimal follows.
pub(crate) const XATTR_HEX: &[u8] = b"ATOLL.xattr.";

/// A key and a value.
pub(crate) type Record = (Vec<u8>, Vec<u8>);
/// Pax records of one entry.
pub(crate) type Records = Vec<Record>;

/// Attributes of files that belong to the layer. What an overlay notes for one mount or one machine does not.
pub(crate) fn is_kept(name: &[u8]) -> bool {
    const OVERLAY: &[&[u8]] =
        &[b"opaque", b"redirect", b"whiteout", b"whiteouts", b"xwhiteouts", b"protattr"];
    match name.strip_prefix(b"trusted.overlay.") {
        Some(rest) => OVERLAY.contains(&rest),
        None => {
            name.starts_with(b"user.")
                || matches!(
                    name,
                    b"security.capability" | b"system.posix_acl_access" | b"system.posix_acl_default"
                )
        }
    }
}

/// Writes the beginning of a stream.
pub(crate) fn begin(out: &mut impl Write) -> io::Result<()> {
    write_records(out, EntryType::XGlobalHeader, &[(VERSION_KEY.to_vec(), VERSION.to_vec())])
}

/// Writes the end of a stream.
pub(crate) fn end(out: &mut impl Write) -> io::Result<()> {
    out.write_all(&[0; 2 * BLOCK])
}

/// Whether these are the records of a beginning that we understand.
pub(crate) fn is_beginning(records: &Records) -> bool {
    records.iter().any(|(key, value)| key == VERSION_KEY && value == VERSION)
}

/// What an entry is, by the byte of its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EntryType {
    Regular,
    Link,
    Symlink,
    Char,
    Block,
    Directory,
    Fifo,
    XHeader,
    XGlobalHeader,
    /// A type that a layer never contains.
    Other(u8),
}

impl EntryType {
    fn from_byte(byte: u8) -> Self {
        match byte {
            0 | b'0' => Self::Regular,
            b'1' => Self::Link,
            b'2' => Self::Symlink,
            b'3' => Self::Char,
            b'4' => Self::Block,
            b'5' => Self::Directory,
            b'6' => Self::Fifo,
            b'x' => Self::XHeader,
            b'g' => Self::XGlobalHeader,
            other => Self::Other(other),
        }
    }

    fn as_byte(self) -> u8 {
        match self {
            Self::Regular => b'0',
            Self::Link => b'1',
            Self::Symlink => b'2',
            Self::Char => b'3',
            Self::Block => b'4',
            Self::Directory => b'5',
            Self::Fifo => b'6',
            Self::XHeader => b'x',
            Self::XGlobalHeader => b'g',
            Self::Other(byte) => byte,
        }
    }
}

/// What an entry says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PackedEntry {
    pub(crate) kind: EntryType,
    pub(crate) path: Vec<u8>,
    pub(crate) link: Vec<u8>,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) seconds: i64,
    pub(crate) nanoseconds: u32,
    /// Bytes that follow.
    pub(crate) size: u64,
    pub(crate) device: (u32, u32),
}

/// Writes the head of an entry.
pub(crate) fn write_head(out: &mut impl Write, about: &PackedEntry, mut records: Records) -> io::Result<()> {
    for (text, key) in [(&about.path, b"path".as_slice()), (&about.link, b"linkpath")] {
        if text.len() > NAME_ROOM {
            records.push((key.to_vec(), text.clone()));
        }
    }
    if about.seconds < 0 || about.nanoseconds != 0 {
        let time = pax::format_time(about.seconds, about.nanoseconds);
        records.push((b"mtime".to_vec(), time.into_bytes()));
    }
    if !records.is_empty() {
        if records.iter().any(|(_, value)| std::str::from_utf8(value).is_err()) {
            records.insert(0, (b"hdrcharset".to_vec(), b"BINARY".to_vec()));
        }
        write_records(out, EntryType::XHeader, &records)?;
    }
    let fields = HeaderFields {
        kind: about.kind.as_byte(),
        name: &about.path,
        link: &about.link,
        mode: about.mode,
        uid: about.uid.into(),
        gid: about.gid.into(),
        size: about.size,
        mtime: u64::try_from(about.seconds).unwrap_or(0),
        device: Some(about.device),
        checksum: ChecksumForm::SevenDigits,
    };
    out.write_all(&fields.block())
}

fn write_records(out: &mut impl Write, kind: EntryType, records: &[(Vec<u8>, Vec<u8>)]) -> io::Result<()> {
    let mut body = Vec::new();
    for (key, value) in records {
        pax::push_record(&mut body, key, value);
    }
    if body.len() > RECORDS_MOST {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a file has too many attributes"));
    }
    let fields = HeaderFields {
        kind: kind.as_byte(),
        name: b"pax",
        mode: 0o644,
        size: body.len() as u64,
        checksum: ChecksumForm::SevenDigits,
        ..HeaderFields::default()
    };
    out.write_all(&fields.block())?;
    out.write_all(&body)?;
    pad(out, body.len() as u64)
}

/// Fills the last block of `length` bytes.
pub(crate) fn pad(out: &mut impl Write, length: u64) -> io::Result<()> {
    out.write_all(&[0; BLOCK][..padding(length)])
}

/// A stream that is not what we would write.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The stream is not a packed layer, or it was changed or truncated.
    #[error("{0}")]
    Damaged(String),
    /// Reading the stream or writing the layer failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<rustix::io::Errno> for ReadError {
    fn from(error: rustix::io::Errno) -> Self {
        Self::Io(error.into())
    }
}

pub(crate) fn damaged(why: impl Into<String>) -> ReadError {
    ReadError::Damaged(why.into())
}

/// Reads as much as `buffer` holds; a stream that ends before is cut short.
pub(crate) fn read_all(input: &mut impl Read, buffer: &mut [u8]) -> Result<(), ReadError> {
    match input.read_exact(buffer) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(damaged("it is truncated")),
        other => Ok(other?),
    }
}

/// The next head, or `None` at a proper end. `records` are those that belong to it.
pub(crate) fn read_head(input: &mut impl Read) -> Result<Option<(PackedEntry, Records)>, ReadError> {
    let mut records = Records::new();
    loop {
        let mut block = [0; BLOCK];
        let Some(header) = read_header(input, &mut block)? else {
            return if records.is_empty() { Ok(None) } else { Err(damaged("it ends inside an entry")) };
        };
        let kind = EntryType::from_byte(header.kind());
        if !matches!(kind, EntryType::XHeader | EntryType::XGlobalHeader) {
            let about = about(&header, &records)?;
            return Ok(Some((about, records)));
        }
        if !records.is_empty() {
            return Err(damaged("two sets of records for one entry"));
        }
        records = read_records(input, &header)?;
        if kind == EntryType::XGlobalHeader {
            let about = PackedEntry {
                kind,
                path: Vec::new(),
                link: Vec::new(),
                mode: 0,
                uid: 0,
                gid: 0,
                seconds: 0,
                nanoseconds: 0,
                size: 0,
                device: (0, 0),
            };
            return Ok(Some((about, records)));
        }
    }
}

fn read_header<'a>(
    input: &mut impl Read,
    block: &'a mut [u8; BLOCK],
) -> Result<Option<Header<'a>>, ReadError> {
    read_all(input, block)?;
    if *block == [0; BLOCK] {
        read_all(input, block)?;
        let mut beyond = [0; 1];
        if *block != [0; BLOCK] || input.read(&mut beyond)? > 0 {
            return Err(damaged("data follows its end"));
        }
        return Ok(None);
    }
    let header = Header::new(block).filter(|header| header.dialect() == Dialect::Ustar);
    header.map(Some).ok_or_else(|| damaged("a header is malformed"))
}

fn read_records(input: &mut impl Read, header: &Header<'_>) -> Result<Records, ReadError> {
    let size = header.size().and_then(|size| usize::try_from(size).ok());
    let size = size.filter(|size| *size <= RECORDS_MOST).ok_or_else(|| damaged("records are too long"))?;
    let mut body = vec![0; size];
    read_all(input, &mut body)?;
    read_all(input, &mut [0; BLOCK][..padding(size as u64)])?;
    let mut records = Records::new();
    let mut rest = body.as_slice();
    while !rest.is_empty() {
        let (key, value, after) = pax::split_record(rest).ok_or_else(|| damaged("a record is malformed"))?;
        records.push((key.to_vec(), value.to_vec()));
        rest = after;
    }
    Ok(records)
}

fn about(header: &Header<'_>, records: &Records) -> Result<PackedEntry, ReadError> {
    // The prefix field is not used: this format keeps long names in records.
    let name = |key: &[u8], field: &[u8]| record(records, key).unwrap_or(field).to_vec();
    let (path, link) = (name(b"path", header.name_field()), name(b"linkpath", header.link()));
    let number = |value: Option<u64>| value.ok_or_else(|| damaged("a number is malformed"));
    let id = |value: Option<u64>| {
        let value = number(value)?;
        u32::try_from(value)
            .ok()
            .filter(|id| *id < IDS)
            .ok_or_else(|| damaged(format!("{value} is not an id of a sandbox")))
    };
    let (seconds, nanoseconds) = match record(records, b"mtime") {
        Some(text) => pax::parse_time(text).ok_or_else(|| damaged("a time is malformed"))?,
        None => (header.mtime().ok_or_else(|| damaged("a time is malformed"))?, 0),
    };
    let (major, minor) = header.device().ok_or_else(|| damaged("a number is malformed"))?;
    let device = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    Ok(PackedEntry {
        kind: EntryType::from_byte(header.kind()),
        path,
        link,
        mode: u32::try_from(header.mode().ok_or_else(|| damaged("a mode is malformed"))? & 0o7777)
            .unwrap_or(0),
        uid: id(header.uid())?,
        gid: id(header.gid())?,
        seconds,
        nanoseconds,
        size: number(header.size())?,
        device: (device(major), device(minor)),
    })
}

/// The value of `key`.
pub(crate) fn record<'a>(records: &'a Records, key: &[u8]) -> Option<&'a [u8]> {
    records.iter().find(|(found, _)| found == key).map(|(_, value)| value.as_slice())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_record_counts_its_own_length_also_where_the_count_grows_by_it() {
        for length in 80..110 {
            let records = vec![(b"k".to_vec(), vec![b'v'; length])];
            let mut out = Vec::new();
            write_records(&mut out, EntryType::XHeader, &records).unwrap();
            let block = out[..BLOCK].try_into().unwrap();
            let header = Header::new(&block).unwrap();
            assert_eq!(read_records(&mut &out[BLOCK..], &header).unwrap(), records);
        }
    }

    #[test]
    fn any_archive_of_a_layer_is_read_or_refused() {
        atoll_robustness::check("layer_archive", |bytes| {
            let (mut input, mut heads) = (bytes, 0);
            while let Ok(Some((about, records))) = read_head(&mut input) {
                heads += 1;
                let _ = (is_beginning(&records), about.path.len());
                let data = usize::try_from(about.size).unwrap_or(usize::MAX);
                let skipped = data.saturating_add(padding(about.size)).min(input.len());
                input = &input[skipped..];
            }
            assert!(heads <= bytes.len() / BLOCK);
        });
    }
}
