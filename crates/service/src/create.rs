//! Creating a sandbox: checked, admitted, written down, made.

use std::collections::BTreeMap;
use std::sync::Arc;

use atoll_image::archive::About;
use atoll_model::{
    ArchiveRef, Code, CreateSandbox, HeaderText, InstanceId, Intent, Lease, Limits, Moment, NetworkPolicy,
    Origin, Phase, Principal, Reason, SandboxId, Snapshot, Source, Stage, Storage, TenantId, Timers,
};
use atoll_store::{Hash, NewLease};
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;

use crate::driver::{self, Born};
use crate::random::entropy;
use crate::registry::{Handle, State};
use crate::sandboxes::{Long, is_under_way};
use crate::service::Service;
use crate::snapshots::Seed;
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
        let (lease, seed) = self.lease_for(who, &spec).await?;
        let template = lease.template.clone();
        let request = NewLease { idempotency: self.idempotency(&who.tenant, &spec), lease };
        let born = match self.reserve(&request.lease).await {
            Ok(()) => self.make(request, seed).await?,
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
        tracing::info!(sandbox = %handle.lease().id, template, ?created, "a sandbox was asked for");
        if !wait {
            return Ok((handle.lease().as_ref().clone(), created));
        }
        Ok((self.until_made(handle).await?, created))
    }

    pub(crate) async fn make(
        &self,
        request: NewLease,
        seed: Option<Arc<Seed>>,
    ) -> Result<Born, ServiceError> {
        let (reply, answer) = oneshot::channel();
        driver::birth(&self.inner, request, seed, reply);
        let ended = || ServiceError::new(Code::Internal, "the service is ending").retry_after(2);
        Ok(answer.await.map_err(|_| ended())??)
    }

    async fn made_before(&self, request: &NewLease) -> Result<Option<Lease>, ServiceError> {
        match &request.idempotency {
            Some((key, hash)) => Ok(self.inner.store.made_with(&request.lease.tenant, key, *hash).await?),
            None => Ok(None),
        }
    }

    /// What is brought from object storage needs its room when it starts.
    pub(crate) async fn reserve(&self, lease: &Lease) -> Result<(), ServiceError> {
        let inner = &self.inner;
        if !lease.holds_compute() {
            return Ok(());
        }
        Ok(inner.admission.reserve(inner.provider.as_ref(), &lease.id, &lease.limits).await?)
    }

    /// The lease of a new sandbox, and the snapshot that it is made from.
    async fn lease_for(
        &self,
        who: &Principal,
        spec: &CreateSandbox,
    ) -> Result<(Lease, Option<Arc<Seed>>), ServiceError> {
        let (base, seed) = self.base_of(who, spec).await?;
        let network = spec.network.clone().or(base.network).unwrap_or_default();
        let network = self.admitted(&who.tenant, network, None).await?;
        let now = self.inner.clock.now();
        let limits = spec
            .limits
            .resolve(base.limits)
            .map_err(|bad| ServiceError::new(Code::InvalidRequest, bad.to_string()))?;
        let mut env = base.env;
        env.extend(spec.env.clone());
        let user = spec.user.clone().unwrap_or_else(|| base.user.clone());
        let workdir = if user == "root" && base.user != "root" { "/root".to_owned() } else { base.workdir };
        let from_archive = matches!(base.source, Source::Archive { .. });
        let lease = Lease {
            id: SandboxId::from_entropy(entropy()?),
            tenant: who.tenant.clone(),
            name: spec.name.clone(),
            labels: spec.labels.clone(),
            env,
            provider: self.inner.provider.name().to_owned(),
            template: base.template,
            template_version: base.template_version,
            user,
            workdir,
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
            mounts: Vec::new(),
            build: spec.build.clone(),
        };
        crate::deadlines::check_possible(&self.inner.provider.capabilities(), &lease)?;
        Ok((lease, seed))
    }

    /// What a sandbox begins as before its own wishes.
    async fn base_of(
        &self,
        who: &Principal,
        spec: &CreateSandbox,
    ) -> Result<(Base, Option<Arc<Seed>>), ServiceError> {
        match &spec.from {
            Origin::Template => {
                let name = spec.template.as_deref().unwrap_or(&self.inner.config.default_template);
                let template = self.inner.templates.resolve(&self.inner, name).await?;
                Ok((Base::of_template(&template, self.inner.config.default_limits), None))
            }
            Origin::Snapshot { snapshot, memory } => {
                let snapshot = self.get_snapshot(who, snapshot).await?;
                refuse_other_template(spec, &snapshot.template)?;
                let for_memory = |message: &str| {
                    Err(ServiceError::new(Code::InvalidRequest, message).hint("leave memory out"))
                };
                if *memory && !snapshot.memory {
                    return for_memory("memory: the snapshot holds files only");
                }
                if *memory && spec.storage == Storage::Memory {
                    return for_memory("memory: needs storage disk");
                }
                let seed = Arc::new(Seed::of(&self.inner, &snapshot.id, *memory).await?);
                Ok((Base::of_snapshot(snapshot, *memory), Some(seed)))
            }
            Origin::Archive { key } => {
                let (archive, about) = self.archived(who, key).await?;
                refuse_other_template(spec, &about.template)?;
                if spec.storage == Storage::Memory {
                    return Err(ServiceError::new(
                        Code::InvalidRequest,
                        "storage: an archive can be brought back to disk only",
                    ));
                }
                // Its files lie on that very version: who has another one need not wait for the download.
                self.inner.templates.need(&self.inner, &about.template, &about.template_version).await?;
                Ok((Base::of_archive(archive, about), None))
            }
        }
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
        let is_made = |state: &State| match state.lease.source {
            Source::Archive { .. } => !is_under_way(state),
            Source::Template | Source::Snapshot { .. } => state.lease.phase != Phase::Creating,
        };
        let long = match handle.lease().source {
            Source::Template => Long::Boot,
            Source::Snapshot { .. } => Long::Memory,
            Source::Archive { .. } => Long::Transfer,
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

/// What a template, a snapshot or an archive says of the sandbox to be made.
struct Base {
    template: String,
    template_version: String,
    env: BTreeMap<String, String>,
    user: String,
    workdir: String,
    command: Option<Vec<String>>,
    limits: Limits,
    network: Option<NetworkPolicy>,
    source: Source,
    parent: Option<SandboxId>,
}

impl Base {
    fn of_template(template: &TemplateRecord, limits: Limits) -> Self {
        Self {
            template: template.name.clone(),
            template_version: template.version.clone(),
            env: template.env.clone(),
            user: template.user.clone(),
            workdir: template.workdir.clone(),
            command: template.command.clone(),
            limits,
            network: None,
            source: Source::Template,
            parent: None,
        }
    }

    fn of_snapshot(snapshot: Snapshot, memory: bool) -> Self {
        Self {
            template: snapshot.template,
            template_version: snapshot.template_version,
            env: snapshot.env,
            user: snapshot.user,
            workdir: snapshot.workdir,
            command: snapshot.command,
            limits: snapshot.limits,
            network: Some(snapshot.network),
            source: Source::Snapshot { snapshot: snapshot.id, memory, fork: false },
            parent: Some(snapshot.sandbox),
        }
    }

    fn of_archive(archive: ArchiveRef, about: About) -> Self {
        Self {
            template: about.template,
            template_version: about.template_version,
            env: about.env,
            user: about.user,
            workdir: about.workdir,
            command: about.command,
            limits: about.limits,
            network: None,
            source: Source::Archive { archive },
            parent: Some(about.sandbox),
        }
    }
}

/// A snapshot or an archive lies on its own template; another one beneath it would show other files.
fn refuse_other_template(spec: &CreateSandbox, template: &str) -> Result<(), ServiceError> {
    match &spec.template {
        Some(asked) if asked != template => Err(ServiceError::new(
            Code::InvalidRequest,
            format!("template: this one was made from template {template}"),
        )
        .hint("leave template out")),
        Some(_) | None => Ok(()),
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
        Reason::Idle => "it was idle".to_owned(),
        Reason::Aged => "it was stopped for long".to_owned(),
        Reason::Woken => "a request needed it".to_owned(),
        Reason::Exit => "what it was bound to ended".to_owned(),
        Reason::Overdue => "it took too long".to_owned(),
        Reason::InstanceDied => "the instance ended by itself".to_owned(),
        Reason::LostWhileDown => "it was gone when the server came back".to_owned(),
        Reason::Provider { message } => message.clone(),
    }
}

pub(crate) fn timeout_at(now: &Moment, seconds: u64) -> Moment {
    now.plus_ms(i64::try_from(seconds.saturating_mul(1_000)).unwrap_or(i64::MAX))
}
