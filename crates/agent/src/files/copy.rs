//! Copies a tree for a move across file systems. Only regular files, directories and links; others are refused.

use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Uid};
use rustix::io::Errno;

use super::open_at;

/// LIMIT: levels of a copied tree; each holds two descriptors.
const DEPTH_MAX: usize = 128;

const BELOW: ResolveFlags =
    ResolveFlags::NO_SYMLINKS.union(ResolveFlags::NO_MAGICLINKS).union(ResolveFlags::BENEATH);

/// Copies `old` in `from` to `new` in `to`. What was copied when it fails stays, under the new name.
pub(super) fn copy(from: &OwnedFd, old: &[u8], to: &OwnedFd, new: &[u8]) -> rustix::io::Result<()> {
    let mut pending: Vec<(OwnedFd, OwnedFd, Vec<Vec<u8>>)> = Vec::new();
    if let Some(level) = copy_one(from, old, to, new)? {
        pending.push(level);
    }
    while let Some((source, target, names)) = pending.last_mut() {
        let Some(name) = names.pop() else {
            pending.pop();
            continue;
        };
        if let Some(level) = copy_one(source, &name, target, &name)? {
            if pending.len() >= DEPTH_MAX {
                return Err(Errno::NAMETOOLONG);
            }
            pending.push(level);
        }
    }
    Ok(())
}

type Level = (OwnedFd, OwnedFd, Vec<Vec<u8>>);

fn copy_one(from: &OwnedFd, old: &[u8], to: &OwnedFd, new: &[u8]) -> rustix::io::Result<Option<Level>> {
    let stat = rustix::fs::statat(from, old, AtFlags::SYMLINK_NOFOLLOW)?;
    let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
    let owner = (Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)));
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => {
            match rustix::fs::mkdirat(to, new, Mode::from_raw_mode(0o700)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
            let source = open_at(from, old, flags, Mode::empty(), BELOW)?;
            let target = open_at(to, new, flags, Mode::empty(), BELOW)?;
            // The owner only where the user may give files away.
            let _ = rustix::fs::fchown(&target, owner.0, owner.1);
            rustix::fs::fchmod(&target, mode)?;
            let names = Dir::read_from(&source)?
                .filter_map(|entry| entry.ok().map(|entry| entry.file_name().to_bytes().to_vec()))
                .filter(|name| name != b"." && name != b"..")
                .collect();
            Ok(Some((source, target, names)))
        }
        FileType::Symlink => {
            let text = rustix::fs::readlinkat(from, old, Vec::new())?;
            rustix::fs::symlinkat(text, to, new)?;
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
            let target = open_at(to, new, flags, Mode::from_raw_mode(0o600), BELOW)?;
            copy_bytes(&source, &target)?;
            let _ = rustix::fs::fchown(&target, owner.0, owner.1);
            rustix::fs::fchmod(&target, mode)?;
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
