//! Removes old records, collects files of removed templates, and records when keys were used. One background task.

use std::sync::Arc;
use std::time::Duration;

use atoll_store::Sweep;

use crate::service::ServiceShared;

/// LIMIT: the recorded use of a key is a minute late at most; sweeps are small.
const EVERY: Duration = Duration::from_secs(60);
/// How long a repeated create with the same key is recognized.
const IDEMPOTENCY_MS: i64 = 24 * 3_600 * 1_000;
/// How long builds are kept.
const BUILDS_MS: i64 = 30 * 24 * 3_600 * 1_000;

/// LIMIT: rounds between collections of templates; each reads a handful of rows and folders.
const COLLECT_ROUNDS: u32 = 10;

pub(crate) fn start(inner: &Arc<ServiceShared>) {
    let own = Arc::clone(inner);
    inner.spawn(async move {
        for round in 1_u32.. {
            tokio::select! {
                () = own.closing.cancelled() => return,
                () = tokio::time::sleep(EVERY) => {}
            }
            let disk = Arc::clone(own.images.disk());
            // It can't be cancelled, and a panic in it is logged by the hook.
            let _ = tokio::task::spawn_blocking(move || disk.keep_headroom()).await;
            flush_keys(&own).await;
            let now_ms = own.clock.now().wall_ms;
            let kept = i64::try_from(own.config.deleted_kept.as_millis()).unwrap_or(i64::MAX);
            let sweep = Sweep {
                events_kept: own.config.events_kept,
                deleted_before_ms: now_ms.saturating_sub(kept),
                idempotency_before_ms: now_ms - IDEMPOTENCY_MS,
                builds_before_ms: now_ms - BUILDS_MS,
            };
            if let Err(error) = own.store.sweep(sweep).await {
                tracing::warn!(%error, "the sweep failed; it is tried again");
            }
            if round.is_multiple_of(COLLECT_ROUNDS) {
                crate::build::collect_uploads(&own).await;
            }
            if round.is_multiple_of(COLLECT_ROUNDS)
                && let Err(error) = crate::templates::collect::collect(&own).await
            {
                tracing::warn!(%error, cause = ?error.cause, "files of templates could not be removed; the next collection removes them");
            }
        }
    });
}

pub(crate) async fn flush_keys(inner: &ServiceShared) {
    let used = inner.keys.take_used();
    if !used.is_empty()
        && let Err(error) = inner.store.touch_keys(used).await
    {
        tracing::warn!(%error, "the use of keys was not recorded");
    }
}
