//! The base of [`Provider`]: create, boot, halt, destroy, adopt.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use atoll_image::{Template, TemplateError};
use atoll_instances::{DiskSpace, FilesState, Instances, node_of_machine};
use atoll_model::policy::egress::Egress;
use atoll_model::policy::placement::{DiskShare, Node};
use atoll_model::{Limits, ProviderKind, SnapshotId, Storage};
use atoll_network::{ErrorKind, LinkError};
use atoll_provider::{
    Adopted, ArchiveSupport, Booted, Capabilities, Capability, CaptureSupport, CheckpointSupport, DialMode,
    DialSupport, EgressSupport, InstanceActivity, InstanceSpec, InstanceUsage, Isolation, KnownSandbox,
    Notice, OwnedSandbox, PauseSupport, PoolSize, PoolSupport, Provider, ProviderDescription, ProviderError,
    ResizeSupport, SnapshotSupport, StoredFiles, StoredInventory, StoredKind, Target, VolumeSupport,
    missing_capability,
};
use atoll_storage::PoolEntryKind;
use tokio::sync::broadcast;

use super::snapshot::blocking;
use super::{Engine, EngineShared, failed};

/// What a new layer or volume needs before anything is written to it.
pub(super) const LEAST_FREE: u64 = 64 << 20;
/// LIMIT: how long a create waits for bytes of removed sandboxes that still count for its tenant. The kernel frees gigabytes in a
/// second after a commit.
const FREED_WITHIN: Duration = Duration::from_secs(3);

#[async_trait]
impl Provider for Engine {
    fn name(&self) -> &'static str {
        "container"
    }

    fn description(&self) -> ProviderDescription {
        ProviderDescription {
            isolation: Isolation::Container,
            cost: ProviderKind::Container.cost(),
            best_for: ProviderKind::Container.best_for(),
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            dials: DialMode::Stream,
            users: true,
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
            layers: true,
            prepares: self.inner.config.prepare.is_some(),
            ..Capabilities::default()
        }
    }

    async fn create(&self, spec: &InstanceSpec) -> Result<Booted, ProviderError> {
        Instances::start(&self.inner, spec, FilesState::New).await
    }

    async fn boot(&self, spec: &InstanceSpec) -> Result<Booted, ProviderError> {
        Instances::start(&self.inner, spec, FilesState::Kept).await
    }

    async fn halt(&self, target: &Target) -> Result<(), ProviderError> {
        Instances::halt(&*self.inner, target).await
    }

    async fn destroy(&self, target: &Target) -> Result<(), ProviderError> {
        Instances::destroy(&*self.inner, target).await
    }

    async fn usage(&self, target: &Target) -> Result<InstanceUsage, ProviderError> {
        let live = self.inner.instances.live(target)?;
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
                disk_bytes: Some(disk_bytes),
                network: live.network_bytes(),
            })
        };
        self.inner.blocking.run(work).await.map_err(failed("reading figures"))
    }

    async fn owned(&self) -> Result<Vec<OwnedSandbox>, ProviderError> {
        let slots = self.inner.instances.slots();
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
        Instances::adopt(&self.inner, known, snapshots).await
    }

    fn notices(&self) -> broadcast::Receiver<Notice> {
        self.inner.instances.notices()
    }

    async fn node(&self) -> Result<Node, ProviderError> {
        let layers = Arc::clone(&self.inner.resources.layers);
        let measure = move || Ok((layers.space()?, layers.holds_shares(), layers.limits_disk()));
        let (space, is_enforced, limits_disk) =
            self.inner.blocking.run(measure).await.map_err(failed("measuring free space"))?;
        let disk = DiskSpace { free: space.free, free_for_copies: space.free_for_memory, total: space.total };
        let share = self.inner.config.disk.shares().share_of(space.total);
        let disk_share = share.map(|bytes| DiskShare { mib: bytes >> 20, is_enforced });
        Ok(Node { disk_share, limits_disk, ..node_of_machine(disk).map_err(failed("reading free memory"))? })
    }

    async fn stored(&self) -> Result<Option<StoredInventory>, ProviderError> {
        let layers = Arc::clone(&self.inner.resources.layers);
        let measure = move || Ok((layers.pool_bytes()?, layers.inventory()?));
        let (pool, entries) = blocking(measure).await.map_err(failed("measuring the pool"))?;
        let pool = pool.map(|(bytes, free_bytes)| PoolSize { bytes, free_bytes });
        let kind = |kind: PoolEntryKind| match kind {
            PoolEntryKind::Layer => StoredKind::Sandbox,
            PoolEntryKind::Waiting => StoredKind::Waiting,
            PoolEntryKind::Checkpoint => StoredKind::Memory,
            PoolEntryKind::Snapshot => StoredKind::Snapshot,
            PoolEntryKind::Volume => StoredKind::Volume,
        };
        let files = entries
            .into_iter()
            .map(|entry| StoredFiles { kind: kind(entry.kind), id: entry.name, bytes: entry.bytes })
            .collect();
        Ok(Some(StoredInventory { pool, files }))
    }

    async fn settle(&self, deadline: Duration) -> Result<(), ProviderError> {
        let late = |_| ProviderError::Late { what: "cleaning up".into(), after: deadline };
        tokio::time::timeout(deadline, self.inner.instances.settle()).await.map_err(late)
    }

    fn missing(&self, capability: Capability) -> ProviderError {
        let criu = self.inner.criu().err().filter(|_| capability == Capability::Checkpoint);
        criu.unwrap_or_else(|| missing_capability(self.name(), capability))
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
    pub(super) fn refuse_what_cannot_be(
        &self,
        spec: &InstanceSpec,
        files: FilesState,
    ) -> Result<(), ProviderError> {
        let layers = &self.resources.layers;
        if spec.storage == Storage::Disk && files == FilesState::Kept && !layers.exists(spec.sandbox.as_str())
        {
            return Err(ProviderError::Gone { sandbox: spec.sandbox.clone() });
        }
        self.refuse_disk_limit(spec.storage == Storage::Disk, &spec.limits)?;
        if spec.storage != Storage::Disk || files != FilesState::New {
            return Ok(());
        }
        let measured = failed("measuring free space");
        if layers.space().map_err(&measured)?.free < LEAST_FREE {
            return Err(ProviderError::Exhausted { what: "disk space for sandboxes".into() });
        }
        Ok(())
    }

    /// Refuses new files of a tenant whose share is full. Bytes of sandboxes that were just removed are waited for.
    pub(super) async fn need_share(
        &self,
        spec: &InstanceSpec,
        files: FilesState,
    ) -> Result<(), ProviderError> {
        if spec.storage != Storage::Disk || files != FilesState::New {
            return Ok(());
        }
        let measured = failed("measuring the share of a tenant");
        // Usually there is room, and the creating thread needs no other one.
        let room = self.resources.layers.room_in_share(spec.sandbox.as_str()).map_err(&measured)?;
        if room.is_none_or(|room| room >= LEAST_FREE) {
            return Ok(());
        }
        let (layers, name) = (Arc::clone(&self.resources.layers), spec.sandbox.as_str().to_owned());
        let waited = blocking(move || layers.await_room_in_share(&name, LEAST_FREE, FREED_WITHIN)).await;
        match waited.map_err(measured)? {
            Some(room) if room.bytes < LEAST_FREE => {
                let what = "disk space in the share of this tenant";
                let later =
                    if room.is_freeing { ", as that of removed sandboxes is still being freed," } else { "" };
                Err(ProviderError::Exhausted { what: format!("{what}{later}") })
            }
            Some(_) | None => Ok(()),
        }
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
}
