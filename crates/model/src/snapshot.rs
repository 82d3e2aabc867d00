//! A stored copy of a sandbox at one moment.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Limits, NetworkPolicy, NodeName, SandboxId, SnapshotId, TenantId, Timestamp};

/// The state of a snapshot.
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

const fn of_older_snapshots() -> bool {
    true
}

impl Snapshot {
    /// The name by which the tenant knows it without its sandbox, for interfaces that have only such names.
    #[must_use]
    pub fn tenant_wide_name(&self) -> Option<&str> {
        self.name.as_deref().filter(|_| self.tenant_wide)
    }
}

/// One row of `snapshots`: everything that a sandbox created from it needs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    pub id: SnapshotId,
    pub tenant: TenantId,
    /// The node that has its files.
    #[serde(default)]
    pub node: NodeName,
    /// The source sandbox, which may be gone by now.
    pub sandbox: SandboxId,
    /// The provider of that sandbox, which keeps the snapshot.
    pub provider: String,
    /// The name that the sandbox had when the snapshot was taken.
    #[serde(default)]
    pub sandbox_name: Option<String>,
    /// A name unique among the snapshots of the sandbox, or among those of the tenant: see `tenant_wide`.
    pub name: Option<String>,
    /// Whether the name is unique among all tenant-wide names of the tenant. Older snapshots have such names.
    #[serde(default = "of_older_snapshots")]
    pub tenant_wide: bool,
    /// Made for a fork: not listed, removed when the fork is done.
    pub transient: bool,
    /// The warm start of a template: not listed, removed with its version.
    #[serde(default)]
    pub warm: bool,
    pub state: SnapshotState,
    /// Whether it contains processes.
    pub memory: bool,
    /// The template of its sandbox.
    pub template: String,
    /// The exact version of the template.
    pub template_version: String,
    /// Environment without private values.
    pub env: BTreeMap<String, String>,
    /// The user that runs commands.
    pub user: String,
    /// The working directory of commands.
    pub workdir: String,
    /// Run at every boot.
    pub command: Option<Vec<String>>,
    /// The limits of its sandbox.
    pub limits: Limits,
    /// The network policy of its sandbox.
    #[serde(default)]
    pub network: NetworkPolicy,
    /// Its own bytes, as far as known.
    pub bytes: u64,
    /// Data for the provider's check that it is unchanged.
    pub seal: String,
    /// How long the sandbox was frozen for it, in microseconds.
    pub stood_still_us: u64,
    /// When it was taken.
    pub created_at: Timestamp,
}
