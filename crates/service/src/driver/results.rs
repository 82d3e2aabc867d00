//! Applies the results of effects to the lease.

use std::sync::atomic::Ordering;
use std::time::Duration;

use atoll_agentapi::AgentClient;
use atoll_model::lifecycle::{Event, Verb};
use atoll_model::{
    ArchiveRef, Code, ErrorKind, EventKind, InstanceId, Intent, MemoryLocation, Phase, Reason,
};
use atoll_store::{Admit, InstanceChange, InstanceRow};

use super::effects::{Done, Outcome, Work};
use super::steps::Transition;
use super::{Action, Driver};
use crate::ServiceError;
use crate::agent::{StartedCommand, Tokens};

/// LIMIT: attempts to delete before the callers are told, within about a second and a half.
const TELLS_AFTER: u32 = 3;
/// LIMIT: attempts to inspect a frozen sandbox; after that it is left to the next operation.
const LOOKS: u32 = 6;

impl Driver {
    pub(super) async fn on_done(&mut self, done: Done) {
        if self.under_way.as_ref().is_none_or(|current| current.number != done.number) {
            return self.count_late("effect");
        }
        self.under_way = None;
        match done.outcome {
            Outcome::Booted { row, agent, command, from_pool } => {
                self.on_booted(row, agent, command, from_pool).await;
            }
            Outcome::NotBooted(failure) => self.on_not_booted(failure).await,
            Outcome::Frozen(frozen) => self.on_frozen(frozen).await,
            Outcome::Checkpointed(written) => self.on_checkpointed(written).await,
            Outcome::Resumed(Ok(())) => self.on_resumed(None).await,
            Outcome::Restored { row, agent } => self.on_resumed(Some((row, agent))).await,
            Outcome::Resumed(Err(failure)) => self.on_not_resumed(failure, None).await,
            Outcome::NotRestored { failure, made } => self.on_not_resumed(failure, made).await,
            Outcome::Archived(kept) => self.on_archived(kept).await,
            Outcome::Cleared(Ok(())) | Outcome::Snapshotted => {}
            Outcome::Cleared(Err(failure)) => self.try_again(Work::ClearFiles, &failure),
            Outcome::Unarchived(fetched) => self.on_unarchived(fetched).await,
            Outcome::RolledBack(became) => self.on_rolled_back(became).await,
            Outcome::Copied(copied) => self.on_copied(copied).await,
            Outcome::Gone => {
                self.failure =
                    Some(ServiceError::new(Code::SandboxUnavailable, "its processes no longer exist"));
                self.note(Transition::internal(Event::Died, Reason::InstanceDied)).await;
            }
            Outcome::Halted(Ok(())) => self.on_halted().await,
            Outcome::Halted(Err(failure)) => self.on_not_halted(failure, done.instance).await,
            Outcome::Destroyed(Ok(())) => {
                let timed_out = self.lease.reason == Reason::QueueTimedOut;
                let reason = if timed_out { Reason::QueueTimedOut } else { Reason::Completed };
                self.note(Transition::internal(Event::Deleted, reason)).await
            }
            Outcome::Destroyed(Err(failure)) => self.on_not_destroyed(failure),
        }
        self.next_snapshot();
        self.refresh_if_due().await;
    }

    /// A provider that does not answer must not keep callers waiting: the deletion is recorded, and goes on without them.
    fn on_not_destroyed(&mut self, failure: ServiceError) {
        self.try_again(Work::Destroy, &failure);
        if self.attempts >= TELLS_AFTER {
            let message = format!(
                "sandbox {} is being deleted, but its provider does not do it yet: {}",
                self.lease.id, failure.message
            );
            let told = ServiceError::new(failure.code, message);
            self.failure = Some(told.hint("the deletion is recorded and is tried again until it succeeds"));
            self.publish();
        }
    }

    /// Publishes the failure, and takes the step that follows from it.
    pub(super) async fn fail(&mut self, failure: ServiceError, event: Event) {
        let reason = Reason::Provider { message: failure.message.clone() };
        tracing::warn!(sandbox = %self.lease.id, error = %failure, cause = ?failure.cause, phase = self.lease.phase.as_str(), "an effect failed");
        self.failure = Some(failure);
        self.note(Transition::internal(event, reason)).await;
    }

    async fn on_booted(
        &mut self,
        row: InstanceRow,
        agent: AgentClient,
        command: StartedCommand,
        from_pool: bool,
    ) {
        if self.lease.instance.as_ref() != Some(&row.instance) {
            return self.count_late("instance");
        }
        self.agent = Some(agent);
        self.failure = None;
        self.seed = None;
        let first = self.lease.phase == Phase::Creating;
        let ready = Transition {
            instance: InstanceChange::Put(row),
            changed: self.with_command(&command),
            ..Transition::internal(Event::Ready, Reason::Completed)
        };
        self.note(ready).await;
        self.watch_command(command);
        if self.lease.phase == Phase::Running && first {
            self.inner.counters.created.fetch_add(1, Ordering::Relaxed);
            self.inner.counters.from_pool.fetch_add(u64::from(from_pool), Ordering::Relaxed);
        }
    }

    async fn on_not_booted(&mut self, failure: ServiceError) {
        self.inner.counters.failed.fetch_add(1, Ordering::Relaxed);
        self.seed = None;
        self.fail(failure, Event::Failed).await;
    }

    async fn on_frozen(&mut self, frozen: Result<MemoryLocation, ServiceError>) {
        match (frozen, self.lease.phase) {
            // It was done before the lease was written, and that write failed.
            (Ok(_), Phase::Running) => self.launch(Work::Resume),
            (Ok(held), _) => self.rest_paused(held, None).await,
            (Err(failure), Phase::Pausing) if self.is_stopped_instead(&failure) => {
                self.stop_instead(failure).await;
            }
            // In the middle of a pause: the instance is thawed again, and the caller receives the error.
            (Err(failure), Phase::Pausing) => self.fail(failure, Event::Failed).await,
            // It must be frozen as before, so this is tried again.
            (Err(failure), _) if self.attempts < LOOKS => {
                self.try_again(Work::Freeze { disk: false }, &failure);
            }
            (Err(failure), _) => {
                tracing::error!(sandbox = %self.lease.id, error = %failure, "it is unknown whether the sandbox is frozen");
            }
        }
    }

    /// Whether a sandbox that its provider cannot pause, although it can pause others, is stopped: it must not run on unnoticed.
    fn is_stopped_instead(&self, failure: &ServiceError) -> bool {
        let able = self.provider.capabilities();
        failure.code == Code::Unsupported && able.keeps_files && self.lease.intent == Intent::Pause
    }

    async fn stop_instead(&mut self, failure: ServiceError) {
        let message = format!("{}; it was stopped instead, and its files are kept", failure.message);
        tracing::info!(sandbox = %self.lease.id, error = %failure, "a sandbox is stopped because it cannot be paused");
        if let Err(error) = self.on_stop(Intent::Stop, Reason::Provider { message }, None).await {
            let failure = self.explain(Verb::Stop, error);
            self.fail(failure, Event::Failed).await;
        }
    }

    async fn on_checkpointed(&mut self, written: Result<(), ServiceError>) {
        match written {
            Ok(()) => {
                self.rest_paused(MemoryLocation::Disk, Some(EventKind::Checkpointed { failure: None })).await
            }
            Err(failure) => {
                tracing::warn!(sandbox = %self.lease.id, error = %failure, cause = ?failure.cause, "its memory was not written to disk");
                self.checkpoint_failed = true;
                let told = EventKind::Checkpointed { failure: Some(failure.message.clone()) };
                self.failure = Some(failure);
                self.rest_paused(MemoryLocation::Live, Some(told)).await;
            }
        }
    }

    /// The sandbox is frozen. Operations that were requested meanwhile are done now.
    async fn rest_paused(&mut self, held: MemoryLocation, also: Option<EventKind>) {
        let wanted_on_disk =
            self.lease.phase == Phase::Pausing && self.lease.held == Some(MemoryLocation::Disk);
        let mut step =
            Transition { held: Some(held), also, ..Transition::internal(Event::Paused, Reason::Completed) };
        if held == MemoryLocation::Disk
            && let Some(row) = self.row.clone()
        {
            // The checkpoint is unchanged: its agent knows the token that it knew first.
            let agent_token = Tokens::from_row(&row.agent_token).first().to_owned();
            if agent_token != row.agent_token {
                step.instance = InstanceChange::Put(InstanceRow { agent_token, ..row });
            }
        }
        if self.lease.phase == Phase::Pausing {
            // The reason of the pause is that of the request.
            step.reason = self.lease.reason.clone();
        }
        self.note(step).await;
        if self.lease.phase != Phase::Paused {
            return;
        }
        match (self.lease.intent, held) {
            (Intent::Run, _) => self.go_on().await,
            // It was requested while the instance was being frozen.
            (Intent::Pause, MemoryLocation::Live) if wanted_on_disk && !self.checkpoint_failed => {
                self.note(Transition::internal(Event::Checkpoint, Reason::Requested)).await;
            }
            (Intent::Pause | Intent::Stop | Intent::Archive | Intent::Delete, _) => {}
        }
    }

    async fn on_resumed(&mut self, restored: Option<(InstanceRow, AgentClient)>) {
        if self.lease.phase == Phase::Paused {
            // It was done before the lease was written, and that write failed.
            return self.launch(Work::Freeze { disk: false });
        }
        let mut ready = Transition::internal(Event::Ready, Reason::Completed);
        match restored {
            Some((row, agent)) => {
                if self.lease.instance.as_ref() != Some(&row.instance) {
                    return self.count_late("instance");
                }
                self.agent = Some(agent);
                ready.instance = InstanceChange::Put(row);
            }
            // After a restart of the server, or after a failed greeting, there is no client of its agent yet.
            None if self.agent.is_none() => self.agent = self.client_of_row(),
            None => {}
        }
        if self.lease.phase == Phase::Resuming {
            ready.reason = self.lease.reason.clone();
        }
        self.note(ready).await;
    }

    pub(super) fn client_of_row(&self) -> Option<AgentClient> {
        let row = self.row.as_ref()?;
        let token = Tokens::from_row(&row.agent_token);
        Some(crate::agent::client(&self.provider, &self.lease, &row.instance, token.first()))
    }

    async fn on_not_resumed(&mut self, failure: ServiceError, made: Option<serde_json::Value>) {
        tracing::warn!(sandbox = %self.lease.id, error = %failure, cause = ?failure.cause, "the sandbox was not resumed");
        let reason = Reason::Provider { message: failure.message.clone() };
        self.failure = Some(failure);
        let mut back = Transition::internal(Event::Failed, reason);
        if let (Some(facts), Some(row)) = (made, self.row.clone()) {
            back.instance = InstanceChange::Put(InstanceRow { facts, ..row });
            // In the same write: the next resume must thaw this instance, and not search for its former checkpoint.
            back.held = Some(MemoryLocation::Live);
        }
        self.note(back).await;
    }

    async fn on_archived(&mut self, kept: Result<ArchiveRef, ServiceError>) {
        match kept {
            Ok(archive) => {
                let step = Transition {
                    archive: Some(archive),
                    ..Transition::internal(Event::Archived, self.lease.reason.clone())
                };
                self.note(step).await;
                if self.lease.phase != Phase::Archived {
                    return;
                }
                self.inner.failpoint.reach("archive.written").await;
                self.launch(Work::ClearFiles);
                if matches!(self.lease.intent, Intent::Run | Intent::Stop) {
                    self.go_on().await;
                }
            }
            // It was ended early because another operation was requested.
            Err(_) if matches!(self.lease.intent, Intent::Run | Intent::Stop) => {
                self.note(Transition::internal(Event::Failed, Reason::Requested)).await;
                self.after_stop().await;
            }
            Err(failure) => {
                let reason = Reason::Provider { message: failure.message.clone() };
                tracing::warn!(sandbox = %self.lease.id, error = %failure, cause = ?failure.cause, "the sandbox was not archived");
                let is_too_large = failure.code == Code::DiskFull;
                self.failure = Some(failure);
                self.note(Transition::internal(Event::Failed, reason)).await;
                if is_too_large {
                    self.give_up_archiving();
                }
                self.tidy_objects();
            }
        }
    }

    async fn on_unarchived(&mut self, fetched: Result<(), ServiceError>) {
        match fetched {
            Ok(()) => {
                self.note(Transition::internal(Event::Stopped, Reason::Completed)).await;
                self.after_stop().await;
            }
            Err(failure) => {
                let reason = Reason::Provider { message: failure.message.clone() };
                tracing::warn!(sandbox = %self.lease.id, error = %failure, cause = ?failure.cause, "its files were not restored");
                self.failure = Some(failure);
                self.note(Transition::internal(Event::Failed, reason)).await;
            }
        }
    }

    /// A stop is tried again until its deadline while the provider does not answer; what is left of an instance without end.
    async fn on_not_halted(&mut self, failure: ServiceError, instance: Option<InstanceId>) {
        if self.lease.phase == Phase::Stopping && failure.code.kind() != ErrorKind::Unavailable {
            return self.fail(failure, Event::Failed).await;
        }
        self.try_again(Work::Halt { instance }, &failure);
        self.failure = Some(failure);
    }

    async fn on_halted(&mut self) {
        // Its stop failed, because the provider did not answer for instance, and is done now.
        if self.lease.is_recoverable() && self.lease.intent == Intent::Stop {
            return self.note(Transition::internal(Event::Stop, Reason::Completed)).await;
        }
        if self.lease.phase == Phase::Stopping {
            let reason = match &self.lease.reason {
                stopped_instead @ Reason::Provider { .. } => stopped_instead.clone(),
                _ => Reason::Completed,
            };
            self.note(Transition::internal(Event::Stopped, reason)).await;
            self.after_stop().await;
        }
    }

    /// The sandbox is stopped; if the stop was the first part of an operation, the second part begins.
    pub(super) async fn after_stop(&mut self) {
        if self.lease.phase != Phase::Stopped {
            return;
        }
        if self.lease.is_being_copied() {
            return self.begin_copy().await;
        }
        self.end_of_stop().await;
    }

    /// What the intent says after a stop.
    pub(super) async fn end_of_stop(&mut self) {
        self.tidy_objects();
        match self.lease.intent {
            Intent::Run => self.go_on().await,
            Intent::Archive => {
                if let Err(error) = self.on_verb(&Action::Archive, Reason::Requested).await {
                    let failure = self.explain(Verb::Archive, error);
                    tracing::warn!(sandbox = %self.lease.id, error = %failure, "an archive upload ended after the stop");
                    self.failure = Some(failure);
                    self.publish();
                }
            }
            Intent::Pause | Intent::Stop | Intent::Delete => {}
        }
    }

    /// The second part of a restart, a wake or a rollback. Without capacity or quota it stays where it is, with the
    /// intent to run.
    pub(super) async fn go_on(&mut self) {
        let (intent, reason) = (self.lease.intent, self.lease.reason.clone());
        let reason = if matches!(reason, Reason::Woken) { reason } else { Reason::Requested };
        if let Err(error) = self.on_start(intent, reason, None).await {
            let failure = self.explain(Verb::Start, error);
            tracing::warn!(sandbox = %self.lease.id, error = %failure, "a start ended early");
            self.failure = Some(failure);
            self.publish();
        }
    }

    /// Its archive was removed from object storage: the lease no longer needs to name it.
    pub(super) async fn on_tidied(&mut self, archive: &ArchiveRef) {
        let is_here = match self.lease.phase {
            Phase::Archiving | Phase::Archived | Phase::Deleting | Phase::Deleted => false,
            Phase::Restoring => self.lease.rollback_to.is_some(),
            Phase::Creating
            | Phase::Running
            | Phase::Pausing
            | Phase::Paused
            | Phase::Resuming
            | Phase::Stopping
            | Phase::Stopped
            | Phase::Starting
            | Phase::Failed => true,
        };
        if !is_here || self.lease.archive.as_ref() != Some(archive) {
            return;
        }
        let next = atoll_model::Lease { archive: None, ..self.lease.clone() };
        if let Err(error) = self.write(next, InstanceChange::Keep, Admit::Nothing, vec![], true).await {
            tracing::warn!(sandbox = %self.lease.id, %error, "its removed archive is still recorded");
        }
    }

    /// Retries an end without limit; each attempt waits longer than the one before, up to half a minute.
    pub(super) fn try_again(&mut self, work: Work, failure: &ServiceError) {
        self.attempts += 1;
        let delay = Duration::from_millis(250 << self.attempts.min(7));
        tracing::warn!(sandbox = %self.lease.id, error = %failure, cause = ?failure.cause, ?delay, "will be tried again");
        self.launch_after(work, delay);
    }

    pub(super) fn count_late(&self, what: &str) {
        self.inner.counters.late_effects.fetch_add(1, Ordering::Relaxed);
        tracing::info!(sandbox = %self.lease.id, what, "late, dropped");
    }
}
