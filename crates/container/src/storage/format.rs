//! The stream that layers are packed into: a tar of a strict kind.
//!
//! - It begins with a global header `ATOLL.layer=1` and ends with two empty blocks; anything behind them is an error.
//! - Entries come folders first, in the order of a walk: each entry lies in a folder that is still open.
//! - What does not fit a header is in pax records, with the words of others: `path`, `linkpath`, `mtime`, `SCHILY.xattr.*`,
//!   `GNU.sparse.*` of version 1.0. So any tar can list and read it. Only an attribute whose name holds a `=` is ours alone.
//! - Ids are canonical, names are bytes, whiteouts are character devices 0/0, sockets are left out.

use std::io::{self, Read, Write};

use tar::{EntryType, Header};

pub(super) const BLOCK: usize = 512;
/// LIMIT: the records of one entry. Kernels take 64 KiB of names of attributes; this is room for some of them being large.
pub(super) const RECORDS_MOST: usize = 16 << 20;
/// LIMIT: pieces of one sparse file. Where there are more, small holes are written out.
pub(super) const PIECES_MOST: usize = 64 << 10;
/// Ids of a sandbox are below this.
pub(crate) const IDS: u32 = 1 << 16;

const VERSION_KEY: &[u8] = b"ATOLL.layer";
const VERSION: &[u8] = b"1";
pub(super) const XATTR: &[u8] = b"SCHILY.xattr.";
/// The name in hexadecimal follows.
pub(super) const XATTR_HEX: &[u8] = b"ATOLL.xattr.";

/// A key and a value.
pub(super) type Record = (Vec<u8>, Vec<u8>);
/// Pax records of one entry.
pub(super) type Records = Vec<Record>;

/// Attributes of files that belong to the layer. What an overlay notes for one mount or one machine does not.
pub(super) fn is_kept(name: &[u8]) -> bool {
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
pub(super) fn begin(out: &mut impl Write) -> io::Result<()> {
    write_records(out, EntryType::XGlobalHeader, &[(VERSION_KEY.to_vec(), VERSION.to_vec())])
}

/// Writes the end of a stream.
pub(super) fn end(out: &mut impl Write) -> io::Result<()> {
    out.write_all(&[0; 2 * BLOCK])
}

/// Whether these are the records of a beginning that we understand.
pub(super) fn is_beginning(records: &Records) -> bool {
    records.iter().any(|(key, value)| key == VERSION_KEY && value == VERSION)
}

/// What an entry says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PackedEntry {
    pub(super) kind: EntryType,
    pub(super) path: Vec<u8>,
    pub(super) link: Vec<u8>,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) seconds: i64,
    pub(super) nanoseconds: u32,
    /// Bytes that follow.
    pub(super) size: u64,
    pub(super) device: (u32, u32),
}

/// Writes the head of an entry.
pub(super) fn write_head(out: &mut impl Write, about: &PackedEntry, mut records: Records) -> io::Result<()> {
    let mut header = Header::new_ustar();
    header.set_entry_type(about.kind);
    header.set_mode(about.mode & 0o7777);
    header.set_uid(about.uid.into());
    header.set_gid(about.gid.into());
    header.set_size(about.size);
    header.set_mtime(u64::try_from(about.seconds).unwrap_or(0));
    header.set_device_major(about.device.0)?;
    header.set_device_minor(about.device.1)?;
    let old = header.as_old_mut();
    for (field, text, key) in
        [(&mut old.name, &about.path, b"path".as_slice()), (&mut old.linkname, &about.link, b"linkpath")]
    {
        let fits = text.len().min(field.len());
        field[..fits].copy_from_slice(&text[..fits]);
        if fits < text.len() {
            records.push((key.to_vec(), text.clone()));
        }
    }
    if about.seconds < 0 || about.nanoseconds != 0 {
        records.push((b"mtime".to_vec(), time(about.seconds, about.nanoseconds).into_bytes()));
    }
    if !records.is_empty() {
        if records.iter().any(|(_, value)| std::str::from_utf8(value).is_err()) {
            records.insert(0, (b"hdrcharset".to_vec(), b"BINARY".to_vec()));
        }
        write_records(out, EntryType::XHeader, &records)?;
    }
    header.set_cksum();
    out.write_all(header.as_bytes())
}

fn time(seconds: i64, nanoseconds: u32) -> String {
    if seconds < 0 && nanoseconds > 0 {
        // The kernel's -1 s + 0.9 s is written -0.1.
        let whole = -(seconds + 1);
        return format!("-{whole}.{:09}", 1_000_000_000 - nanoseconds);
    }
    format!("{seconds}.{nanoseconds:09}")
}

fn parse_time(text: &[u8]) -> Option<(i64, u32)> {
    let text = std::str::from_utf8(text).ok()?;
    let (negative, text) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let whole: i64 = whole.parse().ok().filter(|whole| *whole >= 0)?;
    if !part.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let nanoseconds: u32 = format!("{part:0<9}").get(..9)?.parse().ok()?;
    match (negative, nanoseconds) {
        (false, _) => Some((whole, nanoseconds)),
        (true, 0) => Some((-whole, 0)),
        (true, _) => Some((-whole - 1, 1_000_000_000 - nanoseconds)),
    }
}

fn write_records(out: &mut impl Write, kind: EntryType, records: &[(Vec<u8>, Vec<u8>)]) -> io::Result<()> {
    let mut body = Vec::new();
    for (key, value) in records {
        let rest = key.len() + value.len() + 3;
        let mut length = rest + rest.to_string().len();
        if length.to_string().len() != rest.to_string().len() {
            length = rest + length.to_string().len();
        }
        write!(body, "{length} ")?;
        body.extend_from_slice(key);
        body.push(b'=');
        body.extend_from_slice(value);
        body.push(b'\n');
    }
    if body.len() > RECORDS_MOST {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a file has too many attributes"));
    }
    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    header.set_path("pax")?;
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(body.len() as u64);
    header.set_cksum();
    out.write_all(header.as_bytes())?;
    out.write_all(&body)?;
    pad(out, body.len() as u64)
}

/// Fills the last block of `length` bytes.
pub(super) fn pad(out: &mut impl Write, length: u64) -> io::Result<()> {
    out.write_all(&[0; BLOCK][..padding(length)])
}

pub(super) const fn padding(length: u64) -> usize {
    (BLOCK - (length % BLOCK as u64) as usize) % BLOCK
}

/// A stream that is not what we would write.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    /// It is not ours, or was changed or cut short.
    #[error("{0}")]
    Damaged(String),
    /// It could not be read, or not be written down.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<rustix::io::Errno> for ReadError {
    fn from(error: rustix::io::Errno) -> Self {
        Self::Io(error.into())
    }
}

pub(super) fn damaged(why: impl Into<String>) -> ReadError {
    ReadError::Damaged(why.into())
}

/// Reads as much as `buffer` holds; a stream that ends before is cut short.
pub(super) fn read_all(input: &mut impl Read, buffer: &mut [u8]) -> Result<(), ReadError> {
    match input.read_exact(buffer) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(damaged("it is cut short")),
        other => Ok(other?),
    }
}

/// The next head, or `None` at a proper end. `records` are those that belong to it.
pub(super) fn read_head(input: &mut impl Read) -> Result<Option<(PackedEntry, Records)>, ReadError> {
    let mut records = Records::new();
    loop {
        let Some(header) = read_header(input)? else {
            return if records.is_empty() { Ok(None) } else { Err(damaged("it ends inside of an entry")) };
        };
        let kind = header.entry_type();
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

fn read_header(input: &mut impl Read) -> Result<Option<Header>, ReadError> {
    let mut block = [0; BLOCK];
    read_all(input, &mut block)?;
    if block.iter().all(|byte| *byte == 0) {
        read_all(input, &mut block)?;
        let mut beyond = [0; 1];
        if block.iter().any(|byte| *byte != 0) || input.read(&mut beyond)? > 0 {
            return Err(damaged("something comes behind its end"));
        }
        return Ok(None);
    }
    let header = Header::from_byte_slice(&block).clone();
    let sum: u32 = block
        .iter()
        .enumerate()
        .map(|(at, byte)| if (148..156).contains(&at) { 32 } else { u32::from(*byte) })
        .sum();
    if header.cksum().ok() != Some(sum) || header.as_ustar().is_none() {
        return Err(damaged("a header is not one"));
    }
    Ok(Some(header))
}

fn read_records(input: &mut impl Read, header: &Header) -> Result<Records, ReadError> {
    let size = header.entry_size().ok().and_then(|size| usize::try_from(size).ok());
    let size = size.filter(|size| *size <= RECORDS_MOST).ok_or_else(|| damaged("records are too long"))?;
    let mut body = vec![0; size];
    read_all(input, &mut body)?;
    read_all(input, &mut [0; BLOCK][..padding(size as u64)])?;
    let mut records = Records::new();
    let mut rest = body.as_slice();
    while !rest.is_empty() {
        let (record, after) = split_record(rest).ok_or_else(|| damaged("a record is not one"))?;
        records.push(record);
        rest = after;
    }
    Ok(records)
}

/// `length key=value\n`, the length being that of the whole.
fn split_record(text: &[u8]) -> Option<(Record, &[u8])> {
    let space = text.iter().take(20).position(|byte| *byte == b' ')?;
    let length: usize = std::str::from_utf8(&text[..space]).ok()?.parse().ok()?;
    let record = text.get(space + 1..length)?.strip_suffix(b"\n")?;
    let equals = record.iter().position(|byte| *byte == b'=')?;
    Some(((record[..equals].to_vec(), record[equals + 1..].to_vec()), &text[length..]))
}

fn about(header: &Header, records: &Records) -> Result<PackedEntry, ReadError> {
    let old = header.as_old();
    let text = |key: &[u8], field: &[u8]| {
        let short = field.split(|byte| *byte == 0).next().unwrap_or_default();
        record(records, key).map_or_else(|| short.to_vec(), <[u8]>::to_vec)
    };
    let (path, link) = (text(b"path", &old.name), text(b"linkpath", &old.linkname));
    let number = |value: io::Result<u64>| value.map_err(|_| damaged("a number is not one"));
    let id = |value: io::Result<u64>| {
        let value = number(value)?;
        u32::try_from(value)
            .ok()
            .filter(|id| *id < IDS)
            .ok_or_else(|| damaged(format!("{value} is no id of a sandbox")))
    };
    let (seconds, nanoseconds) = match record(records, b"mtime") {
        Some(text) => parse_time(text).ok_or_else(|| damaged("a time is not one"))?,
        None => (i64::try_from(number(header.mtime())?).map_err(|_| damaged("a time is not one"))?, 0),
    };
    let device = |value: io::Result<Option<u32>>| value.ok().flatten().unwrap_or(0);
    Ok(PackedEntry {
        kind: header.entry_type(),
        path,
        link,
        mode: header.mode().map_err(|_| damaged("a mode is not one"))? & 0o7777,
        uid: id(header.uid())?,
        gid: id(header.gid())?,
        seconds,
        nanoseconds,
        size: number(header.entry_size())?,
        device: (device(header.device_major()), device(header.device_minor())),
    })
}

/// The value of `key`.
pub(super) fn record<'a>(records: &'a Records, key: &[u8]) -> Option<&'a [u8]> {
    records.iter().find(|(found, _)| found == key).map(|(_, value)| value.as_slice())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn times_before_the_epoch_and_parts_of_seconds_come_back() {
        for (seconds, nanoseconds) in
            [(0, 0), (5, 1), (-1, 0), (-1, 900_000_000), (-7, 1), (1 << 40, 999_999_999)]
        {
            assert_eq!(parse_time(time(seconds, nanoseconds).as_bytes()), Some((seconds, nanoseconds)));
        }
        assert_eq!(parse_time(b"--1"), None);
        assert_eq!(parse_time(b"1.x"), None);
    }

    #[test]
    fn a_record_counts_its_own_length_also_where_the_count_grows_by_it() {
        for length in 80..110 {
            let records = vec![(b"k".to_vec(), vec![b'v'; length])];
            let mut out = Vec::new();
            write_records(&mut out, EntryType::XHeader, &records).unwrap();
            let header = Header::from_byte_slice(&out[..BLOCK]).clone();
            assert_eq!(read_records(&mut &out[BLOCK..], &header).unwrap(), records);
        }
    }

    #[test]
    fn any_archive_of_a_layer_is_read_or_refused() {
        atoll_robustness::check!("layer_archive", |bytes| {
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
