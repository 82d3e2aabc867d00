//! Walks a tree of any depth with one descriptor at a time and without recursion, in the order of names. Links are
//! never followed.
//!
//! The walk goes up by `..`: no other process may change the tree meanwhile, and each folder is recognized by its
//! inode.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};

/// LIMIT: a path. The kernel has no bound for the depth of a tree, but each entry of an archive carries its whole path, so a
/// tree of a million levels would become terabytes of names.
pub(crate) const PATH_MOST: usize = 64 << 10;

/// The path of an entry is longer than [`PATH_MOST`].
#[derive(Debug, thiserror::Error)]
#[error("a path is longer than {PATH_MOST} bytes")]
pub(crate) struct TooDeep;

/// Where one is in a tree.
#[derive(Debug)]
pub(crate) struct Walk {
    here: OwnedFd,
    levels: Vec<WalkLevel>,
    /// From the root, without a leading slash, including the last entry.
    path: Vec<u8>,
}

#[derive(Debug)]
struct WalkLevel {
    inode: u64,
    names: std::vec::IntoIter<CString>,
    path_length: usize,
}

/// One entry.
#[derive(Debug)]
pub(crate) struct WalkEntry {
    pub(crate) name: CString,
    pub(crate) stat: Stat,
    pub(crate) kind: FileType,
}

impl Walk {
    /// Begins below the folder `root`.
    pub(crate) fn new(root: OwnedFd) -> io::Result<Self> {
        let level =
            WalkLevel { inode: rustix::fs::fstat(&root)?.st_ino, names: names(&root)?, path_length: 0 };
        Ok(Self { here: root, levels: vec![level], path: Vec::new() })
    }

    /// The next entry, folders before what is in them.
    pub(crate) fn next(&mut self) -> io::Result<Option<WalkEntry>> {
        loop {
            let Some(level) = self.levels.last_mut() else { return Ok(None) };
            self.path.truncate(level.path_length);
            match level.names.next() {
                Some(name) => return self.visit(name).map(Some),
                None => self.leave()?,
            }
        }
    }

    fn visit(&mut self, name: CString) -> io::Result<WalkEntry> {
        if !self.path.is_empty() {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(name.to_bytes());
        if self.path.len() > PATH_MOST {
            return Err(io::Error::new(io::ErrorKind::InvalidFilename, TooDeep));
        }
        let stat = rustix::fs::statat(&self.here, &name, AtFlags::SYMLINK_NOFOLLOW)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::Directory {
            let folder = open_folder(&self.here, &name)?;
            let names = names(&folder)?;
            self.levels.push(WalkLevel { inode: stat.st_ino, names, path_length: self.path.len() });
            self.here = folder;
        }
        Ok(WalkEntry { name, stat, kind })
    }

    fn leave(&mut self) -> io::Result<()> {
        self.levels.pop();
        let Some(above) = self.levels.last() else { return Ok(()) };
        let folder = open_folder(&self.here, c"..")?;
        if rustix::fs::fstat(&folder)?.st_ino != above.inode {
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, "the tree changed while it was read"));
        }
        self.here = folder;
        Ok(())
    }

    /// The folder that was seen last, or the one that the entry seen last is in.
    pub(crate) fn here(&self) -> BorrowedFd<'_> {
        self.here.as_fd()
    }

    /// The path of the entry seen last.
    pub(crate) fn path(&self) -> &[u8] {
        &self.path
    }
}

pub(crate) fn open_folder(at: impl AsFd, name: impl rustix::path::Arg) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(at, name, flags, Mode::empty())?)
}

fn names(folder: &OwnedFd) -> io::Result<std::vec::IntoIter<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push(entry.file_name().to_owned());
        }
    }
    names.sort_unstable();
    Ok(names.into_iter())
}

/// Bytes that the files below `root` take on disk; a file with two names counts twice.
pub(crate) fn disk_bytes(root: OwnedFd) -> io::Result<u64> {
    let mut walk = Walk::new(root)?;
    let mut bytes = 0;
    while let Some(entry) = walk.next()? {
        bytes += u64::try_from(entry.stat.st_blocks).unwrap_or(0) * 512;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use rustix::fs::CWD;

    #[test]
    fn a_deep_tree_is_walked_down_and_up_again_in_the_order_of_names() {
        let root = tempfile::tempdir().unwrap();
        let mut at = open_folder(CWD, root.path()).unwrap();
        for _ in 0..3_000 {
            rustix::fs::mkdirat(&at, "d", Mode::from_raw_mode(0o700)).unwrap();
            at = open_folder(&at, "d").unwrap();
        }
        std::fs::write(root.path().join("d/z"), "").unwrap();
        std::fs::write(root.path().join("a"), "").unwrap();
        let mut walk = Walk::new(open_folder(CWD, root.path()).unwrap()).unwrap();
        let mut seen = Vec::new();
        while walk.next().unwrap().is_some() {
            seen.push(walk.path().to_owned());
        }
        assert_eq!(seen.len(), 3_002);
        assert_eq!((seen[0].as_slice(), seen[1].as_slice()), (&b"a"[..], &b"d"[..]));
        assert_eq!(seen.last().unwrap(), b"d/z");
        super::super::clear::remove_tree(&root.path().join("d")).unwrap();
    }
}
