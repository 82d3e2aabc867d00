//! The servers that use one database: each holds a shared flock on `<database>-servers`, so that a server knows whether
//! it is the first or the last one.
//!
//! The last server to end folds the write-ahead log in and writes `clean` into the file. SQLite then removes the log,
//! and a server that crashed before must not miss it.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::OpenError;

const CLEAN: &str = "clean";

/// The lock of this server.
pub(super) struct Servers {
    file: File,
    /// No other server used the database when this one opened it; until [`Servers::admit_others`] none can.
    pub(super) is_alone: bool,
    /// The last server folded the log in.
    pub(super) was_clean: bool,
}

fn path(db: &Path) -> PathBuf {
    let mut name = db.file_name().unwrap_or_default().to_owned();
    name.push("-servers");
    db.with_file_name(name)
}

impl Servers {
    /// Locks the file; waits while another server opens or closes the database.
    pub(super) fn join(db: &Path) -> Result<Self, OpenError> {
        let path = path(db);
        let io = |action: &'static str| {
            let path = path.clone();
            move |cause| OpenError::Io { action, path, cause }
        };
        let mut options = OpenOptions::new();
        let mut file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(io("create"))?;
        let is_alone = file.try_lock().is_ok();
        if !is_alone {
            file.lock_shared().map_err(io("lock"))?;
        }
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(io("read"))?;
        Ok(Self { file, is_alone, was_clean: text.trim() == CLEAN })
    }

    /// From now on the log is in use, and other servers may open the database.
    pub(super) fn admit_others(&self) {
        if let Err(error) = self.file.set_len(0).and_then(|()| self.file.lock_shared()) {
            tracing::warn!(%error, "the file of the database's servers could not be changed");
        }
    }

    /// Whether no other server uses the database. Then none can open it until this one has ended.
    pub(super) fn is_last(&self) -> bool {
        self.file.try_lock().is_ok()
    }

    /// Records that nothing is left to recover.
    pub(super) fn mark_clean(&mut self) {
        let marked = self.file.seek(SeekFrom::Start(0)).and_then(|_| self.file.write_all(CLEAN.as_bytes()));
        if let Err(error) = marked {
            tracing::warn!(%error, "the file of the database's servers could not be written");
        }
    }
}
