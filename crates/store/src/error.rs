//! Errors of opening, reading and writing the store.

use std::path::PathBuf;

use atoll_model::policy::quota::Exceeded;
use atoll_model::{ErrorKind, NodeName, SandboxId, VolumeId};

/// A read or a write failed; nothing changed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another writer changed the lease first.
    #[error("sandbox {sandbox} was changed by another request")]
    Stale {
        /// The sandbox.
        sandbox: SandboxId,
    },
    /// Another sandbox of this tenant has that name.
    #[error("the name {name} is taken")]
    NameTaken {
        /// The name.
        name: String,
        /// The sandbox that has it.
        by: SandboxId,
    },
    /// Another snapshot of this sandbox has that name; for a tenant-wide name, one of this tenant.
    #[error("the snapshot name {name} is taken")]
    SnapshotNameTaken {
        /// The name.
        name: String,
    },
    /// Another volume of this tenant has that name.
    #[error("the volume name {name} is taken")]
    VolumeNameTaken {
        /// The name.
        name: String,
    },
    /// A volume to mount does not exist, is not ready, or belongs to another tenant.
    #[error("there is no volume {volume} that could be mounted")]
    NoVolume {
        /// The volume.
        volume: VolumeId,
    },
    /// A volume to delete is mounted.
    #[error("volume {name} is mounted")]
    VolumeInUse {
        /// Its name.
        name: String,
        /// How many sandboxes mount it.
        users: u32,
        /// Some of them.
        by: Vec<String>,
    },
    /// The row belongs to another node.
    #[error("{what} is on node {node}")]
    WrongNode {
        /// The object.
        what: String,
        /// The node that has it.
        node: NodeName,
    },
    /// The last key with the admin scope cannot be deleted.
    #[error("this is the last admin key")]
    LastAdminKey,
    /// The idempotency key was used with another request.
    #[error("the idempotency key was used with another request")]
    IdempotencyMismatch,
    /// The tenant's quota would be exceeded.
    #[error(transparent)]
    Quota(#[from] Exceeded),
    /// The tenant does not exist.
    #[error("there is no such tenant")]
    NoTenant,
    /// An object of this name exists already.
    #[error("{what} exists already")]
    Exists {
        /// The object.
        what: String,
    },
    /// The thread belongs to another provider.
    #[error("thread {thread} is bound to provider {provider}")]
    ThreadBound {
        /// The thread.
        thread: String,
        /// Its provider.
        provider: String,
    },
    /// The tenant has the maximal number of threads.
    #[error("the tenant has {most} threads already")]
    TooManyThreads {
        /// The maximal number.
        most: u32,
    },
    /// The tenant has the maximal number of secrets.
    #[error("the tenant has {most} secrets already")]
    TooManySecrets {
        /// The maximal number.
        most: u32,
    },
    /// User keys of the tenant created the maximal number of keys.
    #[error("user keys of the tenant created {most} keys already")]
    TooManyKeys {
        /// The maximal number.
        most: u32,
    },
    /// The key that creates a key was deleted in the meantime.
    #[error("the creating key does not exist")]
    NoKey,
    /// The instance of a sandbox has the maximal number of terminals.
    #[error("the sandbox has {most} terminals already")]
    TooManyTerminals {
        /// The maximal number.
        most: u32,
    },
    /// The sandbox has the maximal number of open previews.
    #[error("sandbox {sandbox} has {most} previews already")]
    TooManyPreviews {
        /// The sandbox.
        sandbox: SandboxId,
        /// The maximal number.
        most: u32,
    },
    /// The sandbox has no instance, so no terminal can belong to it.
    #[error("sandbox {sandbox} has no instance")]
    NoInstance {
        /// The sandbox.
        sandbox: SandboxId,
    },
    /// A text can't be sealed, or was not sealed by this server for its owner.
    #[error("{what} cannot be encrypted or decrypted")]
    Sealed {
        /// What could not be sealed or opened.
        what: &'static str,
    },
    /// The cursor is invalid.
    #[error("the cursor is not one that a list returned")]
    BadCursor,
    /// A row can't be parsed.
    #[error("a row of {table} cannot be parsed")]
    BadRow {
        /// The table.
        table: &'static str,
        /// The cause.
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
    /// The database failed.
    #[error("the database failed")]
    Database(#[from] rusqlite::Error),
    /// The disk has no space for new rows; updates and deletes are still written.
    #[error("the server's disk is full")]
    NoSpace,
    /// The transaction of this write could not be committed.
    #[error("the write could not be committed: {why}")]
    NotCommitted {
        /// The cause.
        why: String,
    },
}

impl StoreError {
    /// Turns a database error about a full disk into [`StoreError::NoSpace`].
    pub(crate) fn named(self) -> Self {
        match &self {
            Self::Database(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull) => {
                Self::NotCommitted { why: error.to_string() }
            }
            _ => self,
        }
    }

    /// The class of the error.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Stale { .. }
            | Self::WrongNode { .. }
            | Self::IdempotencyMismatch
            | Self::ThreadBound { .. }
            | Self::VolumeInUse { .. } => ErrorKind::Conflict,
            Self::LastAdminKey => ErrorKind::Forbidden,
            Self::NameTaken { .. }
            | Self::SnapshotNameTaken { .. }
            | Self::VolumeNameTaken { .. }
            | Self::Exists { .. } => ErrorKind::Exists,
            Self::Quota(_)
            | Self::TooManyThreads { .. }
            | Self::TooManySecrets { .. }
            | Self::TooManyKeys { .. }
            | Self::TooManyTerminals { .. }
            | Self::TooManyPreviews { .. } => ErrorKind::Exhausted,
            Self::NoTenant | Self::NoKey | Self::NoVolume { .. } => ErrorKind::NotFound,
            Self::BadCursor => ErrorKind::Invalid,
            Self::Closed | Self::NotCommitted { .. } | Self::NoSpace | Self::NoInstance { .. } => {
                ErrorKind::Unavailable
            }
            Self::BadRow { .. } | Self::Database(_) | Self::Sealed { .. } => ErrorKind::Internal,
        }
    }
}

/// The store can't be opened. The server must not start: with an empty store it would lose every sandbox.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another server uses the folder.
    #[error("another server (pid {pid}) uses {}", data.display())]
    Locked {
        /// The folder.
        data: PathBuf,
        /// Its pid, or `unknown`.
        pid: String,
    },
    /// The folder belongs to a node of another name.
    #[error("{} belongs to node {recorded}, not to {asked}", data.display())]
    OtherNode {
        /// The folder.
        data: PathBuf,
        /// The node that it was opened for before.
        recorded: NodeName,
        /// The node of this server.
        asked: NodeName,
    },
    /// Another folder is this node in the same database.
    #[error("node {node} of {} has another data folder", db.display())]
    NodeTaken {
        /// The name.
        node: NodeName,
        /// The database.
        db: PathBuf,
    },
    /// The file that names the node of the folder can't be parsed.
    #[error("{} does not name a node", path.display())]
    BadNodeFile {
        /// The file.
        path: PathBuf,
    },
    /// The schema has to be changed while other servers use the database.
    #[error("servers of an older release use {}", db.display())]
    OlderServers {
        /// The database.
        db: PathBuf,
    },
    /// The database is missing or empty though the folder was in use.
    #[error("{} is missing or empty, but {} exists: this folder was in use and its database is lost", db.display(), witness.display())]
    Missing {
        /// The database.
        db: PathBuf,
        /// The file that shows that there was one.
        witness: PathBuf,
    },
    /// The write-ahead log is missing after a crash.
    #[error("{} is missing though the last server did not end cleanly: its newest writes are lost", wal.display())]
    LostWal {
        /// The expected path.
        wal: PathBuf,
    },
    /// A file has another owner.
    #[error("{} belongs to user {owner}, this server runs as user {me}", path.display())]
    WrongOwner {
        /// The file.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// The user of this process.
        me: u32,
    },
    /// The database is damaged.
    #[error("{} is damaged: {detail}", db.display())]
    Corrupt {
        /// The database.
        db: PathBuf,
        /// The result of the check.
        detail: String,
    },
    /// A newer server wrote the database.
    #[error(
        "{} was written by {writer} (schema {found}); this is Atoll {}, which supports schemas up to {known}",
        db.display(),
        env!("CARGO_PKG_VERSION")
    )]
    Newer {
        /// The database.
        db: PathBuf,
        /// Its schema.
        found: i64,
        /// The newest supported schema.
        known: i64,
        /// The server that wrote the schema.
        writer: SchemaWriter,
    },
    /// Sealed rows exist, but their key is missing or unusable.
    #[error("{} is missing or unusable: {why}", path.display())]
    Secret {
        /// The path of the key.
        path: PathBuf,
        /// The problem.
        why: String,
    },
    /// The folder or a file in it can't be used.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// The action.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        #[source]
        cause: std::io::Error,
    },
    /// The database can't be opened.
    #[error("cannot {action} {}", db.display())]
    Database {
        /// The action.
        action: &'static str,
        /// The database.
        db: PathBuf,
        /// The cause.
        #[source]
        cause: rusqlite::Error,
    },
}

/// The server that wrote a schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaWriter(Option<String>);

impl From<Option<String>> for SchemaWriter {
    fn from(version: Option<String>) -> Self {
        Self(version)
    }
}

impl std::fmt::Display for SchemaWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Some(version) => write!(f, "Atoll {version}"),
            None => f.write_str("a newer Atoll"),
        }
    }
}

impl OpenError {
    /// The class of the error.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Locked { .. }
            | Self::OtherNode { .. }
            | Self::NodeTaken { .. }
            | Self::OlderServers { .. } => ErrorKind::Conflict,
            Self::Newer { .. } => ErrorKind::Unsupported,
            Self::WrongOwner { .. } => ErrorKind::Forbidden,
            Self::Missing { .. }
            | Self::LostWal { .. }
            | Self::Corrupt { .. }
            | Self::BadNodeFile { .. }
            | Self::Secret { .. } => ErrorKind::Internal,
            Self::Io { .. } | Self::Database { .. } => ErrorKind::Unavailable,
        }
    }

    /// What to try next.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Locked { .. } => "stop that server, or give this one another data folder",
            Self::OtherNode { .. } => "start it with the node's own name, or give it another data folder",
            Self::NodeTaken { .. } => {
                "give this server a name of its own with --node; if its folder replaces a lost one, delete the row of the node from table `nodes`"
            }
            Self::BadNodeFile { .. } => "restore the file from a backup",
            Self::OlderServers { .. } => "stop the other servers of the database, then start this one first",
            Self::Missing { .. } => {
                "restore the database from a backup; to start without data, choose an empty data folder"
            }
            Self::LostWal { .. } => {
                "restore the file; to continue without the newest writes, empty the file `lock` in the data folder"
            }
            Self::WrongOwner { .. } => "run as that user, or chown the data folder",
            Self::Corrupt { .. } => "restore the database from a backup, with its -wal file",
            Self::Newer { .. } => {
                "start that version or a newer one; to go back, restore a backup from before the upgrade (docs/upgrade.md)"
            }
            Self::Secret { .. } => {
                "restore the key from a backup; servers that share a database need the same secret.key"
            }
            Self::Io { .. } | Self::Database { .. } => {
                "check that the folder is writable and the disk has free space"
            }
        }
    }
}
