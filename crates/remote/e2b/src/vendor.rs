//! The calls of E2B that the watch and the adoption of the kit need.

use std::sync::Arc;

use async_trait::async_trait;
use atoll_model::SandboxId;
use atoll_provider::{ProviderError, Target};
use atoll_remote::{
    CallError, OwnedObject, RemoteTable, Vendor, VendorState, WatchNumber, WatchTiming, still_runs,
};

use crate::E2bShared;
use crate::access::E2bAccess;
use crate::api::ServiceState;
use crate::lifecycle::{E2bObject, E2bSlot};
use crate::records::InstanceRecord;

/// An object that is paused and recorded as halted has only its files.
const fn state_of(state: ServiceState, is_halted: bool) -> VendorState {
    match (state, is_halted) {
        (ServiceState::Running, _) => VendorState::Running,
        (ServiceState::Paused, false) => VendorState::Paused,
        (ServiceState::Paused, true) => VendorState::Stopped,
    }
}

impl E2bShared {
    /// Finds out at once whether an object that did not answer is still there, and reports it if not.
    pub(crate) async fn is_there(&self, sandbox: &SandboxId, object: &E2bObject) -> bool {
        still_runs(self, sandbox, object).await
    }
}

#[async_trait]
impl Vendor for E2bShared {
    type Access = E2bAccess;

    fn name(&self) -> &'static str {
        self.name
    }

    fn table(&self) -> &Arc<RemoteTable<E2bAccess>> {
        &self.table
    }

    fn watch_number(&self) -> &WatchNumber {
        &self.watch
    }

    fn watch_timing(&self) -> WatchTiming {
        WatchTiming {
            list_every: self.timing.watch_every,
            keep_alive_every: Some(self.settings.extend_every()),
            grace: self.timing.grace,
        }
    }

    async fn list(&self) -> Result<Vec<OwnedObject<VendorState>>, ProviderError> {
        let listed = self.api.owned(None).await;
        let listed = listed.map_err(|error| error.into_provider("listing the sandboxes of this server"))?;
        let mut objects = Vec::new();
        for mut found in listed {
            let record = self.records.read(&found.sandbox)?;
            let state = state_of(found.state, record.as_ref().is_some_and(|record| record.halted));
            if let Some(record) = record {
                if record.object.as_deref() == Some(&*found.id) {
                    // It comes before all others of its sandbox, also before an older one.
                    found.started_at.clear();
                }
                found.instance = record.instance;
            }
            objects.push(found.with_state(state));
        }
        Ok(objects)
    }

    async fn look(&self, sandbox: &SandboxId, id: &str) -> Result<Option<VendorState>, ProviderError> {
        let state = self.api.state(id).await;
        let state = state.map_err(|error| error.into_provider("looking at the sandbox"))?;
        let is_halted = self.records.read(sandbox)?.is_some_and(|record| record.halted);
        Ok(state.map(|state| state_of(state, is_halted)))
    }

    async fn keep_alive(&self, id: &str) -> Result<Option<()>, CallError> {
        self.api.extend(id).await
    }

    async fn remove(&self, id: &str) -> Result<(), ProviderError> {
        self.api.kill(id).await.map_err(|error| error.into_provider("removing an object"))
    }

    async fn revive(&self, target: &Target, slot: &E2bSlot) -> Result<(), ProviderError> {
        self.resume(target, slot).await
    }

    async fn rest(&self, target: &Target, slot: &E2bSlot) -> Result<(), ProviderError> {
        self.pause(target, slot).await
    }

    async fn end(
        &self,
        sandbox: &SandboxId,
        slot: &E2bSlot,
        object: &E2bObject,
    ) -> Result<(), ProviderError> {
        self.end_processes(sandbox, slot, object).await
    }

    /// The server died between the start of an instance and its record.
    async fn note_adopted(&self, object: &OwnedObject<VendorState>) -> Result<(), ProviderError> {
        match self.records.read(&object.sandbox)? {
            Some(record) if record.halted => {
                let record = InstanceRecord { object: Some(object.id.clone()), halted: false, ..record };
                self.records.write(&object.sandbox, record).await
            }
            Some(_) | None => Ok(()),
        }
    }
}
