//! Builds: started with their files in one request, followed by their log, cancelled.

use atoll_client::builds::{
    Build, BuildBody, BuildFailure, BuildForm, BuildLine, BuildLog, BuildPage, BuildsQuery, LogsQuery,
};
use atoll_client::exec::StreamError;
use atoll_front_kit::{ApiError, Caller, JsonResponse, Path, Query, RequestBudget, ok, rfc3339_millis};
use atoll_service::BuildFilter;
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::App;
use crate::convert::{FromCore, IntoApi, IntoCore};
use crate::sse;

mod form;
mod request;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(start, list)).routes(routes!(get, cancel)).routes(routes!(logs))
}

impl FromCore<atoll_model::Build> for Build {
    fn from_core(build: atoll_model::Build) -> Self {
        Self {
            id: build.id.into(),
            tenant: build.tenant.into(),
            node: build.node.into(),
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

/// Starts a build and returns at once; its log shows the progress.
///
/// The body is a form with `spec` and then `context`. A build without files to copy can send the spec alone as
/// JSON.
#[utoipa::path(post, path = "/v1/builds", tag = "builds",
    request_body(content((BuildForm = "multipart/form-data"), (BuildBody = "application/json"))),
    responses((status = 202, body = Build, description = "The build waits or has begun")))]
pub(crate) async fn start(
    State(app): State<App>,
    Caller(who): Caller,
    headers: HeaderMap,
    budget: Option<Extension<RequestBudget>>,
    body: Body,
) -> Result<Response, ApiError> {
    let form::Form { spec, context, fault } = form::read(&headers, body, budget.as_deref()).await?;
    let started = app.service.builds().start(&who, spec.into_core()?, context).await;
    let build = started.map_err(|error| fault.or(error))?;
    let location = HeaderValue::from_str(&format!("/v1/builds/{}", build.id));
    let mut response = JsonResponse(StatusCode::ACCEPTED, Build::from_core(build)).into_response();
    if let Ok(location) = location {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
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
    let page = app.service.builds().list(&who, filter).await?;
    let items = page.items.into_iter().map(Build::from_core).collect();
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
    Ok(ok(app.service.builds().get(&who, &build).await?.into_api()))
}

/// Cancels a build and returns when it no longer runs. A build that has ended is not changed.
#[utoipa::path(delete, path = "/v1/builds/{build}", tag = "builds", params(("build" = String, Path)),
    responses((status = 200, body = Build)))]
pub(crate) async fn cancel(
    State(app): State<App>,
    Caller(who): Caller,
    Path(build): Path<String>,
) -> Result<JsonResponse<Build>, ApiError> {
    Ok(ok(app.service.builds().cancel(&who, &build).await?.into_api()))
}

impl FromCore<atoll_model::BuildLine> for BuildLine {
    fn from_core(line: atoll_model::BuildLine) -> Self {
        Self {
            seq: line.seq,
            at: rfc3339_millis(line.at_ms),
            level: line.level.into(),
            step: line.step,
            text: line.text,
        }
    }
}

// LIMIT: a page that is quick to read and quick to send.
const LINES_MAX: usize = 5_000;
const LINES_BYTES_MAX: usize = 4 << 20;

/// Returns the log of a build; with `follow=1` streams its lines.
///
/// Events: `line` with the object below and its `seq` as id, and at the end `end` with the build. A client that
/// reconnects with `Last-Event-ID` continues without a gap.
#[utoipa::path(get, path = "/v1/builds/{build}/logs", tag = "builds",
    params(("build" = String, Path), LogsQuery,
        ("Last-Event-ID" = Option<u64>, Header, description = "The last received `seq`; has precedence over `from`.")),
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
    let lines = app.service.builds().log(&who, &build, from, follow).await?;
    if !follow {
        return Ok(ok(page(lines).await).into_response());
    }
    let service = app.service.clone();
    let lines = lines.map(|line| {
        let seq = line.seq.to_string();
        sse::event("line", &BuildLine::from_core(line)).id(seq)
    });
    let end = futures::stream::once(async move {
        match service.builds().get(&who, &build).await {
            Ok(build) => sse::event("end", &Build::from_core(build)),
            Err(error) => sse::event("error", &StreamError::from_core(error)),
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
        items.push(line.into_api());
    }
    BuildLog { items, next_from: None }
}
