//! Threads of conversation: each is bound to a provider and has at most one sandbox.

use std::num::NonZeroU32;

use atoll_client::sandboxes::{Ended, Sandbox};
use atoll_client::threads::{Thread, ThreadPage, ThreadsQuery};
use atoll_front_kit::{ApiError, Caller, JsonResponse, Path, Query, ok, rfc3339_millis};
use atoll_service::{ThreadFilter, ThreadRecord};
use axum::extract::State;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::App;
use crate::convert::{FromCore, IntoApi};

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(get, end))
}

impl FromCore<ThreadRecord> for Thread {
    fn from_core(record: ThreadRecord) -> Self {
        let (sandbox, phase) = record.sandbox.unzip();
        Self {
            thread: record.thread,
            tenant: record.tenant.into(),
            provider: record.provider,
            sandbox: sandbox.map(Into::into),
            phase: phase.map(Into::into),
            created_at: rfc3339_millis(record.created_at_ms),
        }
    }
}

/// Lists threads, newest first.
#[utoipa::path(get, path = "/v1/threads", tag = "sandboxes", operation_id = "list_threads",
    params(ThreadsQuery), responses((status = 200, body = ThreadPage)))]
pub(crate) async fn list(
    State(app): State<App>,
    Caller(who): Caller,
    Query(query): Query<ThreadsQuery>,
) -> Result<JsonResponse<ThreadPage>, ApiError> {
    let filter = ThreadFilter { limit: query.limit.map_or(0, NonZeroU32::get), cursor: query.cursor };
    let page = app.service.sandboxes().threads(&who, filter).await?;
    let items = page.items.into_iter().map(Thread::from_core).collect();
    Ok(ok(ThreadPage { items, next_cursor: page.next_cursor }))
}

/// Shows a thread: its provider and its sandbox.
#[utoipa::path(get, path = "/v1/threads/{thread}", tag = "sandboxes", operation_id = "get_thread",
    params(("thread" = String, Path, description = "As the create named it")),
    responses((status = 200, body = Thread)))]
pub(crate) async fn get(
    State(app): State<App>,
    Caller(who): Caller,
    Path(thread): Path<String>,
) -> Result<JsonResponse<Thread>, ApiError> {
    Ok(ok(app.service.sandboxes().thread(&who, &thread).await?.into_api()))
}

/// Ends a thread: each of its sandboxes is kept, paused or deleted according to its `on_exit`. A thread without sandboxes
/// is forgotten with its provider. Can be repeated safely.
#[utoipa::path(delete, path = "/v1/threads/{thread}", tag = "sandboxes", operation_id = "end_thread",
    params(("thread" = String, Path, description = "As the sandboxes name it")),
    responses((status = 200, body = Ended)))]
pub(crate) async fn end(
    State(app): State<App>,
    Caller(who): Caller,
    Path(thread): Path<String>,
) -> Result<JsonResponse<Ended>, ApiError> {
    let leases = app.service.sandboxes().end_thread(&who, &thread).await?;
    Ok(ok(Ended { items: leases.into_iter().map(Sandbox::from_core).collect() }))
}
