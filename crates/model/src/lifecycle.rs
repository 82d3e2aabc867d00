//! The lifecycle of a sandbox, as one table. `step` is the only code that changes a phase.
//!
//! ```text
//!            Ready                 Stop            Stopped            Archive            Archived
//! Creating ───────► Running ────────────► Stopping ───────► Stopped ────────► Archiving ────────► Archived
//!    │                ▲ ▲ │ Pause                            │  ▲                                    │
//!    │ Failed         │ │ └────► Pausing ──► Paused          │  └── Stopped ── Restoring ◄── Start ──┘
//!    ▼                │ └─ Ready ─ Resuming ◄─ Start ┘       │ Start               ▲
//!  Failed             └── Ready ── Starting ◄────────────────┘                     └── Rollback ── most
//!  every phase ── Delete ──► Deleting ── Deleted ──► Deleted
//! ```
//!
//! A creation has stages, in this order; if its image exists already, it begins with the last:
//!
//! ```text
//! Queued ──► Pulling, Building ──► Booting
//! ```

pub mod picture;
mod verb;

pub use verb::{PhaseSet, Verb};

use serde::{Deserialize, Serialize};

use crate::{Lease, Phase, Stage};

/// An observation or a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The agent answered.
    Ready,
    /// The current effect failed or exceeded its deadline.
    Failed,
    /// The instance ended unexpectedly.
    Died,
    /// A stop is requested.
    Stop,
    /// Its processes are gone.
    Stopped,
    /// A start is requested.
    Start,
    /// A pause is requested.
    Pause,
    /// Its processes are frozen.
    Paused,
    /// The memory of a paused sandbox is to be written to disk.
    Checkpoint,
    /// Archiving is requested.
    Archive,
    /// The files are in object storage.
    Archived,
    /// A rollback to a snapshot is requested.
    Rollback,
    /// The files are to be copied to another provider.
    Move,
    /// Deletion is requested.
    Delete,
    /// Everything of it is removed.
    Deleted,
}

impl Event {
    /// Every event, for tables and tests.
    pub const ALL: [Event; 15] = [
        Event::Ready,
        Event::Failed,
        Event::Died,
        Event::Stop,
        Event::Stopped,
        Event::Start,
        Event::Pause,
        Event::Paused,
        Event::Checkpoint,
        Event::Archive,
        Event::Archived,
        Event::Rollback,
        Event::Move,
        Event::Delete,
        Event::Deleted,
    ];
}

/// What the driver must do at the provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    None,
    /// Make a new instance on the sandbox's files.
    Boot,
    /// End the processes, keep the files.
    Halt,
    /// Freeze its processes; if the lease requests it, also write their memory to disk.
    Freeze,
    /// Write the memory of a frozen sandbox to disk.
    Checkpoint,
    /// Thaw it, or restore it from disk.
    Resume,
    /// Send its files to object storage.
    Archive,
    /// Restore its files from object storage, reset them to a snapshot, or copy them to another provider.
    Restore,
    /// Remove everything.
    Destroy,
}

/// The table has no row for this pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a sandbox that is {} cannot take {event:?}", phase.as_str())]
pub struct Refused {
    /// The current phase.
    pub phase: Phase,
    /// The refused event.
    pub event: Event,
}

use self::{Effect as X, Event as E};
use crate::Phase as P;

#[rustfmt::skip]
const TABLE: &[(Phase, Event, Phase, Effect)] = &[
    (P::Creating,  E::Ready,      P::Running,   X::None),
    (P::Creating,  E::Failed,     P::Failed,    X::Halt),
    (P::Creating,  E::Died,       P::Failed,    X::Halt),
    (P::Creating,  E::Delete,     P::Deleting,  X::Destroy),

    (P::Running,   E::Start,      P::Running,   X::None),
    (P::Running,   E::Pause,      P::Pausing,   X::Freeze),
    (P::Running,   E::Stop,       P::Stopping,  X::Halt),
    (P::Running,   E::Rollback,   P::Restoring, X::Restore),
    (P::Running,   E::Died,       P::Failed,    X::Halt),
    (P::Running,   E::Delete,     P::Deleting,  X::Destroy),

    // A start during a pause is stored as the intent: when the pause ends, the sandbox is resumed.
    (P::Pausing,   E::Paused,     P::Paused,    X::None),
    (P::Pausing,   E::Pause,      P::Pausing,   X::None),
    (P::Pausing,   E::Start,      P::Pausing,   X::None),
    (P::Pausing,   E::Failed,     P::Resuming,  X::Resume),
    (P::Pausing,   E::Stop,       P::Stopping,  X::Halt),
    (P::Pausing,   E::Died,       P::Failed,    X::Halt),
    (P::Pausing,   E::Delete,     P::Deleting,  X::Destroy),

    (P::Paused,    E::Pause,      P::Paused,    X::None),
    (P::Paused,    E::Paused,     P::Paused,    X::None),
    (P::Paused,    E::Checkpoint, P::Pausing,   X::Checkpoint),
    (P::Paused,    E::Start,      P::Resuming,  X::Resume),
    (P::Paused,    E::Stop,       P::Stopping,  X::Halt),
    (P::Paused,    E::Rollback,   P::Restoring, X::Restore),
    (P::Paused,    E::Died,       P::Failed,    X::Halt),
    (P::Paused,    E::Delete,     P::Deleting,  X::Destroy),

    // A sandbox that can't be resumed stays paused: nothing of it is lost.
    (P::Resuming,  E::Ready,      P::Running,   X::None),
    (P::Resuming,  E::Start,      P::Resuming,  X::None),
    (P::Resuming,  E::Failed,     P::Paused,    X::Freeze),
    (P::Resuming,  E::Stop,       P::Stopping,  X::Halt),
    (P::Resuming,  E::Died,       P::Failed,    X::Halt),
    (P::Resuming,  E::Delete,     P::Deleting,  X::Destroy),

    (P::Stopping,  E::Stopped,    P::Stopped,   X::None),
    (P::Stopping,  E::Stop,       P::Stopping,  X::None),
    (P::Stopping,  E::Died,       P::Stopping,  X::None),
    (P::Stopping,  E::Failed,     P::Failed,    X::Halt),
    (P::Stopping,  E::Delete,     P::Deleting,  X::Destroy),

    (P::Stopped,   E::Start,      P::Starting,  X::Boot),
    (P::Stopped,   E::Stop,       P::Stopped,   X::None),
    (P::Stopped,   E::Archive,    P::Archiving, X::Archive),
    (P::Stopped,   E::Rollback,   P::Restoring, X::Restore),
    (P::Stopped,   E::Move,       P::Restoring, X::Restore),
    (P::Stopped,   E::Delete,     P::Deleting,  X::Destroy),

    (P::Starting,  E::Ready,      P::Running,   X::None),
    (P::Starting,  E::Start,      P::Starting,  X::None),
    (P::Starting,  E::Failed,     P::Failed,    X::Halt),
    (P::Starting,  E::Died,       P::Failed,    X::Halt),
    (P::Starting,  E::Delete,     P::Deleting,  X::Destroy),

    // Its files stay in place until all of them are in object storage.
    (P::Archiving, E::Archived,   P::Archived,  X::None),
    (P::Archiving, E::Archive,    P::Archiving, X::None),
    (P::Archiving, E::Start,      P::Archiving, X::None),
    (P::Archiving, E::Stop,       P::Archiving, X::None),
    (P::Archiving, E::Failed,     P::Stopped,   X::None),
    (P::Archiving, E::Delete,     P::Deleting,  X::Destroy),

    (P::Archived,  E::Archive,    P::Archived,  X::None),
    (P::Archived,  E::Start,      P::Restoring, X::Restore),
    (P::Archived,  E::Delete,     P::Deleting,  X::Destroy),

    // The intent decides what follows: a stop, a start, or a resume if the snapshot has memory. A rollback that is
    // refused before it has changed anything leaves the sandbox running or paused as before.
    (P::Restoring, E::Ready,      P::Running,   X::None),
    (P::Restoring, E::Stopped,    P::Stopped,   X::None),
    (P::Restoring, E::Paused,     P::Paused,    X::None),
    (P::Restoring, E::Start,      P::Restoring, X::None),
    (P::Restoring, E::Stop,       P::Restoring, X::None),
    (P::Restoring, E::Failed,     P::Archived,  X::None),
    (P::Restoring, E::Died,       P::Restoring, X::None),
    (P::Restoring, E::Delete,     P::Deleting,  X::Destroy),

    (P::Failed,    E::Start,      P::Starting,  X::Boot),
    (P::Failed,    E::Stop,       P::Stopped,   X::Halt),
    (P::Failed,    E::Rollback,   P::Restoring, X::Restore),
    (P::Failed,    E::Delete,     P::Deleting,  X::Destroy),

    (P::Deleting,  E::Delete,     P::Deleting,  X::None),
    (P::Deleting,  E::Died,       P::Deleting,  X::None),
    (P::Deleting,  E::Failed,     P::Deleting,  X::Destroy),
    (P::Deleting,  E::Deleted,    P::Deleted,   X::None),
    (P::Deleted,   E::Delete,     P::Deleted,   X::None),
];

/// The only place where a phase changes. Pairs that are not in the table are refused.
pub fn step(phase: Phase, event: Event) -> Result<(Phase, Effect), Refused> {
    TABLE
        .iter()
        .find(|row| (row.0, row.1) == (phase, event))
        .map(|row| (row.2, row.3))
        .ok_or(Refused { phase, event })
}

/// Whether a creation may go from one stage to another.
#[must_use]
pub const fn stage_follows(from: Stage, to: Stage) -> bool {
    match (from, to) {
        (Stage::Queued, Stage::Pulling | Stage::Building | Stage::Booting)
        | (Stage::Pulling | Stage::Building, Stage::Booting) => true,
        (Stage::Queued | Stage::Pulling | Stage::Building, _) | (Stage::Booting, _) => false,
    }
}

// LIMIT: a build has its own deadline, and may be queued before that.
const IMAGE_WAIT_MS: i64 = 24 * 3_600_000;

/// As [`phase_deadline_ms`], for a lease: the wait for an image is longer than a boot.
#[must_use]
pub fn lease_deadline_ms(lease: &Lease) -> Option<i64> {
    if lease.waits_for_image() { Some(IMAGE_WAIT_MS) } else { phase_deadline_ms(lease.phase) }
}

/// How long a passing phase may last before the driver ends it with [`Event::Failed`]; `None` for resting phases.
#[must_use]
pub const fn phase_deadline_ms(phase: Phase) -> Option<i64> {
    match phase {
        // LIMIT: a cold start takes milliseconds; a minute indicates an error.
        Phase::Creating | Phase::Starting => Some(60_000),
        Phase::Stopping => Some(30_000),
        // LIMIT: writing or reading the memory of a sandbox; gigabytes on a slow disk.
        Phase::Pausing | Phase::Resuming => Some(180_000),
        // LIMIT: object storage at a few megabytes per second; a stalled transfer ends much earlier by itself.
        Phase::Archiving | Phase::Restoring => Some(6 * 3_600_000),
        // A deletion never gives up: at its deadline it is retried.
        Phase::Deleting => Some(30_000),
        Phase::Running
        | Phase::Paused
        | Phase::Stopped
        | Phase::Archived
        | Phase::Deleted
        | Phase::Failed => None,
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
                text.push_str(&format!("{:<9} {:<10} {cell}\n", phase.as_str(), format!("{event:?}")));
            }
        }
        insta::assert_snapshot!(text);
    }

    #[test]
    fn stages_only_go_forward_and_all_lead_to_the_boot() {
        use Stage::{Booting, Building, Pulling, Queued};
        let legal: Vec<(Stage, Stage)> = Stage::ALL
            .into_iter()
            .flat_map(|from| Stage::ALL.map(|to| (from, to)))
            .filter(|(from, to)| stage_follows(*from, *to))
            .collect();
        assert_eq!(
            legal,
            [
                (Queued, Pulling),
                (Queued, Building),
                (Queued, Booting),
                (Pulling, Booting),
                (Building, Booting)
            ]
        );
        for stage in Stage::ALL {
            assert_eq!(serde_json::to_string(&stage).expect("plain enum"), format!("{:?}", stage.as_str()));
        }
    }

    #[test]
    fn no_pair_is_named_twice() {
        for (i, row) in TABLE.iter().enumerate() {
            assert!(!TABLE[i + 1..].iter().any(|r| (r.0, r.1) == (row.0, row.1)), "{row:?}");
        }
    }

    #[test]
    fn every_phase_can_be_reached() {
        let mut seen = vec![Phase::Creating];
        for at in 0.. {
            let Some(phase) = seen.get(at).copied() else { break };
            for (next, _) in Event::ALL.iter().filter_map(|event| step(phase, *event).ok()) {
                if !seen.contains(&next) {
                    seen.push(next);
                }
            }
        }
        assert!(Phase::ALL.iter().all(|phase| seen.contains(phase)), "{seen:?}");
    }

    #[test]
    fn every_phase_can_reach_deleted() {
        for phase in Phase::ALL {
            let (next, effect) = step(phase, Event::Delete).expect("delete is never refused");
            // A deletion that is already under way is not repeated.
            let is_told = !matches!(phase, Phase::Deleting | Phase::Deleted);
            assert_eq!(effect, if is_told { Effect::Destroy } else { Effect::None }, "{phase:?}");
            assert_eq!(next, if phase == Phase::Deleted { Phase::Deleted } else { Phase::Deleting });
        }
        assert_eq!(step(Phase::Deleting, Event::Deleted), Ok((Phase::Deleted, Effect::None)));
    }

    #[test]
    fn resting_phases_are_these_and_all_others_have_a_deadline_and_take_failed() {
        let resting: Vec<_> = Phase::ALL.into_iter().filter(|p| phase_deadline_ms(*p).is_none()).collect();
        let named =
            [Phase::Running, Phase::Paused, Phase::Stopped, Phase::Archived, Phase::Deleted, Phase::Failed];
        assert_eq!(resting, named);
        for phase in Phase::ALL {
            assert_eq!(step(phase, Event::Failed).is_ok(), !named.contains(&phase), "{phase:?}");
        }
    }

    #[test]
    fn whoever_enters_a_passing_phase_has_something_to_do() {
        for (from, event, to, effect) in TABLE {
            let is_entered = from != to && phase_deadline_ms(*to).is_some();
            assert!(!is_entered || *effect != Effect::None, "{from:?} {event:?}");
        }
    }

    #[test]
    fn events_of_the_machine_are_taken_while_it_is_at_work() {
        // The end of an effect and the death of an instance may come at any time: they are accepted in every phase that
        // can have that effect or an instance.
        for phase in Phase::ALL.into_iter().filter(|phase| phase.has_instance()) {
            assert!(step(phase, Event::Died).is_ok(), "{phase:?}");
        }
        for (phase, end) in [
            (Phase::Creating, Event::Ready),
            (Phase::Starting, Event::Ready),
            (Phase::Resuming, Event::Ready),
            (Phase::Pausing, Event::Paused),
            (Phase::Stopping, Event::Stopped),
            (Phase::Archiving, Event::Archived),
            (Phase::Restoring, Event::Ready),
            (Phase::Restoring, Event::Stopped),
            (Phase::Restoring, Event::Paused),
            (Phase::Deleting, Event::Deleted),
        ] {
            let (next, effect) = step(phase, end).expect("an effect may end");
            assert!(phase_deadline_ms(next).is_none() && effect == Effect::None, "{phase:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn random_events_never_leave_deleted(picks in proptest::collection::vec(0..Event::ALL.len(), 0..80)) {
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

        /// From any random state, two events end the sandbox, and every passing phase ends by failures alone.
        #[test]
        fn every_walk_can_be_ended(picks in proptest::collection::vec(0..Event::ALL.len(), 0..80)) {
            let mut phase = Phase::Creating;
            for pick in picks {
                if let Ok((next, _)) = step(phase, Event::ALL[pick]) {
                    phase = next;
                }
            }
            let mut failing = phase;
            for _ in 0..3 {
                if failing != Phase::Deleting && phase_deadline_ms(failing).is_some() {
                    failing = step(failing, Event::Failed).expect("passing phases take it").0;
                }
            }
            proptest::prop_assert!(failing == Phase::Deleting || phase_deadline_ms(failing).is_none());
            let (next, _) = step(phase, Event::Delete).expect("delete is never refused");
            let last = step(next, Event::Deleted).map_or(next, |(last, _)| last);
            proptest::prop_assert_eq!(last, Phase::Deleted);
        }
    }
}
