//! Adoption after a restart: live instances of known sandboxes are watched again, everything else that this server made
//! is removed.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use atoll_model::{InstanceId, SandboxId, SnapshotId};
use atoll_network::SandboxLink;
use atoll_provider::{Adopted, AdoptionOutcome, KnownSandbox, ProviderError};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::instance::{self, Facts, Live};
use super::reaper::{HostResources, InstanceRemains};
use super::snapshot::blocking;
use super::{EngineShared, failed};
use crate::checkpoint::wait_for_images;

/// LIMIT: how long the sweep waits for unknown instances to end; the reaper does the rest.
const ENDS_WITHIN: Duration = Duration::from_secs(5);
/// LIMIT: how long adoption waits for a CRIU process that an earlier server started.
const CRIU_WITHIN: Duration = Duration::from_secs(60);

impl EngineShared {
    /// Finds known instances by their facts, not by process parenthood, and removes the rest.
    pub(super) async fn adopt(
        self: &Arc<Self>,
        known: Vec<KnownSandbox>,
        snapshots: Vec<SnapshotId>,
    ) -> Result<Vec<Adopted>, ProviderError> {
        let _alone = self.adoption.write().await;
        self.dumps_end(&known).await;
        let mut fates = Vec::new();
        let mut alive = Vec::new();
        for known in known.iter() {
            let Some((instance, facts)) = &known.instance else { continue };
            let (found, told) = if self.is_held(&known.sandbox, instance) {
                let held = self.place(&known.sandbox).live().map(|(_, live)| live);
                if let Some(live) = held.clone().filter(|_| !known.paused) {
                    let (cgroups, checkpoints) =
                        (Arc::clone(&self.resources.cgroups), self.checkpoints.clone());
                    let sandbox = known.sandbox.clone();
                    let thaw = move || {
                        checkpoints.discard(&sandbox)?;
                        cgroups.thaw(&live.facts.cgroup)
                    };
                    let thawed = self.blocking.run(thaw).await;
                    thawed.map_err(failed("thawing what is to run"))?;
                }
                let told = held.as_ref().filter(|_| facts.is_null());
                let told = told.map(|live| serde_json::to_value(&live.facts)).transpose();
                (held, told.map_err(failed("writing facts"))?)
            } else if known.paused && self.checkpoints.exists(&known.sandbox) {
                // Some of its processes may be killed already, and the checkpoint contains all of them: the sweep ends
                // the rest.
                (None, None)
            } else {
                let (facts, told) = self.facts_of(&known.sandbox, instance, facts);
                let found = facts.and_then(|facts| self.find(facts)).map(Arc::new);
                alive.extend(found.iter().map(|live| (known, instance, Arc::clone(live))));
                let told = told.filter(|_| found.is_some());
                (found, told)
            };
            let fate = match found {
                Some(live) if known.paused && self.stands_still(&live) => AdoptionOutcome::Frozen,
                Some(_) => AdoptionOutcome::Alive,
                None if known.paused && self.checkpoints.exists(&known.sandbox) => {
                    AdoptionOutcome::Checkpointed
                }
                None => AdoptionOutcome::Gone,
            };
            fates.push(Adopted { instance: instance.clone(), fate, facts: told });
        }
        let mut links: Vec<SandboxLink> = alive.iter().filter_map(|(_, _, live)| live.facts.link).collect();
        let mut cgroups: HashSet<String> =
            alive.iter().map(|(_, _, live)| live.facts.cgroup.clone()).collect();
        let mut layers: HashSet<String> =
            known.iter().map(|known| known.sandbox.as_str().to_owned()).collect();
        self.end_unknown(&known).await;
        for live in self.own_live() {
            cgroups.insert(live.facts.cgroup.clone());
            links.extend(live.facts.link);
        }
        for ready in self.lock_pool().all() {
            cgroups.insert(ready.live.facts.cgroup.clone());
            layers.insert(ready.layer.clone());
        }
        let resources = Arc::clone(&self.resources);
        let sweep = tokio::task::spawn_blocking(move || resources.sweep(&links, &cgroups, &layers));
        let left = sweep.await.map_err(failed("sweeping"))?.map_err(failed("sweeping"))?;
        left.into_iter().for_each(|remains| self.reaper.take(remains));
        for (known, instance, live) in alive {
            self.take_up(known, instance, live).await;
        }
        self.sweep_checkpoints(&known, &fates).await?;
        self.sweep_snapshots(&known, &snapshots).await?;
        self.needs_adoption.store(false, Ordering::SeqCst);
        self.pool_wanted.notify_one();
        Ok(fates)
    }

    /// Waits for dumps and restores that an earlier server left under way. CRIU ends by itself, and until then the
    /// state of the sandbox is undefined.
    async fn dumps_end(&self, known: &[KnownSandbox]) {
        for known in known {
            let (checkpoints, sandbox) = (self.checkpoints.clone(), known.sandbox.clone());
            let waited = blocking(move || checkpoints.wait_for_criu(&sandbox, CRIU_WITHIN)).await;
            if let Err(cause) = waited {
                tracing::error!(sandbox = %known.sandbox, %cause, "CRIU still works on a sandbox");
            }
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
    fn find(&self, facts: Facts) -> Option<Live> {
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

    async fn take_up(self: &Arc<Self>, known: &KnownSandbox, instance: &InstanceId, live: Arc<Live>) {
        self.numbers().adopt(live.facts.first_id);
        let kills = self.resources.cgroups.oom_kills(&live.facts.cgroup).unwrap_or(0);
        live.oom_kills.store(kills, Ordering::SeqCst);
        let place = self.place(&known.sandbox);
        place.set_live(Some((instance.clone(), Arc::clone(&live))));
        self.watch(Arc::clone(&live), &known.sandbox, instance);
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

    /// Whether this server has made or adopted the instance already, so that it is not watched twice.
    fn is_held(&self, sandbox: &SandboxId, instance: &InstanceId) -> bool {
        let place = self.places().get(sandbox).cloned();
        place
            .and_then(|place| place.live())
            .is_some_and(|(held, live)| held == *instance && !instance::is_dead(live.pidfd()).unwrap_or(true))
    }

    fn own_live(&self) -> Vec<Arc<Live>> {
        self.places().values().filter_map(|place| place.live()).map(|(_, live)| live).collect()
    }

    /// Ends instances that this server made itself and that are dead or not known any more.
    async fn end_unknown(&self, known: &[KnownSandbox]) {
        let is_known = |sandbox: &SandboxId, instance: &InstanceId| {
            let same = |known: &KnownSandbox| known.instance.as_ref().is_some_and(|(id, _)| id == instance);
            known.iter().any(|known| known.sandbox == *sandbox && same(known))
        };
        let places: Vec<_> =
            self.places().iter().map(|(id, place)| (id.clone(), Arc::clone(place))).collect();
        for (sandbox, place) in places {
            let Some((instance, live)) = place.live() else { continue };
            if !(is_known(&sandbox, &instance) && self.is_held(&sandbox, &instance))
                && let Err(cause) = self.end(&place, &live, None).await
            {
                tracing::warn!(%sandbox, %cause, "an unknown instance did not end in time");
            }
        }
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
        let aside = lost.map(|name| self.layers.put_aside(&name).unwrap_or(Some(name)));
        remains.extend(aside.map(|layer| InstanceRemains { layer, ..InstanceRemains::default() }));
        Ok(remains)
    }
}
