//! Ready instances: booted with the agent listening, without network, frozen. An instance is claimed once and never reused.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use atoll_image::Template;
use atoll_model::InstanceId;
use atoll_model::policy::egress::Egress;
use atoll_provider::ProviderError;

use super::cold::{LayerPlan, Plan};
use super::instance::Live;
use super::reaper::Remains;
use super::{Inner, PoolStats, failed};

/// How often the pool is looked at when nobody claims.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Pause between two that are made, so that filling does not disturb.
const PAUSE: Duration = Duration::from_millis(5);
/// How long filling waits after a start that somebody waited for: the new sandbox is about to run its first command, and on
/// two cores a start beside it would double the time of that.
const AFTER_START: Duration = Duration::from_millis(25);
/// How often it looks whether all is quiet, before one is made anyway.
const YIELD_AT_MOST: u32 = 40;
/// Pause after one could not be made.
const AFTER_FAILURE: Duration = Duration::from_secs(5);

/// One that waits to be claimed.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) live: Live,
    pub(super) token: String,
    pub(super) template: Arc<Template>,
    /// The name its layer has until it is claimed.
    pub(super) layer: String,
}

impl Inner {
    pub(super) fn lock_pool(&self) -> MutexGuard<'_, HashMap<String, Vec<Ready>>> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn pool_stats(&self) -> Vec<PoolStats> {
        let pool = self.lock_pool();
        let stats = |(template, wanted): (&String, &usize)| PoolStats {
            template: template.clone(),
            ready: pool.get(template).map_or(0, Vec::len),
            wanted: *wanted,
        };
        self.config.pool.iter().map(stats).collect()
    }

    /// Takes one made from exactly this version of the template, and lets go of those of another.
    pub(super) fn take_ready(&self, template: &str, version: &str) -> Option<Ready> {
        let mut pool = self.lock_pool();
        let ready = pool.get_mut(template)?;
        let fits =
            |one: &Ready| one.template.digest == version && atoll_image::verify_host(&one.template).is_ok();
        let (mut fresh, stale): (Vec<Ready>, Vec<Ready>) = std::mem::take(ready).into_iter().partition(fits);
        let taken = fresh.pop();
        *ready = fresh;
        drop(pool);
        stale.into_iter().for_each(|one| self.discard(one));
        taken
    }

    /// Ends one that nobody will claim.
    pub(super) fn discard(&self, ready: Ready) {
        ready.live.expect_end();
        let _ = self.ground.cgroups.thaw(&ready.live.facts.cgroup);
        let _ = ready.live.kill();
        self.reaper.take(Remains {
            pidfd: ready.live.pidfd().try_clone_to_owned().ok(),
            cgroup: Some(ready.live.facts.cgroup.clone()),
            layer: Some(ready.layer),
            link: ready.live.facts.link,
            first_id: Some(ready.live.facts.first_id),
            ..Remains::default()
        });
    }

    pub(super) fn drain_pool(&self) {
        let all: Vec<Ready> = self.lock_pool().drain().flat_map(|(_, ready)| ready).collect();
        all.into_iter().for_each(|one| self.discard(one));
    }

    /// Nobody waits for a start, and none has just ended.
    fn is_quiet(&self) -> bool {
        let last = *self.last_start.lock().unwrap_or_else(PoisonError::into_inner);
        self.starting.load(Ordering::SeqCst) == 0 && last.is_none_or(|at| at.elapsed() >= AFTER_START)
    }

    fn shortage(&self) -> Option<String> {
        if self.is_closing.load(Ordering::SeqCst) || self.needs_adoption.load(Ordering::SeqCst) {
            return None;
        }
        let pool = self.lock_pool();
        let short =
            |(template, wanted): &(&String, &usize)| pool.get(*template).map_or(0, Vec::len) < **wanted;
        self.config.pool.iter().find(short).map(|(template, _)| template.clone())
    }

    async fn make_ready(self: &Arc<Self>, name: &str) -> Result<Ready, ProviderError> {
        let (catalog, wanted) = (Arc::clone(&self.catalog), name.to_owned());
        let found = self.hands.run(move || Ok(catalog.get(&wanted)));
        let template =
            found.await.map_err(failed("reading the template"))?.map_err(failed("reading the template"))?;
        let mut random = [0; 20];
        getrandom::fill(&mut random)
            .map_err(|cause| failed("making a name")(std::io::Error::other(cause)))?;
        let layer = InstanceId::from_entropy(random).as_str().to_owned();
        let plan = Plan {
            name: layer.clone(),
            template: Arc::new(template),
            layer: LayerPlan::Fresh(layer.clone()),
            limits: self.config.pool_limits,
            hostname: "sandbox".into(),
            network: Arc::new(Egress::closed()),
            owner: None,
            mounts: Vec::new(),
        };
        let started = self.cold_start(&plan).await?;
        let ready = Ready { live: started.live, token: started.token, template: plan.template, layer };
        let (cgroups, cgroup) = (Arc::clone(&self.ground.cgroups), ready.live.facts.cgroup.clone());
        if let Err(cause) = self.hands.run(move || cgroups.freeze(&cgroup)).await {
            self.discard(ready);
            return Err(failed("freezing a ready instance")(cause));
        }
        Ok(ready)
    }
}

/// Fills the pools one by one, behind the starts that somebody waits for.
pub(super) async fn keep_filled(engine: Weak<Inner>) {
    loop {
        let Some(engine) = engine.upgrade() else { return };
        let Some(name) = engine.shortage() else {
            let wake = Arc::clone(&engine.pool_wanted);
            // Not held while waiting: the engine must be able to go.
            drop(engine);
            let _ = tokio::time::timeout(LOOK_EVERY, wake.notified()).await;
            continue;
        };
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
        match engine.make_ready(&name).await {
            Ok(ready) if engine.is_closing.load(Ordering::SeqCst) => engine.discard(ready),
            Ok(ready) => engine.lock_pool().entry(name).or_default().push(ready),
            Err(cause) => {
                tracing::warn!(
                    template = name,
                    cause = &cause as &dyn std::error::Error,
                    "a ready instance can't be made"
                );
                drop((starting, filling));
                tokio::time::sleep(AFTER_FAILURE).await;
                continue;
            }
        }
        drop((starting, filling));
        tokio::time::sleep(PAUSE).await;
    }
}
