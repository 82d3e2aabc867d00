//! Events of a sandbox, in order, with their reasons.

use serde::{Deserialize, Serialize};

use crate::{
    CreatorKey, InstanceId, Phase, QueuePlace, Reason, SandboxId, SnapshotId, Stage, TenantId, Timestamp,
};

/// The kind of an event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum EventKind {
    /// The phase changed.
    Phase { from: Option<Phase>, to: Phase, reason: Reason },
    /// A creation reached another stage.
    Stage { stage: Stage },
    /// It waits in the queue of a full node. Recorded when it is queued, and when at most half as many creates are ahead
    /// as in the event before.
    Queued { place: QueuePlace },
    /// The OOM killer ended a process in the sandbox.
    OutOfMemory,
    /// A snapshot was taken.
    Snapshotted {
        snapshot: SnapshotId,
        /// Whether it contains processes.
        memory: bool,
    },
    /// Sandboxes were forked from this one.
    Forked { children: Vec<SandboxId> },
    /// The memory was written to disk, or that failed.
    Checkpointed {
        /// The error; the sandbox is still paused with its memory in place.
        failure: Option<String>,
    },
    /// It was moved to another provider, or that failed.
    Moved {
        from: String,
        to: String,
        /// The error; the sandbox stayed where it was.
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
    pub tenant: TenantId,
    pub sandbox: SandboxId,
    /// The instance, if there was one.
    pub instance: Option<InstanceId>,
    pub at: Timestamp,
    /// The key of the request that caused it. `None`: the server did by itself, or a key of another tenant.
    #[serde(default)]
    pub by: Option<CreatorKey>,
    #[serde(flatten)]
    pub what: EventKind,
}
