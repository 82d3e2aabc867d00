//! Ready instances of this engine: how they are made and checked. Sizes, filling and claims are those of
//! [`Instances`](atoll_instances::Instances).

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use atoll_agentapi::{AgentClient, AgentToken, InitRequest};
use atoll_image::Template;
use atoll_instances::{PoolKey, ReadyInstance};
use atoll_model::policy::egress::Egress;
use atoll_model::{ErrorKind, InstanceId, Limits};
use atoll_provider::{AGENT_PORT, ProviderError};

use super::cold_start::{LayerPlan, Plan};
use super::instance::Live;
use super::{EngineShared, failed};

/// LIMIT: for one connection to the agent.
const DIAL_WITHIN: Duration = Duration::from_secs(10);
/// CPU limit during the preparation: creates and their first commands have priority.
const CPU_MILLI: u32 = 500;
/// A sandbox with a lower memory limit than this gets an instance without a prepared process.
const MEMORY_MIB: u32 = 256;

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

impl ReadyInstance for Ready {
    fn name(&self) -> &str {
        &self.layer
    }
}

impl Ready {
    /// Whether the prepared processes leave room within these limits.
    pub(super) fn has_room(&self, limits: &Limits) -> bool {
        self.prepared
            .is_none_or(|tasks| limits.memory_mib >= MEMORY_MIB && limits.pids > tasks.saturating_mul(2))
    }

    /// The settings that a sandbox of this template gets by default.
    pub(super) fn settings(&self) -> InitRequest {
        let template = &self.template;
        InitRequest {
            env_vars: Some(template.env.clone()),
            default_user: Some(template.default_user.clone()),
            default_workdir: Some(template.workdir.clone()),
            ..InitRequest::default()
        }
    }
}

impl EngineShared {
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

    fn limits_while_made(&self, key: &PoolKey) -> Limits {
        let limits = self.config.pool_limits;
        if !self.instances.is_prepared(key) {
            return limits;
        }
        Limits { cpu_milli: limits.cpu_milli.min(CPU_MILLI), ..limits }
    }

    pub(super) async fn make_pooled(&self, key: &PoolKey) -> Result<Ready, ProviderError> {
        let template = self.template_of(key).await?;
        let mut random = [0; 20];
        getrandom::fill(&mut random)
            .map_err(|cause| failed("making a name")(std::io::Error::other(cause)))?;
        let name = InstanceId::from_entropy(random).as_str().to_owned();
        let layer = atoll_storage::waiting_name(&name);
        let limits = self.limits_while_made(key);
        let plan = Plan {
            name,
            template: Arc::clone(&template),
            layer: LayerPlan::Fresh(layer.clone()),
            limits,
            hostname: "sandbox".into(),
            network: Arc::new(Egress::closed()),
            owner: None,
            mounts: Vec::new(),
        };
        let started = self.cold_start(plan).await?;
        let (live, token) = (started.live, started.token);
        Ok(Ready { live, token, template, layer, limits, prepared: None })
    }

    /// Whether all prepared processes still exist; the OOM killer may have ended one.
    pub(super) fn is_still_prepared(&self, ready: &Ready) -> bool {
        let Some(tasks) = ready.prepared else { return true };
        self.tasks_of(ready).is_some_and(|now| now >= tasks)
    }

    pub(super) fn tasks_of(&self, ready: &Ready) -> Option<u32> {
        self.resources.cgroups.figures(&ready.live.facts.cgroup).ok().map(|figures| figures.pids)
    }
}

/// A client of the agent in an instance that has no network.
pub(super) fn agent_of(engine: Weak<EngineShared>, netns: Arc<OwnedFd>, token: &str) -> AgentClient {
    let connect = move || {
        let (engine, netns) = (engine.clone(), Arc::clone(&netns));
        async move {
            let engine = engine.upgrade().ok_or(std::io::ErrorKind::NotConnected)?;
            engine.dialer.dial(netns.as_fd(), AGENT_PORT, DIAL_WITHIN).await.map_err(std::io::Error::other)
        }
    };
    AgentClient::new(connect, &AgentToken::new(token))
}
