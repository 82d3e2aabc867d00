//! What a driver has done at the provider. Each piece of work runs in a task of its own and comes back as a numbered
//! [`Done`]; the next piece waits for the one before, so a destroy never races the create it undoes.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use atoll_agentapi::AgentClient;
use atoll_model::{Code, InstanceId, Lease};
use atoll_provider::{InstanceSpec, Target};
use atoll_store::InstanceRow;
use futures::FutureExt;
use tokio::task::JoinHandle;

use super::Driver;
use crate::ServiceError;
use crate::service::Inner;
use crate::timed::timed;

/// LIMIT: how long an end waits for the beginning that it undoes before that is dropped where it is. `destroy` is legal
/// half way through `create`.
const PREDECESSOR: Duration = Duration::from_secs(5);

/// A piece of work at the provider.
#[derive(Debug, Clone)]
pub(super) enum Work {
    Create,
    Boot,
    Halt { instance: Option<InstanceId> },
    Destroy,
}

/// Work that has not come back yet.
pub(super) struct UnderWay {
    pub(super) number: u64,
    task: JoinHandle<Option<()>>,
}

/// How a piece of work ended.
pub(super) struct Done {
    pub(super) number: u64,
    pub(super) instance: Option<InstanceId>,
    pub(super) outcome: Outcome,
}

pub(super) enum Outcome {
    Booted { row: InstanceRow, agent: AgentClient, from_pool: bool },
    NotBooted(ServiceError),
    Halted(Result<(), ServiceError>),
    Destroyed(Result<(), ServiceError>),
}

impl Driver {
    pub(super) fn launch(&mut self, work: Work) {
        self.attempts = 0;
        self.launch_after(work, Duration::ZERO);
    }

    pub(super) fn launch_after(&mut self, work: Work, delay: Duration) {
        self.effects_started += 1;
        let number = self.effects_started;
        let before = self.under_way.take();
        let (inner, lease, done) = (Arc::clone(&self.inner), self.lease.clone(), self.done_in.clone());
        let task = self.inner.spawn(async move {
            if let Some(before) = before {
                before.settle().await;
            }
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            let instance = match &work {
                Work::Halt { instance } => instance.clone(),
                Work::Create | Work::Boot | Work::Destroy => lease.instance.clone(),
            };
            let outcome = guarded(&inner, &lease, &work).await;
            inner.failpoint.reach("effect.after").await;
            // The driver may have ended with the server; the next start looks at the provider itself.
            let _ = done.send(Done { number, instance, outcome }).await;
        });
        self.under_way = Some(UnderWay { number, task });
    }
}

impl UnderWay {
    async fn settle(mut self) {
        if tokio::time::timeout(PREDECESSOR, &mut self.task).await.is_err() {
            self.task.abort();
            let _ = self.task.await;
        }
    }
}

/// A provider that panics has failed; it does not take the driver with it.
async fn guarded(inner: &Arc<Inner>, lease: &Lease, work: &Work) -> Outcome {
    let run = AssertUnwindSafe(perform(inner, lease, work)).catch_unwind();
    run.await.unwrap_or_else(|_| {
        let failure = ServiceError::new(Code::Internal, "the provider failed inside");
        match work {
            Work::Create | Work::Boot => Outcome::NotBooted(failure),
            Work::Halt { .. } => Outcome::Halted(Err(failure)),
            Work::Destroy => Outcome::Destroyed(Err(failure)),
        }
    })
}

async fn perform(inner: &Arc<Inner>, lease: &Lease, work: &Work) -> Outcome {
    let target = |instance| Target { sandbox: lease.id.clone(), instance };
    inner.failpoint.reach("effect.before").await;
    match work {
        Work::Create | Work::Boot => boot(inner, lease, matches!(work, Work::Create)).await,
        Work::Halt { instance } => {
            let halted = inner.provider.halt(&target(instance.clone())).await;
            Outcome::Halted(gone_is_fine(halted))
        }
        Work::Destroy => {
            let destroyed = inner.provider.destroy(&target(lease.instance.clone())).await;
            Outcome::Destroyed(gone_is_fine(destroyed))
        }
    }
}

fn gone_is_fine(ended: Result<(), atoll_provider::ProviderError>) -> Result<(), ServiceError> {
    match ended {
        Ok(()) | Err(atoll_provider::ProviderError::Gone { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

async fn boot(inner: &Arc<Inner>, lease: &Lease, first: bool) -> Outcome {
    // Bursts wait here: more at once than the machine has cores for only makes each of them slower.
    let Ok(_turn) = inner.creates.acquire().await else {
        return Outcome::NotBooted(ServiceError::new(Code::Internal, "the service is ending"));
    };
    let Some(instance) = lease.instance.clone() else {
        return Outcome::NotBooted(ServiceError::new(Code::Internal, "no instance was named"));
    };
    let spec = spec(lease, instance.clone());
    let booted = if first {
        timed("provider", inner.provider.create(&spec)).await
    } else {
        inner.provider.boot(&spec).await
    };
    let booted = match booted {
        Ok(booted) => booted,
        Err(atoll_provider::ProviderError::Gone { sandbox }) => {
            let message =
                format!("the files of sandbox {sandbox} are not there: it was never made, or they were lost");
            let failure = ServiceError::new(Code::SandboxUnavailable, message);
            return Outcome::NotBooted(failure.hint("delete it and create a new one"));
        }
        Err(error) => return Outcome::NotBooted(error.into()),
    };
    inner.failpoint.reach("effect.made").await;
    let agent = crate::agent::client(&inner.provider, &lease.id, &instance, &booted.agent_token);
    if let Err(failure) = timed("greet", crate::agent::greet(&agent, lease)).await {
        return Outcome::NotBooted(failure);
    }
    let row = InstanceRow { instance, facts: booted.facts, agent_token: booted.agent_token };
    Outcome::Booted { row, agent, from_pool: booted.from_pool }
}

fn spec(lease: &Lease, instance: InstanceId) -> InstanceSpec {
    InstanceSpec {
        sandbox: lease.id.clone(),
        instance,
        template: lease.template.clone(),
        template_version: lease.template_version.clone(),
        limits: lease.limits,
        network: lease.network,
        storage: lease.storage,
        hostname: crate::agent::hostname(lease),
    }
}
