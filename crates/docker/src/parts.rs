//! Optional parts of a provider that Docker has: pauses and changed limits.

use async_trait::async_trait;
use atoll_model::{Limits, MemoryLocation};
use atoll_provider::{InstanceActivity, PauseSupport, ProviderError, ResizeSupport, Target};

use crate::daemon::FoundContainer;
use crate::{DockerProvider, Shared};

#[async_trait]
impl PauseSupport for DockerProvider {
    async fn pause(&self, target: &Target) -> Result<MemoryLocation, ProviderError> {
        let own = target.clone();
        let work = move |shared: std::sync::Arc<Shared>, _| async move {
            let (found, activity) = shared.active(&own).await?;
            match activity {
                InstanceActivity::Running => shared.daemon.pause(&found.id).await,
                InstanceActivity::Paused => Ok(()),
            }
        };
        self.shared.change(&target.sandbox, work).await.map(|()| MemoryLocation::Live)
    }

    async fn resume(&self, target: &Target) -> Result<(), ProviderError> {
        let own = target.clone();
        let work = move |shared: std::sync::Arc<Shared>, _| async move {
            let (found, activity) = shared.active(&own).await?;
            match activity {
                InstanceActivity::Paused => shared.daemon.unpause(&found.id).await,
                InstanceActivity::Running => Ok(()),
            }
        };
        self.shared.change(&target.sandbox, work).await
    }
}

#[async_trait]
impl ResizeSupport for DockerProvider {
    async fn resize(&self, target: &Target, limits: &Limits) -> Result<(), ProviderError> {
        let (own, limits) = (target.clone(), *limits);
        let work = move |shared: std::sync::Arc<Shared>, _| async move {
            let found = match own.instance {
                Some(_) => shared.active(&own).await?.0,
                None => {
                    shared.find(&own.sandbox).await?.ok_or(ProviderError::Gone { sandbox: own.sandbox })?
                }
            };
            if found.activity.is_some() {
                shared.refuse_below_use(&found, &limits).await?;
            }
            shared.limit(&found, &limits).await
        };
        self.shared.change(&target.sandbox, work).await
    }
}

impl Shared {
    /// The running or paused container that a call means.
    async fn active(&self, target: &Target) -> Result<(FoundContainer, InstanceActivity), ProviderError> {
        let found = self.find(&target.sandbox).await?;
        let is_meant =
            |found: &FoundContainer| target.instance.as_ref().is_none_or(|wanted| *wanted == found.instance);
        let active = found.filter(is_meant).and_then(|found| Some((found.activity?, found)));
        let (activity, found) = active.ok_or(ProviderError::Gone { sandbox: target.sandbox.clone() })?;
        Ok((found, activity))
    }

    /// Below its use the daemon would end processes instead of refusing.
    async fn refuse_below_use(&self, found: &FoundContainer, limits: &Limits) -> Result<(), ProviderError> {
        let usage = self.daemon.usage(&found.id).await?;
        let used_mib = usage.memory_bytes.saturating_sub(usage.cache_bytes).div_ceil(1 << 20);
        let wanted_mib = u64::from(limits.memory_mib);
        match wanted_mib < used_mib {
            true => Err(ProviderError::BelowUse { what: "memory", wanted_mib, used_mib }),
            false => Ok(()),
        }
    }
}
