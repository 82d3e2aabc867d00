//! Pause and resume: freezing where it stands, memory to disk and back.

use std::sync::Arc;

use atoll_model::Held;
use atoll_provider::{Booted, InstanceSpec, ProviderError, Target};

use super::{Inner, failed};

impl Inner {
    /// Whether memory can be brought to disk here.
    pub(super) fn can_checkpoint(&self) -> bool {
        false
    }

    pub(super) async fn pause(&self, target: &Target) -> Result<Held, ProviderError> {
        let live = self.live(target)?;
        let cgroups = Arc::clone(&self.ground.cgroups);
        self.hands.run(move || cgroups.freeze(&live.facts.cgroup)).await.map_err(failed("freezing"))?;
        Ok(Held::Live)
    }

    pub(super) async fn checkpoint(&self, target: &Target) -> Result<(), ProviderError> {
        self.live(target)?;
        Err(no_checkpoints())
    }

    pub(super) async fn resume(&self, target: &Target) -> Result<(), ProviderError> {
        let live = self.live(target)?;
        let cgroups = Arc::clone(&self.ground.cgroups);
        self.hands.run(move || cgroups.thaw(&live.facts.cgroup)).await.map_err(failed("thawing"))
    }

    pub(super) async fn restore(&self, _spec: &InstanceSpec) -> Result<Booted, ProviderError> {
        Err(no_checkpoints())
    }
}

fn no_checkpoints() -> ProviderError {
    ProviderError::Unsupported {
        what: "bringing memory to disk".into(),
        hint: "install CRIU 4.2 or later, or run scripts/get-criu".into(),
    }
}
