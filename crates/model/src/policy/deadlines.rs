//! When a lease is due, and for what. One queue handles all of them.

use crate::lifecycle::lease_deadline_ms;
use crate::{Intent, Lease, MemoryLocation, OnTimeout, Phase, TimeoutCounts, Timestamp};

/// The action for a due lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// A passing phase exceeded its deadline.
    PhaseOverdue,
    /// No place was free for a queued creation in time.
    QueueTimeout,
    /// The sandbox's timeout passed.
    Timeout(OnTimeout),
    /// The idle time may have passed: pause the sandbox if it was idle.
    IdlePause,
    /// The idle time may have passed: stop the sandbox if it was idle.
    IdleStop,
    /// It was paused long enough to write its memory to disk.
    Checkpoint,
    /// It was stopped long enough to be archived.
    Archive,
    /// It was stopped long enough to be deleted.
    Delete,
}

/// The next moment at which this lease must be checked. Idle times count from `active_at`: a caller that knows of later
/// activity passes a lease with that time.
#[must_use]
pub fn next_deadline(lease: &Lease) -> Option<(Timestamp, Due)> {
    if let Some(wait) = lease.queue.as_ref().filter(|_| lease.waits_for_place()) {
        return Some((wait.until.clone(), Due::QueueTimeout));
    }
    if let Some(ms) = lease_deadline_ms(lease) {
        return Some((lease.phase_at.plus_ms(ms), Due::PhaseOverdue));
    }
    let mut all = Vec::with_capacity(4);
    match lease.phase {
        Phase::Running => {
            all.extend(timeout(lease));
            let active = quiet_since(lease);
            all.extend(after(Some(&active), lease.timers.auto_pause_s, Due::IdlePause));
            all.extend(after(Some(&active), lease.timers.auto_stop_s, Due::IdleStop));
        }
        Phase::Paused => {
            all.extend(timeout_asleep(lease).filter(|(_, due)| *due != Due::Timeout(OnTimeout::Pause)));
            if lease.held == Some(MemoryLocation::Live) {
                all.extend(after(Some(&lease.phase_at), lease.timers.checkpoint_after_s, Due::Checkpoint));
            }
        }
        // In the middle of a restart: it is about to run again.
        Phase::Stopped if lease.intent == Intent::Run => {}
        Phase::Stopped | Phase::Archived | Phase::Failed => {
            // Stopping it again would have no effect.
            let timeout = if lease.phase == Phase::Failed { timeout(lease) } else { timeout_asleep(lease) };
            all.extend(timeout.filter(|(_, due)| *due == Due::Timeout(OnTimeout::Delete)));
            if lease.phase == Phase::Stopped {
                all.extend(after(lease.stopped_at.as_ref(), lease.timers.auto_archive_s, Due::Archive));
            }
            all.extend(after(lease.stopped_at.as_ref(), lease.timers.auto_delete_s, Due::Delete));
        }
        Phase::Deleted
        | Phase::Creating
        | Phase::Pausing
        | Phase::Resuming
        | Phase::Starting
        | Phase::Stopping
        | Phase::Archiving
        | Phase::Restoring
        | Phase::Deleting => {}
    }
    let first = lease.phase_at.clone();
    all.into_iter().min_by_key(|(at, _)| at.ms_after(&first))
}

fn timeout(lease: &Lease) -> Option<(Timestamp, Due)> {
    lease.timeout_at.clone().map(|at| (at, Due::Timeout(lease.on_timeout)))
}

/// The timeout of a sleeping sandbox. A failed one does not wake by itself and does not count as sleeping.
fn timeout_asleep(lease: &Lease) -> Option<(Timestamp, Due)> {
    timeout(lease).filter(|_| lease.timeout_counts == TimeoutCounts::Always)
}

fn after(from: Option<&Timestamp>, seconds: Option<u64>, due: Due) -> Option<(Timestamp, Due)> {
    let ms = i64::try_from(seconds?.saturating_mul(1_000)).unwrap_or(i64::MAX);
    Some((from?.plus_ms(ms), due))
}

/// The start of the idle time: the last activity, but never before a hold ends.
fn quiet_since(lease: &Lease) -> Timestamp {
    let active = lease.active_at.clone().unwrap_or_else(|| lease.phase_at.clone());
    let active = if active.ms_after(&lease.phase_at) < 0 { lease.phase_at.clone() } else { active };
    match &lease.hold {
        Some(hold) if hold.until.ms_after(&active) > 0 => hold.until.clone(),
        _ => active,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::lifecycle::phase_deadline_ms;
    use crate::{
        AwaitedImage, Hold, KeyId, Principal, QueueWait, Scope, Stage, StartRequest, Timers, TimersAsk,
    };

    const S: i64 = 1_000;

    fn at(ms: i64) -> Timestamp {
        Timestamp { wall_ms: 1_000_000_000 + ms, boot_id: "boot".to_owned(), boot_ms: ms }
    }

    /// A lease as the first release wrote it, in a phase since time 0.
    pub(crate) fn lease(phase: Phase) -> Lease {
        let old = serde_json::json!({
            "id": "aaaaaaaaaaaaaaaaaaaa", "tenant": "tttttttttttttttttttt", "name": null, "labels": {}, "env": {},
            "provider": "fake", "template": "base", "template_version": "1", "user": "user", "workdir": "/",
            "command": null, "limits": { "cpu_milli": 1000, "memory_mib": 512, "disk_mib": 2048, "pids": 512 },
            "network": "allow-all", "storage": "disk", "intent": "run", "phase": phase, "stage": "booting",
            "reason": { "code": "requested" }, "generation": 1, "instance": null, "timeout_s": null,
            "timeout_at": null, "on_timeout": "delete", "created_at": at(0), "phase_at": at(0),
        });
        serde_json::from_value(old).expect("a lease of the first release is understood")
    }

    fn timed(phase: Phase, timers: Timers) -> Lease {
        let intent = if phase == Phase::Running { Intent::Run } else { Intent::Stop };
        Lease { timers, intent, stopped_at: Some(at(0)), held: Some(MemoryLocation::Live), ..lease(phase) }
    }

    fn next(lease: &Lease) -> Option<(i64, Due)> {
        next_deadline(lease).map(|(moment, due)| (moment.boot_ms, due))
    }

    const ALL_TIMERS: Timers = Timers {
        auto_stop_s: Some(40),
        auto_pause_s: Some(30),
        checkpoint_after_s: Some(20),
        auto_archive_s: Some(50),
        auto_delete_s: Some(60),
    };

    #[test]
    fn a_lease_without_timers_is_due_only_while_it_passes() {
        for phase in Phase::ALL {
            let due = next(&lease(phase));
            assert_eq!(due, phase_deadline_ms(phase).map(|ms| (ms, Due::PhaseOverdue)), "{phase:?}");
        }
    }

    #[test]
    fn a_wait_for_an_image_is_no_boot() {
        let mut waiting = lease(Phase::Creating);
        assert_eq!((waiting.stage, waiting.waits_for_image()), (Stage::Booting, false));
        let requested_by = Principal {
            key: KeyId::from_entropy([1; 20]),
            key_name: None,
            tenant: waiting.tenant.clone(),
            scope: Scope::User,
        };
        waiting.awaits = Some(AwaitedImage { requested_by, start: StartRequest::default() });
        waiting.stage = Stage::Queued;
        waiting.timeout_s = Some(5);
        assert_eq!(next(&waiting), Some((24 * 3_600 * S, Due::PhaseOverdue)));
        let text = serde_json::to_value(&waiting).expect("plain");
        assert_eq!(serde_json::from_value::<Lease>(text).expect("its own text"), waiting);
        waiting.phase = Phase::Failed;
        assert_eq!((waiting.failed_in_build(), next(&waiting)), (false, None));
    }

    #[test]
    fn a_queued_creation_ends_with_its_own_wait_and_counts_as_nothing() {
        let mut queued = lease(Phase::Creating);
        assert!(queued.holds_compute() && !queued.waits_to_boot());
        queued.queue = Some(QueueWait { until: at(90 * S), timed_out_at: None, place: None });
        queued.timeout_s = Some(5);
        assert_eq!(next(&queued), Some((90 * S, Due::QueueTimeout)));
        assert!(queued.waits_for_place() && queued.waits_to_boot() && !queued.holds_compute());
        let requested_by = Principal {
            key: KeyId::from_entropy([1; 20]),
            key_name: None,
            tenant: queued.tenant.clone(),
            scope: Scope::User,
        };
        queued.awaits = Some(AwaitedImage { requested_by, start: StartRequest::default() });
        assert!(!queued.waits_for_image(), "the place comes first");
        let text = serde_json::to_value(&queued).expect("plain");
        assert_eq!(serde_json::from_value::<Lease>(text).expect("its own text"), queued);
        queued.phase = Phase::Deleted;
        assert_eq!((queued.waits_for_place(), next(&queued)), (false, None));
    }

    #[test]
    fn a_lease_without_a_stage_is_booting() {
        let mut old = serde_json::to_value(lease(Phase::Creating)).expect("plain");
        old.as_object_mut().expect("object").remove("stage");
        let read: Lease = serde_json::from_value(old).expect("a row without a stage");
        assert_eq!((read.phase, read.stage, read.awaits), (Phase::Creating, Stage::Booting, None));
    }

    #[test]
    fn each_timer_is_due_in_its_phase_only() {
        let only = |change: fn(&mut Timers)| {
            let mut timers = Timers::default();
            change(&mut timers);
            timers
        };
        for (timers, phase, due) in [
            (only(|t| t.auto_pause_s = Some(7)), Phase::Running, Due::IdlePause),
            (only(|t| t.auto_stop_s = Some(7)), Phase::Running, Due::IdleStop),
            (only(|t| t.checkpoint_after_s = Some(7)), Phase::Paused, Due::Checkpoint),
            (only(|t| t.auto_archive_s = Some(7)), Phase::Stopped, Due::Archive),
            (only(|t| t.auto_delete_s = Some(7)), Phase::Stopped, Due::Delete),
        ] {
            assert_eq!(next(&timed(phase, timers)), Some((7 * S, due)), "{due:?}");
            for other in [Phase::Running, Phase::Paused, Phase::Deleted] {
                if other != phase {
                    assert_eq!(next(&timed(other, timers)), None, "{due:?} in {other:?}");
                }
            }
        }
        // Archived and failed sandboxes are deleted by age too; they are not archived again.
        for phase in [Phase::Archived, Phase::Failed] {
            assert_eq!(next(&timed(phase, ALL_TIMERS)), Some((60 * S, Due::Delete)));
        }
    }

    #[test]
    fn the_earliest_wins() {
        assert_eq!(next(&timed(Phase::Running, ALL_TIMERS)), Some((30 * S, Due::IdlePause)));
        assert_eq!(next(&timed(Phase::Stopped, ALL_TIMERS)), Some((50 * S, Due::Archive)));
        for (timeout, due) in [(29, Due::Timeout(OnTimeout::Delete)), (31, Due::IdlePause)] {
            let lease = Lease { timeout_at: Some(at(timeout * S)), ..timed(Phase::Running, ALL_TIMERS) };
            assert_eq!(next(&lease).map(|(_, due)| due), Some(due));
        }
    }

    #[test]
    fn a_timeout_counts_where_it_would_do_something() {
        let due = |phase, on_timeout| {
            let lease = Lease { timeout_at: Some(at(9)), on_timeout, ..timed(phase, Timers::default()) };
            next(&lease).map(|(_, due)| due)
        };
        for (on_timeout, phases) in [
            (
                OnTimeout::Delete,
                vec![Phase::Running, Phase::Paused, Phase::Stopped, Phase::Archived, Phase::Failed],
            ),
            (OnTimeout::Stop, vec![Phase::Running, Phase::Paused]),
            (OnTimeout::Pause, vec![Phase::Running]),
        ] {
            for phase in Phase::ALL.into_iter().filter(|phase| phase_deadline_ms(*phase).is_none()) {
                let wanted = phases.contains(&phase).then_some(Due::Timeout(on_timeout));
                assert_eq!(due(phase, on_timeout), wanted, "{on_timeout:?} in {phase:?}");
            }
        }
    }

    #[test]
    fn a_timeout_that_counts_awake_lets_sleepers_sleep() {
        for phase in Phase::ALL.into_iter().filter(|phase| phase_deadline_ms(*phase).is_none()) {
            let lease = Lease {
                timeout_at: Some(at(9)),
                timeout_counts: TimeoutCounts::Awake,
                ..timed(phase, Timers::default())
            };
            let counts = matches!(phase, Phase::Running | Phase::Failed);
            assert_eq!(next(&lease).is_some(), counts, "{phase:?}");
        }
    }

    #[test]
    fn idle_time_counts_from_the_last_work_and_never_from_before_it_ran() {
        let lease = timed(Phase::Running, ALL_TIMERS);
        let worked = Lease { active_at: Some(at(100 * S)), ..lease.clone() };
        assert_eq!(next(&worked), Some((130 * S, Due::IdlePause)));
        let long_ago = Lease { active_at: Some(at(-500 * S)), ..lease };
        assert_eq!(next(&long_ago), Some((30 * S, Due::IdlePause)));
    }

    #[test]
    fn a_hold_delays_idle_time_and_nothing_else() {
        let hold = Some(Hold { until: at(200 * S), reason: None });
        let held = Lease { hold: hold.clone(), ..timed(Phase::Running, ALL_TIMERS) };
        assert_eq!(next(&held), Some((230 * S, Due::IdlePause)));
        let over = Lease { active_at: Some(at(300 * S)), ..held.clone() };
        assert_eq!(next(&over), Some((330 * S, Due::IdlePause)));
        let timeout = Lease { timeout_at: Some(at(10 * S)), ..held };
        assert_eq!(next(&timeout), Some((10 * S, Due::Timeout(OnTimeout::Delete))));
        let stopped = Lease { hold, ..timed(Phase::Stopped, ALL_TIMERS) };
        assert_eq!(next(&stopped), Some((50 * S, Due::Archive)));
    }

    #[test]
    fn a_checkpoint_is_due_once_the_memory_is_live() {
        let paused = timed(Phase::Paused, ALL_TIMERS);
        assert_eq!(next(&paused), Some((20 * S, Due::Checkpoint)));
        assert_eq!(next(&Lease { held: Some(MemoryLocation::Disk), ..paused }), None);
    }

    #[test]
    fn half_way_through_a_restart_no_timer_runs() {
        let halfway = Lease {
            intent: Intent::Run,
            timeout_at: Some(at(1)),
            ..timed(Phase::Stopped, Timers { auto_delete_s: Some(0), ..ALL_TIMERS })
        };
        assert_eq!(next(&halfway), None);
    }

    #[test]
    fn a_jump_of_the_wall_clock_makes_nothing_early() {
        let now = Timestamp { wall_ms: 9_000_000_000_000, boot_id: "boot".to_owned(), boot_ms: 10 * S };
        // Written before the clock jump and read after it, and a hold made after it.
        let lease = timed(Phase::Running, ALL_TIMERS);
        let (due_at, _) = next_deadline(&lease).expect("due");
        assert_eq!(due_at.ms_after(&now), 20 * S);
        let worked = Lease { active_at: Some(now.clone()), timeout_at: Some(at(35 * S)), ..lease };
        let (due_at, due) = next_deadline(&worked).expect("due");
        assert_eq!((due_at.ms_after(&now), due), (25 * S, Due::Timeout(OnTimeout::Delete)));
        let back = Timestamp { wall_ms: 5, ..now };
        let lease = Lease { active_at: Some(back.clone()), ..timed(Phase::Running, ALL_TIMERS) };
        assert_eq!(next_deadline(&lease).expect("due").0.ms_after(&back), 30 * S);
    }

    #[test]
    fn after_a_reboot_the_wall_clock_is_all_there_is() {
        let lease = timed(Phase::Stopped, ALL_TIMERS);
        let rebooted = Timestamp { wall_ms: 1_000_000_000 + 30 * S, boot_id: "next".to_owned(), boot_ms: 3 };
        assert_eq!(next_deadline(&lease).expect("due").0.ms_after(&rebooted), 20 * S);
    }

    #[test]
    fn never_is_minus_one_and_zero_is_at_once() {
        let ask = TimersAsk { auto_archive_s: Some(-1), auto_delete_s: Some(0), ..TimersAsk::default() };
        let timers = ask.resolve(ALL_TIMERS).expect("fine");
        let stopped = Lease { stopped_at: Some(at(5)), ..timed(Phase::Stopped, timers) };
        assert_eq!(next(&stopped), Some((5, Due::Delete)));
        let never = TimersAsk { auto_delete_s: Some(-1), ..ask }.resolve(timers).expect("fine");
        assert_eq!(next(&Lease { timers: never, ..stopped }), None);
        let vast = Timers { auto_delete_s: Some(u64::MAX), ..Timers::default() };
        assert_eq!(next(&timed(Phase::Stopped, vast)), Some((i64::MAX, Due::Delete)));
    }
}
