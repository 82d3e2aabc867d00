//! Changes an existing sandbox: labels, timers, network, public flag, size; and takes a snapshot of it.

use std::collections::BTreeMap;

use atoll_front_kit::{ApiError, Caller, Json, JsonResponse, Path, ok};
use atoll_model::lifecycle::Verb;
use atoll_model::{Code, OnTimeout, TimersAsk, UpdateSandbox};
use atoll_service::NewSnapshot;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{post, put};
use serde::{Deserialize, Serialize};

use super::request::{auto_archive, auto_delete, auto_pause, auto_stop, limits, minutes};
use super::{SandboxResponse, lease};
use crate::DaytonaApp;
use crate::error::unsupported_field;
use crate::network::NetworkBody;
use crate::origin::Origin;
use crate::secrets::InSandbox;
use crate::states::expected;

pub(super) fn routes() -> Router<DaytonaApp> {
    Router::new()
        .route("/sandbox/{id}/labels", put(labels))
        .route("/sandbox/{id}/secrets", put(secrets).get(attached))
        .route("/sandbox/{id}/network-settings", post(network))
        .route("/sandbox/{id}/public/{public}", post(public))
        .route("/sandbox/{id}/autostop/{minutes}", post(autostop))
        .route("/sandbox/{id}/autopause/{minutes}", post(autopause))
        .route("/sandbox/{id}/autoarchive/{minutes}", post(autoarchive))
        .route("/sandbox/{id}/autodelete/{minutes}", post(autodelete))
        .route("/sandbox/{id}/ttl/{minutes}", post(ttl))
        .route("/sandbox/{id}/resize", post(resize))
        .route("/sandbox/{id}/snapshot", post(snapshot))
}

#[derive(Debug, Serialize, Deserialize)]
struct Labels {
    labels: BTreeMap<String, String>,
}

/// Replaces all labels.
async fn labels(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(body): Json<Labels>,
) -> Result<JsonResponse<Labels>, ApiError> {
    let lease = lease(&app, &who, &id).await?;
    let change = UpdateSandbox { labels: Some(body.labels), ..UpdateSandbox::default() };
    let lease = app.service.sandboxes().update(&who, lease.id.as_str(), change).await?;
    Ok(ok(Labels { labels: lease.labels }))
}

#[derive(Debug, Deserialize)]
struct Secrets {
    secrets: Vec<BTreeMap<String, String>>,
}

async fn secrets(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    origin: Origin,
    Path(id): Path<String>,
    Json(body): Json<Secrets>,
) -> Result<JsonResponse<SandboxResponse>, ApiError> {
    let lease = lease(&app, &who, &id).await?;
    let secrets = Some(crate::secrets::attached(body.secrets)?);
    let change = UpdateSandbox { secrets, ..UpdateSandbox::default() };
    let lease = app.service.sandboxes().update(&who, lease.id.as_str(), change).await?;
    Ok(ok(SandboxResponse::of(&lease, &origin)))
}

/// The secrets without their values.
async fn attached(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<JsonResponse<Vec<InSandbox>>, ApiError> {
    let lease = lease(&app, &who, &id).await?;
    crate::secrets::of_sandbox(&app, &who, &lease).await.map(ok)
}

async fn network(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    origin: Origin,
    Path(id): Path<String>,
    Json(body): Json<NetworkBody>,
) -> Result<JsonResponse<SandboxResponse>, ApiError> {
    let lease = lease(&app, &who, &id).await?;
    let mut annotations = lease.annotations.clone();
    let Some(policy) = body.changed_policy(&lease, &mut annotations)? else {
        return Err(ApiError::invalid(
            "one of networkBlockAll, networkAllowList and domainAllowList is needed",
        ));
    };
    let change =
        UpdateSandbox { network: Some(policy), annotations: Some(annotations), ..UpdateSandbox::default() };
    let lease = app.service.sandboxes().update(&who, lease.id.as_str(), change).await?;
    Ok(ok(SandboxResponse::of(&lease, &origin)))
}

async fn public(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    origin: Origin,
    Path((id, public)): Path<(String, bool)>,
) -> Result<JsonResponse<SandboxResponse>, ApiError> {
    let lease = lease(&app, &who, &id).await?;
    let change = UpdateSandbox { public: Some(public), ..UpdateSandbox::default() };
    let lease = app.service.sandboxes().update(&who, lease.id.as_str(), change).await?;
    Ok(ok(SandboxResponse::of(&lease, &origin)))
}

async fn autostop(
    app: State<DaytonaApp>,
    caller: Caller,
    origin: Origin,
    Path((id, minutes)): Path<(String, i64)>,
) -> Result<JsonResponse<SandboxResponse>, ApiError> {
    let seconds = auto_stop(minutes)?;
    // The vendor's two idle timers exclude each other.
    let auto_pause_s = (seconds > 0).then_some(-1);
    timers(app, caller, &origin, &id, TimersAsk { auto_stop_s: Some(seconds), auto_pause_s, ..none() }).await
}

async fn autopause(
    app: State<DaytonaApp>,
    caller: Caller,
    origin: Origin,
    Path((id, minutes)): Path<(String, i64)>,
) -> Result<JsonResponse<SandboxResponse>, ApiError> {
    let seconds = auto_pause(minutes)?;
    let State(own) = &app;
    if seconds > 0 && lease(own, &caller.0, &id).await?.timers.auto_delete_s == Some(0) {
        return Err(ApiError::invalid("autoPauseInterval: ephemeral sandboxes cannot pause automatically"));
    }
    // A request for a pause disables the default stop.
    let auto_stop_s = (seconds > 0).then_some(-1);
    timers(app, caller, &origin, &id, TimersAsk { auto_pause_s: Some(seconds), auto_stop_s, ..none() }).await
}

async fn autoarchive(
    app: State<DaytonaApp>,
    caller: Caller,
    origin: Origin,
    Path((id, minutes)): Path<(String, i64)>,
) -> Result<JsonResponse<SandboxResponse>, ApiError> {
    let auto_archive_s = Some(auto_archive(minutes)?);
    timers(app, caller, &origin, &id, TimersAsk { auto_archive_s, ..none() }).await
}

async fn autodelete(
    app: State<DaytonaApp>,
    caller: Caller,
    origin: Origin,
    Path((id, minutes)): Path<(String, i64)>,
) -> Result<JsonResponse<SandboxResponse>, ApiError> {
    let auto_delete_s = Some(auto_delete(minutes)?);
    timers(app, caller, &origin, &id, TimersAsk { auto_delete_s, ..none() }).await
}

fn none() -> TimersAsk {
    TimersAsk::default()
}

async fn timers(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    origin: &Origin,
    id: &str,
    timers: TimersAsk,
) -> Result<JsonResponse<SandboxResponse>, ApiError> {
    let lease = lease(&app, &who, id).await?;
    let change = UpdateSandbox { timers, ..UpdateSandbox::default() };
    let lease = app.service.sandboxes().update(&who, lease.id.as_str(), change).await?;
    Ok(ok(SandboxResponse::of(&lease, origin)))
}

/// The time is counted from now, in every state; 0 removes it.
async fn ttl(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    origin: Origin,
    Path((id, asked)): Path<(String, i64)>,
) -> Result<JsonResponse<SandboxResponse>, ApiError> {
    let seconds = minutes("ttlMinutes", asked, 0)?;
    let lease = lease(&app, &who, &id).await?;
    let change = UpdateSandbox {
        timeout_s: Some((seconds > 0).then_some(seconds)),
        on_timeout: Some(OnTimeout::Delete),
        ..UpdateSandbox::default()
    };
    let lease = app.service.sandboxes().update(&who, lease.id.as_str(), change).await?;
    Ok(ok(SandboxResponse::of(&lease, &origin)))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ResizeBody {
    #[serde(deserialize_with = "crate::whole_number::whole")]
    cpu: Option<u32>,
    #[serde(deserialize_with = "crate::whole_number::whole")]
    memory: Option<u32>,
    #[serde(deserialize_with = "crate::whole_number::whole")]
    disk: Option<u32>,
    gpu: Option<i64>,
}

async fn resize(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    origin: Origin,
    Path(id): Path<String>,
    Json(body): Json<ResizeBody>,
) -> Result<JsonResponse<SandboxResponse>, ApiError> {
    super::refuse_gpu(body.gpu)?;
    let lease = lease(&app, &who, &id).await?;
    let ResizeBody { cpu, memory, disk, .. } = body;
    if cpu.is_none() && memory.is_none() && disk.is_none() {
        return Err(ApiError::invalid("one of cpu, memory and disk is needed"));
    }
    let lease = app.service.sandboxes().resize(&who, lease.id.as_str(), limits(cpu, memory, disk)).await?;
    Ok(ok(SandboxResponse::of(&lease, &origin)))
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SnapshotBody {
    name: String,
    #[serde(default)]
    include_memory: Option<bool>,
}

/// Responds when the snapshot is taken; other sandboxes can then be created from its name.
async fn snapshot(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    origin: Origin,
    Path(id): Path<String>,
    Json(body): Json<SnapshotBody>,
) -> Result<JsonResponse<SandboxResponse>, ApiError> {
    let lease = lease(&app, &who, &id).await?;
    let memory = body.include_memory == Some(true);
    if memory && !app.service.capabilities_of(&lease).checkpoints {
        return Err(unsupported_field("includeMemory", "this machine cannot save the memory of processes"));
    }
    let name = body.name.trim().to_owned();
    // A name belongs either to a template or to a snapshot, never to both.
    if crate::naming::template(&app, &who, &name).await?.is_some() {
        return Err(taken(&name));
    }
    let expect = Some(expected(Verb::Snapshot));
    let ask = NewSnapshot { name: Some(name), tenant_wide: true, memory, replace: false, expect };
    app.service.sandboxes().snapshot(&who, lease.id.as_str(), ask).await?;
    let lease = super::lease(&app, &who, lease.id.as_str()).await?;
    Ok(ok(SandboxResponse::of(&lease, &origin)))
}

/// COMPAT(daytona): the vendor's message.
pub(crate) fn taken(name: &str) -> ApiError {
    ApiError::new(Code::NameTaken, format!("Snapshot with name {name:?} already exists"))
        .with_status(StatusCode::CONFLICT)
}
