//! Adoption: what became of the objects of this server while it was down. They are found by their labels.

use std::collections::HashMap;
use std::sync::Arc;

use atoll_model::SandboxId;
use atoll_provider::{Adopted, AdoptionOutcome, InstanceActivity, KnownSandbox, OwnedSandbox, ProviderError};
use atoll_remote::{CallError, ObjectState, choose_object};
use futures::StreamExt;

use crate::DaytonaShared;
use crate::api::{OwnedObject, ServiceState};

/// LIMIT: sandboxes that are taken up at a time.
const AT_ONCE: usize = 16;

fn failed(error: CallError) -> ProviderError {
    error.into_provider("listing the sandboxes of this server")
}

const fn state_of(state: ServiceState) -> ObjectState {
    match state {
        ServiceState::Started | ServiceState::Starting => ObjectState::Running,
        ServiceState::Stopping | ServiceState::Stopped | ServiceState::Failed | ServiceState::Destroyed => {
            ObjectState::Halted
        }
    }
}

impl DaytonaShared {
    pub(crate) async fn owned(&self) -> Result<Vec<OwnedSandbox>, ProviderError> {
        let mut owned: HashMap<SandboxId, OwnedSandbox> = HashMap::new();
        for found in self.api.owned(None).await.map_err(failed)? {
            let is_running = state_of(found.state) == ObjectState::Running;
            let instance = is_running.then_some((found.instance, InstanceActivity::Running));
            let entry = owned.entry(found.sandbox.clone());
            let known = entry.or_insert(OwnedSandbox { sandbox: found.sandbox, instance: None });
            known.instance = known.instance.take().or(instance);
        }
        Ok(owned.into_values().collect())
    }

    pub(crate) async fn adopt(
        self: Arc<Self>,
        known: Vec<KnownSandbox>,
    ) -> Result<Vec<Adopted>, ProviderError> {
        let _only_this = self.table.adopting().await;
        let mut owned: HashMap<SandboxId, Vec<OwnedObject>> = HashMap::new();
        for found in self.api.owned(None).await.map_err(failed)? {
            owned.entry(found.sandbox.clone()).or_default().push(found);
        }
        let (mut strays, mut fates) = (Vec::new(), Vec::new());
        for known in known {
            let mut objects = owned.remove(&known.sandbox).unwrap_or_default();
            fates.push(self.adopt_one(choose_object(&mut objects, &known), known));
            strays.extend(objects);
        }
        strays.extend(owned.into_values().flatten());
        let fates: Vec<Result<_, ProviderError>> =
            futures::stream::iter(fates).buffered(AT_ONCE).collect().await;
        let removals = strays.into_iter().map(|stray| self.remove_stray(stray.id));
        futures::stream::iter(removals).buffer_unordered(AT_ONCE).collect::<()>().await;
        let mut adopted = Vec::new();
        for fate in fates {
            adopted.extend(fate?);
        }
        self.table.set_adopted();
        Ok(adopted)
    }

    /// Removes an object that no sandbox needs.
    pub(crate) async fn remove_stray(&self, id: String) {
        tracing::info!(provider = self.name, object = id, "an object that no sandbox needs is removed");
        if let Err(error) = self.kill(&id).await {
            // The watch tries it again.
            tracing::warn!(provider = self.name, object = id, %error, "an object that no sandbox needs could not be removed");
        }
    }

    async fn adopt_one(
        &self,
        found: Option<OwnedObject>,
        known: KnownSandbox,
    ) -> Result<Option<Adopted>, ProviderError> {
        let fate = match found {
            Some(found) => self.take_up(&known, &found).await?,
            None => {
                self.table.of(&known.sandbox).clear();
                AdoptionOutcome::Gone
            }
        };
        let instance = known.instance.map(|(instance, _)| instance);
        Ok(instance.map(|instance| Adopted { instance, fate, facts: None }))
    }

    async fn take_up(
        &self,
        known: &KnownSandbox,
        found: &OwnedObject,
    ) -> Result<AdoptionOutcome, ProviderError> {
        let slot = self.table.of(&known.sandbox);
        let before = slot.object().filter(|it| it.id == found.id && it.instance == found.instance);
        let access = before.and_then(|before| before.access);
        let object = self.object(&found.instance, state_of(found.state), found.id.clone(), access);
        slot.set(object.clone());
        let is_known = known.instance.as_ref().is_some_and(|(wanted, _)| *wanted == found.instance);
        if !is_known || object.state == ObjectState::Halted {
            self.end(&known.sandbox, &slot, &object).await?;
            return Ok(AdoptionOutcome::Gone);
        }
        if found.state == ServiceState::Starting {
            // The server died while the object started.
            let seen = self.api.find(&found.id).await.map_err(failed)?;
            let seen = seen.ok_or_else(|| atoll_remote::gone(&known.sandbox))?;
            self.wait_started(&known.sandbox, seen).await?;
        }
        Ok(AdoptionOutcome::Alive)
    }
}
