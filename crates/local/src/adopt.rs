//! Adoption after a restart: agents outlive the server and are found again by the records in their folders.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use atoll_instances::{AdoptionLauncher, failed};
use atoll_model::{InstanceId, SandboxId, SnapshotId};
use atoll_provider::{Adopted, AdoptionOutcome, KnownSandbox, ProviderError};
use serde_json::Value;

use crate::folder::remove_aside;
use crate::instance::LocalInstance;
use crate::launch::LocalCleaner;
use crate::{LocalShared, blocking, processes};

impl AdoptionLauncher for LocalShared {
    async fn before_adoption(&self, _: &[KnownSandbox]) {}

    async fn hold_again(
        &self,
        known: &KnownSandbox,
        live: &Arc<LocalInstance>,
    ) -> Result<Option<Value>, ProviderError> {
        if !known.paused && self.is_frozen(live) {
            self.thaw(live).await?;
        }
        Ok(None)
    }

    fn find(
        &self,
        known: &KnownSandbox,
        instance: &InstanceId,
        facts: &Value,
    ) -> Option<(LocalInstance, Option<Value>)> {
        let LocalCleaner { folders, processes } = &self.cleaner;
        let record = folders.record(&known.sandbox).filter(|record| record.instance == *instance)?;
        let new_facts = facts.is_null().then(|| serde_json::to_value(&record).ok()).flatten();
        let folder = folders.of(&known.sandbox);
        let live = LocalInstance::open(&known.sandbox, &folder, record, processes);
        match live {
            Ok(live) => live.map(|live| (live, new_facts)),
            Err(cause) => {
                tracing::warn!(sandbox = %known.sandbox, %cause, "the agent of a sandbox could not be looked at");
                None
            }
        }
    }

    fn outcome(&self, known: &KnownSandbox, live: Option<&LocalInstance>) -> AdoptionOutcome {
        match live {
            Some(live) if known.paused && self.is_frozen(live) => AdoptionOutcome::Frozen,
            Some(_) => AdoptionOutcome::Alive,
            None => AdoptionOutcome::Gone,
        }
    }

    async fn sweep(
        &self,
        known: &[KnownSandbox],
        surviving: &[Arc<LocalInstance>],
    ) -> Result<(), ProviderError> {
        let known: HashSet<SandboxId> = known.iter().map(|known| known.sandbox.clone()).collect();
        let surviving: HashSet<InstanceId> =
            surviving.iter().map(|live| live.record.instance.clone()).collect();
        let cleaner = self.cleaner.clone();
        blocking(move || cleaner.sweep(&known, &surviving)).await.map_err(failed("sweeping"))
    }

    fn recognise(&self, live: &LocalInstance) {
        let cgroups = self.cleaner.processes.cgroups.as_ref();
        let kills = cgroups.and_then(|cgroups| cgroups.oom_kills(live.cgroup()).ok());
        live.oom_kills.store(kills.unwrap_or(0), Ordering::SeqCst);
    }

    async fn apply_again(&self, known: &KnownSandbox, live: &Arc<LocalInstance>) {
        let Some(cgroups) = self.cleaner.processes.cgroups.clone().filter(|_| live.record.has_cgroup) else {
            return;
        };
        let (name, limits) = (live.cgroup().to_owned(), known.limits);
        let stays = known.paused && self.is_frozen(live);
        let again = move || {
            if stays {
                cgroups.freeze(&name)?
            } else {
                cgroups.thaw(&name)?
            }
            cgroups.set_limits(&name, &limits)
        };
        if let Err(cause) = blocking(again).await {
            tracing::warn!(sandbox = %known.sandbox, %cause, "limits could not be applied again");
        }
    }

    async fn after_adoption(
        &self,
        _: &[KnownSandbox],
        _: &[Adopted],
        _: &[SnapshotId],
    ) -> Result<(), ProviderError> {
        Ok(())
    }
}

impl LocalCleaner {
    /// Ends every instance that does not survive, and removes the folders of sandboxes that are not known. What cannot be
    /// removed is logged and tried again at the next start: it must not keep the other sandboxes from being adopted.
    fn sweep(&self, known: &HashSet<SandboxId>, surviving: &HashSet<InstanceId>) -> io::Result<()> {
        for sandbox in self.folders.list()? {
            if let Err(cause) = self.sweep_one(&sandbox, known.contains(&sandbox), surviving) {
                tracing::warn!(%sandbox, %cause, "an ended sandbox could not be removed whole");
            }
        }
        // Control groups whose instance was never recorded: all of them are below a group that only this server uses.
        let Some(cgroups) = &self.processes.cgroups else { return Ok(()) };
        let is_stray = |name: &&String| !surviving.iter().any(|instance| instance.as_str() == name.as_str());
        for name in cgroups.list()?.iter().filter(is_stray) {
            if let Err(cause) = processes::clear_cgroup(&**cgroups, name) {
                tracing::warn!(name, %cause, "the control group of an ended instance is left");
            }
        }
        Ok(())
    }

    fn sweep_one(
        &self,
        sandbox: &SandboxId,
        is_known: bool,
        surviving: &HashSet<InstanceId>,
    ) -> io::Result<()> {
        let record = self.folders.record(sandbox);
        if let Some(record) = record.filter(|record| !surviving.contains(&record.instance)) {
            self.processes.clear(&record)?;
            self.folders.remove_record(sandbox)?;
        }
        match is_known {
            true => Ok(()),
            false => self.folders.put_aside(sandbox)?.map_or(Ok(()), |folder| remove_aside(&folder)),
        }
    }
}
