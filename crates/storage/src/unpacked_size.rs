//! What the files of a layer take when they are unpacked again, told before they are packed.
//!
//! A stream has each file whole: blocks that several files share (`cp` inside a sandbox makes such copies) are in it once for
//! each of them, compressed ones are in it as they are read, and of a file with very many holes the small ones are written out.
//! So files that fit their limit may not fit it any more when they come back.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags};

use crate::format::{self, PIECES_MOST};
use crate::pack::{PARTS, attributes, attributes_of_node};
use crate::walk::{Walk, WalkEntry, open_folder};
use crate::{Layers, StorageKind};

const BLOCK: u64 = 4 << 10;
/// Files of at most this size are stored with their names and take no block.
const INLINE_MOST: u64 = 2 << 10;
/// What an entry takes beside its data and its name, which is stored three times.
const ENTRY_BYTES: u64 = 400;
/// What an extended attribute takes beside its name and value: its share of a tree's block that it leaves partly empty.
const ATTRIBUTE_BYTES: u64 = 1 << 10;
/// What a piece of a file takes beside its data.
const PIECE_BYTES: u64 = 80;
/// The same files may take a little more space than before.
const ROOM: u64 = 4 << 20;

/// The most that files may need to be packed from a layer with this limit.
const fn packable(limit_bytes: u64) -> u64 {
    limit_bytes.saturating_add(limit_bytes / 8).saturating_add(ROOM)
}

/// The limit of a layer while files are unpacked into it: what was packed always fits, because what its names take is only
/// estimated there. Files that then exceed the limit of the layer can still be removed.
pub(crate) const fn unpack_limit(limit_bytes: u64) -> u64 {
    packable(limit_bytes).saturating_add(limit_bytes / 8).saturating_add(ROOM)
}

/// Files that would not fit the limit of their layer when they come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLargeToPack {
    /// At least so many bytes are needed.
    pub needed: u64,
    /// So many are allowed.
    pub allowed: u64,
}

impl Layers {
    /// Whether the files of the layer `name` can be unpacked again within its limit. The layer may be in use; then the answer is
    /// an estimate, or an error where the files changed meanwhile.
    pub fn check_packable(&self, name: &str, limit_bytes: u64) -> io::Result<Result<(), TooLargeToPack>> {
        if matches!(self.kind, StorageKind::Folders) {
            return Ok(Ok(()));
        }
        let allowed = packable(limit_bytes);
        let needed = unpacked_bytes(&self.path(name), allowed)?;
        Ok(if needed > allowed { Err(TooLargeToPack { needed, allowed }) } else { Ok(()) })
    }
}

/// What the files of a layer take when they are unpacked; the count ends once it is more than `enough`.
fn unpacked_bytes(layer: &Path, enough: u64) -> io::Result<u64> {
    let (mut bytes, mut linked) = (0_u64, HashSet::new());
    for part in PARTS {
        let root = match open_folder(CWD, layer.join(part)) {
            Ok(root) => root,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let mut walk = Walk::new(root)?;
        while let Some(entry) = walk.next()? {
            bytes = bytes.saturating_add(ENTRY_BYTES + 3 * entry.name.as_bytes().len() as u64);
            let is_first = entry.stat.st_nlink < 2 || linked.insert(entry.stat.st_ino);
            if is_first {
                let attributes = match entry.kind {
                    // The walk is in the folder already.
                    FileType::Directory => attributes(walk.here(), format::is_kept)?,
                    _ => attributes_of_node(walk.here(), &entry, format::is_kept)?,
                };
                let sizes = attributes.iter().map(|(name, value)| (name.len() + value.len()) as u64);
                bytes = sizes.fold(bytes, |sum, size| sum.saturating_add(ATTRIBUTE_BYTES + size));
            }
            if entry.kind == FileType::RegularFile && is_first {
                bytes = bytes.saturating_add(file_bytes(&walk, &entry)?);
            }
            if bytes > enough {
                return Ok(bytes);
            }
        }
    }
    Ok(bytes)
}

/// What the data of a file takes when it is written as it is packed.
fn file_bytes(walk: &Walk, entry: &WalkEntry) -> io::Result<u64> {
    let size = u64::try_from(entry.stat.st_size).unwrap_or(0);
    if size <= INLINE_MOST {
        return Ok(size);
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NOATIME | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::openat(walk.here(), &entry.name, flags, Mode::empty())?);
    let pieces = atoll_tar::sparse::pieces(&file, size, PIECES_MOST)?;
    Ok(pieces.iter().map(|(_, length)| length.div_ceil(BLOCK) * BLOCK + PIECE_BYTES).sum())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn holes_and_further_names_take_nothing_and_the_count_ends_early() {
        let layer = tempfile::tempdir_in("/var/tmp").unwrap();
        let upper = layer.path().join("upper");
        fs::create_dir(&upper).unwrap();
        let sparse = File::create(upper.join("sparse")).unwrap();
        sparse.set_len(1 << 40).unwrap();
        sparse.write_all_at(&[1; 5_000], 1 << 30).unwrap();
        fs::hard_link(upper.join("sparse"), upper.join("again")).unwrap();
        fs::write(upper.join("small"), "text").unwrap();
        fs::create_dir_all(upper.join("folder/inner")).unwrap();
        let found = unpacked_bytes(layer.path(), u64::MAX).unwrap();
        assert!((8 << 10..16 << 10).contains(&found), "{found}");
        fs::write(upper.join("data"), vec![1; 1 << 20]).unwrap();
        let found = unpacked_bytes(layer.path(), u64::MAX).unwrap();
        assert!((1 << 20..(1 << 20) + (32 << 10)).contains(&found), "{found}");
        assert!(unpacked_bytes(layer.path(), 1_000).unwrap() > 1_000);

        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(upper.join("small"), "user.note", &[7; 3_000], flags).unwrap();
        let with_attribute = unpacked_bytes(layer.path(), u64::MAX).unwrap();
        assert!((3_000..6_000).contains(&(with_attribute - found)), "{with_attribute}");
    }

    #[test]
    fn what_may_be_packed_may_be_unpacked() {
        for limit in [0, 1 << 20, 1 << 40, u64::MAX] {
            assert!(packable(limit) >= limit && unpack_limit(limit) >= packable(limit), "{limit}");
        }
    }
}
