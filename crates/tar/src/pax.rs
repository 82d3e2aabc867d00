//! PAX records: `<length> <key>=<value>\n`, any number of them. [`Pax`] parses them strictly.

use crate::Xattrs;

/// The records of one entry. Fields without a record keep the value of the header.
#[derive(Debug, Default)]
pub struct Pax {
    pub path: Option<Vec<u8>>,
    pub link: Option<Vec<u8>>,
    pub size: Option<u64>,
    pub uid: Option<u64>,
    pub gid: Option<u64>,
    pub mtime: Option<(i64, u32)>,
    pub xattrs: Xattrs,
    pub sparse: Sparse,
}

/// GNU's sparse files in PAX records.
#[derive(Debug, Default)]
pub struct Sparse {
    pub major: Option<u64>,
    pub minor: Option<u64>,
    pub name: Option<Vec<u8>>,
    pub real_size: Option<u64>,
    /// Offsets and lengths alternately (versions 0.0 and 0.1).
    pub numbers: Vec<u64>,
    pub is_named: bool,
}

/// The prefix of extended attributes.
pub const XATTR: &[u8] = b"SCHILY.xattr.";
/// LIMIT: attributes of one entry. Each new name is compared with all before it.
const XATTRS_MAX: usize = 1024;

impl Pax {
    /// Parses a block of records; the error names the problem.
    pub fn parse(mut records: &[u8]) -> Result<Self, &'static str> {
        let mut pax = Self::default();
        while !records.is_empty() && records[0] != 0 {
            let (key, value, rest) = split_record(records).ok_or("a PAX record has an invalid length")?;
            pax.take(key, value)?;
            records = rest;
        }
        Ok(pax)
    }

    fn take(&mut self, key: &[u8], value: &[u8]) -> Result<(), &'static str> {
        let number = || decimal(value).ok_or("a PAX record contains an invalid number");
        match key {
            b"path" => self.path = some_text(value)?,
            b"linkpath" => self.link = some_text(value)?,
            b"size" => self.size = Some(number()?),
            b"uid" => self.uid = Some(number()?),
            b"gid" => self.gid = Some(number()?),
            b"mtime" => self.mtime = Some(parse_time(value).ok_or("a PAX record contains an invalid time")?),
            _ if key.starts_with(XATTR) => {
                let name = &key[XATTR.len()..];
                if name.is_empty() || name.len() > 255 || name.contains(&0) {
                    return Err("an extended attribute has an invalid name");
                }
                self.xattrs.retain(|(known, _)| known != name);
                if self.xattrs.len() == XATTRS_MAX {
                    return Err("it has too many extended attributes");
                }
                self.xattrs.push((name.to_owned(), value.to_owned()));
            }
            _ if key.starts_with(b"GNU.sparse.") => self.sparse.take(&key[b"GNU.sparse.".len()..], value)?,
            _ => {}
        }
        Ok(())
    }
}

impl Sparse {
    /// Whether the map of the file is before its data.
    pub(crate) fn has_map_before_data(&self) -> bool {
        self.major == Some(1) && self.minor == Some(0)
    }

    pub(crate) fn take(&mut self, key: &[u8], value: &[u8]) -> Result<(), &'static str> {
        const BAD: &str = "a record of a sparse file contains an invalid number";
        let number = || decimal(value).ok_or(BAD);
        self.is_named = true;
        match key {
            b"major" => self.major = Some(number()?),
            b"minor" => self.minor = Some(number()?),
            b"name" => self.name = some_text(value)?,
            b"realsize" | b"size" => self.real_size = Some(number()?),
            b"offset" | b"numbytes" => self.numbers.push(number()?),
            b"map" => {
                let numbers = value.split(|&byte| byte == b',').map(decimal);
                self.numbers = numbers.collect::<Option<_>>().ok_or(BAD)?;
            }
            _ => {}
        }
        Ok(())
    }
}

/// Key and value of the first record, and the rest. Its length includes itself.
#[must_use]
pub fn split_record(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = bytes.iter().take(12).position(|&byte| byte == b' ')?;
    let length = usize::try_from(decimal(&bytes[..space])?).ok()?;
    let (whole, rest) = bytes.split_at_checked(length)?;
    let body = whole.get(space + 1..)?.strip_suffix(b"\n")?;
    let equals = body.iter().position(|&byte| byte == b'=')?;
    (equals > 0).then(|| (&body[..equals], &body[equals + 1..], rest))
}

/// A path; an empty one means none. With a NUL in it two readers could see different paths.
fn some_text(value: &[u8]) -> Result<Option<Vec<u8>>, &'static str> {
    if value.contains(&0) {
        return Err("a name contains a NUL");
    }
    Ok((!value.is_empty()).then(|| value.to_owned()))
}

/// Adds a record. Its length includes its own digits: one more digit may make it long enough for yet another.
pub fn push_record(records: &mut Vec<u8>, key: &[u8], value: &[u8]) {
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
}

/// A number of decimal digits only.
#[must_use]
pub fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 20 {
        return None;
    }
    digits.iter().try_fold(0_u64, |sum, &byte| match byte {
        b'0'..=b'9' => sum.checked_mul(10)?.checked_add(u64::from(byte - b'0')),
        _ => None,
    })
}

/// Seconds and nanoseconds in the form of a record: with nine decimals, and a leading minus before 1970.
#[must_use]
pub fn format_time(seconds: i64, nanoseconds: u32) -> String {
    if seconds < 0 && nanoseconds > 0 {
        // The kernel's -1 s + 0.9 s is written as -0.1.
        let whole = -(seconds + 1);
        return format!("-{whole}.{:09}", 1_000_000_000 - nanoseconds);
    }
    format!("{seconds}.{nanoseconds:09}")
}

/// Seconds with an optional fraction; with a leading minus before 1970.
#[must_use]
pub fn parse_time(value: &[u8]) -> Option<(i64, u32)> {
    let (negative, digits) = match value.strip_prefix(b"-") {
        Some(digits) => (true, digits),
        None => (false, value),
    };
    let mut parts = digits.splitn(2, |&byte| byte == b'.');
    let seconds = i64::try_from(decimal(parts.next()?)?).ok()?;
    let mut nanos = 0_u32;
    if let Some(fraction) = parts.next() {
        if !fraction.iter().all(u8::is_ascii_digit) {
            return None;
        }
        for at in 0..9 {
            nanos = nanos * 10 + u32::from(fraction.get(at).map_or(0, |byte| byte - b'0'));
        }
    }
    Some(match (negative, nanos) {
        (false, nanos) => (seconds, nanos),
        (true, 0) => (-seconds, 0),
        (true, nanos) => (-seconds - 1, 1_000_000_000 - nanos),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_in_order_and_the_last_wins() {
        let records = b"12 path=a/b\n20 mtime=12.5000000\n12 path=c/d\n25 SCHILY.xattr.user.x=\n\n21 some.future=thing\n";
        let pax = Pax::parse(records).unwrap();
        assert_eq!(pax.path.unwrap(), b"c/d");
        assert_eq!(pax.mtime, Some((12, 500_000_000)));
        assert_eq!(pax.xattrs, [(b"user.x".to_vec(), b"\n".to_vec())][..]);
    }

    #[test]
    fn broken_records_are_refused() {
        for records in [
            &b"path=a\n"[..],
            b"9999 path=a\n",
            b"0 path=a\n",
            b"11 path=a\n",
            b"5 a\n\n\n",
            b"99999999999999999999999 path=a\n",
            b"11 path=a\0b\n",
            b"10 size=1x\n",
            b"10 size=-1\n",
            b"9 mtime=\n",
            b"17 SCHILY.xattr.=",
        ] {
            assert!(Pax::parse(records).is_err(), "{:?}", String::from_utf8_lossy(records));
        }
    }

    #[test]
    fn times_before_1970_keep_their_fraction() {
        assert_eq!(parse_time(b"-1.25"), Some((-2, 750_000_000)));
        assert_eq!(parse_time(b"-3"), Some((-3, 0)));
        assert_eq!(parse_time(b"1.1234567899"), Some((1, 123_456_789)));
        assert_eq!(parse_time(b"1.x"), None);
        assert_eq!(parse_time(b""), None);
        assert_eq!(parse_time(b"--1"), None);
    }

    #[test]
    fn times_are_read_as_they_were_written() {
        for (seconds, nanoseconds) in
            [(0, 0), (5, 1), (-1, 0), (-1, 900_000_000), (-7, 1), (1 << 40, 999_999_999)]
        {
            assert_eq!(
                parse_time(format_time(seconds, nanoseconds).as_bytes()),
                Some((seconds, nanoseconds))
            );
        }
    }

    #[test]
    fn a_record_counts_its_own_length_also_where_the_count_grows_by_it() {
        for length in (0..110).chain(980..1_010) {
            let (mut records, value) = (b"8 k=vvv\n".to_vec(), vec![b'v'; length]);
            push_record(&mut records, b"k", &value);
            let (_, _, rest) = split_record(&records).unwrap();
            assert_eq!(split_record(rest), Some((&b"k"[..], &value[..], &b""[..])), "{length}");
        }
    }

    #[test]
    fn any_records_are_read_or_refused() {
        atoll_robustness::check("pax", |bytes| {
            if let Ok(pax) = Pax::parse(bytes) {
                assert!(pax.path.is_none_or(|path| !path.contains(&0) && path.len() < bytes.len()));
                assert!(pax.xattrs.len() <= XATTRS_MAX);
            }
        });
    }
}
