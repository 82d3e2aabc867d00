//! One queue over the deadlines of this node's sandboxes. The column `due_at` of the store has them for good; the queue
//! is what drivers published last, and every look also takes overdue rows of the store. An entry only wakes the driver,
//! which calls `next_deadline` again, so a stale or early entry is harmless.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_model::policy::deadlines::{Due, next_deadline};
use atoll_model::{Code, Lease, OnExit, OnTimeout, Phase, SandboxId, Storage, Timestamp};
use atoll_provider::{Capability, Provider};
use tokio::sync::Notify;

use crate::ServiceError;
use crate::activity::Activity;
use crate::driver::DriverMessage;
use crate::sandboxes::SandboxesState;

/// LIMIT: tokio's timer stops while the machine is suspended, CLOCK_BOOTTIME does not; so no sleep is longer.
const SLEEP_MAX: Duration = Duration::from_secs(15);
/// How soon a driver that was busy, or could not write, is woken again.
const AGAIN_MS: i64 = 500;

/// Due sandboxes, the next one first, in milliseconds of this boot.
#[derive(Default)]
pub(crate) struct Deadlines {
    queue: Mutex<DeadlineQueue>,
    sooner: Notify,
}

#[derive(Default)]
struct DeadlineQueue {
    order: BTreeSet<(i64, SandboxId)>,
    of: HashMap<SandboxId, i64>,
}

impl DeadlineQueue {
    fn set(&mut self, id: &SandboxId, at: Option<i64>) {
        let before = match at {
            Some(at) => self.of.insert(id.clone(), at),
            None => self.of.remove(id),
        };
        if let Some(before) = before {
            self.order.remove(&(before, id.clone()));
        }
        if let Some(at) = at {
            self.order.insert((at, id.clone()));
        }
    }
}

impl Deadlines {
    /// Records when this sandbox is due next, or that it is not.
    pub(crate) fn schedule(&self, id: &SandboxId, due: Option<&Timestamp>, now: &Timestamp) {
        let at = due.map(|due| now.boot_ms.saturating_add(due.ms_after(now)));
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.set(id, at);
        if at.is_some() && queue.order.first().is_some_and(|(_, first)| first == id) {
            self.sooner.notify_one();
        }
    }

    /// Removes the due sandboxes from the queue and returns the time until the next one.
    fn due(&self, now: &Timestamp) -> (Vec<SandboxId>, Duration) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let mut due = Vec::new();
        while let Some((at, id)) = queue.order.first().cloned() {
            if at > now.boot_ms {
                let wait = u64::try_from(at - now.boot_ms).unwrap_or(0);
                return (due, Duration::from_millis(wait).min(SLEEP_MAX));
            }
            queue.set(&id, None);
            due.push(id);
        }
        (due, SLEEP_MAX)
    }

    pub(crate) fn again(&self, id: &SandboxId, now: &Timestamp) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).set(id, Some(now.boot_ms + AGAIN_MS));
        self.sooner.notify_one();
    }
}

/// When this lease is due next, and for what: its timers with the newest activity. Timers that failed are not due
/// before their next attempt.
pub(crate) fn next_due(lease: &Lease, activity: &Activity, now: &Timestamp) -> Option<(Timestamp, Due)> {
    let mut lease = Cow::Borrowed(lease);
    let sleeps = lease.timers.auto_pause_s.is_some() || lease.timers.auto_stop_s.is_some();
    if lease.phase == Phase::Running && sleeps {
        activity.refresh(lease.to_mut(), now);
    }
    let tried = activity.tried();
    let mut candidates = Vec::new();
    while let Some((at, due)) = next_deadline(&lease) {
        let again = tried.iter().find(|tried| tried.due == due).and_then(|tried| tried.until.clone());
        match again {
            Some(until) if until.ms_after(&at) > 0 => {
                candidates.push((until, due));
                switch_off(lease.to_mut(), due);
            }
            _ => {
                candidates.push((at, due));
                break;
            }
        }
    }
    candidates.into_iter().min_by_key(|(at, _)| at.ms_after(now))
}

/// Refuses timers that this provider cannot carry out.
pub(crate) fn check_possible(provider: &dyn Provider, lease: &Lease) -> Result<(), ServiceError> {
    let can = provider.capabilities();
    let pauses = lease.timers.auto_pause_s.is_some()
        || lease.on_timeout == OnTimeout::Pause
        || lease.on_exit == OnExit::Pause;
    let in_memory = lease.storage == Storage::Memory;
    if in_memory && (lease.timers.checkpoint_after_s.is_some() || lease.timers.auto_archive_s.is_some()) {
        let message = "a timer cannot checkpoint or archive a sandbox whose files are in memory";
        return Err(ServiceError::new(Code::Unsupported, message)
            .hint("omit checkpoint_after and auto_archive, or keep the files on disk"));
    }
    let missing = match &lease.timers {
        _ if pauses && !can.pauses => Capability::Pause,
        timers if timers.checkpoint_after_s.is_some() && !can.checkpoints => Capability::Checkpoint,
        timers if timers.auto_archive_s.is_some() && !can.packs => Capability::Archive,
        timers
            if !can.keeps_files && (timers.auto_stop_s.is_some() || lease.on_timeout == OnTimeout::Stop) =>
        {
            Capability::KeepFiles
        }
        _ => return Ok(()),
    };
    let refused = ServiceError::from(provider.missing(missing));
    let hint = refused.hint.iter().map(String::as_str).chain(["leave that timer out"]).collect::<Vec<_>>();
    let hint = hint.join("; or ");
    Err(refused.hint(hint))
}

/// Removes from the lease what makes it due for this.
fn switch_off(lease: &mut Lease, due: Due) {
    match due {
        // A passing phase has one deadline, and it is never retried.
        Due::PhaseOverdue | Due::QueueTimeout => {}
        Due::Timeout(_) => lease.timeout_at = None,
        Due::IdlePause => lease.timers.auto_pause_s = None,
        Due::IdleStop => lease.timers.auto_stop_s = None,
        Due::Checkpoint => lease.timers.checkpoint_after_s = None,
        Due::Archive => lease.timers.auto_archive_s = None,
        Due::Delete => lease.timers.auto_delete_s = None,
    }
}

/// How often overdue rows of the store are read.
const READ_EVERY_MS: i64 = 15_000;
/// LIMIT: overdue rows of one read; the next one has the rest.
const OVERDUE: u32 = 1_000;

/// Sandboxes of this node that are overdue by the store. A busy one whose activity is not written yet is among them; its
/// driver knows better.
async fn overdue(inner: &SandboxesState, now: &Timestamp) -> Vec<SandboxId> {
    match inner.store.due(now.wall_ms, OVERDUE).await {
        Ok(due) => due,
        Err(error) => {
            tracing::warn!(%error, "overdue sandboxes could not be read");
            Vec::new()
        }
    }
}

/// Starts the one task that looks at the queue.
pub(crate) fn start(inner: &Arc<SandboxesState>) {
    let own = Arc::clone(inner);
    inner.spawn(async move {
        let mut read_at = own.clock.now().boot_ms;
        loop {
            let now = own.clock.now();
            let (mut due, wait) = own.deadlines.due(&now);
            if now.boot_ms - read_at >= READ_EVERY_MS {
                read_at = now.boot_ms;
                due.extend(overdue(&own, &now).await);
            }
            for id in due {
                let Some(handle) = own.registry.get(&id) else { continue };
                if handle.mailbox.try_send(DriverMessage::Due.into()).is_err() {
                    own.deadlines.again(&id, &now);
                }
            }
            tokio::select! {
                () = own.closing.cancelled() => return,
                () = own.deadlines.sooner.notified() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    });
}
