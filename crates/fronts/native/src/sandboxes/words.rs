//! The closed words of a sandbox on the wire, each with one total map from the model.

use atoll_front_kit::ApiError;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Every word of the model that is on the wire, in one place.
mod model {
    pub(super) use atoll_model::policy::idle::AwakeReason;
    pub(super) use atoll_model::{
        Intent, MemoryLocation, OnExit, OnTimeout, Phase, SnapshotState, Stage, Storage, TimeoutCounts, Wake,
    };
}

/// Makes a wire enum and the maps to and from the model's, both total.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$word:meta])* $variant:ident,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
        #[serde(rename_all = "snake_case")]
        pub(crate) enum $name { $($(#[$word])* $variant,)* }

        impl From<model::$name> for $name {
            fn from(word: model::$name) -> Self {
                match word { $(model::$name::$variant => Self::$variant,)* }
            }
        }

        impl From<$name> for model::$name {
            fn from(word: $name) -> Self {
                match word { $($name::$variant => Self::$variant,)* }
            }
        }
    };
}

words! {
    /// What the sandbox is, as last observed.
    Phase {
        Creating, Running, Pausing, Paused, Resuming, Stopping, Stopped, Starting, Archiving, Archived, Restoring,
        Deleting, Deleted, Failed,
    }
}
words! {
    /// What the user wants the sandbox to be.
    Intent { Run, Pause, Stop, Archive, Delete, }
}
words! {
    /// How far a creation has come.
    Stage { Queued, Booting, }
}
words! {
    /// Where the memory of a paused sandbox is: `live` in memory with its processes frozen, `disk` written down and freed.
    MemoryLocation { Live, Disk, }
}
words! {
    /// What happens when the timeout passes.
    OnTimeout { Delete, Stop, Pause, }
}
words! {
    /// When a timeout counts: `always`, or only while `awake`, so that one that sleeps is not ended by it. Sandboxes that an
    /// E2B SDK made count only awake.
    TimeoutCounts { Always, Awake, }
}
words! {
    /// What happens when the server, or the thread it is bound to, ends in good order.
    OnExit { Keep, Pause, Destroy, }
}
words! {
    /// Who may wake a sandbox that is paused, stopped or archived: `any` request that needs it, or only `start` and `resume`.
    Wake { Any, Explicit, }
}
words! {
    /// Where the sandbox's own layer lives; `memory` is gone when it stops.
    Storage { Disk, Memory, }
}
words! {
    /// Why a sandbox is not idle: a request, terminal or command that somebody waits for, CPU above a floor, bytes sent, a
    /// hold from outside or from inside.
    AwakeReason { Request, Terminal, Command, Cpu, Network, Hold, HoldInside, }
}
words! {
    /// How far a snapshot is.
    SnapshotState { Making, Ready, Deleting, }
}

/// Why something happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Reason {
    code: ReasonCode,
    /// What the provider said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    message: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ReasonCode {
    Requested,
    Completed,
    TimedOut,
    /// Nothing worked in it for as long as its timers allow.
    Idle,
    /// It was stopped for as long as its timers allow.
    Aged,
    /// A request needed it.
    Woken,
    /// The server or the thread that it is bound to ended.
    Exit,
    Overdue,
    InstanceDied,
    LostWhileDown,
    Provider,
}

impl From<atoll_model::Reason> for Reason {
    fn from(reason: atoll_model::Reason) -> Self {
        use atoll_model::Reason as R;
        let (code, message) = match reason {
            R::Requested => (ReasonCode::Requested, None),
            R::Completed => (ReasonCode::Completed, None),
            R::TimedOut => (ReasonCode::TimedOut, None),
            R::Idle => (ReasonCode::Idle, None),
            R::Aged => (ReasonCode::Aged, None),
            R::Woken => (ReasonCode::Woken, None),
            R::Exit => (ReasonCode::Exit, None),
            R::Overdue => (ReasonCode::Overdue, None),
            R::InstanceDied => (ReasonCode::InstanceDied, None),
            R::LostWhileDown => (ReasonCode::LostWhileDown, None),
            R::Provider { message } => (ReasonCode::Provider, Some(message)),
        };
        Self { code, message }
    }
}

impl Phase {
    /// A phase as a filter writes it.
    pub(crate) fn parse(word: &str) -> Result<atoll_model::Phase, ApiError> {
        atoll_model::Phase::ALL.into_iter().find(|phase| phase.as_str() == word).ok_or_else(|| {
            let all: Vec<_> = atoll_model::Phase::ALL.iter().map(|phase| phase.as_str()).collect();
            ApiError::invalid(format!("phase {word:?} is not one of {}", all.join(", ")))
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_phase_is_written_as_the_model_says() {
        for phase in atoll_model::Phase::ALL {
            let wire = serde_json::to_value(Phase::from(phase)).unwrap();
            assert_eq!(wire, phase.as_str());
            assert_eq!(Phase::parse(phase.as_str()).unwrap(), phase);
        }
    }
}
