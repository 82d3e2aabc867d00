//! Adoption after a restart: live instances of known sandboxes are watched again, everything else that this server made
//! is removed.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use atoll_model::{InstanceId, SandboxId, SnapshotId};
use atoll_provider::{Adopted, AdoptionOutcome, KnownSandbox, ProviderError};
use serde_json::Value;

use crate::{InstanceLauncher, Instances, RunningInstance};

/// An engine whose instances outlive the server. The methods are called in this order, and no start runs meanwhile.
pub trait AdoptionLauncher: InstanceLauncher {
    /// Waits for work that an earlier server left under way.
    fn before_adoption(&self, known: &[KnownSandbox]) -> impl Future<Output = ()> + Send;

    /// Lets an instance that this server holds already run again, unless its sandbox is paused. Returns its facts if
    /// the service has stored none.
    fn hold_again(
        &self,
        known: &KnownSandbox,
        live: &Arc<Self::Instance>,
    ) -> impl Future<Output = Result<Option<Value>, ProviderError>> + Send;

    /// The instance that the stored facts describe, if it lives. With new facts, if the service has stored none.
    fn find(
        &self,
        known: &KnownSandbox,
        instance: &InstanceId,
        facts: &Value,
    ) -> Option<(Self::Instance, Option<Value>)>;

    /// What has become of the instance of a known sandbox.
    fn outcome(&self, known: &KnownSandbox, live: Option<&Self::Instance>) -> AdoptionOutcome;

    /// Removes everything of this engine that belongs to none of the known sandboxes, the surviving instances and the
    /// instances of the pool.
    fn sweep(
        &self,
        known: &[KnownSandbox],
        surviving: &[Arc<Self::Instance>],
    ) -> impl Future<Output = Result<(), ProviderError>> + Send;

    /// Takes up the numbers of a found instance, before it is watched.
    fn recognise(&self, live: &Self::Instance);

    /// Applies limits and network policy of a found instance again, and lets it run unless its sandbox is paused.
    fn apply_again(
        &self,
        known: &KnownSandbox,
        live: &Arc<Self::Instance>,
    ) -> impl Future<Output = ()> + Send;

    /// Removes memory and snapshots on disk that are not wanted.
    fn after_adoption(
        &self,
        known: &[KnownSandbox],
        adopted: &[Adopted],
        snapshots: &[SnapshotId],
    ) -> impl Future<Output = Result<(), ProviderError>> + Send;
}

impl<L: AdoptionLauncher> Instances<L> {
    /// Finds known instances by their facts, not by process parenthood, and removes the rest.
    pub async fn adopt(
        launcher: &Arc<L>,
        known: Vec<KnownSandbox>,
        snapshots: Vec<SnapshotId>,
    ) -> Result<Vec<Adopted>, ProviderError> {
        let instances = launcher.instances();
        let _alone = instances.adoption.write().await;
        launcher.before_adoption(&known).await;
        let mut adopted = Vec::new();
        let mut found = Vec::new();
        for known in &known {
            let Some((instance, facts)) = &known.instance else { continue };
            let (live, new_facts) = if instances.is_held(&known.sandbox, instance) {
                let held = instances.slot(&known.sandbox).live().map(|(_, live)| live);
                let new_facts = match &held {
                    Some(live) => launcher.hold_again(known, live).await?,
                    None => None,
                };
                (held, new_facts)
            } else {
                let (live, new_facts) = launcher.find(known, instance, facts).unzip();
                let live = live.map(Arc::new);
                found.extend(live.iter().map(|live| (known, instance, Arc::clone(live))));
                (live, new_facts.flatten())
            };
            let fate = launcher.outcome(known, live.as_deref());
            adopted.push(Adopted { instance: instance.clone(), fate, facts: new_facts });
        }
        Self::end_unknown(launcher, &known).await;
        let mut surviving: Vec<_> = found.iter().map(|(_, _, live)| Arc::clone(live)).collect();
        surviving.extend(instances.slots().into_iter().filter_map(|(_, slot)| slot.live_as(None)));
        launcher.sweep(&known, &surviving).await?;
        for (known, instance, live) in found {
            launcher.recognise(&live);
            let slot = instances.slot(&known.sandbox);
            slot.set_live(Some((instance.clone(), Arc::clone(&live))));
            Self::watch(launcher, Arc::clone(&live), &known.sandbox, instance);
            launcher.apply_again(known, &live).await;
        }
        launcher.after_adoption(&known, &adopted, &snapshots).await?;
        instances.needs_adoption.store(false, Ordering::SeqCst);
        instances.pool.wanted.notify_one();
        Ok(adopted)
    }

    /// Whether this server has made or adopted the instance already, so that it is not watched twice.
    fn is_held(&self, sandbox: &SandboxId, instance: &InstanceId) -> bool {
        let slot = self.existing_slot(sandbox);
        slot.and_then(|slot| slot.live())
            .is_some_and(|(held, live)| held == *instance && !live.is_dead().unwrap_or(true))
    }

    /// Ends instances that this server made itself and that are dead or not known any more.
    async fn end_unknown(launcher: &L, known: &[KnownSandbox]) {
        let instances = launcher.instances();
        let is_known = |sandbox: &SandboxId, instance: &InstanceId| {
            let same = |known: &KnownSandbox| known.instance.as_ref().is_some_and(|(id, _)| id == instance);
            known.iter().any(|known| known.sandbox == *sandbox && same(known))
        };
        for (sandbox, slot) in instances.slots() {
            let Some((instance, live)) = slot.live() else { continue };
            if !(is_known(&sandbox, &instance) && instances.is_held(&sandbox, &instance))
                && let Err(cause) = Self::end(launcher, &slot, &live).await
            {
                tracing::warn!(%sandbox, %cause, "an unknown instance did not end in time");
            }
        }
    }
}
