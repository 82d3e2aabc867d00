//! Pause and resume, with the memory that the service keeps. A service refuses that for sandboxes of some classes.

use std::sync::Arc;

use async_trait::async_trait;
use atoll_model::MemoryLocation;
use atoll_provider::{Capability, PauseSupport, ProviderError, Target};
use atoll_remote::{Backoff, CallError, ObjectState, gone};
use tokio::time::Instant;

use crate::api::ServiceState;
use crate::lifecycle::{CHANGE_WITHIN, DaytonaSlot, FIRST_WAIT};
use crate::{DaytonaProvider, DaytonaShared};

pub(crate) fn paused() -> ProviderError {
    ProviderError::Transient { what: "reaching the sandbox".to_owned(), why: "it is paused".to_owned() }
}

impl DaytonaShared {
    /// Pauses an object with its memory, and waits until it is paused.
    pub(crate) async fn pause(&self, target: &Target, slot: &DaytonaSlot) -> Result<(), ProviderError> {
        let (_, object) = self.table.live(target)?;
        let failed = |error: CallError| error.into_provider("pausing the sandbox");
        let deadline = Instant::now() + CHANGE_WITHIN;
        let mut backoff = Backoff::new(FIRST_WAIT);
        loop {
            let refused = match self.api.pause(&object.id).await {
                Ok(Some(())) => None,
                // COMPAT(daytona): an older service has no such call; 422 is a class of sandboxes that cannot be paused.
                Ok(None) => Some(self.cannot_pause()),
                Err(error) if error.is_status(422) => return Err(self.cannot_pause()),
                // Another change is under way, or this one is done.
                Err(error) if error.is_status(400) || error.is_status(409) => Some(failed(error)),
                Err(error) => return Err(failed(error)),
            };
            let state = self.api.find(&object.id).await.map_err(failed)?.map(|found| found.state);
            match (state, refused) {
                (Some(ServiceState::Paused), _) => break,
                (Some(ServiceState::Started), Some(missing @ ProviderError::MissingCapability { .. })) => {
                    return Err(missing);
                }
                (None | Some(ServiceState::Stopped | ServiceState::Failed | ServiceState::Destroyed), _) => {
                    self.table.report_death(&target.sandbox, &object);
                    return Err(gone(&target.sandbox));
                }
                (Some(_), Some(error)) if Instant::now() >= deadline => return Err(error),
                (Some(_), _) if Instant::now() >= deadline => {
                    return Err(ProviderError::Late {
                        what: "the pause of the sandbox".into(),
                        after: CHANGE_WITHIN,
                    });
                }
                (Some(_), _) => tokio::time::sleep(backoff.wait(None)).await,
            }
        }
        slot.update(&object.instance, |object| object.state = ObjectState::Paused);
        Ok(())
    }

    fn cannot_pause(&self) -> ProviderError {
        ProviderError::MissingCapability {
            provider: self.name,
            capability: Capability::Pause,
            hint: "the service cannot pause this sandbox; stop it, which keeps its files".to_owned(),
        }
    }

    /// Lets a paused object go on, and waits until it runs.
    pub(crate) async fn resume(&self, target: &Target, slot: &DaytonaSlot) -> Result<(), ProviderError> {
        let (_, object) = self.table.live(target)?;
        let failed = |error: CallError| error.into_provider("resuming the sandbox");
        let started = match self.api.start(&object.id).await.map_err(failed)? {
            Some(()) => self.api.find(&object.id).await.map_err(failed)?,
            None => None,
        };
        let Some(started) = started else {
            self.table.report_death(&target.sandbox, &object);
            return Err(gone(&target.sandbox));
        };
        let running = self.wait_started(&target.sandbox, started).await?;
        // What is known of its processes stays.
        let access = match &object.access {
            Some(access) => Arc::clone(access),
            None => Arc::new(self.open_access(&running).await?),
        };
        slot.update(&object.instance, |object| {
            object.state = ObjectState::Running;
            object.access = Some(access);
            object.kept_at = Some(Instant::now());
        });
        Ok(())
    }
}

#[async_trait]
impl PauseSupport for DaytonaProvider {
    /// The service keeps the memory.
    async fn pause(&self, target: &Target) -> Result<MemoryLocation, ProviderError> {
        let (shared, own) = (Arc::clone(&self.shared), target.clone());
        let work = move |slot: Arc<DaytonaSlot>| async move {
            shared.pause(&own, &slot).await.map(|()| MemoryLocation::Live)
        };
        self.shared.table.change(&target.sandbox, work).await
    }

    async fn resume(&self, target: &Target) -> Result<(), ProviderError> {
        let (shared, own) = (Arc::clone(&self.shared), target.clone());
        let work = move |slot: Arc<DaytonaSlot>| async move {
            let (_, object) = shared.table.live(&own)?;
            match object.state {
                ObjectState::Running => Ok(()),
                ObjectState::Paused | ObjectState::Ending | ObjectState::Halted => {
                    shared.resume(&own, &slot).await
                }
            }
        };
        self.shared.table.change(&target.sandbox, work).await
    }
}
