//! Makes a folder appear completely or not at all.
//!
//! ```text
//! mkdir .build-PID-N, lock it ── fill ── sync ── rename to its name ── sync the parent
//!                       └─ error, cancel, crash ─► removed by Drop, or by the next sweep once the lock is free
//! ```
//!
//! The lock is on the folder itself: a sweep removes only folders that no process is making any more.

use std::fs::{DirBuilder, File, TryLockError};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{CWD, RenameFlags};

use crate::error::TemplateError;

const BUILD: &str = ".build-";
const TRASH: &str = ".trash-";

/// Distinguishes the folders of this process.
static COUNTER: AtomicU32 = AtomicU32::new(0);

/// A folder being filled; removed when dropped unless published.
#[derive(Debug)]
pub(crate) struct Staging {
    path: PathBuf,
    /// Held as long as this process owns the folder; closing it releases the lock.
    lock: Option<File>,
}

impl Staging {
    /// A new, locked folder inside `parent`.
    pub(crate) fn new(parent: &Path) -> Result<Self, TemplateError> {
        // A sweep may remove the new folder between mkdir and lock; then the next number is tried.
        for _ in 0..16 {
            let path = parent.join(unique(BUILD));
            DirBuilder::new().mode(0o700).create(&path).map_err(TemplateError::io("create", &path))?;
            if let Some(lock) = lock_folder(&path)? {
                return Ok(Self { path, lock: Some(lock) });
            }
        }
        Err(TemplateError::Io {
            action: "lock a folder in",
            path: parent.to_owned(),
            cause: std::io::ErrorKind::WouldBlock.into(),
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the finished folder its name. Fails with [`TemplateError::Exists`] if the name is taken.
    pub(crate) fn publish(mut self, name: &str, destination: &Path) -> Result<(), TemplateError> {
        let lock = self.lock.take().expect("only publish takes the lock, and it consumes the staging");
        // One sync of the file system is far cheaper than an fsync for each of ten thousand files.
        rustix::fs::syncfs(&lock).map_err(|errno| TemplateError::io("flush", &self.path)(errno.into()))?;
        match rustix::fs::renameat_with(CWD, &self.path, CWD, destination, RenameFlags::NOREPLACE) {
            Ok(()) => {}
            Err(rustix::io::Errno::EXIST) => return Err(TemplateError::Exists { name: name.to_owned() }),
            Err(errno) => return Err(TemplateError::io("publish", destination)(errno.into())),
        }
        self.path = PathBuf::new();
        sync_parent(destination)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if self.path.as_os_str().is_empty() {
            return;
        }
        // The processes of a cancelled tool end slightly later than the tool and may still be writing here.
        for last in [false, false, false, true] {
            match std::fs::remove_dir_all(&self.path) {
                Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => {
                    if last {
                        tracing::warn!(path = %self.path.display(), %cause, "an unfinished template could not be removed; the next start removes it");
                    }
                }
                _ => return,
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
}

/// Removes a folder so that its name is free at once, even if the removal of its files fails.
pub(crate) fn discard(folder: &Path) -> Result<(), TemplateError> {
    let trash = Trash::take(folder)?;
    sync_parent(folder)?;
    trash.empty()
}

/// A folder that has lost its name; the next sweep removes it if it is not emptied before.
#[must_use]
pub(crate) struct Trash(PathBuf);

impl Trash {
    /// Removes the name with one rename.
    pub(crate) fn take(folder: &Path) -> Result<Self, TemplateError> {
        let trash = folder.parent().unwrap_or(Path::new(".")).join(unique(TRASH));
        std::fs::rename(folder, &trash).map_err(TemplateError::io("remove", folder))?;
        Ok(Self(trash))
    }

    /// Removes its files.
    pub(crate) fn empty(self) -> Result<(), TemplateError> {
        std::fs::remove_dir_all(&self.0).map_err(TemplateError::io("remove", &self.0))
    }
}

/// Removes the leftovers of crashed processes in `parent`; returns how many folders were removed.
pub(crate) fn sweep(parent: &Path) -> Result<usize, TemplateError> {
    let mut swept = 0;
    for entry in std::fs::read_dir(parent).map_err(TemplateError::io("list", parent))? {
        let entry = entry.map_err(TemplateError::io("list", parent))?;
        let name = entry.file_name();
        let bytes = name.as_encoded_bytes();
        if !bytes.starts_with(BUILD.as_bytes()) && !bytes.starts_with(TRASH.as_bytes()) {
            continue;
        }
        let path = entry.path();
        if let Some(_lock) = lock_folder(&path)? {
            match std::fs::remove_dir_all(&path) {
                Ok(()) => swept += 1,
                Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {}
                Err(cause) => return Err(TemplateError::io("remove", &path)(cause)),
            }
        }
    }
    Ok(swept)
}

/// The lock on a folder; `None` if another process holds it or the folder is gone.
fn lock_folder(path: &Path) -> Result<Option<File>, TemplateError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(cause) => return Err(TemplateError::io("open", path)(cause)),
    };
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(cause)) => return Err(TemplateError::io("lock", path)(cause)),
    }
    let ours = file.metadata().map_err(TemplateError::io("stat", path))?;
    let same =
        std::fs::symlink_metadata(path).is_ok_and(|now| (now.dev(), now.ino()) == (ours.dev(), ours.ino()));
    Ok(same.then_some(file))
}

/// Writes a file so that after a crash it has either the old or the new content.
pub(crate) fn write_durably(path: &Path, bytes: &[u8]) -> Result<(), TemplateError> {
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(unique(".new-"));
    let fresh = PathBuf::from(fresh);
    let write = || -> std::io::Result<()> {
        let mut file = File::create_new(&fresh)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&fresh, path)
    };
    write().map_err(|cause| {
        let _ = std::fs::remove_file(&fresh);
        TemplateError::io("write", path)(cause)
    })?;
    sync_parent(path)
}

fn sync_parent(path: &Path) -> Result<(), TemplateError> {
    let parent = path.parent().unwrap_or(Path::new("."));
    File::open(parent).and_then(|folder| folder.sync_all()).map_err(TemplateError::io("flush", parent))
}

fn unique(prefix: &str) -> String {
    format!("{prefix}{}-{}", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_dropped_build_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let staging = Staging::new(dir.path()).unwrap();
        std::fs::create_dir_all(staging.path().join("rootfs/etc")).unwrap();
        drop(staging);
        assert_eq!(names(dir.path()), Vec::<String>::new());
    }

    #[test]
    fn a_published_build_has_its_name_and_never_replaces_another() {
        let dir = tempfile::tempdir().unwrap();
        let destination = dir.path().join("debian");
        Staging::new(dir.path()).unwrap().publish("debian", &destination).unwrap();
        std::fs::write(destination.join("first"), "").unwrap();
        let second = Staging::new(dir.path()).unwrap().publish("debian", &destination);
        assert!(matches!(second, Err(TemplateError::Exists { .. })));
        assert_eq!(
            (names(dir.path()), names(&destination)),
            (vec!["debian".to_owned()], vec!["first".to_owned()])
        );
    }

    #[test]
    fn a_sweep_takes_what_crashed_and_spares_what_is_being_made() {
        let dir = tempfile::tempdir().unwrap();
        for left in [".build-1-0", ".trash-1-1"] {
            std::fs::create_dir_all(dir.path().join(left).join("rootfs/usr")).unwrap();
        }
        std::fs::create_dir(dir.path().join("debian")).unwrap();
        let alive = Staging::new(dir.path()).unwrap();
        assert_eq!(sweep(dir.path()).unwrap(), 2);
        assert!(alive.path().exists());
        drop(alive);
        assert_eq!(names(dir.path()), ["debian"]);
    }

    #[test]
    fn a_discarded_folder_is_gone_with_its_name() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("debian/rootfs")).unwrap();
        discard(&dir.path().join("debian")).unwrap();
        assert_eq!(names(dir.path()), Vec::<String>::new());
    }
}
