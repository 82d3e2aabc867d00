//! Ready instances: booted with the agent listening, without network, frozen. An instance is claimed once and never reused.
//!
//! Some pools are in the configuration, by the name of a template, and hold its newest version. Others are requested
//! while the server runs, each for one version; they shrink when the request is withdrawn.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use atoll_image::Template;
use atoll_model::policy::egress::Egress;
use atoll_model::{ErrorKind, InstanceId, Limits};
use atoll_provider::{PoolWish, ProviderError};

use super::cold_start::{LayerPlan, Plan};
use super::instance::Live;
use super::reaper::InstanceRemains;
use super::{EngineShared, PoolStats, failed};

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
pub(super) struct PoolKey {
    pub(super) template: String,
    /// Exactly this version; `None`: the newest.
    version: Option<String>,
}

/// All pools, and the requested sizes.
#[derive(Debug, Default)]
pub(super) struct Pools {
    ready: HashMap<PoolKey, Vec<Ready>>,
    /// Instances that exist and are not prepared yet.
    pub(super) warming: Vec<(PoolKey, Ready)>,
    wished: BTreeMap<PoolKey, usize>,
    /// Pools that could not be filled, and when the next attempt is due.
    resting: HashMap<PoolKey, Instant>,
}

impl Pools {
    pub(super) fn all(&self) -> impl Iterator<Item = &Ready> {
        self.ready.values().flatten().chain(self.warming.iter().map(|(_, ready)| ready))
    }

    fn count(&self, key: &PoolKey) -> usize {
        self.ready.get(key).map_or(0, Vec::len)
    }

    fn count_with_warming(&self, key: &PoolKey) -> usize {
        self.count(key) + self.warming.iter().filter(|(of, _)| of == key).count()
    }

    pub(super) fn rest(&mut self, key: PoolKey, pause: Duration) {
        self.resting.insert(key, Instant::now() + pause);
    }

    /// Takes out instances above the requested number.
    fn shrink(&mut self) -> Vec<Ready> {
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

/// An instance that waits to be claimed.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) live: Live,
    pub(super) token: String,
    pub(super) template: Arc<Template>,
    /// The name of its layer until it is claimed.
    pub(super) layer: String,
    /// Its current limits.
    pub(super) limits: Limits,
    /// How many processes and threads it has, if it was prepared.
    pub(super) prepared: Option<u32>,
}

impl EngineShared {
    pub(super) fn lock_pool(&self) -> MutexGuard<'_, Pools> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The wanted size of every pool, those of the configuration first.
    fn wanted(&self, pools: &Pools) -> Vec<(PoolKey, usize)> {
        let fixed = self
            .config
            .pool
            .iter()
            .map(|(template, wanted)| (PoolKey { template: template.clone(), version: None }, *wanted));
        fixed.chain(pools.wished.iter().map(|(key, wanted)| (key.clone(), *wanted))).collect()
    }

    pub(super) fn pool_stats(&self) -> Vec<PoolStats> {
        let pools = self.lock_pool();
        let stats = |(key, wanted): (PoolKey, usize)| PoolStats {
            ready: pools.count(&key),
            template: key.template,
            version: key.version,
            wanted,
        };
        self.wanted(&pools).into_iter().map(stats).collect()
    }

    /// Replaces the requested pools. Requests are granted in their order up to the limit.
    pub(super) fn wish_pool(&self, wishes: Vec<PoolWish>) {
        let mut left = WISHED_MOST;
        let mut wished = BTreeMap::new();
        for PoolWish { template, template_version, size } in wishes {
            let size = size.min(left);
            left -= size;
            if size > 0 {
                *wished.entry(PoolKey { template, version: Some(template_version) }).or_default() += size;
            }
        }
        let excess = {
            let mut pools = self.lock_pool();
            pools.wished = wished;
            pools.resting.clear();
            pools.shrink()
        };
        excess.into_iter().for_each(|one| self.discard(one));
        self.pool_wanted.notify_one();
    }

    /// Takes an instance of exactly this version of the template, and discards those of other versions.
    pub(super) fn take_ready(&self, template: &str, version: &str, limits: &Limits) -> Option<Ready> {
        let mut pools = self.lock_pool();
        let fits = |one: &Ready| {
            one.template.digest == version
                && atoll_image::verify_host(&one.template).is_ok()
                && self.is_still_prepared(one)
        };
        let (mut taken, mut stale) = (None, Vec::new());
        // A version has the same files whatever its current name is.
        let exact = pools.ready.keys().find(|key| key.version.as_deref() == Some(version)).cloned();
        for key in exact.into_iter().chain([PoolKey { template: template.to_owned(), version: None }]) {
            let Some(ready) = pools.ready.get_mut(&key) else { continue };
            let (mut fresh, other): (Vec<Ready>, Vec<Ready>) =
                std::mem::take(ready).into_iter().partition(fits);
            if fresh.last().is_some_and(|one| super::prepared_pool::has_room(one, limits)) {
                taken = fresh.pop();
            }
            *ready = fresh;
            stale.extend(other);
            if taken.is_some() {
                break;
            }
        }
        drop(pools);
        stale.into_iter().for_each(|one| self.discard(one));
        taken
    }

    /// Ends an instance that will not be claimed.
    pub(super) fn discard(&self, ready: Ready) {
        ready.live.expect_end();
        let _ = self.resources.cgroups.thaw(&ready.live.facts.cgroup);
        let _ = ready.live.kill();
        self.reaper.take(InstanceRemains {
            pidfd: ready.live.pidfd().try_clone_to_owned().ok(),
            cgroup: Some(ready.live.facts.cgroup.clone()),
            layer: Some(ready.layer),
            link: ready.live.facts.link,
            first_id: Some(ready.live.facts.first_id),
            ..InstanceRemains::default()
        });
    }

    pub(super) fn drain_pool(&self) {
        let all: Vec<Ready> = {
            let mut pools = self.lock_pool();
            let warming: Vec<Ready> = pools.warming.drain(..).map(|(_, ready)| ready).collect();
            pools.ready.drain().flat_map(|(_, ready)| ready).chain(warming).collect()
        };
        all.into_iter().for_each(|one| self.discard(one));
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
        let mut pools = self.lock_pool();
        pools.resting.retain(|_, until| *until > Instant::now());
        let short = |(key, wanted): &(PoolKey, usize)| {
            pools.count_with_warming(key) < *wanted
                && !pools.resting.contains_key(key)
                // One at a time: each preparation takes a core for a second.
                && (pools.warming.is_empty() || !self.is_prepared(key))
        };
        self.wanted(&pools).into_iter().find(short).map(|(key, _)| key)
    }

    /// Puts an instance into its pool, unless the pool is full or not wanted any more.
    pub(super) fn keep_ready(&self, key: PoolKey, ready: Ready) {
        let excess = {
            let mut pools = self.lock_pool();
            pools.ready.entry(key).or_default().push(ready);
            pools.shrink()
        };
        excess.into_iter().for_each(|one| self.discard(one));
    }

    async fn template_of(&self, key: &PoolKey) -> Result<Arc<Template>, ProviderError> {
        let Some(version) = &key.version else {
            let (catalog, name) = (Arc::clone(&self.catalog), key.template.clone());
            let found = self.blocking.run(move || Ok(catalog.get(&name)));
            let found = found.await.map_err(failed("reading the template"))?;
            return found.map(Arc::new).map_err(|cause| match cause.kind() {
                ErrorKind::NotFound => ProviderError::NoTemplate { template: key.template.clone() },
                _ => failed("reading the template")(cause),
            });
        };
        self.pinned(&key.template, version).await
    }

    async fn make_ready(self: &Arc<Self>, key: &PoolKey) -> Result<Ready, ProviderError> {
        let template = self.template_of(key).await?;
        let mut random = [0; 20];
        getrandom::fill(&mut random)
            .map_err(|cause| failed("making a name")(std::io::Error::other(cause)))?;
        let layer = InstanceId::from_entropy(random).as_str().to_owned();
        let limits = self.limits_while_made(key);
        let plan = Plan {
            name: layer.clone(),
            template,
            layer: LayerPlan::Fresh(layer.clone()),
            limits,
            hostname: "sandbox".into(),
            network: Arc::new(Egress::closed()),
            owner: None,
            mounts: Vec::new(),
        };
        let started = self.cold_start(&plan).await?;
        let (live, token, template) = (started.live, started.token, plan.template);
        Ok(Ready { live, token, template, layer, limits, prepared: None })
    }

    /// Freezes an instance.
    pub(super) async fn freeze_ready(&self, ready: Ready) -> Result<Ready, ProviderError> {
        let (cgroups, cgroup) = (Arc::clone(&self.resources.cgroups), ready.live.facts.cgroup.clone());
        if let Err(cause) = self.blocking.run(move || cgroups.freeze(&cgroup)).await {
            self.discard(ready);
            return Err(failed("freezing an instance of the pool")(cause));
        }
        Ok(ready)
    }

    async fn make_one(self: &Arc<Self>, key: &PoolKey) -> Result<(), ProviderError> {
        if self.is_prepared(key) {
            super::prepared_pool::need_memory()?;
        }
        let ready = self.make_ready(key).await?;
        if self.is_closing.load(Ordering::SeqCst) {
            self.discard(ready);
        } else if self.is_prepared(key) {
            self.warm_up(key.clone(), ready);
        } else {
            let ready = self.freeze_ready(ready).await?;
            self.keep_ready(key.clone(), ready);
        }
        Ok(())
    }
}

/// Fills the pools one by one, with lower priority than starts that a caller waits for.
pub(super) async fn keep_filled(engine: Weak<EngineShared>) {
    loop {
        let Some(engine) = engine.upgrade() else { return };
        if engine.shortage().is_none() {
            let wake = Arc::clone(&engine.pool_wanted);
            // Not held while waiting, so that the engine can be dropped.
            drop(engine);
            let _ = tokio::time::timeout(LOOK_EVERY, wake.notified()).await;
            continue;
        }
        for _ in 0..YIELD_AT_MOST {
            if engine.is_quiet() {
                break;
            }
            tokio::time::sleep(PAUSE).await;
        }
        let filling = engine.filling.lock().await;
        let starting = engine.adoption.read().await;
        if engine.is_closing.load(Ordering::SeqCst) {
            return;
        }
        // Checked again under the lock: a prepared instance that left `warming` may have joined its pool meanwhile.
        let Some(key) = engine.shortage() else { continue };
        match engine.make_one(&key).await {
            Ok(()) => {}
            // A pool may be configured for a template that does not exist yet.
            Err(ProviderError::NoTemplate { .. }) if key.version.is_none() => {
                engine.lock_pool().rest(key, AFTER_MISSING);
            }
            Err(cause) => {
                tracing::warn!(
                    template = key.template,
                    version = key.version,
                    cause = &cause as &dyn std::error::Error,
                    "an instance for the pool cannot be made"
                );
                engine.lock_pool().rest(key, AFTER_FAILURE);
            }
        }
        drop((starting, filling));
        tokio::time::sleep(PAUSE).await;
    }
}
