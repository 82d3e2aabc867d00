//! The activity of one sandbox, as the running server sees it: open requests, terminals and commands, and the last
//! check of its counters. It is in memory only; a restarted server treats every sandbox as active once, so that no
//! timer fires early. This module makes no decisions: the driver uses it.

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

/// LIMIT: an SDK keeps a connection per running command and watch; 2,000 at once is its own bound.
const SESSIONS_MAX: usize = 2_000;

/// What keeps a sandbox awake as long as it is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ActivityKind {
    /// A request that is being answered.
    Request,
    /// A terminal with a connected client.
    Terminal,
    /// A command with a waiting client.
    Command,
}

pub(crate) struct Activity {
    clock: Arc<dyn Clock>,
    seen: Mutex<ActivityState>,
    pulse: Mutex<(Option<InstanceId>, watch::Sender<InstanceLiveness>)>,
    looking: AtomicBool,
    /// Whether the driver waits for the result of a check.
    awaited: AtomicBool,
    /// Sessions that may be held by a pass.
    pub(crate) sessions: Arc<Semaphore>,
    /// Limits the requests that wait for the sandbox to wake.
    pub(crate) waiters: Semaphore,
    /// Held by the request that asks the driver to wake the sandbox.
    pub(crate) wake_turn: Semaphore,
}

struct ActivityState {
    open: [u32; 3],
    active_at: Timestamp,
    /// Until when a program in the sandbox requested a hold.
    held_inside: Option<Timestamp>,
    counted: Option<UsageCounters>,
    looked: Option<IdleCheck>,
    falls_asleep: bool,
    phase: Phase,
    /// Changes whenever the processes were lost.
    epoch: u64,
    tried: Vec<TimerAttempt>,
}

/// Counters at the last check that counted.
struct UsageCounters {
    instance: Option<InstanceId>,
    boot_ms: i64,
    cpu_us: u64,
    sent_bytes: u64,
}

/// The result of the last check.
#[derive(Debug, Clone)]
struct IdleCheck {
    at: Timestamp,
    cpu_milli: u32,
    sent_bytes: u64,
}

/// An attempt of a timer, and when it is repeated.
#[derive(Debug, Clone)]
pub(crate) struct TimerAttempt {
    pub(crate) due: Due,
    /// `None` while the attempt is running.
    pub(crate) until: Option<Timestamp>,
    times: u32,
    /// The phase before the attempt; if the phase differs afterwards, the attempt succeeded.
    phase: Phase,
}

/// Two checks within this time measure the clock rather than the sandbox.
const APART_MS: i64 = 200;
/// How long the result of a check is valid for a decision.
const FRESH_MS: i64 = 3_000;

impl Activity {
    /// The activity of a sandbox that counts as active now.
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
            sessions: Arc::new(Semaphore::new(SESSIONS_MAX)),
            waiters: Semaphore::new(waiters),
            wake_turn: Semaphore::new(1),
        })
    }

    /// Begins an activity; it lasts until the guard is dropped.
    pub(crate) fn begin(self: &Arc<Self>, kind: ActivityKind) -> Busy {
        self.lock().open[kind as usize] += 1;
        Busy { activity: Arc::clone(self), kind }
    }

    /// Updates the lease with the time of the last activity, for its timers.
    pub(crate) fn refresh(&self, lease: &mut Lease, now: &Timestamp) {
        lease.active_at = Some(self.quiet_since(now));
    }

    /// When the idle time began; in the future while a program in the sandbox has a hold.
    fn quiet_since(&self, now: &Timestamp) -> Timestamp {
        let seen = self.lock();
        let last = if seen.open.iter().any(|open| *open > 0) { now } else { &seen.active_at };
        match &seen.held_inside {
            Some(held) if held.ms_after(last) > 0 => held.clone(),
            _ => last.clone(),
        }
    }

    /// The time of the last activity.
    pub(crate) fn active_at(&self, now: &Timestamp) -> Timestamp {
        let quiet = self.quiet_since(now);
        if quiet.ms_after(now) > 0 { now.clone() } else { quiet }
    }

    /// The current signals; CPU and network are those of the last check.
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

    /// Why the sandbox is awake now.
    pub(crate) fn because(&self, lease: &Lease, now: &Timestamp) -> Vec<AwakeReason> {
        idle::reasons(&self.signals(lease, now))
    }

    /// Whether the next check can measure CPU: there was an earlier check of the same instance.
    pub(crate) fn has_baseline(&self, instance: Option<&InstanceId>) -> bool {
        self.lock().counted.as_ref().is_some_and(|counted| counted.instance.as_ref() == instance)
    }

    /// Whether the last check is at least `ms` old, or there was none.
    pub(crate) fn wants_look(&self, now: &Timestamp, ms: i64) -> bool {
        self.lock().looked.as_ref().is_none_or(|looked| now.ms_after(&looked.at) >= ms)
    }

    /// Whether there was a check after `due`, and not long ago.
    pub(crate) fn looked_since(&self, due: &Timestamp, now: &Timestamp) -> bool {
        let seen = self.lock();
        let fresh = |looked: &IdleCheck| looked.at.ms_after(due) >= 0 && now.ms_after(&looked.at) < FRESH_MS;
        seen.looked.as_ref().is_some_and(fresh)
    }

    /// Records the result of a check; activity updates the time of the last activity. `held_s` is absent if the agent
    /// did not answer: then its last answer remains valid. Returns `true` if a hold ended, so that a timer may be due
    /// earlier.
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
                sent_bytes = usage.sent_bytes().saturating_sub(before.sent_bytes);
            }
            _ => {}
        }
        if elapsed.is_none_or(|ms| ms >= APART_MS) {
            seen.counted = Some(UsageCounters {
                instance: instance.cloned(),
                boot_ms: now.boot_ms,
                cpu_us: usage.cpu_us,
                sent_bytes: usage.sent_bytes(),
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
        // The first check of an instance has no baseline; only the next one measures activity.
        if elapsed.is_some() {
            seen.looked = Some(IdleCheck { at: now, cpu_milli, sent_bytes });
        }
        ended_since
    }

    /// The driver wants a notification about the next check with a result.
    pub(crate) fn await_look(&self) {
        self.awaited.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_look_awaited(&self) -> bool {
        self.awaited.swap(false, Ordering::SeqCst)
    }

    /// Begins a check; `None` if another one is running.
    pub(crate) fn look_begins(self: &Arc<Self>) -> Option<IdleCheckGuard> {
        (!self.looking.swap(true, Ordering::SeqCst)).then(|| IdleCheckGuard(Arc::clone(self)))
    }

    /// The driver is about to pause or stop an idle sandbox. Returns `false` if an activity began meanwhile. From now
    /// on until the next published phase (or [`Activity::stays_awake`]) a new request waits for the driver instead of
    /// using an agent that is about to be frozen.
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

    /// Called when the driver publishes the lease.
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

    /// The liveness of the current instance.
    pub(crate) fn pulse(&self) -> watch::Receiver<InstanceLiveness> {
        self.pulse.lock().unwrap_or_else(PoisonError::into_inner).1.subscribe()
    }

    /// A number that stays the same as long as the processes live, across pauses and restores of their memory.
    pub(crate) fn epoch(&self) -> u64 {
        self.lock().epoch
    }

    pub(crate) fn tried(&self) -> Vec<TimerAttempt> {
        self.lock().tried.clone()
    }

    /// Begins an attempt of a timer; returns how many there were in a row.
    pub(crate) fn attempt_begins(&self, due: Due, phase: Phase) -> u32 {
        let mut seen = self.lock();
        let at = seen.tried.iter().position(|tried| tried.due == due);
        let before = at.map_or(0, |at| seen.tried.swap_remove(at).times);
        let times = before.saturating_add(1);
        seen.tried.push(TimerAttempt { due, until: None, times, phase });
        times
    }

    /// Evaluates the attempts of timers: if the sandbox is in the same phase as before, the attempt failed.
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

    /// Sets when a failed attempt of a timer is repeated.
    pub(crate) fn postpone_attempt(&self, due: Due, until: &Timestamp) {
        for tried in self.lock().tried.iter_mut().filter(|tried| tried.due == due) {
            tried.until = Some(until.clone());
        }
    }

    /// Forgets the attempts of a timer, so that it is due again at its time.
    pub(crate) fn forget_attempts(&self, due: Due) {
        self.lock().tried.retain(|tried| tried.due != due);
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

/// Metrics: sandboxes that were paused, stopped or woken, by reason.
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
        | Reason::QueueTimedOut
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

/// An open activity. Its end counts as activity too.
pub(crate) struct Busy {
    activity: Arc<Activity>,
    kind: ActivityKind,
}

/// A stream that keeps a sandbox busy until it ends or is dropped.
pub(crate) fn during<T: Send + 'static>(
    busy: Arc<Busy>,
    stream: impl Stream<Item = T> + Send + 'static,
) -> BoxStream<'static, T> {
    // The closure owns the guard, so both end together.
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

/// A running check of the sandbox.
pub(crate) struct IdleCheckGuard(Arc<Activity>);

impl Drop for IdleCheckGuard {
    fn drop(&mut self) {
        self.0.looking.store(false, Ordering::SeqCst);
    }
}
