//! Removes a tree of any depth with a handful of descriptors and no recursion.
//!
//! A sandbox can make a tree that is a hundred thousand levels deep. So the removal does not descend: it moves each
//! folder that it finds beside the first one, and empties it later. Links are never followed.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};

/// Removes the folder at `path` and everything in it. What failed half way is gone on with when it is asked again.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    let parent = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let trash = parent.join(format!(".trash-{}-{}", std::process::id(), name.to_string_lossy()));
    let again = match std::fs::create_dir(&trash) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => true,
        made => made.map(|()| false)?,
    };
    let base = open_folder(CWD, &trash)?;
    // The names of moved folders are numbers.
    let mut left: Vec<u64> = numbers(&base)?;
    let mut lifted = left.iter().max().map_or(0, |last| last + 1);
    match std::fs::rename(path, trash.join(lifted.to_string())) {
        Ok(()) => {
            left.push(lifted);
            lifted += 1;
        }
        Err(error) if again && error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => {
            let _ = std::fs::remove_dir(&trash);
            return Err(error);
        }
    }
    // Folders that are moved from now on have higher numbers.
    let mut next = lifted;
    for name in left {
        empty(&base, &name.to_string(), &mut lifted)?;
    }
    while next < lifted {
        empty(&base, &next.to_string(), &mut lifted)?;
        next += 1;
    }
    std::fs::remove_dir(&trash)
}

fn numbers(folder: &OwnedFd) -> io::Result<Vec<u64>> {
    let names = Dir::read_from(folder)?;
    let numbers = names.filter_map(|entry| match entry {
        Ok(entry) => entry.file_name().to_str().ok().and_then(|name| name.parse().ok()).map(Ok),
        Err(error) => Some(Err(error.into())),
    });
    numbers.collect()
}

fn open_folder(at: impl std::os::fd::AsFd, name: impl rustix::path::Arg) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(at, name, flags, Mode::empty())?)
}

fn empty(base: &OwnedFd, name: &str, lifted: &mut u64) -> io::Result<()> {
    let folder = open_folder(base, name)?;
    // A folder that changes while it is read may hide entries; read it again until it is empty.
    loop {
        let mut seen = false;
        for entry in Dir::read_from(&folder)? {
            let entry = entry?;
            if matches!(entry.file_name().to_bytes(), b"." | b"..") {
                continue;
            }
            seen = true;
            let kind = match entry.file_type() {
                FileType::Unknown => FileType::from_raw_mode(
                    rustix::fs::statat(&folder, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)?.st_mode,
                ),
                known => known,
            };
            if kind == FileType::Directory {
                rustix::fs::renameat(&folder, entry.file_name(), base, lifted.to_string())?;
                *lifted += 1;
            } else {
                rustix::fs::unlinkat(&folder, entry.file_name(), AtFlags::empty())?;
            }
        }
        if !seen {
            break;
        }
    }
    Ok(rustix::fs::unlinkat(base, name, AtFlags::REMOVEDIR)?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_very_deep_tree_and_links_out_of_it_are_removed() {
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("kept"), "x").unwrap();
        let root = tempfile::tempdir().unwrap();
        let doomed = root.path().join("doomed");
        std::fs::create_dir(&doomed).unwrap();
        std::os::unix::fs::symlink(outside.path(), doomed.join("link")).unwrap();
        let mut at = open_folder(CWD, &doomed).unwrap();
        for _ in 0..5_000 {
            rustix::fs::mkdirat(&at, "d", Mode::from_raw_mode(0o700)).unwrap();
            at = open_folder(&at, "d").unwrap();
        }
        drop(at);
        remove_tree(&doomed).unwrap();
        assert!(!doomed.exists() && outside.path().join("kept").exists());
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_failed_half_way_is_gone_on_with() {
        let root = tempfile::tempdir().unwrap();
        let doomed = root.path().join("doomed");
        // The state that an interrupted removal leaves: some folders were moved, in any number.
        let trash = root.path().join(format!(".trash-{}-doomed", std::process::id()));
        for folder in ["0/a/b", "7", "12/c"] {
            std::fs::create_dir_all(trash.join(folder)).unwrap();
        }
        std::fs::write(trash.join("7/file"), "x").unwrap();
        remove_tree(&doomed).unwrap();
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
        // Or none was moved yet.
        std::fs::create_dir(&trash).unwrap();
        std::fs::create_dir_all(doomed.join("a/b/c")).unwrap();
        remove_tree(&doomed).unwrap();
        assert_eq!(remove_tree(&doomed).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
    }
}
