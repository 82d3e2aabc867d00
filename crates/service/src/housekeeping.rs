//! Removes old records, collects files of removed templates, and records when keys were used. One background task.

use std::sync::Arc;
use std::time::Duration;

use atoll_store::Sweep;

use crate::service::Service;

/// LIMIT: the recorded use of a key is a minute late at most; sweeps are small.
const EVERY: Duration = Duration::from_secs(60);
/// How long a repeated create with the same key is recognized.
const IDEMPOTENCY_MS: i64 = 24 * 3_600 * 1_000;
/// How long builds are kept.
const BUILDS_MS: i64 = 30 * 24 * 3_600 * 1_000;

/// LIMIT: rounds between collections of templates; each reads a handful of rows and folders.
const COLLECT_ROUNDS: u32 = 10;

pub(crate) fn start(service: &Service) {
    let (base, own) = (Arc::clone(service.base()), service.clone());
    service.base().spawn(async move {
        for round in 1_u32.. {
            tokio::select! {
                () = base.closing.cancelled() => return,
                () = tokio::time::sleep(EVERY) => {}
            }
            let disk = Arc::clone(&base.disk);
            // It cannot be cancelled, and the hook logs a panic in it.
            let _ = tokio::task::spawn_blocking(move || disk.keep_headroom()).await;
            own.access().flush_keys().await;
            // Other nodes make and remove tenants too.
            if let Ok(tenants) = base.store.tenants().await {
                base.disk.shares().set_tenants(tenants.iter().map(|tenant| tenant.id.as_str()));
            }
            let now_ms = base.clock.now().wall_ms;
            let kept = i64::try_from(base.config.deleted_kept.as_millis()).unwrap_or(i64::MAX);
            let sweep = Sweep {
                events_kept: base.config.events_kept,
                deleted_before_ms: now_ms.saturating_sub(kept),
                idempotency_before_ms: now_ms - IDEMPOTENCY_MS,
                builds_before_ms: now_ms - BUILDS_MS,
            };
            if let Err(error) = base.store.sweep(sweep).await {
                tracing::warn!(%error, "the sweep failed; it is tried again");
            }
            if round.is_multiple_of(COLLECT_ROUNDS)
                && let Err(error) = own.sandboxes().end_left_behind().await
            {
                tracing::warn!(%error, cause = ?error.cause, "what a client left behind could not be deleted yet");
            }
            if round.is_multiple_of(COLLECT_ROUNDS) {
                own.builds().collect_uploads().await;
            }
            if round.is_multiple_of(COLLECT_ROUNDS)
                && let Err(error) = own.templates().collect_unused().await
            {
                tracing::warn!(%error, cause = ?error.cause, "files of templates could not be removed; the next collection removes them");
            }
        }
    });
}
