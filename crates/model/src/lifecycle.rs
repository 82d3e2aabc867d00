//! The life of a sandbox, as one table. `step` is the only code that changes a phase.
//!
//! ```text
//!            Ready                Stop             Stopped
//! Creating ───────► Running ───────────► Stopping ───────► Stopped
//!    │                ▲  │ Died                              │
//!    │ Failed         │  ▼                 Ready             │ Start
//!    └───────────► Failed ◄── Failed ── Starting ◄───────────┘
//!  every phase ── Delete ──► Deleting ── Deleted ──► Deleted
//! ```

use serde::{Deserialize, Serialize};

use crate::Phase;

/// What happened or is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The agent answered.
    Ready,
    /// The effect under way failed or was overdue.
    Failed,
    /// The instance ended without being asked to.
    Died,
    /// Somebody wants it stopped.
    Stop,
    /// Its processes are gone.
    Stopped,
    /// Somebody wants it running.
    Start,
    /// Somebody wants it gone.
    Delete,
    /// Nothing of it is left.
    Deleted,
}

impl Event {
    /// Every event, for tables and tests.
    pub const ALL: [Event; 8] = [
        Event::Ready,
        Event::Failed,
        Event::Died,
        Event::Stop,
        Event::Stopped,
        Event::Start,
        Event::Delete,
        Event::Deleted,
    ];
}

/// What the driver must now do at the provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// Nothing.
    None,
    /// Make a new instance on the sandbox's files.
    Boot,
    /// End the processes, keep the files.
    Halt,
    /// Remove everything.
    Destroy,
}

/// The table does not name this pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a sandbox that is {} cannot take {event:?}", phase.as_str())]
pub struct Refused {
    /// Where it was.
    pub phase: Phase,
    /// What came.
    pub event: Event,
}

use self::{Effect as X, Event as E};
use crate::Phase as P;

#[rustfmt::skip]
const TABLE: &[(Phase, Event, Phase, Effect)] = &[
    (P::Creating, E::Ready,   P::Running,  X::None),
    (P::Creating, E::Failed,  P::Failed,   X::Halt),
    (P::Creating, E::Died,    P::Failed,   X::Halt),
    (P::Creating, E::Delete,  P::Deleting, X::Destroy),
    (P::Running,  E::Stop,    P::Stopping, X::Halt),
    (P::Running,  E::Start,   P::Running,  X::None),
    (P::Running,  E::Died,    P::Failed,   X::Halt),
    (P::Running,  E::Delete,  P::Deleting, X::Destroy),
    (P::Stopping, E::Stopped, P::Stopped,  X::None),
    (P::Stopping, E::Stop,    P::Stopping, X::None),
    (P::Stopping, E::Died,    P::Stopping, X::None),
    (P::Stopping, E::Failed,  P::Failed,   X::Halt),
    (P::Stopping, E::Delete,  P::Deleting, X::Destroy),
    (P::Stopped,  E::Start,   P::Starting, X::Boot),
    (P::Stopped,  E::Stop,    P::Stopped,  X::None),
    (P::Stopped,  E::Delete,  P::Deleting, X::Destroy),
    (P::Starting, E::Ready,   P::Running,  X::None),
    (P::Starting, E::Start,   P::Starting, X::None),
    (P::Starting, E::Failed,  P::Failed,   X::Halt),
    (P::Starting, E::Died,    P::Failed,   X::Halt),
    (P::Starting, E::Delete,  P::Deleting, X::Destroy),
    (P::Failed,   E::Start,   P::Starting, X::Boot),
    (P::Failed,   E::Stop,    P::Stopped,  X::Halt),
    (P::Failed,   E::Delete,  P::Deleting, X::Destroy),
    (P::Deleting, E::Delete,  P::Deleting, X::None),
    (P::Deleting, E::Died,    P::Deleting, X::None),
    (P::Deleting, E::Failed,  P::Deleting, X::Destroy),
    (P::Deleting, E::Deleted, P::Deleted,  X::None),
    (P::Deleted,  E::Delete,  P::Deleted,  X::None),
];

/// The only place where a phase changes. What the table does not name is refused.
pub fn step(phase: Phase, event: Event) -> Result<(Phase, Effect), Refused> {
    TABLE
        .iter()
        .find(|row| (row.0, row.1) == (phase, event))
        .map(|row| (row.2, row.3))
        .ok_or(Refused { phase, event })
}

/// How long a passing phase may last before the driver ends it with [`Event::Failed`]; `None` for resting phases.
#[must_use]
pub const fn phase_deadline_ms(phase: Phase) -> Option<i64> {
    match phase {
        // LIMIT: a cold start takes milliseconds; a minute means that something is wrong.
        Phase::Creating | Phase::Starting => Some(60_000),
        Phase::Stopping => Some(30_000),
        // Deleting never gives up: at its deadline it is tried again.
        Phase::Deleting => Some(30_000),
        Phase::Running | Phase::Stopped | Phase::Deleted | Phase::Failed => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrix_is_as_reviewed() {
        let mut text = String::new();
        for phase in Phase::ALL {
            for event in Event::ALL {
                let cell = match step(phase, event) {
                    Ok((to, effect)) => format!("{} / {effect:?}", to.as_str()),
                    Err(_) => "refused".to_owned(),
                };
                text.push_str(&format!("{:<9} {:<8} {cell}\n", phase.as_str(), format!("{event:?}")));
            }
        }
        insta::assert_snapshot!(text);
    }

    #[test]
    fn no_pair_is_named_twice() {
        for (i, row) in TABLE.iter().enumerate() {
            assert!(!TABLE[i + 1..].iter().any(|r| (r.0, r.1) == (row.0, row.1)), "{row:?}");
        }
    }

    #[test]
    fn every_phase_can_reach_deleted() {
        for phase in Phase::ALL {
            let (next, _) = step(phase, Event::Delete).expect("delete is never refused");
            assert!(matches!(next, Phase::Deleting | Phase::Deleted));
        }
        assert_eq!(step(Phase::Deleting, Event::Deleted), Ok((Phase::Deleted, Effect::None)));
    }

    #[test]
    fn every_passing_phase_has_a_deadline_and_takes_failed() {
        for phase in Phase::ALL {
            if phase_deadline_ms(phase).is_some() {
                assert!(step(phase, Event::Failed).is_ok(), "{phase:?}");
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn random_events_never_leave_deleted(picks in proptest::collection::vec(0..Event::ALL.len(), 0..60)) {
            let mut phase = Phase::Creating;
            let mut was_deleted = false;
            for pick in picks {
                if let Ok((next, _)) = step(phase, Event::ALL[pick]) {
                    phase = next;
                }
                was_deleted |= phase == Phase::Deleted;
                proptest::prop_assert!(!was_deleted || phase == Phase::Deleted);
            }
        }
    }
}
