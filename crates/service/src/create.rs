//! Creating a sandbox: checked, admitted, written down, made.

use std::sync::Arc;

use atoll_model::{
    Code, CreateSandbox, InstanceId, Intent, Lease, Moment, Phase, Principal, Reason, SandboxId, Stage,
};
use atoll_store::{Hash, NewLease};
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;

use crate::driver::{self, Born};
use crate::random::entropy;
use crate::registry::Handle;
use crate::service::Service;
use crate::{Created, ServiceError, TemplateRecord};

impl Service {
    /// Creates a sandbox. With `wait` it answers when the sandbox runs, or why it does not; else once it is written
    /// down. The caller may go away at any time: the driver finishes what was begun.
    pub async fn create(
        &self,
        who: &Principal,
        spec: CreateSandbox,
        wait: bool,
    ) -> Result<(Lease, Created), ServiceError> {
        spec.check()?;
        let name = spec.template.as_deref().unwrap_or(&self.inner.config.default_template);
        let template = self.inner.templates.resolve(&self.inner, name).await?;
        let lease = self.lease_for(who, &spec, &template)?;
        let request = NewLease { idempotency: idempotency(&spec), lease };
        let born = match self.reserve(&request.lease).await {
            Ok(()) => self.make(request).await?,
            // Without room only an old answer can be given again: the repeated create may be what took the last place.
            Err(full) => Born::Replayed(Box::new(self.made_before(&request).await?.ok_or(full)?)),
        };
        let (handle, created) = match born {
            Born::New(handle) => (handle, Created::New),
            Born::Replayed(before) => {
                let Some(handle) = self.inner.registry.get(&before.id) else {
                    return Ok((*before, Created::Replayed));
                };
                (handle, Created::Replayed)
            }
        };
        tracing::info!(sandbox = %handle.lease().id, template = %template.name, ?created, "a sandbox was asked for");
        if !wait {
            return Ok((handle.lease().as_ref().clone(), created));
        }
        Ok((self.until_made(handle).await?, created))
    }

    async fn make(&self, request: NewLease) -> Result<Born, ServiceError> {
        let (reply, answer) = oneshot::channel();
        driver::birth(&self.inner, request, reply);
        let ended = || ServiceError::new(Code::Internal, "the service is ending").retry_after(2);
        Ok(answer.await.map_err(|_| ended())??)
    }

    async fn made_before(&self, request: &NewLease) -> Result<Option<Lease>, ServiceError> {
        match &request.idempotency {
            Some((key, hash)) => Ok(self.inner.store.made_with(&request.lease.tenant, key, *hash).await?),
            None => Ok(None),
        }
    }

    async fn reserve(&self, lease: &Lease) -> Result<(), ServiceError> {
        let inner = &self.inner;
        Ok(inner.admission.reserve(inner.provider.as_ref(), &lease.id, &lease.limits).await?)
    }

    fn lease_for(
        &self,
        who: &Principal,
        spec: &CreateSandbox,
        template: &TemplateRecord,
    ) -> Result<Lease, ServiceError> {
        let now = self.inner.clock.now();
        let limits = spec
            .limits
            .resolve(self.inner.config.default_limits)
            .map_err(|bad| ServiceError::new(Code::InvalidRequest, bad.to_string()))?;
        let mut env = template.env.clone();
        env.extend(spec.env.clone());
        let user = spec.user.clone().unwrap_or_else(|| template.user.clone());
        let workdir = if user == "root" && template.user != "root" {
            "/root".to_owned()
        } else {
            template.workdir.clone()
        };
        Ok(Lease {
            id: SandboxId::from_entropy(entropy()?),
            tenant: who.tenant.clone(),
            name: spec.name.clone(),
            labels: spec.labels.clone(),
            env,
            provider: self.inner.provider.name().to_owned(),
            template: template.name.clone(),
            template_version: template.version.clone(),
            user,
            workdir,
            command: spec.command.clone().or_else(|| template.command.clone()),
            limits,
            network: spec.network,
            storage: spec.storage,
            intent: Intent::Run,
            phase: Phase::Creating,
            stage: Stage::Booting,
            reason: Reason::Requested,
            generation: 1,
            instance: Some(InstanceId::from_entropy(entropy()?)),
            timeout_s: spec.timeout_s,
            timeout_at: spec.timeout_s.map(|s| timeout_at(&now, s)),
            on_timeout: spec.on_timeout,
            created_at: now.clone(),
            phase_at: now,
        })
    }

    /// Waits for the end of a creation, bounded.
    async fn until_made(&self, handle: Handle) -> Result<Lease, ServiceError> {
        let lease = self.until(handle.clone(), |state| state.lease.phase != Phase::Creating).await?;
        match lease.phase {
            Phase::Running => Ok(lease.as_ref().clone()),
            Phase::Deleting | Phase::Deleted => Err(ServiceError::new(
                Code::PhaseConflict,
                format!("sandbox {} was deleted while it was created", lease.id),
            )),
            Phase::Failed => Err(failure(&handle, &lease)),
            // It ran and somebody already did something else with it.
            Phase::Creating | Phase::Stopping | Phase::Stopped | Phase::Starting => {
                Ok(lease.as_ref().clone())
            }
        }
    }
}

/// Why a sandbox is failed, as its driver knows it, else as the lease says.
pub(crate) fn failure(handle: &Handle, lease: &Arc<Lease>) -> ServiceError {
    let known = handle.state.borrow().failure.clone();
    let failure = known.unwrap_or_else(|| {
        ServiceError::new(
            Code::Internal,
            format!("sandbox {} failed: {}", lease.id, reason_text(&lease.reason)),
        )
    });
    match failure.hint {
        Some(_) => failure,
        None => {
            failure.hint(format!("sandbox {} keeps the reason; delete it when it is not needed", lease.id))
        }
    }
}

fn reason_text(reason: &Reason) -> String {
    match reason {
        Reason::Requested => "as requested".to_owned(),
        Reason::Completed => "completed".to_owned(),
        Reason::TimedOut => "its timeout passed".to_owned(),
        Reason::Overdue => "it took too long".to_owned(),
        Reason::InstanceDied => "the instance ended by itself".to_owned(),
        Reason::LostWhileDown => "it was gone when the server came back".to_owned(),
        Reason::Provider { message } => message.clone(),
    }
}

pub(crate) fn timeout_at(now: &Moment, seconds: u64) -> Moment {
    now.plus_ms(i64::try_from(seconds.saturating_mul(1_000)).unwrap_or(i64::MAX))
}

/// What makes two requests the same: everything but the key itself. Maps are sorted, so the text is canonical.
fn idempotency(spec: &CreateSandbox) -> Option<(String, Hash)> {
    let key = spec.idempotency_key.clone()?;
    let request = CreateSandbox { idempotency_key: None, ..spec.clone() };
    Some((key, Sha256::digest(format!("{request:?}")).into()))
}
