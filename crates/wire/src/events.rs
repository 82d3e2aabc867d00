//! What happened to sandboxes.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::flag::Flag;
use crate::words::{Phase, Reason};

/// Something that happened to a sandbox.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Orders all events of a server; hand it in as `after`.
    pub seq: u64,
    pub tenant: String,
    pub sandbox: String,
    pub instance: Option<String>,
    #[schema(format = DateTime)]
    pub at: String,
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
    /// A process inside was ended because memory ran out.
    OutOfMemory,
    /// A snapshot was taken of it.
    Snapshotted {
        snapshot: String,
        /// Its processes too.
        memory: bool,
    },
    /// Sandboxes were forked from it.
    Forked { children: Vec<String> },
    /// Its memory was written to disk while it was paused, or could not be.
    Checkpointed {
        /// What went wrong; it stands still with its memory as before.
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
            Self::OutOfMemory => "out_of_memory",
            Self::Snapshotted { .. } => "snapshotted",
            Self::Forked { .. } => "forked",
            Self::Checkpointed { .. } => "checkpointed",
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
    /// Only of this sandbox: id, unique prefix of an id, or name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// Only those after this `seq`; 0 begins with the oldest kept. Without it a follower sees what comes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// At most this many; not when following.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// `1`: server-sent events, replay first, then live.
    #[param(value_type = Option<String>, pattern = "^(0|1|true|false)$")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub follow: Option<Flag>,
}
