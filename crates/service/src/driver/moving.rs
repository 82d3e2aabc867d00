//! The move of a sandbox to another provider, from the driver's side: its record, its end, and the removal of what is left.

use std::sync::Arc;
use std::time::Duration;

use atoll_model::lifecycle::{Event, Verb};
use atoll_model::{
    Code, EventKind, Intent, Lease, MoveCarried, MoveProgress, MoveReport, MoveStage, Phase, Reason,
    SandboxMove, Timestamp,
};
use atoll_provider::Target;
use atoll_store::{Admit, InstanceChange, NewEvent};
use tokio::sync::oneshot;

use super::effects::{Work, gone_is_fine};
use super::steps::{ChangedLease, StepError, Transition};
use super::{Driver, DriverMessage};
use crate::ServiceError;
use crate::moving::{MoveOutcome, MovePlan, already_moving};

/// LIMIT: how long a removal that failed waits before the next attempt; the last one is repeated.
const REMOVE_AGAIN_S: [u64; 6] = [1, 2, 5, 10, 30, 60];
/// How long the end of a move that could not be recorded waits before the next attempt.
const RECORD_AGAIN: Duration = Duration::from_secs(2);

/// A move that this server does.
pub(super) struct ActiveMove {
    pub(super) plan: Arc<MovePlan>,
    /// Told the end.
    done: Option<MoveEnd>,
}

pub(crate) type MoveEnd = oneshot::Sender<Result<(), ServiceError>>;

impl Driver {
    /// Records the move and stops the sandbox.
    pub(super) async fn on_move(&mut self, plan: Box<MovePlan>, done: MoveEnd) -> Result<(), ServiceError> {
        self.guard(Verb::Move, None)?;
        if let Some(moving) = &self.lease.moving {
            return Err(already_moving(&self.lease, &moving.to));
        }
        if self.lease.generation != plan.generation {
            let message = format!("sandbox {} was changed by another request", self.lease.id);
            return Err(ServiceError::new(Code::PhaseConflict, message).hint("try again"));
        }
        let moving = SandboxMove {
            from: self.lease.provider.clone(),
            to: plan.target.name().to_owned(),
            template: plan.after.template.clone(),
            stage: MoveStage::Copying,
            started_at: self.inner.clock.now(),
            progress: MoveProgress::default(),
        };
        let (event, intent) = match self.lease.phase {
            Phase::Stopped => (Event::Move, Intent::Stop),
            Phase::Running => (Event::Stop, Intent::Run),
            _ => (Event::Stop, Intent::Stop),
        };
        let changed =
            ChangedLease { lease: Lease { moving: Some(moving), ..self.lease.clone() }, fields: Vec::new() };
        let admit = if self.lease.holds_compute() { Admit::Nothing } else { Admit::Compute };
        self.failure = None;
        self.moving = Some(ActiveMove { plan: Arc::from(plan), done: Some(done) });
        let step = Transition {
            changed: Some(Box::new(changed)),
            admit,
            ..Transition::asked(event, intent, Reason::Requested)
        };
        let begun = self.step(step).await;
        begun.map_err(|error| {
            self.moving = None;
            self.explain(Verb::Move, error)
        })
    }

    /// The sandbox is stopped for its move: the copy begins. Without a plan the server that made it has ended.
    pub(super) async fn begin_copy(&mut self) {
        self.inner.failpoint.reach("move.stopped").await;
        if self.moving.is_none() {
            return self.abort_move(interrupted()).await;
        }
        let step = Transition::internal(Event::Move, Reason::Requested);
        if let Err(error) = self.step(step).await {
            let failure = self.explain(Verb::Move, error);
            self.abort_move(failure).await;
        }
    }

    pub(super) async fn on_copied(&mut self, copied: Result<MoveOutcome, ServiceError>) {
        if !self.lease.is_being_copied() {
            return self.count_late("move");
        }
        let outcome = match (copied, &self.moving) {
            (Ok(outcome), Some(_)) => outcome,
            (Ok(_), None) => return self.abort_move(interrupted()).await,
            (Err(failure), _) => return self.abort_move(failure).await,
        };
        match self.commit_move(&outcome).await {
            Ok(()) => self.inner.failpoint.reach("move.committed").await,
            Err(error) => {
                // It may be recorded all the same: only the store knows.
                self.reload().await;
                if self.lease.is_being_copied() {
                    let failure = self.explain(Verb::Move, error);
                    return self.abort_move(failure).await;
                }
            }
        }
        if let Ok(target) = self.inner.providers.of(&self.lease) {
            self.provider = target;
        }
        self.inner.admission.forget_at(&outcome.report.from, &self.lease.id);
        self.remove_other();
        self.end_of_stop().await;
    }

    /// The write that changes the place of the sandbox, together with its thread and the event.
    async fn commit_move(&mut self, outcome: &MoveOutcome) -> Result<(), StepError> {
        let Some(active) = &mut self.moving else { return Ok(()) };
        let done = active.done.take();
        let mut next = active.plan.apply(&self.lease, outcome);
        if let Some(moving) = &mut next.moving {
            moving.stage = MoveStage::Removing;
        }
        let MoveReport { from, to, .. } = outcome.report.clone();
        let step = Transition {
            changed: Some(Box::new(ChangedLease { lease: next, fields: Vec::new() })),
            also: Some(EventKind::Moved { from, to, failure: None }),
            ..Transition::internal(Event::Stopped, Reason::Completed)
        };
        let ended = self.step(step).await;
        match (&ended, done, &mut self.moving) {
            (Ok(()), Some(done), _) => drop(done.send(Ok(()))),
            (Err(_), done, Some(active)) => active.done = done,
            _ => {}
        }
        ended
    }

    /// The sandbox stays where it is. What there is of a copy is removed, also if the copy has tried that already.
    pub(super) async fn abort_move(&mut self, failure: ServiceError) {
        let Some(moving) = self.lease.moving.clone() else { return };
        tracing::warn!(sandbox = %self.lease.id, to = moving.to, error = %failure, cause = ?failure.cause, "the sandbox was not moved");
        let report = failed_report(&moving, self.inner.clock.now(), &failure);
        let done = self.moving.as_mut().and_then(|active| active.done.take());
        let told = EventKind::Moved {
            from: moving.from.clone(),
            to: moving.to.clone(),
            failure: Some(failure.message.clone()),
        };
        let next = Lease {
            moving: Some(SandboxMove { stage: MoveStage::Removing, ..moving.clone() }),
            last_move: Some(report),
            ..self.lease.clone()
        };
        let written = match self.lease.phase {
            Phase::Restoring => {
                let step = Transition {
                    changed: Some(Box::new(ChangedLease { lease: next, fields: Vec::new() })),
                    also: Some(told),
                    ..Transition::internal(
                        Event::Stopped,
                        Reason::Provider { message: failure.message.clone() },
                    )
                };
                self.step(step).await.map_err(|error| self.explain(Verb::Move, error))
            }
            _ => {
                let event = NewEvent { at: self.inner.clock.now(), instance: None, what: told };
                let written = self.write(next, InstanceChange::Keep, Admit::Nothing, vec![event], true).await;
                written.map_err(ServiceError::from)
            }
        };
        if let Err(error) = written {
            tracing::error!(sandbox = %self.lease.id, %error, "the end of a move was not recorded; it is tried again");
            if let Some(active) = &mut self.moving {
                active.done = done;
            }
            return self.launch_after(Work::AbortMove, RECORD_AGAIN);
        }
        self.inner.admission.forget_at(&moving.to, &self.lease.id);
        self.failure = Some(failure.clone());
        if let Some(done) = done {
            let _ = done.send(Err(failure));
        }
        self.remove_other();
        self.end_of_stop().await;
    }

    /// Removes, in the background, what is left of the sandbox at the provider that it is not at.
    pub(super) fn remove_other(&self) {
        let Some(moving) = self.lease.moving.as_ref().filter(|moving| !moving.is_copying()) else { return };
        let (provider, started_at) =
            (moving.other_than(&self.lease.provider).to_owned(), moving.started_at.clone());
        let (inner, id) = (Arc::clone(&self.inner), self.lease.id.clone());
        self.inner.spawn(async move {
            let target = Target { sandbox: id.clone(), instance: None };
            let mut waits = REMOVE_AGAIN_S.into_iter();
            let mut wait_s = 0;
            loop {
                let removed = match inner.providers.open(&provider) {
                    Some(open) => gone_is_fine(open.destroy(&target).await),
                    None => Err(ServiceError::new(Code::ProviderNotConfigured, "its provider is not open")),
                };
                let Err(error) = removed else { break };
                wait_s = waits.next().unwrap_or(wait_s);
                tracing::warn!(sandbox = %id, provider, %error, wait_s, "what a move left behind could not be removed yet");
                tokio::select! {
                    () = tokio::time::sleep(Duration::from_secs(wait_s)) => {}
                    () = inner.closing.cancelled() => return,
                }
                if inner.registry.get(&id).is_none() {
                    return;
                }
            }
            inner.failpoint.reach("move.removed").await;
            if let Some(handle) = inner.registry.get(&id) {
                let _ = handle.mailbox.send(DriverMessage::OtherRemoved { started_at }).await;
            }
        });
    }

    /// Nothing is left at the other provider: the move is over.
    pub(super) async fn on_other_removed(&mut self, started_at: &Timestamp) {
        let is_this = self
            .lease
            .moving
            .as_ref()
            .is_some_and(|moving| !moving.is_copying() && moving.started_at == *started_at);
        if !is_this || self.lease.phase.is_gone() {
            return;
        }
        let next = Lease { moving: None, ..self.lease.clone() };
        if let Err(error) = self.write(next, InstanceChange::Keep, Admit::Nothing, vec![], true).await {
            // The next start of the server finds nothing to remove and writes it again.
            tracing::warn!(sandbox = %self.lease.id, %error, "the end of a move is not recorded yet");
        }
    }

    pub(super) fn on_move_progress(&mut self, progress: MoveProgress) {
        if self.lease.is_being_copied()
            && let Some(moving) = &mut self.lease.moving
        {
            moving.progress = progress;
            self.publish();
        }
    }

    /// A caller that waits for a move whose sandbox was deleted or failed is told.
    pub(super) fn forget_move(&mut self) {
        let Some(active) = self.moving.take_if(|_| !self.lease.is_being_copied()) else { return };
        if let Some(done) = active.done {
            let message =
                format!("sandbox {} is {} and was not moved", self.lease.id, self.lease.phase.as_str());
            let failure = self.failure.clone();
            let _ =
                done.send(Err(failure.unwrap_or_else(|| ServiceError::new(Code::PhaseConflict, message))));
        }
    }
}

fn interrupted() -> ServiceError {
    ServiceError::new(Code::SandboxUnavailable, "the server was ended during the move").hint("move it again")
}

fn failed_report(moving: &SandboxMove, ended_at: Timestamp, failure: &ServiceError) -> MoveReport {
    MoveReport {
        from: moving.from.clone(),
        to: moving.to.clone(),
        ended_at,
        failure: Some(failure.message.clone()),
        carried: MoveCarried::Folders,
        entries: 0,
        bytes: 0,
        left_behind: Vec::new(),
        former_user: None,
    }
}
