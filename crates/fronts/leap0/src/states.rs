//! How Leap0 names phases: one total map, and back again for filters.
//!
//! Seven states are in the SDK's own list. `stopping` and `stopped` are in the vendor's documentation and pass through the
//! SDK as plain words; a sandbox whose files alone are left is one of those, wherever the files lie.

use atoll_model::Phase;

/// A state of Leap0's.
pub(crate) const fn state(phase: Phase) -> &'static str {
    match phase {
        Phase::Creating | Phase::Starting | Phase::Restoring => "starting",
        Phase::Running => "running",
        // Its memory is being captured.
        Phase::Pausing => "snapshotting",
        Phase::Paused => "paused",
        Phase::Resuming => "unpausing",
        Phase::Stopping | Phase::Archiving => "stopping",
        // A failed one keeps its files and can be started, as a stopped one can.
        Phase::Stopped | Phase::Archived | Phase::Failed => "stopped",
        Phase::Deleting => "deleting",
        Phase::Deleted => "deleted",
    }
}

/// The phases that a state means; empty when it is no state.
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
