//! Volumes.

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
    /// How much it may hold; null: a folder of the host, which Atoll does not limit.
    pub size_mib: Option<u32>,
    /// How much it holds, where that is known.
    pub used_bytes: Option<u64>,
    /// The folder of the host that it is.
    pub folder: Option<String>,
    /// Nobody may write, whatever a mount says.
    pub read_only: bool,
    /// The volume that it was copied from.
    pub parent: Option<String>,
    pub state: VolumeState,
    /// How many sandboxes that are not deleted mount it.
    pub mounted_by: u32,
    #[schema(format = DateTime)]
    pub created_at: String,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct VolumeList {
    /// By name.
    pub items: Vec<Volume>,
}

/// The volume to make.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeBody {
    /// Unique among the tenant's volumes: letters, digits, `-`, `_`, `.`.
    #[schema(example = "data")]
    pub name: String,
    /// How much it may hold; absent: the server's default.
    #[schema(example = 10240)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_mib: Option<u32>,
    /// A folder of the host instead, below a root that the operator allowed (`atoll serve --volume-root`). Needs an admin key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
    /// Nobody may write, whatever a mount says.
    #[serde(default)]
    #[schema(required = false)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
}

/// What to change; what is absent stays.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct UpdateVolumeBody {
    /// How much it may hold; not less than it holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_mib: Option<u32>,
    /// Nobody may write; holds from the next start of a sandbox on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
}

/// The copy to make.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CopyVolumeBody {
    /// Of the new one.
    pub name: String,
}
