//! Adoption: what became of the objects of this server while it was down. They are found by their labels.

use std::collections::HashMap;
use std::sync::Arc;

use atoll_model::SandboxId;
use atoll_provider::{
    Adopted, AdoptionOutcome, InstanceActivity, KnownSandbox, OwnedSandbox, ProviderError, Target,
};
use atoll_remote::{CallError, ObjectState, choose_object};
use futures::StreamExt;

use crate::E2bShared;
use crate::api::{OwnedObject, ServiceState};
use crate::lifecycle::E2bObject;
use crate::records::InstanceRecord;

/// LIMIT: sandboxes that are taken up at a time.
const AT_ONCE: usize = 16;

fn failed(error: CallError) -> ProviderError {
    error.into_provider("listing the sandboxes of this server")
}

impl E2bShared {
    /// An object as its labels, its state and its record say.
    fn understood(&self, found: &OwnedObject) -> Result<E2bObject, ProviderError> {
        let record = self.records.read(&found.sandbox)?;
        let is_halted = record.as_ref().is_some_and(|record| record.halted);
        let state = match (found.state, is_halted) {
            (ServiceState::Running, _) => ObjectState::Running,
            (ServiceState::Paused, true) => ObjectState::Halted,
            (ServiceState::Paused, false) => ObjectState::Paused,
        };
        let instance = record.map_or_else(|| found.instance.clone(), |record| record.instance);
        Ok(self.object(&instance, state, found.id.clone(), None))
    }

    pub(crate) async fn owned(&self) -> Result<Vec<OwnedSandbox>, ProviderError> {
        let mut owned: HashMap<SandboxId, OwnedSandbox> = HashMap::new();
        for found in self.api.owned(None).await.map_err(failed)? {
            let object = self.understood(&found)?;
            let activity = match object.state {
                ObjectState::Running => Some(InstanceActivity::Running),
                ObjectState::Paused => Some(InstanceActivity::Paused),
                ObjectState::Halted => None,
            };
            let instance = activity.map(|activity| (object.instance, activity));
            let entry = owned.entry(found.sandbox.clone());
            let entry = entry.or_insert(OwnedSandbox { sandbox: found.sandbox, instance: None });
            entry.instance = entry.instance.take().or(instance);
        }
        Ok(owned.into_values().collect())
    }

    pub(crate) async fn adopt(
        self: Arc<Self>,
        known: Vec<KnownSandbox>,
    ) -> Result<Vec<Adopted>, ProviderError> {
        let _nothing_else = self.table.adopting().await;
        let mut owned: HashMap<SandboxId, Vec<OwnedObject>> = HashMap::new();
        for found in self.api.owned(None).await.map_err(failed)? {
            owned.entry(found.sandbox.clone()).or_default().push(found);
        }
        let mut strays = Vec::new();
        let mut fates = Vec::new();
        for known in known {
            let mut objects = owned.remove(&known.sandbox).unwrap_or_default();
            let chosen = choose_object(&mut objects, &known);
            strays.extend(objects);
            fates.push(self.adopt_one(known, chosen));
        }
        strays.extend(owned.into_values().flatten());
        let adopted: Vec<_> = futures::stream::iter(fates).buffered(AT_ONCE).collect().await;
        let removals = strays.into_iter().map(|stray| self.remove_stray(stray));
        futures::stream::iter(removals).buffer_unordered(AT_ONCE).collect::<()>().await;
        let adopted: Result<Vec<_>, ProviderError> = adopted.into_iter().collect();
        let adopted = adopted?.into_iter().flatten().collect();
        self.table.set_adopted();
        Ok(adopted)
    }

    async fn remove_stray(&self, stray: OwnedObject) {
        if let Err(error) = self.api.kill(&stray.id).await {
            // The watch tries it again after the grace time.
            tracing::warn!(sandbox = %stray.sandbox, provider = self.name, %error, "an object that no sandbox needs could not be removed");
        }
    }

    async fn adopt_one(
        &self,
        known: KnownSandbox,
        found: Option<OwnedObject>,
    ) -> Result<Option<Adopted>, ProviderError> {
        let fate = match found {
            Some(found) => self.take_up(&known, &found).await?,
            None => {
                self.table.of(&known.sandbox).clear();
                AdoptionOutcome::Gone
            }
        };
        Ok(known.instance.map(|(instance, _)| Adopted { instance, fate, facts: None }))
    }

    async fn take_up(
        &self,
        known: &KnownSandbox,
        found: &OwnedObject,
    ) -> Result<AdoptionOutcome, ProviderError> {
        let (slot, object) = (self.table.of(&known.sandbox), self.understood(found)?);
        let (state, instance) = (object.state, object.instance.clone());
        // What is known of its access stays: only a connect tells the tokens.
        let access = slot.object().filter(|before| before.id == object.id && before.instance == instance);
        slot.set(E2bObject { access: access.and_then(|before| before.access), ..object.clone() });
        let is_known = known.instance.as_ref().is_some_and(|(wanted, _)| *wanted == instance);
        if !is_known || state == ObjectState::Halted {
            self.end(&known.sandbox, &slot, &object).await?;
            return Ok(AdoptionOutcome::Gone);
        }
        if self.records.read(&known.sandbox)?.is_some_and(|record| record.halted) {
            // The server died between the start and its record.
            self.records
                .write(&known.sandbox, InstanceRecord { instance: instance.clone(), halted: false })
                .await?;
        }
        if state == ObjectState::Paused && known.paused {
            return Ok(AdoptionOutcome::Frozen);
        }
        if state == ObjectState::Paused {
            // The server was away for longer than the lifetime at the service, or died during a resume.
            let target = Target { sandbox: known.sandbox.clone(), instance: Some(instance) };
            self.resume(&target, &slot).await?;
        }
        Ok(AdoptionOutcome::Alive)
    }
}
