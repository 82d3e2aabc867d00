//! E2B's names of phases: E2B has two states, and a sandbox in neither of them is reported as missing. There is one
//! complete map, and its inverse for filters.

use atoll_model::{Lease, Phase};

/// A state of E2B.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SandboxState {
    Running,
    Paused,
}

impl SandboxState {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
        }
    }

    pub(crate) fn parse(word: &str) -> Option<Self> {
        [Self::Running, Self::Paused].into_iter().find(|state| state.as_str() == word)
    }

    /// The phases that it means.
    pub(crate) fn phases(self) -> impl Iterator<Item = Phase> {
        Phase::ALL.into_iter().filter(move |phase| state(*phase) == Some(self))
    }
}

/// The state of a phase; `None` if the sandbox does not exist for E2B.
pub(crate) const fn state(phase: Phase) -> Option<SandboxState> {
    match phase {
        Phase::Creating | Phase::Running | Phase::Resuming | Phase::Starting => Some(SandboxState::Running),
        // A failed sandbox keeps its files: a connect starts it again, like one that was paused without memory.
        Phase::Pausing
        | Phase::Paused
        | Phase::Stopping
        | Phase::Stopped
        | Phase::Archiving
        | Phase::Archived
        | Phase::Restoring
        | Phase::Failed => Some(SandboxState::Paused),
        Phase::Deleting | Phase::Deleted => None,
    }
}

/// What a pause kept, once it is over.
pub(crate) const fn pause_mode(lease: &Lease) -> Option<&'static str> {
    match lease.phase {
        Phase::Paused => Some("full"),
        Phase::Stopped | Phase::Archived | Phase::Failed => Some("filesystem"),
        Phase::Creating
        | Phase::Running
        | Phase::Pausing
        | Phase::Resuming
        | Phase::Stopping
        | Phase::Starting
        | Phase::Archiving
        | Phase::Restoring
        | Phase::Deleting
        | Phase::Deleted => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_phase_but_the_last_ones_has_a_state_and_every_state_its_phases() {
        for phase in Phase::ALL {
            let is_gone = matches!(phase, Phase::Deleting | Phase::Deleted);
            assert_eq!(state(phase).is_none(), is_gone, "{phase:?}");
        }
        for one in [SandboxState::Running, SandboxState::Paused] {
            assert_eq!(SandboxState::parse(one.as_str()), Some(one));
            assert!(one.phases().all(|phase| state(phase) == Some(one)));
        }
        let named = SandboxState::Running.phases().count() + SandboxState::Paused.phases().count();
        assert_eq!(named, Phase::ALL.len() - 2);
        assert_eq!(SandboxState::parse("killed"), None);
    }
}
