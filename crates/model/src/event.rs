//! What happened to a sandbox, in order, with the reason.

use serde::{Deserialize, Serialize};

use crate::{InstanceId, Phase, Reason, SandboxId, SnapshotId, Stage, TenantId, Timestamp};

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum EventKind {
    /// The phase changed.
    Phase { from: Option<Phase>, to: Phase, reason: Reason },
    /// The creation has come further.
    Stage { stage: Stage },
    /// A process inside was ended because memory ran out.
    OutOfMemory,
    /// A snapshot was taken of it.
    Snapshotted {
        snapshot: SnapshotId,
        /// Its processes too.
        memory: bool,
    },
    /// Sandboxes were forked from it.
    Forked { children: Vec<SandboxId> },
    /// Its memory was written to disk, or could not be.
    Checkpointed {
        /// What went wrong; it stands still with its memory as before.
        failure: Option<String>,
    },
    /// Labels, limits, timeout or network policy were changed.
    Updated {
        /// The names of the changed fields.
        fields: Vec<String>,
    },
}

/// One entry of the events table; `seq` orders all events of a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxEvent {
    /// Order and cursor.
    pub seq: u64,
    /// Whose.
    pub tenant: TenantId,
    /// Of which sandbox.
    pub sandbox: SandboxId,
    /// In which incarnation, where there was one.
    pub instance: Option<InstanceId>,
    /// When.
    pub at: Timestamp,
    #[serde(flatten)]
    pub what: EventKind,
}
