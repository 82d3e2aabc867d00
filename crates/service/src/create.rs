//! Creates a sandbox: checks, admits, records and makes it.

mod base;
mod image;
mod queue;

use std::collections::BTreeMap;
use std::sync::Arc;

use atoll_model::{
    AwaitedImage, Code, CreateSandbox, HeaderText, InstanceId, Intent, Lease, Limits, NetworkPolicy, OnExit,
    Origin, Phase, Principal, QueueAsk, QueueWait, ReadyCheck, Reason, SandboxId, Source, Stage,
    StartRequest, TenantId, Timers, Timestamp,
};
use atoll_provider::{Capability, Target};
use atoll_store::{Hash, NewLease};
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;

use crate::activity::ActivityKind;
use crate::base::shutting_down;
use crate::driver::{self, Action, CreationOutcome, DriverMessage};
use crate::random::entropy;
use crate::registry::{DriverState, Handle};
use crate::sandboxes::{EndWait, Sandboxes, is_under_way, tell};
use crate::snapshots::Seed;
use crate::templates::VersionHold;
use crate::{CreateWait, Created, ServiceError};
pub(crate) use base::{CreationBase, use_workspace};
pub(crate) use image::ImageWait;
use queue::QueueEntry;
pub(crate) use queue::{PlaceQueue, queue_timed_out, queued_create};

/// LIMIT: a caller waits so long until a refused sandbox is deleted; nothing of it was made, and a driver deletes it at once.
const FORGOTTEN_WITHIN: std::time::Duration = std::time::Duration::from_secs(5);

impl Sandboxes {
    /// Creates a sandbox. With `wait` it returns when the sandbox runs, or with the reason why it does not; otherwise
    /// once it is recorded. The caller may disconnect at any time: the driver completes the create.
    pub async fn create(
        &self,
        who: &Principal,
        spec: CreateSandbox,
        wait: impl Into<CreateWait>,
    ) -> Result<(Lease, Created), ServiceError> {
        let wait = wait.into();
        spec.check()?;
        let idempotency = self.idempotency(&who.tenant, &spec);
        let spec = match self.thread_of(who, &spec).await? {
            None => spec,
            Some(thread) => {
                // A request with a key may be a repeated one: the store decides.
                if let (Some((sandbox, _)), None) = (&thread.sandbox, &idempotency)
                    && let Some(lease) = self.current(sandbox).await?
                {
                    return self.bound(lease, wait.until_made).await;
                }
                CreateSandbox { provider: Some(thread.provider), ..spec }
            }
        };
        // Before the provider is asked for an image. A snapshot is checked with the provider that keeps it.
        let is_kept = matches!(spec.from, Origin::Snapshot { .. } | Origin::Archive { .. });
        if spec.build.is_none() && (spec.provider.is_some() || !is_kept) {
            let provider = self.inner.providers.requested(spec.provider.as_deref())?;
            self.inner.providers.check(who, provider.as_ref())?;
        }
        let image = match self.missing_image(who, &spec).await? {
            None => self.missing_template(who, &spec, wait).await?,
            image => image,
        };
        self.create_waiting(who, spec, idempotency, image, wait.until_made).await
    }

    /// A sandbox as its driver knows it, else as it is stored.
    async fn current(&self, sandbox: &SandboxId) -> Result<Option<Lease>, ServiceError> {
        let driven = self.inner.registry.get(sandbox).map(|handle| handle.lease());
        match driven.filter(|lease| !lease.phase.is_gone()) {
            Some(lease) => Ok(Some(lease.as_ref().clone())),
            None => Ok(self.inner.store.lease(sandbox).await?),
        }
    }

    /// Creates a sandbox which, with `image`, waits for that first.
    async fn create_waiting(
        &self,
        who: &Principal,
        spec: CreateSandbox,
        idempotency: Option<(String, Hash)>,
        image: Option<ImageWait>,
        wait: bool,
    ) -> Result<(Lease, Created), ServiceError> {
        let awaited = image.is_some();
        let Planned { lease, seed, hold, mut ready } = self.lease_for(who, &spec, image.as_ref()).await?;
        let template = lease.template.clone();
        let request = NewLease { idempotency, lease };
        let born = match self.admit(&request.lease).await {
            Ok(entry) => self.make(NewSandbox { request, seed, image, entry }).await?,
            // Without capacity only an earlier result can be returned: the repeated create may be the one that took the
            // last place.
            Err(full) => self.made_before(&request).await?.ok_or(full)?,
        };
        // From now on the row records which version is needed.
        drop(hold);
        let (handle, created) = match born {
            CreationOutcome::New(handle) => (handle, Created::New),
            CreationOutcome::Replayed(before) => {
                let Some(handle) = self.inner.registry.get(&before.id) else {
                    return Ok((*before, Created::Replayed));
                };
                (handle, Created::Replayed)
            }
            CreationOutcome::Bound(lease) => return self.bound(*lease, wait).await,
        };
        tracing::info!(sandbox = %handle.lease().id, template, ?created, "a sandbox was requested");
        if !wait {
            return Ok((self.inner.queue.shown(&handle.lease()), created));
        }
        let lease = match self.until_made(handle.clone()).await {
            Ok(lease) => lease,
            Err(refused) => {
                forget_refused(handle, &refused).await;
                return Err(refused);
            }
        };
        if awaited {
            ready = self.base_of(who, &spec).await.ok().and_then(|base| base.ready);
        }
        if let Some(check) = ready.filter(|_| created == Created::New) {
            self.until_ready(&handle, &check).await?;
        }
        Ok((lease, created))
    }

    /// Waits until the start command of the template is ready.
    async fn until_ready(&self, handle: &Handle, check: &ReadyCheck) -> Result<(), ServiceError> {
        let session = self.session_by(handle.clone(), ActivityKind::Request).await?;
        let (lease, agent) = (Arc::clone(&session.lease), session.agent().await?);
        let target = Target { sandbox: lease.id.clone(), instance: lease.instance.clone() };
        let provider = self.inner.providers.of(&lease)?;
        let looked = crate::build::ready::Looked { provider: &provider, target, agent: &agent };
        let deadline = tokio::time::Instant::now() + self.inner.config.create_wait;
        let ready = crate::build::ready::until_ready(&looked, check, deadline).await;
        ready.map_err(|late| {
            let hint = format!("sandbox {} runs; check its logs, or delete it", lease.id);
            ServiceError { hint: Some(hint), ..late }
        })
    }

    pub(crate) async fn make(&self, sandbox: NewSandbox) -> Result<CreationOutcome, ServiceError> {
        let provider = self.inner.providers.of(&sandbox.request.lease)?;
        let (reply, answer) = oneshot::channel();
        driver::birth(&self.inner, provider, sandbox, reply);
        Ok(answer.await.map_err(|_| shutting_down())??)
    }

    async fn made_before(&self, request: &NewLease) -> Result<Option<CreationOutcome>, ServiceError> {
        let (store, lease) = (&self.inner.store, &request.lease);
        if let Some((key, hash)) = &request.idempotency
            && let Some(before) = store.made_with(&lease.tenant, key, *hash).await?
        {
            return Ok(Some(CreationOutcome::Replayed(Box::new(before))));
        }
        let Some(thread) = &lease.thread else { return Ok(None) };
        let found = store.find_thread(Some(&lease.tenant), thread).await?;
        let Some((sandbox, _)) = found.into_iter().find_map(|thread| thread.sandbox) else { return Ok(None) };
        let bound = store.lease(&sandbox).await?;
        Ok(bound.map(|bound| CreationOutcome::Bound(Box::new(bound))))
    }

    /// Promises room for a new sandbox, or gives it a position in the queue if it may wait.
    async fn admit(&self, lease: &Lease) -> Result<Option<QueueEntry>, ServiceError> {
        if lease.waits_for_place() {
            return self.queued(lease).await.map(Some);
        }
        self.refuse_overtaking(lease)?;
        self.reserve(lease).await.map(|()| None)
    }

    /// A sandbox from object storage needs room for its files now, and memory when it starts.
    pub(crate) async fn reserve(&self, lease: &Lease) -> Result<(), ServiceError> {
        let (inner, provider) = (&self.inner, self.inner.providers.of(lease)?);
        if !inner.disk.takes_records() {
            return Err(atoll_store::StoreError::NoSpace.into());
        }
        self.admit_beside_uploads(lease).await?;
        match lease.holds_compute() {
            true => Ok(inner.admission.reserve(provider.as_ref(), lease).await?),
            false => Ok(inner.admission.reserve_files(provider.as_ref(), lease).await?),
        }
    }

    /// The lease of a new sandbox, and its source.
    async fn lease_for(
        &self,
        who: &Principal,
        spec: &CreateSandbox,
        image: Option<&ImageWait>,
    ) -> Result<Planned, ServiceError> {
        let provider = self.inner.providers.requested(spec.provider.as_deref())?;
        let CreationBase { base, seed, hold, ready } = match image {
            Some(image) => image.base(spec),
            None => self.base_of(who, spec).await?,
        };
        // A snapshot stays at the provider that keeps it.
        let provider =
            base.provider.as_ref().map_or(Ok(provider), |name| self.inner.providers.named(name))?;
        // Steps of a build run where the server builds, whatever their tenant may use.
        if spec.build.is_none() {
            self.inner.providers.check(who, provider.as_ref())?;
        }
        let mounts = self.inner.volumes.mounts_of(who, &provider, &spec.mounts).await?;
        let network = spec.network.clone().or(base.network.clone()).unwrap_or_default();
        let network = self.admitted(&who.tenant, network, None).await?;
        crate::egress::check_enforced(provider.as_ref(), &network, !spec.secrets.is_empty())?;
        let secrets = crate::egress::attached(&self.inner, &who.tenant, &spec.secrets).await?;
        let limits = spec.limits.resolve(base.limits)?;
        let start = StartRequest {
            user: spec.user.clone(),
            workdir: spec.workdir.clone(),
            command: spec.command.clone(),
            entrypoint: spec.entrypoint,
        };
        let from_archive = matches!(base.source, Source::Archive { .. });
        let mut lease = Lease {
            limits,
            network,
            mounts,
            secrets,
            // A download of files has its own phase, with its own deadline.
            phase: if from_archive { Phase::Restoring } else { Phase::Creating },
            stage: if image.is_some() || spec.queue.is_some() { Stage::Queued } else { Stage::Booting },
            image_build: image.and_then(ImageWait::build),
            awaits: image.map(|_| AwaitedImage { requested_by: who.clone(), start: start.clone() }),
            provider: provider.name().to_owned(),
            on_exit: match (spec.on_exit, &spec.thread) {
                (Some(on_exit), _) => on_exit,
                (None, Some(_)) => self.inner.providers.on_exit_of(provider.as_ref()),
                (None, None) => OnExit::Keep,
            },
            follows_provider_exit: spec.on_exit.is_none() && spec.thread.is_some(),
            isolation: provider.description().isolation,
            ..self.requested(who, spec)?
        };
        if lease.phase == Phase::Creating && !lease.waits_to_boot() {
            lease.instance = Some(InstanceId::from_entropy(entropy()?));
        }
        if lease.waits_to_boot() {
            // Its lifetime begins with the boot.
            lease.timeout_at = None;
        }
        if let Some(user) = &spec.user
            && !base.has_user(user)
            && !provider.capabilities().users
        {
            return Err(provider.missing(Capability::User).into());
        }
        base.apply_to(&mut lease, &start);
        use_workspace(&mut lease, provider.as_ref());
        crate::deadlines::check_possible(provider.as_ref(), &lease)?;
        crate::egress::check_demands(&self.inner, provider.as_ref(), &lease, &spec.limits).await?;
        Ok(Planned { lease, seed, hold, ready })
    }

    /// The lease of a new sandbox, as far as the request determines it.
    fn requested(&self, who: &Principal, spec: &CreateSandbox) -> Result<Lease, ServiceError> {
        let now = self.inner.clock.now();
        Ok(Lease {
            id: SandboxId::from_entropy(entropy()?),
            tenant: who.tenant.clone(),
            name: spec.name.clone(),
            labels: spec.labels.clone(),
            env: spec.env.clone(),
            provider: String::new(),
            node: self.inner.store.node().clone(),
            template: String::new(),
            template_version: String::new(),
            user: String::new(),
            workdir: String::new(),
            command: None,
            command_failure: None,
            limits: Limits::default(),
            network: NetworkPolicy::default(),
            storage: spec.storage,
            intent: Intent::Run,
            phase: Phase::Creating,
            stage: Stage::Booting,
            reason: Reason::Requested,
            generation: 1,
            instance: None,
            timeout_s: spec.timeout_s,
            timeout_at: spec.timeout_s.map(|s| timeout_at(&now, s)),
            on_timeout: spec.on_timeout,
            timeout_counts: spec.timeout_counts,
            created_at: now.clone(),
            phase_at: now.clone(),
            held: None,
            timers: spec.timers.resolve(Timers::default())?,
            active_at: None,
            stopped_at: None,
            hold: None,
            on_exit: OnExit::Keep,
            follows_provider_exit: false,
            thread: spec.thread.clone(),
            wake: spec.wake,
            source: Source::Template,
            parent: None,
            private_env: spec.private_env.clone(),
            archive: None,
            rollback_to: None,
            resizing: false,
            mounts: Vec::new(),
            build: spec.build.clone(),
            public: spec.public,
            token_epoch: 0,
            mask_host: spec.mask_host.clone(),
            https_ports: spec.https_ports.clone(),
            annotations: spec.annotations.clone(),
            secrets: BTreeMap::new(),
            started_at: None,
            image_build: None,
            awaits: None,
            moving: None,
            last_move: None,
            queue: spec.queue.map(|ask| self.queue_wait(ask, &now)),
            isolation: atoll_model::Isolation::Container,
            created_by_key: who.as_creator(&who.tenant),
        })
    }

    fn queue_wait(&self, ask: QueueAsk, now: &Timestamp) -> QueueWait {
        let seconds = ask.timeout_s.unwrap_or(self.inner.config.queue_timeout.as_secs());
        QueueWait { until: timeout_at(now, seconds), timed_out_at: None, place: None }
    }

    /// What makes two requests the same: everything but the key itself. Maps are sorted, so the text is canonical.
    /// Values that are never printed count too, under a key of this server: the hash is stored, and must not allow
    /// guessing them.
    pub(crate) fn idempotency(&self, tenant: &TenantId, spec: &CreateSandbox) -> Option<(String, Hash)> {
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

    /// Waits for the end of a creation, up to a limit.
    pub(crate) async fn until_made(&self, handle: Handle) -> Result<Lease, ServiceError> {
        let is_made = |state: &DriverState| match state.lease.source {
            Source::Archive { .. } => !is_under_way(state),
            Source::Template | Source::Snapshot { .. } => state.lease.phase != Phase::Creating,
        };
        if handle.lease().waits_for_place() {
            self.until_placed(handle.clone()).await?;
        }
        if handle.lease().waits_for_image() {
            self.until_image(handle.clone()).await?;
        }
        let long = match handle.lease().source {
            Source::Template => EndWait::Boot,
            Source::Snapshot { .. } => EndWait::Memory,
            Source::Archive { .. } => EndWait::Transfer,
        };
        let lease = self.until_within(handle.clone(), long, is_made).await?;
        match lease.phase {
            Phase::Running => Ok(lease.as_ref().clone()),
            Phase::Deleting | Phase::Deleted if lease.queue.is_some() => Err(not_placed(&lease)),
            Phase::Deleting | Phase::Deleted => Err(ServiceError::new(
                Code::PhaseConflict,
                format!("sandbox {} was deleted while it was created", lease.id),
            )),
            Phase::Failed if lease.awaits.is_some() => Err(known_failure(&handle, &lease)),
            Phase::Failed => Err(failure(&handle, &lease)),
            // It ran and another request already changed it, unless it never ran.
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

/// Everything that a new sandbox begins with.
pub(crate) struct NewSandbox {
    pub(crate) request: NewLease,
    pub(crate) seed: Option<Arc<Seed>>,
    /// It waits for this image first.
    pub(crate) image: Option<ImageWait>,
    /// It waits for a place before everything else.
    pub(crate) entry: Option<QueueEntry>,
}

impl NewSandbox {
    /// A sandbox that is made at once.
    pub(crate) const fn at_once(request: NewLease, seed: Option<Arc<Seed>>) -> Self {
        Self { request, seed, image: None, entry: None }
    }
}

/// A sandbox that is about to be recorded.
struct Planned {
    lease: Lease,
    seed: Option<Arc<Seed>>,
    hold: Option<VersionHold>,
    ready: Option<ReadyCheck>,
}

/// Why a sandbox failed, as its driver knows it, otherwise as the lease says.
pub(crate) fn failure(handle: &Handle, lease: &Arc<Lease>) -> ServiceError {
    let failure = known_failure(handle, lease);
    match failure.hint {
        Some(_) => failure,
        None => {
            failure.hint(format!("sandbox {} has the reason; delete it when you no longer need it", lease.id))
        }
    }
}

/// Why a queued create was deleted before it had a place.
fn not_placed(lease: &Lease) -> ServiceError {
    match &lease.queue {
        Some(QueueWait { timed_out_at: Some(_), .. }) => queue_timed_out(lease),
        Some(_) | None => {
            let message = format!("sandbox {} was deleted while it was queued", lease.id);
            ServiceError::new(Code::PhaseConflict, message)
        }
    }
}

fn known_failure(handle: &Handle, lease: &Lease) -> ServiceError {
    let known = handle.state.borrow().failure.clone();
    known.unwrap_or_else(|| {
        let message = format!("sandbox {} failed: {}", lease.id, reason_text(&lease.reason));
        ServiceError::new(Code::Internal, message)
    })
}

/// Deletes a sandbox that was refused before it ran: the waiting caller receives the reason, and the sandbox has nothing worth
/// keeping. Its name is free when this returns.
async fn forget_refused(mut handle: Handle, refused: &ServiceError) {
    let lease = handle.lease();
    let is_refusal = matches!(
        refused.code,
        Code::NoCapacity | Code::DiskFull | Code::InvalidArgument | Code::Unsupported | Code::Forbidden
    );
    let has_run = lease.started_at.is_some();
    if lease.phase != Phase::Failed || has_run || !(is_refusal || lease.awaits.is_some()) {
        return;
    }
    let (reply, _) = oneshot::channel();
    let delete = DriverMessage::verb(Action::Delete, Reason::Completed, reply);
    if let Err(error) = tell(&handle, delete) {
        tracing::warn!(sandbox = %lease.id, %error, "a refused sandbox could not be deleted");
        return;
    }
    let is_gone = handle.state.wait_for(|state| state.lease.phase == Phase::Deleted);
    if tokio::time::timeout(FORGOTTEN_WITHIN, is_gone).await.is_err() {
        tracing::warn!(sandbox = %lease.id, "a refused sandbox is not deleted yet");
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
        Reason::QueueTimedOut => "no place was free in time".to_owned(),
        Reason::InstanceDied => "the instance ended by itself".to_owned(),
        Reason::LostWhileDown => "it no longer existed when the server restarted".to_owned(),
        Reason::ImageUnavailable { message } | Reason::Provider { message } => message.clone(),
    }
}

pub(crate) fn timeout_at(now: &Timestamp, seconds: u64) -> Timestamp {
    now.plus_ms(i64::try_from(seconds.saturating_mul(1_000)).unwrap_or(i64::MAX))
}
