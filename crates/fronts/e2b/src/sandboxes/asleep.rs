//! Pauses, connects to and resumes sandboxes.

use atoll_front_kit::{ApiError, Caller, Json, JsonResponse, Path, created};
use atoll_model::lifecycle::PhaseSet;
use atoll_model::{OnTimeout, Phase, Principal};
use atoll_service::{Pause, VerbOptions, WakeMemory, WakeRequest, WakeTimeout};
use axum::Router;
use axum::extract::State as Given;
use axum::http::StatusCode;
use axum::routing::post;
use serde::Deserialize;

use super::{SandboxResponse, Version, find};
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
    let id = lease.id.as_str();
    let keeps_memory = body.memory.unwrap_or(true);
    if !keeps_memory || body.require_healthy_guest == Some(true) {
        app.service.sandboxes().check_health(&who, id).await?;
    }
    let running = PhaseSet::of(&[Phase::Running]);
    let options = VerbOptions { after_boot: true, ..VerbOptions::expecting(running) };
    match keeps_memory {
        true => app.service.sandboxes().pause(&who, id, Pause::default(), options).await?,
        false => app.service.sandboxes().stop(&who, id, options).await?,
    };
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
    let lease = find(app, who, id).await?;
    let request = WakeRequest {
        timeout: WakeTimeout::AtLeast(body.timeout),
        memory: memory(body.memory),
        ..WakeRequest::default()
    };
    let woken = app.service.sandboxes().wake(who, lease.id.as_str(), request, true).await?;
    let ran = state(woken.found) == Some(SandboxState::Running);
    let status = if ran { StatusCode::OK } else { StatusCode::CREATED };
    Ok(JsonResponse(status, SandboxResponse::new(&app.service, &woken.lease, domain)))
}

/// `false`: it boots from its files.
const fn memory(wanted: Option<bool>) -> WakeMemory {
    match wanted {
        Some(false) => WakeMemory::Drop,
        Some(true) | None => WakeMemory::Keep,
    }
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
    let request = WakeRequest {
        timeout: WakeTimeout::Set(body.timeout.unwrap_or(Version::One.lifetime())),
        on_timeout: body.auto_pause.map(|pauses| if pauses { OnTimeout::Pause } else { OnTimeout::Delete }),
        memory: memory(body.memory),
    };
    let options = VerbOptions::expecting(SandboxState::Paused.phases());
    let woken = app.service.sandboxes().wake(&who, lease.id.as_str(), request, options).await?;
    Ok(created(SandboxResponse::new(&app.service, &woken.lease, domain)))
}
