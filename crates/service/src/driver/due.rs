//! What a lease does by itself when its time has come.

use atoll_model::lifecycle::Event;
use atoll_model::policy::deadlines::{Due, next_deadline};
use atoll_model::{Code, Held, Lease, OnTimeout, Phase, Reason};

use super::steps::{Step, StepError};
use super::{Driver, Verb};
use crate::ServiceError;

impl Driver {
    /// The lease as its timers see it.
    pub(super) fn timed_lease(&self) -> Lease {
        let mut lease = self.lease.clone();
        if self.checkpoint_failed {
            // Not again in this pause: a sandbox that can't be checkpointed now can't be a moment later.
            lease.timers.checkpoint_after_s = None;
        }
        lease
    }

    /// Notes when somebody must look at this lease next.
    pub(super) fn schedule(&self) {
        self.inner.deadlines.schedule(&self.timed_lease(), &self.inner.clock.now());
    }

    pub(super) async fn on_due(&mut self) {
        let now = self.inner.clock.now();
        let Some((at, due)) = next_deadline(&self.timed_lease()) else { return };
        if at.ms_after(&now) > 0 {
            return self.schedule();
        }
        match due {
            Due::PhaseOverdue => self.on_overdue().await,
            Due::Timeout(OnTimeout::Delete) => self.by_itself(Verb::Delete, Reason::TimedOut).await,
            Due::Timeout(OnTimeout::Stop) => self.by_itself(Verb::Stop, Reason::TimedOut).await,
            Due::Timeout(OnTimeout::Pause) => self.by_itself(Verb::Pause(Held::Live), Reason::TimedOut).await,
            Due::IdlePause => self.by_itself(Verb::Pause(Held::Live), Reason::Idle).await,
            Due::IdleStop => self.by_itself(Verb::Stop, Reason::Idle).await,
            Due::Checkpoint => self.by_itself(Verb::Pause(Held::Disk), Reason::Aged).await,
            Due::Archive => self.by_itself(Verb::Archive, Reason::Aged).await,
            Due::Delete => self.by_itself(Verb::Delete, Reason::Aged).await,
        }
        let now = self.inner.clock.now();
        if next_deadline(&self.timed_lease()).is_some_and(|(at, _)| at.ms_after(&now) <= 0) {
            // It could not be done; somebody must look again, but not in a loop.
            self.inner.deadlines.again(self.id(), &now);
        }
    }

    async fn on_overdue(&mut self) {
        let message = format!("the sandbox was {} for too long", self.lease.phase.as_str());
        self.failure = Some(ServiceError::new(Code::DeadlineExceeded, message));
        // What is put back to a snapshot has its files, the old or the new ones; it has no archive to go back to.
        let rolls_back = self.lease.phase == Phase::Restoring && self.lease.rollback_to.is_some();
        let event = if rolls_back { Event::Stopped } else { Event::Failed };
        self.note(Step::internal(event, Reason::Overdue)).await;
    }

    /// A verb that nobody asked for.
    async fn by_itself(&mut self, verb: Verb, reason: Reason) {
        match self.on_verb(&verb, reason).await {
            Ok(()) => {}
            Err(StepError::Refused(refused)) => {
                tracing::debug!(sandbox = %self.lease.id, %refused, "ignored")
            }
            Err(error) => {
                tracing::warn!(sandbox = %self.lease.id, ?verb, %error, "a timer could not do its work")
            }
        }
    }
}
