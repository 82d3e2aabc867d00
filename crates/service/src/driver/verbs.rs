//! What can be asked of a sandbox: the guard that every verb passes, and the step that it begins with. What comes after that
//! is the intent's.

use std::sync::Arc;

use atoll_model::lifecycle::{self, Event, PhaseSet, Verb};
use atoll_model::{Code, Intent, MemoryLocation, Phase, Reason, Storage};
use atoll_provider::Capability;
use atoll_store::Admit;

use super::Driver;
use super::steps::{ChangedLease, StepError, Transition};
use crate::ServiceError;
use crate::error::refused;
use crate::snapshots::Seed;
use crate::wake::{WakeMemory, WakeRequest};

/// A verb with what it needs.
#[derive(Debug, Clone)]
pub(crate) enum Action {
    /// Run, from wherever it is. The verb is [`Verb::Start`], [`Verb::Wake`] or [`Verb::Recover`].
    Run(Verb, WakeRequest),
    Stop,
    Restart,
    /// Freeze; the caller chooses the location of the memory.
    Pause(MemoryLocation),
    /// Move the files to object storage.
    Archive,
    /// Download the files, without starting.
    Restore,
    /// Restore the files, and the processes if the snapshot has them.
    Rollback(Arc<Seed>),
    Delete,
}

impl Action {
    pub(super) const fn verb(&self) -> Verb {
        match self {
            Self::Run(verb, _) => *verb,
            Self::Stop => Verb::Stop,
            Self::Restart => Verb::Restart,
            Self::Pause(_) => Verb::Pause,
            Self::Archive => Verb::Archive,
            Self::Restore => Verb::Restore,
            Self::Rollback(_) => Verb::Rollback,
            Self::Delete => Verb::Delete,
        }
    }
}

impl Driver {
    /// The only guard of transitions: the phase must be one that the verb accepts and that the caller expects.
    pub(super) fn guard(&self, verb: Verb, expect: Option<PhaseSet>) -> Result<(), ServiceError> {
        let phase = self.lease.phase;
        let is_expected = expect.is_none_or(|phases| phases.contains(phase));
        if is_expected && verb.accepts().contains(phase) { Ok(()) } else { Err(refused(&self.lease, verb)) }
    }

    pub(super) async fn on_verb(&mut self, action: &Action, reason: Reason) -> Result<(), StepError> {
        self.guard(action.verb(), None)?;
        match (action, self.lease.phase) {
            (Action::Run(verb, request), _) => self.on_run(*verb, request, reason).await,
            (Action::Restart, Phase::Stopped | Phase::Failed | Phase::Archived) => {
                self.on_start(Intent::Run, reason, None).await
            }
            (Action::Restart, _) => self.on_stop(Intent::Run, reason, None).await,
            (Action::Stop, _) => self.on_stop(Intent::Stop, reason, None).await,
            (Action::Pause(held), _) => self.on_pause(*held, reason).await,
            (Action::Archive, _) => self.on_archive(reason).await,
            (Action::Restore, Phase::Archived) => self.on_start(Intent::Stop, reason, None).await,
            (Action::Restore, Phase::Restoring) if self.lease.rollback_to.is_some() => {
                Err(refused(&self.lease, Verb::Restore).into())
            }
            (Action::Restore, _) => Ok(()),
            (Action::Rollback(seed), phase) => {
                let intent = if phase == Phase::Stopped { Intent::Stop } else { Intent::Run };
                self.seed = Some(Arc::clone(seed));
                let rollback_to = Some(seed.snapshot.clone());
                let step = Transition { rollback_to, ..Transition::asked(Event::Rollback, intent, reason) };
                self.step(step).await.inspect_err(|_| self.seed = None)
            }
            (Action::Delete, _) => self.step(Transition::asked(Event::Delete, Intent::Delete, reason)).await,
        }
    }

    /// Makes it run, with the lifetime that the request wants, in one write: a timer that ends the old lifetime comes before
    /// or after it, never in between.
    async fn on_run(&mut self, verb: Verb, request: &WakeRequest, reason: Reason) -> Result<(), StepError> {
        if verb == Verb::Recover && !self.lease.is_recoverable() {
            let message = format!("sandbox {} failed and has no files to start from", self.lease.id);
            let error = ServiceError { message, ..refused(&self.lease, verb) };
            return Err(error.hint("delete it and create a new one").into());
        }
        let changed = match request.change(self.lease.phase) {
            Some(change) => Some(Box::new(self.changed(&change).await?)),
            None => None,
        };
        match (self.lease.phase, request.memory) {
            // It runs by itself once it is made.
            (Phase::Creating, _) => match changed {
                Some(changed) => Ok(self.write_changed(*changed).await?),
                None => Ok(()),
            },
            // Its processes are being ended: it starts as soon as they are.
            (Phase::Stopping, _) | (Phase::Pausing | Phase::Paused, WakeMemory::Drop) => {
                self.on_stop(Intent::Run, reason, changed).await
            }
            (_, WakeMemory::Keep | WakeMemory::Drop) => self.on_start(Intent::Run, reason, changed).await,
        }
    }

    /// Ends its processes. While it stops with the intent to run, the end of the stop starts it again, also after a crash.
    pub(super) async fn on_stop(
        &mut self,
        intent: Intent,
        reason: Reason,
        changed: Option<Box<ChangedLease>>,
    ) -> Result<(), StepError> {
        if !self.provider.capabilities().keeps_files && self.lease.phase.has_instance() {
            let error = ServiceError::from(self.provider.missing(Capability::KeepFiles));
            return Err(error.hint("pause it, or delete it: a stop would lose its files").into());
        }
        self.step(Transition { changed, ..Transition::asked(Event::Stop, intent, reason) }).await?;
        self.end_transfer();
        Ok(())
    }

    /// Runs it, or with another intent brings it nearer to that, from wherever it is.
    pub(super) async fn on_start(
        &mut self,
        intent: Intent,
        reason: Reason,
        changed: Option<Box<ChangedLease>>,
    ) -> Result<(), StepError> {
        let (to, _) = lifecycle::step(self.lease.phase, Event::Start)?;
        if self.lease.awaits.is_some() {
            let message = format!("sandbox {} has no files: its image could not be made", self.lease.id);
            let hint = "its reason says why; delete it and create it again";
            return Err(ServiceError::new(Code::PhaseConflict, message).hint(hint).into());
        }
        self.refuse_forbidden_reach(intent)?;
        let was_held = self.lease.holds_compute();
        let needs_room = !was_held && to.has_instance();
        if needs_room {
            self.inner
                .admission
                .reserve(self.provider.as_ref(), &self.lease)
                .await
                .map_err(ServiceError::from)?;
        }
        if self.lease.phase == Phase::Archived {
            let files = self.inner.admission.reserve_files(self.provider.as_ref(), &self.lease);
            files.await.map_err(ServiceError::from)?;
        }
        let admit = if needs_room { Admit::Compute } else { Admit::Nothing };
        let step = Transition { admit, changed, ..Transition::asked(Event::Start, intent, reason) };
        let outcome = self.step(step).await;
        if outcome.is_err() && needs_room {
            self.inner.admission.release(&self.lease.id);
        }
        if outcome.is_err() {
            self.inner.admission.count_files(&self.lease);
        }
        self.end_transfer();
        outcome
    }

    /// Files that are being uploaded are still here, so a start need not wait for the end of the upload.
    fn end_transfer(&self) {
        if self.lease.phase == Phase::Archiving && self.lease.intent != Intent::Archive {
            self.cut_short();
        }
    }

    async fn on_pause(&mut self, held: MemoryLocation, reason: Reason) -> Result<(), StepError> {
        let able = self.provider.capabilities();
        if !able.pauses || (held == MemoryLocation::Disk && !able.checkpoints) {
            let missing = if able.pauses { Capability::Checkpoint } else { Capability::Pause };
            return Err(ServiceError::from(self.provider.missing(missing)).into());
        }
        if self.lease.phase == Phase::Paused {
            let on_disk = self.lease.held == Some(MemoryLocation::Disk);
            let event =
                if held == MemoryLocation::Disk && !on_disk { Event::Checkpoint } else { Event::Pause };
            return self.step(Transition::asked(event, Intent::Pause, reason)).await;
        }
        // While the sandbox is being paused, `held` is the future location of its memory.
        let also_disk = self.lease.phase == Phase::Pausing && self.lease.held == Some(MemoryLocation::Disk);
        let held = if also_disk { MemoryLocation::Disk } else { held };
        self.step(Transition { held: Some(held), ..Transition::asked(Event::Pause, Intent::Pause, reason) })
            .await
    }

    /// A running or frozen sandbox is stopped first; the end of the stop continues, also after a crash.
    async fn on_archive(&mut self, reason: Reason) -> Result<(), StepError> {
        let able = self.provider.capabilities();
        if !able.packs || !able.keeps_files {
            return Err(ServiceError::from(self.provider.missing(Capability::Archive)).into());
        }
        if self.lease.storage == Storage::Memory {
            let message =
                format!("sandbox {} keeps its files in memory; they cannot be archived", self.lease.id);
            return Err(ServiceError::new(Code::Unsupported, message).into());
        }
        let event = match self.lease.phase {
            Phase::Running | Phase::Pausing | Phase::Paused | Phase::Resuming | Phase::Stopping => {
                Event::Stop
            }
            Phase::Creating
            | Phase::Stopped
            | Phase::Starting
            | Phase::Archiving
            | Phase::Archived
            | Phase::Restoring
            | Phase::Failed
            | Phase::Deleting
            | Phase::Deleted => Event::Archive,
        };
        self.uploads = true;
        self.step(Transition::asked(event, Intent::Archive, reason)).await
    }
}
