//! How Daytona names phases: one total map, back again for filters, and from which states its verbs are refused.
//!
//! ```text
//! creating ─► started ◄─► pausing, paused, resuming
//!                │ ▲
//!        stopping▼ │starting
//!              stopped ─► archiving ─► archived ─► restoring ─► started
//! any ─► destroying ─► destroyed        what could not be made or kept alive: error
//! ```
//!
//! A sandbox whose image is built or pulled first is `pending_build`, then `building_snapshot` or `pulling_snapshot`, before it
//! is `creating`; where the build fails it is `build_failed`.

use atoll_front_kit::ApiError;
use atoll_model::{Code, Intent, Lease, Phase, Stage};
use axum::http::StatusCode;

/// Daytona's state of a sandbox.
pub(crate) fn state(lease: &Lease) -> &'static str {
    match lease.phase {
        Phase::Creating => stage(lease.stage),
        Phase::Failed if lease.failed_in_build() => BUILD_FAILED,
        phase => of_phase(phase),
    }
}

const BUILD_FAILED: &str = "build_failed";

const fn stage(stage: Stage) -> &'static str {
    match stage {
        Stage::Queued => "pending_build",
        Stage::Pulling => "pulling_snapshot",
        Stage::Building => "building_snapshot",
        Stage::Booting => "creating",
    }
}

const fn of_phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Creating => stage(Stage::Booting),
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

/// The phases that a state includes; empty if no sandbox of Atoll is ever in it.
pub(crate) fn phases(word: &str) -> Vec<Phase> {
    let is_part = |phase: &Phase| match phase {
        Phase::Creating => Stage::ALL.into_iter().any(|of| stage(of) == word),
        Phase::Failed if word == BUILD_FAILED => true,
        phase => of_phase(*phase) == word,
    };
    Phase::ALL.into_iter().filter(is_part).collect()
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

/// Daytona's name of an intent.
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
pub(crate) fn check(verb: Verb, lease: &Lease) -> Result<(), ApiError> {
    if verb.goes_from(lease.phase) {
        return Ok(());
    }
    let (is, word) = (state(lease), verb.word());
    if is_passing(lease.phase) {
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

/// Leases for tests.
#[cfg(test)]
pub(crate) mod samples {
    use atoll_model::{AwaitedImage, BuildId, KeyId, Principal, Scope, StartRequest, Timestamp};

    use super::*;

    /// A sandbox in a phase.
    pub(crate) fn lease(phase: Phase) -> Lease {
        let at = Timestamp { wall_ms: 0, boot_id: "boot".to_owned(), boot_ms: 0 };
        let row = serde_json::json!({
            "id": "cccccccccccccccccccc", "tenant": "bbbbbbbbbbbbbbbbbbbb", "name": null, "labels": {}, "env": {},
            "provider": "fake", "template": "daytona-build/app", "template_version": "1", "user": "root",
            "workdir": "/", "command": null,
            "limits": { "cpu_milli": 1000, "memory_mib": 1024, "disk_mib": 2048, "pids": 512 },
            "network": "allow-all", "storage": "disk", "intent": "run", "phase": phase,
            "reason": { "code": "requested" }, "generation": 1, "instance": null, "timeout_s": null,
            "timeout_at": null, "on_timeout": "delete", "created_at": at, "phase_at": at,
        });
        serde_json::from_value(row).expect("a lease")
    }

    /// A sandbox in creation that waits for its build.
    pub(crate) fn waiting(stage: Stage) -> Lease {
        let lease = lease(Phase::Creating);
        let requested_by =
            Principal { key: KeyId::from_entropy([4; 20]), tenant: lease.tenant.clone(), scope: Scope::User };
        let awaits = Some(AwaitedImage { requested_by, start: StartRequest::default() });
        Lease { stage, awaits, image_build: Some(BuildId::from_entropy([3; 20])), ..lease }
    }
}

#[cfg(test)]
mod tests {
    use super::samples::{lease, waiting};
    use super::*;

    #[test]
    fn every_phase_and_stage_has_a_state_that_the_sdks_know() {
        for lease in Phase::ALL.map(lease).into_iter().chain(Stage::ALL.map(waiting)) {
            assert!(STATES.contains(&state(&lease)), "{lease:?}");
            assert_eq!(phases(state(&lease)), [lease.phase]);
        }
        let states = Stage::ALL.map(|stage| state(&waiting(stage)));
        assert_eq!(states, ["pending_build", "pulling_snapshot", "building_snapshot", "creating"]);
        assert!(phases("resizing").is_empty());
        assert!(phases("nonsense").is_empty());
    }

    #[test]
    fn a_failed_build_is_told_from_another_failure() {
        let failed = |lease: Lease| state(&Lease { phase: Phase::Failed, ..lease });
        assert_eq!(failed(waiting(Stage::Building)), "build_failed");
        assert_eq!(failed(Lease { image_build: None, ..waiting(Stage::Pulling) }), "error");
        assert_eq!(failed(Lease { awaits: None, ..waiting(Stage::Booting) }), "error", "its boot failed");
        assert_eq!((phases("error"), phases("build_failed")), (vec![Phase::Failed], vec![Phase::Failed]));
    }

    #[test]
    fn every_verb_goes_from_somewhere_and_says_why_not_elsewhere() {
        for verb in Verb::ALL {
            let mut goes = 0;
            for phase in Phase::ALL {
                let lease = lease(phase);
                match check(verb, &lease) {
                    Ok(()) => goes += 1,
                    Err(error) => {
                        let wanted = if is_passing(phase) { 409 } else { 400 };
                        assert_eq!(error.status().as_u16(), wanted, "{verb:?} from {phase:?}");
                        assert!(error.message.contains(state(&lease)), "{}", error.message);
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
                check(verb, &lease(phase)).err().map(|e| e.status().as_u16()),
                Some(wanted),
                "{verb:?} {phase:?}"
            );
        }
        assert!(check(Verb::Start, &lease(Phase::Running)).is_ok());
    }
}
