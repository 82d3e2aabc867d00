//! Capacity, per provider. Promised resources are counted exactly, under one lock; the state of the machine is read once
//! a second. Memory is promised to running sandboxes, disk to sandboxes with files here, and to volumes.

mod promise_table;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_disk::Reserve;
use atoll_model::policy::placement::{self, NoRoom, Node, TooManyCores};
use atoll_model::{Lease, Limits, Phase, SandboxId, Storage, TenantId, Volume, VolumeId};
use atoll_provider::{Provider, ProviderError};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::ServiceConfig;
use promise_table::{Holder, PromiseTable};

/// How long the state of the machine is valid.
const FRESH: Duration = Duration::from_secs(1);
/// The memory that each sandbox admitted since the last read is assumed to take, as `placement` reserves it.
const TAKEN_MIB: u64 = 8;

/// Counts promised resources.
pub(crate) struct Admission {
    live_max: u64,
    overcommit: f64,
    disk_overcommit: f64,
    /// Told whose files are whose before they are made.
    disk: Arc<Reserve>,
    held: Mutex<Promises>,
    /// Told whenever a promise is released: a queued create may have its place.
    freed: Arc<Notify>,
    seen: Mutex<BTreeMap<&'static str, (Instant, Node)>>,
}

/// The promises of each provider, by its name.
#[derive(Default)]
struct Promises(BTreeMap<String, PromisedResources>);

#[derive(Default)]
struct PromisedResources {
    memory: PromiseTable,
    disk: PromiseTable,
    volumes: HashMap<VolumeId, VolumePromise>,
    since_look: u64,
}

/// The disk that is promised to a volume.
#[derive(Debug, Clone)]
struct VolumePromise {
    tenant: TenantId,
    mib: u64,
}

/// Why a sandbox was not admitted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotAdmitted {
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    #[error("{asked} MiB of memory are more than the machine's {total}")]
    TooLarge { asked: u32, total: u64 },
    #[error(transparent)]
    TooManyCores(#[from] TooManyCores),
    #[error("the state of the node cannot be read")]
    Node(#[from] ProviderError),
}

impl Admission {
    pub(crate) fn new(config: &ServiceConfig, freed: Arc<Notify>, disk: Arc<Reserve>) -> Self {
        Self {
            freed,
            disk,
            live_max: config.live_max,
            overcommit: config.overcommit,
            disk_overcommit: config.disk_overcommit,
            held: Mutex::default(),
            seen: Mutex::default(),
        }
    }

    fn held(&self) -> MutexGuard<'_, Promises> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Promises room for a sandbox that will run, and for its files if they are not here yet. A second promise for the
    /// same sandbox replaces the first.
    pub(crate) async fn reserve(&self, provider: &dyn Provider, lease: &Lease) -> Result<(), NotAdmitted> {
        let machine = self.machine_for(provider, lease).await?;
        self.promise(&mut self.held(), provider.name(), machine, lease, Holder::Lease)
    }

    /// Promises room for a sandbox at the source or the target of its move, until the returned value is dropped. What the lease holds
    /// there is not asked for again. `None`: another move of the sandbox has it.
    pub(crate) async fn reserve_move(
        self: &Arc<Self>,
        provider: &dyn Provider,
        lease: &Lease,
    ) -> Result<Option<MovePlace>, NotAdmitted> {
        let machine = self.machine_for(provider, lease).await?;
        let mut all = self.held();
        let memory = &mut all.of(provider.name()).memory;
        if memory.is_held_by(&lease.id, Holder::Move) {
            return Ok(None);
        }
        if memory.is_held_by(&lease.id, Holder::Lease) {
            memory.hold(&lease.id, Holder::Move);
        } else {
            self.promise(&mut all, provider.name(), machine, lease, Holder::Move)?;
        }
        let (admission, provider) = (Arc::clone(self), provider.name().to_owned());
        Ok(Some(MovePlace { admission, provider, id: lease.id.clone() }))
    }

    /// The state of a machine that is large enough for the sandbox.
    async fn machine_for(&self, provider: &dyn Provider, lease: &Lease) -> Result<Node, NotAdmitted> {
        let machine = self.look(provider).await?;
        placement::check_cores(&machine, &lease.limits)?;
        // A limit above the machine's memory has no effect: the machine would run out first.
        let (asked, total) = (lease.limits.memory_mib, machine.memory_total_mib);
        if u64::from(asked) > total { Err(NotAdmitted::TooLarge { asked, total }) } else { Ok(machine) }
    }

    fn promise(
        &self,
        all: &mut Promises,
        provider: &str,
        machine: Node,
        lease: &Lease,
        holder: Holder,
    ) -> Result<(), NotAdmitted> {
        let node = self.promised(all, provider, machine);
        let held = all.of(provider);
        let own = held.memory.mib(&lease.id);
        let node = Node {
            memory_free_mib: node.memory_free_mib.saturating_sub(held.since_look * TAKEN_MIB),
            live: node.live - u64::from(own.is_some()),
            memory_limits_mib: node.memory_limits_mib - own.unwrap_or(0),
            ..node
        };
        placement::admit(&node, &lease.limits)?;
        held.admit_files(&node, lease, holder)?;
        self.note_owner(lease);
        held.memory.put(&lease.id, &lease.tenant, lease.limits.memory_mib.into(), holder);
        held.since_look += 1;
        Ok(())
    }

    /// Whether a sandbox could run if this node were empty.
    pub(crate) async fn check_alone(
        &self,
        provider: &dyn Provider,
        lease: &Lease,
    ) -> Result<(), NotAdmitted> {
        let machine = self.machine_for(provider, lease).await?;
        let node = self.promised(&self.held(), provider.name(), machine);
        Ok(placement::admit_alone(&node, &lease.limits, lease.storage == Storage::Disk)?)
    }

    /// Takes a promise back that was made a moment ago for a queued create: nothing is free that was not free before.
    pub(crate) fn take_back(&self, id: &SandboxId) {
        self.held().forget(id);
    }

    /// Promises room for the files of a sandbox that will not run yet.
    pub(crate) async fn reserve_files(
        &self,
        provider: &dyn Provider,
        lease: &Lease,
    ) -> Result<(), NotAdmitted> {
        let machine = self.look(provider).await?;
        let mut held = self.held();
        let node = self.promised(&held, provider.name(), machine);
        held.of(provider.name()).admit_files(&node, lease, Holder::Lease)?;
        self.note_owner(lease);
        Ok(())
    }

    /// Whether a sandbox of the machine may have this CPU limit.
    pub(crate) async fn check_cores(
        &self,
        provider: &dyn Provider,
        limits: &Limits,
    ) -> Result<(), NotAdmitted> {
        Ok(placement::check_cores(&self.look(provider).await?, limits)?)
    }

    /// Whether this much more may be promised to files of the tenant that are here.
    pub(crate) async fn admit_growth(
        &self,
        provider: &dyn Provider,
        tenant: &TenantId,
        more_mib: u64,
    ) -> Result<(), NotAdmitted> {
        let machine = self.look(provider).await?;
        let mut all = self.held();
        let node = self.promised(&all, provider.name(), machine);
        Ok(all.of(provider.name()).admit_promise(&node, tenant, more_mib)?)
    }

    /// Promises a volume its size, of which `free_mib` must be free now.
    pub(crate) async fn reserve_volume(
        &self,
        provider: &dyn Provider,
        volume: &Volume,
        size_mib: u64,
        free_mib: u64,
    ) -> Result<(), NotAdmitted> {
        let machine = self.look(provider).await?;
        let mut all = self.held();
        let before = all.of(provider.name()).volumes.remove(&volume.id);
        let node = self.promised(&all, provider.name(), machine);
        let held = all.of(provider.name());
        let admitted = held.admit_promise(&node, &volume.tenant, size_mib);
        let admitted = admitted.and_then(|()| placement::admit_free(&node, free_mib));
        let promised = VolumePromise { tenant: volume.tenant.clone(), mib: size_mib };
        if let Some(promise) = if admitted.is_ok() { Some(promised) } else { before } {
            held.volumes.insert(volume.id.clone(), promise);
        }
        self.disk.shares().assign(volume.id.as_str(), volume.tenant.as_str());
        Ok(admitted?)
    }

    /// Counts an existing volume, or its new size.
    pub(crate) fn count_volume(&self, volume: &Volume, size_mib: u64) {
        let promise = VolumePromise { tenant: volume.tenant.clone(), mib: size_mib };
        self.held().of(&volume.provider).volumes.insert(volume.id.clone(), promise);
        self.disk.shares().assign(volume.id.as_str(), volume.tenant.as_str());
    }

    /// Releases a removed volume.
    pub(crate) fn release_volume(&self, id: &VolumeId) {
        for held in self.held().0.values_mut() {
            held.volumes.remove(id);
        }
        self.disk.shares().forget(id.as_str());
        self.freed.notify_one();
    }

    /// Notes whose files these are, before any are made.
    fn note_owner(&self, lease: &Lease) {
        self.disk.shares().assign(lease.id.as_str(), lease.tenant.as_str());
    }

    /// Notes whose files are here, before a provider looks at what an earlier server left.
    pub(crate) fn note_owners<'a>(&self, leases: impl Iterator<Item = &'a Lease>, volumes: &[Volume]) {
        leases.for_each(|lease| self.note_owner(lease));
        let shares = self.disk.shares();
        volumes.iter().for_each(|volume| shares.assign(volume.id.as_str(), volume.tenant.as_str()));
    }

    /// Counts the files of a sandbox as long as they are here.
    pub(crate) fn count_files(&self, lease: &Lease) {
        let mut all = self.held();
        let disk = &mut all.of(&lease.provider).disk;
        let is_less = match disk_of(lease) {
            Some(mib) => {
                self.note_owner(lease);
                disk.put(&lease.id, &lease.tenant, mib, Holder::Lease).is_some_and(|before| before > mib)
            }
            None => {
                if lease.phase == Phase::Deleted {
                    self.disk.shares().forget(lease.id.as_str());
                }
                disk.release(&lease.id, Holder::Lease)
            }
        };
        if is_less {
            self.freed.notify_one();
        }
    }

    /// A lease was written: it holds memory if it may have processes and disk if it has files, at its provider and no other.
    pub(crate) fn follow(&self, lease: &Lease) {
        let mut is_freed = false;
        for (provider, held) in &mut self.held().0 {
            let is_here = *provider == lease.provider;
            if is_here && lease.holds_compute() {
                held.memory.hold(&lease.id, Holder::Lease);
            } else {
                is_freed |= held.memory.release(&lease.id, Holder::Lease);
            }
            is_freed |= !is_here && held.disk.release(&lease.id, Holder::Lease);
        }
        if is_freed {
            self.freed.notify_one();
        }
        self.count_files(lease);
    }

    /// Releases all promises to a sandbox that was not created. Idempotent.
    pub(crate) fn forget(&self, id: &SandboxId) {
        self.disk.shares().forget(id.as_str());
        if self.held().forget(id) {
            self.freed.notify_one();
        }
    }

    /// The node with the resources that its provider has promised. The number of sandboxes is limited for the whole server.
    fn promised(&self, all: &Promises, provider: &str, machine: Node) -> Node {
        let held = all.0.get(provider);
        let volumes_mib =
            |held: &PromisedResources| held.volumes.values().map(|volume| volume.mib).sum::<u64>();
        let disk_mib = |held: &PromisedResources| held.disk.sum_mib() + volumes_mib(held);
        Node {
            live: all.0.values().map(|held| held.memory.len()).sum(),
            memory_limits_mib: held.map_or(0, |held| held.memory.sum_mib()),
            disk_limits_mib: held.map_or(0, disk_mib),
            live_max: self.live_max,
            overcommit: self.overcommit,
            disk_overcommit: self.disk_overcommit,
            ..machine
        }
    }

    /// Counts an existing sandbox or its new limits, even if there is no room.
    pub(crate) fn count(&self, lease: &Lease) {
        let mib = lease.limits.memory_mib.into();
        let mut all = self.held();
        let before = all.of(&lease.provider).memory.put(&lease.id, &lease.tenant, mib, Holder::Lease);
        drop(all);
        if before.is_some_and(|before| before > mib) {
            self.freed.notify_one();
        }
    }

    /// Releases a promise. Idempotent.
    pub(crate) fn release(&self, id: &SandboxId) {
        if self.held().release(id) {
            self.freed.notify_one();
        }
    }

    /// The last read state of a provider's machine, with the promised resources.
    pub(crate) fn last(&self, provider: &str) -> Option<Node> {
        let (_, node) = self.seen(provider)?;
        Some(self.promised(&self.held(), provider, node))
    }

    fn seen(&self, provider: &str) -> Option<(Instant, Node)> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).get(provider).copied()
    }

    /// Reads the state of a provider's machine, at most once a second.
    pub(crate) async fn look(&self, provider: &dyn Provider) -> Result<Node, ProviderError> {
        if let Some((at, node)) = self.seen(provider.name())
            && at.elapsed() < FRESH
        {
            return Ok(node);
        }
        let node = provider.node().await?;
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.insert(provider.name(), (Instant::now(), node));
        drop(seen);
        self.held().of(provider.name()).since_look = 0;
        Ok(node)
    }
}

/// The disk that is promised to a sandbox while its files are here.
fn disk_of(lease: &Lease) -> Option<u64> {
    let is_here = lease.storage == Storage::Disk
        && !matches!(lease.phase, Phase::Archived | Phase::Deleted)
        && !lease.waits_for_place();
    is_here.then_some(lease.limits.disk_mib.into())
}

impl Promises {
    fn of(&mut self, provider: &str) -> &mut PromisedResources {
        self.0.entry(provider.to_owned()).or_default()
    }

    /// Releases the memory that a lease holds; whether any is free now.
    fn release(&mut self, id: &SandboxId) -> bool {
        // A sandbox that is being moved has two providers.
        self.0.values_mut().filter_map(|held| held.memory.release(id, Holder::Lease).then_some(())).count()
            > 0
    }

    /// Releases the memory and the files that a lease holds; whether any is free now.
    fn forget(&mut self, id: &SandboxId) -> bool {
        let has_memory = self.release(id);
        let files = self.0.values_mut().filter_map(|held| held.disk.release(id, Holder::Lease).then_some(()));
        files.count() > 0 || has_memory
    }
}

impl PromisedResources {
    /// Promises files their limit, unless that was done before: existing files need no more room.
    fn admit_files(&mut self, node: &Node, lease: &Lease, holder: Holder) -> Result<(), NoRoom> {
        if lease.storage != Storage::Disk {
            return Ok(());
        }
        if self.disk.mib(&lease.id).is_some() {
            self.disk.hold(&lease.id, holder);
            return Ok(());
        }
        let mib = lease.limits.disk_mib.into();
        self.admit_promise(node, &lease.tenant, mib)?;
        placement::admit_free(node, mib)?;
        self.disk.put(&lease.id, &lease.tenant, mib, holder);
        Ok(())
    }

    /// May a tenant be promised so much more, of the whole disk and of its share?
    fn admit_promise(&self, node: &Node, tenant: &TenantId, mib: u64) -> Result<(), NoRoom> {
        placement::promise_disk(node, mib)?;
        if node.disk_share.is_none() {
            return Ok(());
        }
        let volumes = self.volumes.values().filter(|volume| volume.tenant == *tenant);
        let promised = self.disk.tenant_mib(tenant) + volumes.map(|volume| volume.mib).sum::<u64>();
        placement::promise_share(node, promised, mib)
    }
}

/// Room that is promised to a sandbox for its move, at one provider. It is given up when this is dropped, unless the lease holds it too.
pub(crate) struct MovePlace {
    admission: Arc<Admission>,
    provider: String,
    id: SandboxId,
}

impl Drop for MovePlace {
    fn drop(&mut self) {
        let mut all = self.admission.held();
        let held = all.of(&self.provider);
        let has_memory = held.memory.release(&self.id, Holder::Move);
        if held.disk.release(&self.id, Holder::Move) || has_memory {
            self.admission.freed.notify_one();
        }
    }
}
