//! What the sandboxes of a server are made of. Only code of sandboxes touches it; other parts call [`Sandboxes`].

use std::ops::Deref;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use atoll_image::archive::Archives;
use atoll_model::{Lease, SandboxId, TenantId};
use atoll_provider::InstanceMount;
use tokio::sync::Semaphore;

use crate::ServiceError;
use crate::access::Revocations;
use crate::base::ServiceBase;
use crate::build::BuildQueue;
use crate::changes::Changes;
use crate::create::PlaceQueue;
use crate::deadlines::Deadlines;
use crate::egress::Layers;
use crate::egress::log::EgressLogs;
use crate::idle::IdleCheckLimiter;
use crate::inside_ports::InsidePorts;
use crate::metrics::CpuMemory;
use crate::notices::NoticeListeners;
use crate::registry::{Handle, Registry};
use crate::snapshots::Uses;
use crate::templates::Templates;
use crate::volumes::Volumes;

/// LIMIT: each copy reads and writes at full speed; further ones wait.
const MOVES_AT_ONCE: usize = 4;

/// Sandboxes, their snapshots, and what runs in them. Cloning is cheap.
#[derive(Clone)]
pub struct Sandboxes {
    pub(crate) inner: Arc<SandboxesState>,
}

pub(crate) struct SandboxesState {
    base: Arc<ServiceBase>,
    pub(crate) volumes: Volumes,
    pub(crate) templates: Templates,
    /// The builds that have not ended: a sandbox may wait for one, or be a step of one.
    pub(crate) build_queue: Arc<BuildQueue>,
    pub(crate) revocations: Arc<Revocations>,
    pub(crate) archives: Archives,
    pub(crate) registry: Registry,
    pub(crate) deadlines: Deadlines,
    pub(crate) looks: IdleCheckLimiter,
    pub(crate) uses: Uses,
    pub(crate) creates: Semaphore,
    /// Turns of copies to other providers.
    pub(crate) moves: Semaphore,
    /// Creates that wait for a place.
    pub(crate) queue: PlaceQueue,
    pub(crate) cpu: CpuMemory,
    pub(crate) counters: Counters,
    pub(crate) layers: Layers,
    /// The tenant that the server created at its first start; set before the adoption.
    pub(crate) first_tenant: OnceLock<TenantId>,
    pub(crate) logs: EgressLogs,
    pub(crate) changes: Changes,
    pub(crate) listeners: NoticeListeners,
    pub(crate) inside_ports: InsidePorts,
}

/// The parts that sandboxes call.
pub(crate) struct SandboxParts {
    pub(crate) volumes: Volumes,
    pub(crate) templates: Templates,
    pub(crate) build_queue: Arc<BuildQueue>,
    pub(crate) revocations: Arc<Revocations>,
    pub(crate) archives: Archives,
    pub(crate) uses: Uses,
}

impl Deref for SandboxesState {
    type Target = ServiceBase;

    fn deref(&self) -> &ServiceBase {
        &self.base
    }
}

/// Counters since the start.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) created: AtomicU64,
    pub(crate) from_pool: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) late_effects: AtomicU64,
}

impl Sandboxes {
    pub(crate) fn new(base: &Arc<ServiceBase>, parts: SandboxParts) -> Self {
        let SandboxParts { volumes, templates, build_queue, revocations, archives, uses } = parts;
        let inner = SandboxesState {
            volumes,
            templates,
            build_queue,
            revocations,
            archives,
            uses,
            registry: Registry::default(),
            deadlines: Deadlines::default(),
            looks: IdleCheckLimiter::default(),
            creates: Semaphore::new(base.config.creates_at_once),
            moves: Semaphore::new(MOVES_AT_ONCE),
            queue: PlaceQueue::new(&base.config, &base.place_freed),
            cpu: CpuMemory::default(),
            counters: Counters::default(),
            layers: Layers::default(),
            first_tenant: OnceLock::new(),
            logs: EgressLogs::new(&base.config.data, &base.disk),
            changes: Changes::default(),
            base: Arc::clone(base),
            listeners: NoticeListeners::default(),
            inside_ports: InsidePorts::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// A sandbox that has a driver.
    pub(crate) fn handle(&self, sandbox: &SandboxId) -> Option<Handle> {
        self.inner.registry.get(sandbox)
    }

    /// All sandboxes that have a driver.
    pub(crate) fn handles(&self) -> Vec<Handle> {
        self.inner.registry.all()
    }
}

impl SandboxesState {
    /// The mounts of a sandbox: its volumes, and memory over folders that a step of a build covers.
    pub(crate) async fn mounts_for(&self, lease: &Lease) -> Result<Vec<InstanceMount>, ServiceError> {
        let mut mounts = self.volumes.mounts_for(lease, &self.templates).await?;
        if let Some(build) = &lease.build {
            mounts.extend(self.build_queue.memory_over(build, lease.limits.memory_mib));
        }
        Ok(mounts)
    }
}
