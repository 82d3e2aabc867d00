//! Reads `/proc/self/mountinfo`.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// One mount in the mount namespace of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountEntry {
    /// The mount point.
    pub point: PathBuf,
    /// The type of the file system.
    pub kind: String,
    /// The device, or another name of the source.
    pub source: String,
    /// Options of the file system.
    pub options: String,
}

/// All mounts, in the order they were made.
pub fn read() -> io::Result<Vec<MountEntry>> {
    let text = std::fs::read("/proc/self/mountinfo")?;
    Ok(text.split(|byte| *byte == b'\n').filter_map(parse).collect())
}

fn parse(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|byte| *byte == b' ');
    let point = PathBuf::from(OsString::from_vec(unescape(fields.nth(4)?)));
    // Optional fields end with a dash.
    fields.by_ref().find(|field| *field == b"-")?;
    let mut text = || fields.next().map(|field| String::from_utf8_lossy(&unescape(field)).into_owned());
    Some(MountEntry { point, kind: text()?, source: text()?, options: text()? })
}

/// Blank, tab, newline and backslash are written as `\040` and the like.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let octal = after
            .get(..3)
            .filter(|digits| *first == b'\\' && digits.iter().all(|d| (b'0'..b'8').contains(d)));
        match octal {
            Some(digits) => {
                out.push(
                    digits.iter().fold(0u8, |value, digit| value.wrapping_mul(8).wrapping_add(digit - b'0')),
                );
                rest = &after[3..];
            }
            None => {
                out.push(*first);
                rest = after;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_line_with_odd_characters_is_read() {
        let line = br"36 35 98:0 /mnt1 /a\040b\134c rw,noatime master:1 - btrfs /dev/loop0 rw,ssd";
        let mount = parse(line).unwrap();
        assert_eq!(mount.point, PathBuf::from(r"/a b\c"));
        assert_eq!(
            (mount.kind.as_str(), mount.source.as_str(), mount.options.as_str()),
            ("btrfs", "/dev/loop0", "rw,ssd")
        );
        assert!(parse(b"").is_none());
    }

    #[test]
    fn any_line_is_read_or_passed_over() {
        atoll_robustness::check("mountinfo", |bytes| {
            for mount in bytes.split(|byte| *byte == b'\n').filter_map(parse) {
                assert!(mount.point.as_os_str().len() <= bytes.len());
            }
        });
    }
}
