//! Leap0's names of phases: one complete map, and its inverse for filters.
//!
//! Seven states are in the SDK's own list. `stopping` and `stopped` are in the vendor's documentation, and the SDK
//! passes them through as plain words; they also stand for a sandbox that has only its files, wherever these are
//! stored.

use atoll_model::Phase;
use atoll_model::lifecycle::{PhaseSet, Verb};
use atoll_service::RefusedVerb;

/// The phases from which Leap0 starts a sandbox.
pub(crate) const STARTED_FROM: PhaseSet = PhaseSet::of(&[Phase::Stopped, Phase::Archived, Phase::Failed]);

/// How Leap0 refuses a verb, where it has words of its own.
pub(crate) fn refusal(refused: &RefusedVerb) -> Option<String> {
    let RefusedVerb { verb, lease } = refused;
    (*verb == Verb::Start).then(|| format!("sandbox {} is {}, not stopped", lease.id, state(lease.phase)))
}

/// A state of Leap0.
pub(crate) const fn state(phase: Phase) -> &'static str {
    match phase {
        Phase::Creating | Phase::Starting | Phase::Restoring => "starting",
        Phase::Running => "running",
        // Its memory is being captured.
        Phase::Pausing => "snapshotting",
        Phase::Paused => "paused",
        Phase::Resuming => "unpausing",
        Phase::Stopping | Phase::Archiving => "stopping",
        // A failed sandbox keeps its files and can be started, like a stopped one.
        Phase::Stopped | Phase::Archived | Phase::Failed => "stopped",
        Phase::Deleting => "deleting",
        Phase::Deleted => "deleted",
    }
}

/// The phases that a state includes; empty if the word is not a state.
pub(crate) fn phases(word: &str) -> Vec<Phase> {
    Phase::ALL.into_iter().filter(|phase| state(*phase) == word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_phase_has_a_state_and_every_state_its_phases() {
        let known = [
            "starting",
            "snapshotting",
            "running",
            "paused",
            "unpausing",
            "deleting",
            "deleted",
            "stopping",
            "stopped",
        ];
        for phase in Phase::ALL {
            assert!(known.contains(&state(phase)), "{phase:?}");
        }
        for word in known {
            let back = phases(word);
            assert!(!back.is_empty() && back.iter().all(|phase| state(*phase) == word), "{word}");
        }
        assert_eq!(known.iter().map(|word| phases(word).len()).sum::<usize>(), Phase::ALL.len());
        assert!(phases("nonsense").is_empty());
    }
}
