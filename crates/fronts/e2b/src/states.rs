//! E2B's names of phases: E2B has two states, and a sandbox in neither of them is reported as missing. There is one
//! complete map, and its inverse for filters.

use atoll_model::lifecycle::{PhaseSet, Verb};
use atoll_model::{Lease, Phase};
use atoll_service::RefusedVerb;
use axum::http::StatusCode;

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
    pub(crate) fn phases(self) -> PhaseSet {
        Phase::ALL.into_iter().filter(|phase| state(*phase) == Some(self)).collect()
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

/// The state of a sandbox. COMPAT(e2b): one that waits for its place or its image is not there yet; a create there answers
/// when the sandbox runs.
pub(crate) fn state_of(lease: &Lease) -> Option<SandboxState> {
    if lease.waits_to_boot() { None } else { state(lease.phase) }
}

/// What a complete pause has kept.
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

/// COMPAT(e2b): a sandbox that is just being removed is not there, and no conflict: an SDK takes a conflict for a sandbox
/// that is paused already. `None`: as the core says it.
pub(crate) fn refusal(refused: &RefusedVerb) -> Option<(StatusCode, String)> {
    let RefusedVerb { verb, lease } = refused;
    match (verb, state(lease.phase)) {
        (_, None) => Some((StatusCode::NOT_FOUND, no_sandbox(lease.id.as_str()))),
        (Verb::Pause | Verb::Stop, Some(SandboxState::Paused)) => {
            Some((StatusCode::CONFLICT, format!("sandbox {} is paused already", lease.id)))
        }
        (Verb::Wake, Some(SandboxState::Running)) => {
            Some((StatusCode::CONFLICT, format!("sandbox {} runs already", lease.id)))
        }
        _ => None,
    }
}

pub(crate) fn no_sandbox(ident: &str) -> String {
    format!("there is no sandbox {ident}")
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
            assert!(one.phases().iter().all(|phase| state(phase) == Some(one)));
        }
        let named =
            SandboxState::Running.phases().iter().count() + SandboxState::Paused.phases().iter().count();
        assert_eq!(named, Phase::ALL.len() - 2);
        assert_eq!(SandboxState::parse("killed"), None);
    }

    #[test]
    fn a_sandbox_that_waits_for_its_image_is_not_there() {
        let key = serde_json::json!({ "key": "kkkkkkkkkkkkkkkkkkkk", "tenant": "tttttttttttttttttttt", "scope": "user" });
        let awaits = serde_json::json!({ "requested_by": key, "start": { "entrypoint": true } });
        let lease = |stage: &str, awaits: &serde_json::Value| {
            let more = serde_json::json!({ "phase": "creating", "stage": stage, "awaits": awaits });
            crate::sandboxes::sample_lease(more)
        };
        assert_eq!(state_of(&lease("pulling", &awaits)), None);
        assert_eq!(state_of(&lease("booting", &serde_json::Value::Null)), Some(SandboxState::Running));
    }

    #[test]
    fn a_refused_verb_has_the_status_that_the_sdks_know() {
        let refused = |verb, phase| {
            let lease = crate::sandboxes::sample_lease(serde_json::json!({ "phase": phase }));
            refusal(&RefusedVerb { verb, lease: lease.into() }).map(|(status, _)| status.as_u16())
        };
        for (verb, phase, wanted) in [
            (Verb::Pause, "paused", Some(409)),
            (Verb::Stop, "stopped", Some(409)),
            (Verb::Wake, "running", Some(409)),
            (Verb::Wake, "deleting", Some(404)),
            (Verb::Snapshot, "deleted", Some(404)),
            (Verb::Snapshot, "failed", None),
        ] {
            assert_eq!(refused(verb, phase), wanted, "{verb:?} {phase}");
        }
    }
}
