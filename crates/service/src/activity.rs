//! What works in one sandbox, as the live server sees it: open requests, terminals and commands, and what the last look at
//! its counters showed. In memory only; a server that comes back takes every sandbox for active once, so nothing fires
//! early. It decides nothing: the driver asks it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_agentapi::InstanceLiveness;
use atoll_model::lifecycle::phase_deadline_ms;
use atoll_model::policy::deadlines::Due;
use atoll_model::policy::idle::{self, AwakeReason, Signals};
use atoll_model::{InstanceId, Lease, Phase, Reason, Timestamp};
use atoll_provider::InstanceUsage;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use tokio::sync::{Semaphore, watch};

use crate::Clock;

/// What keeps a sandbox awake for as long as it is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ActivityKind {
    /// A request that is being answered.
    Request,
    /// A terminal with somebody at the other end.
    Terminal,
    /// A command that somebody waits for.
    Command,
}

pub(crate) struct Activity {
    clock: Arc<dyn Clock>,
    seen: Mutex<ActivityState>,
    pulse: Mutex<(Option<InstanceId>, watch::Sender<InstanceLiveness>)>,
    looking: AtomicBool,
    /// The driver waits for what a look shows.
    awaited: AtomicBool,
    /// Requests that may wait for it to wake.
    pub(crate) waiters: Semaphore,
    /// Held by the request that asks the driver to wake the sandbox.
    pub(crate) wake_turn: Semaphore,
}

struct ActivityState {
    open: [u32; 3],
    active_at: Timestamp,
    /// Until when a program inside asked to be kept awake.
    held_inside: Option<Timestamp>,
    counted: Option<UsageCounters>,
    looked: Option<IdleCheck>,
    falls_asleep: bool,
    phase: Phase,
    /// Changes whenever processes were lost.
    epoch: u64,
    tried: Vec<TimerAttempt>,
}

/// Counters at the last look that counted.
struct UsageCounters {
    instance: Option<InstanceId>,
    boot_ms: i64,
    cpu_us: u64,
    sent_bytes: u64,
}

/// What the last look showed.
#[derive(Debug, Clone)]
struct IdleCheck {
    at: Timestamp,
    cpu_milli: u32,
    sent_bytes: u64,
}

/// A timer that did its work, perhaps in vain, and when it tries again.
#[derive(Debug, Clone)]
pub(crate) struct TimerAttempt {
    pub(crate) due: Due,
    /// `None` while it is under way.
    pub(crate) until: Option<Timestamp>,
    times: u32,
    /// Where the sandbox was; if it is somewhere else afterwards, the work was done.
    phase: Phase,
}

/// Two looks closer than this tell more about the clock than about the sandbox.
const APART_MS: i64 = 200;
/// How long a look holds for a decision.
const FRESH_MS: i64 = 3_000;

impl Activity {
    /// Of a sandbox that counts as active now.
    pub(crate) fn new(clock: Arc<dyn Clock>, lease: &Lease, waiters: usize) -> Arc<Self> {
        let seen = ActivityState {
            open: [0; 3],
            active_at: clock.now(),
            held_inside: None,
            counted: None,
            looked: None,
            falls_asleep: false,
            phase: lease.phase,
            epoch: 0,
            tried: Vec::new(),
        };
        let pulse = watch::Sender::new(pulse_of(lease.phase));
        Arc::new(Self {
            clock,
            seen: Mutex::new(seen),
            pulse: Mutex::new((lease.instance.clone(), pulse)),
            looking: AtomicBool::new(false),
            awaited: AtomicBool::new(false),
            waiters: Semaphore::new(waiters),
            wake_turn: Semaphore::new(1),
        })
    }

    /// Something begins; it goes on until the guard is dropped.
    pub(crate) fn begin(self: &Arc<Self>, kind: ActivityKind) -> Busy {
        self.lock().open[kind as usize] += 1;
        Busy { activity: Arc::clone(self), kind }
    }

    /// The lease with the newest work in it, for its timers.
    pub(crate) fn refresh(&self, lease: &mut Lease, now: &Timestamp) {
        lease.active_at = Some(self.quiet_since(now));
    }

    /// When idle time began; in the future while a program inside holds it.
    fn quiet_since(&self, now: &Timestamp) -> Timestamp {
        let seen = self.lock();
        let last = if seen.open.iter().any(|open| *open > 0) { now } else { &seen.active_at };
        match &seen.held_inside {
            Some(held) if held.ms_after(last) > 0 => held.clone(),
            _ => last.clone(),
        }
    }

    /// When something last worked in it.
    pub(crate) fn active_at(&self, now: &Timestamp) -> Timestamp {
        let quiet = self.quiet_since(now);
        if quiet.ms_after(now) > 0 { now.clone() } else { quiet }
    }

    /// What is known now; CPU and network are as of the last look.
    pub(crate) fn signals(&self, lease: &Lease, now: &Timestamp) -> Signals {
        let seen = self.lock();
        let ahead = |until: &Timestamp| u64::try_from(until.ms_after(now)).unwrap_or(0).div_ceil(1_000);
        let [requests, terminals, commands] = seen.open;
        Signals {
            requests,
            terminals,
            commands,
            cpu_milli: seen.looked.as_ref().map_or(0, |looked| looked.cpu_milli),
            sent_bytes: seen.looked.as_ref().map_or(0, |looked| looked.sent_bytes),
            held_inside_s: seen.held_inside.as_ref().map_or(0, ahead),
            held: lease.hold.as_ref().is_some_and(|hold| hold.until.ms_after(now) > 0),
        }
    }

    /// Why it is awake now.
    pub(crate) fn because(&self, lease: &Lease, now: &Timestamp) -> Vec<AwakeReason> {
        idle::reasons(&self.signals(lease, now))
    }

    /// Whether CPU can be told at the next look: there was one before it of the same instance.
    pub(crate) fn has_baseline(&self, instance: Option<&InstanceId>) -> bool {
        self.lock().counted.as_ref().is_some_and(|counted| counted.instance.as_ref() == instance)
    }

    /// Whether the last look is as old as `ms`, or there was none.
    pub(crate) fn wants_look(&self, now: &Timestamp, ms: i64) -> bool {
        self.lock().looked.as_ref().is_none_or(|looked| now.ms_after(&looked.at) >= ms)
    }

    /// Whether it was looked at after `due`, and not long ago.
    pub(crate) fn looked_since(&self, due: &Timestamp, now: &Timestamp) -> bool {
        let seen = self.lock();
        let fresh = |looked: &IdleCheck| looked.at.ms_after(due) >= 0 && now.ms_after(&looked.at) < FRESH_MS;
        seen.looked.as_ref().is_some_and(fresh)
    }

    /// Notes what a look showed; work moves the time of the last activity. `held_s` is absent where the agent did not
    /// answer: then what it said before holds. True: a hold ended, so that a timer may be due earlier than it was.
    pub(crate) fn note(
        &self,
        instance: Option<&InstanceId>,
        usage: &InstanceUsage,
        held_s: Option<u64>,
    ) -> bool {
        let now = self.clock.now();
        let mut seen = self.lock();
        let (mut cpu_milli, mut sent_bytes) = (0, 0);
        let before = seen.counted.as_ref().filter(|counted| counted.instance.as_ref() == instance);
        let elapsed = before.map(|counted| now.boot_ms.saturating_sub(counted.boot_ms));
        match (before, elapsed) {
            (Some(_), Some(ms)) if ms < APART_MS => {
                if let Some(looked) = &seen.looked {
                    (cpu_milli, sent_bytes) = (looked.cpu_milli, looked.sent_bytes);
                }
            }
            (Some(before), Some(ms)) => {
                let busy_us = usage.cpu_us.saturating_sub(before.cpu_us);
                let milli = busy_us / u64::try_from(ms).unwrap_or(1).max(1);
                cpu_milli = u32::try_from(milli).unwrap_or(u32::MAX);
                sent_bytes = usage.sent_bytes.saturating_sub(before.sent_bytes);
            }
            _ => {}
        }
        if elapsed.is_none_or(|ms| ms >= APART_MS) {
            seen.counted = Some(UsageCounters {
                instance: instance.cloned(),
                boot_ms: now.boot_ms,
                cpu_us: usage.cpu_us,
                sent_bytes: usage.sent_bytes,
            });
        }
        let was_held = seen.held_inside.is_some();
        if let Some(held_s) = held_s {
            let ms = i64::try_from(held_s.saturating_mul(1_000)).unwrap_or(i64::MAX);
            seen.held_inside = (held_s > 0).then(|| now.plus_ms(ms));
        }
        let ended_since = was_held && seen.held_inside.is_none();
        if cpu_milli > idle::CPU_FLOOR_MILLI || sent_bytes > idle::SENT_FLOOR_BYTES || ended_since {
            seen.active_at = now.clone();
        }
        // The first look at an instance tells nothing of its work; only the next one does.
        if elapsed.is_some() {
            seen.looked = Some(IdleCheck { at: now, cpu_milli, sent_bytes });
        }
        ended_since
    }

    /// The driver wants to be told of the next look that shows something.
    pub(crate) fn await_look(&self) {
        self.awaited.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_look_awaited(&self) -> bool {
        self.awaited.swap(false, Ordering::SeqCst)
    }

    /// One look at a time; `None`: somebody looks already.
    pub(crate) fn look_begins(self: &Arc<Self>) -> Option<IdleCheckGuard> {
        (!self.looking.swap(true, Ordering::SeqCst)).then(|| IdleCheckGuard(Arc::clone(self)))
    }

    /// The driver is about to put an idle sandbox to sleep. False: something began meanwhile. From here on until the next
    /// published phase (or [`Activity::stays_awake`]) a request that comes waits for the driver instead of an agent that
    /// is about to stand still.
    pub(crate) fn falls_asleep(&self) -> bool {
        let mut seen = self.lock();
        seen.falls_asleep = seen.open.iter().all(|open| *open == 0);
        seen.falls_asleep
    }

    pub(crate) fn stays_awake(&self) {
        self.lock().falls_asleep = false;
    }

    pub(crate) fn is_falling_asleep(&self) -> bool {
        self.lock().falls_asleep
    }

    /// The driver publishes the lease.
    pub(crate) fn observe(&self, lease: &Lease) {
        {
            let mut seen = self.lock();
            let before = std::mem::replace(&mut seen.phase, lease.phase);
            if lease.phase != Phase::Running {
                seen.falls_asleep = false;
            }
            if !lease.phase.keeps_processes() {
                seen.epoch += 1;
            }
            if before != lease.phase {
                count(lease.phase, &lease.reason);
            }
        }
        let mut pulse = self.pulse.lock().unwrap_or_else(PoisonError::into_inner);
        if pulse.0 != lease.instance {
            pulse.1.send_replace(InstanceLiveness::Gone);
            *pulse = (lease.instance.clone(), watch::Sender::new(pulse_of(lease.phase)));
        } else {
            pulse.1.send_if_modified(|now| std::mem::replace(now, pulse_of(lease.phase)) != *now);
        }
    }

    /// The pulse of the instance that is there now.
    pub(crate) fn pulse(&self) -> watch::Receiver<InstanceLiveness> {
        self.pulse.lock().unwrap_or_else(PoisonError::into_inner).1.subscribe()
    }

    /// The same number as long as processes live on, through pauses and restores of their memory.
    pub(crate) fn epoch(&self) -> u64 {
        self.lock().epoch
    }

    pub(crate) fn tried(&self) -> Vec<TimerAttempt> {
        self.lock().tried.clone()
    }

    /// A timer does its work; says for the how manieth time in a row.
    pub(crate) fn attempt_begins(&self, due: Due, phase: Phase) -> u32 {
        let mut seen = self.lock();
        let at = seen.tried.iter().position(|tried| tried.due == due);
        let before = at.map_or(0, |at| seen.tried.swap_remove(at).times);
        let times = before.saturating_add(1);
        seen.tried.push(TimerAttempt { due, until: None, times, phase });
        times
    }

    /// Where timers led: a sandbox that rests where it was before shows that the work was in vain.
    pub(crate) fn attempt_over(&self, lease: &Lease, again: impl Fn(u32) -> Timestamp) {
        if phase_deadline_ms(lease.phase).is_some() {
            return;
        }
        let mut seen = self.lock();
        seen.tried.retain(|tried| tried.phase == lease.phase);
        for tried in seen.tried.iter_mut().filter(|tried| tried.until.is_none()) {
            tried.until = Some(again(tried.times));
        }
    }

    fn lock(&self) -> MutexGuard<'_, ActivityState> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const fn pulse_of(phase: Phase) -> InstanceLiveness {
    match phase {
        Phase::Pausing | Phase::Paused | Phase::Resuming => InstanceLiveness::Still,
        Phase::Creating
        | Phase::Running
        | Phase::Stopping
        | Phase::Stopped
        | Phase::Starting
        | Phase::Archiving
        | Phase::Archived
        | Phase::Restoring
        | Phase::Deleting
        | Phase::Deleted
        | Phase::Failed => InstanceLiveness::Beats,
    }
}

/// Figures for `/metrics`: what fell asleep and what was woken, and why.
fn count(phase: Phase, reason: &Reason) {
    let why = match reason {
        Reason::Requested => "requested",
        Reason::TimedOut => "timed_out",
        Reason::Idle => "idle",
        Reason::Aged => "aged",
        Reason::Woken => "woken",
        Reason::Exit => "exit",
        Reason::Completed
        | Reason::Overdue
        | Reason::InstanceDied
        | Reason::LostWhileDown
        | Reason::ImageUnavailable { .. }
        | Reason::Provider { .. } => "other",
    };
    let name = match phase {
        Phase::Pausing => "atoll_pauses_total",
        Phase::Stopping => "atoll_stops_total",
        Phase::Archiving => "atoll_archives_total",
        Phase::Resuming | Phase::Starting => "atoll_starts_total",
        _ => return,
    };
    metrics::counter!(name, "reason" => why).increment(1);
}

/// Something is open. Its end is activity too.
pub(crate) struct Busy {
    activity: Arc<Activity>,
    kind: ActivityKind,
}

/// A stream that keeps a sandbox busy until it ends or is dropped.
pub(crate) fn during<T: Send + 'static>(
    busy: Arc<Busy>,
    stream: impl Stream<Item = T> + Send + 'static,
) -> BoxStream<'static, T> {
    // The closure owns it: both end together.
    stream
        .map(move |item| {
            let _busy = &busy;
            item
        })
        .boxed()
}

impl std::fmt::Debug for Busy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Busy").field(&self.kind).finish()
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let now = self.activity.clock.now();
        let mut seen = self.activity.lock();
        let open = &mut seen.open[self.kind as usize];
        *open = open.saturating_sub(1);
        seen.active_at = now;
    }
}

/// Somebody looks at the sandbox.
pub(crate) struct IdleCheckGuard(Arc<Activity>);

impl Drop for IdleCheckGuard {
    fn drop(&mut self) {
        self.0.looking.store(false, Ordering::SeqCst);
    }
}
