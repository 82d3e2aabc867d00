//! How Daytona names phases: one total map, back again for filters, in which states it takes a verb, and how it refuses one.
//!
//! ```text
//! creating ─► started ◄─► pausing, paused, resuming
//!                │ ▲
//!        stopping▼ │starting
//!              stopped ─► archiving ─► archived ─► restoring ─► started
//! any ─► destroying ─► destroyed        what could not be made or kept alive: error
//! while new limits are put in force: resizing
//! ```
//!
//! A sandbox whose image is built or pulled first is `pending_build`, then `building_snapshot` or `pulling_snapshot`,
//! before it is `creating`; if the build fails, it is `build_failed`.

use atoll_model::lifecycle::{PhaseSet, Verb, phase_deadline_ms};
use atoll_model::{Intent, Lease, Phase, Stage};
use atoll_service::RefusedVerb;
use axum::http::StatusCode;

/// Daytona's state of a sandbox.
pub(crate) fn state(lease: &Lease) -> &'static str {
    match lease.phase {
        _ if lease.resizing => RESIZING,
        Phase::Creating if lease.waits_for_place() => stage(Stage::Booting),
        Phase::Creating => stage(lease.stage),
        Phase::Failed if lease.failed_in_build() => BUILD_FAILED,
        phase => of_phase(phase),
    }
}

const BUILD_FAILED: &str = "build_failed";
const RESIZING: &str = "resizing";

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
        Phase::Running | Phase::Paused | Phase::Stopped if word == RESIZING => true,
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

/// The phases in which Daytona takes a verb, where it is stricter than the lifecycle.
pub(crate) const fn expected(verb: Verb) -> PhaseSet {
    match verb {
        // A running one is left as it is.
        Verb::Start => {
            PhaseSet::of(&[Phase::Running, Phase::Stopped, Phase::Archived, Phase::Archiving, Phase::Paused])
        }
        Verb::Stop => PhaseSet::of(&[Phase::Running, Phase::Paused]),
        Verb::Pause | Verb::Fork => PhaseSet::of(&[Phase::Running]),
        Verb::Archive => PhaseSet::of(&[Phase::Stopped]),
        Verb::Snapshot => PhaseSet::of(&[Phase::Running, Phase::Stopped]),
        Verb::Wake
        | Verb::Recover
        | Verb::Restart
        | Verb::Restore
        | Verb::Rollback
        | Verb::Move
        | Verb::Resize
        | Verb::Update
        | Verb::Delete => verb.accepts(),
    }
}

const fn participle(verb: Verb) -> &'static str {
    match verb {
        Verb::Start | Verb::Wake => "started",
        Verb::Stop => "stopped",
        Verb::Restart => "restarted",
        Verb::Pause => "paused",
        Verb::Archive => "archived",
        Verb::Restore => "restored",
        Verb::Rollback => "rolled back",
        Verb::Move => "moved",
        Verb::Resize => "resized",
        Verb::Snapshot => "snapshotted",
        Verb::Fork => "forked",
        Verb::Recover => "recovered",
        Verb::Update => "updated",
        Verb::Delete => "deleted",
    }
}

/// COMPAT(daytona): a state that does not allow a verb is a bad request, one that is on its way elsewhere a conflict.
pub(crate) fn refusal(refused: &RefusedVerb) -> (StatusCode, String) {
    let (is, word) = (state(&refused.lease), participle(refused.verb));
    if phase_deadline_ms(refused.lease.phase).is_some() {
        let message = format!("Sandbox is {is}: a state change is in progress, so it cannot be {word} now");
        return (StatusCode::CONFLICT, message);
    }
    let message = match refused.verb {
        Verb::Recover => format!("Sandbox is {is}, not in a recoverable error state"),
        _ => format!("Sandbox is {is}, which does not allow it to be {word}"),
    };
    (StatusCode::BAD_REQUEST, message)
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
        let requested_by = Principal {
            key: KeyId::from_entropy([4; 20]),
            key_name: None,
            tenant: lease.tenant.clone(),
            scope: Scope::User,
        };
        let awaits = Some(AwaitedImage { requested_by, start: StartRequest::default() });
        Lease { stage, awaits, image_build: Some(BuildId::from_entropy([3; 20])), ..lease }
    }
}

#[cfg(test)]
mod tests {
    use atoll_model::QueueWait;

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
        let until = lease(Phase::Creating).created_at;
        let queue = Some(QueueWait { until, timed_out_at: None, place: None });
        assert_eq!(state(&Lease { queue, ..waiting(Stage::Queued) }), "creating", "no build waits yet");
        let resizing = Lease { resizing: true, ..lease(Phase::Running) };
        assert_eq!(state(&resizing), "resizing");
        assert!(STATES.contains(&"resizing") && phases("resizing").contains(&Phase::Running));
        assert!(phases("forking").is_empty());
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

    fn refused(verb: Verb, phase: Phase) -> (u16, String) {
        let (status, message) = refusal(&RefusedVerb { verb, lease: lease(phase).into() });
        (status.as_u16(), message)
    }

    #[test]
    fn every_verb_has_phases_that_the_core_accepts_too_and_says_why_not_elsewhere() {
        for verb in Verb::ALL {
            assert!(expected(verb).iter().count() > 0, "{verb:?}");
            for phase in Phase::ALL {
                assert!(
                    !expected(verb).contains(phase) || verb.accepts().contains(phase),
                    "{verb:?} {phase:?}"
                );
                let (status, message) = refused(verb, phase);
                let is_passing = phase_deadline_ms(phase).is_some();
                assert_eq!(status, if is_passing { 409 } else { 400 }, "{verb:?} from {phase:?}");
                assert!(message.contains(state(&lease(phase))), "{message}");
            }
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
            assert!(!expected(verb).contains(phase), "{verb:?} {phase:?}");
            assert_eq!(refused(verb, phase).0, wanted, "{verb:?} {phase:?}");
        }
        assert!(expected(Verb::Start).contains(Phase::Running));
    }
}
