//! One queue over all deadlines. It only says that somebody should look: the driver asks `next_deadline` again, so an
//! entry that is stale or early does no harm.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_model::policy::deadlines::next_deadline;
use atoll_model::{Lease, Moment, SandboxId};
use tokio::sync::Notify;

use crate::driver::Mail;
use crate::service::Inner;

/// LIMIT: tokio's timer stands still while the machine sleeps, CLOCK_BOOTTIME does not; so no sleep is longer.
const SLEEP_MAX: Duration = Duration::from_secs(15);
/// How soon a driver that was busy, or could not write, is asked again.
const AGAIN_MS: i64 = 500;

/// Due sandboxes, the next one first, in milliseconds of this boot.
#[derive(Default)]
pub(crate) struct Deadlines {
    queue: Mutex<Queue>,
    sooner: Notify,
}

#[derive(Default)]
struct Queue {
    order: BTreeSet<(i64, SandboxId)>,
    of: HashMap<SandboxId, i64>,
}

impl Queue {
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
    /// Notes when this lease is due next, or that it is not.
    pub(crate) fn schedule(&self, lease: &Lease, now: &Moment) {
        let at = next_deadline(lease).map(|(due, _)| now.boot_ms.saturating_add(due.ms_after(now)));
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.set(&lease.id, at);
        if at.is_some() && queue.order.first().is_some_and(|(_, first)| *first == lease.id) {
            self.sooner.notify_one();
        }
    }

    /// Takes what is due out of the queue and says how long until the next.
    fn due(&self, now: &Moment) -> (Vec<SandboxId>, Duration) {
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

    pub(crate) fn again(&self, id: &SandboxId, now: &Moment) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).set(id, Some(now.boot_ms + AGAIN_MS));
        self.sooner.notify_one();
    }
}

/// Starts the one task that looks at the queue.
pub(crate) fn start(inner: &Arc<Inner>) {
    let own = Arc::clone(inner);
    inner.spawn(async move {
        loop {
            let now = own.clock.now();
            let (due, wait) = own.deadlines.due(&now);
            for id in due {
                let Some(handle) = own.registry.get(&id) else { continue };
                if handle.mailbox.try_send(Mail::Due).is_err() {
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
