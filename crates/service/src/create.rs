//! Creating a sandbox: checked, admitted, written down, made.

use std::collections::BTreeMap;
use std::sync::Arc;

use atoll_image::archive::About;
use atoll_model::{
    ArchiveRef, Code, CreateSandbox, DEFAULT_TAG, HeaderText, InstanceId, Intent, Lease, Limits, Moment,
    NetworkPolicy, Origin, Phase, Principal, ReadyCheck, Reason, SandboxId, Snapshot, Source, Stage, Storage,
    TemplateRef, TenantId, Timers,
};
use atoll_provider::Target;
use atoll_store::{Hash, NewLease};
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;

use crate::driver::{self, Born};
use crate::random::entropy;
use crate::registry::{Handle, State};
use crate::sandboxes::{Long, is_under_way};
use crate::service::Service;
use crate::snapshots::Seed;
use crate::templates::VersionHold;
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
        let Planned { lease, seed, hold, ready } = self.lease_for(who, &spec).await?;
        let template = lease.template.clone();
        let request = NewLease { idempotency: self.idempotency(&who.tenant, &spec), lease };
        let born = match self.reserve(&request.lease).await {
            Ok(()) => self.make(request, seed).await?,
            // Without room only an old answer can be given again: the repeated create may be what took the last place.
            Err(full) => Born::Replayed(Box::new(self.made_before(&request).await?.ok_or(full)?)),
        };
        // The row says from now on which version is needed.
        drop(hold);
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
            let hint = format!("sandbox {} runs; look at its logs, or delete it", lease.id);
            ServiceError { hint: Some(hint), ..late }
        })
    }

    pub(crate) async fn make(
        &self,
        request: NewLease,
        seed: Option<Arc<Seed>>,
    ) -> Result<Born, ServiceError> {
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

    /// What is brought from object storage needs its room when it starts.
    pub(crate) async fn reserve(&self, lease: &Lease) -> Result<(), ServiceError> {
        let inner = &self.inner;
        if !lease.holds_compute() {
            return Ok(());
        }
        Ok(inner.admission.reserve(inner.provider.as_ref(), &lease.id, &lease.limits).await?)
    }

    /// The lease of a new sandbox, and what it is made from.
    async fn lease_for(&self, who: &Principal, spec: &CreateSandbox) -> Result<Planned, ServiceError> {
        let mounts = self.mounts_of(who, &spec.mounts).await?;
        let Begun { base, seed, hold, ready } = self.base_of(who, spec).await?;
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
            mounts,
            build: spec.build.clone(),
        };
        crate::deadlines::check_possible(&self.inner.provider.capabilities(), &lease)?;
        Ok(Planned { lease, seed, hold, ready })
    }

    /// What a sandbox begins as before its own wishes.
    async fn base_of(&self, who: &Principal, spec: &CreateSandbox) -> Result<Begun, ServiceError> {
        match &spec.from {
            Origin::Template => self.base_of_template(who, spec).await,
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
                Ok(Begun { seed: Some(seed), ..Begun::of(Base::of_snapshot(snapshot, *memory)) })
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
                let hold = self.hold_digest(&about.template_version).ok();
                Ok(Begun { hold, ..Begun::of(Base::of_archive(archive, about)) })
            }
        }
    }

    async fn base_of_template(&self, who: &Principal, spec: &CreateSandbox) -> Result<Begun, ServiceError> {
        let word = spec.template.as_deref().unwrap_or(&self.inner.config.default_template);
        let exact = word.parse::<TemplateRef>().ok().filter(|exact| exact.digest.is_some());
        let found = match (&spec.image, exact) {
            (Some(image), _) => self.image_for(who, image).await?,
            // Steps of a build begin from what the step before made, which nobody names.
            (None, Some(exact)) if spec.build.is_some() => match self.resolve_version(&exact).await {
                Err(error) if error.code == Code::TemplateNotFound => {
                    self.resolve_template(who, word).await?
                }
                found => found?,
            },
            (None, _) => self.resolve_template(who, word).await?,
        };
        let limits = found
            .record
            .settings
            .limits
            .resolve(self.inner.config.default_limits)
            .map_err(|bad| ServiceError::new(Code::InvalidRequest, format!("the template's {bad}")))?;
        let mut base = Base::of_template(&found.record, limits);
        let ready = found.record.ready.clone().filter(|_| base.command.is_some() && spec.command.is_none());
        let Some(warm) = found.warm.filter(|_| self.can_start_warm(spec)) else {
            return Ok(Begun { base, seed: None, hold: Some(found.hold), ready });
        };
        match Seed::of(&self.inner, &warm, true).await {
            Ok(seed) => {
                base.source = Source::Snapshot { snapshot: warm, memory: true, fork: false };
                Ok(Begun { base, seed: Some(Arc::new(seed)), hold: Some(found.hold), ready: None })
            }
            // Slower, not worse.
            Err(error) => {
                tracing::warn!(template = word, %error, "the start of a template is not there; it boots");
                Ok(Begun { base, seed: None, hold: Some(found.hold), ready })
            }
        }
    }

    /// Whether processes that already run can be what was asked for.
    fn can_start_warm(&self, spec: &CreateSandbox) -> bool {
        self.inner.provider.capabilities().checkpoints
            && spec.storage == Storage::Disk
            && spec.command.is_none()
            && spec.user.is_none()
            && spec.mounts.is_empty()
            && spec.private_env.is_empty()
            && spec.build.is_none()
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

/// A sandbox that is about to be written down.
struct Planned {
    lease: Lease,
    seed: Option<Arc<Seed>>,
    hold: Option<VersionHold>,
    ready: Option<ReadyCheck>,
}

/// What a sandbox begins as.
struct Begun {
    base: Base,
    seed: Option<Arc<Seed>>,
    /// Keeps its files from being collected until the lease says that they are needed.
    hold: Option<VersionHold>,
    /// When what it starts is ready.
    ready: Option<ReadyCheck>,
}

impl Begun {
    const fn of(base: Base) -> Self {
        Self { base, seed: None, hold: None, ready: None }
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
        let mut env = template.env.clone();
        if let Some(port) = template.port {
            // Previews look there, and so do programs.
            env.entry("PORT".to_owned()).or_insert_with(|| port.to_string());
        }
        let name = match template.tag.as_deref() {
            Some(tag) if tag != DEFAULT_TAG => format!("{}:{tag}", template.name),
            Some(_) | None => template.name.clone(),
        };
        Self {
            template: name,
            template_version: template.version.clone(),
            env,
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

pub(crate) fn ending() -> ServiceError {
    ServiceError::new(Code::Internal, "the service is ending").retry_after(2)
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
