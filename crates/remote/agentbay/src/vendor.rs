//! The calls of AgentBay that the watch and the adoption of the kit need.

use std::sync::Arc;

use async_trait::async_trait;
use atoll_model::SandboxId;
use atoll_provider::{ProviderError, Target};
use atoll_remote::{
    CallError, ObjectState, OwnedObject, RemoteTable, Vendor, VendorState, WatchNumber, WatchTiming,
};

use crate::access::SessionAccess;
use crate::api::{OwnedSession, SessionState};
use crate::{AgentbayShared, SessionObject, SessionSlot};

const fn state_of(state: SessionState) -> VendorState {
    match state {
        SessionState::Running | SessionState::Resuming => VendorState::Running,
        SessionState::Paused | SessionState::Pausing => VendorState::Paused,
    }
}

#[async_trait]
impl Vendor for AgentbayShared {
    type Access = SessionAccess;

    fn name(&self) -> &'static str {
        self.name
    }

    fn table(&self) -> &Arc<RemoteTable<SessionAccess>> {
        &self.table
    }

    fn watch_number(&self) -> &WatchNumber {
        &self.watch
    }

    fn watch_timing(&self) -> WatchTiming {
        WatchTiming {
            list_every: self.timing.watch_every,
            keep_alive_every: self.settings.refresh_every(),
            grace: self.timing.grace,
        }
    }

    async fn list(&self) -> Result<Vec<OwnedObject<VendorState>>, ProviderError> {
        let listed = self.sessions_of(None).await;
        let listed = listed.map_err(|error| error.into_provider("listing the sandboxes of this server"))?;
        let with_state = |session: OwnedSession| {
            let state = state_of(session.state);
            session.with_state(state)
        };
        Ok(listed.into_iter().map(with_state).collect())
    }

    async fn look(&self, _: &SandboxId, id: &str) -> Result<Option<VendorState>, ProviderError> {
        let state = self.api.state(id).await;
        let state = state.map_err(|error| error.into_provider("looking at the sandbox"))?;
        Ok(state.map(state_of))
    }

    async fn keep_alive(&self, id: &str) -> Result<Option<()>, CallError> {
        self.api.refresh(id).await
    }

    async fn remove(&self, id: &str) -> Result<(), ProviderError> {
        self.delete(id).await
    }

    async fn revive(&self, target: &Target, slot: &SessionSlot) -> Result<(), ProviderError> {
        self.set_state(target, slot, ObjectState::Running).await
    }

    async fn rest(&self, target: &Target, slot: &SessionSlot) -> Result<(), ProviderError> {
        self.set_state(target, slot, ObjectState::Paused).await
    }

    /// Files do not survive, so the session is deleted.
    async fn end(
        &self,
        _: &SandboxId,
        slot: &SessionSlot,
        object: &SessionObject,
    ) -> Result<(), ProviderError> {
        self.delete(&object.id).await?;
        slot.clear();
        Ok(())
    }

    fn first_access(&self) -> Option<Arc<SessionAccess>> {
        Some(Arc::default())
    }
}
