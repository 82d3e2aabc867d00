//! The move of a sandbox to another provider, from the driver's side: its record, its end, and the removal of what is left.

use std::sync::Arc;
use std::time::Duration;

use atoll_model::lifecycle::{Event, Verb};
use atoll_model::{
    Code, EventKind, Intent, Lease, MoveCarried, MoveProgress, MoveReport, MoveStage, Phase, Reason,
    SandboxId, SandboxMove, Timestamp,
};
use atoll_provider::Target;
use atoll_store::{Admit, InstanceChange, NewEvent};
use tokio::sync::oneshot;

use super::effects::{Work, gone_is_fine};
use super::steps::{ChangedLease, StepError, Transition};
use super::{Driver, DriverMessage};
use crate::ServiceError;
use crate::admission::MovePlace;
use crate::moving::{MoveOutcome, MovePlan, already_moving};
use crate::sandboxes::{SandboxesState, ask};

/// LIMIT: how long the removal of what a move left, or the record of its end, waits after a failure; the last wait is repeated.
const REPEAT_AFTER_S: [u64; 6] = [1, 2, 5, 10, 30, 60];
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
    pub(super) async fn on_move(
        &mut self,
        plan: Box<MovePlan>,
        places: Vec<MovePlace>,
        done: MoveEnd,
    ) -> Result<(), ServiceError> {
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
        self.move_places = places;
        let step = Transition {
            changed: Some(Box::new(changed)),
            admit,
            ..Transition::asked(event, intent, Reason::Requested)
        };
        let begun = self.step(step).await;
        begun.map_err(|error| {
            self.moving = None;
            self.move_places.clear();
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
            self.count_late("move");
            return self.go_on_after_move().await;
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
        self.use_own_provider();
        self.go_on_after_move().await;
    }

    /// The end of the move is recorded: what is left is removed, and a sandbox that was stopped for the move continues.
    async fn go_on_after_move(&mut self) {
        self.remove_other();
        if self.lease.moving.is_some() && self.lease.phase == Phase::Stopped {
            self.end_of_stop().await;
        }
    }

    /// The write that changes the place of the sandbox, together with its thread and the event.
    async fn commit_move(&mut self, outcome: &MoveOutcome) -> Result<(), StepError> {
        let Some(active) = &self.moving else { return Ok(()) };
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
        self.step(step).await
    }

    /// The sandbox stays where it is. What there is of a copy is removed, also if the copy has tried that already.
    pub(super) async fn abort_move(&mut self, failure: ServiceError) {
        let Some(moving) = self.lease.moving.clone() else { return };
        tracing::warn!(sandbox = %self.lease.id, to = moving.to, error = %failure, cause = ?failure.cause, "the sandbox was not moved");
        let former_user = self.lease.last_move.as_ref().and_then(|last| last.former_user.clone());
        let ended_at = self.inner.clock.now();
        let report = MoveReport { former_user, ..failed_report(&moving, ended_at, &failure) };
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
                let event =
                    NewEvent { at: self.inner.clock.now(), instance: None, what: told, by: self.by.clone() };
                let written = self.write(next, InstanceChange::Keep, Admit::Nothing, vec![event], true).await;
                written.map_err(ServiceError::from)
            }
        };
        if let Err(error) = written {
            // It may be recorded all the same: the store has the lease of an earlier attempt then, which is this one now.
            if self.lease.is_being_copied() {
                tracing::error!(sandbox = %self.lease.id, %error, "the end of a move was not recorded; it is tried again");
                self.failure = Some(failure);
                if let Some(active) = &mut self.moving {
                    active.done = done;
                }
                return self.launch_after(Work::AbortMove, RECORD_AGAIN);
            }
        }
        self.inner.failpoint.reach("move.aborted").await;
        // What was recorded may also be its commit.
        let ended = if self.lease.provider == moving.to { Ok(()) } else { Err(failure) };
        self.failure = ended.clone().err();
        if let Some(done) = done {
            let _ = done.send(ended);
        }
        self.go_on_after_move().await;
    }

    /// Removes, in the background, what is left of the sandbox at the provider that it is not at. One task does that for a move: a
    /// second one could reach the copy of the next move.
    pub(super) fn remove_other(&mut self) {
        let Some(moving) = self.lease.moving.as_ref().filter(|moving| !moving.is_copying()) else { return };
        let started_at = moving.started_at.clone();
        if self.remover.as_ref().is_some_and(|(of, task)| *of == started_at && !task.is_finished()) {
            return;
        }
        let provider = moving.other_than(&self.lease.provider).to_owned();
        let (inner, id) = (Arc::clone(&self.inner), self.lease.id.clone());
        let remaining = RemainingCopy { inner, id, provider, started_at: started_at.clone() };
        self.remover = Some((started_at, self.inner.spawn(remaining.remove())));
    }

    /// Nothing is left at the other provider: the move is over.
    pub(super) async fn on_other_removed(&mut self, started_at: &Timestamp) -> Result<(), ServiceError> {
        let is_this = self
            .lease
            .moving
            .as_ref()
            .is_some_and(|moving| !moving.is_copying() && moving.started_at == *started_at);
        if !is_this || self.lease.phase.is_gone() {
            return Ok(());
        }
        let next = Lease { moving: None, ..self.lease.clone() };
        Ok(self.write(next, InstanceChange::Keep, Admit::Nothing, vec![], true).await?)
    }

    pub(super) fn on_move_progress(&mut self, progress: MoveProgress) {
        if self.lease.is_being_copied()
            && let Some(moving) = &mut self.lease.moving
        {
            moving.progress = progress;
            self.publish();
        }
    }

    /// After a write: the room of a move that is over is given up, as far as the lease does not hold it. A caller that waits is told
    /// that the sandbox was moved, or that it was deleted or failed.
    pub(super) fn forget_move(&mut self) {
        // A copy that is under way is removed by the delete.
        if !self.lease.is_being_copied() && self.lease.phase != Phase::Deleting {
            self.move_places.clear();
        }
        let Some(active) = self.moving.take_if(|_| !self.lease.is_being_copied()) else { return };
        let Some(done) = active.done else { return };
        if self.lease.provider == active.plan.target.name() {
            let _ = done.send(Ok(()));
        } else {
            let message =
                format!("sandbox {} is {} and was not moved", self.lease.id, self.lease.phase.as_str());
            let failure = self.failure.clone();
            let _ =
                done.send(Err(failure.unwrap_or_else(|| ServiceError::new(Code::PhaseConflict, message))));
        }
    }
}

/// What a move leaves at the provider that the sandbox is not at.
struct RemainingCopy {
    inner: Arc<SandboxesState>,
    id: SandboxId,
    provider: String,
    /// Which move it is.
    started_at: Timestamp,
}

impl RemainingCopy {
    /// Removes it and has the driver record that. Both are repeated until they succeed; the next server does it again.
    async fn remove(self) {
        let target = Target { sandbox: self.id.clone(), instance: None };
        let mut times = 0;
        loop {
            let removed = match self.inner.providers.open(&self.provider) {
                Some(open) => gone_is_fine(open.destroy(&target).await),
                None => Err(ServiceError::new(Code::ProviderNotConfigured, "its provider is not open")),
            };
            let Err(error) = removed else { break };
            tracing::warn!(sandbox = %self.id, provider = self.provider, %error, "what a move left behind could not be removed yet");
            if !self.waits(&mut times).await {
                return;
            }
        }
        self.inner.failpoint.reach("move.removed").await;
        times = 0;
        while let Err(error) = self.tell_driver().await {
            tracing::warn!(sandbox = %self.id, %error, "the end of a move is not recorded yet");
            if !self.waits(&mut times).await {
                return;
            }
        }
    }

    async fn tell_driver(&self) -> Result<(), ServiceError> {
        let Some(handle) = self.inner.registry.get(&self.id) else { return Ok(()) };
        let started_at = self.started_at.clone();
        ask(&handle, |reply| DriverMessage::OtherRemoved { started_at, reply }).await
    }

    /// Waits before the next attempt. `false`: there will be none.
    async fn waits(&self, times: &mut usize) -> bool {
        let wait_s = REPEAT_AFTER_S[(*times).min(REPEAT_AFTER_S.len() - 1)];
        *times += 1;
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs(wait_s)) => self.inner.registry.get(&self.id).is_some(),
            () = self.inner.closing.cancelled() => false,
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
