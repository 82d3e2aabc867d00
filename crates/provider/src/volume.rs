//! The files of a volume, read and written without a sandbox.

use async_trait::async_trait;

use crate::Packed;

/// A file or folder of a volume. Paths are absolute within the volume; links are never followed out of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeEntry {
    /// Where.
    pub path: String,
    /// What.
    pub kind: VolumeEntryKind,
    /// Bytes.
    pub size: u64,
    /// Permissions.
    pub mode: u32,
    /// Owner, as seen inside a sandbox.
    pub uid: u32,
    /// Group, as seen inside a sandbox.
    pub gid: u32,
    /// Milliseconds since the Unix epoch.
    pub accessed_ms: i64,
    /// Milliseconds since the Unix epoch.
    pub modified_ms: i64,
    /// Milliseconds since the Unix epoch.
    pub changed_ms: i64,
    /// Where a link leads.
    pub target: Option<String>,
}

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VolumeEntryKind {
    /// A file.
    File,
    /// A folder.
    Folder,
    /// A symbolic link.
    Link,
    /// A pipe, socket or device.
    Other,
}

/// What to change of an entry, or to give a new one; `None` leaves it, new ones get 0644 or 0755 of root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VolumeOwner {
    /// User inside.
    pub uid: Option<u32>,
    /// Group inside.
    pub gid: Option<u32>,
    /// Permissions, without setuid and setgid.
    pub mode: Option<u32>,
}

/// The files of one volume, without a sandbox. [`std::io::ErrorKind`] says what was wrong: not found, is a folder, no space …
#[async_trait]
pub trait VolumeFiles: Send + Sync {
    /// One entry; a link itself, not what it leads to.
    async fn stat(&self, path: &str) -> std::io::Result<VolumeEntry>;
    /// What is in a folder, down to `depth`, in order; `most` entries at most.
    async fn list(&self, path: &str, depth: u32, most: usize) -> std::io::Result<Vec<VolumeEntry>>;
    /// The bytes of a file.
    async fn read(&self, path: &str) -> std::io::Result<(VolumeEntry, Packed)>;
    /// Writes a file, whole or not at all; with `parents` the folders above it too.
    async fn write(
        &self,
        path: &str,
        owner: VolumeOwner,
        parents: bool,
        bytes: Packed,
    ) -> std::io::Result<VolumeEntry>;
    /// Makes a folder; with `parents` those above it too, and one that is there is fine.
    async fn make_folder(
        &self,
        path: &str,
        owner: VolumeOwner,
        parents: bool,
    ) -> std::io::Result<VolumeEntry>;
    /// Changes owner and permissions.
    async fn change(&self, path: &str, owner: VolumeOwner) -> std::io::Result<VolumeEntry>;
    /// Moves, replacing a file.
    async fn rename(&self, from: &str, to: &str) -> std::io::Result<VolumeEntry>;
    /// Removes, folders with all that is in them.
    async fn remove(&self, path: &str) -> std::io::Result<()>;
}
