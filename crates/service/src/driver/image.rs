//! A creation that waits for its image, from the driver's side. The task that builds or pulls it
//! ([`crate::create::ImageWait`]) reports its progress; once the image is here, the sandbox is made like any other.

use std::sync::atomic::Ordering;

use atoll_model::lifecycle::{Event, stage_follows};
use atoll_model::{EventKind, InstanceId, Lease, Reason, Stage};
use atoll_store::{Admit, InstanceChange, NewEvent};

use super::Driver;
use super::effects::Work;
use super::steps::Transition;
use crate::ServiceError;
use crate::create::{CreationBase, timeout_at};
use crate::random::entropy;

/// The progress of the image that a sandbox waits for.
pub(crate) enum ImageProgress {
    /// It is being pulled or built.
    Stage(Stage),
    /// It is here.
    Ready(Box<CreationBase>),
    /// It could not be built or pulled.
    Failed(ServiceError),
}

impl Driver {
    pub(super) async fn on_image(&mut self, progress: ImageProgress) {
        if !self.lease.waits_for_image() {
            return self.count_late("image");
        }
        let ended = match progress {
            ImageProgress::Stage(stage) => self.enter_stage(Lease { stage, ..self.lease.clone() }).await,
            ImageProgress::Ready(base) => self.on_image_ready(*base).await,
            ImageProgress::Failed(failure) => Err(failure),
        };
        if let Err(failure) = ended {
            self.on_no_image(failure).await;
        }
    }

    /// The version is held until the lease that names it is recorded.
    async fn on_image_ready(&mut self, ready: CreationBase) -> Result<(), ServiceError> {
        let mut next = Lease { stage: Stage::Booting, ..self.lease.clone() };
        let Some(awaited) = next.awaits.take() else { return Ok(()) };
        let CreationBase { base, seed, hold, .. } = ready;
        base.apply_to(&mut next, &awaited.start);
        next.instance = Some(InstanceId::from_entropy(entropy()?));
        next.phase_at = self.inner.clock.now();
        next.timeout_at = next.timeout_s.map(|s| timeout_at(&next.phase_at, s));
        self.enter_stage(next).await?;
        drop(hold);
        self.seed = seed;
        self.launch(Work::Create);
        Ok(())
    }

    async fn enter_stage(&mut self, next: Lease) -> Result<(), ServiceError> {
        if !stage_follows(self.lease.stage, next.stage) {
            return Ok(());
        }
        let what = EventKind::Stage { stage: next.stage };
        let event = NewEvent {
            at: self.inner.clock.now(),
            instance: next.instance.clone(),
            what,
            by: self.by.clone(),
        };
        Ok(self.write(next, InstanceChange::Keep, Admit::Nothing, vec![event], true).await?)
    }

    async fn on_no_image(&mut self, failure: ServiceError) {
        self.inner.counters.failed.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(sandbox = %self.lease.id, error = %failure, cause = ?failure.cause, "the image of a sandbox could not be made");
        let reason = Reason::ImageUnavailable { message: failure.message.clone() };
        self.failure = Some(failure);
        self.note(Transition::internal(Event::Failed, reason)).await;
    }
}
