//! Sandboxes: create, get, list, start, stop, pause, archive, recover, fork, delete.

use atoll_front_kit::{ApiError, Caller, Json, JsonResponse, Path, Query, ok};
use atoll_model::lifecycle::Verb;
use atoll_model::{Code, CreateSandbox, Lease, LimitsAsk, Origin as From, Phase, Principal};
use atoll_service::{BuildFilter, Fork, Pause, VerbOptions};
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{get, post};
use serde::Deserialize;

use crate::DaytonaApp;
use crate::builds;
use crate::error::TEMPLATES;
use crate::naming;
use crate::origin::Origin;
use crate::snapshots::FollowQuery;
use crate::states::expected;

mod change;
mod list;
mod request;
mod response;

pub(crate) use change::taken;
use request::CreateSandboxRequest;
pub(crate) use request::{BuildAsk, CPU, DISK_GIB, MEMORY_GIB, check_gpu_types, limits, refuse_gpu};
pub(crate) use response::{BuildInfo, CLASS, REGION, SandboxResponse, gib};

pub(crate) fn routes() -> Router<DaytonaApp> {
    Router::new()
        .route("/sandbox", post(create).get(list::list))
        .route("/sandbox/paginated", get(list::paginated))
        .route("/sandbox/{id}", get(find).delete(delete))
        .route("/sandbox/{id}/start", post(start))
        .route("/sandbox/{id}/stop", post(stop))
        .route("/sandbox/{id}/pause", post(pause))
        .route("/sandbox/{id}/archive", post(archive))
        .route("/sandbox/{id}/recover", post(recover))
        .route("/sandbox/{id}/fork", post(fork))
        .route("/sandbox/{id}/last-activity", post(last_activity))
        .route("/sandbox/{id}/toolbox-proxy-url", get(toolbox_url))
        .route("/sandbox/{id}/build-logs-url", get(logs_url))
        .route("/sandbox/{id}/build-logs", get(logs))
        .merge(change::routes())
}

/// Responds when the sandbox runs, so that the caller can use the id at once. For a sandbox that is built first it
/// responds earlier.
async fn create(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    origin: Origin,
    Json(mut body): Json<CreateSandboxRequest>,
) -> Result<JsonResponse<SandboxResponse>, ApiError> {
    if let Some(build) = body.build_info.clone() {
        let lease = create_built(&app, &who, body.into_spec()?, build).await?;
        return Ok(ok(SandboxResponse::of(&lease, &origin)));
    }
    let named = body.snapshot().map(str::to_owned);
    // A request without a snapshot shows the default one in the response.
    body.name_snapshot(naming::DEFAULT);
    // COMPAT(daytona): the SDK polls the state; its request would time out long before the wait for a place.
    let (names_user, names_archive, waits) = (body.names_user(), body.names_archive(), !body.is_queued());
    let mut spec = body.into_spec()?;
    if !names_archive && !app.service.sandboxes().can_archive(None)? {
        // COMPAT(daytona): the vendor's default interval is meant only where there are archives.
        spec.timers.auto_archive_s = None;
    }
    begin_from(&app, &who, named.as_deref(), names_user, &mut spec).await?;
    let (lease, _) =
        app.service.sandboxes().create(&who, spec, waits).await.map_err(|error| match error.code {
            // COMPAT(daytona): a missing snapshot makes the request bad.
            Code::TemplateNotFound | Code::SnapshotNotFound => {
                let named = named.as_deref().unwrap_or(naming::DEFAULT);
                let message = format!("Snapshot {named} not found");
                ApiError::from(error)
                    .with_message(message)
                    .hint(TEMPLATES)
                    .with_status(StatusCode::BAD_REQUEST)
            }
            _ => error.into(),
        })?;
    Ok(ok(SandboxResponse::of(&lease, &origin)))
}

/// A sandbox from a Dockerfile. If the same Dockerfile was built before, its template is used at once; otherwise the
/// sandbox waits for the build.
async fn create_built(
    app: &DaytonaApp,
    who: &Principal,
    mut spec: CreateSandbox,
    build: BuildAsk,
) -> Result<Lease, ApiError> {
    fill(&mut spec.limits, LimitsAsk::default());
    spec.entrypoint = true;
    let word = builds::name_of(&build);
    if app.service.templates().get(who, &word).await.is_ok() {
        spec.template = Some(word);
        let waits = spec.queue.is_none();
        return Ok(app.service.sandboxes().create(who, spec, waits).await?.0);
    }
    let ask = builds::Ask { word, build, limits: LimitsAsk::default(), command: None, notes: Vec::new() };
    let build = builds::request(ask)?;
    Ok(app.service.builds().create_sandbox(who, spec, build, None).await?.0)
}

/// Sets the source of a new sandbox, with the resources of its snapshot, or else the vendor's defaults.
async fn begin_from(
    app: &DaytonaApp,
    who: &Principal,
    named: Option<&str>,
    names_user: bool,
    spec: &mut CreateSandbox,
) -> Result<(), ApiError> {
    let name = named.unwrap_or(naming::DEFAULT);
    if app.service.sandboxes().uses_own_images(None)? {
        fill(&mut spec.limits, named.and_then(naming::size).unwrap_or_default());
        spec.template = Some(name.to_owned());
        return Ok(());
    }
    let Some(template) = naming::template(app, who, name).await? else {
        // A snapshot of a sandbox brings its own limits; or there is none, and the core says so.
        spec.from = From::Named(name.to_owned());
        return Ok(());
    };
    spec.entrypoint = template.tenant.is_some();
    if !names_user && naming::has_daytona(&template) {
        // COMPAT(daytona): commands run as `daytona`, in its home.
        spec.user = Some(naming::USER.to_owned());
        spec.workdir = Some(naming::HOME.to_owned());
    }
    fill(&mut spec.limits, named.and_then(naming::size).unwrap_or(template.settings.limits));
    spec.template = Some(match template.tag {
        Some(tag) => format!("{}:{tag}", template.name),
        None => template.name,
    });
    Ok(())
}

/// Fills missing limits from the snapshot, or else from the vendor's defaults.
pub(crate) fn fill(wanted: &mut LimitsAsk, granted: LimitsAsk) {
    let or_default = limits(Some(CPU), Some(MEMORY_GIB), Some(DISK_GIB));
    wanted.cpu = wanted.cpu.or(granted.cpu).or(or_default.cpu);
    wanted.memory_mib = wanted.memory_mib.or(granted.memory_mib).or(or_default.memory_mib);
    wanted.disk_mib = wanted.disk_mib.or(granted.disk_mib).or(or_default.disk_mib);
}

/// A sandbox by its whole id or its name. A deleted sandbox is not found, except one whose wait for a place timed out: the
/// SDKs read that from its record.
pub(crate) async fn lease(app: &DaytonaApp, who: &Principal, ident: &str) -> Result<Lease, ApiError> {
    let missing = || ApiError::new(Code::SandboxNotFound, format!("Sandbox {} not found", shortened(ident)));
    let lease = app.service.sandboxes().get(who, ident).await.map_err(|error| match error.code {
        // An ambiguous prefix of an id is not found here.
        Code::SandboxNotFound | Code::InvalidRequest => missing(),
        _ => error.into(),
    })?;
    let is_meant = lease.id.as_str() == ident || lease.name.as_deref() == Some(ident);
    if !is_meant || (lease.phase == Phase::Deleted && response::timed_out_in_queue(&lease).is_none()) {
        return Err(missing());
    }
    Ok(lease)
}

/// A word of the caller, safe to repeat in a message.
fn shortened(word: &str) -> String {
    word.chars().take(64).filter(|c| !c.is_control()).collect()
}

async fn find(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    origin: Origin,
    Path(id): Path<String>,
) -> Result<JsonResponse<SandboxResponse>, ApiError> {
    Ok(ok(SandboxResponse::of(&lease(&app, &who, &id).await?, &origin)))
}

async fn start(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    origin: Origin,
    Path(id): Path<String>,
) -> Result<JsonResponse<SandboxResponse>, ApiError> {
    let lease = lease(&app, &who, &id).await?;
    let lease = app.service.sandboxes().start(&who, lease.id.as_str(), options(Verb::Start)).await?;
    Ok(ok(SandboxResponse::of(&lease, &origin)))
}

async fn stop(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    origin: Origin,
    Path(id): Path<String>,
) -> Result<JsonResponse<SandboxResponse>, ApiError> {
    let lease = lease(&app, &who, &id).await?;
    let lease = app.service.sandboxes().stop(&who, lease.id.as_str(), options(Verb::Stop)).await?;
    Ok(ok(SandboxResponse::of(&lease, &origin)))
}

async fn pause(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    origin: Origin,
    Path(id): Path<String>,
) -> Result<JsonResponse<SandboxResponse>, ApiError> {
    let lease = lease(&app, &who, &id).await?;
    let lease = app
        .service
        .sandboxes()
        .pause(&who, lease.id.as_str(), Pause::default(), options(Verb::Pause))
        .await?;
    Ok(ok(SandboxResponse::of(&lease, &origin)))
}

/// Waits for the end, so that a failure is the SDK's error; after a failure the sandbox is stopped, which a program that waits for
/// `archived` cannot tell from the time before. An archive that takes longer than the server waits is answered as it is.
async fn archive(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    origin: Origin,
    Path(id): Path<String>,
) -> Result<JsonResponse<SandboxResponse>, ApiError> {
    let lease = lease(&app, &who, &id).await?;
    if lease.timers.auto_delete_s == Some(0) {
        let message = "Ephemeral sandboxes cannot be archived";
        return Err(ApiError::new(Code::PhaseConflict, message).with_status(StatusCode::BAD_REQUEST));
    }
    let archived = app.service.sandboxes().archive(&who, lease.id.as_str(), options(Verb::Archive)).await;
    let lease = match archived {
        Err(error) if error.code == Code::DeadlineExceeded => {
            self::lease(&app, &who, lease.id.as_str()).await?
        }
        archived => archived?,
    };
    Ok(ok(SandboxResponse::of(&lease, &origin)))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RecoverQuery {
    skip_start: Option<bool>,
}

/// The files of the sandbox are kept, so it is started with them. With `skipStart` it is then stopped again.
async fn recover(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    origin: Origin,
    Path(id): Path<String>,
    Query(query): Query<RecoverQuery>,
) -> Result<JsonResponse<SandboxResponse>, ApiError> {
    let lease = lease(&app, &who, &id).await?;
    let id = lease.id.as_str();
    let mut lease = app.service.sandboxes().recover(&who, id, true).await?;
    if query.skip_start == Some(true) {
        lease = app.service.sandboxes().stop(&who, id, true).await?;
    }
    Ok(ok(SandboxResponse::of(&lease, &origin)))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ForkBody {
    name: Option<String>,
}

/// Copies the processes too if the machine can, as the vendor does.
async fn fork(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    origin: Origin,
    Path(id): Path<String>,
    Json(body): Json<ForkBody>,
) -> Result<JsonResponse<SandboxResponse>, ApiError> {
    let lease = lease(&app, &who, &id).await?;
    let memory = app.service.capabilities_of(&lease).checkpoints;
    let name = body.name.filter(|name| !name.is_empty());
    let ask = Fork { memory, name, expect: Some(expected(Verb::Fork)), ..Fork::default() };
    let forked = app.service.sandboxes().fork(&who, lease.id.as_str(), ask).await?;
    match forked.sandboxes.first() {
        Some(new) => Ok(ok(SandboxResponse::of(new, &origin))),
        None => Err(ApiError::new(Code::Internal, "the fork made nothing")),
    }
}

async fn delete(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    origin: Origin,
    Path(id): Path<String>,
) -> Result<JsonResponse<SandboxResponse>, ApiError> {
    let lease = lease(&app, &who, &id).await?;
    let lease = app.service.sandboxes().delete(&who, lease.id.as_str(), true).await?;
    Ok(ok(SandboxResponse::of(&lease, &origin)))
}

/// The client reports that the sandbox is in use, which the server cannot detect.
async fn last_activity(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    let lease = lease(&app, &who, &id).await?;
    app.service.sandboxes().touch(&who, lease.id.as_str()).await?;
    Ok(StatusCode::CREATED)
}

#[derive(Debug, serde::Serialize)]
pub(crate) struct Url {
    pub(crate) url: String,
}

async fn toolbox_url(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    origin: Origin,
    Path(id): Path<String>,
) -> Result<JsonResponse<Url>, ApiError> {
    lease(&app, &who, &id).await?;
    Ok(ok(Url { url: origin.toolbox() }))
}

/// COMPAT(daytona): the URL has no query, because the SDKs append `?follow=true`.
async fn logs_url(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    origin: Origin,
    Path(id): Path<String>,
) -> Result<JsonResponse<Url>, ApiError> {
    let id = lease(&app, &who, &id).await?.id;
    Ok(ok(Url { url: origin.api(&format!("/sandbox/{id}/build-logs")) }))
}

async fn logs(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Query(query): Query<FollowQuery>,
) -> Result<Response, ApiError> {
    let lease = lease(&app, &who, &id).await?;
    let build = match lease.image_build {
        Some(build) => Some(build),
        // Its image was built before, for another sandbox or a snapshot.
        None => {
            let name = lease.template.split(':').next().unwrap_or_default().to_owned();
            let filter = BuildFilter { template: Some(name), limit: 1, ..BuildFilter::default() };
            app.service.builds().list(&who, filter).await?.items.pop().map(|build| build.id)
        }
    };
    let Some(build) = build else {
        let message = format!("Sandbox {id} was not built here, so it has no log");
        return Err(ApiError::new(Code::BuildNotFound, message));
    };
    builds::log(&app, &who, &build, query.follow.unwrap_or(false)).await
}

/// Waits for the end of a verb, which is refused where the vendor refuses it.
const fn options(verb: Verb) -> VerbOptions {
    VerbOptions::expecting(expected(verb))
}
