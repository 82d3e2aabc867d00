//! Capacity, per provider. Promised resources are counted exactly, under one lock; the state of the machine is read once
//! a second. Memory is promised to running sandboxes, disk to sandboxes with files here, and to volumes.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_model::policy::placement::{self, NoRoom, Node};
use atoll_model::{Lease, Phase, SandboxId, Storage, Volume, VolumeId};
use atoll_provider::{Provider, ProviderError};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::ServiceConfig;

/// How long the state of the machine is valid.
const FRESH: Duration = Duration::from_secs(1);
/// The memory that each sandbox admitted since the last read is assumed to take, as `placement` reserves it.
const TAKEN_MIB: u64 = 8;

/// Counts promised resources.
pub(crate) struct Admission {
    live_max: u64,
    overcommit: f64,
    disk_overcommit: f64,
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
    memory_mib: HashMap<SandboxId, u32>,
    sum_mib: u64,
    disk_mib: HashMap<SandboxId, u64>,
    volumes_mib: HashMap<VolumeId, u64>,
    since_look: u64,
}

/// Why a sandbox was not admitted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotAdmitted {
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    #[error("{asked} MiB of memory are more than the machine's {total}")]
    TooLarge { asked: u32, total: u64 },
    #[error("the state of the node cannot be read")]
    Node(#[from] ProviderError),
}

impl Admission {
    pub(crate) fn new(config: &ServiceConfig, freed: Arc<Notify>) -> Self {
        Self {
            freed,
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
        let machine = self.look(provider).await?;
        // A limit above the machine's memory has no effect: the machine would run out first.
        let asked = lease.limits.memory_mib;
        if u64::from(asked) > machine.memory_total_mib {
            return Err(NotAdmitted::TooLarge { asked, total: machine.memory_total_mib });
        }
        let mut all = self.held();
        let node = self.promised(&all, provider.name(), machine);
        let held = all.of(provider.name());
        let own = held.memory_mib.get(&lease.id).copied();
        let node = Node {
            memory_free_mib: node.memory_free_mib.saturating_sub(held.since_look * TAKEN_MIB),
            live: node.live - u64::from(own.is_some()),
            memory_limits_mib: node.memory_limits_mib - u64::from(own.unwrap_or(0)),
            ..node
        };
        placement::admit(&node, &lease.limits)?;
        held.admit_files(&node, lease)?;
        held.put(&lease.id, lease.limits.memory_mib);
        held.since_look += 1;
        Ok(())
    }

    /// Whether a sandbox could run if this node were empty.
    pub(crate) async fn check_alone(
        &self,
        provider: &dyn Provider,
        lease: &Lease,
    ) -> Result<(), NotAdmitted> {
        let machine = self.look(provider).await?;
        let (asked, total) = (lease.limits.memory_mib, machine.memory_total_mib);
        if u64::from(asked) > total {
            return Err(NotAdmitted::TooLarge { asked, total });
        }
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
        Ok(held.of(provider.name()).admit_files(&node, lease)?)
    }

    /// Whether this much more may be promised to files that are here.
    pub(crate) async fn admit_growth(
        &self,
        provider: &dyn Provider,
        more_mib: u64,
    ) -> Result<(), NotAdmitted> {
        let machine = self.look(provider).await?;
        Ok(placement::promise_disk(&self.promised(&self.held(), provider.name(), machine), more_mib)?)
    }

    /// Promises a volume its size, of which `free_mib` must be free now.
    pub(crate) async fn reserve_volume(
        &self,
        provider: &dyn Provider,
        id: &VolumeId,
        size_mib: u64,
        free_mib: u64,
    ) -> Result<(), NotAdmitted> {
        let machine = self.look(provider).await?;
        let mut all = self.held();
        let before = all.of(provider.name()).volumes_mib.remove(id);
        let node = self.promised(&all, provider.name(), machine);
        let admitted =
            placement::promise_disk(&node, size_mib).and_then(|()| placement::admit_free(&node, free_mib));
        let size = if admitted.is_ok() { Some(size_mib) } else { before };
        if let Some(size) = size {
            all.of(provider.name()).volumes_mib.insert(id.clone(), size);
        }
        Ok(admitted?)
    }

    /// Counts an existing volume, or its new size.
    pub(crate) fn count_volume(&self, volume: &Volume, size_mib: u64) {
        self.held().of(&volume.provider).volumes_mib.insert(volume.id.clone(), size_mib);
    }

    /// Releases a removed volume.
    pub(crate) fn release_volume(&self, id: &VolumeId) {
        for held in self.held().0.values_mut() {
            held.volumes_mib.remove(id);
        }
        self.freed.notify_one();
    }

    /// Counts the files of a sandbox as long as they are here.
    pub(crate) fn count_files(&self, lease: &Lease) {
        let mut all = self.held();
        let held = all.of(&lease.provider);
        let now = disk_of(lease);
        let before = match now {
            Some(mib) => held.disk_mib.insert(lease.id.clone(), mib),
            None => held.disk_mib.remove(&lease.id),
        };
        if before > now {
            self.freed.notify_one();
        }
    }

    /// Releases all promises to a sandbox that was not created. Idempotent.
    pub(crate) fn forget(&self, id: &SandboxId) {
        if self.held().forget(id) {
            self.freed.notify_one();
        }
    }

    /// Releases the promises of one provider to a sandbox that is not there, or no longer. Idempotent.
    pub(crate) fn forget_at(&self, provider: &str, id: &SandboxId) {
        let mut all = self.held();
        let held = all.of(provider);
        let (memory, files) = (held.take(id), held.disk_mib.remove(id).is_some());
        if memory || files {
            self.freed.notify_one();
        }
    }

    /// The node with the resources that its provider has promised. The number of sandboxes is limited for the whole server.
    fn promised(&self, all: &Promises, provider: &str, machine: Node) -> Node {
        let held = all.0.get(provider);
        let disk_mib = |held: &PromisedResources| {
            held.disk_mib.values().sum::<u64>() + held.volumes_mib.values().sum::<u64>()
        };
        Node {
            live: all.0.values().map(|held| held.memory_mib.len() as u64).sum(),
            memory_limits_mib: held.map_or(0, |held| held.sum_mib),
            disk_limits_mib: held.map_or(0, disk_mib),
            live_max: self.live_max,
            overcommit: self.overcommit,
            disk_overcommit: self.disk_overcommit,
            ..machine
        }
    }

    /// Counts an existing sandbox or its new limits, even if there is no room.
    pub(crate) fn count(&self, lease: &Lease) {
        let mib = lease.limits.memory_mib;
        let before = self.held().of(&lease.provider).put(&lease.id, mib);
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

    /// Releases the memory of a sandbox; whether it had any.
    fn release(&mut self, id: &SandboxId) -> bool {
        // A sandbox that is being moved has two providers.
        self.0.values_mut().filter_map(|held| held.take(id).then_some(())).count() > 0
    }

    /// Releases the memory and the files of a sandbox; whether it had any.
    fn forget(&mut self, id: &SandboxId) -> bool {
        let had_memory = self.release(id);
        let files = self.0.values_mut().filter_map(|held| held.disk_mib.remove(id)).count();
        files > 0 || had_memory
    }
}

impl PromisedResources {
    /// Promises files their limit, unless that was done before: existing files need no more room.
    fn admit_files(&mut self, node: &Node, lease: &Lease) -> Result<(), NoRoom> {
        if lease.storage != Storage::Disk || self.disk_mib.contains_key(&lease.id) {
            return Ok(());
        }
        let mib = lease.limits.disk_mib.into();
        placement::admit_disk(node, mib)?;
        self.disk_mib.insert(lease.id.clone(), mib);
        Ok(())
    }

    /// Returns what the sandbox had before.
    fn put(&mut self, id: &SandboxId, memory_mib: u32) -> Option<u32> {
        let before = self.memory_mib.insert(id.clone(), memory_mib);
        self.sum_mib = self.sum_mib + u64::from(memory_mib) - u64::from(before.unwrap_or(0));
        before
    }

    fn take(&mut self, id: &SandboxId) -> bool {
        let before = self.memory_mib.remove(id);
        self.sum_mib -= u64::from(before.unwrap_or(0));
        before.is_some()
    }
}
