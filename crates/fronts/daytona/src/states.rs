//! How Daytona names phases: one total map, back again for filters, and from which states its verbs are refused.
//!
//! ```text
//! creating ─► started ◄─► pausing, paused, resuming
//!                │ ▲
//!        stopping▼ │starting
//!              stopped ─► archiving ─► archived ─► restoring ─► started
//! any ─► destroying ─► destroyed        what could not be made or kept alive: error
//! ```
//! `pending_build`, `building_snapshot` and `build_failed` are of sandboxes whose image is built first ([`crate::drafts`]).

use atoll_front_kit::ApiError;
use atoll_model::{Code, Intent, Phase};
use axum::http::StatusCode;

/// A state of Daytona's.
pub(crate) const fn state(phase: Phase) -> &'static str {
    match phase {
        Phase::Creating => "creating",
        Phase::Running => "started",
        Phase::Pausing => "pausing",
        Phase::Paused => "paused",
        Phase::Resuming => "resuming",
        Phase::Stopping => "stopping",
        Phase::Stopped => "stopped",
        Phase::Starting => "starting",
        Phase::Archiving => "archiving",
        Phase::Archived => "archived",
        Phase::Restoring => "restoring",
        Phase::Deleting => "destroying",
        Phase::Deleted => "destroyed",
        Phase::Failed => "error",
    }
}

/// The phases that a state means; empty where no sandbox of ours is ever in it.
pub(crate) fn phases(word: &str) -> Vec<Phase> {
    Phase::ALL.into_iter().filter(|phase| state(*phase) == word).collect()
}

/// Every state that the SDKs know.
pub(crate) const STATES: [&str; 22] = [
    "creating",
    "restoring",
    "destroyed",
    "destroying",
    "started",
    "stopped",
    "starting",
    "stopping",
    "error",
    "build_failed",
    "pending_build",
    "building_snapshot",
    "unknown",
    "pulling_snapshot",
    "archived",
    "archiving",
    "resizing",
    "snapshotting",
    "forking",
    "pausing",
    "paused",
    "resuming",
];

/// What is wanted, in Daytona's words.
pub(crate) const fn desired(intent: Intent) -> &'static str {
    match intent {
        Intent::Run => "started",
        Intent::Pause => "paused",
        Intent::Stop => "stopped",
        Intent::Archive => "archived",
        Intent::Delete => "destroyed",
    }
}

/// What somebody asks of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Start,
    Stop,
    Pause,
    Archive,
    Resize,
    Snapshot,
    Fork,
    Recover,
}

impl Verb {
    #[cfg(test)]
    const ALL: [Verb; 8] = [
        Verb::Start,
        Verb::Stop,
        Verb::Pause,
        Verb::Archive,
        Verb::Resize,
        Verb::Snapshot,
        Verb::Fork,
        Verb::Recover,
    ];

    const fn word(self) -> &'static str {
        match self {
            Self::Start => "started",
            Self::Stop => "stopped",
            Self::Pause => "paused",
            Self::Archive => "archived",
            Self::Resize => "resized",
            Self::Snapshot => "snapshotted",
            Self::Fork => "forked",
            Self::Recover => "recovered",
        }
    }

    /// From where it goes.
    const fn goes_from(self, phase: Phase) -> bool {
        match self {
            // A running one is left as it is.
            Self::Start => {
                matches!(
                    phase,
                    Phase::Running | Phase::Stopped | Phase::Archived | Phase::Archiving | Phase::Paused
                )
            }
            Self::Stop => matches!(phase, Phase::Running | Phase::Paused),
            Self::Pause | Self::Fork => matches!(phase, Phase::Running),
            Self::Archive => matches!(phase, Phase::Stopped),
            Self::Resize | Self::Snapshot => matches!(phase, Phase::Running | Phase::Stopped),
            Self::Recover => matches!(phase, Phase::Failed),
        }
    }
}

/// COMPAT(daytona): a state that does not allow a verb is a bad request, one that is on its way elsewhere a conflict. What
/// really may happen is decided by the lifecycle; this only says no in the vendor's words before it is asked.
pub(crate) fn check(verb: Verb, phase: Phase) -> Result<(), ApiError> {
    if verb.goes_from(phase) {
        return Ok(());
    }
    let (is, word) = (state(phase), verb.word());
    if is_passing(phase) {
        let message = format!("Sandbox is {is}: a state change is in progress, so it cannot be {word} now");
        return Err(ApiError::new(Code::PhaseConflict, message));
    }
    let message = match verb {
        Verb::Recover => format!("Sandbox is {is}, not in a recoverable error state"),
        _ => format!("Sandbox is {is}, which does not allow it to be {word}"),
    };
    Err(ApiError::new(Code::PhaseConflict, message).with_status(StatusCode::BAD_REQUEST))
}

const fn is_passing(phase: Phase) -> bool {
    match phase {
        Phase::Creating
        | Phase::Pausing
        | Phase::Resuming
        | Phase::Stopping
        | Phase::Starting
        | Phase::Archiving
        | Phase::Restoring
        | Phase::Deleting => true,
        Phase::Running
        | Phase::Paused
        | Phase::Stopped
        | Phase::Archived
        | Phase::Deleted
        | Phase::Failed => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_phase_has_a_state_that_the_sdks_know() {
        for phase in Phase::ALL {
            assert!(STATES.contains(&state(phase)), "{phase:?}");
            assert_eq!(phases(state(phase)), [phase]);
        }
        assert!(phases("resizing").is_empty());
        assert!(phases("nonsense").is_empty());
    }

    #[test]
    fn every_verb_goes_from_somewhere_and_says_why_not_elsewhere() {
        for verb in Verb::ALL {
            let mut goes = 0;
            for phase in Phase::ALL {
                match check(verb, phase) {
                    Ok(()) => goes += 1,
                    Err(error) => {
                        let wanted = if is_passing(phase) { 409 } else { 400 };
                        assert_eq!(error.status().as_u16(), wanted, "{verb:?} from {phase:?}");
                        assert!(error.message.contains(state(phase)), "{}", error.message);
                    }
                }
            }
            assert!(goes > 0, "{verb:?}");
        }
    }

    #[test]
    fn the_refusals_that_the_vendors_users_know() {
        for (verb, phase, wanted) in [
            (Verb::Stop, Phase::Stopped, 400),
            (Verb::Stop, Phase::Stopping, 409),
            (Verb::Start, Phase::Failed, 400),
            (Verb::Start, Phase::Stopping, 409),
            (Verb::Archive, Phase::Running, 400),
            (Verb::Pause, Phase::Stopped, 400),
            (Verb::Fork, Phase::Stopped, 400),
            (Verb::Recover, Phase::Running, 400),
        ] {
            assert_eq!(
                check(verb, phase).err().map(|e| e.status().as_u16()),
                Some(wanted),
                "{verb:?} {phase:?}"
            );
        }
        assert!(check(Verb::Start, Phase::Running).is_ok());
    }
}
