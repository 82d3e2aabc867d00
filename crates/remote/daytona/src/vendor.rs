//! The calls of Daytona that the watch and the adoption of the kit need. The service is told that running objects are in use, because
//! it stops those that seem idle to it.

use std::sync::Arc;

use async_trait::async_trait;
use atoll_model::SandboxId;
use atoll_provider::{ProviderError, Target};
use atoll_remote::{
    CallError, OwnedObject, RemoteTable, Vendor, VendorState, WatchNumber, WatchTiming, still_runs,
};

use crate::DaytonaShared;
use crate::api::ServiceState;
use crate::lifecycle::{DaytonaObject, DaytonaSlot};
use crate::toolbox::DaytonaAccess;

const fn state_of(state: ServiceState) -> VendorState {
    match state {
        ServiceState::Started | ServiceState::Starting => VendorState::Running,
        ServiceState::Pausing | ServiceState::Paused => VendorState::Paused,
        ServiceState::Stopping => VendorState::Stopping,
        ServiceState::Stopped | ServiceState::Failed | ServiceState::Destroyed => VendorState::Stopped,
    }
}

impl DaytonaShared {
    /// Finds out whether an object runs, and reports it if not. An object that cannot be asked about counts as running.
    pub(crate) async fn is_running(&self, sandbox: &SandboxId, object: &DaytonaObject) -> bool {
        still_runs(self, sandbox, object).await
    }
}

#[async_trait]
impl Vendor for DaytonaShared {
    type Access = DaytonaAccess;

    fn name(&self) -> &'static str {
        self.name
    }

    fn table(&self) -> &Arc<RemoteTable<DaytonaAccess>> {
        &self.table
    }

    fn watch_number(&self) -> &WatchNumber {
        &self.watch
    }

    fn watch_timing(&self) -> WatchTiming {
        WatchTiming {
            list_every: self.timing.watch_every,
            keep_alive_every: Some(self.settings.sign_every()),
            grace: self.timing.grace,
        }
    }

    async fn list(&self) -> Result<Vec<OwnedObject<VendorState>>, ProviderError> {
        let listed = self.api.owned(None).await;
        let listed = listed.map_err(|error| error.into_provider("listing the sandboxes of this server"))?;
        let with_state = |found: OwnedObject<ServiceState>| {
            let state = state_of(found.state);
            found.with_state(state)
        };
        Ok(listed.into_iter().map(with_state).collect())
    }

    async fn look(&self, _: &SandboxId, id: &str) -> Result<Option<VendorState>, ProviderError> {
        let found = self.api.find(id).await;
        let found = found.map_err(|error| error.into_provider("looking at the sandbox"))?;
        Ok(found.map(|found| state_of(found.state)))
    }

    async fn keep_alive(&self, id: &str) -> Result<Option<()>, CallError> {
        self.api.sign_of_life(id).await
    }

    async fn remove(&self, id: &str) -> Result<(), ProviderError> {
        self.kill(id).await.map_err(|error| error.into_provider("removing an object"))
    }

    async fn revive(&self, target: &Target, slot: &DaytonaSlot) -> Result<(), ProviderError> {
        self.resume(target, slot).await
    }

    async fn rest(&self, target: &Target, slot: &DaytonaSlot) -> Result<(), ProviderError> {
        self.pause(target, slot).await
    }

    async fn end(
        &self,
        sandbox: &SandboxId,
        slot: &DaytonaSlot,
        object: &DaytonaObject,
    ) -> Result<(), ProviderError> {
        self.end_processes(sandbox, slot, object).await
    }
}
