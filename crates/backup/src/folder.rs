//! The folder that a restore fills: empty at first, marked until it is whole, and empty again if the restore fails.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::RestoreError;

/// The file that marks a folder whose restore has not ended.
pub const MARKER: &str = "restore.unfinished";
/// What a new file system has at its top.
const LOST_AND_FOUND: &str = "lost+found";

/// Whether a restore into the folder was begun and has not ended.
#[must_use]
pub fn is_unfinished(data: &Path) -> bool {
    data.join(MARKER).exists()
}

/// Removes a folder whose restore has not ended, with everything in it.
pub fn discard_unfinished(data: &Path) -> Result<(), RestoreError> {
    let folder = RestoreFolder::begin(data)?;
    let path = folder.path().to_owned();
    folder.undo().map_err(RestoreError::write("empty", &path))?;
    fs::remove_dir_all(&path).map_err(RestoreError::write("remove", &path))
}

/// A folder that is being filled.
#[derive(Debug)]
pub(crate) struct RestoreFolder {
    data: PathBuf,
    /// Locked for this process.
    _marker: File,
}

impl RestoreFolder {
    /// Marks an empty folder, or empties one whose restore has not ended.
    pub(crate) fn begin(data: &Path) -> Result<Self, RestoreError> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(data)
            .map_err(RestoreError::write("create", data))?;
        let data = data.canonicalize().map_err(RestoreError::write("find", data))?;
        let is_again = is_unfinished(&data);
        if !is_again && !is_empty(&data).map_err(RestoreError::write("list", &data))? {
            return Err(RestoreError::NotEmpty(data));
        }
        let marker = lock_marker(&data)?;
        let folder = Self { data, _marker: marker };
        if is_again {
            folder.empty().map_err(RestoreError::write("empty", &folder.data))?;
        } else if !is_empty(&folder.data).map_err(RestoreError::write("list", &folder.data))? {
            // A server was started in this moment.
            let _ = fs::remove_file(folder.data.join(MARKER));
            return Err(RestoreError::NotEmpty(folder.data));
        }
        folder.sync().map_err(RestoreError::write("write", &folder.data))?;
        Ok(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.data
    }

    /// The folder is whole.
    pub(crate) fn finish(self) -> io::Result<()> {
        rustix::fs::syncfs(File::open(&self.data)?)?;
        fs::remove_file(self.data.join(MARKER))?;
        self.sync()
    }

    /// The folder is as it was before.
    pub(crate) fn undo(self) -> io::Result<()> {
        self.empty()?;
        fs::remove_file(self.data.join(MARKER))?;
        self.sync()
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.data)?.sync_all()
    }

    /// Removes everything but the mark.
    fn empty(&self) -> io::Result<()> {
        atoll_storage::discard_pool(&self.data)?;
        for entry in fs::read_dir(&self.data)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == MARKER || name == LOST_AND_FOUND {
                continue;
            }
            match entry.file_type()?.is_dir() {
                true => atoll_storage::remove_tree(&entry.path())?,
                false => fs::remove_file(entry.path())?,
            }
        }
        Ok(())
    }
}

fn lock_marker(data: &Path) -> Result<File, RestoreError> {
    let path = data.join(MARKER);
    let mut options = File::options();
    let opened = options.write(true).create(true).truncate(false).mode(0o600).open(&path);
    let mut marker = opened.map_err(RestoreError::write("create", &path))?;
    match marker.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(RestoreError::Busy(data.to_owned())),
        Err(TryLockError::Error(cause)) => return Err(RestoreError::write("lock", &path)(cause)),
    }
    let text =
        b"A restore into this folder has not ended. Run `atoll server restore` again; it starts over.\n";
    marker.write_all(text).and_then(|()| marker.sync_all()).map_err(RestoreError::write("write", &path))?;
    Ok(marker)
}

fn is_empty(data: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(data)? {
        let name = entry?.file_name();
        if name != MARKER && name != LOST_AND_FOUND {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_an_empty_or_unfinished_folder_is_filled() {
        let parent = tempfile::tempdir().unwrap();
        let data = parent.path().join("data");
        let folder = RestoreFolder::begin(&data).unwrap();
        assert!(is_unfinished(&data));
        assert!(matches!(RestoreFolder::begin(&data), Err(RestoreError::Busy(_))));
        fs::create_dir_all(data.join("images/a")).unwrap();
        fs::write(data.join("sandbox.db"), "half").unwrap();
        drop(folder);
        let again = RestoreFolder::begin(&data).unwrap();
        assert_eq!(fs::read_dir(&data).unwrap().count(), 1, "only the mark is left");
        fs::write(data.join("sandbox.db"), "half").unwrap();
        again.undo().unwrap();
        assert_eq!(fs::read_dir(&data).unwrap().count(), 0);
        let whole = RestoreFolder::begin(&data).unwrap();
        fs::write(data.join("sandbox.db"), "whole").unwrap();
        whole.finish().unwrap();
        assert!(!is_unfinished(&data));
        assert!(matches!(RestoreFolder::begin(&data), Err(RestoreError::NotEmpty(_))));
    }
}
