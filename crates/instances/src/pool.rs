//! Ready instances: booted with the agent listening, without network, frozen. An instance is claimed once and never
//! reused.
//!
//! Some pools are in the configuration, by the name of a template, and hold its newest version. Others are requested
//! while the server runs, each for one version; they shrink when the request is withdrawn.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use atoll_model::Limits;
use atoll_provider::{PoolWish, Prepare, ProviderError};
use tokio::sync::Notify;

use crate::{InstanceLauncher, Instances, prepared_pool};

/// How often the pool is checked without a claim.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Pause between two new instances, so that filling the pool does not slow down other work.
const PAUSE: Duration = Duration::from_millis(5);
/// How long filling waits after a start that a caller waited for. The new sandbox is about to run its first command,
/// and on two cores a start at the same time would double the duration of that command.
const AFTER_START: Duration = Duration::from_millis(25);
/// How many times filling waits for a quiet moment before it makes an instance anyway.
const YIELD_AT_MOST: u32 = 40;
/// Pause after a template was not found: it may be made later.
const AFTER_MISSING: Duration = Duration::from_secs(15);
/// Pause of one pool after an instance could not be made.
const AFTER_FAILURE: Duration = Duration::from_secs(5);
/// LIMIT: requested instances in total; each takes about a megabyte and a range of ids.
const WISHED_MOST: usize = 64;

/// The key of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolKey {
    /// The name of the template.
    pub template: String,
    /// Exactly this version; `None`: the newest.
    pub version: Option<String>,
}

/// The number of ready instances of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolStats {
    /// The template's name.
    pub template: String,
    /// The exact version; `None`: the newest.
    pub version: Option<String>,
    /// How many are ready.
    pub ready: usize,
    /// How many the pool should hold.
    pub wanted: usize,
}

/// The pools of an engine, and what fills them.
#[derive(Debug)]
pub(crate) struct InstancePool<R> {
    pools: Mutex<Pools<R>>,
    /// The sizes of the configured pools, by template name.
    configured: BTreeMap<String, usize>,
    pub(crate) prepare: Option<Arc<dyn Prepare>>,
    /// Wakes the task that fills the pools.
    pub(crate) wanted: Arc<Notify>,
    /// Held while a ready instance is being made.
    pub(crate) filling: tokio::sync::Mutex<()>,
}

/// All pools, and the requested sizes.
#[derive(Debug)]
pub(crate) struct Pools<R> {
    ready: HashMap<PoolKey, Vec<R>>,
    /// Instances that exist and are not prepared yet.
    pub(crate) warming: Vec<(PoolKey, R)>,
    wished: BTreeMap<PoolKey, usize>,
    /// Pools that could not be filled, and when the next attempt is due.
    resting: HashMap<PoolKey, Instant>,
}

impl<R> Pools<R> {
    fn all(&self) -> impl Iterator<Item = &R> {
        self.ready.values().flatten().chain(self.warming.iter().map(|(_, ready)| ready))
    }

    fn count(&self, key: &PoolKey) -> usize {
        self.ready.get(key).map_or(0, Vec::len)
    }

    fn count_with_warming(&self, key: &PoolKey) -> usize {
        self.count(key) + self.warming.iter().filter(|(of, _)| of == key).count()
    }

    pub(crate) fn rest(&mut self, key: PoolKey, pause: Duration) {
        self.resting.insert(key, Instant::now() + pause);
    }

    /// Takes out instances above the requested number.
    fn shrink(&mut self) -> Vec<R> {
        let wished = &self.wished;
        let mut excess = Vec::new();
        for (key, ready) in self.ready.iter_mut().filter(|(key, _)| key.version.is_some()) {
            let kept = wished.get(key).copied().unwrap_or(0).min(ready.len());
            excess.extend(ready.split_off(kept));
        }
        self.ready.retain(|_, ready| !ready.is_empty());
        excess
    }
}

impl<R> InstancePool<R> {
    pub(crate) fn new(configured: BTreeMap<String, usize>, prepare: Option<Arc<dyn Prepare>>) -> Self {
        let pools = Pools {
            ready: HashMap::new(),
            warming: Vec::new(),
            wished: BTreeMap::new(),
            resting: HashMap::new(),
        };
        Self {
            pools: Mutex::new(pools),
            configured,
            prepare,
            wanted: Arc::new(Notify::new()),
            filling: tokio::sync::Mutex::new(()),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Pools<R>> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The wanted size of every pool, those of the configuration first.
    fn sizes(&self, pools: &Pools<R>) -> Vec<(PoolKey, usize)> {
        let configured = self
            .configured
            .iter()
            .map(|(template, wanted)| (PoolKey { template: template.clone(), version: None }, *wanted));
        configured.chain(pools.wished.iter().map(|(key, wanted)| (key.clone(), *wanted))).collect()
    }

    /// Whether instances of this pool are prepared.
    fn is_prepared(&self, key: &PoolKey) -> bool {
        self.prepare.as_ref().is_some_and(|prepare| prepare.wants(&key.template))
    }

    fn stats(&self) -> Vec<PoolStats> {
        let pools = self.lock();
        let stats = |(key, wanted): (PoolKey, usize)| PoolStats {
            ready: pools.count(&key),
            template: key.template,
            version: key.version,
            wanted,
        };
        self.sizes(&pools).into_iter().map(stats).collect()
    }
}

/// The sizes of the requested pools. Requests are granted in their order up to the limit.
fn granted(wishes: Vec<PoolWish>) -> BTreeMap<PoolKey, usize> {
    let mut left = WISHED_MOST;
    let mut wished = BTreeMap::new();
    for PoolWish { template, template_version, size } in wishes {
        let size = size.min(left);
        left -= size;
        if size > 0 {
            *wished.entry(PoolKey { template, version: Some(template_version) }).or_default() += size;
        }
    }
    wished
}

impl<L: InstanceLauncher> Instances<L> {
    /// How full the pools are.
    pub fn pool_stats(&self) -> Vec<PoolStats> {
        self.pool.stats()
    }

    /// Whether instances of this pool are prepared before they are frozen.
    pub fn is_prepared(&self, key: &PoolKey) -> bool {
        self.pool.is_prepared(key)
    }

    /// Replaces the requested pools.
    pub fn wish_pools(launcher: &L, wishes: Vec<PoolWish>) {
        let pool = &launcher.instances().pool;
        let wished = granted(wishes);
        let excess = {
            let mut pools = pool.lock();
            pools.wished = wished;
            pools.resting.clear();
            pools.shrink()
        };
        excess.into_iter().for_each(|one| launcher.discard(one));
        pool.wanted.notify_one();
    }

    /// Takes an instance of exactly this version of the template, and discards those of other versions.
    pub fn take_ready(launcher: &L, template: &str, version: &str, limits: &Limits) -> Option<L::Ready> {
        let mut pools = launcher.instances().pool.lock();
        let (mut taken, mut stale) = (None, Vec::new());
        // A version has the same files whatever its current name is.
        let exact = pools.ready.keys().find(|key| key.version.as_deref() == Some(version)).cloned();
        for key in exact.into_iter().chain([PoolKey { template: template.to_owned(), version: None }]) {
            let Some(ready) = pools.ready.get_mut(&key) else { continue };
            let (mut fresh, other): (Vec<_>, Vec<_>) =
                std::mem::take(ready).into_iter().partition(|one| launcher.is_usable(one, version));
            if fresh.last().is_some_and(|one| launcher.has_room(one, limits)) {
                taken = fresh.pop();
            }
            *ready = fresh;
            stale.extend(other);
            if taken.is_some() {
                break;
            }
        }
        drop(pools);
        stale.into_iter().for_each(|one| launcher.discard(one));
        taken
    }

    pub(crate) fn drain_pools(launcher: &L) {
        let all: Vec<L::Ready> = {
            let mut pools = launcher.instances().pool.lock();
            let warming: Vec<L::Ready> = pools.warming.drain(..).map(|(_, ready)| ready).collect();
            pools.ready.drain().flat_map(|(_, ready)| ready).chain(warming).collect()
        };
        all.into_iter().for_each(|one| launcher.discard(one));
    }

    /// Calls `look` with every instance that waits to be claimed or is being prepared.
    pub fn for_each_ready(&self, look: impl FnMut(&L::Ready)) {
        self.pool.lock().all().for_each(look);
    }

    /// Whether no caller waits for a start, and none has just ended.
    fn is_quiet(&self) -> bool {
        let last = *self.last_start.lock().unwrap_or_else(PoisonError::into_inner);
        self.starting.load(Ordering::SeqCst) == 0 && last.is_none_or(|at| at.elapsed() >= AFTER_START)
    }

    fn shortage(&self) -> Option<PoolKey> {
        if self.is_closing.load(Ordering::SeqCst) || self.needs_adoption.load(Ordering::SeqCst) {
            return None;
        }
        let mut pools = self.pool.lock();
        pools.resting.retain(|_, until| *until > Instant::now());
        let short = |(key, wanted): &(PoolKey, usize)| {
            pools.count_with_warming(key) < *wanted
                && !pools.resting.contains_key(key)
                // One at a time: each preparation takes a core for a second.
                && (pools.warming.is_empty() || !self.is_prepared(key))
        };
        self.pool.sizes(&pools).into_iter().find(short).map(|(key, _)| key)
    }

    /// Puts an instance into its pool, unless the pool is full or not wanted any more.
    pub(crate) fn keep_ready(launcher: &L, key: PoolKey, ready: L::Ready) {
        let excess = {
            let mut pools = launcher.instances().pool.lock();
            pools.ready.entry(key).or_default().push(ready);
            pools.shrink()
        };
        excess.into_iter().for_each(|one| launcher.discard(one));
    }

    async fn make_one(launcher: &Arc<L>, key: &PoolKey) -> Result<(), ProviderError> {
        let instances = launcher.instances();
        if instances.is_prepared(key) {
            prepared_pool::need_memory()?;
        }
        let ready = launcher.make_ready(key).await?;
        if instances.is_closing.load(Ordering::SeqCst) {
            launcher.discard(ready);
        } else if instances.is_prepared(key) {
            Self::warm_up(launcher, key.clone(), ready);
        } else {
            let ready = launcher.freeze_ready(ready).await?;
            Self::keep_ready(launcher, key.clone(), ready);
        }
        Ok(())
    }

    /// Fills the pools from now on. Call it once.
    pub fn keep_pools_filled(launcher: &Arc<L>) {
        launcher.instances().spawn(keep_filled(Arc::downgrade(launcher)));
    }
}

/// Fills the pools one by one, with lower priority than starts that a caller waits for.
async fn keep_filled<L: InstanceLauncher>(launcher: Weak<L>) {
    loop {
        let Some(launcher) = launcher.upgrade() else { return };
        let instances = launcher.instances();
        if instances.shortage().is_none() {
            let wake = Arc::clone(&instances.pool.wanted);
            // Not held while waiting, so that the engine can be dropped.
            drop(launcher);
            let _ = tokio::time::timeout(LOOK_EVERY, wake.notified()).await;
            continue;
        }
        for _ in 0..YIELD_AT_MOST {
            if instances.is_quiet() {
                break;
            }
            tokio::time::sleep(PAUSE).await;
        }
        let filling = instances.pool.filling.lock().await;
        let no_adoption = instances.adoption.read().await;
        if instances.is_closing.load(Ordering::SeqCst) {
            return;
        }
        // Checked again under the lock: a prepared instance that left `warming` may have joined its pool meanwhile.
        let Some(key) = instances.shortage() else { continue };
        match Instances::make_one(&launcher, &key).await {
            Ok(()) => {}
            // A pool may be configured for a template that does not exist yet.
            Err(ProviderError::NoTemplate { .. }) if key.version.is_none() => {
                instances.pool.lock().rest(key, AFTER_MISSING);
            }
            Err(cause) => {
                tracing::warn!(
                    template = key.template,
                    version = key.version,
                    cause = &cause as &dyn std::error::Error,
                    "an instance for the pool cannot be made"
                );
                instances.pool.lock().rest(key, AFTER_FAILURE);
            }
        }
        drop((no_adoption, filling));
        tokio::time::sleep(PAUSE).await;
    }
}
