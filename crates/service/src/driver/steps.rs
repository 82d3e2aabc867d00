//! How a lease changes: one step of the table, one write, one publication. No other code assigns a phase.

use std::sync::Arc;
use std::time::Duration;

use atoll_model::lifecycle::{self, Effect, Event, Refused, Verb};
use atoll_model::{
    ArchiveRef, EventKind, InstanceId, Intent, Lease, MemoryLocation, OnTimeout, Phase, Reason, SnapshotId,
    TimeoutCounts, Timestamp,
};
use atoll_store::{Admit, Advance, InstanceChange, NewEvent, StoreError};

use super::Driver;
use super::effects::Work;
use crate::ServiceError;
use crate::random::entropy;
use crate::registry::DriverState;
use crate::timed::timed;

/// The suffix of the annotation by which a front identifies its own sandboxes, such as `e2b.made`.
const MADE: &str = ".made";

/// A change of phase to try.
pub(super) struct Transition {
    pub(super) event: Event,
    pub(super) reason: Reason,
    pub(super) intent: Option<Intent>,
    pub(super) instance: InstanceChange,
    pub(super) admit: Admit,
    /// The location of the memory, or its future location.
    pub(super) held: Option<MemoryLocation>,
    /// The current location of the files.
    pub(super) archive: Option<ArchiveRef>,
    /// The snapshot to roll back to.
    pub(super) rollback_to: Option<SnapshotId>,
    /// What else of the lease changes with it.
    pub(super) changed: Option<Box<ChangedLease>>,
    /// A further event for listeners.
    pub(super) also: Option<EventKind>,
    /// Whether to retry the write after a failure of the disk: internal results are retried, a caller receives the
    /// error at once.
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
            changed: None,
            also: None,
            patient: true,
        }
    }

    pub(super) fn asked(event: Event, intent: Intent, reason: Reason) -> Self {
        let patient = !matches!(reason, Reason::Requested | Reason::Woken);
        Self { intent: Some(intent), patient, ..Self::internal(event, reason) }
    }
}

/// A lease with settings that are not written yet, and which they are.
pub(super) struct ChangedLease {
    pub(super) lease: Lease,
    pub(super) fields: Vec<String>,
}

impl ChangedLease {
    pub(super) fn event(fields: Vec<String>) -> Option<EventKind> {
        (!fields.is_empty()).then_some(EventKind::Updated { fields })
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
    /// Takes a step without a waiting caller: a refusal means that the phase has changed meanwhile.
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

    pub(super) async fn step(&mut self, mut step: Transition) -> Result<(), StepError> {
        let from = self.lease.phase;
        let (to, effect) = lifecycle::step(from, step.event)?;
        let (mut next, updated) = match step.changed.take() {
            Some(changed) => (changed.lease, ChangedLease::event(changed.fields)),
            None => (self.lease.clone(), None),
        };
        next.phase = to;
        next.intent = step.intent.unwrap_or(next.intent);
        // A failed delete stays in its phase and gets its full time again.
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
            let told = updated.into_iter().chain((to != from).then_some(moved)).chain(also);
            let events = told
                .map(|what| NewEvent { at: at.clone(), instance: before.clone(), what, by: self.by.clone() })
                .collect();
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

    /// Starts the effect that the lease now needs.
    fn follow(&mut self, effect: Effect, before: Option<InstanceId>) {
        let on_disk = self.lease.held == Some(MemoryLocation::Disk);
        let work = match effect {
            Effect::None => return,
            Effect::Boot => Work::Boot,
            Effect::Halt => Work::Halt { instance: before },
            // While the sandbox is being paused, `held` is the future location of its memory.
            Effect::Freeze => Work::Freeze { disk: on_disk && self.lease.phase == Phase::Pausing },
            Effect::Checkpoint => Work::Checkpoint,
            Effect::Resume if on_disk => Work::Restore { made: None },
            Effect::Resume => Work::Resume,
            Effect::Archive => Work::Archive,
            Effect::Restore if self.lease.is_being_copied() => Work::Move,
            Effect::Restore if self.lease.rollback_to.is_some() => Work::Rollback,
            Effect::Restore => Work::Unarchive,
            Effect::Destroy => Work::Destroy,
        };
        self.launch(work);
    }

    /// A freeze and a thaw are faster than the write that records their begin, and undo each other: they are started
    /// before the write. After a crash in between the lease has the earlier state, and adoption restores it. Returns
    /// the effect that undoes it.
    fn begin_ahead(&mut self, next: &Lease, effect: Effect) -> Option<Work> {
        let undo = match (effect, self.lease.phase, next.held) {
            (Effect::Freeze, Phase::Running, Some(MemoryLocation::Live)) => {
                // New requests must not use an agent that is about to be frozen.
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

    /// The lease could not be written: the effect that was started before is undone.
    fn take_back(&mut self, ahead: Option<Work>) {
        if let Some(undo) = ahead {
            self.launch(undo);
            self.publish();
        }
    }

    /// The other changes of the lease with the change of phase, and the change of the instance row.
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
            // The new id is in the store before the restore begins, with both tokens that the agent may then accept.
            Phase::Resuming if from == Phase::Paused && next.held == Some(MemoryLocation::Disk) => {
                instance = InstanceChange::Restored(self.row_to_restore()?);
            }
            Phase::Pausing if step.event == Event::Checkpoint => next.held = Some(MemoryLocation::Live),
            // A failed pause left it frozen with its memory where it was.
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

    /// Clears fields that a phase does not need, sets the time of a stop, and drops the intent of a failed operation.
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
                if next.phase == Phase::Failed {
                    // It was to be stopped for its move: nothing is at the other provider yet.
                    next.moving.take_if(|moving| moving.is_copying());
                    // A conversation is not bound to a sandbox that never ran: its next create makes another one.
                    next.thread.take_if(|_| next.started_at.is_none());
                }
                if next.phase == Phase::Failed && next.awaits.is_some() {
                    // Its lifetime would have begun with the boot.
                    next.timeout_at = next.timeout_s.map(|s| crate::create::timeout_at(&next.phase_at, s));
                }
                if from == Phase::Archiving && next.intent == Intent::Archive {
                    next.intent = Intent::Stop;
                }
                next.rollback_to = None;
                // A failed archive is not a new stop. For files that were just downloaded the time begins again.
                if from == Phase::Restoring || next.stopped_at.is_none() {
                    next.stopped_at = Some(next.phase_at.clone());
                }
            }
            Phase::Paused => {
                next.rollback_to = None;
                next.intent = if from == Phase::Resuming { Intent::Pause } else { next.intent };
            }
            Phase::Archived if from == Phase::Restoring => next.intent = Intent::Archive,
            // A refused rollback leaves the sandbox as it was; until its end `held` records that state.
            Phase::Restoring if next.rollback_to.is_none() => next.held = None,
            // The record needs no secrets. The front that made it is kept, because it determines the form of the error
            // for a deleted sandbox.
            Phase::Deleted => {
                next.env.clear();
                next.network.transforms.clear();
                next.annotations.retain(|name, _| name.ends_with(MADE));
                next.awaits = None;
                next.moving = None;
                next.queue = next.queue.take().filter(|wait| wait.timed_out_at.is_some());
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
        // LIMIT: half a second of a failing disk; after that the phase's own deadline applies.
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
        self.inner.admission.follow(&self.lease);
        self.forget_move();
        self.publish();
        self.inner.queue.written(&before, &self.lease);
        if (before.phase, before.stage) != (self.lease.phase, self.lease.stage) {
            self.inner.changes.tell(Some(before), &self.lease);
        }
        Ok(())
    }

    /// Connections to a frozen agent survive the freeze.
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
            lease: Arc::new(self.shown(lease)),
            agent: self.agent.clone().filter(|_| lease.phase == Phase::Running),
            failure: self.failure.clone(),
        });
        // This is after the phase is published: see [`crate::activity::Activity::falls_asleep`].
        self.activity.observe(lease);
    }

    /// A lease as it is published: with what is not stored.
    fn shown(&self, lease: &Lease) -> Lease {
        Lease { resizing: self.resizing, ..lease.clone() }
    }

    /// Tells that a resize begins or is over.
    pub(super) fn show_resizing(&mut self, resizing: bool) {
        if self.resizing == resizing {
            return;
        }
        let before = self.shown(&self.lease);
        self.resizing = resizing;
        self.publish();
        self.inner.changes.tell(Some(before), &self.shown(&self.lease));
    }

    pub(super) async fn reload(&mut self) {
        match self.inner.store.lease(&self.lease.id).await {
            Ok(Some(lease)) => {
                self.lease = lease;
                self.use_own_provider();
                self.reload_row().await;
                self.inner.admission.follow(&self.lease);
                self.forget_move();
                self.publish();
            }
            Ok(None) => tracing::error!(sandbox = %self.lease.id, "the lease is not in the store"),
            Err(error) => tracing::error!(sandbox = %self.lease.id, %error, "the lease could not be read"),
        }
    }

    /// The row of the instance as the store has it: a write may have been the last operation before a panic.
    async fn reload_row(&mut self) {
        match self.inner.store.live().await {
            Ok(live) => {
                let own = live.into_iter().find(|(lease, _)| lease.id == self.lease.id);
                self.row = own.and_then(|(_, row)| row);
            }
            Err(error) => tracing::error!(sandbox = %self.lease.id, %error, "its instance could not be read"),
        }
    }

    pub(super) fn explain(&self, verb: Verb, error: StepError) -> ServiceError {
        match error {
            StepError::Refused(_) => crate::error::refused(&self.lease, verb),
            StepError::Store(error) => error.into(),
            StepError::Service(error) => error,
        }
    }
}

/// The end of the lifetime of a sandbox that runs again. If its lifetime paused or stopped it, it gets a new one,
/// because it would be paused again before it could answer; if only awake time counts, it gets all of it.
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
