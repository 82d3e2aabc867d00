//! The operations that a lease's timers start. A failed operation is retried with growing delays, and stays visible
//! meanwhile; a timer does not pause or stop a sandbox that is active.

use atoll_model::lifecycle::Event;
use atoll_model::policy::deadlines::Due;
use atoll_model::{Code, MemoryLocation, OnTimeout, Phase, Reason, Timestamp};

use super::steps::{StepError, Transition};
use super::{Action, Driver};
use crate::ServiceError;
use crate::deadlines::next_due;

/// LIMIT: a failed write is retried soon: a full disk may be freed at any time.
const UNWRITTEN_MS: i64 = 500;
/// LIMIT: a failure of the provider or of object storage is retried after half a minute, then with growing delays.
const FAILED_MS: i64 = 30_000;
const LATEST_MS: i64 = 3_600_000;
/// Ten years.
const NEVER_MS: i64 = 10 * 365 * 24 * LATEST_MS;

impl Driver {
    /// Records when this lease is due next.
    pub(super) fn schedule(&self) {
        let now = self.inner.clock.now();
        self.activity.attempt_over(&self.lease, |times| now.plus_ms(delay(FAILED_MS, times)));
        let next = next_due(&self.lease, &self.activity, &now);
        self.inner.deadlines.schedule(self.id(), next.map(|(at, _)| at).as_ref(), &now);
    }

    pub(super) async fn on_due(&mut self) {
        let now = self.inner.clock.now();
        let Some((at, due)) = next_due(&self.lease, &self.activity, &now) else { return };
        if at.ms_after(&now) > 0 {
            return self.schedule();
        }
        let (action, reason) = match due {
            Due::PhaseOverdue => return self.on_overdue(&at).await,
            Due::QueueTimeout => return self.on_queue_timeout().await,
            Due::Timeout(OnTimeout::Delete) => (Action::Delete, Reason::TimedOut),
            Due::Timeout(OnTimeout::Stop) => (Action::Stop, Reason::TimedOut),
            Due::Timeout(OnTimeout::Pause) => (Action::Pause(MemoryLocation::Live), Reason::TimedOut),
            Due::IdlePause => (Action::Pause(MemoryLocation::Live), Reason::Idle),
            Due::IdleStop => (Action::Stop, Reason::Idle),
            Due::Checkpoint => (Action::Pause(MemoryLocation::Disk), Reason::Aged),
            Due::Archive => (Action::Archive, Reason::Aged),
            Due::Delete => (Action::Delete, Reason::Aged),
        };
        if reason == Reason::Idle && !self.is_idle(&at, &now) {
            return;
        }
        self.by_itself(due, action, reason).await;
    }

    /// Whether the sandbox is idle, by a check after the timer. Without such a check one is started, and its end wakes
    /// the driver again.
    fn is_idle(&self, at: &Timestamp, now: &Timestamp) -> bool {
        if !self.activity.looked_since(at, now) {
            if let Some(handle) = self.inner.registry.get(self.id()) {
                crate::idle::look_and_tell(&self.inner, handle);
            }
            self.inner.deadlines.again(self.id(), now);
            return false;
        }
        if !self.activity.falls_asleep() {
            self.schedule();
            return false;
        }
        true
    }

    async fn on_overdue(&mut self, at: &Timestamp) {
        if self.lease.is_being_copied() && self.lease.phase == Phase::Restoring {
            // The end of the copy is the end of the move.
            self.cut_short();
            return self.inner.deadlines.again(self.id(), &self.inner.clock.now());
        }
        let message = format!("the sandbox was {} for too long", self.lease.phase.as_str());
        self.failure = Some(ServiceError::new(Code::DeadlineExceeded, message));
        // A rollback leaves either the old or the new files; there is no archive to return to.
        let rolls_back = self.lease.phase == Phase::Restoring && self.lease.rollback_to.is_some();
        let event = if rolls_back { Event::Stopped } else { Event::Failed };
        self.note(Transition::internal(event, Reason::Overdue)).await;
        let now = self.inner.clock.now();
        let still = next_due(&self.lease, &self.activity, &now);
        if still.is_some_and(|(next, due)| due == Due::PhaseOverdue && next == *at) {
            // It could not be written; the driver must be woken again, but not in a loop.
            self.inner.deadlines.again(self.id(), &now);
        }
    }

    /// A verb that nobody asked for.
    async fn by_itself(&mut self, due: Due, action: Action, reason: Reason) {
        let times = self.activity.attempt_begins(due, self.lease.phase);
        let before = self.lease.generation;
        let outcome = self.on_verb(&action, reason).await;
        let first = match &outcome {
            Ok(()) => FAILED_MS,
            Err(StepError::Store(error)) => {
                tracing::warn!(sandbox = %self.id(), verb = action.verb().as_str(), %error, "the result of a timer was not recorded");
                UNWRITTEN_MS
            }
            Err(error) => {
                tracing::warn!(sandbox = %self.id(), verb = action.verb().as_str(), %error, "a timer failed");
                FAILED_MS
            }
        };
        if self.lease.generation == before {
            let until = self.inner.clock.now().plus_ms(delay(first, times));
            self.activity.attempt_over(&self.lease, |_| until.clone());
            self.activity.stays_awake();
        }
        self.schedule();
    }
}

impl Driver {
    /// The timer does not try to archive these files again until the sandbox has run, or has another limit.
    pub(super) fn give_up_archiving(&self) {
        let never = self.inner.clock.now().plus_ms(NEVER_MS);
        self.activity.postpone_attempt(Due::Archive, &never);
        self.schedule();
    }
}

/// Doubles the delay each time, up to an hour.
fn delay(first_ms: i64, times: u32) -> i64 {
    first_ms.saturating_mul(1 << times.saturating_sub(1).min(12)).min(LATEST_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_is_tried_ever_later_but_each_hour() {
        assert_eq!(delay(FAILED_MS, 1), 30_000);
        assert_eq!(delay(FAILED_MS, 2), 60_000);
        assert_eq!(delay(FAILED_MS, 40), LATEST_MS);
    }
}
