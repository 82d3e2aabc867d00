//! The end of a rollback to one of the sandbox's snapshots: its meaning for the lease.
//!
//! A provider refuses before it changes anything, or ends the processes and exchanges the files in one step. So an
//! instance that still lives after an error is unchanged, and otherwise the files are either the old or the new ones.

use std::time::Duration;

use atoll_model::lifecycle::Event;
use atoll_model::{Intent, MemoryLocation, Phase, Reason};
use atoll_provider::{RolledBack, Target};
use atoll_store::InstanceChange;

use super::Driver;
use super::effects::{Work, gone_is_fine};
use super::steps::Transition;
use crate::ServiceError;

/// LIMIT: an inspection of an instance, a thaw and a call of its agent take milliseconds.
const LOOK: Duration = Duration::from_secs(10);

/// The state of a sandbox after a failed rollback.
enum RollbackRemains {
    Running,
    Paused(MemoryLocation),
    /// Its processes ended, or must end.
    Files,
}

impl Driver {
    pub(super) async fn on_rolled_back(&mut self, became: Result<RolledBack, ServiceError>) {
        let seed = self.seed.take();
        match became {
            Ok(RolledBack::Files) => {
                self.note(Transition::internal(Event::Stopped, Reason::Completed)).await;
                self.after_stop().await;
            }
            Ok(RolledBack::Memory) => {
                let row = match crate::snapshots::row_of_seed(&self.inner, &self.lease, seed).await {
                    Ok(row) => row,
                    Err(failure) => return self.fail(failure, Event::Stopped).await,
                };
                let rest = Transition {
                    held: Some(MemoryLocation::Disk),
                    instance: InstanceChange::Put(row),
                    ..Transition::internal(Event::Paused, Reason::Completed)
                };
                self.note(rest).await;
                if self.lease.phase == Phase::Paused && self.lease.intent == Intent::Run {
                    self.go_on().await;
                }
            }
            Err(failure) => self.on_not_rolled_back(failure).await,
        }
    }

    /// The sandbox stays as it was if possible, and the caller receives the reason.
    async fn on_not_rolled_back(&mut self, failure: ServiceError) {
        let reason = Reason::Provider { message: failure.message.clone() };
        tracing::warn!(sandbox = %self.lease.id, error = %failure, cause = ?failure.cause, "the sandbox was not rolled back");
        self.failure = Some(failure);
        if self.lease.phase != Phase::Restoring {
            return;
        }
        let before = self.lease.instance.clone();
        let left = tokio::time::timeout(LOOK, self.look()).await.unwrap_or(RollbackRemains::Files);
        let step = match left {
            RollbackRemains::Running => {
                self.agent = self.client_of_row();
                // It is not admitted again, because it never ended.
                self.inner.admission.count(&self.lease);
                Transition { intent: Some(Intent::Run), ..Transition::internal(Event::Ready, reason) }
            }
            RollbackRemains::Paused(held) => {
                if held == MemoryLocation::Live {
                    self.inner.admission.count(&self.lease);
                }
                let step = Transition::internal(Event::Paused, reason);
                Transition { intent: Some(Intent::Pause), held: Some(held), ..step }
            }
            RollbackRemains::Files => {
                let target = Target { sandbox: self.lease.id.clone(), instance: before.clone() };
                let halted = tokio::time::timeout(LOOK, self.provider.halt(&target)).await;
                if !halted.is_ok_and(|ended| gone_is_fine(ended).is_ok()) {
                    // A remaining instance must not continue while the lease says stopped.
                    self.launch(Work::Halt { instance: before });
                }
                Transition { intent: Some(Intent::Stop), ..Transition::internal(Event::Stopped, reason) }
            }
        };
        self.note(step).await;
    }

    /// The state of the instance from before the rollback. It is read here and not in the effect, so that a later death
    /// causes a notice after the step.
    async fn look(&self) -> RollbackRemains {
        let Some(instance) = self.lease.instance.clone().filter(|_| self.lease.intent == Intent::Run) else {
            return RollbackRemains::Files;
        };
        let target = Target { sandbox: self.lease.id.clone(), instance: Some(instance) };
        let provider = &self.provider;
        if self.lease.held.is_some() {
            return provider.pause(&target).await.map_or(RollbackRemains::Files, RollbackRemains::Paused);
        }
        // It may have been frozen in the middle of the rollback.
        if provider.usage(&target).await.is_err() || provider.resume(&target).await.is_err() {
            return RollbackRemains::Files;
        }
        match self.client_of_row() {
            Some(agent) if agent.health().await.is_ok() => RollbackRemains::Running,
            Some(_) | None => RollbackRemains::Files,
        }
    }
}
