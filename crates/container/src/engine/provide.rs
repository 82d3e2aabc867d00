//! The base of [`Provider`]: create, boot, halt, destroy, adopt.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use atoll_image::{Template, TemplateError};
use atoll_model::policy::egress::Egress;
use atoll_model::policy::placement::Node;
use atoll_model::{InstanceId, Limits, SandboxId, SnapshotId, Storage};
use atoll_network::{ErrorKind, LinkError};
use atoll_provider::{
    Adopted, ArchiveSupport, Booted, Capabilities, CaptureSupport, CheckpointSupport, DialSupport,
    EgressSupport, FilesOrigin, InstanceActivity, InstanceSpec, InstanceUsage, Isolation, KnownSandbox,
    Notice, OwnedSandbox, PauseSupport, PoolSupport, Provider, ProviderDescription, ProviderError,
    ResizeSupport, SnapshotSupport, Target, VolumeSupport,
};
use tokio::sync::broadcast;

use super::cold_start::{LayerPlan, Plan};
use super::instance::Live;
use super::reaper::InstanceRemains;
use super::{Engine, EngineShared, STOP_WITHIN, SandboxSlot, failed, watch};

/// LIMIT: a kill takes milliseconds; after this time the reaper continues alone.
const DEAD_WITHIN: Duration = Duration::from_secs(2);
/// What a new layer or volume needs before anything is written to it.
pub(super) const LEAST_FREE: u64 = 64 << 20;
const MIB: u64 = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FilesState {
    New,
    Kept,
}

#[async_trait]
impl Provider for Engine {
    fn name(&self) -> &'static str {
        "container"
    }

    fn description(&self) -> ProviderDescription {
        ProviderDescription {
            isolation: Isolation::Container,
            cost: "free: your own machine",
            best_for: "fast sandboxes with full control: pauses, snapshots, forks and network policy",
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            dials: true,
            keeps_files: true,
            limits_disk: self.inner.resources.layers.limits_disk(),
            resizes_live: true,
            network: true,
            pauses: true,
            checkpoints: self.inner.can_checkpoint(),
            snapshots: self.inner.can_snapshot(),
            packs: self.inner.can_pack(),
            captures: true,
            volumes: true,
            pools: true,
            prepares: self.inner.config.prepare.is_some(),
        }
    }

    async fn create(&self, spec: &InstanceSpec) -> Result<Booted, ProviderError> {
        self.inner.start(spec, FilesState::New).await
    }

    async fn boot(&self, spec: &InstanceSpec) -> Result<Booted, ProviderError> {
        self.inner.start(spec, FilesState::Kept).await
    }

    async fn halt(&self, target: &Target) -> Result<(), ProviderError> {
        let place = self.inner.place(&target.sandbox);
        let _turn = place.turn.lock().await;
        // First, so that a crash between the two steps does not restore a halted instance.
        self.inner.remove_checkpoint(&target.sandbox).await?;
        match place.live() {
            Some((instance, live)) if target.instance.as_ref().is_none_or(|wanted| *wanted == instance) => {
                self.inner.end(&place, &live, None).await
            }
            Some(_) => Ok(()),
            None => {
                self.inner.forget_empty(&target.sandbox, &place);
                Ok(())
            }
        }
    }

    async fn destroy(&self, target: &Target) -> Result<(), ProviderError> {
        let place = self.inner.place(&target.sandbox);
        place.condemn();
        let _turn = place.turn.lock().await;
        let layer = target.sandbox.as_str().to_owned();
        self.inner.remove_checkpoint(&target.sandbox).await?;
        let ended = match place.live() {
            Some((_, live)) => self.inner.end(&place, &live, Some(layer)).await,
            None => {
                // Files may be unpacked under this name at once: they must not collide with the removal of the old
                // ones.
                let layers = Arc::clone(&self.inner.resources.layers);
                let aside = super::snapshot::blocking(move || layers.put_aside(&layer)).await;
                let aside = aside.map_err(failed("moving files aside"))?;
                self.inner.reaper.take(InstanceRemains { layer: aside, ..InstanceRemains::default() });
                Ok(())
            }
        };
        self.inner.places().remove(&target.sandbox);
        ended
    }

    async fn usage(&self, target: &Target) -> Result<InstanceUsage, ProviderError> {
        let live = self.inner.live(target)?;
        let (cgroups, layers) =
            (Arc::clone(&self.inner.resources.cgroups), Arc::clone(&self.inner.resources.layers));
        let layer = target.sandbox.as_str().to_owned();
        let work = move || {
            let figures = cgroups.figures(&live.facts.cgroup)?;
            let disk_bytes = match live.facts.storage {
                Storage::Disk => layers.used_bytes(&layer).unwrap_or(0),
                // The layer is in memory and counted there.
                Storage::Memory => 0,
            };
            Ok(InstanceUsage {
                cpu_us: figures.cpu_us,
                memory_bytes: figures.memory_bytes,
                cache_bytes: figures.cache_bytes,
                pids: figures.pids,
                disk_bytes,
                sent_bytes: live.sent_bytes(),
            })
        };
        self.inner.blocking.run(work).await.map_err(failed("reading figures"))
    }

    async fn owned(&self) -> Result<Vec<OwnedSandbox>, ProviderError> {
        let slots: Vec<_> =
            self.inner.places().iter().map(|(id, slot)| (id.clone(), Arc::clone(slot))).collect();
        let cgroups = Arc::clone(&self.inner.resources.cgroups);
        let work = move || {
            let owned = slots.into_iter().map(|(sandbox, slot)| {
                let instance = slot.live().map(|(instance, live)| {
                    let frozen = cgroups.is_frozen(&live.facts.cgroup).unwrap_or(false);
                    (instance, if frozen { InstanceActivity::Paused } else { InstanceActivity::Running })
                });
                OwnedSandbox { sandbox, instance }
            });
            Ok(owned.collect())
        };
        self.inner.blocking.run(work).await.map_err(failed("listing sandboxes"))
    }

    async fn adopt(
        &self,
        known: Vec<KnownSandbox>,
        snapshots: Vec<SnapshotId>,
    ) -> Result<Vec<Adopted>, ProviderError> {
        self.inner.adopt(known, snapshots).await
    }

    fn notices(&self) -> broadcast::Receiver<Notice> {
        self.inner.notices.subscribe()
    }

    async fn node(&self) -> Result<Node, ProviderError> {
        let layers = Arc::clone(&self.inner.resources.layers);
        let space =
            self.inner.blocking.run(move || layers.space()).await.map_err(failed("measuring free space"))?;
        let memory = std::fs::read_to_string("/proc/meminfo").map_err(failed("reading free memory"))?;
        let mib = |key: &str| {
            let line = memory.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
            line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) / 1_024
        };
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Ok(Node {
            memory_free_mib: mib("MemAvailable:"),
            memory_total_mib: mib("MemTotal:"),
            cpu_total_milli: cores as u64 * 1_000,
            disk_free_mib: space.free / MIB,
            disk_copy_mib: space.free_for_memory / MIB,
            disk_total_mib: space.total / MIB,
            disk_limits_mib: 0,
            disk_overcommit: 0.0,
            live: 0,
            memory_limits_mib: 0,
            live_max: 0,
            overcommit: 0.0,
        })
    }

    async fn settle(&self, deadline: Duration) -> Result<(), ProviderError> {
        let late = |_| ProviderError::Late { what: "cleaning up".into(), after: deadline };
        let settled = async {
            self.inner.starts_end().await;
            self.inner.reaper.settle().await;
        };
        tokio::time::timeout(deadline, settled).await.map_err(late)
    }

    fn dial_support(&self) -> Result<&dyn DialSupport, ProviderError> {
        Ok(self)
    }

    fn resize_support(&self) -> Result<&dyn ResizeSupport, ProviderError> {
        Ok(self)
    }

    fn pause_support(&self) -> Result<&dyn PauseSupport, ProviderError> {
        Ok(self)
    }

    fn checkpoint_support(&self) -> Result<&dyn CheckpointSupport, ProviderError> {
        self.inner.criu()?;
        Ok(self)
    }

    fn snapshot_support(&self) -> Result<&dyn SnapshotSupport, ProviderError> {
        Ok(self)
    }

    fn archive_support(&self) -> Result<&dyn ArchiveSupport, ProviderError> {
        Ok(self)
    }

    fn capture_support(&self) -> Result<&dyn CaptureSupport, ProviderError> {
        Ok(self)
    }

    fn volume_support(&self) -> Result<&dyn VolumeSupport, ProviderError> {
        Ok(self)
    }

    fn egress_support(&self) -> Result<&dyn EgressSupport, ProviderError> {
        Ok(self)
    }

    fn pool_support(&self) -> Result<&dyn PoolSupport, ProviderError> {
        Ok(self)
    }
}

impl EngineShared {
    pub(super) fn live(&self, target: &Target) -> Result<Arc<Live>, ProviderError> {
        let gone = || ProviderError::Gone { sandbox: target.sandbox.clone() };
        let place = self.places().get(&target.sandbox).cloned().ok_or_else(gone)?;
        let (instance, live) = place.live().ok_or_else(gone)?;
        let is_it = target.instance.as_ref().is_none_or(|wanted| *wanted == instance);
        if is_it { Ok(live) } else { Err(gone()) }
    }

    /// Waits until no start is under way. A start that was given up hands what it made to the reaper at its end, so the
    /// reaper is idle only after that.
    pub(super) async fn starts_end(&self) {
        let begun = Instant::now();
        while self.starting.load(Ordering::SeqCst) > 0 && begun.elapsed() < STOP_WITHIN {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Runs a start as a task of its own: a caller that goes away must not leave half an instance.
    #[expect(
        clippy::disallowed_methods,
        reason = "must come to its end when the caller goes away; the caller waits for it otherwise"
    )]
    async fn start(
        self: &Arc<Self>,
        spec: &InstanceSpec,
        files: FilesState,
    ) -> Result<Booted, ProviderError> {
        if self.needs_adoption.load(Ordering::SeqCst) {
            return Err(ProviderError::Unsupported {
                what: "a start before adoption".into(),
                hint: "instances of an earlier server may still live; call adopt first".into(),
            });
        }
        let place = self.place(&spec.sandbox);
        // Taken before the task begins: a destroy after a caller that went away must not overtake the start.
        let turn = Arc::clone(&place.turn).lock_owned().await;
        let starting = Arc::clone(&self.adoption).read_owned().await;
        let (engine, spec) = (Arc::clone(self), spec.clone());
        engine.starting.fetch_add(1, Ordering::SeqCst);
        let task = tokio::spawn(async move {
            let outcome = engine.start_in_turn(&spec, files, &place).await;
            drop((starting, turn));
            engine.starting.fetch_sub(1, Ordering::SeqCst);
            *engine.last_start.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
            engine.pool_wanted.notify_one();
            outcome
        });
        task.await.map_err(failed("starting the sandbox"))?
    }

    async fn start_in_turn(
        self: &Arc<Self>,
        spec: &InstanceSpec,
        files: FilesState,
        place: &Arc<SandboxSlot>,
    ) -> Result<Booted, ProviderError> {
        if let Some((_, live)) = place.live() {
            // A dead instance stays in its slot until it is ended explicitly.
            self.end(place, &live, None).await?;
        }
        if place.is_doomed() {
            return Err(ProviderError::Gone { sandbox: spec.sandbox.clone() });
        }
        match self.start_somehow(spec, files, place).await {
            Ok((live, booted)) => {
                self.settle_in(spec, place, live);
                Ok(booted)
            }
            Err(error) => {
                self.places().remove(&spec.sandbox);
                Err(error)
            }
        }
    }

    pub(super) fn watch(&self, live: Arc<Live>, sandbox: &SandboxId, instance: &InstanceId) {
        let (sandbox, instance) = (sandbox.clone(), instance.clone());
        self.spawn(watch::death(
            live,
            sandbox,
            instance,
            Arc::clone(&self.resources.cgroups),
            self.notices.clone(),
        ));
    }

    /// Claims an instance of the pool if possible, else starts cold.
    async fn start_somehow(
        self: &Arc<Self>,
        spec: &InstanceSpec,
        files: FilesState,
        place: &Arc<SandboxSlot>,
    ) -> Result<(Arc<Live>, Booted), ProviderError> {
        self.refuse_what_cannot_be(spec, files)?;
        self.need_ipv6(&spec.network).await?;
        if files == FilesState::New && matches!(spec.origin, FilesOrigin::Snapshot { memory: true, .. }) {
            return self.fork_with_memory(spec).await;
        }
        if files == FilesState::New
            && spec.storage == Storage::Disk
            && spec.origin == FilesOrigin::Template
            // Instances of the pool have no mounts, and mounts cannot be added later.
            && spec.mounts.is_empty()
            && let Some((live, booted)) = self.claim(spec).await
        {
            return Ok((Arc::new(live), booted));
        }
        let template = self.template(spec).await?;
        let layer = match (spec.storage, files) {
            (Storage::Memory, FilesState::New) if spec.origin != FilesOrigin::Template => {
                return Err(super::snapshot::in_memory());
            }
            (Storage::Memory, _) => LayerPlan::Memory,
            (Storage::Disk, FilesState::New) => LayerPlan::of_new(spec)?,
            (Storage::Disk, FilesState::Kept) => LayerPlan::Kept(spec.sandbox.as_str().to_owned()),
        };
        let plan = Plan {
            name: spec.instance.as_str().to_owned(),
            template,
            layer,
            limits: spec.limits,
            hostname: spec.hostname.clone(),
            network: Arc::clone(&spec.network),
            owner: Some((spec.sandbox.clone(), Arc::clone(place))),
            mounts: spec.mounts.clone(),
        };
        let started = self.cold_start(&plan).await?;
        let facts = serde_json::to_value(&started.live.facts).map_err(failed("writing facts"))?;
        Ok((Arc::new(started.live), Booted { facts, agent_token: Some(started.token), from_pool: false }))
    }

    fn refuse_what_cannot_be(&self, spec: &InstanceSpec, files: FilesState) -> Result<(), ProviderError> {
        let layers = &self.resources.layers;
        if spec.storage == Storage::Disk && files == FilesState::Kept && !layers.exists(spec.sandbox.as_str())
        {
            return Err(ProviderError::Gone { sandbox: spec.sandbox.clone() });
        }
        self.refuse_disk_limit(spec.storage == Storage::Disk, &spec.limits)?;
        if spec.storage == Storage::Disk
            && files == FilesState::New
            && layers.space().map_err(failed("measuring free space"))?.free < LEAST_FREE
        {
            return Err(ProviderError::Exhausted { what: "disk space for sandboxes".into() });
        }
        Ok(())
    }

    /// Refuses a policy with IPv6 ranges on a machine without IPv6: its ranges could never be reached.
    pub(super) async fn need_ipv6(&self, egress: &Egress) -> Result<(), ProviderError> {
        if egress.direct6.is_empty() {
            return Ok(());
        }
        let resources = Arc::clone(&self.resources);
        let ready = self.blocking.run(move || Ok(resources.networks.router().prepare_ipv6())).await;
        match ready.map_err(failed("setting up IPv6"))? {
            Err(LinkError::Ipv6 { cause }) if cause.kind() == ErrorKind::Unsupported => {
                Err(ProviderError::Unsupported {
                    what: "a network policy with IPv6 ranges in allow_cidrs".into(),
                    hint: cause.to_string(),
                })
            }
            other => other.map_err(failed("setting up IPv6")),
        }
    }

    /// Plain folders have no disk limit, so a request for one is refused. The default limit does not count as a
    /// request.
    pub(super) fn refuse_disk_limit(&self, is_on_disk: bool, limits: &Limits) -> Result<(), ProviderError> {
        let is_asked = limits.disk_mib != self.config.pool_limits.disk_mib;
        if !is_on_disk || !is_asked || self.resources.layers.limits_disk() {
            return Ok(());
        }
        Err(ProviderError::Unsupported {
            what: "a disk limit".into(),
            hint: "layers are plain folders on this machine; install btrfs-progs, or omit the disk limit"
                .into(),
        })
    }

    pub(super) async fn template(&self, spec: &InstanceSpec) -> Result<Arc<Template>, ProviderError> {
        self.pinned(&spec.template, &spec.template_version).await
    }

    pub(super) async fn pinned(&self, name: &str, version: &str) -> Result<Arc<Template>, ProviderError> {
        let template = name.to_owned();
        let (catalog, name, version) = (Arc::clone(&self.catalog), name.to_owned(), version.to_owned());
        let found = self.blocking.run(move || {
            Ok(catalog.pinned(&name, &version).and_then(|template| {
                atoll_image::verify_host(&template)?;
                Ok(template)
            }))
        });
        match found.await.map_err(failed("reading the template"))? {
            Ok(template) => Ok(Arc::new(template)),
            Err(TemplateError::HostChanged(_)) => Err(ProviderError::HostChanged { template }),
            Err(
                TemplateError::NotFound { .. }
                | TemplateError::BadName { .. }
                | TemplateError::Replaced { .. },
            ) => Err(ProviderError::NoTemplate { template }),
            Err(other) => Err(failed("reading the template")(other)),
        }
    }

    /// Makes an instance unreachable, kills it, and hands the rest to the reaper. With `layer`, its files are removed
    /// too.
    pub(super) async fn end(
        &self,
        place: &SandboxSlot,
        live: &Arc<Live>,
        layer: Option<String>,
    ) -> Result<(), ProviderError> {
        live.expect_end();
        let resources = Arc::clone(&self.resources);
        let doomed = Arc::clone(live);
        let work = move || {
            if let Some(link) = doomed.facts.link {
                // The kill matters more; a link that cannot be closed ends with its namespace.
                let _ = resources.networks.detach(link);
            }
            let _ = resources.cgroups.thaw(&doomed.facts.cgroup);
            doomed.kill()
        };
        let killed = self.blocking.run(work).await.map_err(failed("ending the sandbox"));
        let dead = tokio::time::timeout(DEAD_WITHIN, live.dead()).await;
        place.set_live(None);
        let pidfd = live.pidfd().try_clone_to_owned().map_err(failed("copying a descriptor"))?;
        self.reaper.take(InstanceRemains {
            pidfd: Some(pidfd),
            cgroup: Some(live.facts.cgroup.clone()),
            layer,
            link: live.facts.link,
            first_id: Some(live.facts.first_id),
            ..InstanceRemains::default()
        });
        killed?;
        match dead {
            Ok(outcome) => outcome.map_err(failed("waiting for the sandbox's end")),
            Err(_) => Err(ProviderError::Late { what: "ending the sandbox".into(), after: DEAD_WITHIN }),
        }
    }
}
