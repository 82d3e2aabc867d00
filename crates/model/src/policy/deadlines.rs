//! When a lease is due, and for what. One queue drives all of them.

use crate::lifecycle::phase_deadline_ms;
use crate::{Lease, Moment, OnTimeout, Phase};

/// What a due lease needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// The passing phase lasted too long.
    PhaseOverdue,
    /// The sandbox's timeout passed.
    Timeout(OnTimeout),
}

/// The next moment at which somebody must look at this lease.
#[must_use]
pub fn next_deadline(lease: &Lease) -> Option<(Moment, Due)> {
    if let Some(ms) = phase_deadline_ms(lease.phase) {
        return Some((lease.phase_at.plus_ms(ms), Due::PhaseOverdue));
    }
    let timeout = |at: &Moment| (at.clone(), Due::Timeout(lease.on_timeout));
    match lease.phase {
        Phase::Running => lease.timeout_at.as_ref().map(timeout),
        // A stopped or failed sandbox is still deleted when its time is over; stopping it again would do nothing.
        Phase::Stopped | Phase::Failed if lease.on_timeout == OnTimeout::Delete => {
            lease.timeout_at.as_ref().map(timeout)
        }
        Phase::Stopped
        | Phase::Failed
        | Phase::Deleted
        | Phase::Creating
        | Phase::Starting
        | Phase::Stopping
        | Phase::Deleting => None,
    }
}
