//! When a lease is due, and for what. One queue drives all of them.

use crate::lifecycle::phase_deadline_ms;
use crate::{Held, Intent, Lease, Moment, OnTimeout, Phase};

/// What a due lease needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// The passing phase lasted too long.
    PhaseOverdue,
    /// The sandbox's timeout passed.
    Timeout(OnTimeout),
    /// It may have been idle for as long as its lease allows: pause it, if it was.
    IdlePause,
    /// The same: stop it.
    IdleStop,
    /// It was paused long enough to write its memory to disk.
    Checkpoint,
    /// It was stopped long enough to be archived.
    Archive,
    /// It was stopped long enough to be deleted.
    Delete,
}

/// The next moment at which somebody must look at this lease. Idle times count from `active_at`: who knows of later work
/// hands in a lease that says so.
#[must_use]
pub fn next_deadline(lease: &Lease) -> Option<(Moment, Due)> {
    if let Some(ms) = phase_deadline_ms(lease.phase) {
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
            all.extend(timeout(lease).filter(|(_, due)| *due != Due::Timeout(OnTimeout::Pause)));
            if lease.held == Some(Held::Live) {
                all.extend(after(Some(&lease.phase_at), lease.timers.checkpoint_after_s, Due::Checkpoint));
            }
        }
        // Half way through a restart: it is about to run again.
        Phase::Stopped if lease.intent == Intent::Run => {}
        Phase::Stopped | Phase::Archived | Phase::Failed => {
            // Stopping it again would do nothing.
            all.extend(timeout(lease).filter(|(_, due)| *due == Due::Timeout(OnTimeout::Delete)));
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

fn timeout(lease: &Lease) -> Option<(Moment, Due)> {
    lease.timeout_at.clone().map(|at| (at, Due::Timeout(lease.on_timeout)))
}

fn after(from: Option<&Moment>, seconds: Option<u64>, due: Due) -> Option<(Moment, Due)> {
    let ms = i64::try_from(seconds?.saturating_mul(1_000)).unwrap_or(i64::MAX);
    Some((from?.plus_ms(ms), due))
}

/// Idle time begins at the last work, and never before a hold ends.
fn quiet_since(lease: &Lease) -> Moment {
    let active = lease.active_at.clone().unwrap_or_else(|| lease.phase_at.clone());
    let active = if active.ms_after(&lease.phase_at) < 0 { lease.phase_at.clone() } else { active };
    match &lease.hold {
        Some(hold) if hold.until.ms_after(&active) > 0 => hold.until.clone(),
        _ => active,
    }
}
