//! How a lease changes: one step of the table, one write, one publication. Nothing else assigns a phase.

use std::sync::Arc;
use std::time::Duration;

use atoll_model::lifecycle::{self, Effect, Event, Refused};
use atoll_model::{EventKind, InstanceId, Intent, Lease, Phase, Reason};
use atoll_store::{Admit, Advance, InstanceChange, NewEvent, StoreError};

use super::effects::Work;
use super::{Driver, Verb};
use crate::ServiceError;
use crate::random::entropy;
use crate::registry::State;
use crate::timed::timed;

/// A change of phase that is about to be tried.
pub(super) struct Step {
    pub(super) event: Event,
    pub(super) reason: Reason,
    pub(super) intent: Option<Intent>,
    pub(super) instance: InstanceChange,
    pub(super) admit: Admit,
    /// Internal results are written again when the disk fails for a moment; a caller is told at once.
    pub(super) patient: bool,
}

impl Step {
    pub(super) fn internal(event: Event, reason: Reason) -> Self {
        Self {
            event,
            reason,
            intent: None,
            instance: InstanceChange::Keep,
            admit: Admit::Nothing,
            patient: true,
        }
    }

    pub(super) fn asked(event: Event, intent: Intent) -> Self {
        Self { intent: Some(intent), patient: false, ..Self::internal(event, Reason::Requested) }
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
    pub(super) async fn note(&mut self, step: Step) {
        let event = step.event;
        match self.step(step).await {
            Ok(()) => {}
            Err(StepError::Refused(refused)) => {
                tracing::debug!(sandbox = %self.lease.id, %refused, "ignored")
            }
            Err(error) => {
                tracing::error!(sandbox = %self.lease.id, ?event, %error, "a change was not written")
            }
        }
    }

    pub(super) async fn step(&mut self, step: Step) -> Result<(), StepError> {
        let from = self.lease.phase;
        let (to, effect) = lifecycle::step(from, step.event)?;
        let mut next = self.lease.clone();
        next.phase = to;
        next.intent = step.intent.unwrap_or(next.intent);
        // A failed delete stays in its phase and is given its time anew.
        if to != from || step.event == Event::Failed {
            next.phase_at = self.inner.clock.now();
            next.reason = step.reason;
        }
        let before = self.lease.instance.clone();
        let mut instance = step.instance;
        match to {
            Phase::Starting if effect == Effect::Boot => {
                next.instance = Some(InstanceId::from_entropy(entropy()?))
            }
            Phase::Stopped | Phase::Failed | Phase::Deleted if to != from => {
                next.instance = None;
                instance = InstanceChange::Drop;
            }
            Phase::Creating
            | Phase::Running
            | Phase::Starting
            | Phase::Stopping
            | Phase::Stopped
            | Phase::Failed
            | Phase::Deleting
            | Phase::Deleted => {}
        }
        if to == Phase::Deleted {
            // The record needs no secrets.
            next.env.clear();
        }
        if next != self.lease || instance != InstanceChange::Keep {
            let what = EventKind::Phase { from: Some(from), to, reason: next.reason.clone() };
            let event = NewEvent { at: next.phase_at.clone(), instance: before.clone(), what };
            let events = if to == from { vec![] } else { vec![event] };
            self.write(next, instance, step.admit, events, step.patient).await?;
        }
        match effect {
            Effect::None => {}
            Effect::Boot => self.launch(Work::Boot),
            Effect::Halt => self.launch(Work::Halt { instance: before }),
            Effect::Destroy => self.launch(Work::Destroy),
        }
        Ok(())
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
                        tracing::error!(sandbox = %self.lease.id, "somebody else wrote the lease");
                        self.reload().await;
                    }
                    return Err(error);
                }
            }
        }
        self.inner.failpoint.reach("advance.after").await;
        self.lease = change.lease;
        if !matches!(self.lease.phase, Phase::Running) {
            self.agent = None;
        }
        if !self.lease.phase.holds_compute() {
            self.inner.admission.release(&self.lease.id);
        }
        self.publish();
        Ok(())
    }

    pub(super) fn publish(&self) {
        self.inner.deadlines.schedule(&self.lease, &self.inner.clock.now());
        self.publish.send_replace(State {
            lease: Arc::new(self.lease.clone()),
            agent: self.agent.clone(),
            failure: self.failure.clone(),
        });
    }

    pub(super) async fn reload(&mut self) {
        match self.inner.store.lease(&self.lease.id).await {
            Ok(Some(lease)) => {
                self.lease = lease;
                self.publish();
            }
            Ok(None) => tracing::error!(sandbox = %self.lease.id, "the lease is not in the store"),
            Err(error) => tracing::error!(sandbox = %self.lease.id, %error, "the lease could not be read"),
        }
    }

    pub(super) fn explain(&self, verb: Verb, error: StepError) -> ServiceError {
        match error {
            StepError::Refused(_) => crate::error::phase_conflict(&self.lease, verb_name(verb)),
            StepError::Store(error) => error.into(),
            StepError::Service(error) => error,
        }
    }
}

const fn verb_name(verb: Verb) -> &'static str {
    match verb {
        Verb::Start => "start",
        Verb::Stop => "stop",
        Verb::Restart => "restart",
        Verb::Delete => "delete",
    }
}
