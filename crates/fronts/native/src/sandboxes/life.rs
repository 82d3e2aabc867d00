//! Operations that change the phase of a sandbox: start, stop, restart, pause, resume, archive, restore, rollback.

use atoll_client::sandboxes::{PauseBody, RollbackBody, Sandbox, WaitQuery};
use atoll_front_kit::{ApiError, Caller, JsonResponse, OptionalStrictJson, Path, Query, StrictJson, ok};
use axum::extract::State;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::App;
use crate::convert::IntoApi;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(start))
        .routes(routes!(stop))
        .routes(routes!(restart))
        .routes(routes!(pause))
        .routes(routes!(resume))
        .routes(routes!(archive))
        .routes(routes!(restore))
        .routes(routes!(rollback))
}

/// Boots a stopped sandbox from its files, resumes a paused one, or restores and boots an archived one.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/start", tag = "sandboxes",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name"), WaitQuery),
    responses((status = 200, body = Sandbox)))]
pub(crate) async fn start(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    Query(query): Query<WaitQuery>,
) -> Result<JsonResponse<Sandbox>, ApiError> {
    Ok(ok(app.service.sandboxes().start(&who, &ident, query.wait()).await?.into_api()))
}

/// Ends the processes of a sandbox and keeps its files. The memory of a paused sandbox is discarded.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/stop", tag = "sandboxes",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name"), WaitQuery),
    responses((status = 200, body = Sandbox)))]
pub(crate) async fn stop(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    Query(query): Query<WaitQuery>,
) -> Result<JsonResponse<Sandbox>, ApiError> {
    Ok(ok(app.service.sandboxes().stop(&who, &ident, query.wait()).await?.into_api()))
}

/// Stops and starts a sandbox.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/restart", tag = "sandboxes",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name"), WaitQuery),
    responses((status = 200, body = Sandbox)))]
pub(crate) async fn restart(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    Query(query): Query<WaitQuery>,
) -> Result<JsonResponse<Sandbox>, ApiError> {
    Ok(ok(app.service.sandboxes().restart(&who, &ident, query.wait()).await?.into_api()))
}

/// Pauses a sandbox; its processes and memory are kept.
///
/// With `memory: disk` the memory is then written to disk, verified and freed. If the machine cannot do that, the
/// answer is `unsupported` and nothing changes. The memory of a paused sandbox can be moved to disk in the same
/// way.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/pause", tag = "sandboxes",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name"), WaitQuery),
    request_body(content = PauseBody), responses((status = 200, body = Sandbox)))]
pub(crate) async fn pause(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    Query(query): Query<WaitQuery>,
    OptionalStrictJson(body): OptionalStrictJson<PauseBody>,
) -> Result<JsonResponse<Sandbox>, ApiError> {
    let ask = atoll_service::Pause { memory: body.memory.map(Into::into) };
    Ok(ok(app.service.sandboxes().pause(&who, &ident, ask, query.wait()).await?.into_api()))
}

/// Makes a paused, stopped or archived sandbox run again.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/resume", tag = "sandboxes",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name"), WaitQuery),
    responses((status = 200, body = Sandbox)))]
pub(crate) async fn resume(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    Query(query): Query<WaitQuery>,
) -> Result<JsonResponse<Sandbox>, ApiError> {
    Ok(ok(app.service.sandboxes().resume(&who, &ident, query.wait()).await?.into_api()))
}

/// Moves the files of a sandbox to object storage and frees the disk. A running or paused sandbox is stopped first.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/archive", tag = "sandboxes",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name"), WaitQuery),
    responses((status = 200, body = Sandbox)))]
pub(crate) async fn archive(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    Query(query): Query<WaitQuery>,
) -> Result<JsonResponse<Sandbox>, ApiError> {
    Ok(ok(app.service.sandboxes().archive(&who, &ident, query.wait()).await?.into_api()))
}

/// Restores the files of an archived sandbox and leaves it stopped; `start` restores and starts it.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/restore", tag = "sandboxes",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name"), WaitQuery),
    responses((status = 200, body = Sandbox)))]
pub(crate) async fn restore(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    Query(query): Query<WaitQuery>,
) -> Result<JsonResponse<Sandbox>, ApiError> {
    Ok(ok(app.service.sandboxes().restore(&who, &ident, query.wait()).await?.into_api()))
}

/// Puts a sandbox back to one of its own snapshots. Later changes are lost.
///
/// A running, paused or failed sandbox runs afterwards; a stopped one stays stopped.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/rollback", tag = "sandboxes",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name"), WaitQuery),
    request_body = RollbackBody, responses((status = 200, body = Sandbox)))]
pub(crate) async fn rollback(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    Query(query): Query<WaitQuery>,
    StrictJson(body): StrictJson<RollbackBody>,
) -> Result<JsonResponse<Sandbox>, ApiError> {
    Ok(ok(app.service.sandboxes().rollback(&who, &ident, &body.snapshot, query.wait()).await?.into_api()))
}
