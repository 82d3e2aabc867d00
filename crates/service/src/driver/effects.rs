//! The effects of a driver at the provider. Each effect runs in a task of its own and returns a numbered [`Done`]; the
//! next effect waits for the one before, so a destroy never races the create that it undoes.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use atoll_agentapi::AgentClient;
use atoll_model::policy::egress::Egress;
use atoll_model::{ArchiveRef, Code, InstanceId, Intent, Lease, MemoryLocation, Source};
use atoll_provider::{
    Booted, FilesOrigin, InstanceMount, InstanceSpec, Provider, ProviderError, RolledBack, Target,
};
use atoll_store::InstanceRow;
use futures::FutureExt;
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::Driver;
use super::take_snapshot::SnapshotJob;
use crate::ServiceError;
use crate::agent::{StartedCommand, Tokens};
use crate::company::Inside;
use crate::moving::{MoveOutcome, MovePlan};
use crate::sandboxes::SandboxesState;
use crate::snapshots::Seed;
use crate::timed::timed;

/// LIMIT: how long an effect that ends an instance waits for the effect before it; then that one is dropped. `destroy`
/// is permitted in the middle of `create`.
const PREDECESSOR: Duration = Duration::from_secs(5);
/// LIMIT: the same for an effect that changes nothing if it is dropped in the middle: writing memory or files away.
const DROPPABLE: Duration = Duration::from_millis(100);
/// LIMIT: how long an effect that was asked to end may take to clean up.
const CLEANS_UP: Duration = Duration::from_secs(2);
/// LIMIT: how long a copy that was asked to end may take to end its instances and to remove what it made.
const ENDS_COPY: Duration = Duration::from_secs(90);
/// LIMIT: how long an effect waits for a long one before it; the deadline of its phase is earlier.
const IN_TURN: Duration = Duration::from_secs(6 * 3_600);

/// LIMIT: how long an upload waits for the removal of the archive before it.
const TIDIES: Duration = Duration::from_secs(60);

/// An effect at the provider.
#[derive(Debug, Clone)]
pub(super) enum Work {
    Create,
    Boot,
    /// Freeze the instance; then, if requested, write its memory to disk.
    Freeze {
        disk: bool,
    },
    Checkpoint,
    Resume,
    /// From its own checkpoint; `made`: an earlier server progressed so far that the instance exists with these facts.
    Restore {
        made: Option<Value>,
    },
    Archive,
    /// Remove the local files, which are in object storage.
    ClearFiles,
    Unarchive,
    Rollback,
    /// Copy the files to another provider and compare them.
    Move,
    /// Remove what an interrupted copy left at the other provider.
    AbortMove,
    Snapshot(Arc<SnapshotJob>),
    Halt {
        instance: Option<InstanceId>,
    },
    Destroy,
}

/// An effect that has not returned yet.
pub(super) struct UnderWay {
    pub(super) number: u64,
    droppable: bool,
    stop: CancellationToken,
    task: JoinHandle<Option<()>>,
}

/// The result of an effect.
pub(super) struct Done {
    pub(super) number: u64,
    pub(super) instance: Option<InstanceId>,
    pub(super) outcome: Outcome,
}

pub(super) enum Outcome {
    Booted {
        row: InstanceRow,
        agent: AgentClient,
        command: StartedCommand,
        from_pool: bool,
    },
    NotBooted(ServiceError),
    Frozen(Result<MemoryLocation, ServiceError>),
    Checkpointed(Result<(), ServiceError>),
    Resumed(Result<(), ServiceError>),
    Restored {
        row: InstanceRow,
        agent: AgentClient,
    },
    /// `made`: its processes run, but its agent did not answer.
    NotRestored {
        failure: ServiceError,
        made: Option<Value>,
    },
    Archived(Result<ArchiveRef, ServiceError>),
    Cleared(Result<(), ServiceError>),
    Unarchived(Result<(), ServiceError>),
    RolledBack(Result<RolledBack, ServiceError>),
    Copied(Result<MoveOutcome, ServiceError>),
    Snapshotted,
    Halted(Result<(), ServiceError>),
    Destroyed(Result<(), ServiceError>),
    /// The instance no longer exists.
    Gone,
}

/// The data that an effect has about its sandbox.
pub(super) struct EffectJob {
    pub(super) inner: Arc<SandboxesState>,
    pub(super) provider: Arc<dyn Provider>,
    pub(super) lease: Lease,
    pub(super) row: Option<InstanceRow>,
    seed: Option<Arc<Seed>>,
    pub(super) plan: Option<Arc<MovePlan>>,
    /// Whether objects of it may be in object storage that the lease does not name.
    pub(super) uploads: bool,
    pub(super) stop: CancellationToken,
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
        let stop = CancellationToken::new();
        let job = EffectJob {
            inner: Arc::clone(&self.inner),
            provider: Arc::clone(&self.provider),
            lease: self.lease.clone(),
            row: self.row.clone(),
            seed: self.seed.clone(),
            plan: self.moving.as_ref().map(|active| Arc::clone(&active.plan)),
            uploads: self.uploads,
            stop: stop.clone(),
        };
        // An upload must not run at the same time as a removal of the same names.
        let tidying = if matches!(work, Work::Archive) { self.tidying.take() } else { None };
        let done = self.done_in.clone();
        let droppable = work.is_droppable();
        let task = self.inner.spawn(async move {
            if let Some(before) = before {
                before.settle(&work).await;
            }
            if let Some(mut tidying) = tidying
                && tokio::time::timeout(TIDIES, &mut tidying).await.is_err()
            {
                tidying.abort();
                let _ = tidying.await;
            }
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            let instance = match &work {
                Work::Halt { instance } => instance.clone(),
                _ => job.lease.instance.clone(),
            };
            let outcome = guarded(&job, &work).await;
            job.inner.failpoint.reach("effect.after").await;
            // The driver may have ended with the server; the next start reads the state from the provider.
            let _ = done.send(Done { number, instance, outcome }).await;
        });
        self.under_way = Some(UnderWay { number, droppable, stop, task });
    }

    /// Asks the current effect to end early, if that is harmless.
    pub(super) fn cut_short(&self) {
        if let Some(current) = self.under_way.as_ref().filter(|current| current.droppable) {
            current.stop.cancel();
        }
    }
}

impl Work {
    /// Whether it changes nothing if it is dropped in the middle.
    const fn is_droppable(&self) -> bool {
        match self {
            Self::Checkpoint
            | Self::Freeze { disk: true }
            | Self::Archive
            | Self::Unarchive
            | Self::Move
            | Self::Snapshot(_)
            | Self::ClearFiles => true,
            Self::Create
            | Self::Boot
            | Self::Freeze { disk: false }
            | Self::Resume
            | Self::Restore { .. }
            | Self::Rollback
            | Self::AbortMove
            | Self::Halt { .. }
            | Self::Destroy => false,
        }
    }

    /// Whether it ends the instance.
    const fn is_end(&self) -> bool {
        matches!(self, Self::Halt { .. } | Self::Destroy)
    }
}

impl UnderWay {
    /// Waits until it ends, up to the limit for `next`.
    async fn settle(mut self, next: &Work) {
        let patience = match (next, self.droppable) {
            (Work::AbortMove, is_copy) => {
                if is_copy {
                    self.stop.cancel();
                }
                ENDS_COPY
            }
            (next, true) if next.is_end() => DROPPABLE,
            (next, false) if next.is_end() => PREDECESSOR,
            (_, _) => IN_TURN,
        };
        if tokio::time::timeout(patience, &mut self.task).await.is_ok() {
            return;
        }
        self.stop.cancel();
        let ended = self.droppable && tokio::time::timeout(CLEANS_UP, &mut self.task).await.is_ok();
        if !ended {
            self.task.abort();
            let _ = self.task.await;
        }
    }
}

/// A panic of the provider counts as a failure; the driver continues.
async fn guarded(job: &EffectJob, work: &Work) -> Outcome {
    let run = AssertUnwindSafe(perform(job, work)).catch_unwind();
    run.await.unwrap_or_else(|_| {
        failed(work, ServiceError::new(Code::Internal, "the provider failed with an internal error"))
    })
}

fn failed(work: &Work, failure: ServiceError) -> Outcome {
    match work {
        Work::Create | Work::Boot => Outcome::NotBooted(failure),
        Work::Freeze { .. } => Outcome::Frozen(Err(failure)),
        Work::Checkpoint => Outcome::Checkpointed(Err(failure)),
        Work::Resume => Outcome::Resumed(Err(failure)),
        Work::Restore { .. } => Outcome::NotRestored { failure, made: None },
        Work::Archive => Outcome::Archived(Err(failure)),
        Work::ClearFiles => Outcome::Cleared(Err(failure)),
        Work::Unarchive => Outcome::Unarchived(Err(failure)),
        Work::Rollback => Outcome::RolledBack(Err(failure)),
        Work::Move | Work::AbortMove => Outcome::Copied(Err(failure)),
        Work::Snapshot(_) => Outcome::Snapshotted,
        Work::Halt { .. } => Outcome::Halted(Err(failure)),
        Work::Destroy => Outcome::Destroyed(Err(failure)),
    }
}

async fn perform(job: &EffectJob, work: &Work) -> Outcome {
    let (inner, lease) = (&job.inner, &job.lease);
    let provider = &job.provider;
    inner.failpoint.reach("effect.before").await;
    match work {
        Work::Create | Work::Boot => boot(job, matches!(work, Work::Create)).await,
        Work::Freeze { disk } => match freeze(job, *disk).await {
            Err(ProviderError::Gone { .. }) => Outcome::Gone,
            ended => Outcome::Frozen(ended.map_err(Into::into)),
        },
        Work::Checkpoint => match checkpoint(job).await {
            Err(ProviderError::Gone { .. }) => Outcome::Gone,
            ended => Outcome::Checkpointed(ended.map_err(Into::into)),
        },
        Work::Resume => resume(job).await,
        Work::Restore { made } => restore(job, made.clone()).await,
        Work::Archive => Outcome::Archived(job.archive().await),
        Work::ClearFiles => {
            let target = Target { sandbox: lease.id.clone(), instance: None };
            let cleared = gone_is_fine(provider.destroy(&target).await);
            inner.failpoint.reach("archive.local_removed").await;
            Outcome::Cleared(cleared)
        }
        Work::Unarchive => Outcome::Unarchived(job.unarchive().await),
        Work::Rollback => Outcome::RolledBack(rollback(job).await),
        Work::Move => Outcome::Copied(job.copy_to_other().await),
        Work::AbortMove => {
            job.abort_copy().await;
            Outcome::Copied(Err(ServiceError::new(Code::SandboxUnavailable, "the move was interrupted")))
        }
        Work::Snapshot(wanted) => {
            job.snapshot(wanted).await;
            Outcome::Snapshotted
        }
        Work::Halt { instance } => {
            let target = Target { sandbox: lease.id.clone(), instance: instance.clone() };
            Outcome::Halted(gone_is_fine(provider.halt(&target).await))
        }
        Work::Destroy => {
            let destroyed = gone_is_fine(provider.destroy(&job.target()).await);
            let destroyed = match destroyed {
                Ok(()) => job.destroy_other().await,
                failed => failed,
            };
            Outcome::Destroyed(match destroyed {
                Ok(()) => {
                    crate::egress::log::remove(inner, &lease.id).await;
                    job.forget_objects().await
                }
                failed => failed,
            })
        }
    }
}

pub(super) fn gone_is_fine(ended: Result<(), ProviderError>) -> Result<(), ServiceError> {
    match ended {
        Ok(()) | Err(ProviderError::Gone { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl EffectJob {
    pub(super) fn target(&self) -> Target {
        Target { sandbox: self.lease.id.clone(), instance: self.lease.instance.clone() }
    }

    /// Removes what a move left, or has not finished, at another provider. A provider that is not open removes it when it is.
    async fn destroy_other(&self) -> Result<(), ServiceError> {
        let Some(moving) = &self.lease.moving else { return Ok(()) };
        match self.inner.providers.open(moving.other_than(&self.lease.provider)) {
            Some(other) => {
                let files = Target { sandbox: self.lease.id.clone(), instance: None };
                gone_is_fine(other.destroy(&files).await)
            }
            None => Ok(()),
        }
    }

    /// Runs an effect that may be asked to end early.
    pub(super) async fn unless_stopped<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => None,
            ended = work => Some(ended),
        }
    }

    /// The snapshot that a sandbox is made from or rolled back to, if any.
    async fn seed(&self) -> Result<Option<Arc<Seed>>, ServiceError> {
        if self.seed.is_some() {
            return Ok(self.seed.clone());
        }
        let wanted = match (&self.lease.rollback_to, &self.lease.source) {
            (Some(snapshot), _) => (snapshot, true),
            (None, Source::Snapshot { snapshot, memory, .. }) => (snapshot, *memory),
            (None, Source::Template | Source::Archive { .. }) => return Ok(None),
        };
        Ok(Some(Arc::new(Seed::of(&self.inner, wanted.0, wanted.1).await?)))
    }
}

async fn freeze(job: &EffectJob, disk: bool) -> Result<MemoryLocation, ProviderError> {
    job.inner.failpoint.reach("pause.before").await;
    let held = timed("freeze", job.provider.pause(&job.target())).await?;
    job.inner.failpoint.reach("pause.frozen").await;
    if !disk || held == MemoryLocation::Disk {
        return Ok(held);
    }
    checkpoint(job).await?;
    Ok(MemoryLocation::Disk)
}

async fn checkpoint(job: &EffectJob) -> Result<(), ProviderError> {
    job.inner.failpoint.reach("checkpoint.before").await;
    let target = job.target();
    let written = job.unless_stopped(timed("checkpoint", job.provider.checkpoint(&target))).await;
    job.inner.failpoint.reach("checkpoint.after").await;
    let Some(Err(error)) = written else {
        return written.unwrap_or_else(|| {
            Err(ProviderError::Late { what: "writing the memory to disk".to_owned(), after: DROPPABLE })
        });
    };
    // Only the answer may have been lost; a pause of a sandbox whose memory is on disk reports that.
    match job.provider.pause(&target).await {
        Ok(MemoryLocation::Disk) => Ok(()),
        Ok(MemoryLocation::Live) | Err(_) => Err(error),
    }
}

async fn rollback(job: &EffectJob) -> Result<RolledBack, ServiceError> {
    let Some(seed) = job.seed().await? else {
        return Err(ServiceError::new(Code::Internal, "no snapshot was named"));
    };
    let (inner, target) = (&job.inner, job.target());
    inner.failpoint.reach("rollback.before").await;
    let rollback = job.provider.rollback(&target, &seed.snapshot, &seed.seal, &job.lease.limits);
    let became = timed("rollback", rollback).await;
    inner.failpoint.reach("rollback.after").await;
    let became = became?;
    if became == RolledBack::Memory && (job.lease.intent == Intent::Stop || seed.token.is_none()) {
        // It must be at rest with its files only.
        let files = Target { sandbox: job.lease.id.clone(), instance: None };
        gone_is_fine(job.provider.halt(&files).await)?;
        return Ok(RolledBack::Files);
    }
    Ok(became)
}

async fn boot(job: &EffectJob, first: bool) -> Outcome {
    let (inner, lease) = (&job.inner, &job.lease);
    // Bursts wait here: running more at once than the machine has cores only makes each of them slower.
    let Ok(_turn) = inner.creates.acquire().await else {
        return Outcome::NotBooted(ServiceError::new(Code::Internal, "the server is shutting down"));
    };
    let Some(instance) = lease.instance.clone() else {
        return Outcome::NotBooted(ServiceError::new(Code::Internal, "no instance was named"));
    };
    let seed = match if first { job.seed().await } else { Ok(None) } {
        Ok(seed) => seed,
        Err(failure) => return Outcome::NotBooted(failure),
    };
    let network = match crate::egress::compiled(inner, lease).await {
        Ok(network) => network,
        Err(failure) => return Outcome::NotBooted(failure),
    };
    let mounts = match inner.mounts_for(lease).await {
        Ok(mounts) => mounts,
        Err(failure) => return Outcome::NotBooted(failure),
    };
    let mut spec = spec(lease, instance.clone(), seed.as_deref(), network, mounts);
    let mut booted = if first {
        timed("provider", job.provider.create(&spec)).await
    } else {
        job.provider.boot(&spec).await
    };
    if let (Err(ProviderError::Damaged { what, why }), Some(Seed { warm: true, .. })) =
        (&booted, seed.as_deref())
    {
        tracing::error!(sandbox = %lease.id, template = lease.template, what, why, "a template boots: its warm start is damaged");
        spec.origin = FilesOrigin::Template;
        booted = job.provider.create(&spec).await;
    }
    let booted = match booted {
        Ok(booted) => booted,
        Err(ProviderError::Gone { sandbox }) => {
            let message = format!(
                "the files of sandbox {sandbox} are missing: it was never created, or they were lost"
            );
            let failure = ServiceError::new(Code::SandboxUnavailable, message);
            return Outcome::NotBooted(failure.hint("delete it and create a new one"));
        }
        Err(error) => return Outcome::NotBooted(error.into()),
    };
    inner.failpoint.reach("effect.made").await;
    let from_pool = booted.from_pool;
    match greet(job, &spec, booted, seed.as_deref()).await {
        Ok((row, agent, command)) => {
            crate::inside_ports::open(inner, &job.provider, lease, &row.instance).await;
            Outcome::Booted { row, agent, command, from_pool }
        }
        Err(failure) => Outcome::NotBooted(failure),
    }
}

/// A new agent gets its settings and starts the command; an agent of a copied process has those of its origin, and gets
/// a token of its own.
async fn greet(
    job: &EffectJob,
    spec: &InstanceSpec,
    booted: Booted,
    seed: Option<&Seed>,
) -> Result<(InstanceRow, AgentClient, StartedCommand), ServiceError> {
    let lease = &job.lease;
    let (instance, authority) = (spec.instance.clone(), job.provider.authority(&spec.network));
    let inside = Inside::of(&job.inner.config.company, &*job.provider, authority.as_deref());
    let Some(agent_token) = booted.agent_token else {
        let Some(had) = seed.and_then(|seed| seed.token.as_deref()) else {
            return Err(ServiceError::new(Code::Internal, "the copied agent does not answer"));
        };
        let tokens = Tokens::from_row(had).and_new()?;
        let (agent, agent_token) =
            crate::agent::greet_restored(&job.provider, lease, &instance, &tokens, inside).await?;
        if !inside.is_empty() {
            crate::agent::trust(&agent, lease, inside).await;
        }
        let row = InstanceRow { instance, facts: booted.facts, agent_token };
        return Ok((row, agent, StartedCommand::None));
    };
    let agent = crate::agent::client(&job.provider, lease, &instance, &agent_token);
    let command = timed("greet", crate::agent::greet(&agent, lease, inside)).await?;
    Ok((InstanceRow { instance, facts: booted.facts, agent_token }, agent, command))
}

async fn resume(job: &EffectJob) -> Outcome {
    job.inner.failpoint.reach("resume.before").await;
    let resumed = timed("thaw", job.provider.resume(&job.target())).await;
    job.inner.failpoint.reach("resume.after").await;
    match (resumed, &job.row) {
        // A checkpoint that was reported as failed may have succeeded.
        (Err(ProviderError::Gone { .. }), _) => match job.provider.pause(&job.target()).await {
            Ok(_) => Outcome::Resumed(Err(ServiceError::new(
                Code::SandboxUnavailable,
                "the sandbox was not resumed; its memory is kept",
            )
            .hint("resume it"))),
            Err(_) => Outcome::Gone,
        },
        (Ok(()), Some(row)) if Tokens::from_row(&row.agent_token).is_open() => {
            // It was restored before, but its agent did not answer.
            talk(job, row.instance.clone(), row.facts.clone(), &row.agent_token).await
        }
        (Ok(()), Some(row)) => {
            // Its policy may have changed while it was frozen.
            if job.lease.is_intercepted() {
                let provider = &job.provider;
                let agent = crate::agent::client(provider, &job.lease, &row.instance, &row.agent_token);
                trust(job, &agent).await;
            }
            Outcome::Resumed(Ok(()))
        }
        (ended, _) => Outcome::Resumed(ended.map_err(Into::into)),
    }
}

async fn restore(job: &EffectJob, made: Option<Value>) -> Outcome {
    let (inner, lease) = (&job.inner, &job.lease);
    let not = |failure| Outcome::NotRestored { failure, made: None };
    let Ok(_turn) = inner.creates.acquire().await else {
        return not(ServiceError::new(Code::Internal, "the server is shutting down"));
    };
    let (Some(instance), Some(row)) = (lease.instance.clone(), &job.row) else {
        return not(ServiceError::new(Code::Internal, "no instance was named"));
    };
    inner.failpoint.reach("restore.before").await;
    let facts = match made {
        Some(facts) => match let_run(job, facts).await {
            Ok(facts) => facts,
            Err(outcome) => return outcome,
        },
        None => match restored(job, instance.clone()).await {
            Ok(facts) => facts,
            Err(outcome) => return outcome,
        },
    };
    inner.failpoint.reach("restore.made").await;
    talk(job, instance, facts, &row.agent_token).await
}

/// A server that died between the end of a restore and the thaw left the instance frozen: its memory is only there. An
/// instance that already runs continues.
async fn let_run(job: &EffectJob, facts: Value) -> Result<Value, Outcome> {
    match timed("thaw", job.provider.resume(&job.target())).await {
        Ok(()) => Ok(facts),
        Err(ProviderError::Gone { .. }) => Err(Outcome::Gone),
        Err(error) => Err(Outcome::NotRestored { failure: error.into(), made: Some(facts) }),
    }
}

/// The facts of the restored instance from the provider; otherwise the outcome of the restore.
async fn restored(job: &EffectJob, instance: InstanceId) -> Result<Value, Outcome> {
    let (inner, lease) = (&job.inner, &job.lease);
    let not = |failure| Outcome::NotRestored { failure, made: None };
    let network = crate::egress::compiled(inner, lease).await.map_err(not)?;
    let mounts = inner.mounts_for(lease).await.map_err(not)?;
    match timed("restore", job.provider.restore(&spec(lease, instance, None, network, mounts))).await {
        Ok(booted) => Ok(booted.facts),
        Err(ProviderError::Gone { .. }) => Err(Outcome::Gone),
        Err(error) => {
            let failure = ServiceError::from(error);
            let hint = match failure.code {
                Code::Damaged => "its memory is damaged and cannot be restored; `stop` keeps its files",
                _ => "its memory is still on disk; resume it again",
            };
            Err(not(if failure.hint.is_some() { failure } else { failure.hint(hint) }))
        }
    }
}

/// Installs the certificate authority of a sandbox whose requests are changed, if it is not installed already.
async fn trust(job: &EffectJob, agent: &AgentClient) {
    let company = Inside::of(&job.inner.config.company, &*job.provider, None);
    if !job.lease.is_intercepted() {
        if !company.is_empty() {
            crate::agent::trust(agent, &job.lease, company).await;
        }
        return;
    }
    match crate::egress::compiled(&job.inner, &job.lease).await {
        Ok(egress) => {
            let authority = job.provider.authority(&egress);
            let inside = Inside { authority: authority.as_deref(), ..company };
            crate::agent::trust(agent, &job.lease, inside).await;
        }
        Err(error) => {
            tracing::warn!(sandbox = %job.lease.id, %error, cause = ?error.cause, "its network policy could not be read");
        }
    }
}

/// Greets an agent that was restored with its processes.
async fn talk(job: &EffectJob, instance: InstanceId, facts: Value, tokens: &str) -> Outcome {
    let tokens = Tokens::from_row(tokens);
    let inside = Inside::of(&job.inner.config.company, &*job.provider, None);
    match crate::agent::greet_restored(&job.provider, &job.lease, &instance, &tokens, inside).await {
        Ok((agent, agent_token)) => {
            trust(job, &agent).await;
            crate::inside_ports::open(&job.inner, &job.provider, &job.lease, &instance).await;
            Outcome::Restored { row: InstanceRow { instance, facts, agent_token }, agent }
        }
        Err(failure) => Outcome::NotRestored { failure, made: Some(facts) },
    }
}

pub(super) fn spec(
    lease: &Lease,
    instance: InstanceId,
    seed: Option<&Seed>,
    network: Arc<Egress>,
    mounts: Vec<InstanceMount>,
) -> InstanceSpec {
    let origin = seed.map_or(FilesOrigin::Template, |seed| FilesOrigin::Snapshot {
        snapshot: seed.snapshot.clone(),
        seal: seed.seal.clone(),
        memory: seed.memory,
    });
    InstanceSpec {
        sandbox: lease.id.clone(),
        instance,
        template: lease.template.clone(),
        template_version: lease.template_version.clone(),
        limits: lease.limits,
        network,
        storage: lease.storage,
        hostname: crate::agent::hostname(lease),
        origin,
        mounts,
    }
}
