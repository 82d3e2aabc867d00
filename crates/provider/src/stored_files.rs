//! What a provider keeps on the disk of this machine, for the operator.

/// What the files are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StoredKind {
    /// The files of a sandbox.
    Sandbox,
    /// The memory of a sandbox that is paused to disk.
    Memory,
    /// A snapshot: what its sandbox no longer has, and its memory.
    Snapshot,
    /// A volume.
    Volume,
    /// An instance that waits to be claimed.
    Waiting,
}

/// Files of one sandbox, snapshot or volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredFiles {
    /// What they are.
    pub kind: StoredKind,
    /// The id of the sandbox, snapshot or volume.
    pub id: String,
    /// Bytes that count for it alone.
    pub bytes: u64,
}

/// All files of a provider on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoredInventory {
    /// The pool that they are in, if there is one.
    pub pool: Option<PoolSize>,
    /// One entry per sandbox, snapshot and volume.
    pub files: Vec<StoredFiles>,
}

/// The size of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolSize {
    /// Bytes that it takes from the host.
    pub bytes: u64,
    /// Of those, bytes that nothing uses yet.
    pub free_bytes: u64,
}
