//! Sandboxes: create, get, list, pause, stop, start, delete.

use atoll_front_kit::{ApiError, Caller, Json, JsonResponse, Path, Query, created, ok};
use atoll_model::MemoryLocation;
use atoll_service::{Pause, VerbOptions};
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};

use crate::Leap0App;

mod list;
mod request;
mod response;

pub(crate) use list::{Paging, in_order, page_of};
use list::{SandboxListQuery, SandboxPage};
use request::CreateSandboxRequest;
pub(crate) use request::{lifetime, on_timeout, pause_timers};
pub(crate) use response::SandboxResponse;

pub(crate) fn routes() -> Router<Leap0App> {
    Router::new()
        .route("/v1/sandbox", post(create))
        .route("/v1/sandboxes", get(list))
        .route("/v1/sandbox/{id}", get(find).delete(delete))
        .route("/v1/sandbox/{id}/pause", post(pause))
        .route("/v1/sandbox/{id}/stop", post(stop))
        .route("/v1/sandbox/{id}/start", post(start))
}

/// Responds when the sandbox runs, so that the caller can use the id at once.
async fn create(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Json(body): Json<CreateSandboxRequest>,
) -> Result<JsonResponse<SandboxResponse>, ApiError> {
    let template = crate::templates::resolve(&app, &who, body.template_name()).await?;
    let spec = body.into_spec(&template, app.service.capabilities().checkpoints)?;
    let (lease, _) = app.service.sandboxes().create(&who, spec, true).await?;
    let mounts = crate::mounts::shown(&app, &who, &lease).await?;
    Ok(created(SandboxResponse::with_policy(lease).with_mounts(mounts)))
}

async fn find(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<JsonResponse<SandboxResponse>, ApiError> {
    let lease = app.service.sandboxes().get(&who, &id).await?;
    let mounts = crate::mounts::shown(&app, &who, &lease).await?;
    Ok(ok(SandboxResponse::from(lease).with_mounts(mounts)))
}

async fn list(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Query(query): Query<SandboxListQuery>,
) -> Result<JsonResponse<SandboxPage>, ApiError> {
    list::list(&app, &who, query).await.map(ok)
}

/// COMPAT(leap0): a paused sandbox uses no memory, and survives a restart of the machine. The answer comes when its memory
/// is on disk; a provider that cannot do that refuses.
async fn pause(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<JsonResponse<SandboxResponse>, ApiError> {
    let to_disk = Pause { memory: Some(MemoryLocation::Disk) };
    let lease = app.service.sandboxes().pause(&who, &id, to_disk, true).await?;
    Ok(created(SandboxResponse::with_policy(lease)))
}

async fn stop(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<JsonResponse<SandboxResponse>, ApiError> {
    let lease = app.service.sandboxes().stop(&who, &id, true).await?;
    Ok(ok(SandboxResponse::with_policy(lease)))
}

/// COMPAT(leap0): 409 unless it is stopped.
async fn start(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<JsonResponse<SandboxResponse>, ApiError> {
    let lease =
        app.service.sandboxes().start(&who, &id, VerbOptions::expecting(crate::states::STARTED_FROM)).await?;
    Ok(ok(SandboxResponse::with_policy(lease)))
}

async fn delete(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    app.service.sandboxes().delete(&who, &id, true).await?;
    Ok(StatusCode::NO_CONTENT)
}
