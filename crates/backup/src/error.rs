//! Errors of backups and restores.

use std::io;
use std::path::PathBuf;

use atoll_image::ImageError;
use atoll_storage::{CopiesError, ReadError, StorageError};
use atoll_store::{OpenError, StoreError};

/// A backup could not be made; nothing of it is left.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// There is no database in the folder.
    #[error("{} has no database of its own", .0.display())]
    NoDatabase(PathBuf),
    /// Other servers use the database too.
    #[error("the database belongs to several servers: {0}")]
    SeveralNodes(String),
    /// The key of the database is missing or another one.
    #[error("{} is not the key that the database was sealed with", .0.display())]
    WrongKey(PathBuf),
    /// Copies of the pool cannot be made.
    #[error(transparent)]
    Copies(#[from] CopiesError),
    /// The database cannot be read.
    #[error("the database cannot be copied")]
    Database(#[from] OpenError),
    /// The records of templates cannot be read.
    #[error("the templates cannot be read")]
    Images(#[from] ImageError),
    /// Reading something failed.
    #[error("{what} cannot be read")]
    Read {
        what: String,
        #[source]
        cause: io::Error,
    },
    /// Writing the backup failed.
    #[error("the backup cannot be written")]
    Write(#[source] io::Error),
    /// The caller ended it.
    #[error("the backup was cancelled")]
    Cancelled,
}

/// A restore failed. The folder is empty again, unless the error says otherwise.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// Something is in the folder.
    #[error("{} is not empty", .0.display())]
    NotEmpty(PathBuf),
    /// Another process restores into the folder.
    #[error("another restore into {} is under way", .0.display())]
    Busy(PathBuf),
    /// The file is not a backup.
    #[error("it is not a backup of Atoll")]
    NotABackup,
    /// The file has a version of the format or of the database that this version does not know.
    #[error("it was made by version {0}, which is newer than this one")]
    TooNew(String),
    /// The file was truncated or changed.
    #[error("the backup is damaged: {0}")]
    Damaged(String),
    /// The sealing key is not in the backup.
    #[error("the backup does not contain the sealing key")]
    NeedsKey,
    /// The key is another one.
    #[error("{} is not the key of this backup", .0.display())]
    WrongKey(PathBuf),
    /// The sealing key is in the backup, encrypted.
    #[error("the keys in the backup are encrypted with a passphrase")]
    NeedsPassphrase,
    /// The passphrase is another one.
    #[error("the passphrase is wrong")]
    WrongPassphrase,
    /// The pool cannot be made.
    #[error("the pool cannot be made")]
    Storage(#[from] StorageError),
    /// The database cannot be opened.
    #[error("the restored database cannot be opened")]
    Database(#[from] OpenError),
    /// The database cannot be changed.
    #[error("the restored database cannot be changed")]
    Store(#[from] StoreError),
    /// Reading the backup failed.
    #[error("the backup cannot be read")]
    Read(#[source] io::Error),
    /// Writing to the folder failed.
    #[error("cannot {action} {}", path.display())]
    Write {
        action: &'static str,
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    /// The caller ended it.
    #[error("the restore was cancelled")]
    Cancelled,
}

impl RestoreError {
    pub(crate) fn write(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |cause| Self::Write { action, path, cause }
    }

    /// An error of unpacking a section into the folder.
    pub(crate) fn of_section(error: ReadError, what: &str, path: impl Into<PathBuf>) -> Self {
        match error {
            ReadError::Damaged(why) => Self::Damaged(format!("{what}: {why}")),
            ReadError::Io(cause) => of_stream(cause, path),
        }
    }
}

/// Errors of the stream travel through `Read` as the source of an I/O error.
pub(crate) fn of_stream(cause: io::Error, path: impl Into<PathBuf>) -> RestoreError {
    match cause.downcast::<RestoreError>() {
        Ok(own) => own,
        Err(cause) => RestoreError::Write { action: "write below", path: path.into(), cause },
    }
}
