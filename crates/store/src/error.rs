//! Why the record could not be opened, read or written.

use std::path::PathBuf;

use atoll_model::policy::quota::Exceeded;
use atoll_model::{ErrorKind, SandboxId, VolumeId};

/// A read or a write did not happen; nothing changed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Somebody else wrote the lease first.
    #[error("sandbox {sandbox} was changed by another request")]
    Stale {
        /// Which.
        sandbox: SandboxId,
    },
    /// Another sandbox of this tenant has that name.
    #[error("the name {name} is taken")]
    NameTaken {
        /// Which.
        name: String,
        /// By whom.
        by: SandboxId,
    },
    /// Another snapshot of this tenant has that name.
    #[error("the snapshot name {name} is taken")]
    SnapshotNameTaken {
        /// Which.
        name: String,
    },
    /// Another volume of this tenant has that name.
    #[error("the volume name {name} is taken")]
    VolumeNameTaken {
        /// Which.
        name: String,
    },
    /// A volume that shall be mounted is not there, not ready, or somebody else's.
    #[error("there is no volume {volume} that could be mounted")]
    NoVolume {
        /// Which.
        volume: VolumeId,
    },
    /// A volume that shall be removed is mounted.
    #[error("volume {name} is mounted")]
    VolumeInUse {
        /// What it is called.
        name: String,
        /// How many sandboxes mount it.
        users: u32,
        /// Some of them.
        by: Vec<String>,
    },
    /// The idempotency key was used with another request.
    #[error("the idempotency key was used with another request")]
    IdempotencyMismatch,
    /// The tenant's quota would be passed.
    #[error(transparent)]
    Quota(#[from] Exceeded),
    /// The tenant is not there.
    #[error("there is no such tenant")]
    NoTenant,
    /// It is there already.
    #[error("{what} exists already")]
    Exists {
        /// What.
        what: String,
    },
    /// The tenant has as many secrets as it may.
    #[error("the tenant has {most} secrets already")]
    TooManySecrets {
        /// How many it may have.
        most: u32,
    },
    /// It can't be sealed, or was not sealed by this server for its owner.
    #[error("{what} cannot be encrypted or decrypted")]
    Sealed {
        /// What.
        what: &'static str,
    },
    /// The cursor is not one of ours.
    #[error("the cursor is not one that a list returned")]
    BadCursor,
    /// A row can't be understood.
    #[error("a row of {table} cannot be parsed")]
    BadRow {
        /// Where.
        table: &'static str,
        /// Why.
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
    /// The database failed.
    #[error("the database failed")]
    Database(#[from] rusqlite::Error),
    /// The disk has no room for rows of new things; changes and deletes are still written.
    #[error("the server's disk is full")]
    NoSpace,
    /// The transaction this write was part of could not be committed.
    #[error("the write could not be committed: {why}")]
    NotCommitted {
        /// Why.
        why: String,
    },
}

impl StoreError {
    /// A database that has no room for a write is no fault of ours.
    pub(crate) fn named(self) -> Self {
        match &self {
            Self::Database(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull) => {
                Self::NotCommitted { why: error.to_string() }
            }
            _ => self,
        }
    }

    /// What sort of failure it is.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Stale { .. } | Self::IdempotencyMismatch | Self::VolumeInUse { .. } => ErrorKind::Conflict,
            Self::NameTaken { .. }
            | Self::SnapshotNameTaken { .. }
            | Self::VolumeNameTaken { .. }
            | Self::Exists { .. } => ErrorKind::Exists,
            Self::Quota(_) | Self::TooManySecrets { .. } => ErrorKind::Exhausted,
            Self::NoTenant | Self::NoVolume { .. } => ErrorKind::NotFound,
            Self::BadCursor => ErrorKind::Invalid,
            Self::Closed | Self::NotCommitted { .. } | Self::NoSpace => ErrorKind::Unavailable,
            Self::BadRow { .. } | Self::Database(_) | Self::Sealed { .. } => ErrorKind::Internal,
        }
    }
}

/// The record can't be opened. The server must not start: an empty one in its place would forget every sandbox.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another server uses the folder.
    #[error("another server (pid {pid}) uses {}", data.display())]
    Locked {
        /// Which folder.
        data: PathBuf,
        /// Its pid, or `unknown`.
        pid: String,
    },
    /// The database is missing or empty though the folder was in use.
    #[error("{} is missing or empty, but {} exists: this folder was in use and its database is lost", db.display(), witness.display())]
    Missing {
        /// The database.
        db: PathBuf,
        /// What says that there was one.
        witness: PathBuf,
    },
    /// The write-ahead log is missing after a crash.
    #[error("{} is missing though the last server did not end cleanly: its newest writes are lost", wal.display())]
    LostWal {
        /// Where it should be.
        wal: PathBuf,
    },
    /// A file belongs to somebody else.
    #[error("{} belongs to user {owner}, this server runs as user {me}", path.display())]
    WrongOwner {
        /// Which.
        path: PathBuf,
        /// Whose.
        owner: u32,
        /// Who we are.
        me: u32,
    },
    /// A page is torn or overwritten.
    #[error("{} is damaged: {detail}", db.display())]
    Corrupt {
        /// The database.
        db: PathBuf,
        /// What the check said.
        detail: String,
    },
    /// A newer server wrote it.
    #[error("{} has schema {found}, but this server supports schemas up to {known}", db.display())]
    Newer {
        /// The database.
        db: PathBuf,
        /// Its schema.
        found: i64,
        /// Ours.
        known: i64,
    },
    /// Sealed rows exist and the key that opens them does not.
    #[error("{} is missing or unusable: {why}", path.display())]
    Secret {
        /// Where.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The folder or a file in it can't be used.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        #[source]
        cause: std::io::Error,
    },
    /// The database can't be opened.
    #[error("cannot {action} {}", db.display())]
    Database {
        /// What was tried.
        action: &'static str,
        /// On what.
        db: PathBuf,
        /// Why not.
        #[source]
        cause: rusqlite::Error,
    },
}

impl OpenError {
    /// What sort of failure it is.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Locked { .. } => ErrorKind::Conflict,
            Self::Newer { .. } => ErrorKind::Unsupported,
            Self::WrongOwner { .. } => ErrorKind::Forbidden,
            Self::Missing { .. } | Self::LostWal { .. } | Self::Corrupt { .. } | Self::Secret { .. } => {
                ErrorKind::Internal
            }
            Self::Io { .. } | Self::Database { .. } => ErrorKind::Unavailable,
        }
    }

    /// What to try next.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Locked { .. } => "stop that server, or give this one another data folder",
            Self::Missing { .. } => {
                "restore the database from a backup; to start from nothing, choose an empty data folder"
            }
            Self::LostWal { .. } => {
                "restore the file; to continue without the newest writes, empty the file `lock` in the data folder"
            }
            Self::WrongOwner { .. } => "run as that user, or chown the data folder",
            Self::Corrupt { .. } => "restore the database from a backup, with its -wal file",
            Self::Newer { .. } => "use the newer server, or a backup from before its first start",
            Self::Secret { .. } => "restore the key from a backup",
            Self::Io { .. } | Self::Database { .. } => {
                "check that the folder is writable and the disk has free space"
            }
        }
    }
}
