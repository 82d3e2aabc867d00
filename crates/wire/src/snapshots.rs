//! Snapshots of sandboxes.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::network::{self, Network};
use crate::words::SnapshotState;

const fn of_older_servers() -> bool {
    true
}

/// A snapshot of a sandbox.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    pub id: String,
    /// Unique among the snapshots of its sandbox, or among those of the tenant if `tenant_wide` is true.
    pub name: Option<String>,
    /// Whether the name is unique within the tenant. Snapshots of older servers have such names.
    #[serde(default = "of_older_servers")]
    #[schema(required = true)]
    pub tenant_wide: bool,
    /// Name that the sandbox had when the snapshot was taken.
    #[serde(default)]
    pub sandbox_name: Option<String>,
    /// The tenant's id.
    pub tenant: String,
    /// Node that has its files.
    #[serde(default)]
    pub node: String,
    /// Sandbox that the snapshot was taken of; it may be deleted.
    pub sandbox: String,
    /// Provider that keeps the snapshot; sandboxes that are created from it live there.
    pub provider: String,
    pub state: SnapshotState,
    /// Whether the snapshot contains processes.
    pub memory: bool,
    pub template: String,
    pub template_version: String,
    /// Names of environment variables, without private ones; values are never shown.
    pub env_names: Vec<String>,
    pub user: String,
    pub workdir: String,
    pub command: Option<Vec<String>>,
    /// CPU limit of its sandbox in cores.
    pub cpu: f64,
    pub memory_mib: u32,
    pub disk_mib: u32,
    pub pids: u32,
    /// Network policy of its sandbox, and the default of sandboxes that are created from it.
    #[serde(deserialize_with = "network::from_answer")]
    pub network: Network,
    /// Size in bytes, if known.
    pub bytes: u64,
    /// Time in microseconds for which the sandbox was frozen.
    pub stood_still_us: u64,
    #[schema(format = DateTime)]
    pub created_at: String,
}

/// One page of snapshots, newest first.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SnapshotPage {
    pub items: Vec<Snapshot>,
    /// Send it as `cursor` to get the next page; null on the last page.
    pub next_cursor: Option<String>,
}

/// Request to take a snapshot. May be absent.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SnapshotBody {
    /// Unique among the snapshots of the sandbox: letters, digits, `-`, `_`, `.`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Make the name unique within the tenant instead, so that it needs no sandbox before it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub tenant_wide: bool,
    /// Include its processes; the error is `unsupported` if that is not possible.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub memory: bool,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct SnapshotsQuery {
    /// Only snapshots of this sandbox: id, unique prefix of an id, or name. Use the whole id for a deleted sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// Only the sandbox with exactly this name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Maximum number of results.
    #[param(value_type = Option<u32>, minimum = 1)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<NonZeroU32>,
    /// `next_cursor` of the previous page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}
