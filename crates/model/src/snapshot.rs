//! A sandbox at a moment, kept under a name.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Limits, NetworkPolicy, SandboxId, SnapshotId, TenantId, Timestamp};

/// How far a snapshot is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SnapshotState {
    /// It is being made; after a crash it is removed.
    Making,
    /// It can be used.
    Ready,
    /// It is being removed.
    Deleting,
}

/// One row of `snapshots`: everything that a sandbox made from it needs to know.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Its id.
    pub id: SnapshotId,
    /// Its owner.
    pub tenant: TenantId,
    /// The sandbox that it was taken of; that one may be gone by now.
    pub sandbox: SandboxId,
    /// A name unique among the tenant's snapshots.
    pub name: Option<String>,
    /// Made for a fork: not listed, removed when the fork is done.
    pub transient: bool,
    /// The ready start of a template: not listed, removed with the version that it belongs to.
    #[serde(default)]
    pub warm: bool,
    /// How far it is.
    pub state: SnapshotState,
    /// Whether it holds processes too.
    pub memory: bool,
    /// Its sandbox's template.
    pub template: String,
    /// Exactly which version of it.
    pub template_version: String,
    /// Environment without what is private.
    pub env: BTreeMap<String, String>,
    /// Who commands run as.
    pub user: String,
    /// Where commands start.
    pub workdir: String,
    /// Run at every boot.
    pub command: Option<Vec<String>>,
    /// What its sandbox might use.
    pub limits: Limits,
    /// What its sandbox might reach.
    #[serde(default)]
    pub network: NetworkPolicy,
    /// Bytes of its own, as far as known.
    pub bytes: u64,
    /// What the provider needs to tell whether it is whole.
    pub seal: String,
    /// How long the sandbox stood still for it, in microseconds.
    pub stood_still_us: u64,
    /// When it was taken.
    pub created_at: Timestamp,
}
