//! How a lease changes: one step of the table, one write, one publication. Nothing else assigns a phase.

use std::sync::Arc;
use std::time::Duration;

use atoll_model::lifecycle::{self, Effect, Event, Refused};
use atoll_model::{
    ArchiveRef, EventKind, InstanceId, Intent, Lease, MemoryLocation, OnTimeout, Phase, Reason, SnapshotId,
    TimeoutCounts, Timestamp,
};
use atoll_store::{Admit, Advance, InstanceChange, NewEvent, StoreError};

use super::effects::Work;
use super::{Driver, Verb};
use crate::ServiceError;
use crate::random::entropy;
use crate::registry::DriverState;
use crate::timed::timed;

/// The last word of the annotation by which a front knows what it made, such as `e2b.made`.
const MADE: &str = ".made";

/// A change of phase that is about to be tried.
pub(super) struct Transition {
    pub(super) event: Event,
    pub(super) reason: Reason,
    pub(super) intent: Option<Intent>,
    pub(super) instance: InstanceChange,
    pub(super) admit: Admit,
    /// Where the memory is, or shall go.
    pub(super) held: Option<MemoryLocation>,
    /// Where the files are now.
    pub(super) archive: Option<ArchiveRef>,
    /// What it shall be put back to.
    pub(super) rollback_to: Option<SnapshotId>,
    /// What else to tell the listeners.
    pub(super) also: Option<EventKind>,
    /// Internal results are written again when the disk fails for a moment; a caller is told at once.
    pub(super) patient: bool,
}

impl Transition {
    pub(super) fn internal(event: Event, reason: Reason) -> Self {
        Self {
            event,
            reason,
            intent: None,
            instance: InstanceChange::Keep,
            admit: Admit::Nothing,
            held: None,
            archive: None,
            rollback_to: None,
            also: None,
            patient: true,
        }
    }

    pub(super) fn asked(event: Event, intent: Intent, reason: Reason) -> Self {
        let patient = !matches!(reason, Reason::Requested | Reason::Woken);
        Self { intent: Some(intent), patient, ..Self::internal(event, reason) }
    }
}

#[derive(Debug, thiserror::Error)]
pub(super) enum StepError {
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Service(#[from] ServiceError),
}

impl Driver {
    /// A step that nobody waits for: a refusal means that the lease moved on.
    pub(super) async fn note(&mut self, step: Transition) {
        let event = step.event;
        match self.step(step).await {
            Ok(()) => {}
            Err(StepError::Refused(refused)) => {
                tracing::debug!(sandbox = %self.lease.id, %refused, "ignored")
            }
            Err(error) => {
                tracing::error!(sandbox = %self.lease.id, ?event, %error, "a change was not recorded")
            }
        }
    }

    pub(super) async fn step(&mut self, step: Transition) -> Result<(), StepError> {
        let from = self.lease.phase;
        let (to, effect) = lifecycle::step(from, step.event)?;
        let mut next = self.lease.clone();
        next.phase = to;
        next.intent = step.intent.unwrap_or(next.intent);
        // A failed delete stays in its phase and is given its time anew.
        if to != from || step.event == Event::Failed {
            next.phase_at = self.inner.clock.now();
            next.reason = step.reason.clone();
        }
        if from == Phase::Running && to != from {
            next.active_at = Some(self.activity.active_at(&next.phase_at));
        }
        let before = self.lease.instance.clone();
        let also = step.also.clone();
        let (admit, patient) = (step.admit, step.patient);
        let instance = self.dress(&mut next, step, effect)?;
        let ahead = self.begin_ahead(&next, effect);
        if next != self.lease || instance != InstanceChange::Keep || also.is_some() {
            let at = self.inner.clock.now();
            let moved = EventKind::Phase { from: Some(from), to, reason: next.reason.clone() };
            let told = (to != from).then_some(moved).into_iter().chain(also);
            let events =
                told.map(|what| NewEvent { at: at.clone(), instance: before.clone(), what }).collect();
            let written = self.write(next, instance, admit, events, patient).await;
            if let Err(error) = written {
                self.take_back(ahead);
                return Err(error.into());
            }
        }
        if ahead.is_none() {
            self.follow(effect, before);
        }
        Ok(())
    }

    /// What the lease now needs at the provider.
    fn follow(&mut self, effect: Effect, before: Option<InstanceId>) {
        let on_disk = self.lease.held == Some(MemoryLocation::Disk);
        let work = match effect {
            Effect::None => return,
            Effect::Boot => Work::Boot,
            Effect::Halt => Work::Halt { instance: before },
            // While it is being paused `held` says where its memory shall go.
            Effect::Freeze => Work::Freeze { disk: on_disk && self.lease.phase == Phase::Pausing },
            Effect::Checkpoint => Work::Checkpoint,
            Effect::Resume if on_disk => Work::Restore { made: None },
            Effect::Resume => Work::Resume,
            Effect::Archive => Work::Archive,
            Effect::Restore if self.lease.rollback_to.is_some() => Work::Rollback,
            Effect::Restore => Work::Unarchive,
            Effect::Destroy => Work::Destroy,
        };
        self.launch(work);
    }

    /// A freeze and a thaw take less time than the disk needs to write that they begin, and undo each other: they go ahead.
    /// After a crash in between the lease says what was before, and adoption makes it so. Answers with what would undo it.
    fn begin_ahead(&mut self, next: &Lease, effect: Effect) -> Option<Work> {
        let undo = match (effect, self.lease.phase, next.held) {
            (Effect::Freeze, Phase::Running, Some(MemoryLocation::Live)) => {
                // Whoever comes now shall not talk to an agent that is about to stand still.
                self.publish_as(next);
                self.launch(Work::Freeze { disk: false });
                Work::Resume
            }
            (Effect::Resume, Phase::Paused, Some(MemoryLocation::Live)) => {
                self.launch(Work::Resume);
                Work::Freeze { disk: false }
            }
            _ => return None,
        };
        Some(undo)
    }

    /// The lease could not be written: what went ahead is undone.
    fn take_back(&mut self, ahead: Option<Work>) {
        if let Some(undo) = ahead {
            self.launch(undo);
            self.publish();
        }
    }

    /// What else of the lease goes with the change of phase, and what happens to the instance row.
    fn dress(
        &mut self,
        next: &mut Lease,
        step: Transition,
        effect: Effect,
    ) -> Result<InstanceChange, StepError> {
        let (from, to) = (self.lease.phase, next.phase);
        let mut instance = step.instance;
        next.held = step.held.or(next.held);
        next.archive = step.archive.or(next.archive.take());
        next.rollback_to = step.rollback_to.or(next.rollback_to.take());
        match to {
            Phase::Starting if effect == Effect::Boot => {
                next.instance = Some(InstanceId::from_entropy(entropy()?));
            }
            // The new name is in the store before the restore begins, with both tokens that the agent may then answer to.
            Phase::Resuming if from == Phase::Paused && next.held == Some(MemoryLocation::Disk) => {
                instance = InstanceChange::Restored(self.row_to_restore()?);
            }
            Phase::Pausing if step.event == Event::Checkpoint => next.held = Some(MemoryLocation::Live),
            // A pause that failed left it frozen with its memory where it was.
            Phase::Resuming if from == Phase::Pausing => next.held = Some(MemoryLocation::Live),
            Phase::Stopped | Phase::Failed | Phase::Archived | Phase::Deleted if to != from => {
                next.instance = None;
                instance = InstanceChange::Drop;
            }
            Phase::Creating
            | Phase::Running
            | Phase::Pausing
            | Phase::Paused
            | Phase::Resuming
            | Phase::Stopping
            | Phase::Stopped
            | Phase::Starting
            | Phase::Archiving
            | Phase::Archived
            | Phase::Restoring
            | Phase::Failed
            | Phase::Deleting
            | Phase::Deleted => {}
        }
        if let InstanceChange::Put(row) | InstanceChange::Restored(row) = &instance {
            next.instance = Some(row.instance.clone());
        }
        self.dates(next, from);
        Ok(instance)
    }

    /// What a phase forgets, when a stop was, and that what could not be done is not wanted any more.
    fn dates(&self, next: &mut Lease, from: Phase) {
        match next.phase {
            Phase::Running => {
                (next.held, next.stopped_at, next.rollback_to) = (None, None, None);
                if next.phase != from {
                    next.started_at = Some(next.phase_at.clone());
                }
                if next.phase != from && from != Phase::Creating {
                    next.timeout_at = woken_until(next);
                }
                next.intent = if next.intent == Intent::Pause { Intent::Run } else { next.intent };
            }
            Phase::Stopped | Phase::Failed if next.phase != from => {
                next.held = None;
                if next.phase == Phase::Failed && next.awaits.is_some() {
                    // Its lifetime would have begun with the boot.
                    next.timeout_at = next.timeout_s.map(|s| crate::create::timeout_at(&next.phase_at, s));
                }
                if from == Phase::Archiving && next.intent == Intent::Archive {
                    next.intent = Intent::Stop;
                }
                next.rollback_to = None;
                // A failed archive is no new stop. What was just brought back is wanted here: its age begins anew.
                if from == Phase::Restoring || next.stopped_at.is_none() {
                    next.stopped_at = Some(next.phase_at.clone());
                }
            }
            Phase::Paused => {
                next.rollback_to = None;
                next.intent = if from == Phase::Resuming { Intent::Pause } else { next.intent };
            }
            Phase::Archived if from == Phase::Restoring => next.intent = Intent::Archive,
            // A rollback that is refused leaves it as it was; until its end `held` says how that is.
            Phase::Restoring if next.rollback_to.is_none() => next.held = None,
            // The record needs no secrets. Which front made it is none, and decides in whose words others hear that it is gone.
            Phase::Deleted => {
                next.env.clear();
                next.network.transforms.clear();
                next.annotations.retain(|name, _| name.ends_with(MADE));
                next.awaits = None;
            }
            Phase::Creating
            | Phase::Pausing
            | Phase::Resuming
            | Phase::Stopping
            | Phase::Stopped
            | Phase::Starting
            | Phase::Archiving
            | Phase::Archived
            | Phase::Restoring
            | Phase::Failed
            | Phase::Deleting => {}
        }
    }

    /// Writes the lease as `next`, then publishes it.
    pub(super) async fn write(
        &mut self,
        mut next: Lease,
        instance: InstanceChange,
        admit: Admit,
        events: Vec<NewEvent>,
        patient: bool,
    ) -> Result<(), StoreError> {
        next.generation = self.lease.generation + 1;
        let change = Advance { lease: next, instance, admit, events };
        self.inner.failpoint.reach("advance.before").await;
        // LIMIT: half a second of a disk that hiccups; after that the phase's own deadline takes over.
        let tries = if patient { 5 } else { 1 };
        for attempt in 1..=tries {
            match timed("advance", self.inner.store.advance(change.clone())).await {
                Ok(()) => break,
                Err(StoreError::NotCommitted { .. }) if attempt < tries => {
                    tokio::time::sleep(Duration::from_millis(20 << attempt)).await;
                }
                Err(error) => {
                    if matches!(error, StoreError::Stale { .. }) {
                        tracing::error!(sandbox = %self.lease.id, "another writer changed the lease");
                        self.reload().await;
                    }
                    return Err(error);
                }
            }
        }
        self.inner.failpoint.reach("advance.after").await;
        let before = std::mem::replace(&mut self.lease, change.lease);
        match change.instance {
            InstanceChange::Keep => {}
            InstanceChange::Put(row) | InstanceChange::Restored(row) => self.row = Some(row),
            InstanceChange::Drop => self.row = None,
        }
        if !self.keeps_agent() {
            self.agent = None;
        }
        if self.lease.phase != Phase::Paused && self.lease.phase != Phase::Pausing {
            self.checkpoint_failed = false;
        }
        if !self.lease.holds_compute() {
            self.inner.admission.release(&self.lease.id);
        }
        self.inner.admission.count_files(&self.lease);
        self.publish();
        if (before.phase, before.stage) != (self.lease.phase, self.lease.stage) {
            self.inner.changes.tell(Some(before), &self.lease);
        }
        Ok(())
    }

    /// Connections to a frozen agent outlive the freeze.
    fn keeps_agent(&self) -> bool {
        match self.lease.phase {
            Phase::Running | Phase::Pausing | Phase::Resuming => true,
            Phase::Paused => self.lease.held == Some(MemoryLocation::Live),
            Phase::Creating
            | Phase::Stopping
            | Phase::Stopped
            | Phase::Starting
            | Phase::Archiving
            | Phase::Archived
            | Phase::Restoring
            | Phase::Failed
            | Phase::Deleting
            | Phase::Deleted => false,
        }
    }

    pub(super) fn publish(&self) {
        self.schedule();
        self.publish_as(&self.lease);
    }

    fn publish_as(&self, lease: &Lease) {
        self.publish.send_replace(DriverState {
            lease: Arc::new(lease.clone()),
            agent: self.agent.clone().filter(|_| lease.phase == Phase::Running),
            failure: self.failure.clone(),
        });
        // After the phase is published: see [`crate::activity::Activity::falls_asleep`].
        self.activity.observe(lease);
    }

    pub(super) async fn reload(&mut self) {
        match self.inner.store.lease(&self.lease.id).await {
            Ok(Some(lease)) => {
                self.lease = lease;
                self.reload_row().await;
                self.publish();
            }
            Ok(None) => tracing::error!(sandbox = %self.lease.id, "the lease is not in the store"),
            Err(error) => tracing::error!(sandbox = %self.lease.id, %error, "the lease could not be read"),
        }
    }

    /// The row of the instance as the store has it: a write may have been the last thing before a panic.
    async fn reload_row(&mut self) {
        match self.inner.store.live().await {
            Ok(live) => {
                let own = live.into_iter().find(|(lease, _)| lease.id == self.lease.id);
                self.row = own.and_then(|(_, row)| row);
            }
            Err(error) => tracing::error!(sandbox = %self.lease.id, %error, "its instance could not be read"),
        }
    }

    pub(super) fn explain(&self, verb: &Verb, error: StepError) -> ServiceError {
        match error {
            StepError::Refused(_) => crate::error::phase_conflict(&self.lease, verb.name()),
            StepError::Store(error) => error.into(),
            StepError::Service(error) => error,
        }
    }
}

/// How long a sandbox that runs again may live. One whose lifetime paused or stopped it gets another one, or it would fall
/// asleep before it could answer; one whose lifetime counts awake alone gets all of it.
fn woken_until(lease: &Lease) -> Option<Timestamp> {
    let until = lease.timeout_at.clone()?;
    let anew = lease.timeout_s.map(|s| crate::create::timeout_at(&lease.phase_at, s));
    let is_over = until.ms_after(&lease.phase_at) <= 0;
    match (lease.timeout_counts, anew) {
        (TimeoutCounts::Awake, Some(anew)) if anew.ms_after(&until) > 0 => Some(anew),
        (TimeoutCounts::Awake, None) if is_over => None,
        (TimeoutCounts::Always, anew) if is_over && lease.on_timeout != OnTimeout::Delete => anew,
        (TimeoutCounts::Always | TimeoutCounts::Awake, _) => Some(until),
    }
}
