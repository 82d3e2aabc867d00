//! Copies files and trees: for requests, and for a move across file systems. Only regular files, directories and
//! symbolic links are copied; others are refused.

use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Uid};
use rustix::io::Errno;

use super::entry::{FileEntry, stat};
use super::upload::TempName;
use super::{make_dirs, open_at, open_parent, real_path, refuse, set_former_mode, shown};
use crate::error::AgentError;

/// LIMIT: levels of a copied tree; each holds two descriptors.
const DEPTH_MAX: usize = 128;

const BELOW: ResolveFlags =
    ResolveFlags::NO_SYMLINKS.union(ResolveFlags::NO_MAGICLINKS).union(ResolveFlags::BENEATH);

/// How a tree is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CopyMode {
    /// Also copy owner and special bits, as far as the caller may.
    keep_owner: bool,
    /// Replace existing files and links.
    replace: bool,
}

impl CopyMode {
    pub(super) const MOVED: Self = Self { keep_owner: true, replace: false };
}

/// Copies a file or link, or (`recursive`) a directory, for a user. A file is replaced atomically; a directory is
/// merged into an existing one.
pub(crate) fn copy_entry(
    source: &[u8],
    destination: &[u8],
    recursive: bool,
    overwrite: bool,
) -> Result<FileEntry, AgentError> {
    let (from, old) = open_parent(source)?;
    let found = rustix::fs::statat(&from, old, AtFlags::SYMLINK_NOFOLLOW).map_err(|e| refuse(e, source))?;
    let is_dir = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
    if is_dir && !recursive {
        let text = format!("path '{}' is a directory; copy it recursively", shown(source));
        return Err(AgentError::Invalid(text));
    }
    let cut = destination.iter().rposition(|b| *b == b'/').unwrap_or(0);
    make_dirs(&destination[..cut.max(1)], Mode::from_raw_mode(0o755))?;
    let (to, new) = open_parent(destination)?;
    let there = rustix::fs::statat(&to, new, AtFlags::SYMLINK_NOFOLLOW).ok();
    if let Some(there) = &there {
        if !overwrite {
            return Err(refuse(Errno::EXIST, destination));
        }
        let same = (there.st_dev, there.st_ino) == (found.st_dev, found.st_ino);
        if same || (FileType::from_raw_mode(there.st_mode) == FileType::Directory) != is_dir {
            let text = format!("'{}' cannot replace '{}'", shown(source), shown(destination));
            return Err(AgentError::Invalid(text));
        }
    }
    let how = CopyMode { keep_owner: false, replace: overwrite };
    if is_dir {
        refuse_below_itself(source, &to)?;
        copy(&from, old, &to, new, how).map_err(|e| refuse(e, source))?;
    } else {
        let aside = TempName::fresh(there.is_none());
        let copied = copy(&from, old, &to, aside.as_bytes(), how)
            .and_then(|()| rustix::fs::renameat(&to, aside.as_bytes(), &to, new));
        if let Err(errno) = copied {
            let _ = rustix::fs::unlinkat(&to, aside.as_bytes(), AtFlags::empty());
            return Err(refuse(errno, destination));
        }
    }
    stat(destination)
}

/// Refuses to copy a directory into itself, which would never end.
fn refuse_below_itself(source: &[u8], to: &OwnedFd) -> Result<(), AgentError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let real = |handle: &OwnedFd| real_path(handle).map_err(|e| refuse(e, source));
    let handle = super::open(source, flags, Mode::empty()).map_err(|e| refuse(e, source))?;
    let (top, below) = (real(&handle)?, real(to)?);
    let inside = below == top || below.strip_prefix(&top[..]).is_some_and(|rest| rest.starts_with(b"/"));
    if inside || top == b"/" {
        return Err(AgentError::Invalid(format!("'{}' cannot be copied into itself", shown(source))));
    }
    Ok(())
}

/// Copies `old` in `from` to `new` in `to`. After a failure the part that was copied stays, under the new name.
pub(super) fn copy(
    from: &OwnedFd,
    old: &[u8],
    to: &OwnedFd,
    new: &[u8],
    how: CopyMode,
) -> rustix::io::Result<()> {
    let mut pending: Vec<(OwnedFd, OwnedFd, Vec<Vec<u8>>)> = Vec::new();
    if let Some(level) = copy_one(from, old, to, new, how)? {
        pending.push(level);
    }
    while let Some((source, target, names)) = pending.last_mut() {
        let Some(name) = names.pop() else {
            pending.pop();
            continue;
        };
        if let Some(level) = copy_one(source, &name, target, &name, how)? {
            if pending.len() >= DEPTH_MAX {
                return Err(Errno::NAMETOOLONG);
            }
            pending.push(level);
        }
    }
    Ok(())
}

type CopyLevel = (OwnedFd, OwnedFd, Vec<Vec<u8>>);

fn copy_one(
    from: &OwnedFd,
    old: &[u8],
    to: &OwnedFd,
    new: &[u8],
    how: CopyMode,
) -> rustix::io::Result<Option<CopyLevel>> {
    let stat = rustix::fs::statat(from, old, AtFlags::SYMLINK_NOFOLLOW)?;
    let mode = Mode::from_raw_mode(stat.st_mode & if how.keep_owner { 0o7777 } else { 0o777 });
    let give = |target: &OwnedFd| {
        if how.keep_owner {
            // Fails silently if the user may not change owners.
            let _ = rustix::fs::fchown(
                target,
                Some(Uid::from_raw(stat.st_uid)),
                Some(Gid::from_raw(stat.st_gid)),
            );
        }
    };
    let make_way = || match how.replace {
        true => match rustix::fs::unlinkat(to, new, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno),
        },
        false => Ok(()),
    };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => {
            match rustix::fs::mkdirat(to, new, Mode::from_raw_mode(0o700)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
            let source = open_at(from, old, flags, Mode::empty(), BELOW)?;
            let target = open_at(to, new, flags, Mode::empty(), BELOW)?;
            give(&target);
            set_former_mode(&target, mode)?;
            let names = Dir::read_from(&source)?
                .filter_map(|entry| entry.ok().map(|entry| entry.file_name().to_bytes().to_vec()))
                .filter(|name| name != b"." && name != b"..")
                .collect();
            Ok(Some((source, target, names)))
        }
        FileType::Symlink => {
            let text = rustix::fs::readlinkat(from, old, Vec::new())?;
            make_way()?;
            rustix::fs::symlinkat(text, to, new)?;
            if how.keep_owner {
                let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
                let _ = rustix::fs::chownat(to, new, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW);
            }
            Ok(None)
        }
        FileType::RegularFile => {
            let source = open_at(
                from,
                old,
                OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK,
                Mode::empty(),
                BELOW,
            )?;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW;
            make_way()?;
            let target = open_at(to, new, flags, Mode::from_raw_mode(0o600), BELOW)?;
            copy_bytes(&source, &target)?;
            give(&target);
            set_former_mode(&target, mode)?;
            Ok(None)
        }
        _ => Err(Errno::INVAL),
    }
}

fn copy_bytes(source: &OwnedFd, target: &OwnedFd) -> rustix::io::Result<()> {
    let mut buffer = vec![0u8; 64 * 1024];
    loop {
        match rustix::io::read(source, &mut buffer) {
            Ok(0) => return Ok(()),
            Ok(n) => super::upload::write_all(target, &buffer[..n])?,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}
