//! The bookkeeping of instances, the same for every engine that runs instances on this machine.
//!
//! An engine implements [`InstanceLauncher`]: how one instance is started, frozen and killed, and what it holds.
//! [`Instances`] does everything that does not depend on the kind of instance.
//!
//! ```text
//! Provider calls ─► Instances ─┬─ slot      one per sandbox: turns, doom, the live instance
//!                              ├─ start     runs to its end, also when its caller goes away
//!                              ├─ pool      ready instances: sizes, filling, claims, eviction
//!                              ├─ watch     every death that the server did not cause is reported once
//!                              ├─ adoption  after a restart: instances are taken up again, or ended
//!                              └─ reaper    slow removals, retried
//!                                   │
//!                                   ▼
//!                              InstanceLauncher: the container engine is one, a microVM engine is another
//! ```
//!
//! [`Numbers`] are the ranges of ids and the network block of a server, and [`BlockingPool`] runs short kernel work.

mod adoption;
mod block;
mod blocking_pool;
mod launcher;
mod node;
mod pool;
mod prepared_pool;
mod reaper;
mod slot;
mod start;
#[cfg(test)]
mod tests;
mod watch;

use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use atoll_model::SandboxId;
use atoll_provider::{Notice, Prepare, ProviderError, Target};
use tokio::sync::{RwLock, RwLockReadGuard, broadcast};
use tokio::task::JoinSet;

pub use adoption::AdoptionLauncher;
pub use block::{BlockError, IDS_PER_SANDBOX, Numbers, block_of};
pub use blocking_pool::BlockingPool;
pub use launcher::{FilesState, InstanceLauncher, ReadyInstance, RemainsOf, RunningInstance};
pub use node::{DiskSpace, node_of_machine};
pub use pool::{PoolKey, PoolStats};
pub use reaper::{Reaper, RemainsCleaner};
pub use slot::SandboxSlot;

/// LIMIT: notices that a slow listener may be behind; beyond that the listener is informed that it missed some.
const NOTICES: usize = 1_024;

/// The settings of the bookkeeping.
#[derive(Debug, Default)]
pub struct InstanceSettings {
    /// Number of ready instances to keep per template name.
    pub pools: BTreeMap<String, usize>,
    /// Starts processes in ready instances before they are frozen.
    pub prepare: Option<Arc<dyn Prepare>>,
    /// Instances of an earlier server may still exist, with numbers that this server would hand out again: no start
    /// before adoption.
    pub needs_adoption: bool,
}

/// All instances of an engine. The engine owns it and returns it by [`InstanceLauncher::instances`].
pub struct Instances<L: InstanceLauncher> {
    slots: Mutex<HashMap<SandboxId, Arc<SandboxSlot<L::Instance>>>>,
    reaper: Reaper<RemainsOf<L>>,
    pool: pool::InstancePool<L::Ready>,
    /// Starts take it shared, adoption exclusively: a sweep must not find half-made instances.
    adoption: Arc<RwLock<()>>,
    needs_adoption: AtomicBool,
    is_closing: AtomicBool,
    starting: AtomicUsize,
    /// When the last start that a caller waited for ended.
    last_start: Mutex<Option<Instant>>,
    notices: broadcast::Sender<Notice>,
    tasks: Mutex<JoinSet<()>>,
}

impl<L: InstanceLauncher> fmt::Debug for Instances<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Instances")
            .field("starting", &self.starting)
            .field("needs_adoption", &self.needs_adoption)
            .finish_non_exhaustive()
    }
}

impl<L: InstanceLauncher> Instances<L> {
    /// Starts the reaper. Call [`Instances::keep_pools_filled`] when the launcher exists.
    #[must_use]
    pub fn new(cleaner: Arc<L::Cleaner>, settings: InstanceSettings) -> Self {
        let (reaper, reaping) = Reaper::new(cleaner);
        let instances = Self {
            slots: Mutex::default(),
            reaper,
            pool: pool::InstancePool::new(settings.pools, settings.prepare),
            adoption: Arc::default(),
            needs_adoption: AtomicBool::new(settings.needs_adoption),
            is_closing: AtomicBool::new(false),
            starting: AtomicUsize::new(0),
            last_start: Mutex::default(),
            notices: broadcast::Sender::new(NOTICES),
            tasks: Mutex::new(JoinSet::new()),
        };
        instances.spawn(reaping);
        instances
    }

    /// Runs a task that ends with the engine.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.lock_tasks();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    /// Takes out all tasks, for an engine that ends them and waits for their end.
    #[must_use]
    pub fn take_tasks(&self) -> JoinSet<()> {
        std::mem::take(&mut *self.lock_tasks())
    }

    /// Ends all tasks.
    pub fn abort_tasks(&self) {
        self.lock_tasks().abort_all();
    }

    fn lock_tasks(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the remains of instances in the background.
    pub fn reaper(&self) -> &Reaper<RemainsOf<L>> {
        &self.reaper
    }

    /// What happens to instances from now on.
    pub fn notices(&self) -> broadcast::Receiver<Notice> {
        self.notices.subscribe()
    }

    /// While the guard exists, no adoption runs. A sweep must not find half-made things.
    pub async fn hold_off_adoption(&self) -> RwLockReadGuard<'_, ()> {
        self.adoption.read().await
    }

    fn lock_slots(&self) -> MutexGuard<'_, HashMap<SandboxId, Arc<SandboxSlot<L::Instance>>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The slot of a sandbox; made when missing.
    pub fn slot(&self, sandbox: &SandboxId) -> Arc<SandboxSlot<L::Instance>> {
        Arc::clone(self.lock_slots().entry(sandbox.clone()).or_default())
    }

    /// The slot of a sandbox that has one.
    pub fn existing_slot(&self, sandbox: &SandboxId) -> Option<Arc<SandboxSlot<L::Instance>>> {
        self.lock_slots().get(sandbox).cloned()
    }

    /// All slots.
    pub fn slots(&self) -> Vec<(SandboxId, Arc<SandboxSlot<L::Instance>>)> {
        self.lock_slots().iter().map(|(sandbox, slot)| (sandbox.clone(), Arc::clone(slot))).collect()
    }

    /// Removes a slot that was made only to wait in it.
    pub fn forget_empty(&self, sandbox: &SandboxId, slot: &Arc<SandboxSlot<L::Instance>>) {
        let mut slots = self.lock_slots();
        // The references of the map and of the caller.
        if slot.live().is_none() && Arc::strong_count(slot) <= 2 {
            slots.remove(sandbox);
        }
    }

    /// The instance that a call means, if it is the live one.
    pub fn live(&self, target: &Target) -> Result<Arc<L::Instance>, ProviderError> {
        let gone = || ProviderError::Gone { sandbox: target.sandbox.clone() };
        let slot = self.existing_slot(&target.sandbox).ok_or_else(gone)?;
        slot.live_as(target.instance.as_ref()).ok_or_else(gone)
    }

    /// Ends the ready instances, which only this server uses, and waits for starts and removals. Sandboxes continue.
    pub async fn close(launcher: &L) {
        let instances = launcher.instances();
        instances.is_closing.store(true, Ordering::SeqCst);
        // Waits for an instance that is being made; none is begun after it.
        let filling = instances.pool.filling.lock().await;
        Self::drain_pools(launcher);
        drop(filling);
        instances.settle().await;
    }

    /// Waits until no start is under way and nothing is left to remove. A start that was given up hands what it made to
    /// the reaper at its end, so the reaper is idle only after that.
    pub async fn settle(&self) {
        self.starts_end().await;
        self.reaper.settle().await;
    }
}

/// Adds the name of the failed step to an error.
pub fn failed<E: Into<Box<dyn Error + Send + Sync>>>(step: &'static str) -> impl Fn(E) -> ProviderError {
    move |cause| ProviderError::Failed { step: step.to_owned(), cause: cause.into() }
}
