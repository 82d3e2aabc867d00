//! Fills a folder by descriptor only: no path from an archive is ever resolved through a symbolic link.
//!
//! The last used folders stay open, because archives are usually ordered by folder. Making an entry changes the time of
//! its folder, so each open folder remembers its time and gets it back when it is closed.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;

use super::LayerError;
use super::rules;

/// LIMIT: folders open at once, per unpacking.
const OPEN: usize = 16;
/// The attribute of a folder that hides the one below it.
pub(crate) const OPAQUE: &str = "trusted.overlay.opaque";
/// The attribute of a folder that the archive does not name: a folder of a lower layer may have other permissions.
pub(crate) const IMPLIED: &str = "trusted.atoll.implied";

/// The folder being filled.
pub(super) struct Tree {
    root: OwnedFd,
    /// For error messages only.
    path: PathBuf,
    /// Ordered by use, the last used one last.
    open: Vec<OpenFolder>,
    /// Folders made that no entry names.
    pub(super) implied: u64,
}

struct OpenFolder {
    path: Vec<u8>,
    fd: OwnedFd,
    mtime: Timespec,
}

/// The current entry at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExistingEntry {
    Nothing,
    Folder,
    Whiteout,
    Other,
}

impl Tree {
    pub(super) fn open(path: &Path) -> Result<Self, LayerError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty())
            .map_err(Errno::into)
            .map_err(LayerError::io("open", path))?;
        Ok(Self { root, path: path.to_owned(), open: Vec::with_capacity(OPEN), implied: 0 })
    }

    /// The folder at this normalised path; missing folders are made.
    pub(super) fn folder(&mut self, path: &[u8], entry: &[u8]) -> Result<BorrowedFd<'_>, LayerError> {
        match self.open.iter().rposition(|folder| folder.path == path) {
            Some(at) if at + 1 == self.open.len() => {}
            Some(at) => {
                let folder = self.open.remove(at);
                self.open.push(folder);
            }
            None => {
                let fd = match self.find(path) {
                    Ok(fd) => fd,
                    Err(Errno::NOENT | Errno::NOTDIR) => self.make_way(path, entry)?,
                    Err(Errno::LOOP) => return Err(LayerError::refused(entry, "its path contains a link")),
                    Err(errno) => return Err(self.failed("open a folder of", errno)),
                };
                self.keep(path, fd)?;
            }
        }
        Ok(self.open.last().expect("it was just put there").fd.as_fd())
    }

    /// Opens without making anything. The kernel refuses every symbolic link in the path.
    pub(super) fn find(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        let path = if path.is_empty() { b"." } else { path };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let strictly = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        rustix::fs::openat2(&self.root, path, flags, Mode::empty(), strictly)
    }

    /// Makes a folder that an entry names, or uses the existing one; returns it open.
    pub(super) fn make_folder(
        &mut self,
        parent: &[u8],
        name: &[u8],
        entry: &[u8],
    ) -> Result<BorrowedFd<'_>, LayerError> {
        let path = joined(parent, name);
        let above = self.folder(parent, entry)?;
        let mut opaque = false;
        match rustix::fs::mkdirat(above, name, Mode::RWXU) {
            Ok(()) => {}
            Err(Errno::EXIST) => match look(above, name).map_err(|errno| self.failed("read", errno))? {
                ExistingEntry::Folder => {
                    let fd = self.folder(&path, entry)?;
                    let _ = rustix::fs::fremovexattr(fd, IMPLIED);
                    return Ok(fd);
                }
                there => {
                    opaque = there == ExistingEntry::Whiteout;
                    self.clear(parent, name, entry)?;
                    let above = self.folder(parent, entry)?;
                    rustix::fs::mkdirat(above, name, Mode::RWXU)
                        .map_err(|errno| self.failed("make a folder in", errno))?;
                }
            },
            Err(errno) => return Err(self.failed("make a folder in", errno)),
        }
        let fd = self.folder(&path, entry)?;
        if opaque {
            rustix::fs::fsetxattr(fd, OPAQUE, b"y", XattrFlags::empty())
                .map_err(|errno| failed_at("mark a folder of", errno))?;
        }
        Ok(self.open.last().expect("a folder was just opened").fd.as_fd())
    }

    /// Removes the entry at a path, with everything below it.
    pub(super) fn clear(&mut self, parent: &[u8], name: &[u8], entry: &[u8]) -> Result<(), LayerError> {
        let path = joined(parent, name);
        // Open folders in it are removed, so their times are not restored.
        self.open.retain(|folder| !is_within(&folder.path, &path));
        let above = self.folder(parent, entry)?;
        match rustix::fs::unlinkat(above, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::ISDIR) => {}
            Err(errno) => return Err(failed_at("remove from", errno)),
        }
        remove_all(above, name).map_err(|errno| failed_at("remove from", errno))
    }

    /// Sets the final time of a folder.
    pub(super) fn set_folder_time(&mut self, mtime: Timespec) {
        if let Some(folder) = self.open.last_mut() {
            folder.mtime = mtime;
        }
    }

    /// Restores the time of every folder.
    pub(super) fn close(mut self) -> Result<(), LayerError> {
        while let Some(folder) = self.open.pop() {
            folder.let_go()?;
        }
        Ok(())
    }

    fn keep(&mut self, path: &[u8], fd: OwnedFd) -> Result<(), LayerError> {
        if self.open.len() == OPEN {
            self.open.remove(0).let_go()?;
        }
        let now = rustix::fs::fstat(&fd).map_err(|errno| self.failed("read", errno))?;
        let nanos = rustix::fs::Nsecs::try_from(now.st_mtime_nsec).unwrap_or(0);
        let mtime = Timespec { tv_sec: now.st_mtime, tv_nsec: nanos };
        self.open.push(OpenFolder { path: path.to_owned(), fd, mtime });
        Ok(())
    }

    /// Makes the folders of a path, one by one. A whiteout in the path becomes a folder that hides the one below.
    fn make_way(&mut self, path: &[u8], entry: &[u8]) -> Result<OwnedFd, LayerError> {
        let mut made = Vec::with_capacity(path.len());
        for part in path.split(|&byte| byte == b'/') {
            let parent = made.clone();
            if !made.is_empty() {
                made.push(b'/');
            }
            made.extend_from_slice(part);
            let above = self.folder(&parent, entry)?;
            let hidden = match look(above, part).map_err(|errno| failed_at("read", errno))? {
                ExistingEntry::Folder => continue,
                ExistingEntry::Other => {
                    return Err(LayerError::refused(entry, "its path contains a link or a file"));
                }
                ExistingEntry::Whiteout => {
                    rustix::fs::unlinkat(above, part, AtFlags::empty())
                        .map_err(|errno| failed_at("remove from", errno))?;
                    true
                }
                ExistingEntry::Nothing => false,
            };
            rustix::fs::mkdirat(above, part, Mode::RWXU)
                .map_err(|errno| failed_at("make a folder in", errno))?;
            self.imply(&made, hidden)?;
        }
        self.find(path).map_err(|errno| self.failed("open a folder of", errno))
    }

    fn imply(&mut self, path: &[u8], hidden: bool) -> Result<(), LayerError> {
        let fd = self.find(path).map_err(|errno| self.failed("open a folder of", errno))?;
        let marks = || -> Result<(), Errno> {
            rustix::fs::fchmod(&fd, Mode::from_raw_mode(0o755))?;
            rustix::fs::fsetxattr(&fd, IMPLIED, b"y", XattrFlags::empty())?;
            if hidden {
                rustix::fs::fsetxattr(&fd, OPAQUE, b"y", XattrFlags::empty())?;
            }
            // So that the same archive always gives the same folder.
            rustix::fs::futimens(&fd, &times(Timespec { tv_sec: 0, tv_nsec: 0 }))
        };
        marks().map_err(|errno| self.failed("mark a folder of", errno))?;
        self.implied += 1;
        self.keep(path, fd)
    }

    pub(super) fn failed(&self, action: &'static str, errno: Errno) -> LayerError {
        LayerError::io(action, &self.path)(errno.into())
    }
}

impl OpenFolder {
    fn let_go(self) -> Result<(), LayerError> {
        rustix::fs::futimens(&self.fd, &times(self.mtime))
            .map_err(|errno| failed_at("set the time of", errno))
    }
}

/// The entry at this name; symbolic links are not followed.
pub(super) fn look(folder: BorrowedFd<'_>, name: &[u8]) -> Result<ExistingEntry, Errno> {
    match rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => ExistingEntry::Folder,
            // The only devices that are made here are whiteouts.
            FileType::CharacterDevice => ExistingEntry::Whiteout,
            _ => ExistingEntry::Other,
        }),
        Err(Errno::NOENT) => Ok(ExistingEntry::Nothing),
        Err(errno) => Err(errno),
    }
}

/// Makes a whiteout of the overlay.
pub(crate) fn make_whiteout(folder: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    rustix::fs::mknodat(folder, name, FileType::CharacterDevice, Mode::empty(), rustix::fs::makedev(0, 0))
}

/// Both times of a file. The access time is not used, but must be set.
pub(crate) fn times(mtime: Timespec) -> Timestamps {
    Timestamps { last_access: mtime, last_modification: mtime }
}

/// Removes a folder of a layer with its content. Its depth is within the limit of [`rules::clean`].
pub(crate) fn remove_all(above: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut way = vec![(rustix::fs::openat(above, name, flags, Mode::empty())?, name.to_owned())];
    while let Some((folder, _)) = way.last() {
        match empty_of_files(folder)? {
            Some(below) => {
                let fd = rustix::fs::openat(folder, &below[..], flags, Mode::empty())?;
                way.push((fd, below));
            }
            None => {
                let (_, name) = way.pop().expect("the loop saw one");
                let parent = way.last().map_or(above, |(parent, _)| parent.as_fd());
                rustix::fs::unlinkat(parent, &name[..], AtFlags::REMOVEDIR)?;
            }
        }
    }
    Ok(())
}

/// Removes every file of a folder; returns a remaining subfolder.
fn empty_of_files(folder: &OwnedFd) -> Result<Option<Vec<u8>>, Errno> {
    for entry in rustix::fs::Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
            Ok(()) => {}
            Err(Errno::ISDIR) => return Ok(Some(name.to_owned())),
            Err(errno) => return Err(errno),
        }
    }
    Ok(None)
}

pub(super) fn joined(parent: &[u8], name: &[u8]) -> Vec<u8> {
    if parent.is_empty() { name.to_owned() } else { [parent, b"/", name].concat() }
}

fn is_within(path: &[u8], folder: &[u8]) -> bool {
    path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

fn failed_at(action: &'static str, errno: Errno) -> LayerError {
    LayerError::io(action, "a layer being unpacked")(errno.into())
}

/// The folder of a hard link's target, and its name there.
pub(super) fn target<'a>(tree: &Tree, path: &'a [u8]) -> Result<(OwnedFd, &'a [u8]), Errno> {
    let (parent, name) = rules::split(path);
    Ok((tree.find(parent)?, name))
}
