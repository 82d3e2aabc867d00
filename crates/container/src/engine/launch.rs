//! The engine as a launcher: how an instance of namespaces is started, frozen, killed, and what it leaves.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use atoll_agentapi::{AgentClient, InitRequest};
use atoll_instances::{FilesState, InstanceLauncher, Instances, PoolKey, RunningInstance};
use atoll_model::{Limits, SandboxId, Storage};
use atoll_provider::{Booted, FilesOrigin, InstanceSpec, NoticeKind, ProviderError};

use super::cold_start::{LayerPlan, Plan};
use super::instance::Live;
use super::pool::{Ready, agent_of};
use super::reaper::{HostResources, InstanceRemains};
use super::snapshot::blocking;
use super::{EngineShared, SandboxSlot, failed};

impl InstanceLauncher for EngineShared {
    type Instance = Live;
    type Ready = Ready;
    type Cleaner = HostResources;

    fn instances(&self) -> &Instances<Self> {
        &self.instances
    }

    /// Claims an instance of the pool if possible, else starts cold.
    async fn launch(
        self: &Arc<Self>,
        spec: &InstanceSpec,
        files: FilesState,
        slot: &Arc<SandboxSlot>,
    ) -> Result<(Arc<Live>, Booted), ProviderError> {
        self.refuse_what_cannot_be(spec, files)?;
        self.need_share(spec, files).await?;
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
            owner: Some((spec.sandbox.clone(), Arc::clone(slot))),
            mounts: spec.mounts.clone(),
        };
        let started = self.cold_start(plan).await?;
        let facts = serde_json::to_value(&started.live.facts).map_err(failed("writing facts"))?;
        Ok((Arc::new(started.live), Booted { facts, agent_token: Some(started.token), from_pool: false }))
    }

    async fn kill(&self, live: &Arc<Live>) -> Result<(), ProviderError> {
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
        self.blocking.run(work).await.map_err(failed("ending the sandbox"))
    }

    fn remains(&self, live: &Live) -> Result<InstanceRemains, ProviderError> {
        let pidfd = live.pidfd().try_clone_to_owned().map_err(failed("copying a descriptor"))?;
        Ok(InstanceRemains {
            pidfd: Some(pidfd),
            cgroup: Some(live.facts.cgroup.clone()),
            link: live.facts.link,
            first_id: Some(live.facts.first_id),
            ..InstanceRemains::default()
        })
    }

    async fn remove_memory(&self, sandbox: &SandboxId) -> Result<(), ProviderError> {
        self.remove_checkpoint(sandbox).await
    }

    async fn remove_files(&self, sandbox: &SandboxId) -> Result<(), ProviderError> {
        // Files may be unpacked under this name at once: they must not collide with the removal of the old ones.
        let (resources, layer) = (Arc::clone(&self.resources), sandbox.as_str().to_owned());
        let freed = blocking(move || resources.free_layer_name(&layer)).await;
        let aside = freed.map_err(failed("removing files"))?;
        self.instances.reaper().take(InstanceRemains { layer: aside, ..InstanceRemains::default() });
        Ok(())
    }

    fn new_event(&self, live: &Live) -> Option<NoticeKind> {
        let kills = self.resources.cgroups.oom_kills(&live.facts.cgroup).ok()?;
        (live.oom_kills.swap(kills, Ordering::SeqCst) < kills).then_some(NoticeKind::OutOfMemory)
    }

    async fn make_ready(self: &Arc<Self>, key: &PoolKey) -> Result<Ready, ProviderError> {
        self.make_pooled(key).await
    }

    async fn freeze_ready(&self, ready: Ready) -> Result<Ready, ProviderError> {
        let (cgroups, cgroup) = (Arc::clone(&self.resources.cgroups), ready.live.facts.cgroup.clone());
        if let Err(cause) = self.blocking.run(move || cgroups.freeze(&cgroup)).await {
            self.discard(ready);
            return Err(failed("freezing an instance of the pool")(cause));
        }
        Ok(ready)
    }

    fn agent_of(self: &Arc<Self>, ready: &Ready) -> io::Result<(AgentClient, InitRequest)> {
        let netns = Arc::new(ready.live.netns().try_clone_to_owned()?);
        Ok((agent_of(Arc::downgrade(self), netns, &ready.token), ready.settings()))
    }

    /// Sets the limits of the pool, freezes the instance, and counts its processes.
    async fn freeze_prepared(&self, mut ready: Ready) -> Result<Ready, ProviderError> {
        let (cgroups, cgroup, limits) =
            (Arc::clone(&self.resources.cgroups), ready.live.facts.cgroup.clone(), self.config.pool_limits);
        let limited = self.blocking.run(move || cgroups.set_limits(&cgroup, &limits)).await;
        if limited.is_ok() {
            ready.limits = limits;
        }
        let mut ready = self.freeze_ready(ready).await?;
        ready.prepared = self.tasks_of(&ready);
        Ok(ready)
    }

    fn is_usable(&self, ready: &Ready, version: &str) -> bool {
        ready.template.digest == version
            && atoll_image::verify_host(&ready.template).is_ok()
            && self.is_still_prepared(ready)
    }

    fn has_room(&self, ready: &Ready, limits: &Limits) -> bool {
        ready.has_room(limits)
    }

    fn discard(&self, ready: Ready) {
        ready.live.expect_end();
        let _ = self.resources.cgroups.thaw(&ready.live.facts.cgroup);
        let _ = ready.live.kill();
        self.instances.reaper().take(InstanceRemains {
            pidfd: ready.live.pidfd().try_clone_to_owned().ok(),
            cgroup: Some(ready.live.facts.cgroup.clone()),
            layer: Some(ready.layer),
            link: ready.live.facts.link,
            first_id: Some(ready.live.facts.first_id),
            ..InstanceRemains::default()
        });
    }
}
