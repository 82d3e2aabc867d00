//! Snapshots of sandboxes.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::network::{self, Network};
use crate::words::SnapshotState;

/// A sandbox at a moment.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    pub id: String,
    /// Unique among the tenant's snapshots.
    pub name: Option<String>,
    /// The tenant's id.
    pub tenant: String,
    /// The sandbox that it was taken of; that one may be gone by now.
    pub sandbox: String,
    pub state: SnapshotState,
    /// Whether it holds processes too.
    pub memory: bool,
    pub template: String,
    pub template_version: String,
    /// Names of the environment's variables, without what is private; values are never shown.
    pub env_names: Vec<String>,
    pub user: String,
    pub workdir: String,
    pub command: Option<Vec<String>>,
    /// Cores that its sandbox might use.
    pub cpu: f64,
    pub memory_mib: u32,
    pub disk_mib: u32,
    pub pids: u32,
    /// What its sandbox might reach; so may one that is made from it, unless it says otherwise.
    #[serde(deserialize_with = "network::from_answer")]
    pub network: Network,
    /// Bytes of its own, as far as known.
    pub bytes: u64,
    /// How long the sandbox stood still for it, in microseconds.
    pub stood_still_us: u64,
    #[schema(format = DateTime)]
    pub created_at: String,
}

/// One page of snapshots, newest first.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SnapshotPage {
    pub items: Vec<Snapshot>,
    /// Hand it in as `cursor` for the next page; null: that was all.
    pub next_cursor: Option<String>,
}

/// What to keep. May be absent.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SnapshotBody {
    /// Unique among the tenant's snapshots: letters, digits, `-`, `_`, `.`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its processes too; `unsupported` where that cannot be had.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub memory: bool,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct SnapshotsQuery {
    /// Only of this sandbox: id, unique prefix of an id, or name. One that is gone goes by its whole id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// Exactly this name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// At most this many.
    #[param(value_type = Option<u32>, minimum = 1)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<NonZeroU32>,
    /// `next_cursor` of the page before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}
