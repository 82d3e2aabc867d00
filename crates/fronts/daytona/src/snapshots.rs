//! Snapshots: the possible sources of sandboxes in Daytona's API. One list contains Atoll's templates, running builds
//! of templates, and Atoll's snapshots of sandboxes.

use atoll_front_kit::paging::{READ_AT_ONCE, numbered_page, read_all};
use atoll_front_kit::{ApiError, Caller, Json, JsonResponse, Path, Query, ok};
use atoll_model::{BuildStatus, Code, Principal};
use atoll_service::{BuildFilter, SnapshotFilter};
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{get, post};
use serde::{Deserialize, Serialize};

use crate::DaytonaApp;
use crate::builds;
use crate::error::unsupported_field;
use crate::naming;
use crate::origin::Origin;
use crate::sandboxes::{BuildAsk, Url, check_gpu_types, limits, refuse_gpu};

mod response;

pub(crate) use response::SnapshotResponse;

const PAGE_SIZE: usize = 100;
const PAGE_SIZE_MAX: usize = 200;
/// LIMIT: how long a failed build is in the list.
const FAILED_FOR_MS: i64 = 3_600_000;

pub(crate) fn routes() -> Router<DaytonaApp> {
    Router::new()
        .route("/snapshots", post(create).get(list))
        .route("/snapshots/{id}", get(find).delete(remove))
        .route("/snapshots/{id}/activate", post(activate))
        .route("/snapshots/{id}/build-logs-url", get(logs_url))
        .route("/snapshots/{id}/build-logs", get(logs))
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CreateSnapshotRequest {
    name: String,
    image_name: Option<String>,
    entrypoint: Option<Vec<String>>,
    #[serde(default, deserialize_with = "crate::whole_number::whole")]
    cpu: Option<u32>,
    gpu: Option<i64>,
    gpu_type: Option<Vec<String>>,
    #[serde(default, deserialize_with = "crate::whole_number::whole")]
    memory: Option<u32>,
    #[serde(default, deserialize_with = "crate::whole_number::whole")]
    disk: Option<u32>,
    build_info: Option<BuildAsk>,
    sandbox_class: Option<String>,
}

/// Responds when the build is recorded.
async fn create(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    Json(body): Json<CreateSnapshotRequest>,
) -> Result<JsonResponse<SnapshotResponse>, ApiError> {
    refuse_gpu(body.gpu)?;
    check_gpu_types(body.gpu_type.as_deref())?;
    if body.sandbox_class.as_deref().is_some_and(|class| class != crate::sandboxes::CLASS) {
        return Err(unsupported_field("sandboxClass", "sandboxes are of class container"));
    }
    let name = body.name.trim().to_owned();
    let word = naming::word(&name)?;
    if existing(&app, &who, &name).await?.is_some_and(|found| !found.failed()) {
        return Err(crate::sandboxes::taken(&name));
    }
    let image = body.image_name.map(|image| image.trim().to_owned()).filter(|image| !image.is_empty());
    let (build, notes) = match (image, body.build_info) {
        (Some(_), Some(_)) => return Err(ApiError::invalid("imageName and buildInfo cannot be combined")),
        (None, None) => return Err(ApiError::invalid("one of imageName and buildInfo is needed")),
        (Some(image), None) => {
            image
                .parse::<atoll_model::TemplateRef>()
                .map_err(|why| ApiError::invalid(format!("imageName: {why}")))?;
            let text = format!("FROM {image}\n");
            let build = BuildAsk { dockerfile_content: text, context_hashes: None };
            (build, vec![("image", image)])
        }
        (None, Some(build)) => {
            let contexts = build.context_hashes.clone().unwrap_or_default().join(",");
            let notes = vec![("dockerfile", build.dockerfile_content.clone()), ("contexts", contexts)];
            (build, notes)
        }
    };
    let command = body.entrypoint.filter(|entrypoint| !entrypoint.is_empty());
    let limits = limits(body.cpu, body.memory, body.disk);
    let ask = builds::Ask { word, build, limits, command, notes };
    let begun = app.service.builds().start(&who, builds::request(ask)?, None).await?;
    // COMPAT(daytona): the SDKs read the log of a snapshot that is being built, but not of one that is pending; a later
    // poll may find it complete.
    Ok(ok(SnapshotResponse::of_build(&begun).begun()))
}

async fn find(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<JsonResponse<SnapshotResponse>, ApiError> {
    Ok(ok(existing(&app, &who, &id).await?.ok_or_else(|| missing(&id))?))
}

fn missing(id: &str) -> ApiError {
    let id: String = id.chars().take(128).collect();
    ApiError::new(Code::SnapshotNotFound, format!("Snapshot {id} not found"))
}

/// The template, the snapshot of a sandbox or the build that has this name or id.
async fn existing(
    app: &DaytonaApp,
    who: &Principal,
    name: &str,
) -> Result<Option<SnapshotResponse>, ApiError> {
    if let Some(template) = naming::template(app, who, name).await? {
        return Ok(Some(SnapshotResponse::of_template(&template, name)));
    }
    match app.service.sandboxes().get_snapshot(who, name).await {
        Ok(kept) if kept.id.as_str() == name || kept.tenant_wide_name() == Some(name) => {
            return Ok(Some(SnapshotResponse::of_kept(&kept)));
        }
        Ok(_) => {}
        Err(error) if matches!(error.code, Code::SnapshotNotFound | Code::Ambiguous) => {}
        Err(error) => return Err(error.into()),
    }
    let Some(build) = newest_build(app, who, name).await? else { return Ok(None) };
    Ok(is_shown(&build).then(|| SnapshotResponse::of_build(&build)))
}

/// The last build of this name.
async fn newest_build(
    app: &DaytonaApp,
    who: &Principal,
    name: &str,
) -> Result<Option<atoll_model::Build>, ApiError> {
    let Ok(word) = naming::word(name) else { return Ok(None) };
    let Ok(wanted) = word.parse::<atoll_model::TemplateRef>() else { return Ok(None) };
    let filter = BuildFilter { template: Some(wanted.name.clone()), limit: 100, ..BuildFilter::default() };
    let builds = app.service.builds().list(who, filter).await?;
    let same = |build: &atoll_model::Build| build.template.tag_or_default() == wanted.tag_or_default();
    Ok(builds.items.into_iter().find(same))
}

/// One that runs or waits, or has failed.
const fn is_shown(build: &atoll_model::Build) -> bool {
    matches!(build.status, BuildStatus::Waiting | BuildStatus::Building | BuildStatus::Failed)
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SnapshotListQuery {
    page: Option<usize>,
    limit: Option<usize>,
    name: Option<String>,
    source_sandbox_id: Option<String>,
    sort: Option<String>,
    order: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Paged {
    items: Vec<SnapshotResponse>,
    total: usize,
    page: usize,
    total_pages: usize,
}

async fn list(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    Query(query): Query<SnapshotListQuery>,
) -> Result<JsonResponse<Paged>, ApiError> {
    let (page, size) = (query.page.unwrap_or(1), query.limit.unwrap_or(PAGE_SIZE));
    if page == 0 || size == 0 {
        return Err(ApiError::invalid("page and limit must be at least 1"));
    }
    let size = size.min(PAGE_SIZE_MAX);
    let mut all = all(&app, &who).await?;
    if let Some(part) = query.name.as_deref().map(str::to_lowercase) {
        all.retain(|snapshot| snapshot.name().to_lowercase().contains(&part));
    }
    if let Some(sandbox) = &query.source_sandbox_id {
        all.retain(|snapshot| snapshot.source() == Some(sandbox.as_str()));
    }
    match query.sort.as_deref().unwrap_or("createdAt") {
        "name" => all.sort_by(|a, b| a.name().cmp(b.name())),
        "state" => all.sort_by(|a, b| (a.state(), a.name()).cmp(&(b.state(), b.name()))),
        "lastUsedAt" | "createdAt" => {
            all.sort_by(|a, b| (a.created(), a.name()).cmp(&(b.created(), b.name())));
        }
        _ => return Err(ApiError::invalid("sort: must be name, state, lastUsedAt or createdAt")),
    }
    match query.order.as_deref() {
        Some("asc") => {}
        None | Some("desc") => all.reverse(),
        Some(_) => return Err(ApiError::invalid("order: must be asc or desc")),
    }
    let total = all.len();
    let items = numbered_page(all, page, size);
    Ok(ok(Paged { items, total, page, total_pages: total.div_ceil(size) }))
}

/// All snapshots that the key may start from.
async fn all(app: &DaytonaApp, who: &Principal) -> Result<Vec<SnapshotResponse>, ApiError> {
    let mut all = Vec::new();
    for template in app.service.templates().list(who).await? {
        // The host's own file system is not a snapshot, and a template that was built for a sandbox has no name.
        if template.name.starts_with(builds::NAMELESS) || template.kind == "host" {
            continue;
        }
        all.extend(SnapshotResponse::of_tags(&template));
    }
    let kept = read_all(
        |_| true,
        |cursor| {
            let filter = SnapshotFilter { limit: READ_AT_ONCE, cursor, ..SnapshotFilter::default() };
            app.service.sandboxes().snapshots(who, filter)
        },
    )
    .await?;
    all.extend(kept.iter().map(SnapshotResponse::of_kept));
    let builds = app.service.builds().list(who, BuildFilter { limit: 200, ..BuildFilter::default() }).await?;
    let now_ms = app.service.now_ms();
    for build in builds.items {
        let fresh = build.ended_at.as_ref().is_none_or(|at| now_ms - at.wall_ms < FAILED_FOR_MS);
        let shown = SnapshotResponse::of_build(&build);
        let named = build.template.name.starts_with(builds::NAMELESS);
        if fresh && !named && is_shown(&build) && !all.iter().any(|known| known.name() == shown.name()) {
            all.push(shown);
        }
    }
    Ok(all)
}

/// COMPAT(daytona): a general snapshot cannot be deleted.
async fn remove(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    let found = existing(&app, &who, &id).await?.ok_or_else(|| missing(&id))?;
    if found.is_general() {
        let message = format!("Snapshot {id} is general: it belongs to the server and cannot be deleted");
        return Err(ApiError::new(Code::Forbidden, message));
    }
    match found.kind() {
        // Sandboxes that were made from it keep their files: the name goes, and the rest when nobody needs it.
        response::Kind::Template => {
            app.service.templates().remove(&who, &tagged(&naming::word(&id)?)).await?
        }
        response::Kind::Kept => app.service.sandboxes().delete_snapshot(&who, found.id()).await?,
        response::Kind::Build => {
            if let Some(build) = newest_build(&app, &who, &id).await? {
                app.service.builds().delete_of_template(&who, &build.template).await?;
            }
        }
    }
    Ok(StatusCode::OK)
}

fn tagged(word: &str) -> String {
    let has_tag = word.rsplit_once(':').is_some_and(|(_, tag)| !tag.contains('/'));
    if has_tag { word.to_owned() } else { format!("{word}:{}", atoll_model::DEFAULT_TAG) }
}

/// COMPAT(daytona): only an inactive snapshot can be activated, and Atoll has none.
async fn activate(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<JsonResponse<SnapshotResponse>, ApiError> {
    let found = existing(&app, &who, &id).await?.ok_or_else(|| missing(&id))?;
    let message = format!("Snapshot {id} is {}, so it cannot be activated", found.state());
    Err(ApiError::new(Code::PhaseConflict, message).with_status(StatusCode::BAD_REQUEST))
}

/// COMPAT(daytona): the URL has no query, because the SDKs append `?follow=true`.
async fn logs_url(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    origin: Origin,
    Path(id): Path<String>,
) -> Result<JsonResponse<Url>, ApiError> {
    existing(&app, &who, &id).await?.ok_or_else(|| missing(&id))?;
    let segment: String = url::form_urlencoded::byte_serialize(id.as_bytes()).collect();
    Ok(ok(Url { url: origin.api(&format!("/snapshots/{segment}/build-logs")) }))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct FollowQuery {
    pub(crate) follow: Option<bool>,
}

async fn logs(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Query(query): Query<FollowQuery>,
) -> Result<Response, ApiError> {
    let build = newest_build(&app, &who, &id).await?.ok_or_else(|| {
        ApiError::new(Code::BuildNotFound, format!("Snapshot {id} was not built here, so it has no log"))
    })?;
    builds::log(&app, &who, &build.id, query.follow.unwrap_or(false)).await
}
