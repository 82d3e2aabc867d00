//! Number of volumes.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use crate::words::VolumeState;

/// Files that outlive sandboxes.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Volume {
    pub id: String,
    /// Unique among the tenant's volumes.
    pub name: String,
    /// The tenant's id.
    pub tenant: String,
    /// Node that has its files.
    #[serde(default)]
    pub node: String,
    /// Provider that keeps the files; sandboxes of other providers cannot mount them.
    #[serde(default)]
    pub provider: String,
    /// Size limit; null for a host folder, which has no limit.
    pub size_mib: Option<u32>,
    /// Current use, if known.
    pub used_bytes: Option<u64>,
    /// Host folder of the volume, if it is one.
    pub folder: Option<String>,
    /// Whether the volume is read-only for every mount.
    pub read_only: bool,
    /// Volume that it was copied from.
    pub parent: Option<String>,
    pub state: VolumeState,
    /// Number of sandboxes that mount it and are not deleted.
    pub mounted_by: u32,
    #[schema(format = DateTime)]
    pub created_at: String,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct VolumeList {
    /// By name.
    pub items: Vec<Volume>,
}

/// Request to create a volume.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeBody {
    /// Unique among the tenant's volumes: letters, digits, `-`, `_`, `.`.
    #[schema(example = "data")]
    pub name: String,
    /// Provider that keeps the files. Default: the server's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// Size limit. Default: the server's.
    #[schema(example = 10240)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_mib: Option<u32>,
    /// Host folder to use as the volume, below a folder that the operator allowed (`atoll serve --volume-root`).
    /// Needs an admin key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
    /// Whether the volume is read-only for every mount.
    #[serde(default)]
    #[schema(required = false)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
}

/// Requested changes. Absent fields do not change.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct UpdateVolumeBody {
    /// Size limit; not below the current use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_mib: Option<u32>,
    /// Make the volume read-only, from the next start of each sandbox on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
}

/// Request to copy a volume.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CopyVolumeBody {
    /// Name of the new volume.
    pub name: String,
}
