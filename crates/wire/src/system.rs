//! What takes space on the disk of the server, and what can go.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What takes space.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct DiskUse {
    /// The disk of the data folder. Null for a user key.
    pub disk: Option<DiskTotals>,
    /// The parts of the data folder and the cache of downloads, the largest first. Empty for a user key.
    pub parts: Vec<DiskPart>,
    /// Sandboxes, memory of paused ones, snapshots, volumes, templates and archives, the largest first.
    pub items: Vec<DiskItem>,
    /// The sums of each tenant.
    pub tenants: Vec<TenantDisk>,
}

/// The disk of the data folder.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct DiskTotals {
    /// Free bytes, the reserve included.
    pub free_bytes: u64,
    /// What `--disk-reserve` keeps free.
    pub reserve_bytes: u64,
    /// Bytes that the pool of layers takes; null where it has no file of its own.
    pub pool_bytes: Option<u64>,
    /// Bytes of the pool that nothing uses yet.
    pub pool_free_bytes: Option<u64>,
}

/// A part of the data folder.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct DiskPart {
    #[schema(example = "database")]
    pub name: String,
    pub bytes: u64,
}

/// One thing that takes space. Bytes that several layers or snapshots share count for the one that wrote them.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct DiskItem {
    /// `sandbox`, `memory` (of a sandbox that is paused to disk), `snapshot`, `volume`, `template` or `archive`.
    pub kind: String,
    /// The id; of a template its version.
    pub id: String,
    pub name: Option<String>,
    /// The id of its tenant; null for what belongs to the server.
    pub tenant: Option<String>,
    /// The phase of a sandbox; `mounted` for a volume in use; `memory` for a snapshot with processes.
    pub state: Option<String>,
    /// Bytes that only it has.
    pub bytes: u64,
    /// Bytes of layers that other templates have too.
    pub shared_bytes: u64,
}

/// What a tenant takes.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct TenantDisk {
    /// Its id.
    pub tenant: String,
    pub name: String,
    pub sandbox_bytes: u64,
    pub memory_bytes: u64,
    pub snapshot_bytes: u64,
    pub volume_bytes: u64,
    pub template_bytes: u64,
    pub archive_bytes: u64,
}

/// What to remove.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PruneRequest {
    /// Whether to remove it. Otherwise it is only listed.
    #[serde(default)]
    pub apply: bool,
    /// Failed sandboxes, ended builds, logs and downloads of at least this age in seconds; a week by default.
    #[serde(default)]
    pub older_than_s: Option<u64>,
}

/// What was removed, or would be, and what is kept.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct PruneReport {
    /// Whether it was removed.
    pub applied: bool,
    pub removed: Vec<PruneEntry>,
    pub kept: Vec<PruneEntry>,
}

/// One thing, or several of a kind.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct PruneEntry {
    /// `sandbox`, `template`, `layers`, `build`, `download`, `log`, `snapshot` or `volume`.
    pub kind: String,
    /// Its name, or a number where it stands for several.
    pub name: String,
    /// Bytes on the disk, if known.
    pub bytes: Option<u64>,
    /// Why it goes or stays.
    pub why: String,
}
