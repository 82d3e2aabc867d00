//! Builds: started with their files in one request, followed by their log, cancelled.

use atoll_budget::RequestBudget;
use atoll_front_kit::{ApiError, Caller, JsonResponse, Path, Query, ok, rfc3339_millis};
use atoll_model::BuildLevel;
use atoll_service::BuildFilter;
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::App;
use crate::flag::Flag;
use crate::sse;

mod form;
mod request;

use request::BuildBody;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(start, list)).routes(routes!(get, cancel)).routes(routes!(logs))
}

/// One making of a template.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Build {
    id: String,
    /// The tenant's id.
    tenant: String,
    /// What it makes.
    #[schema(example = "app:v1")]
    template: String,
    /// Further tags that shall point to it.
    tags: Vec<String>,
    status: BuildStatus,
    /// The step that is under way, or was the last; 0 before the first.
    step: u32,
    /// How many there are; 0 until that is known.
    steps: u32,
    /// That step as its author wrote it, shortened.
    step_text: String,
    /// Steps that were taken from the cache.
    cached_steps: u32,
    /// Why it failed.
    failure: Option<BuildFailure>,
    /// What it made.
    version: Option<String>,
    /// Instructions that were left out, and why.
    notes: Vec<String>,
    #[schema(format = DateTime)]
    created_at: String,
    #[schema(format = DateTime)]
    started_at: Option<String>,
    #[schema(format = DateTime)]
    ended_at: Option<String>,
}

/// How far a build is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum BuildStatus {
    Waiting,
    Building,
    Ready,
    Failed,
    Cancelled,
}

/// Why a build failed.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct BuildFailure {
    /// One of the closed list in `docs/errors.md`.
    code: String,
    message: String,
    hint: Option<String>,
    /// In which step.
    step: Option<u32>,
    /// What its command exited with.
    exit_code: Option<i32>,
    /// The end of what it wrote.
    tail: Vec<String>,
}

impl From<atoll_model::BuildStatus> for BuildStatus {
    fn from(status: atoll_model::BuildStatus) -> Self {
        match status {
            atoll_model::BuildStatus::Waiting => Self::Waiting,
            atoll_model::BuildStatus::Building => Self::Building,
            atoll_model::BuildStatus::Ready => Self::Ready,
            atoll_model::BuildStatus::Failed => Self::Failed,
            atoll_model::BuildStatus::Cancelled => Self::Cancelled,
        }
    }
}

impl From<BuildStatus> for atoll_model::BuildStatus {
    fn from(status: BuildStatus) -> Self {
        match status {
            BuildStatus::Waiting => Self::Waiting,
            BuildStatus::Building => Self::Building,
            BuildStatus::Ready => Self::Ready,
            BuildStatus::Failed => Self::Failed,
            BuildStatus::Cancelled => Self::Cancelled,
        }
    }
}

impl From<atoll_model::Build> for Build {
    fn from(build: atoll_model::Build) -> Self {
        Self {
            id: build.id.into(),
            tenant: build.tenant.into(),
            template: build.template.to_string(),
            tags: build.tags,
            status: build.status.into(),
            step: build.step,
            steps: build.steps,
            step_text: build.step_text,
            cached_steps: build.cached_steps,
            failure: build.failure.map(|failure| BuildFailure {
                code: failure.code.as_str().to_owned(),
                message: failure.message,
                hint: failure.hint,
                step: failure.step,
                exit_code: failure.exit_code,
                tail: failure.tail,
            }),
            version: build.version,
            notes: build.notes,
            created_at: rfc3339_millis(build.created_at.wall_ms),
            started_at: build.started_at.map(|at| rfc3339_millis(at.wall_ms)),
            ended_at: build.ended_at.map(|at| rfc3339_millis(at.wall_ms)),
        }
    }
}

/// One page of builds, newest first.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct BuildPage {
    items: Vec<Build>,
    /// Hand it in as `cursor` for the next page; null: that was all.
    next_cursor: Option<String>,
}

/// The parts of a form.
#[derive(ToSchema)]
#[allow(dead_code, reason = "documents the form; `form` reads it")]
pub(crate) struct BuildForm {
    /// What to build; the first part.
    spec: BuildBody,
    /// The files that it may copy from: a tar, plain or compressed with gzip or zstd.
    #[schema(value_type = Option<String>, format = Binary)]
    context: Option<Vec<u8>>,
}

/// Starts a build and answers at once; its log says how it goes.
///
/// A form with `spec` and then `context`, or, where nothing is copied from a folder, the spec alone as JSON.
#[utoipa::path(post, path = "/v1/builds", tag = "builds",
    request_body(content((BuildForm = "multipart/form-data"), (BuildBody = "application/json"))),
    responses((status = 202, body = Build, description = "Waits for its turn, or has begun")))]
pub(crate) async fn start(
    State(app): State<App>,
    Caller(who): Caller,
    headers: HeaderMap,
    budget: Option<Extension<RequestBudget>>,
    body: Body,
) -> Result<Response, ApiError> {
    let form::Form { spec, context, fault } = form::read(&headers, body, budget.as_deref()).await?;
    let started = app.service.start_build(&who, spec.try_into()?, context).await;
    let build = started.map_err(|error| fault.or(error))?;
    let location = HeaderValue::from_str(&format!("/v1/builds/{}", build.id));
    let mut response = JsonResponse(StatusCode::ACCEPTED, Build::from(build)).into_response();
    if let Ok(location) = location {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct BuildsQuery {
    /// Only of the template with this name.
    template: Option<String>,
    #[param(inline)]
    status: Option<BuildStatus>,
    /// At most this many.
    #[param(value_type = Option<u32>, minimum = 1)]
    limit: Option<std::num::NonZeroU32>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

/// Lists builds, newest first.
#[utoipa::path(get, path = "/v1/builds", tag = "builds", params(BuildsQuery),
    responses((status = 200, body = BuildPage)))]
pub(crate) async fn list(
    State(app): State<App>,
    Caller(who): Caller,
    Query(query): Query<BuildsQuery>,
) -> Result<JsonResponse<BuildPage>, ApiError> {
    let filter = BuildFilter {
        status: query.status.map(Into::into),
        template: query.template,
        limit: query.limit.map_or(0, std::num::NonZeroU32::get),
        cursor: query.cursor,
    };
    let page = app.service.list_builds(&who, filter).await?;
    let items = page.items.into_iter().map(Build::from).collect();
    Ok(ok(BuildPage { items, next_cursor: page.next_cursor }))
}

/// Shows a build.
#[utoipa::path(get, path = "/v1/builds/{build}", tag = "builds",
    params(("build" = String, Path, description = "Id or unique prefix of an id")),
    responses((status = 200, body = Build)))]
pub(crate) async fn get(
    State(app): State<App>,
    Caller(who): Caller,
    Path(build): Path<String>,
) -> Result<JsonResponse<Build>, ApiError> {
    Ok(ok(app.service.get_build(&who, &build).await?.into()))
}

/// Cancels a build and answers when nothing of it runs any more. One that has ended is left as it is.
#[utoipa::path(delete, path = "/v1/builds/{build}", tag = "builds", params(("build" = String, Path)),
    responses((status = 200, body = Build)))]
pub(crate) async fn cancel(
    State(app): State<App>,
    Caller(who): Caller,
    Path(build): Path<String>,
) -> Result<JsonResponse<Build>, ApiError> {
    Ok(ok(app.service.cancel_build(&who, &build).await?.into()))
}

/// One line of a build's log.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct BuildLine {
    /// Counts from 1 without gaps.
    seq: u64,
    #[schema(format = DateTime)]
    at: String,
    level: Level,
    /// In which step; 0: before the first or after the last.
    step: u32,
    text: String,
}

/// Who says a line: the builder (`info`, `warn`, `error`) or the command of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Level {
    Info,
    Warn,
    Error,
    Stdout,
    Stderr,
}

impl From<atoll_model::BuildLine> for BuildLine {
    fn from(line: atoll_model::BuildLine) -> Self {
        let level = match line.level {
            BuildLevel::Info => Level::Info,
            BuildLevel::Warn => Level::Warn,
            BuildLevel::Error => Level::Error,
            BuildLevel::Stdout => Level::Stdout,
            BuildLevel::Stderr => Level::Stderr,
        };
        Self { seq: line.seq, at: rfc3339_millis(line.at_ms), level, step: line.step, text: line.text }
    }
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct BuildLog {
    /// Oldest first.
    items: Vec<BuildLine>,
    /// Hand it in as `from` for what comes behind; null: that was all, for now.
    next_from: Option<u64>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct LogsQuery {
    /// The first line that is wanted. Default 1.
    from: Option<u64>,
    /// `1`: server-sent events until the build ends.
    #[param(value_type = Option<String>, pattern = "^(0|1|true|false)$")]
    follow: Option<Flag>,
}

// LIMIT: a page that is quick to read and quick to send.
const LINES_MAX: usize = 5_000;
const LINES_BYTES_MAX: usize = 4 << 20;

/// The log of a build, or with `follow=1` its lines as they come.
///
/// Events: `line` with the object below, its `seq` as its id, and last `end` with the build. A client that comes back with
/// `Last-Event-ID` goes on without a gap.
#[utoipa::path(get, path = "/v1/builds/{build}/logs", tag = "builds",
    params(("build" = String, Path), LogsQuery,
        ("Last-Event-ID" = Option<u64>, Header, description = "The last `seq` that came; wins over `from`.")),
    responses((status = 200, content((BuildLog = "application/json"), (String = "text/event-stream")))))]
pub(crate) async fn logs(
    State(app): State<App>,
    Caller(who): Caller,
    Path(build): Path<String>,
    Query(query): Query<LogsQuery>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let seen = crate::events::last_event_id(&headers)?;
    let from = seen.map_or(query.from.unwrap_or(1), |seen| seen.saturating_add(1));
    let follow = query.follow.unwrap_or_default().0;
    let lines = app.service.build_log(&who, &build, from, follow).await?;
    if !follow {
        return Ok(ok(page(lines).await).into_response());
    }
    let service = app.service.clone();
    let lines = lines.map(|line| {
        let seq = line.seq.to_string();
        sse::event("line", &BuildLine::from(line)).id(seq)
    });
    let end = futures::stream::once(async move {
        match service.get_build(&who, &build).await {
            Ok(build) => sse::event("end", &Build::from(build)),
            Err(error) => sse::event("error", &crate::exec::Broken::from(error)),
        }
    });
    Ok(sse::respond(&app, lines.chain(end)))
}

async fn page(mut lines: futures::stream::BoxStream<'static, atoll_model::BuildLine>) -> BuildLog {
    let (mut items, mut bytes) = (Vec::new(), 0);
    while let Some(line) = lines.next().await {
        if items.len() >= LINES_MAX || bytes >= LINES_BYTES_MAX {
            return BuildLog { items, next_from: Some(line.seq) };
        }
        bytes += line.text.len();
        items.push(line.into());
    }
    BuildLog { items, next_from: None }
}
