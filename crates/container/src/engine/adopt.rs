//! Adoption after a restart: how live instances are found again, and how everything else that this server made is
//! removed.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use atoll_instances::AdoptionLauncher;
use atoll_model::{InstanceId, SandboxId, SnapshotId};
use atoll_network::SandboxLink;
use atoll_provider::{Adopted, AdoptionOutcome, KnownSandbox, ProviderError};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::Value;

use super::instance::{self, Facts, Live};
use super::reaper::{HostResources, InstanceRemains};
use super::snapshot::blocking;
use super::{EngineShared, failed};
use crate::checkpoint::wait_for_images;

/// LIMIT: how long the sweep waits for unknown instances to end; the reaper does the rest.
const ENDS_WITHIN: Duration = Duration::from_secs(5);
/// LIMIT: how long adoption waits for a CRIU process that an earlier server started.
const CRIU_WITHIN: Duration = Duration::from_secs(60);

impl AdoptionLauncher for EngineShared {
    /// Waits for dumps and restores that an earlier server left under way. CRIU ends by itself, and until then the
    /// state of the sandbox is undefined.
    async fn before_adoption(&self, known: &[KnownSandbox]) {
        for known in known {
            let (checkpoints, sandbox) = (self.checkpoints.clone(), known.sandbox.clone());
            let waited = blocking(move || checkpoints.wait_for_criu(&sandbox, CRIU_WITHIN)).await;
            if let Err(cause) = waited {
                tracing::error!(sandbox = %known.sandbox, %cause, "CRIU still works on a sandbox");
            }
        }
        let layers = Arc::clone(&self.resources.layers);
        if let Err(cause) = blocking(move || layers.arrange_groups()).await {
            tracing::error!(%cause, "layers may not count for their tenants");
        }
        // A dump for a snapshot also keeps its sandbox frozen until it ends.
        let layers = Arc::clone(&self.resources.layers);
        let waited = blocking(move || {
            let end = Instant::now() + CRIU_WITHIN;
            let all = layers.unwanted_snapshots(&HashSet::new())?;
            all.iter().try_for_each(|name| wait_for_images(&layers.snapshot_path(name).join("memory"), end))
        });
        if let Err(cause) = waited.await {
            tracing::error!(%cause, "CRIU still works on a snapshot");
        }
    }

    async fn hold_again(
        &self,
        known: &KnownSandbox,
        live: &Arc<Live>,
    ) -> Result<Option<Value>, ProviderError> {
        if !known.paused {
            let (cgroups, checkpoints) = (Arc::clone(&self.resources.cgroups), self.checkpoints.clone());
            let (sandbox, thawed) = (known.sandbox.clone(), Arc::clone(live));
            let thaw = move || {
                checkpoints.discard(&sandbox)?;
                cgroups.thaw(&thawed.facts.cgroup)
            };
            self.blocking.run(thaw).await.map_err(failed("thawing what is to run"))?;
        }
        let has_none = known.instance.as_ref().is_some_and(|(_, facts)| facts.is_null());
        let facts = has_none.then(|| serde_json::to_value(&live.facts)).transpose();
        facts.map_err(failed("writing facts"))
    }

    fn find(
        &self,
        known: &KnownSandbox,
        instance: &InstanceId,
        facts: &Value,
    ) -> Option<(Live, Option<Value>)> {
        if known.paused && self.checkpoints.exists(&known.sandbox) {
            // Some of its processes may be killed already, and the checkpoint contains all of them: the sweep ends the
            // rest.
            return None;
        }
        let (facts, new_facts) = self.facts_of(&known.sandbox, instance, facts);
        Some((self.find_process(facts?)?, new_facts))
    }

    fn outcome(&self, known: &KnownSandbox, live: Option<&Live>) -> AdoptionOutcome {
        match live {
            Some(live) if known.paused && self.stands_still(live) => AdoptionOutcome::Frozen,
            Some(_) => AdoptionOutcome::Alive,
            None if known.paused && self.checkpoints.exists(&known.sandbox) => AdoptionOutcome::Checkpointed,
            None => AdoptionOutcome::Gone,
        }
    }

    async fn sweep(&self, known: &[KnownSandbox], surviving: &[Arc<Live>]) -> Result<(), ProviderError> {
        let links: Vec<SandboxLink> = surviving.iter().filter_map(|live| live.facts.link).collect();
        let mut cgroups: HashSet<String> = surviving.iter().map(|live| live.facts.cgroup.clone()).collect();
        let mut layers: HashSet<String> =
            known.iter().map(|known| known.sandbox.as_str().to_owned()).collect();
        self.instances.for_each_ready(|ready| {
            cgroups.insert(ready.live.facts.cgroup.clone());
            layers.insert(ready.layer.clone());
        });
        let resources = Arc::clone(&self.resources);
        let sweep = tokio::task::spawn_blocking(move || resources.sweep(&links, &cgroups, &layers));
        let left = sweep.await.map_err(failed("sweeping"))?.map_err(failed("sweeping"))?;
        left.into_iter().for_each(|remains| self.instances.reaper().take(remains));
        Ok(())
    }

    fn recognise(&self, live: &Live) {
        self.numbers().adopt(live.facts.first_id);
        let kills = self.resources.cgroups.oom_kills(&live.facts.cgroup).unwrap_or(0);
        live.oom_kills.store(kills, Ordering::SeqCst);
    }

    async fn apply_again(&self, known: &KnownSandbox, live: &Arc<Live>) {
        let live = Arc::clone(live);
        let (resources, checkpoints) = (Arc::clone(&self.resources), self.checkpoints.clone());
        let (sandbox, limits, egress) = (known.sandbox.clone(), known.limits, Arc::clone(&known.network));
        let stays = known.paused && self.stands_still(&live);
        let again = move || {
            // First, and independent of the rest: the policies of operator and tenant may have become stricter.
            if let Some(link) = live.facts.link
                && let Err(cause) = resources.networks.change(link, &sandbox, &egress, live.netns())
            {
                // No network is safer than an outdated policy.
                let _ = resources.networks.detach(link);
                return Err(io::Error::other(cause));
            }
            // An interrupted create may have left the instance frozen, and an interrupted dump may have left it half
            // frozen.
            if stays {
                resources.cgroups.freeze(&live.facts.cgroup)?
            } else {
                checkpoints.discard(&sandbox)?;
                resources.cgroups.thaw(&live.facts.cgroup)?
            }
            resources.cgroups.set_limits(&live.facts.cgroup, &limits)?;
            if resources.layers.exists(sandbox.as_str()) {
                resources.layers.set_limit(sandbox.as_str(), u64::from(limits.disk_mib) << 20)?;
            }
            Ok(())
        };
        if let Err(cause) = self.blocking.run(again).await {
            tracing::warn!(sandbox = %known.sandbox, %cause, "limits or network policy could not be applied again");
        }
    }

    async fn after_adoption(
        &self,
        known: &[KnownSandbox],
        adopted: &[Adopted],
        snapshots: &[SnapshotId],
    ) -> Result<(), ProviderError> {
        self.sweep_checkpoints(known, adopted).await?;
        self.sweep_snapshots(snapshots).await
    }
}

impl EngineShared {
    /// The stored facts, or those of a restore that had finished before its facts were stored.
    fn facts_of(
        &self,
        sandbox: &SandboxId,
        instance: &InstanceId,
        stored: &serde_json::Value,
    ) -> (Option<Facts>, Option<serde_json::Value>) {
        if !stored.is_null() {
            return (serde_json::from_value(stored.clone()).ok(), None);
        }
        match self.checkpoints.restored(sandbox).filter(|restored| restored.instance == *instance) {
            Some(restored) => (serde_json::from_value(restored.facts.clone()).ok(), Some(restored.facts)),
            None => (None, None),
        }
    }

    fn stands_still(&self, live: &Live) -> bool {
        self.resources.cgroups.is_frozen(&live.facts.cgroup).unwrap_or(false)
    }

    /// Removes drafts, and checkpoints of sandboxes that run or should have none. The record of a spent checkpoint
    /// stays as long as its instance lives.
    async fn sweep_checkpoints(
        &self,
        known: &[KnownSandbox],
        fates: &[Adopted],
    ) -> Result<(), ProviderError> {
        let fate = |known: &KnownSandbox| {
            let (instance, _) = known.instance.as_ref()?;
            fates.iter().find(|one| one.instance == *instance).map(|one| one.fate)
        };
        let (mut kept, mut lives) = (HashSet::new(), HashSet::new());
        for known in known {
            let name = known.sandbox.as_str().to_owned();
            match fate(known) {
                Some(AdoptionOutcome::Alive | AdoptionOutcome::Frozen) => drop(lives.insert(name)),
                Some(AdoptionOutcome::Checkpointed) => drop(kept.insert(name)),
                Some(AdoptionOutcome::Gone) => {}
                // The sandbox has only files, or files with the memory of a snapshot.
                None if known.paused => drop(kept.insert(name)),
                None => {}
            }
        }
        let checkpoints = self.checkpoints.clone();
        let sweep = move || {
            for name in checkpoints.list()? {
                checkpoints.sweep_named(&name, kept.contains(&name), lives.contains(&name))?;
            }
            Ok(())
        };
        blocking(sweep).await.map_err(failed("sweeping checkpoints"))
    }

    /// The instance that the facts describe, if its process is still the same.
    fn find_process(&self, facts: Facts) -> Option<Live> {
        if facts.boot_id != self.boot_id {
            return None;
        }
        // Open the process first, then check that it is the right one: while it is open, its pid cannot be reused.
        let pidfd = pidfd_open(Pid::from_raw(facts.pid)?, PidfdFlags::empty()).ok()?;
        let is_it = instance::started(facts.pid).ok()? == facts.started
            && self.resources.cgroups.processes(&facts.cgroup).ok()?.contains(&facts.pid);
        let netns: OwnedFd = File::open(format!("/proc/{}/ns/net", facts.pid)).ok()?.into();
        if !is_it || instance::is_dead(pidfd.as_fd()).ok()? {
            return None;
        }
        Live::new(facts, pidfd, netns).ok()
    }
}

impl HostResources {
    /// Ends every instance and removes every link and layer that is not listed. Returns what could not be removed in
    /// time.
    fn sweep(
        &self,
        links: &[SandboxLink],
        cgroups: &HashSet<String>,
        layers: &HashSet<String>,
    ) -> io::Result<Vec<InstanceRemains>> {
        let strangers: Vec<String> =
            self.cgroups.list()?.into_iter().filter(|name| !cgroups.contains(name)).collect();
        let mut left = strangers;
        let begun = Instant::now();
        // Their ids and links may be reused only when they are dead.
        while !left.is_empty() && begun.elapsed() < ENDS_WITHIN {
            left.retain(|name| self.clear_cgroup(name).is_err());
            if !left.is_empty() {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        let swept = self.networks.router().sweep(links)?;
        if !swept.missing.is_empty() {
            tracing::warn!(missing = swept.missing.len(), "network links of running sandboxes are missing");
        }
        let mut remains: Vec<InstanceRemains> = left
            .into_iter()
            .map(|name| InstanceRemains { cgroup: Some(name), ..InstanceRemains::default() })
            .collect();
        let lost = self.layers.list()?.into_iter().filter(|name| !layers.contains(name));
        // A partly restored layer is restored again under the same name, possibly before the old files are gone.
        let aside = lost.map(|name| self.layer_for_reaper(name));
        remains.extend(aside.map(|layer| InstanceRemains { layer, ..InstanceRemains::default() }));
        Ok(remains)
    }
}
