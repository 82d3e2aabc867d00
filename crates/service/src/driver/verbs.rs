//! What can be asked of a sandbox, and the step that each verb begins with. What comes after it is the intent's.

use std::sync::Arc;

use atoll_model::lifecycle::{self, Event, Refused};
use atoll_model::{Code, Intent, MemoryLocation, Phase, Reason, Storage};
use atoll_store::Admit;

use super::Driver;
use super::steps::{StepError, Transition};
use crate::ServiceError;
use crate::snapshots::Seed;

/// What can be asked of a sandbox.
#[derive(Debug, Clone)]
pub(crate) enum Verb {
    /// Run, from wherever it is.
    Start,
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

impl Verb {
    /// The verb as the API names it.
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Stop => "stop",
            Self::Restart => "restart",
            Self::Pause(_) => "pause",
            Self::Archive => "archive",
            Self::Restore => "restore",
            Self::Rollback(_) => "rollback",
            Self::Delete => "delete",
        }
    }
}

impl Driver {
    pub(super) async fn on_verb(&mut self, verb: &Verb, reason: Reason) -> Result<(), StepError> {
        match (verb, self.lease.phase) {
            (Verb::Start, _) | (Verb::Restart, Phase::Stopped | Phase::Failed | Phase::Archived) => {
                self.on_start(Intent::Run, reason).await
            }
            // While it stops with the intent to run, the end of the stop starts it again, also after a crash.
            (Verb::Restart | Verb::Stop, _) => {
                let intent = if matches!(verb, Verb::Restart) { Intent::Run } else { Intent::Stop };
                self.step(Transition::asked(Event::Stop, intent, reason)).await?;
                self.end_transfer();
                Ok(())
            }
            (Verb::Pause(held), _) => self.on_pause(*held, reason).await,
            (Verb::Archive, _) => self.on_archive(reason).await,
            (Verb::Restore, Phase::Stopped) => Ok(()),
            (Verb::Restore, Phase::Restoring) if self.lease.rollback_to.is_none() => Ok(()),
            (Verb::Restore, Phase::Archived) => self.on_start(Intent::Stop, reason).await,
            (Verb::Restore, phase) => Err(Refused { phase, event: Event::Archived }.into()),
            (Verb::Rollback(seed), phase) => {
                let intent = if phase == Phase::Stopped { Intent::Stop } else { Intent::Run };
                self.seed = Some(Arc::clone(seed));
                let rollback_to = Some(seed.snapshot.clone());
                let step = Transition { rollback_to, ..Transition::asked(Event::Rollback, intent, reason) };
                self.step(step).await.inspect_err(|_| self.seed = None)
            }
            (Verb::Delete, _) => self.step(Transition::asked(Event::Delete, Intent::Delete, reason)).await,
        }
    }

    /// Runs it, or with another intent brings it nearer to that, from wherever it is.
    pub(super) async fn on_start(&mut self, intent: Intent, reason: Reason) -> Result<(), StepError> {
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
                .reserve(self.inner.provider.as_ref(), &self.lease)
                .await
                .map_err(ServiceError::from)?;
        }
        if self.lease.phase == Phase::Archived {
            let files = self.inner.admission.reserve_files(self.inner.provider.as_ref(), &self.lease);
            files.await.map_err(ServiceError::from)?;
        }
        let admit = if needs_room { Admit::Compute } else { Admit::Nothing };
        let outcome =
            self.step(Transition { admit, ..Transition::asked(Event::Start, intent, reason) }).await;
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
        let able = self.inner.provider.capabilities();
        if !able.pauses || (held == MemoryLocation::Disk && !able.checkpoints) {
            let what = if able.pauses { "memory: disk" } else { "pause" };
            let message = format!("{what} is not possible on this server");
            let hint = "atoll doctor shows what is missing";
            return Err(ServiceError::new(Code::Unsupported, message).hint(hint).into());
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
        let able = self.inner.provider.capabilities();
        if !able.packs || !able.keeps_files || self.lease.storage == Storage::Memory {
            let message = format!("sandbox {} has no files that could be archived", self.lease.id);
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
