//! Background watchers: memory, disk space, egress counters, and addresses of the host.

use std::sync::Weak;
use std::time::Duration;

use atoll_instances::Instances;

use super::EngineShared;

/// How often the kernel's counter of OOM kills is read.
const MEMORY_EVERY: Duration = Duration::from_millis(200);
/// How often the pool's free space is checked.
const SPACE_EVERY: Duration = Duration::from_millis(200);
/// How often the counters of flows are read.
const FLOWS_EVERY: Duration = Duration::from_secs(1);
/// How many of them pass between two looks whether the pool can shrink.
const SHRINK_EVERY: u32 = 25;
/// How many space checks pass between two reads of the host's addresses.
const ADDRESSES_EVERY: u32 = 50;

/// Watches the machine-wide counter of OOM kills, and checks each instance only when it changes.
pub(super) async fn memory(engine: Weak<EngineShared>) {
    let mut before = machine_oom_kills();
    let mut ticks = tokio::time::interval(MEMORY_EVERY);
    loop {
        ticks.tick().await;
        let now = machine_oom_kills();
        if now == before {
            continue;
        }
        before = now;
        let Some(engine) = engine.upgrade() else { return };
        Instances::report_events(&*engine);
    }
}

fn machine_oom_kills() -> u64 {
    let text = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
    line.and_then(|value| value.parse().ok()).unwrap_or(0)
}

/// Logs the traffic that passed without the gate, and the traffic that was refused.
pub(super) async fn flows(engine: Weak<EngineShared>) {
    let mut ticks = tokio::time::interval(FLOWS_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(engine) = engine.upgrade() else { return };
        let _ = tokio::task::spawn_blocking(move || engine.resources.networks.write_down()).await;
    }
}

/// Grows and shrinks the pool in time and follows the host's addresses.
pub(super) async fn housekeeping(engine: Weak<EngineShared>) {
    let mut ticks = tokio::time::interval(SPACE_EVERY);
    let mut count: u32 = 0;
    loop {
        ticks.tick().await;
        count = count.wrapping_add(1);
        let Some(engine) = engine.upgrade() else { return };
        let work = move || {
            if let Err(cause) = engine.resources.layers.grow() {
                tracing::warn!(%cause, "the pool cannot grow");
            }
            if count.is_multiple_of(SHRINK_EVERY)
                && let Err(cause) = engine.resources.layers.shrink()
            {
                tracing::warn!(%cause, "the pool cannot shrink");
            }
            if count.is_multiple_of(ADDRESSES_EVERY)
                && let Err(cause) = engine.router.refresh_host()
            {
                tracing::warn!(%cause, "the host's addresses cannot be read");
            }
        };
        let _ = tokio::task::spawn_blocking(work).await;
    }
}
