//! One driver per sandbox: the only place where its lease changes.
//!
//! ```text
//! mailbox: verbs, updates, notices, deadlines ─┐
//!                                              ├─► step() ─► compare-and-set ─► publish ─► effect
//! results of effects (numbered) ───────────────┘                                            │
//!        ▲──────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Effects of one sandbox run one after the other. A result that does not carry the number of the effect under way, or
//! names another instance than the lease, is late and dropped. The instance id is in the store before its effect starts.

mod due;
mod effects;
mod files;
mod moment;
mod results;
mod steps;
mod update;

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use atoll_agentapi::AgentClient;
use atoll_model::lifecycle::{self, Event, Refused};
use atoll_model::{
    ArchiveRef, Code, EventKind, Held, InstanceId, Intent, Lease, Moment, Phase, Reason, SandboxId, Storage,
    UpdateSandbox,
};
use atoll_provider::NoticeKind;
use atoll_store::{Admit, Inserted, InstanceChange, InstanceRow, NewEvent, NewLease, StoreError};
use futures::FutureExt;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::ServiceError;
use crate::activity::Activity;
use crate::random::entropy;
use crate::registry::{Handle, MAILBOX, State};
use crate::service::Inner;
use crate::snapshots::Seed;
use crate::timed::timed;
use effects::{Done, UnderWay, Work};
pub(crate) use moment::SnapshotJob;
use steps::{Step, StepError};

/// What a driver is told.
pub(crate) enum Mail {
    /// Somebody asks for something, and why.
    Verb { verb: Verb, reason: Reason, reply: Reply },
    /// Somebody changes something.
    Update { change: Box<UpdateSandbox>, reply: Reply },
    /// A change that touches the lease alone.
    Edit { edit: Edit, reply: Reply },
    /// Somebody wants a snapshot.
    Snapshot(SnapshotJob),
    /// This archive is gone from object storage.
    Tidied { archive: ArchiveRef },
    /// The instance says something by itself.
    Notice { instance: InstanceId, what: NoticeKind },
    /// A deadline may have passed.
    Due,
}

/// Answered when the change is written; what it sets off goes on.
pub(crate) type Reply = oneshot::Sender<Result<Arc<Lease>, ServiceError>>;

/// Changes a lease, given the time, and names the fields it changed; none: nothing is written. Never touches the phase.
pub(crate) type Edit = Box<dyn FnOnce(&mut Lease, &Moment) -> Result<Vec<&'static str>, ServiceError> + Send>;

/// What can be asked of a sandbox.
#[derive(Debug, Clone)]
pub(crate) enum Verb {
    /// Run, from wherever it is.
    Start,
    Stop,
    Restart,
    /// Stand still; the memory goes where the caller says.
    Pause(Held),
    /// Files to object storage, and only there.
    Archive,
    /// Files back from there, without starting it.
    Restore,
    /// Files, and where the snapshot has them processes, as they were.
    Rollback(Arc<Seed>),
    Delete,
}

/// What a birth led to.
pub(crate) enum Born {
    New(Handle),
    Replayed(Box<Lease>),
}

pub(crate) struct Driver {
    inner: Arc<Inner>,
    lease: Lease,
    /// What the store keeps of the instance; its token may be several, see `agent::Tokens`.
    row: Option<InstanceRow>,
    /// Also kept while it is frozen; published while it runs.
    agent: Option<AgentClient>,
    failure: Option<ServiceError>,
    publish: watch::Sender<State>,
    activity: Arc<Activity>,
    under_way: Option<UnderWay>,
    effects_started: u64,
    attempts: u32,
    /// Snapshots that wait for their turn.
    snapshots: VecDeque<Arc<SnapshotJob>>,
    /// What it is being made from or put back to.
    seed: Option<Arc<Seed>>,
    /// Its memory could not be written to disk in this pause.
    checkpoint_failed: bool,
    /// Something of it may be in object storage that the lease does not name.
    uploads: bool,
    /// The removal of an archive that is not needed any more.
    tidying: Option<JoinHandle<Option<()>>>,
    done_in: mpsc::Sender<Done>,
    done_out: mpsc::Receiver<Done>,
}

/// Remembers a new sandbox and drives it from then on. The task owns the birth: a caller that goes away changes nothing.
pub(crate) fn birth(
    inner: &Arc<Inner>,
    new: NewLease,
    seed: Option<Arc<Seed>>,
    reply: oneshot::Sender<Result<Born, StoreError>>,
) {
    let own = Arc::clone(inner);
    inner.spawn(async move {
        let id = new.lease.id.clone();
        own.failpoint.reach("insert.before").await;
        let lease = new.lease.clone();
        let (told, mut accepted) = oneshot::channel();
        let mut insert = std::pin::pin!(timed("insert", own.store.insert_telling(new, told)));
        // The provider works while the disk does. Nobody hears of the sandbox before the disk has it; after a crash in
        // between nobody knows the instance, and adoption removes it.
        let mut begun = None;
        let inserted = loop {
            tokio::select! {
                biased;
                Ok(()) = &mut accepted, if begun.is_none() => begun = Some(Driver::begin(&own, &lease, seed.clone())),
                inserted = &mut insert => break inserted,
            }
        };
        if !matches!(inserted, Ok(Inserted::New)) {
            if let Some((driver, ..)) = begun.take() {
                driver.undo().await;
            }
            own.admission.release(&id);
        }
        match inserted {
            Ok(Inserted::New) => {}
            Ok(Inserted::Replayed(before)) => return drop(reply.send(Ok(Born::Replayed(before)))),
            Err(error) => return drop(reply.send(Err(error))),
        }
        own.failpoint.reach("insert.after").await;
        let (driver, handle, mailbox) = begun.unwrap_or_else(|| Driver::begin(&own, &lease, seed.clone()));
        own.registry.put(id, handle.clone());
        drop(seed);
        let _ = reply.send(Ok(Born::New(handle)));
        driver.supervise(mailbox).await;
    });
}

/// Drives a sandbox that the store knows already; `first` is done before anything else.
pub(crate) fn resume(inner: &Arc<Inner>, known: Known, first: Resumption) {
    let Known { lease, row, agent, seed } = known;
    let (mut driver, handle, mailbox) = Driver::new(inner, lease, row, agent);
    driver.seed = seed;
    inner.registry.put(driver.lease.id.clone(), handle);
    inner.spawn(async move {
        driver.take_up(first).await;
        driver.supervise(mailbox).await;
    });
}

/// A sandbox as the store and the provider know it.
pub(crate) struct Known {
    pub(crate) lease: Lease,
    pub(crate) row: Option<InstanceRow>,
    pub(crate) agent: Option<AgentClient>,
    pub(crate) seed: Option<Arc<Seed>>,
}

/// What a sandbox needs after a restart of the server.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Resumption {
    /// Nothing: it rests, or runs and is watched.
    Nothing,
    /// Its creation or start was under way: do it again as another instance.
    Again,
    /// It was being stopped.
    Halt,
    /// It was being deleted.
    Destroy,
    /// It ran and is gone.
    Lost,
    /// It rests where it was not meant to: a restart, an archive or a wake had come half way.
    GoOn,
    /// It was being paused, or it is not certain whether it stands still.
    Freeze,
    /// It is paused, and its memory is not where the lease says.
    Held(Held),
    /// It was being resumed: go on.
    Resume,
    /// Its restore had come so far that the instance is there.
    Restored(serde_json::Value),
    /// Its files were on their way to object storage.
    Archive,
    /// Its files were on their way back, or were being put back to a snapshot.
    Restore,
    /// The fork that it is part of was not finished.
    Unmake,
}

impl Driver {
    /// A driver whose sandbox is being made.
    fn begin(
        inner: &Arc<Inner>,
        lease: &Lease,
        seed: Option<Arc<Seed>>,
    ) -> (Self, Handle, mpsc::Receiver<Mail>) {
        let (mut driver, handle, mailbox) = Self::new(inner, lease.clone(), None, None);
        driver.seed = seed;
        driver.launch(if lease.phase == Phase::Restoring { Work::Unarchive } else { Work::Create });
        (driver, handle, mailbox)
    }

    /// The record could not be kept: what was begun is removed. What this can't remove, the next adoption does.
    async fn undo(mut self) {
        self.launch(Work::Destroy);
        while let Some(done) = self.done_out.recv().await {
            if done.number == self.effects_started {
                break;
            }
        }
    }

    fn new(
        inner: &Arc<Inner>,
        lease: Lease,
        row: Option<InstanceRow>,
        agent: Option<AgentClient>,
    ) -> (Self, Handle, mpsc::Receiver<Mail>) {
        let lease_phase = lease.phase;
        let activity = Activity::new(Arc::clone(&inner.clock), &lease, inner.config.wake_waiters);
        let shown = agent.clone().filter(|_| lease.phase == Phase::Running);
        let state = State { lease: Arc::new(lease.clone()), agent: shown, failure: None };
        let (publish, watched) = watch::channel(state);
        let (mailbox_in, mailbox) = mpsc::channel(MAILBOX);
        let (done_in, done_out) = mpsc::channel(4);
        let driver = Self {
            inner: Arc::clone(inner),
            lease,
            row,
            agent,
            failure: None,
            publish,
            activity: Arc::clone(&activity),
            under_way: None,
            effects_started: 0,
            attempts: 0,
            snapshots: VecDeque::new(),
            seed: None,
            checkpoint_failed: false,
            uploads: matches!(lease_phase, Phase::Archiving | Phase::Deleting),
            tidying: None,
            done_in,
            done_out,
        };
        driver.schedule();
        (driver, Handle { mailbox: mailbox_in, state: watched, activity }, mailbox)
    }

    /// Runs until the sandbox is deleted or the server ends. A panic is contained: the lease is read again and what was
    /// under way counts as failed.
    async fn supervise(mut self, mut mailbox: mpsc::Receiver<Mail>) {
        // LIMIT: a driver that panics on every message must not spin.
        for _ in 0..8 {
            let ended = AssertUnwindSafe(self.run(&mut mailbox)).catch_unwind().await;
            if ended.is_ok() {
                if self.lease.phase == Phase::Deleted {
                    self.inner.registry.remove(&self.lease.id);
                }
                return;
            }
            tracing::error!(sandbox = %self.lease.id, "the driver panicked; its sandbox is taken up again");
            let recovered = AssertUnwindSafe(self.recover()).catch_unwind().await;
            if recovered.is_err() {
                break;
            }
        }
        tracing::error!(sandbox = %self.lease.id, "the driver gave up; the sandbox waits for the next start");
        self.inner.registry.remove(&self.lease.id);
    }

    async fn recover(&mut self) {
        self.reload().await;
        let reason = Reason::Provider { message: "an internal error; see the log".to_owned() };
        match self.lease.phase {
            Phase::Restoring if self.lease.rollback_to.is_some() => self.launch(Work::Rollback),
            Phase::Creating
            | Phase::Starting
            | Phase::Stopping
            | Phase::Pausing
            | Phase::Resuming
            | Phase::Archiving
            | Phase::Restoring => {
                self.failure = Some(ServiceError::new(Code::Internal, "the sandbox's driver failed"));
                self.note(Step::internal(Event::Failed, reason)).await;
            }
            Phase::Deleting => self.launch(Work::Destroy),
            Phase::Running
            | Phase::Paused
            | Phase::Stopped
            | Phase::Archived
            | Phase::Failed
            | Phase::Deleted => {}
        }
    }

    async fn run(&mut self, mailbox: &mut mpsc::Receiver<Mail>) {
        while self.lease.phase != Phase::Deleted {
            let closing = self.inner.closing.clone();
            tokio::select! {
                biased;
                Some(done) = self.done_out.recv() => self.on_done(done).await,
                () = closing.cancelled(), if self.under_way.is_none() => return,
                mail = mailbox.recv() => match mail {
                    Some(mail) => self.on_mail(mail).await,
                    None => return,
                },
            }
        }
    }

    async fn take_up(&mut self, first: Resumption) {
        self.tidy_after_restart();
        match first {
            Resumption::Nothing => {}
            Resumption::Again => self.begin_again().await,
            Resumption::Halt => self.launch(Work::Halt { instance: self.lease.instance.clone() }),
            Resumption::Destroy => self.launch(Work::Destroy),
            Resumption::Lost => self.note(Step::internal(Event::Died, Reason::LostWhileDown)).await,
            Resumption::GoOn if self.lease.phase == Phase::Stopped => self.after_stop().await,
            Resumption::GoOn => self.go_on().await,
            Resumption::Freeze => {
                let disk = self.lease.phase == Phase::Pausing && self.lease.held == Some(Held::Disk);
                self.launch(Work::Freeze { disk });
            }
            Resumption::Held(held) => {
                let rest = Step { held: Some(held), ..Step::internal(Event::Paused, Reason::Completed) };
                self.note(rest).await;
            }
            Resumption::Resume if self.lease.held == Some(Held::Disk) => {
                self.launch(Work::Restore { made: None });
            }
            Resumption::Resume => self.launch(Work::Resume),
            Resumption::Restored(facts) => self.launch(Work::Restore { made: Some(facts) }),
            Resumption::Archive => self.launch(Work::Archive),
            Resumption::Restore if self.lease.rollback_to.is_some() => self.launch(Work::Rollback),
            Resumption::Restore => self.launch(Work::Unarchive),
            Resumption::Unmake => {
                let unmake = Step::asked(Event::Delete, Intent::Delete, Reason::LostWhileDown);
                self.note(unmake).await;
            }
        }
    }

    /// Objects of a restore that were not removed before the server ended.
    fn tidy_after_restart(&mut self) {
        if !matches!(
            self.lease.phase,
            Phase::Archiving | Phase::Archived | Phase::Restoring | Phase::Deleting | Phase::Deleted
        ) {
            self.tidy_objects();
        }
    }

    /// The phase stays; only the instance is another, so that a late result of the first attempt cannot be taken for
    /// one of the second.
    async fn begin_again(&mut self) {
        let work = if self.lease.phase == Phase::Creating { Work::Create } else { Work::Boot };
        let Ok(random) = entropy() else { return };
        let mut next = self.lease.clone();
        next.instance = Some(InstanceId::from_entropy(random));
        next.phase_at = self.inner.clock.now();
        match self.write(next, InstanceChange::Drop, Admit::Nothing, vec![], true).await {
            Ok(()) => self.launch(work),
            Err(error) => {
                tracing::error!(sandbox = %self.lease.id, %error, "a creation could not be taken up")
            }
        }
    }

    async fn on_mail(&mut self, mail: Mail) {
        match mail {
            Mail::Verb { verb, reason, reply } => {
                self.failure = None;
                let outcome = self.on_verb(&verb, reason).await.map_err(|error| self.explain(&verb, error));
                let _ = reply.send(outcome.map(|()| Arc::new(self.lease.clone())));
            }
            Mail::Edit { edit, reply } => {
                let outcome = self.on_edit(edit).await;
                let _ = reply.send(outcome.map(|()| Arc::new(self.lease.clone())));
            }
            Mail::Update { change, reply } => {
                let outcome = self.on_update(&change).await;
                let _ = reply.send(outcome.map(|()| Arc::new(self.lease.clone())));
            }
            Mail::Snapshot(wanted) => self.on_snapshot(wanted),
            Mail::Tidied { archive } => self.on_tidied(&archive).await,
            Mail::Notice { instance, what } => self.on_notice(&instance, what).await,
            Mail::Due => self.on_due().await,
        }
    }

    async fn on_verb(&mut self, verb: &Verb, reason: Reason) -> Result<(), StepError> {
        match (verb, self.lease.phase) {
            (Verb::Start, _) | (Verb::Restart, Phase::Stopped | Phase::Failed | Phase::Archived) => {
                self.on_start(Intent::Run, reason).await
            }
            // While it stops with the intent to run, the end of the stop starts it again, also after a crash.
            (Verb::Restart, _) => self.step(Step::asked(Event::Stop, Intent::Run, reason)).await,
            (Verb::Stop, _) => {
                self.step(Step::asked(Event::Stop, Intent::Stop, reason)).await?;
                self.end_transfer();
                Ok(())
            }
            (Verb::Pause(held), _) => self.on_pause(*held, reason).await,
            (Verb::Archive, _) => self.on_archive(reason).await,
            (Verb::Restore, Phase::Stopped) => Ok(()),
            (Verb::Restore, Phase::Restoring) if self.lease.rollback_to.is_none() => Ok(()),
            (Verb::Restore, Phase::Archived) => self.on_start(Intent::Stop, reason).await,
            (Verb::Restore, phase) => Err(Refused { phase, event: Event::Archived }.into()),
            (Verb::Rollback(seed), phase) => {
                let intent = if phase == Phase::Stopped { Intent::Stop } else { Intent::Run };
                self.seed = Some(Arc::clone(seed));
                let rollback_to = Some(seed.snapshot.clone());
                let step = Step { rollback_to, ..Step::asked(Event::Rollback, intent, reason) };
                self.step(step).await.inspect_err(|_| self.seed = None)
            }
            (Verb::Delete, _) => self.step(Step::asked(Event::Delete, Intent::Delete, reason)).await,
        }
    }

    /// Runs it, or with another intent brings it nearer to that, from wherever it is.
    async fn on_start(&mut self, intent: Intent, reason: Reason) -> Result<(), StepError> {
        let (to, _) = lifecycle::step(self.lease.phase, Event::Start)?;
        let was_held = self.lease.holds_compute();
        let needs_room = !was_held && to.has_instance();
        if needs_room {
            self.inner
                .admission
                .reserve(self.inner.provider.as_ref(), &self.lease.id, &self.lease.limits)
                .await
                .map_err(ServiceError::from)?;
        }
        let admit = if needs_room { Admit::Compute } else { Admit::Nothing };
        let outcome = self.step(Step { admit, ..Step::asked(Event::Start, intent, reason) }).await;
        if outcome.is_err() && needs_room {
            self.inner.admission.release(&self.lease.id);
        }
        self.end_transfer();
        outcome
    }

    /// Files that are on their way to object storage are still here: nobody need wait for the end of that.
    fn end_transfer(&self) {
        if self.lease.phase == Phase::Archiving && self.lease.intent != Intent::Archive {
            self.cut_short();
        }
    }

    async fn on_pause(&mut self, held: Held, reason: Reason) -> Result<(), StepError> {
        let able = self.inner.provider.capabilities();
        if !able.pauses || (held == Held::Disk && !able.checkpoints) {
            let what = if able.pauses { "memory: disk" } else { "pause" };
            let message = format!("{what} is not possible here");
            let hint = "atoll doctor says what is missing";
            return Err(ServiceError::new(Code::Unsupported, message).hint(hint).into());
        }
        if self.lease.phase == Phase::Paused {
            let on_disk = self.lease.held == Some(Held::Disk);
            let event = if held == Held::Disk && !on_disk { Event::Checkpoint } else { Event::Pause };
            return self.step(Step::asked(event, Intent::Pause, reason)).await;
        }
        // While it is being paused `held` says where its memory shall go.
        let also_disk = self.lease.phase == Phase::Pausing && self.lease.held == Some(Held::Disk);
        let held = if also_disk { Held::Disk } else { held };
        self.step(Step { held: Some(held), ..Step::asked(Event::Pause, Intent::Pause, reason) }).await
    }

    /// What runs or stands still is stopped first; the end of the stop goes on, also after a crash.
    async fn on_archive(&mut self, reason: Reason) -> Result<(), StepError> {
        let able = self.inner.provider.capabilities();
        if !able.packs || !able.keeps_files || self.lease.storage == Storage::Memory {
            let message = format!("sandbox {} has no files that could be archived", self.lease.id);
            return Err(ServiceError::new(Code::Unsupported, message).into());
        }
        let event = match self.lease.phase {
            Phase::Running | Phase::Pausing | Phase::Paused | Phase::Resuming | Phase::Stopping => {
                Event::Stop
            }
            Phase::Creating
            | Phase::Stopped
            | Phase::Starting
            | Phase::Archiving
            | Phase::Archived
            | Phase::Restoring
            | Phase::Failed
            | Phase::Deleting
            | Phase::Deleted => Event::Archive,
        };
        self.uploads = true;
        self.step(Step::asked(event, Intent::Archive, reason)).await
    }

    async fn on_notice(&mut self, instance: &InstanceId, what: NoticeKind) {
        if self.lease.instance.as_ref() != Some(instance) {
            return self.count_late("notice");
        }
        match what {
            NoticeKind::Died => {
                if matches!(self.lease.phase, Phase::Creating | Phase::Starting) {
                    self.failure =
                        Some(ServiceError::new(Code::Internal, "the instance ended while it started"));
                }
                self.note(Step::internal(Event::Died, Reason::InstanceDied)).await;
            }
            NoticeKind::OutOfMemory => {
                let event = NewEvent {
                    at: self.inner.clock.now(),
                    instance: Some(instance.clone()),
                    what: EventKind::OutOfMemory,
                };
                let (tenant, id) = (self.lease.tenant.clone(), self.lease.id.clone());
                if let Err(error) = self.inner.store.record(tenant, id, event).await {
                    tracing::warn!(sandbox = %self.lease.id, %error, "an event could not be written");
                }
            }
        }
    }

    fn id(&self) -> &SandboxId {
        &self.lease.id
    }
}
