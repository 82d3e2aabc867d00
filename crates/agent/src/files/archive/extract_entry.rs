//! Puts one entry of a stream into a folder, by descriptor: makes, replaces, and sets the owner.

use std::os::fd::OwnedFd;

use atoll_tar::TarEntry;
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid};
use rustix::io::Errno;

use super::unpack::{OwnerRule, Rules};
use crate::error::AgentError;
use crate::files::tree::{BELOW, DIRECTORY, remove_at};
use crate::files::{SPECIAL_BITS, open_at, refuse, set_former_mode, shown};

/// Options for all entries of one stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct UnpackOptions {
    pub(super) rules: Rules,
    pub(super) owner: OwnerRule,
    pub(super) mode: Option<u32>,
}

/// LIMIT: the ids of a sandbox; higher ids become the user nobody.
const IDS: u64 = 65_536;
const NOBODY: u32 = 65_534;

impl UnpackOptions {
    /// The owner of an entry; `None`: the user that makes it.
    fn ids(&self, entry: Option<&TarEntry>) -> Option<(Uid, Gid)> {
        let known = |id: u64| u32::try_from(id).ok().filter(|_| id < IDS).unwrap_or(NOBODY);
        match (self.owner, entry) {
            (OwnerRule::To { uid, gid }, _) => Some((Uid::from_raw(uid), Gid::from_raw(gid))),
            (OwnerRule::Kept, Some(entry)) => {
                Some((Uid::from_raw(known(entry.uid)), Gid::from_raw(known(entry.gid))))
            }
            (OwnerRule::Kept, None) | (OwnerRule::Caller, _) => None,
        }
    }

    fn give(&self, dir: &OwnedFd, name: &[u8], entry: Option<&TarEntry>) -> rustix::io::Result<()> {
        let Some((uid, gid)) = self.ids(entry) else { return Ok(()) };
        match rustix::fs::chownat(dir, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW) {
            // Owners are kept as far as the user may change them.
            Err(Errno::PERM) if matches!(self.owner, OwnerRule::Kept) => Ok(()),
            done => done,
        }
    }

    /// A folder without an entry: made if it is missing, never changed if it exists.
    pub(super) fn implied(&self, dir: &OwnedFd, name: &[u8]) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let resolve = match self.rules {
            Rules::Copy => BELOW,
            Rules::Archive => ResolveFlags::NO_MAGICLINKS,
        };
        match open_at(dir, name, flags, Mode::empty(), resolve) {
            Err(Errno::NOENT) => {}
            found => return found,
        }
        rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(0o755))?;
        self.give(dir, name, None)?;
        open_at(dir, name, flags, Mode::empty(), BELOW)
    }

    /// A folder with an entry: made, or merged into an existing one. Its mode and time are set when everything below it
    /// is complete.
    pub(super) fn folder(&self, dir: &OwnedFd, name: &[u8], entry: &TarEntry) -> Result<OwnedFd, AgentError> {
        let bad = |errno| refuse(errno, &entry.name);
        let make = || rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(0o700));
        match make() {
            Err(Errno::EXIST) => {
                let there = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).map_err(bad)?;
                if FileType::from_raw_mode(there.st_mode) != FileType::Directory {
                    if self.rules == Rules::Copy {
                        return Err(in_the_way(entry, "a folder", "a file or link"));
                    }
                    remove_at(dir, name).map_err(bad)?;
                    make().map_err(bad)?;
                }
            }
            made => made.map_err(bad)?,
        }
        self.give(dir, name, Some(entry)).map_err(bad)?;
        open_at(dir, name, DIRECTORY, Mode::empty(), BELOW).map_err(bad)
    }

    /// Sets the final attributes of a folder.
    pub(super) fn settle_folder(&self, folder: &OwnedFd, entry: &TarEntry) -> rustix::io::Result<()> {
        write_xattrs(folder, entry);
        set_former_mode(folder, self.mode_of(entry))?;
        rustix::fs::futimens(folder, &times(entry))
    }

    /// An empty file with this name; replaces an existing entry.
    pub(super) fn file(&self, dir: &OwnedFd, name: &[u8], entry: &TarEntry) -> Result<OwnedFd, AgentError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        self.instead(dir, name, entry, || rustix::fs::openat(dir, name, flags, Mode::from_raw_mode(0o600)))
    }

    /// Sets the final attributes of a file. The owner comes first, because the kernel removes special bits when the
    /// owner changes.
    pub(super) fn settle_file(&self, file: &OwnedFd, entry: &TarEntry) -> rustix::io::Result<()> {
        if let Some((uid, gid)) = self.ids(Some(entry)) {
            match rustix::fs::fchown(file, Some(uid), Some(gid)) {
                Err(Errno::PERM) if matches!(self.owner, OwnerRule::Kept) => {}
                done => done?,
            }
        }
        write_xattrs(file, entry);
        set_former_mode(file, self.mode_of(entry))?;
        rustix::fs::futimens(file, &times(entry))
    }

    pub(super) fn symlink(&self, dir: &OwnedFd, name: &[u8], entry: &TarEntry) -> Result<(), AgentError> {
        self.instead(dir, name, entry, || rustix::fs::symlinkat(&entry.link[..], dir, name))?;
        let settle = || {
            self.give(dir, name, Some(entry))?;
            rustix::fs::utimensat(dir, name, &times(entry), AtFlags::SYMLINK_NOFOLLOW)
        };
        settle().map_err(|errno| refuse(errno, &entry.name))
    }

    pub(super) fn fifo(&self, dir: &OwnedFd, name: &[u8], entry: &TarEntry) -> Result<(), AgentError> {
        let mode = self.mode_of(entry) - SPECIAL_BITS;
        self.instead(dir, name, entry, || rustix::fs::mknodat(dir, name, FileType::Fifo, mode, 0))?;
        self.give(dir, name, Some(entry)).map_err(|errno| refuse(errno, &entry.name))
    }

    /// A second name of a file below `root`.
    pub(super) fn hardlink(
        &self,
        root: &OwnedFd,
        target: &[&[u8]],
        dir: &OwnedFd,
        name: &[u8],
        entry: &TarEntry,
    ) -> Result<(), AgentError> {
        let bad = |errno| refuse(errno, &entry.name);
        let Some((last, above)) = target.split_last() else {
            return Err(AgentError::Invalid(format!(
                "the target of the link '{}' does not exist",
                shown(&entry.name)
            )));
        };
        let above = if above.is_empty() { b".".to_vec() } else { above.join(&b'/') };
        let resolve = match self.rules {
            Rules::Copy => BELOW,
            Rules::Archive => ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
        };
        let from = open_at(root, &above, OFlags::PATH | OFlags::DIRECTORY, Mode::empty(), resolve);
        let from = from.map_err(bad)?;
        let source = rustix::fs::statat(&from, *last, AtFlags::SYMLINK_NOFOLLOW).map_err(bad)?;
        if let Ok(there) = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
            && (there.st_dev, there.st_ino) == (source.st_dev, source.st_ino)
        {
            return Ok(());
        }
        self.instead(dir, name, entry, || rustix::fs::linkat(&from, *last, dir, name, AtFlags::empty()))
    }

    /// Makes an entry; removes an existing one first if that is allowed.
    fn instead<T>(
        &self,
        dir: &OwnedFd,
        name: &[u8],
        entry: &TarEntry,
        make: impl Fn() -> rustix::io::Result<T>,
    ) -> Result<T, AgentError> {
        let bad = |errno| refuse(errno, &entry.name);
        match make() {
            Err(Errno::EXIST) => {}
            made => return made.map_err(bad),
        }
        match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::ISDIR) if self.rules == Rules::Copy => {
                return Err(in_the_way(entry, "a file", "a folder"));
            }
            Err(Errno::ISDIR) => remove_at(dir, name).map_err(bad)?,
            Err(errno) => return Err(bad(errno)),
        }
        make().map_err(bad)
    }

    fn mode_of(&self, entry: &TarEntry) -> Mode {
        Mode::from_raw_mode(self.mode.unwrap_or(entry.mode) & 0o7777)
    }
}

fn in_the_way(entry: &TarEntry, new: &str, old: &str) -> AgentError {
    AgentError::Invalid(format!("'{}' is {new} and cannot replace {old}", shown(&entry.name)))
}

fn times(entry: &TarEntry) -> Timestamps {
    let at = Timespec { tv_sec: entry.mtime.0, tv_nsec: 0 };
    Timestamps { last_access: at, last_modification: at }
}

/// Errors are ignored: the file system may not support attributes, or the user may not set them, and the content
/// matters more.
fn write_xattrs(file: &OwnedFd, entry: &TarEntry) {
    for (name, value) in &entry.xattrs {
        if name.starts_with(b"user.") || name == b"security.capability" {
            let _ = rustix::fs::fsetxattr(file, &name[..], value, rustix::fs::XattrFlags::empty());
        }
    }
}
