//! Creating a sandbox: checked, admitted, written down, made.

mod base;

use std::sync::Arc;

use atoll_model::{
    Code, CreateSandbox, HeaderText, InstanceId, Intent, Lease, Phase, Principal, ReadyCheck, Reason,
    SandboxId, Source, Stage, TenantId, Timers, Timestamp,
};
use atoll_provider::Target;
use atoll_store::{Hash, NewLease};
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;

use crate::driver::{self, CreationOutcome};
use crate::random::entropy;
use crate::registry::{DriverState, Handle};
use crate::sandboxes::{EndWait, is_under_way};
use crate::service::Service;
use crate::snapshots::Seed;
use crate::templates::VersionHold;
use crate::{Created, ServiceError};
use base::CreationBase;

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
        let Planned { lease, seed, hold, ready } = self.lease_for(who, &spec).await?;
        let template = lease.template.clone();
        let request = NewLease { idempotency: self.idempotency(&who.tenant, &spec), lease };
        let born = match self.reserve(&request.lease).await {
            Ok(()) => self.make(request, seed).await?,
            // Without room only an old answer can be given again: the repeated create may be what took the last place.
            Err(full) => CreationOutcome::Replayed(Box::new(self.made_before(&request).await?.ok_or(full)?)),
        };
        // The row says from now on which version is needed.
        drop(hold);
        let (handle, created) = match born {
            CreationOutcome::New(handle) => (handle, Created::New),
            CreationOutcome::Replayed(before) => {
                let Some(handle) = self.inner.registry.get(&before.id) else {
                    return Ok((*before, Created::Replayed));
                };
                (handle, Created::Replayed)
            }
        };
        tracing::info!(sandbox = %handle.lease().id, template, ?created, "a sandbox was requested");
        if !wait {
            return Ok((handle.lease().as_ref().clone(), created));
        }
        let lease = self.until_made(handle.clone()).await?;
        if let Some(check) = ready.filter(|_| created == Created::New) {
            self.until_ready(&handle, &check).await?;
        }
        Ok((lease, created))
    }

    /// Waits until what the template starts is ready.
    async fn until_ready(&self, handle: &Handle, check: &ReadyCheck) -> Result<(), ServiceError> {
        let (lease, agent) = crate::wake::awake(&self.inner, handle).await?;
        let target = Target { sandbox: lease.id.clone(), instance: lease.instance.clone() };
        let looked = crate::build::ready::Looked { provider: &self.inner.provider, target, agent: &agent };
        let deadline = tokio::time::Instant::now() + self.inner.config.create_wait;
        let ready = crate::build::ready::until_ready(&looked, check, deadline).await;
        ready.map_err(|late| {
            let hint = format!("sandbox {} runs; check its logs, or delete it", lease.id);
            ServiceError { hint: Some(hint), ..late }
        })
    }

    pub(crate) async fn make(
        &self,
        request: NewLease,
        seed: Option<Arc<Seed>>,
    ) -> Result<CreationOutcome, ServiceError> {
        let (reply, answer) = oneshot::channel();
        driver::birth(&self.inner, request, seed, reply);
        Ok(answer.await.map_err(|_| ending())??)
    }

    async fn made_before(&self, request: &NewLease) -> Result<Option<Lease>, ServiceError> {
        match &request.idempotency {
            Some((key, hash)) => Ok(self.inner.store.made_with(&request.lease.tenant, key, *hash).await?),
            None => Ok(None),
        }
    }

    /// What is brought from object storage needs room for its files now, and memory when it starts.
    pub(crate) async fn reserve(&self, lease: &Lease) -> Result<(), ServiceError> {
        let inner = &self.inner;
        if !inner.images.disk().takes_records() {
            return Err(atoll_store::StoreError::NoSpace.into());
        }
        self.admit_beside_uploads(lease).await?;
        match lease.holds_compute() {
            true => Ok(inner.admission.reserve(inner.provider.as_ref(), lease).await?),
            false => Ok(inner.admission.reserve_files(inner.provider.as_ref(), lease).await?),
        }
    }

    /// The lease of a new sandbox, and what it is made from.
    async fn lease_for(&self, who: &Principal, spec: &CreateSandbox) -> Result<Planned, ServiceError> {
        let mounts = self.mounts_of(who, &spec.mounts).await?;
        let CreationBase { base, seed, hold, ready } = self.base_of(who, spec).await?;
        let network = spec.network.clone().or(base.network).unwrap_or_default();
        let network = self.admitted(&who.tenant, network, None).await?;
        let secrets = crate::egress::attached(&self.inner, &who.tenant, &spec.secrets).await?;
        let now = self.inner.clock.now();
        let limits = spec.limits.resolve(base.limits)?;
        let mut env = base.env;
        env.extend(spec.env.clone());
        let user = spec.user.clone().unwrap_or_else(|| base.user.clone());
        let workdir = if user == "root" && base.user != "root" { "/root".to_owned() } else { base.workdir };
        let from_archive = matches!(base.source, Source::Archive { .. });
        let lease = Lease {
            id: self.id_for(spec).await?,
            tenant: who.tenant.clone(),
            name: spec.name.clone(),
            labels: spec.labels.clone(),
            env,
            provider: self.inner.provider.name().to_owned(),
            template: base.template,
            template_version: base.template_version,
            user,
            workdir: spec.workdir.clone().unwrap_or(workdir),
            command: spec.command.clone().or(base.command),
            limits,
            network,
            storage: spec.storage,
            intent: Intent::Run,
            // Files that come from far away have their own phase, with its own deadline.
            phase: if from_archive { Phase::Restoring } else { Phase::Creating },
            stage: Stage::Booting,
            reason: Reason::Requested,
            generation: 1,
            instance: if from_archive { None } else { Some(InstanceId::from_entropy(entropy()?)) },
            timeout_s: spec.timeout_s,
            timeout_at: spec.timeout_s.map(|s| timeout_at(&now, s)),
            on_timeout: spec.on_timeout,
            timeout_counts: spec.timeout_counts,
            created_at: now.clone(),
            phase_at: now,
            held: None,
            timers: spec.timers.resolve(Timers::default())?,
            active_at: None,
            stopped_at: None,
            hold: None,
            on_exit: spec.on_exit,
            thread: spec.thread.clone(),
            wake: spec.wake,
            source: base.source,
            parent: base.parent,
            private_env: spec.private_env.clone(),
            archive: None,
            rollback_to: None,
            mounts,
            build: spec.build.clone(),
            public: spec.public,
            token_epoch: 0,
            mask_host: spec.mask_host.clone(),
            https_ports: spec.https_ports.clone(),
            annotations: spec.annotations.clone(),
            secrets,
            started_at: None,
        };
        crate::deadlines::check_possible(&self.inner.provider.capabilities(), &lease)?;
        Ok(Planned { lease, seed, hold, ready })
    }

    /// An id that no sandbox has, for [`CreateSandbox::id`].
    pub fn new_sandbox_id(&self) -> Result<SandboxId, ServiceError> {
        Ok(SandboxId::from_entropy(entropy()?))
    }

    /// An id never means another sandbox later: its tokens would open that one.
    async fn id_for(&self, spec: &CreateSandbox) -> Result<SandboxId, ServiceError> {
        let Some(id) = &spec.id else { return self.new_sandbox_id() };
        let known = self.inner.store.lease(id).await?;
        if known.is_some() && spec.idempotency_key.is_none() {
            let message = format!("a sandbox {id} exists or existed");
            return Err(ServiceError::new(Code::AlreadyExists, message));
        }
        Ok(id.clone())
    }

    /// What makes two requests the same: everything but the key itself. Maps are sorted, so the text is canonical. Values
    /// that no text shows count too, under a key of this server: the hash is kept, and must not let anybody guess them.
    fn idempotency(&self, tenant: &TenantId, spec: &CreateSandbox) -> Option<(String, Hash)> {
        let key = spec.idempotency_key.clone()?;
        let request = CreateSandbox { idempotency_key: None, ..spec.clone() };
        let mut hash = Sha256::new_with_prefix(format!("{request:?}"));
        let values = request.network.iter().flat_map(|network| &network.transforms);
        for value in values.flat_map(|transform| transform.inject_headers.values()) {
            let (HeaderText::Plain(text) | HeaderText::Sealed(text)) = value;
            hash.update(self.inner.store.derive("idempotency", tenant.as_str()));
            hash.update((text.len() as u64).to_be_bytes());
            hash.update(text);
        }
        Some((key, hash.finalize().into()))
    }

    /// Waits for the end of a creation, bounded.
    pub(crate) async fn until_made(&self, handle: Handle) -> Result<Lease, ServiceError> {
        let is_made = |state: &DriverState| match state.lease.source {
            Source::Archive { .. } => !is_under_way(state),
            Source::Template | Source::Snapshot { .. } => state.lease.phase != Phase::Creating,
        };
        let long = match handle.lease().source {
            Source::Template => EndWait::Boot,
            Source::Snapshot { .. } => EndWait::Memory,
            Source::Archive { .. } => EndWait::Transfer,
        };
        let lease = self.until_within(handle.clone(), long, is_made).await?;
        match lease.phase {
            Phase::Running => Ok(lease.as_ref().clone()),
            Phase::Deleting | Phase::Deleted => Err(ServiceError::new(
                Code::PhaseConflict,
                format!("sandbox {} was deleted while it was created", lease.id),
            )),
            Phase::Failed => Err(failure(&handle, &lease)),
            // It ran and somebody already did something else with it, unless it never came so far.
            Phase::Creating
            | Phase::Pausing
            | Phase::Paused
            | Phase::Resuming
            | Phase::Stopping
            | Phase::Stopped
            | Phase::Starting
            | Phase::Archiving
            | Phase::Archived
            | Phase::Restoring => {
                let failed = handle.state.borrow().failure.clone();
                failed.map_or_else(|| Ok(lease.as_ref().clone()), Err)
            }
        }
    }
}

/// A sandbox that is about to be written down.
struct Planned {
    lease: Lease,
    seed: Option<Arc<Seed>>,
    hold: Option<VersionHold>,
    ready: Option<ReadyCheck>,
}

pub(crate) fn ending() -> ServiceError {
    ServiceError::new(Code::Internal, "the server is shutting down").retry_after(2)
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
            failure.hint(format!("sandbox {} has the reason; delete it when you no longer need it", lease.id))
        }
    }
}

fn reason_text(reason: &Reason) -> String {
    match reason {
        Reason::Requested => "as requested".to_owned(),
        Reason::Completed => "completed".to_owned(),
        Reason::TimedOut => "its timeout passed".to_owned(),
        Reason::Idle => "it was idle".to_owned(),
        Reason::Aged => "it was stopped for long".to_owned(),
        Reason::Woken => "a request needed it".to_owned(),
        Reason::Exit => "the server or thread it was bound to ended".to_owned(),
        Reason::Overdue => "it took too long".to_owned(),
        Reason::InstanceDied => "the instance ended by itself".to_owned(),
        Reason::LostWhileDown => "it no longer existed when the server restarted".to_owned(),
        Reason::Provider { message } => message.clone(),
    }
}

pub(crate) fn timeout_at(now: &Timestamp, seconds: u64) -> Timestamp {
    now.plus_ms(i64::try_from(seconds.saturating_mul(1_000)).unwrap_or(i64::MAX))
}
