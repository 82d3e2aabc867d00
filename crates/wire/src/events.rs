//! What happened to sandboxes.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::flag::Flag;
use crate::sandboxes::{CreatorKey, QueuePlace};
use crate::words::{Phase, Reason, Stage};

/// An event of a sandbox.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Sequence number of the event; send it as `after`.
    pub seq: u64,
    pub tenant: String,
    pub sandbox: String,
    pub instance: Option<String>,
    #[schema(format = DateTime)]
    pub at: String,
    /// The key of the request that caused it. Null: the server by itself, or a key of another tenant.
    #[serde(default)]
    pub by: Option<CreatorKey>,
    #[serde(flatten)]
    pub what: EventKind,
}

/// What happened.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[schema(as = What)]
pub enum EventKind {
    /// The phase changed.
    Phase { from: Option<Phase>, to: Phase, reason: Reason },
    /// A create has come further: its image is pulled or built, or it boots.
    Stage { stage: Stage },
    /// It waits in the queue of a full server. Sent when it is queued, and each time that at most half as many creates are
    /// ahead as in the event before.
    Queued { queue: QueuePlace },
    /// A process inside was ended because memory ran out.
    OutOfMemory,
    /// A snapshot was taken of it.
    Snapshotted {
        snapshot: String,
        /// Whether its processes are included.
        memory: bool,
    },
    /// Copies of the sandbox were created.
    Forked { children: Vec<String> },
    /// Its memory was written to disk while it was paused, or could not be.
    Checkpointed {
        /// The error; the sandbox stays frozen with its memory.
        failure: Option<String>,
    },
    /// The sandbox was moved to another provider, or that failed.
    Moved {
        from: String,
        to: String,
        /// The error; the sandbox stayed where it was.
        failure: Option<String>,
    },
    /// Labels, limits, timers, timeout or network policy were changed.
    Updated { fields: Vec<String> },
    /// A kind of a newer server.
    #[serde(other, skip_serializing)]
    Unknown,
}

impl EventKind {
    /// The name of the server-sent event.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Phase { .. } => "phase",
            Self::Stage { .. } => "stage",
            Self::Queued { .. } => "queued",
            Self::OutOfMemory => "out_of_memory",
            Self::Snapshotted { .. } => "snapshotted",
            Self::Forked { .. } => "forked",
            Self::Checkpointed { .. } => "checkpointed",
            Self::Moved { .. } => "moved",
            Self::Updated { .. } => "updated",
            Self::Unknown => "unknown",
        }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct EventList {
    /// Oldest first.
    pub items: Vec<Event>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct EventsQuery {
    /// Only events of this sandbox: id, unique prefix of an id, or name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// Only events after this `seq`; 0 begins with the oldest stored event. Without it the newest ones are returned, and
    /// following begins with new events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// Maximum number of results, at most 500; default 100. Ignored when following.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// `1`: server-sent events, first the stored ones, then new ones.
    #[param(value_type = Option<String>, pattern = "^(0|1|true|false)$")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub follow: Option<Flag>,
}
