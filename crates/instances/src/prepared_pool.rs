//! Ready instances in which a process was started before they were frozen. A code interpreter takes half a second to
//! start, and a sandbox that claims such an instance does not wait for it. One instance is prepared at a time, while
//! all other pools are filled.

use std::error::Error;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use atoll_agentapi::{AgentClient, InitRequest};
use atoll_provider::ProviderError;

use crate::{InstanceLauncher, Instances, PoolKey, ReadyInstance, failed};

/// LIMIT: for the preparation; a code interpreter on an overloaded machine.
const PREPARE_WITHIN: Duration = Duration::from_secs(90);
/// Pause of one pool after a failed preparation: a retry soon after would probably fail too.
const AFTER_FAILURE: Duration = Duration::from_secs(60);
/// No instance is prepared on a machine with less free memory than this.
const FREE_MIB: u64 = 1_024;

/// Refuses to prepare an instance when memory is low.
pub(crate) fn need_memory() -> Result<(), ProviderError> {
    let about = std::fs::read_to_string("/proc/meminfo").map_err(failed("reading free memory"))?;
    let free = about.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let free = free.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(u64::MAX);
    if free / 1_024 < FREE_MIB {
        return Err(ProviderError::Exhausted { what: "memory for prepared instances".into() });
    }
    Ok(())
}

impl<L: InstanceLauncher> Instances<L> {
    /// Prepares the instance in a task of its own, so that the filling of pools does not wait.
    pub(crate) fn warm_up(launcher: &Arc<L>, key: PoolKey, ready: L::Ready) {
        let (agent, settings) = match launcher.agent_of(&ready) {
            Ok(agent) => agent,
            Err(cause) => {
                tracing::warn!(%cause, "an instance for the pool cannot be prepared");
                return launcher.discard(ready);
            }
        };
        let name = ready.name().to_owned();
        launcher.instances().pool.lock().warming.push((key.clone(), ready));
        let weak = Arc::downgrade(launcher);
        launcher.instances().spawn(async move {
            let prepared = prepare(&weak, &key, agent, settings).await;
            if let Some(launcher) = weak.upgrade() {
                Self::warmed(&launcher, &name, prepared).await;
            }
        });
    }

    /// Keeps the instance, or discards it. If it is missing, the pools were drained meanwhile.
    async fn warmed(launcher: &Arc<L>, name: &str, prepared: Result<(), Box<dyn Error + Send + Sync>>) {
        let instances = launcher.instances();
        // `close` waits for this lock, and then finds the instance in the pool or gone.
        let _filling = instances.pool.filling.lock().await;
        let taken = {
            let mut pools = instances.pool.lock();
            let at = pools.warming.iter().position(|(_, ready)| ready.name() == name);
            at.map(|at| pools.warming.swap_remove(at))
        };
        let Some((key, ready)) = taken else { return };
        if instances.is_closing.load(Ordering::SeqCst) {
            return launcher.discard(ready);
        }
        let kept = match prepared {
            Ok(()) => launcher.freeze_prepared(ready).await.map_err(Into::into),
            Err(cause) => {
                launcher.discard(ready);
                Err(cause)
            }
        };
        match kept {
            Ok(ready) => Self::keep_ready(launcher, key, ready),
            Err(cause) => {
                tracing::warn!(
                    template = key.template,
                    cause = &*cause as &dyn Error,
                    "an instance for the pool cannot be prepared"
                );
                instances.pool.lock().rest(key, AFTER_FAILURE);
            }
        }
        instances.pool.wanted.notify_one();
    }
}

async fn prepare<L: InstanceLauncher>(
    launcher: &Weak<L>,
    key: &PoolKey,
    agent: AgentClient,
    settings: InitRequest,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let prepare = launcher.upgrade().and_then(|launcher| launcher.instances().pool.prepare.clone());
    let prepare = prepare.ok_or("closing")?;
    let work = async {
        agent.init(&settings).await?;
        prepare.prepare(&key.template, agent).await
    };
    tokio::time::timeout(PREPARE_WITHIN, work).await?
}
