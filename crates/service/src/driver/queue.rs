//! A creation that waits for its place, from the driver's side. [`crate::create::PlaceQueue`] decides whose turn it is.

use atoll_model::lifecycle::Event;
use atoll_model::{EventKind, InstanceId, Intent, Lease, Reason, Stage};
use atoll_store::{Admit, InstanceChange, NewEvent};

use super::Driver;
use super::effects::Work;
use super::steps::{ChangedLease, Transition};
use crate::ServiceError;
use crate::create::{ImageWait, queue_timed_out, timeout_at};
use crate::random::entropy;

impl Driver {
    /// Capacity is promised to it. The quota is checked in the write; then the sandbox is made, or its image first.
    pub(super) async fn on_place(&mut self) -> Result<(), ServiceError> {
        if !self.lease.waits_for_place() {
            return Err(crate::error::phase_conflict(&self.lease, "a place"));
        }
        let now = self.inner.clock.now();
        let mut next = Lease { queue: None, phase_at: now.clone(), ..self.lease.clone() };
        let mut events = Vec::new();
        if next.awaits.is_none() {
            next.stage = Stage::Booting;
            next.instance = Some(InstanceId::from_entropy(entropy()?));
            next.timeout_at = next.timeout_s.map(|s| timeout_at(&now, s));
            let what = EventKind::Stage { stage: Stage::Booting };
            events.push(NewEvent { at: now, instance: next.instance.clone(), what, by: self.by.clone() });
        }
        self.write(next, InstanceChange::Keep, Admit::Place, events, false).await?;
        if self.lease.waits_for_image() {
            self.start_image_wait();
        } else {
            self.launch(Work::Create);
        }
        Ok(())
    }

    fn start_image_wait(&mut self) {
        let Some(handle) = self.inner.registry.get(self.id()) else { return };
        self.image.take().unwrap_or_else(|| ImageWait::again(&self.inner)).start(handle);
    }

    /// No place was free in time: the sandbox is deleted, and keeps when that happened.
    pub(super) async fn on_queue_timeout(&mut self) {
        let now = self.inner.clock.now();
        let mut lease = self.lease.clone();
        if let Some(wait) = &mut lease.queue {
            wait.timed_out_at = Some(now.clone());
        }
        self.failure = Some(queue_timed_out(&lease));
        let changed = Some(Box::new(ChangedLease { lease, fields: Vec::new() }));
        let delete = Transition::asked(Event::Delete, Intent::Delete, Reason::QueueTimedOut);
        self.note(Transition { changed, ..delete }).await;
        if self.lease.waits_for_place() {
            // It could not be written; the driver must be woken again.
            self.inner.deadlines.again(self.id(), &now);
        }
    }
}
