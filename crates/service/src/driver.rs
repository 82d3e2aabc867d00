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

mod effects;
mod steps;
mod update;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use atoll_agentapi::AgentClient;
use atoll_model::lifecycle::{self, Event};
use atoll_model::policy::deadlines::{Due, next_deadline};
use atoll_model::{
    Code, EventKind, InstanceId, Intent, Lease, OnTimeout, Phase, Reason, SandboxId, UpdateSandbox,
};
use atoll_provider::NoticeKind;
use atoll_store::{Admit, Inserted, InstanceChange, InstanceRow, NewEvent, NewLease, StoreError};
use futures::FutureExt;
use tokio::sync::{mpsc, oneshot, watch};

use crate::ServiceError;
use crate::random::entropy;
use crate::registry::{Handle, MAILBOX, State};
use crate::service::Inner;
use crate::timed::timed;
use effects::{Done, Outcome, UnderWay, Work};
use steps::{Step, StepError};

/// What a driver is told.
pub(crate) enum Mail {
    /// Somebody asks for something.
    Verb { verb: Verb, reply: Reply },
    /// Somebody changes something.
    Update { change: Box<UpdateSandbox>, reply: Reply },
    /// The instance says something by itself.
    Notice { instance: InstanceId, what: NoticeKind },
    /// A deadline may have passed.
    Due,
}

/// Answered when the change is written; what it sets off goes on.
pub(crate) type Reply = oneshot::Sender<Result<Arc<Lease>, ServiceError>>;

/// What can be asked of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Start,
    Stop,
    Restart,
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
    agent: Option<AgentClient>,
    failure: Option<ServiceError>,
    publish: watch::Sender<State>,
    under_way: Option<UnderWay>,
    effects_started: u64,
    attempts: u32,
    done_in: mpsc::Sender<Done>,
    done_out: mpsc::Receiver<Done>,
}

/// Remembers a new sandbox and drives it from then on. The task owns the birth: a caller that goes away changes nothing.
pub(crate) fn birth(inner: &Arc<Inner>, new: NewLease, reply: oneshot::Sender<Result<Born, StoreError>>) {
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
                Ok(()) = &mut accepted, if begun.is_none() => begun = Some(Driver::begin(&own, &lease)),
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
        let (driver, handle, mailbox) = begun.unwrap_or_else(|| Driver::begin(&own, &lease));
        own.registry.put(id, handle.clone());
        let _ = reply.send(Ok(Born::New(handle)));
        driver.supervise(mailbox).await;
    });
}

/// Drives a sandbox that the store knows already; `first` is done before anything else.
pub(crate) fn resume(inner: &Arc<Inner>, lease: Lease, agent: Option<AgentClient>, first: Resumption) {
    let (mut driver, handle, mailbox) = Driver::new(inner, lease, agent);
    inner.registry.put(driver.lease.id.clone(), handle);
    inner.spawn(async move {
        driver.take_up(first).await;
        driver.supervise(mailbox).await;
    });
}

/// What a sandbox needs after a restart of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    /// A restart had come as far as its stop.
    Start,
}

impl Driver {
    /// A driver whose sandbox is being made.
    fn begin(inner: &Arc<Inner>, lease: &Lease) -> (Self, Handle, mpsc::Receiver<Mail>) {
        let (mut driver, handle, mailbox) = Self::new(inner, lease.clone(), None);
        driver.launch(Work::Create);
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
        agent: Option<AgentClient>,
    ) -> (Self, Handle, mpsc::Receiver<Mail>) {
        inner.deadlines.schedule(&lease, &inner.clock.now());
        let state = State { lease: Arc::new(lease.clone()), agent: agent.clone(), failure: None };
        let (publish, watched) = watch::channel(state);
        let (mailbox_in, mailbox) = mpsc::channel(MAILBOX);
        let (done_in, done_out) = mpsc::channel(4);
        let driver = Self {
            inner: Arc::clone(inner),
            lease,
            agent,
            failure: None,
            publish,
            under_way: None,
            effects_started: 0,
            attempts: 0,
            done_in,
            done_out,
        };
        (driver, Handle { mailbox: mailbox_in, state: watched }, mailbox)
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
            Phase::Creating | Phase::Starting | Phase::Stopping => {
                self.failure = Some(ServiceError::new(Code::Internal, "the sandbox's driver failed"));
                self.note(Step::internal(Event::Failed, reason)).await;
            }
            Phase::Deleting => self.launch(Work::Destroy),
            Phase::Running | Phase::Stopped | Phase::Failed | Phase::Deleted => {}
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
        match first {
            Resumption::Nothing => {}
            Resumption::Again => self.begin_again().await,
            Resumption::Halt => self.launch(Work::Halt { instance: self.lease.instance.clone() }),
            Resumption::Destroy => self.launch(Work::Destroy),
            Resumption::Start => self.start_after_stop().await,
            Resumption::Lost => self.note(Step::internal(Event::Died, Reason::LostWhileDown)).await,
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
            Mail::Verb { verb, reply } => {
                self.failure = None;
                let outcome = self.on_verb(verb).await.map_err(|error| self.explain(verb, error));
                let _ = reply.send(outcome.map(|()| Arc::new(self.lease.clone())));
            }
            Mail::Update { change, reply } => {
                let outcome = self.on_update(&change).await;
                let _ = reply.send(outcome.map(|()| Arc::new(self.lease.clone())));
            }
            Mail::Notice { instance, what } => self.on_notice(&instance, what).await,
            Mail::Due => self.on_due().await,
        }
    }

    async fn on_verb(&mut self, verb: Verb) -> Result<(), StepError> {
        match (verb, self.lease.phase) {
            (Verb::Start, _) | (Verb::Restart, Phase::Stopped | Phase::Failed) => self.on_start().await,
            // While it stops with the intent to run, the end of the stop starts it again, also after a crash.
            (Verb::Restart, _) => self.step(Step::asked(Event::Stop, Intent::Run)).await,
            (Verb::Stop, _) => self.step(Step::asked(Event::Stop, Intent::Stop)).await,
            (Verb::Delete, _) => self.step(Step::asked(Event::Delete, Intent::Delete)).await,
        }
    }

    async fn on_start(&mut self) -> Result<(), StepError> {
        let (to, _) = lifecycle::step(self.lease.phase, Event::Start)?;
        let was_held = self.lease.phase.holds_compute();
        if !was_held && to.holds_compute() {
            self.inner
                .admission
                .reserve(self.inner.provider.as_ref(), &self.lease.id, &self.lease.limits)
                .await
                .map_err(ServiceError::from)?;
        }
        let step = Step { admit: Admit::Compute, ..Step::asked(Event::Start, Intent::Run) };
        let outcome = self.step(step).await;
        if outcome.is_err() && !was_held {
            self.inner.admission.release(&self.lease.id);
        }
        outcome
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

    async fn on_due(&mut self) {
        let now = self.inner.clock.now();
        let Some((at, due)) = next_deadline(&self.lease) else { return };
        if at.ms_after(&now) > 0 {
            return self.inner.deadlines.schedule(&self.lease, &now);
        }
        let step = match due {
            Due::PhaseOverdue => {
                let message = format!("the sandbox was {} for too long", self.lease.phase.as_str());
                self.failure = Some(ServiceError::new(Code::DeadlineExceeded, message));
                Step::internal(Event::Failed, Reason::Overdue)
            }
            Due::Timeout(OnTimeout::Delete) => {
                Step { intent: Some(Intent::Delete), ..Step::internal(Event::Delete, Reason::TimedOut) }
            }
            Due::Timeout(OnTimeout::Stop) => {
                Step { intent: Some(Intent::Stop), ..Step::internal(Event::Stop, Reason::TimedOut) }
            }
        };
        self.note(step).await;
        let still =
            next_deadline(&self.lease).is_some_and(|(at, _)| at.ms_after(&self.inner.clock.now()) <= 0);
        if still {
            // It could not be written; somebody must look again, but not in a loop.
            self.inner.deadlines.again(self.id(), &self.inner.clock.now());
        }
    }

    async fn on_done(&mut self, done: Done) {
        if self.under_way.as_ref().is_none_or(|current| current.number != done.number) {
            return self.count_late("effect");
        }
        self.under_way = None;
        match done.outcome {
            Outcome::Booted { row, agent, from_pool } => self.on_booted(row, agent, from_pool).await,
            Outcome::NotBooted(failure) => {
                self.inner.counters.failed.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(sandbox = %self.lease.id, error = %failure, cause = ?failure.cause, "it did not boot");
                let reason = Reason::Provider { message: failure.message.clone() };
                self.failure = Some(failure);
                self.note(Step::internal(Event::Failed, reason)).await;
            }
            Outcome::Halted(Ok(())) => self.on_halted().await,
            Outcome::Halted(Err(failure)) if self.lease.phase == Phase::Stopping => {
                let reason = Reason::Provider { message: failure.message.clone() };
                self.failure = Some(failure);
                self.note(Step::internal(Event::Failed, reason)).await;
            }
            Outcome::Halted(Err(failure)) => self.try_again(Work::Halt { instance: done.instance }, &failure),
            Outcome::Destroyed(Ok(())) => self.note(Step::internal(Event::Deleted, Reason::Completed)).await,
            Outcome::Destroyed(Err(failure)) => self.try_again(Work::Destroy, &failure),
        }
    }

    async fn on_booted(&mut self, row: InstanceRow, agent: AgentClient, from_pool: bool) {
        if self.lease.instance.as_ref() != Some(&row.instance) {
            return self.count_late("instance");
        }
        self.agent = Some(agent);
        self.failure = None;
        let first = self.lease.phase == Phase::Creating;
        let ready =
            Step { instance: InstanceChange::Put(row), ..Step::internal(Event::Ready, Reason::Completed) };
        self.note(ready).await;
        if self.lease.phase == Phase::Running && first {
            self.inner.counters.created.fetch_add(1, Ordering::Relaxed);
            self.inner.counters.from_pool.fetch_add(u64::from(from_pool), Ordering::Relaxed);
        }
    }

    async fn on_halted(&mut self) {
        if self.lease.phase != Phase::Stopping {
            return;
        }
        self.note(Step::internal(Event::Stopped, Reason::Completed)).await;
        if self.lease.phase == Phase::Stopped && self.lease.intent == Intent::Run {
            self.start_after_stop().await;
        }
    }

    /// The second half of a restart. Without room or quota it stays stopped, with the intent to run.
    async fn start_after_stop(&mut self) {
        if let Err(error) = self.on_start().await {
            let failure = self.explain(Verb::Restart, error);
            tracing::warn!(sandbox = %self.lease.id, error = %failure, "a restart ended after the stop");
            self.failure = Some(failure);
            self.publish();
        }
    }

    /// Ends never give up; each attempt waits longer than the one before, up to half a minute.
    fn try_again(&mut self, work: Work, failure: &ServiceError) {
        self.attempts += 1;
        let delay = Duration::from_millis(250 << self.attempts.min(7));
        tracing::warn!(sandbox = %self.lease.id, error = %failure, cause = ?failure.cause, ?delay, "will be tried again");
        self.launch_after(work, delay);
    }

    fn count_late(&self, what: &str) {
        self.inner.counters.late_effects.fetch_add(1, Ordering::Relaxed);
        tracing::info!(sandbox = %self.lease.id, what, "late, dropped");
    }

    fn id(&self) -> &SandboxId {
        &self.lease.id
    }
}
