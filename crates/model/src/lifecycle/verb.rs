//! What can be asked of a sandbox, and the phases that each verb accepts. The driver checks them together with the phases
//! that the caller expects, so that a caller never has to look first.

use crate::Phase;
use crate::Phase as P;

/// A set of phases.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PhaseSet(u16);

impl PhaseSet {
    /// Every phase.
    pub const ALL: Self = Self::of(&Phase::ALL);
    /// Every phase of a sandbox that is neither deleted nor being deleted.
    pub const LIVE: Self = Self::ALL.without(Self::of(&[P::Deleting, P::Deleted]));
    /// The phases of [`Self::LIVE`] that a sandbox leaves only by a verb, a timer or the death of its processes.
    pub const RESTING: Self = Self::of(&[P::Running, P::Paused, P::Stopped, P::Archived, P::Failed]);

    /// These phases.
    #[must_use]
    pub const fn of(phases: &[Phase]) -> Self {
        let (mut bits, mut at) = (0, 0);
        while at < phases.len() {
            bits |= 1 << phases[at] as u16;
            at += 1;
        }
        Self(bits)
    }

    /// The phases of either set.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The phases of this set that are not in the other.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether a phase is one of them.
    #[must_use]
    pub const fn contains(self, phase: Phase) -> bool {
        self.0 & (1 << phase as u16) != 0
    }

    /// Its phases, in the order of [`Phase::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Phase> {
        Phase::ALL.into_iter().filter(move |phase| self.contains(*phase))
    }
}

impl FromIterator<Phase> for PhaseSet {
    fn from_iter<T: IntoIterator<Item = Phase>>(phases: T) -> Self {
        phases.into_iter().fold(Self(0), |set, phase| set.or(Self::of(&[phase])))
    }
}

impl std::fmt::Debug for PhaseSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// What can be asked of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Run: boot, resume or restore.
    Start,
    /// Run, also where it is being made or stopped at the moment.
    Wake,
    /// Run again after a failure, from the files that are left.
    Recover,
    /// End its processes and keep its files.
    Stop,
    /// Stop, then start.
    Restart,
    /// Freeze its processes and keep their memory.
    Pause,
    /// Move its files to object storage.
    Archive,
    /// Bring its files back from object storage.
    Restore,
    /// Put it back to one of its snapshots.
    Rollback,
    /// Bring it to another provider.
    Move,
    /// Keep a copy of it.
    Snapshot,
    /// Make other sandboxes from it.
    Fork,
    /// Change its limits as those of a machine.
    Resize,
    /// Change a setting.
    Update,
    /// Remove it.
    Delete,
}

const START: PhaseSet = PhaseSet::of(&[
    P::Running,
    P::Pausing,
    P::Paused,
    P::Resuming,
    P::Stopped,
    P::Starting,
    P::Archiving,
    P::Archived,
    P::Restoring,
    P::Failed,
]);
const HAS_PROCESSES: PhaseSet = PhaseSet::of(&[P::Running, P::Pausing, P::Paused, P::Resuming, P::Stopping]);
const STOP: PhaseSet = HAS_PROCESSES.or(PhaseSet::of(&[P::Stopped, P::Archiving, P::Restoring, P::Failed]));

impl Verb {
    /// Every verb, for tables and tests.
    pub const ALL: [Verb; 15] = [
        Verb::Start,
        Verb::Wake,
        Verb::Recover,
        Verb::Stop,
        Verb::Restart,
        Verb::Pause,
        Verb::Archive,
        Verb::Restore,
        Verb::Rollback,
        Verb::Move,
        Verb::Snapshot,
        Verb::Fork,
        Verb::Resize,
        Verb::Update,
        Verb::Delete,
    ];

    /// The verb as errors name it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Wake => "wake",
            Self::Recover => "recover",
            Self::Stop => "stop",
            Self::Restart => "restart",
            Self::Pause => "pause",
            Self::Archive => "archive",
            Self::Restore => "restore",
            Self::Rollback => "rollback",
            Self::Move => "move",
            Self::Snapshot => "snapshot",
            Self::Fork => "fork",
            Self::Resize => "resize",
            Self::Update => "update",
            Self::Delete => "delete",
        }
    }

    /// The phases in which it is accepted. A verb that asks for what is there already is accepted and changes nothing.
    #[must_use]
    pub const fn accepts(self) -> PhaseSet {
        match self {
            Self::Start => START,
            Self::Wake => START.or(PhaseSet::of(&[P::Creating, P::Stopping])),
            Self::Recover => PhaseSet::of(&[P::Failed]),
            Self::Stop => STOP,
            Self::Restart => STOP.or(PhaseSet::of(&[P::Archived])),
            Self::Pause => PhaseSet::of(&[P::Running, P::Pausing, P::Paused]),
            Self::Archive => HAS_PROCESSES.or(PhaseSet::of(&[P::Stopped, P::Archiving, P::Archived])),
            Self::Restore => PhaseSet::of(&[P::Stopped, P::Archived, P::Restoring]),
            Self::Rollback => PhaseSet::of(&[P::Running, P::Paused, P::Stopped, P::Failed]),
            Self::Move | Self::Snapshot | Self::Fork => PhaseSet::of(&[P::Running, P::Paused, P::Stopped]),
            Self::Resize => PhaseSet::of(&[P::Running, P::Stopped]),
            Self::Update => PhaseSet::LIVE,
            Self::Delete => PhaseSet::ALL,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::{Event, phase_deadline_ms, step};

    #[test]
    fn a_set_has_the_phases_that_it_was_made_of() {
        let set = PhaseSet::of(&[P::Stopped, P::Running]);
        assert_eq!(set.iter().collect::<Vec<_>>(), [P::Running, P::Stopped]);
        assert_eq!(set.iter().collect::<PhaseSet>(), set);
        assert!(Phase::ALL.into_iter().all(|phase| PhaseSet::ALL.contains(phase)));
        assert!(!PhaseSet::LIVE.contains(P::Deleting) && PhaseSet::LIVE.contains(P::Failed));
        let resting = PhaseSet::LIVE.iter().filter(|phase| phase_deadline_ms(*phase).is_none());
        assert_eq!(resting.collect::<PhaseSet>(), PhaseSet::RESTING);
    }

    /// The events that a verb may begin with; the driver chooses by the phase.
    fn events(verb: Verb) -> &'static [Event] {
        match verb {
            Verb::Start | Verb::Recover => &[Event::Start],
            Verb::Wake | Verb::Restart => &[Event::Start, Event::Stop],
            Verb::Stop => &[Event::Stop],
            Verb::Pause => &[Event::Pause],
            Verb::Archive => &[Event::Archive, Event::Stop],
            Verb::Move => &[Event::Move, Event::Stop],
            Verb::Rollback => &[Event::Rollback],
            Verb::Delete => &[Event::Delete],
            Verb::Restore | Verb::Snapshot | Verb::Fork | Verb::Resize | Verb::Update => &[],
        }
    }

    #[test]
    fn a_verb_is_accepted_where_the_table_of_transitions_takes_its_event() {
        for verb in Verb::ALL {
            for phase in verb.accepts().iter() {
                let taken = events(verb).iter().any(|event| step(phase, *event).is_ok());
                let changes_nothing = events(verb).is_empty() || (verb, phase) == (Verb::Wake, P::Creating);
                assert!(taken || changes_nothing, "{verb:?} in {phase:?}");
            }
        }
        for (verb, event) in [
            (Verb::Start, Event::Start),
            (Verb::Stop, Event::Stop),
            (Verb::Pause, Event::Pause),
            (Verb::Rollback, Event::Rollback),
            (Verb::Delete, Event::Delete),
        ] {
            let taken = Phase::ALL.into_iter().filter(|phase| step(*phase, event).is_ok());
            assert_eq!(taken.collect::<PhaseSet>(), verb.accepts(), "{verb:?}");
        }
    }
}
