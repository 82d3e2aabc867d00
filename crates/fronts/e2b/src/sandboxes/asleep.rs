//! Pauses, connects to and resumes sandboxes.

use atoll_front_kit::{ApiError, Caller, Json, JsonResponse, Path, created};
use atoll_model::{Code, Lease, OnTimeout, Phase, Principal, UpdateSandbox};
use atoll_service::Pause;
use axum::Router;
use axum::extract::State as Given;
use axum::http::StatusCode;
use axum::routing::post;
use serde::Deserialize;

use super::{SandboxResponse, Version, find, unless_gone};
use crate::E2bApp;
use crate::domain::Domain;
use crate::states::{SandboxState, state};

pub(super) fn routes() -> Router<E2bApp> {
    Router::new()
        .route("/sandboxes/{id}/pause", post(pause))
        .route("/sandboxes/{id}/resume", post(resume))
        .route("/sandboxes/{id}/connect", post(connect_v1))
        .route("/v2/sandboxes/{id}/connect", post(connect_v2))
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct PauseBody {
    memory: Option<bool>,
    require_healthy_guest: Option<bool>,
}

/// COMPAT(e2b): 409 if it is paused already. Without memory its processes end, and a connect boots it with its files.
async fn pause(
    Given(app): Given<E2bApp>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(body): Json<PauseBody>,
) -> Result<StatusCode, ApiError> {
    let lease = find(&app, &who, &id).await?;
    if state(lease.phase) != Some(SandboxState::Running) {
        let message = format!("sandbox {} is paused already", lease.id);
        return Err(ApiError::new(Code::PhaseConflict, message));
    }
    if matches!(lease.phase, Phase::Resuming | Phase::Starting) {
        // It is on its way: this waits for its end.
        let started = app.service.start(&who, lease.id.as_str(), true).await;
        unless_gone(&app, &who, &lease, started).await?;
    }
    let keeps_memory = body.memory.unwrap_or(true);
    if !keeps_memory || body.require_healthy_guest == Some(true) {
        app.service.session(&who, lease.id.as_str()).await?.health().await.map_err(|cause| {
            let message = format!("sandbox {} does not answer and keeps running", lease.id);
            ApiError::new(Code::SandboxUnavailable, message).caused_by(cause)
        })?;
    }
    let paused = match keeps_memory {
        true => app.service.pause(&who, lease.id.as_str(), Pause::default(), true).await,
        false => app.service.stop(&who, lease.id.as_str(), true).await,
    };
    unless_gone(&app, &who, &lease, paused).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Deserialize)]
struct ConnectBody {
    timeout: u64,
    #[serde(default)]
    memory: Option<bool>,
}

async fn connect_v1(
    Given(app): Given<E2bApp>,
    Caller(who): Caller,
    domain: Domain,
    Path(id): Path<String>,
    Json(body): Json<ConnectBody>,
) -> Result<JsonResponse<SandboxResponse>, ApiError> {
    connect(&app, &who, domain, &id, body).await
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ConnectBodyV2 {
    timeout: Option<u64>,
    memory: Option<bool>,
}

async fn connect_v2(
    Given(app): Given<E2bApp>,
    Caller(who): Caller,
    domain: Domain,
    Path(id): Path<String>,
    Json(body): Json<ConnectBodyV2>,
) -> Result<JsonResponse<SandboxResponse>, ApiError> {
    let timeout = body.timeout.unwrap_or(Version::Two.lifetime());
    connect(&app, &who, domain, &id, ConnectBody { timeout, memory: body.memory }).await
}

/// 200 if it was running, with its lifetime extended and never shortened; 201 if it had to be woken.
async fn connect(
    app: &E2bApp,
    who: &Principal,
    Domain(domain): Domain,
    id: &str,
    body: ConnectBody,
) -> Result<JsonResponse<SandboxResponse>, ApiError> {
    let mut lease = find(app, who, id).await?;
    if state(lease.phase) == Some(SandboxState::Running) {
        let change = UpdateSandbox { timeout_at_least_s: Some(body.timeout), ..UpdateSandbox::default() };
        let changed = app.service.update(who, lease.id.as_str(), change).await;
        lease = unless_gone(app, who, &lease, changed).await?;
    }
    // Its lifetime may have ended while it was asked for.
    let status = match state(lease.phase) {
        Some(SandboxState::Running) => StatusCode::OK,
        Some(SandboxState::Paused) | None => {
            lease = wake(app, who, &lease, body.timeout, None, body.memory).await?;
            StatusCode::CREATED
        }
    };
    Ok(JsonResponse(status, SandboxResponse::new(&app.service, &lease, domain)))
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ResumeBody {
    timeout: Option<u64>,
    auto_pause: Option<bool>,
    memory: Option<bool>,
}

/// COMPAT(e2b): 409 if it is running.
async fn resume(
    Given(app): Given<E2bApp>,
    Caller(who): Caller,
    Domain(domain): Domain,
    Path(id): Path<String>,
    Json(body): Json<ResumeBody>,
) -> Result<JsonResponse<SandboxResponse>, ApiError> {
    let lease = find(&app, &who, &id).await?;
    if state(lease.phase) == Some(SandboxState::Running) {
        let message = format!("sandbox {} runs already", lease.id);
        return Err(ApiError::new(Code::PhaseConflict, message));
    }
    let on_timeout = body.auto_pause.map(|pauses| if pauses { OnTimeout::Pause } else { OnTimeout::Delete });
    let timeout = body.timeout.unwrap_or(Version::One.lifetime());
    let lease = wake(&app, &who, &lease, timeout, on_timeout, body.memory).await?;
    Ok(created(SandboxResponse::new(&app.service, &lease, domain)))
}

/// Runs what sleeps, with its memory unless that is not wanted. Its new lifetime is set first: one that is over would end it
/// as soon as it runs.
async fn wake(
    app: &E2bApp,
    who: &Principal,
    lease: &Lease,
    timeout: u64,
    on_timeout: Option<OnTimeout>,
    memory: Option<bool>,
) -> Result<Lease, ApiError> {
    let id = lease.id.as_str();
    let change = UpdateSandbox { timeout_s: Some(Some(timeout)), on_timeout, ..UpdateSandbox::default() };
    let changed = app.service.update(who, id, change).await;
    unless_gone(app, who, lease, changed).await?;
    let started = match memory == Some(false) && matches!(lease.phase, Phase::Pausing | Phase::Paused) {
        true => app.service.restart(who, id, true).await,
        false => match app.service.start(who, id, true).await {
            // Its processes are just being ended: it starts as soon as they are.
            Err(error) if error.code == Code::PhaseConflict => app.service.restart(who, id, true).await,
            started => started,
        },
    };
    unless_gone(app, who, lease, started).await
}
