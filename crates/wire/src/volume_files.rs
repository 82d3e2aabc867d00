//! The files of a volume, without a sandbox.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::files::EntryKind;

/// A file, directory or link of a volume.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct VolumeEntry {
    /// The last part of its path.
    pub name: String,
    /// Path from the top of the volume.
    pub path: String,
    pub kind: EntryKind,
    pub size: u64,
    /// Permission bits in octal.
    #[schema(example = "0644", pattern = "^[0-7]{4}$")]
    pub mode: String,
    /// As sandboxes see it.
    pub uid: u32,
    /// As sandboxes see it.
    pub gid: u32,
    #[schema(format = DateTime)]
    pub accessed_at: String,
    #[schema(format = DateTime)]
    pub modified_at: String,
    #[schema(format = DateTime)]
    pub changed_at: String,
    /// Target of a link.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub symlink_target: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct VolumeEntryList {
    pub items: Vec<VolumeEntry>,
    /// Whether there are more entries than listed.
    pub truncated: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct VolumePathQuery {
    /// Path from the top of the volume.
    #[param(example = "/reports/a.csv")]
    pub path: String,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct VolumeWriteQuery {
    /// Path from the top of the volume.
    pub path: String,
    /// Owner as sandboxes see it. Default: unchanged; root for a new file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    /// Permission bits in octal, such as `644`.
    #[param(pattern = "^[0-7]{1,4}$")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct EntriesQuery {
    /// Path from the top of the volume. Default `/`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Number of levels; 0 is the entry itself. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub depth: Option<u32>,
}

/// Owner and permissions of an entry.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OwnerBody {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    /// Permission bits in octal, such as `644`.
    #[schema(pattern = "^[0-7]{1,4}$")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FolderBody {
    pub path: String,
    /// Owner as sandboxes see it. Default: root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    /// Permission bits in octal, such as `755`.
    #[schema(pattern = "^[0-7]{1,4}$")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveEntryBody {
    pub from: String,
    pub to: String,
}
