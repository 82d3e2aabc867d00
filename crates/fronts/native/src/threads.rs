//! Threads of conversation that sandboxes are bound to. A thread exists as long as a sandbox names it.

use atoll_front_kit::{ApiError, Caller, JsonResponse, Path, ok};
use atoll_wire::sandboxes::{Ended, Sandbox};
use axum::extract::State;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::App;
use crate::convert::FromCore;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(end))
}

/// Ends a thread: each of its sandboxes is kept, paused or deleted according to its `on_exit`. Can be repeated
/// safely.
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
