//! The only image that a restore replaces: the id maps of the user namespace. All other images hold ids as seen inside
//! the sandbox, so a sandbox can be restored with another range of ids, also beside the sandbox that it was copied
//! from.

use std::io;
use std::path::Path;

use super::manifest::{CheckpointManifest, IMAGES};

/// CRIU starts every image file with two magic numbers of four bytes: one for the file format, one for the kind of
/// image.
const MARKS: usize = 8;

/// The name and new content of the image of the user namespace, for ids that begin at `first` on the host.
pub(crate) fn users_image(
    folder: &Path,
    manifest: &CheckpointManifest,
    first: u32,
) -> io::Result<(String, Vec<u8>)> {
    let wrong = |what| io::Error::new(io::ErrorKind::InvalidData, what);
    let is_it = |name: &&str| name.starts_with("userns-");
    let mut names = manifest.images.iter().map(|image| image.name.as_str()).filter(is_it);
    let (Some(name), None) = (names.next(), names.next()) else {
        return Err(wrong("a checkpoint has exactly one user namespace"));
    };
    let before = std::fs::read(folder.join(IMAGES).join(name))?;
    let marks = before.get(..MARKS).ok_or_else(|| wrong("the image of the user namespace is too short"))?;
    Ok((name.to_owned(), with_map(marks, first)))
}

/// Magic numbers, the length of the entry, and the entry: a map of users and an equal map of groups.
fn with_map(marks: &[u8], first: u32) -> Vec<u8> {
    let mut extent = Vec::new();
    for (field, value) in [(1, 0), (2, first), (3, atoll_instances::IDS_PER_SANDBOX)] {
        extent.push(field << 3);
        put_number(&mut extent, value);
    }
    let mut entry = Vec::new();
    for field in [1u8, 2] {
        entry.push(field << 3 | 2);
        // The map is a few bytes long.
        entry.push(extent.len() as u8);
        entry.extend_from_slice(&extent);
    }
    let length = (entry.len() as u32).to_le_bytes();
    [marks, &length, &entry].concat()
}

/// Writes a number as a protocol-buffer varint.
fn put_number(to: &mut Vec<u8>, mut number: u32) {
    while number >= 0x80 {
        to.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_is_written_as_criu_reads_it() {
        let image = with_map(&[1, 2, 3, 4, 5, 6, 7, 8], 300);
        let extent = [8, 0, 16, 0xac, 2, 24, 0x80, 0x80, 4];
        let mut expected = vec![1, 2, 3, 4, 5, 6, 7, 8, 22, 0, 0, 0, 10, 9];
        expected.extend(extent);
        expected.extend([18, 9]);
        expected.extend(extent);
        assert_eq!(image, expected);
    }
}
