//! Merges several layers into one by hard links: a folder with what the overlay would show of them.
//!
//! Only folders are copied. This is used if there are more layers than are stacked, and if folders that an archive does
//! not name must get the permissions of those below.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Timespec, Uid, XattrFlags};
use rustix::io::Errno;

use super::LayerError;
use super::tree::{ExistingEntry, IMPLIED, OPAQUE, joined, look, make_whiteout, remove_all, times};
use super::walk::{self, has_mark, is_opaque, names, open_folder};

/// Finds a folder in the layers further below by its path: the source of permissions for a folder that no archive
/// names.
pub(crate) type Below<'a> = &'a dyn Fn(&[u8]) -> Option<Stat>;

/// Merges `layers`, the bottom one first, into the empty folder `into`. With `is_bottom` there is no layer below, so
/// nothing needs to be hidden.
pub(crate) fn merge(
    layers: &[&Path],
    into: &Path,
    is_bottom: bool,
    below: Below<'_>,
) -> Result<(), LayerError> {
    let merger = Merger { is_bottom, below };
    let folder = |path: &Path| {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::open(path, flags, Mode::empty())
            .map_err(|errno| LayerError::io("open", path)(errno.into()))
    };
    let to = folder(into)?;
    for layer in layers {
        let from = folder(layer)?;
        let failed = |errno: Errno| LayerError::io("merge", layer)(errno.into());
        merger.content(from.as_fd(), to.as_fd(), &mut Vec::new()).map_err(failed)?;
        let stat = rustix::fs::fstat(&from).map_err(failed)?;
        dress(to.as_fd(), &stat).map_err(failed)?;
    }
    Ok(())
}

struct Merger<'a> {
    is_bottom: bool,
    below: Below<'a>,
}

impl Merger<'_> {
    fn content(&self, from: BorrowedFd<'_>, to: BorrowedFd<'_>, path: &mut Vec<u8>) -> Result<(), Errno> {
        for name in names(from)? {
            let stat = rustix::fs::statat(from, &name[..], AtFlags::SYMLINK_NOFOLLOW)?;
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => {
                    let above = path.len();
                    *path = joined(path, &name);
                    self.folder(from, to, &name, path)?;
                    path.truncate(above);
                }
                FileType::CharacterDevice => {
                    clear(to, &name)?;
                    if !self.is_bottom {
                        make_whiteout(to, &name)?;
                    }
                }
                _ => {
                    clear(to, &name)?;
                    link(from, to, &name, &stat)?;
                }
            }
        }
        Ok(())
    }

    fn folder(
        &self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        name: &[u8],
        path: &mut Vec<u8>,
    ) -> Result<(), Errno> {
        let source = open_folder(from, name)?;
        let (hides, implied) = (is_opaque(source.as_fd())?, has_mark(source.as_fd(), IMPLIED)?);
        let there = look(to, name)?;
        let is_hidden = hides || matches!(there, ExistingEntry::Whiteout | ExistingEntry::Other);
        if is_hidden || there == ExistingEntry::Nothing {
            clear(to, name)?;
            rustix::fs::mkdirat(to, name, Mode::RWXU)?;
        }
        let target = open_folder(to, name)?;
        if is_hidden && !self.is_bottom {
            rustix::fs::fsetxattr(&target, OPAQUE, b"y", XattrFlags::empty())?;
        }
        self.content(source.as_fd(), target.as_fd(), path)?;
        let stat = rustix::fs::fstat(&source)?;
        match (implied, there) {
            // Named by the archive: it has its own permissions.
            (false, _) => {
                copy_xattrs(source.as_fd(), target.as_fd())?;
                dress(target.as_fd(), &stat)
            }
            // Not named by the archive: it is the folder that exists already.
            (true, ExistingEntry::Folder) if !is_hidden => Ok(()),
            (true, _) => {
                let known = if is_hidden { None } else { (self.below)(path) };
                if known.is_none() {
                    rustix::fs::fsetxattr(&target, IMPLIED, b"y", XattrFlags::empty())?;
                }
                dress(target.as_fd(), &known.unwrap_or(stat))
            }
        }
    }
}

/// Copies owner, mode and time of a folder.
fn dress(folder: BorrowedFd<'_>, like: &Stat) -> Result<(), Errno> {
    rustix::fs::fchown(folder, Some(Uid::from_raw(like.st_uid)), Some(Gid::from_raw(like.st_gid)))?;
    rustix::fs::fchmod(folder, Mode::from_raw_mode(like.st_mode & 0o7777))?;
    rustix::fs::futimens(folder, &times(mtime(like)))
}

fn copy_xattrs(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Result<(), Errno> {
    for (name, value) in walk::xattrs(from)? {
        rustix::fs::fsetxattr(to, &name[..], &value, XattrFlags::empty())?;
    }
    Ok(())
}

fn clear(folder: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::ISDIR) => remove_all(folder, name),
        Err(errno) => Err(errno),
    }
}

/// Adds a name for a file; copies the file if it already has the maximum number of links.
fn link(from: BorrowedFd<'_>, to: BorrowedFd<'_>, name: &[u8], stat: &Stat) -> Result<(), Errno> {
    match rustix::fs::linkat(from, name, to, name, AtFlags::empty()) {
        Err(Errno::MLINK) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => {
            copy(from, to, name, stat)
        }
        other => other,
    }
}

fn copy(from: BorrowedFd<'_>, to: BorrowedFd<'_>, name: &[u8], stat: &Stat) -> Result<(), Errno> {
    let read = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let write = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let source = rustix::fs::openat(from, name, read, Mode::empty())?;
    let target = rustix::fs::openat(to, name, write, Mode::RUSR | Mode::WUSR)?;
    let mut left = u64::try_from(stat.st_size).unwrap_or(0);
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(usize::MAX);
        match rustix::fs::copy_file_range(&source, None, &target, None, most)? {
            0 => return Err(Errno::IO),
            some => left -= (some as u64).min(left),
        }
    }
    // A change of owner removes capabilities, so they are set after it.
    rustix::fs::fchown(&target, Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)))?;
    copy_xattrs(source.as_fd(), target.as_fd())?;
    rustix::fs::fchmod(&target, Mode::from_raw_mode(stat.st_mode & 0o7777))?;
    rustix::fs::futimens(&target, &times(mtime(stat)))
}

fn mtime(stat: &Stat) -> Timespec {
    Timespec { tv_sec: stat.st_mtime, tv_nsec: rustix::fs::Nsecs::try_from(stat.st_mtime_nsec).unwrap_or(0) }
}
