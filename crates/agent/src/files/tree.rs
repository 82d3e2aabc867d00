//! Directories: list, make, move, remove. All by descriptor, without recursion, with limits.

use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Dir, Mode, OFlags, RenameFlags, ResolveFlags};
use rustix::io::Errno;

use super::entry::{FileEntry, FileKind, describe, stat};
use super::{copy, make_dirs, open, open_at, open_parent, refuse, refuse_mode, shown};
use crate::error::AgentError;
use crate::users::Accounts;

/// LIMIT: entries of one response, about 10 MB on the wire.
pub(super) const LIST_MAX: usize = 50_000;
/// LIMIT: levels of one list; each holds a descriptor.
pub(super) const DEPTH_MAX: u32 = 64;
/// LIMIT: levels of a removal that hold a descriptor; deeper directories are moved up first.
const REMOVE_DEPTH: usize = 64;
/// LIMIT: how often a directory that another process keeps filling is emptied again.
const REMOVE_TRIES: usize = 100_000;

pub(super) const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK);
pub(super) const BELOW: ResolveFlags =
    ResolveFlags::NO_SYMLINKS.union(ResolveFlags::NO_MAGICLINKS).union(ResolveFlags::BENEATH);

/// The content of a directory, sorted, children after their parent. `true`: truncated at the limit.
pub(crate) fn list(path: &[u8], depth: u32) -> Result<(Vec<FileEntry>, bool), AgentError> {
    let top = open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK, Mode::empty()).map_err(
        |errno| match errno {
            Errno::NOTDIR => AgentError::Invalid(format!("path '{}' is not a directory", shown(path))),
            other => refuse(other, path),
        },
    )?;
    let accounts = Accounts::read().map_err(|e| refuse(e, path))?;
    let depth = depth.clamp(1, DEPTH_MAX) as usize;
    let mut found = Vec::new();
    let mut levels = vec![TreeLevel::open(top, path.to_vec()).map_err(|e| refuse(e, path))?];
    while let Some(level) = levels.last_mut() {
        let Some(name) = level.names.pop() else {
            levels.pop();
            continue;
        };
        if found.len() >= LIST_MAX {
            return Ok((found, true));
        }
        let below = level.path_of(&name);
        let flags = OFlags::PATH | OFlags::NOFOLLOW;
        // Entries that vanished or became inaccessible meanwhile are skipped.
        let described = open_at(&level.dir, &name, flags, Mode::empty(), BELOW)
            .and_then(|handle| describe(&handle, below.clone(), &accounts));
        let entry = match described {
            Err(errno) if AgentError::is_exhaustion(errno) => return Err(refuse(errno, &below)),
            Err(_) => continue,
            Ok(entry) => entry,
        };
        let inside = (entry.kind == FileKind::Directory && levels.len() < depth)
            .then(|| levels.last().map(|level| open_at(&level.dir, &name, DIRECTORY, Mode::empty(), BELOW)))
            .flatten();
        found.push(entry);
        match inside.map(|dir| TreeLevel::open(dir?, below)) {
            Some(Err(errno)) if AgentError::is_exhaustion(errno) => return Err(refuse(errno, path)),
            Some(Ok(level)) => levels.push(level),
            Some(Err(_)) | None => {}
        }
    }
    Ok((found, false))
}

pub(super) struct TreeLevel {
    pub(super) dir: OwnedFd,
    path: Vec<u8>,
    /// Sorted in reverse: the next name is the last one.
    pub(super) names: Vec<Vec<u8>>,
}

impl TreeLevel {
    pub(super) fn open(dir: OwnedFd, path: Vec<u8>) -> rustix::io::Result<Self> {
        // One more than may be listed, so that the caller notices the truncation.
        let mut names = names_in(&dir, LIST_MAX + 1)?;
        names.sort_unstable_by(|a, b| b.cmp(a));
        Ok(Self { dir, path, names })
    }

    pub(super) fn path_of(&self, name: &[u8]) -> Vec<u8> {
        let parent = if self.path == b"/" { &[][..] } else { &self.path[..] };
        [parent, b"/", name].concat()
    }
}

fn names_in(dir: &OwnedFd, max: usize) -> rustix::io::Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(name.to_vec());
            if names.len() >= max {
                break;
            }
        }
    }
    Ok(names)
}

/// Makes a directory and its parents.
pub(crate) fn make_dir(path: &[u8], mode: u32) -> Result<FileEntry, AgentError> {
    let mode = Mode::from_raw_mode(mode & 0o7777);
    match make_dirs(path, Mode::from_raw_mode(0o755)) {
        Ok(true) => {}
        Ok(false) => return Err(AgentError::Exists(format!("directory already exists: '{}'", shown(path)))),
        Err(AgentError::Invalid(_) | AgentError::Exists(_)) => {
            return Err(AgentError::Invalid(format!(
                "path '{}' is a file, or leads through one",
                shown(path)
            )));
        }
        Err(other) => return Err(other),
    }
    if mode != Mode::from_raw_mode(0o755) {
        let dir = open(path, DIRECTORY, Mode::empty()).map_err(|e| refuse(e, path))?;
        rustix::fs::fchmod(&dir, mode).map_err(|e| refuse_mode(e, mode, path))?;
    }
    stat(path)
}

/// What happens to an existing entry with the new name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Existing {
    Replaced,
    Kept,
}

/// Renames; across file systems (a directory of an image is on another layer) it copies and removes.
pub(crate) fn move_entry(
    source: &[u8],
    destination: &[u8],
    existing: Existing,
) -> Result<FileEntry, AgentError> {
    let (from, old) = open_parent(source)?;
    rustix::fs::statat(&from, old, AtFlags::SYMLINK_NOFOLLOW).map_err(|e| refuse(e, source))?;
    let cut = destination.iter().rposition(|b| *b == b'/').unwrap_or(0);
    make_dirs(&destination[..cut.max(1)], Mode::from_raw_mode(0o755))?;
    let (to, new) = open_parent(destination)?;
    let renamed = match existing {
        Existing::Replaced => rustix::fs::renameat(&from, old, &to, new),
        Existing::Kept => rustix::fs::renameat_with(&from, old, &to, new, RenameFlags::NOREPLACE),
    };
    match renamed {
        Ok(()) => {}
        Err(Errno::XDEV) => {
            let taken = || rustix::fs::statat(&to, new, AtFlags::SYMLINK_NOFOLLOW).is_ok();
            if existing == Existing::Kept && taken() {
                return Err(refuse(Errno::EXIST, destination));
            }
            copy::copy(&from, old, &to, new, copy::CopyMode::MOVED).map_err(|e| refuse(e, source))?;
            remove(source, false)?;
        }
        Err(errno) => return Err(refuse(errno, destination)),
    }
    stat(destination)
}

/// Removes a path and everything below it, at any depth. Symbolic links are removed, never followed.
pub(crate) fn remove(path: &[u8], missing_ok: bool) -> Result<(), AgentError> {
    let missing = |errno: Errno| missing_ok && errno == Errno::NOENT;
    let (parent, name) = match open_parent(path) {
        Ok(found) => found,
        Err(AgentError::NotFound(_)) if missing_ok => return Ok(()),
        Err(other) => return Err(other),
    };
    match remove_one(&parent, name) {
        Ok(()) => return Ok(()),
        Err(Errno::NOTEMPTY | Errno::EXIST) => {}
        Err(errno) if missing(errno) => return Ok(()),
        Err(errno) => return Err(refuse(errno, path)),
    }
    match remove_full(&parent, name) {
        Err(errno) if errno != Errno::NOENT => Err(refuse(errno, path)),
        _ => Ok(()),
    }
}

/// Removes a name and everything below it.
pub(super) fn remove_at(dir: &OwnedFd, name: &[u8]) -> rustix::io::Result<()> {
    match remove_one(dir, name) {
        Err(Errno::NOTEMPTY | Errno::EXIST) => remove_full(dir, name),
        done => done,
    }
}

fn remove_full(dir: &OwnedFd, name: &[u8]) -> rustix::io::Result<()> {
    let top = open_at(dir, name, DIRECTORY, Mode::empty(), BELOW)?;
    empty(&top)?;
    remove_one(dir, name)
}

/// Removes a file, link or empty directory.
fn remove_one(dir: &OwnedFd, name: &[u8]) -> rustix::io::Result<()> {
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        // Linux returns EISDIR; POSIX specifies EPERM.
        Err(Errno::ISDIR | Errno::PERM) => rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR),
        other => other,
    }
}

/// Empties a directory. Directories deeper than the limit are moved to its top and removed from there, so a tree of any
/// depth needs a fixed number of descriptors.
fn empty(top: &OwnedFd) -> rustix::io::Result<()> {
    let mut moved = 0u64;
    for _ in 0..REMOVE_TRIES {
        let names = names_in(top, LIST_MAX)?;
        if names.is_empty() {
            return Ok(());
        }
        for name in names {
            remove_below(top, &name, &mut moved)?;
        }
    }
    Err(Errno::NOTEMPTY)
}

struct RemovalTarget {
    dir: OwnedFd,
    name: Vec<u8>,
    names: Vec<Vec<u8>>,
}

fn remove_below(top: &OwnedFd, name: &[u8], moved: &mut u64) -> rustix::io::Result<()> {
    let mut levels: Vec<RemovalTarget> = Vec::new();
    let mut next = Some(name.to_vec());
    loop {
        let here = levels.last().map_or(top, |level| &level.dir);
        if let Some(name) = next.take() {
            match remove_one(here, &name) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(Errno::NOTEMPTY | Errno::EXIST) if levels.len() < REMOVE_DEPTH => {
                    let dir = open_at(here, &name, DIRECTORY, Mode::empty(), BELOW)?;
                    let names = names_in(&dir, LIST_MAX)?;
                    levels.push(RemovalTarget { dir, name, names });
                }
                Err(Errno::NOTEMPTY | Errno::EXIST) => {
                    *moved += 1;
                    let aside = format!(".atoll-rm-{}-{moved}", crate::files::upload::boot_word());
                    rustix::fs::renameat(here, &name, top, aside)?;
                }
                Err(errno) => return Err(errno),
            }
        }
        let Some(level) = levels.last_mut() else { return Ok(()) };
        next = level.names.pop();
        if next.is_none() {
            let done = levels.pop().map(|level| level.name).unwrap_or_default();
            let holder = levels.last().map_or(top, |level| &level.dir);
            match rustix::fs::unlinkat(holder, &done, AtFlags::REMOVEDIR) {
                // Another process refilled it, or the list was truncated: the next round from the top finds it.
                Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn a_list_that_was_cut_says_so_also_within_one_folder() {
        let dir = tempfile::tempdir().unwrap();
        for number in 0..LIST_MAX {
            std::fs::File::create(dir.path().join(number.to_string())).unwrap();
        }
        let path = dir.path().as_os_str().as_bytes();
        let (found, cut) = list(path, 1).unwrap();
        assert_eq!((found.len(), cut), (LIST_MAX, false));
        std::fs::File::create(dir.path().join("one more")).unwrap();
        let (found, cut) = list(path, 1).unwrap();
        assert_eq!((found.len(), cut), (LIST_MAX, true));
    }
}
