//! One driver per sandbox: the only place where its lease changes.
//!
//! ```text
//! mailbox: verbs, updates, notices, deadlines ─┐
//!                                              ├─► step() ─► compare-and-set ─► publish ─► effect
//! results of effects (numbered) ───────────────┘                                            │
//!        ▲──────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Effects of one sandbox run one after the other. A result without the number of the current effect, or for another
//! instance than the lease's, is late and dropped. The instance id is in the store before its effect starts.

mod adoption;
mod copy;
mod effects;
mod files;
mod image;
mod moving;
mod queue;
mod reach;
mod results;
mod rollback;
mod start_command;
mod steps;
mod take_snapshot;
mod timers;
mod update;
mod verbs;

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use atoll_agentapi::{AgentClient, SetupLocks};
use atoll_model::lifecycle::{Event, PhaseSet, Verb};
use atoll_model::{
    ArchiveRef, Code, CreatorKey, EventKind, InstanceId, Lease, MemoryLocation, MoveProgress, Phase,
    Principal, Reason, SandboxId, Timestamp, UpdateSandbox,
};
use atoll_provider::{NoticeKind, Provider};
use atoll_store::{Inserted, InstanceRow, NewEvent, StoreError};
use futures::FutureExt;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::ServiceError;
use crate::activity::Activity;
use crate::admission::MovePlace;
use crate::create::{ImageWait, NewSandbox};
use crate::moving::MovePlan;
use crate::registry::{DriverState, Handle, MAILBOX};
use crate::sandboxes::SandboxesState;
use crate::snapshots::Seed;
use crate::timed::timed;
pub(crate) use adoption::{AdoptedSandbox, Resumption, resume};
use effects::{Done, UnderWay, Work};
pub(crate) use image::ImageProgress;
pub(crate) use moving::MoveEnd;
use steps::Transition;
pub(crate) use take_snapshot::SnapshotJob;
pub(crate) use verbs::Action;

/// A message to a driver.
pub(crate) enum DriverMessage {
    /// Somebody asks for something, and why.
    Verb { action: Action, reason: Reason, expect: Option<PhaseSet>, reply: VerbReply },
    /// Somebody changes something: [`Verb::Update`] or [`Verb::Resize`].
    Update { verb: Verb, change: Box<UpdateSandbox>, expect: Option<PhaseSet>, reply: Reply },
    /// A layer above the lease's network policy changed: that of its tenant, or a secret that it uses.
    Refresh { reply: Option<Reply> },
    /// A change that affects the lease alone.
    Edit { edit: Edit, reply: Reply },
    /// A caller requests a snapshot.
    Snapshot(SnapshotJob),
    /// A caller moves it to another provider; `done` is told the end.
    Move { plan: Box<MovePlan>, places: Vec<MovePlace>, done: MoveEnd, reply: Reply },
    /// How far its copy to another provider is.
    MoveProgress(MoveProgress),
    /// Nothing of it is left at the other provider of the move that began at this time.
    OtherRemoved { started_at: Timestamp, reply: oneshot::Sender<Result<(), ServiceError>> },
    /// This archive was removed from object storage.
    Tidied { archive: ArchiveRef },
    /// Progress of its image.
    Image(ImageProgress),
    /// Capacity is promised to a queued create.
    Place { reply: oneshot::Sender<Result<(), ServiceError>> },
    /// The instance reports an event.
    Notice { instance: InstanceId, what: NoticeKind },
    /// A deadline may have passed.
    Due,
}

/// A message with its author: the caller of the request that it is sent for, if there is one.
pub(crate) struct Mail {
    pub(crate) by: Option<Principal>,
    pub(crate) message: DriverMessage,
}

impl From<DriverMessage> for Mail {
    fn from(message: DriverMessage) -> Self {
        Self { by: None, message }
    }
}

/// The answer when the change is recorded; its effects continue.
pub(crate) type Reply = oneshot::Sender<Result<Arc<Lease>, ServiceError>>;

/// Answered like a [`Reply`], with the phase in which the verb found the sandbox.
pub(crate) type VerbReply = oneshot::Sender<Result<Phase, ServiceError>>;

impl DriverMessage {
    /// A verb that is taken in every phase that it accepts.
    pub(crate) const fn verb(action: Action, reason: Reason, reply: VerbReply) -> Self {
        Self::Verb { action, reason, expect: None, reply }
    }
}

/// Changes a lease, given the time, and returns the names of the changed fields; if there are none, nothing is written.
/// It never changes the phase.
pub(crate) type Edit =
    Box<dyn FnOnce(&mut Lease, &Timestamp) -> Result<Vec<&'static str>, ServiceError> + Send>;

/// The result of a creation.
pub(crate) enum CreationOutcome {
    New(Handle),
    Replayed(Box<Lease>),
    /// The thread has this sandbox already.
    Bound(Box<Lease>),
}

pub(crate) struct Driver {
    inner: Arc<SandboxesState>,
    /// The provider of the sandbox. Only a move changes its name; it is opened again when its settings change.
    provider: Arc<dyn Provider>,
    lease: Lease,
    /// The instance's row in the store; its token may be several, see `agent::Tokens`.
    row: Option<InstanceRow>,
    /// It is also kept while the instance is frozen; it is published while the instance runs.
    agent: Option<AgentClient>,
    failure: Option<ServiceError>,
    /// The author of the message that is being handled, for the events that it causes.
    by: Option<CreatorKey>,
    publish: watch::Sender<DriverState>,
    activity: Arc<Activity>,
    under_way: Option<UnderWay>,
    effects_started: u64,
    attempts: u32,
    /// Snapshots that wait for their turn.
    snapshots: VecDeque<Arc<SnapshotJob>>,
    /// What the sandbox is being made from or rolled back to.
    seed: Option<Arc<Seed>>,
    /// Its move to another provider, while this server does it.
    moving: Option<moving::ActiveMove>,
    /// The room that is promised for its move at both ends, until it is at rest or started again.
    move_places: Vec<MovePlace>,
    /// The removal of what its last move left, and which move that was.
    remover: Option<(Timestamp, JoinHandle<Option<()>>)>,
    /// The wait for its image, which begins when the sandbox has its place.
    image: Option<ImageWait>,
    /// Whether its memory could not be written to disk in this pause.
    checkpoint_failed: bool,
    /// New limits are being put in force.
    resizing: bool,
    /// Whether its network policy changed while its instance could not be informed.
    refresh_due: bool,
    /// Whether objects of it may be in object storage that the lease does not name.
    uploads: bool,
    /// The removal of an archive that is no longer needed.
    tidying: Option<JoinHandle<Option<()>>>,
    done_in: mpsc::Sender<Done>,
    done_out: mpsc::Receiver<Done>,
}

/// Records a new sandbox and drives it from then on. The task owns the creation: it continues if the caller
/// disconnects.
pub(crate) fn birth(
    inner: &Arc<SandboxesState>,
    provider: Arc<dyn Provider>,
    sandbox: NewSandbox,
    reply: oneshot::Sender<Result<CreationOutcome, StoreError>>,
) {
    let own = Arc::clone(inner);
    let NewSandbox { request: new, seed, image, entry } = sandbox;
    inner.spawn(async move {
        let id = new.lease.id.clone();
        own.failpoint.reach("insert.before").await;
        let lease = new.lease.clone();
        let (told, mut accepted) = oneshot::channel();
        let mut insert = std::pin::pin!(timed("insert", own.store.insert_telling(new, told)));
        // The provider works while the disk does. The sandbox is not visible before it is on disk; after a crash in
        // between the instance is unknown, and adoption removes it.
        let mut begun = None;
        let inserted = loop {
            tokio::select! {
                biased;
                Ok(()) = &mut accepted, if begun.is_none() => begun = Some(Driver::begin(&own, &provider, &lease, seed.clone())),
                inserted = &mut insert => break inserted,
            }
        };
        if !matches!(inserted, Ok(Inserted::New)) {
            if let Some((driver, ..)) = begun.take() {
                driver.undo().await;
            }
            own.admission.forget(&id);
        }
        match inserted {
            Ok(Inserted::New) => {}
            Ok(Inserted::Replayed(before)) => return drop(reply.send(Ok(CreationOutcome::Replayed(before)))),
            Ok(Inserted::Bound(lease)) => return drop(reply.send(Ok(CreationOutcome::Bound(lease)))),
            Err(error) => return drop(reply.send(Err(error))),
        }
        own.failpoint.reach("insert.after").await;
        let (mut driver, handle, mailbox) = begun.unwrap_or_else(|| Driver::begin(&own, &provider, &lease, seed.clone()));
        own.registry.put(id, handle.clone());
        own.changes.tell(None, &lease);
        drop(seed);
        match (image, entry) {
            (image, Some(entry)) => {
                driver.image = image;
                entry.recorded();
            }
            (Some(image), None) => image.start(handle.clone()),
            (None, None) => {}
        }
        let _ = reply.send(Ok(CreationOutcome::New(handle)));
        driver.supervise(mailbox).await;
    });
}

impl Driver {
    /// A driver whose sandbox is being made.
    fn begin(
        inner: &Arc<SandboxesState>,
        provider: &Arc<dyn Provider>,
        lease: &Lease,
        seed: Option<Arc<Seed>>,
    ) -> (Self, Handle, mpsc::Receiver<Mail>) {
        let (mut driver, handle, mailbox) = Self::new(inner, provider, lease.clone(), None, None);
        driver.seed = seed;
        // A sandbox that waits for its place or its image is not made yet.
        if !lease.waits_to_boot() {
            driver.launch(if lease.phase == Phase::Restoring { Work::Unarchive } else { Work::Create });
        }
        (driver, handle, mailbox)
    }

    /// The record could not be written: the instance is removed. If that fails, the next adoption removes it.
    async fn undo(mut self) {
        self.launch(Work::Destroy);
        while let Some(done) = self.done_out.recv().await {
            if done.number == self.effects_started {
                break;
            }
        }
    }

    fn new(
        inner: &Arc<SandboxesState>,
        provider: &Arc<dyn Provider>,
        lease: Lease,
        row: Option<InstanceRow>,
        agent: Option<AgentClient>,
    ) -> (Self, Handle, mpsc::Receiver<Mail>) {
        let lease_phase = lease.phase;
        let activity = Activity::new(Arc::clone(&inner.clock), &lease, inner.config.wake_waiters);
        let shown = agent.clone().filter(|_| lease.phase == Phase::Running);
        let state = DriverState { lease: Arc::new(lease.clone()), agent: shown, failure: None };
        let (publish, watched) = watch::channel(state);
        let (mailbox_in, mailbox) = mpsc::channel(MAILBOX);
        let (done_in, done_out) = mpsc::channel(4);
        let driver = Self {
            inner: Arc::clone(inner),
            provider: Arc::clone(provider),
            lease,
            row,
            agent,
            failure: None,
            by: None,
            publish,
            activity: Arc::clone(&activity),
            under_way: None,
            effects_started: 0,
            attempts: 0,
            snapshots: VecDeque::new(),
            seed: None,
            moving: None,
            move_places: Vec::new(),
            remover: None,
            image: None,
            checkpoint_failed: false,
            resizing: false,
            refresh_due: false,
            uploads: matches!(lease_phase, Phase::Archiving | Phase::Deleting),
            tidying: None,
            done_in,
            done_out,
        };
        driver.schedule();
        let (tokens, setup_locks) = (Arc::default(), SetupLocks::default());
        (driver, Handle { mailbox: mailbox_in, state: watched, activity, tokens, setup_locks }, mailbox)
    }

    /// Runs until the sandbox is deleted or the server ends. A panic is contained: the lease is read again and the
    /// current effect counts as failed.
    async fn supervise(mut self, mut mailbox: mpsc::Receiver<Mail>) {
        // LIMIT: a driver that panics on every message must not spin.
        for _ in 0..8 {
            let ended = AssertUnwindSafe(self.run(&mut mailbox)).catch_unwind().await;
            if ended.is_ok() {
                if self.lease.phase == Phase::Deleted {
                    self.inner.registry.remove(&self.lease.id);
                    // A record that was written late may have created the log again.
                    crate::egress::log::remove(&self.inner, &self.lease.id).await;
                }
                return;
            }
            tracing::error!(sandbox = %self.lease.id, "the driver panicked and is restarted");
            let recovered = AssertUnwindSafe(self.recover()).catch_unwind().await;
            if recovered.is_err() {
                break;
            }
        }
        tracing::error!(sandbox = %self.lease.id, "the driver failed; the sandbox is not managed until the next start of the server");
        self.inner.registry.remove(&self.lease.id);
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

    /// The provider that the lease names. Its settings may have changed; the new one finds the instances of the one before.
    fn use_own_provider(&mut self) {
        if let Ok(current) = self.inner.providers.of(&self.lease) {
            self.provider = current;
        }
    }

    async fn on_mail(&mut self, mail: Mail) {
        self.use_own_provider();
        self.by = mail.by.and_then(|who| who.as_creator(&self.lease.tenant));
        self.on_message(mail.message).await;
        self.by = None;
    }

    async fn on_message(&mut self, message: DriverMessage) {
        match message {
            DriverMessage::Verb { action, reason, expect, reply } => {
                let _ = reply.send(self.on_request(&action, reason, expect).await);
            }
            DriverMessage::Edit { edit, reply } => {
                let outcome = self.on_edit(edit).await;
                let _ = reply.send(outcome.map(|()| Arc::new(self.lease.clone())));
            }
            DriverMessage::Update { verb, change, expect, reply } => {
                let outcome = self.on_update(verb, &change, expect).await;
                let _ = reply.send(outcome.map(|()| Arc::new(self.lease.clone())));
            }
            DriverMessage::Refresh { reply } => {
                let outcome = self.on_refresh().await;
                if let Some(reply) = reply {
                    self.tell_refreshed().await;
                    let _ = reply.send(outcome.map(|()| Arc::new(self.lease.clone())));
                }
            }
            DriverMessage::Snapshot(wanted) => self.on_snapshot(wanted),
            DriverMessage::Image(progress) => self.on_image(progress).await,
            DriverMessage::Place { reply } => {
                let _ = reply.send(self.on_place().await);
            }
            DriverMessage::Move { plan, places, done, reply } => {
                let outcome = self.on_move(plan, places, done).await;
                let _ = reply.send(outcome.map(|()| Arc::new(self.lease.clone())));
            }
            DriverMessage::MoveProgress(progress) => self.on_move_progress(progress),
            DriverMessage::OtherRemoved { started_at, reply } => {
                let _ = reply.send(self.on_other_removed(&started_at).await);
            }
            DriverMessage::Tidied { archive } => self.on_tidied(&archive).await,
            DriverMessage::Notice { instance, what } => self.on_notice(&instance, what).await,
            DriverMessage::Due => self.on_due().await,
        }
    }

    /// A verb that somebody waits for. Answers with the phase in which it found the sandbox.
    async fn on_request(
        &mut self,
        action: &Action,
        reason: Reason,
        expect: Option<PhaseSet>,
    ) -> Result<Phase, ServiceError> {
        let (verb, found) = (action.verb(), self.lease.phase);
        self.guard(verb, expect)?;
        self.failure = None;
        match self.on_verb(action, reason).await {
            Ok(()) => Ok(found),
            Err(error) => Err(self.explain(verb, error)),
        }
    }

    async fn on_notice(&mut self, instance: &InstanceId, what: NoticeKind) {
        // A sandbox whose memory is on disk has no process that could die. Those that were ended when the memory was on disk, or that
        // a refused restore had begun to make, can be reported a moment late.
        let is_on_disk = self.lease.phase == Phase::Paused && self.lease.held == Some(MemoryLocation::Disk);
        if self.lease.instance.as_ref() != Some(instance) || is_on_disk {
            return self.count_late("notice");
        }
        match what {
            NoticeKind::Died => {
                if self.lease.phase.is_booting() {
                    self.failure =
                        Some(ServiceError::new(Code::Internal, "the instance ended while it started"));
                }
                self.note(Transition::internal(Event::Died, Reason::InstanceDied)).await;
            }
            NoticeKind::OutOfMemory => {
                let event = NewEvent {
                    at: self.inner.clock.now(),
                    instance: Some(instance.clone()),
                    what: EventKind::OutOfMemory,
                    by: None,
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
