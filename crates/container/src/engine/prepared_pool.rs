//! Ready instances in which a process was started before they were frozen. A code interpreter takes half a second to
//! start, and a sandbox that claims such an instance does not wait for it. One instance is prepared at a time, with
//! half a core, while all other pools are filled.

use std::error::Error;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use atoll_agentapi::{AgentClient, AgentToken, InitRequest};
use atoll_model::Limits;
use atoll_provider::{AGENT_PORT, ProviderError};

use super::pool::{PoolKey, Ready};
use super::{EngineShared, failed};

/// LIMIT: for the preparation; a code interpreter on an overloaded machine.
const PREPARE_WITHIN: Duration = Duration::from_secs(90);
/// LIMIT: for one connection to the agent.
const DIAL_WITHIN: Duration = Duration::from_secs(10);
/// Pause of one pool after a failed preparation: a retry soon after would probably fail too.
const AFTER_FAILURE: Duration = Duration::from_secs(60);
/// CPU limit during the preparation: creates and their first commands have priority.
const CPU_MILLI: u32 = 500;
/// No instance is prepared on a machine with less free memory than this.
const FREE_MIB: u64 = 1_024;
/// A sandbox with a lower memory limit than this gets an instance without a prepared process.
const MEMORY_MIB: u32 = 256;

/// Whether the prepared processes leave room within these limits.
pub(super) fn has_room(ready: &Ready, limits: &Limits) -> bool {
    ready
        .prepared
        .is_none_or(|tasks| limits.memory_mib >= MEMORY_MIB && limits.pids > tasks.saturating_mul(2))
}

/// Refuses to prepare an instance when memory is low.
pub(super) fn need_memory() -> Result<(), ProviderError> {
    let about = std::fs::read_to_string("/proc/meminfo").map_err(failed("reading free memory"))?;
    let free = about.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let free = free.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(u64::MAX);
    if free / 1_024 < FREE_MIB {
        return Err(ProviderError::Exhausted { what: "memory for prepared instances".into() });
    }
    Ok(())
}

impl EngineShared {
    /// Whether instances of this pool are prepared.
    pub(super) fn is_prepared(&self, key: &PoolKey) -> bool {
        self.config.prepare.as_ref().is_some_and(|prepare| prepare.wants(&key.template))
    }

    pub(super) fn limits_while_made(&self, key: &PoolKey) -> Limits {
        let limits = self.config.pool_limits;
        if !self.is_prepared(key) {
            return limits;
        }
        Limits { cpu_milli: limits.cpu_milli.min(CPU_MILLI), ..limits }
    }

    /// Whether all prepared processes still exist; the OOM killer may have ended one.
    pub(super) fn is_still_prepared(&self, ready: &Ready) -> bool {
        let Some(tasks) = ready.prepared else { return true };
        self.tasks_of(ready).is_some_and(|now| now >= tasks)
    }

    fn tasks_of(&self, ready: &Ready) -> Option<u32> {
        self.resources.cgroups.figures(&ready.live.facts.cgroup).ok().map(|figures| figures.pids)
    }

    /// Prepares the instance in a task of its own, so that the filling of pools does not wait.
    pub(super) fn warm_up(self: &Arc<Self>, key: PoolKey, ready: Ready) {
        let netns = match ready.live.netns().try_clone_to_owned() {
            Ok(netns) => Arc::new(netns),
            Err(cause) => {
                tracing::warn!(%cause, "an instance for the pool cannot be prepared");
                return self.discard(ready);
            }
        };
        let agent = agent_of(Arc::downgrade(self), netns, &ready.token);
        let (layer, settings) = (ready.layer.clone(), settings(&ready));
        self.lock_pool().warming.push((key.clone(), ready));
        let weak = Arc::downgrade(self);
        self.spawn(async move {
            let prepared = prepare(&weak, &key, agent, settings).await;
            if let Some(engine) = weak.upgrade() {
                engine.warmed(&layer, prepared).await;
            }
        });
    }

    /// Keeps the instance, or discards it. If it is missing, the pools were drained meanwhile.
    async fn warmed(self: &Arc<Self>, layer: &str, prepared: Result<(), Box<dyn Error + Send + Sync>>) {
        // `close` waits for this lock, and then finds the instance in the pool or gone.
        let _filling = self.filling.lock().await;
        let taken = {
            let mut pools = self.lock_pool();
            let at = pools.warming.iter().position(|(_, ready)| ready.layer == layer);
            at.map(|at| pools.warming.swap_remove(at))
        };
        let Some((key, mut ready)) = taken else { return };
        if self.is_closing.load(Ordering::SeqCst) {
            return self.discard(ready);
        }
        let kept = match prepared {
            Ok(()) => {
                let (cgroups, cgroup, limits) = (
                    Arc::clone(&self.resources.cgroups),
                    ready.live.facts.cgroup.clone(),
                    self.config.pool_limits,
                );
                let limited = self.blocking.run(move || cgroups.set_limits(&cgroup, &limits)).await;
                if limited.is_ok() {
                    ready.limits = limits;
                }
                self.freeze_ready(ready).await.map_err(Into::into)
            }
            Err(cause) => {
                self.discard(ready);
                Err(cause)
            }
        };
        match kept {
            Ok(mut ready) => {
                ready.prepared = self.tasks_of(&ready);
                self.keep_ready(key, ready);
            }
            Err(cause) => {
                tracing::warn!(
                    template = key.template,
                    cause = &*cause as &dyn Error,
                    "an instance for the pool cannot be prepared"
                );
                self.lock_pool().rest(key, AFTER_FAILURE);
            }
        }
        self.pool_wanted.notify_one();
    }
}

async fn prepare(
    engine: &Weak<EngineShared>,
    key: &PoolKey,
    agent: AgentClient,
    settings: InitRequest,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let prepare = engine.upgrade().and_then(|engine| engine.config.prepare.clone()).ok_or("closing")?;
    let work = async {
        agent.init(&settings).await?;
        prepare.prepare(&key.template, agent).await
    };
    tokio::time::timeout(PREPARE_WITHIN, work).await?
}

/// The settings that a sandbox of this template gets by default.
fn settings(ready: &Ready) -> InitRequest {
    let template = &ready.template;
    InitRequest {
        env_vars: Some(template.env.clone()),
        default_user: Some(template.default_user.clone()),
        default_workdir: Some(template.workdir.clone()),
        ..InitRequest::default()
    }
}

fn agent_of(engine: Weak<EngineShared>, netns: Arc<OwnedFd>, token: &str) -> AgentClient {
    let connect = move || {
        let (engine, netns) = (engine.clone(), Arc::clone(&netns));
        async move {
            let engine = engine.upgrade().ok_or(std::io::ErrorKind::NotConnected)?;
            engine.dialer.dial(netns.as_fd(), AGENT_PORT, DIAL_WITHIN).await.map_err(std::io::Error::other)
        }
    };
    AgentClient::new(connect, &AgentToken::new(token))
}
