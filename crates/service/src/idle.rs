//! Checks running sandboxes that have idle timers: CPU, sent data, and holds from inside. One task for all of them; it
//! only records the results. The driver decides whether to pause or stop a sandbox when a timer is due, after one more
//! check.

use std::sync::Arc;
use std::time::Duration;

use atoll_model::{Phase, Timers};
use atoll_provider::Target;
use futures::StreamExt;
use tokio::sync::Semaphore;

use crate::driver::DriverMessage;
use crate::registry::Handle;
use crate::sandboxes::SandboxesState;

/// LIMIT: each check holds a connection to an agent for a moment; more at once only make each of them slower.
const AT_ONCE: usize = 32;
/// LIMIT: counters are read in well under a millisecond and an agent answers in one. A slower check is abandoned.
const LOOK: Duration = Duration::from_millis(500);
/// Without an earlier check, a decision needs two checks with this distance.
const BASELINE: Duration = Duration::from_millis(250);
const TICK: Duration = Duration::from_secs(1);
/// LIMIT: checks have a small cost; ten seconds are enough to distinguish an active sandbox from an idle one.
const EVERY_MAX_S: u64 = 10;

/// Limits concurrent checks, by the watcher, by timers and by callers.
pub(crate) struct IdleCheckLimiter(Semaphore);

impl Default for IdleCheckLimiter {
    fn default() -> Self {
        Self(Semaphore::new(AT_ONCE))
    }
}

/// How often a lease with these timers is checked; `None` if it has no idle timers.
fn every_ms(timers: &Timers) -> Option<i64> {
    let idle_s = [timers.auto_pause_s, timers.auto_stop_s].into_iter().flatten().min()?;
    i64::try_from((idle_s / 5).clamp(1, EVERY_MAX_S) * 1_000).ok()
}

/// Starts the one task that looks.
pub(crate) fn start(inner: &Arc<SandboxesState>) {
    let own = Arc::clone(inner);
    inner.spawn(async move {
        loop {
            tokio::select! {
                () = own.closing.cancelled() => return,
                () = tokio::time::sleep(TICK) => {}
            }
            let now = own.clock.now();
            let wanted = own.registry.all().into_iter().filter(|handle| {
                let lease = handle.lease();
                lease.phase == Phase::Running
                    && every_ms(&lease.timers).is_some_and(|ms| handle.activity.wants_look(&now, ms))
            });
            let inner = own.as_ref();
            let looks = futures::stream::iter(wanted)
                .for_each_concurrent(AT_ONCE, |handle| async move { look(inner, &handle).await });
            tokio::select! {
                () = own.closing.cancelled() => return,
                () = looks => {}
            }
        }
    });
}

/// Looks once more before a timer acts; the driver is told when there is something to see. Where somebody looks already,
/// that look will do; where nothing can be seen, the queue of deadlines asks again.
pub(crate) fn look_and_tell(inner: &Arc<SandboxesState>, handle: Handle) {
    handle.activity.await_look();
    let Some(one) = handle.activity.look_begins() else { return };
    let own = Arc::clone(inner);
    inner.spawn(async move {
        let _one = one;
        if !handle.activity.has_baseline(handle.lease().instance.as_ref()) {
            look_now(&own, &handle).await;
            tokio::time::sleep(BASELINE).await;
        }
        look_now(&own, &handle).await;
    });
}

/// Looks, unless somebody does so already.
pub(crate) async fn look(inner: &SandboxesState, handle: &Handle) {
    if let Some(_one) = handle.activity.look_begins() {
        look_now(inner, handle).await;
    }
}

/// Looks at the counters and asks the agent for holds. Counts as no activity.
async fn look_now(inner: &SandboxesState, handle: &Handle) {
    let Ok(_turn) = inner.looks.0.acquire().await else { return };
    let state = handle.state.borrow().clone();
    if state.lease.phase != Phase::Running {
        return;
    }
    metrics::counter!("atoll_idle_looks_total").increment(1);
    let instance = state.lease.instance.as_ref();
    let target = Target { sandbox: state.lease.id.clone(), instance: instance.cloned() };
    let held = async {
        match &state.agent {
            // An agent that does not answer, or is older than holds, has no hold.
            Some(agent) => tokio::time::timeout(LOOK, agent.held()).await.ok()?.ok(),
            None => None,
        }
    };
    let Ok(provider) = inner.providers.of(&state.lease) else { return };
    let usage = tokio::time::timeout(LOOK, provider.usage(&target));
    match tokio::join!(usage, held) {
        (Ok(Ok(usage)), held_s) => {
            let sees = handle.activity.has_baseline(instance);
            let sooner = handle.activity.note(instance, &usage, held_s);
            if sooner || (sees && handle.activity.is_look_awaited()) {
                // If the mailbox is full, the queue of deadlines tries again.
                let _ = handle.mailbox.try_send(DriverMessage::Due.into());
            }
        }
        (Ok(Err(error)), _) => {
            tracing::debug!(sandbox = %state.lease.id, %error, "its counters could not be read");
        }
        (Err(_), _) => {
            tracing::warn!(sandbox = %state.lease.id, "its counters could not be read in time");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_come_five_times_per_timer_but_no_oftener_than_each_second() {
        let every =
            |pause, stop| every_ms(&Timers { auto_pause_s: pause, auto_stop_s: stop, ..Default::default() });
        assert_eq!(every(None, None), None);
        assert_eq!(every(Some(1), None), Some(1_000));
        assert_eq!(every(Some(20), Some(10)), Some(2_000));
        assert_eq!(every(None, Some(3_600)), Some(10_000));
    }
}
