//! The resource usage of a sandbox, now and over time, and the server's own metrics.

use atoll_client::metrics::{Sample, SampleList};
use atoll_front_kit::{ApiError, Caller, JsonResponse, Path, Query, ok, rfc3339_millis};
use atoll_model::Code;
use atoll_service::ResourceSample;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::convert::{FromCore, IntoApi};
use crate::{App, telemetry};

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(now)).routes(routes!(history)).routes(routes!(figures))
}

impl FromCore<ResourceSample> for Sample {
    fn from_core(sample: ResourceSample) -> Self {
        Self {
            at: rfc3339_millis(sample.at_ms),
            cpu_us: sample.cpu_us,
            cpu_pct: sample.cpu_pct,
            memory_bytes: sample.memory_bytes,
            cache_bytes: sample.cache_bytes,
            pids: sample.pids,
            disk_bytes: sample.disk_bytes,
            received_bytes: sample.received_bytes,
            sent_bytes: sample.sent_bytes,
            limits: sample.limits.into(),
        }
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct HistoryQuery {
    /// Only later samples; RFC 3339.
    #[param(value_type = Option<String>, format = DateTime)]
    since: Option<Timestamp>,
    /// Maximum number of results.
    limit: Option<u32>,
}

/// Returns the current resource use of a sandbox.
#[utoipa::path(get, path = "/v1/sandboxes/{ident}/metrics", tag = "metrics",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    responses((status = 200, body = Sample)))]
pub(crate) async fn now(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
) -> Result<JsonResponse<Sample>, ApiError> {
    Ok(ok(app.service.sandboxes().metrics_now(&who, &ident).await?.into_api()))
}

/// Returns the past resource use of a sandbox, sampled every few seconds and kept for some time.
#[utoipa::path(get, path = "/v1/sandboxes/{ident}/metrics/history", tag = "metrics",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name"), HistoryQuery),
    responses((status = 200, body = SampleList)))]
pub(crate) async fn history(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    Query(query): Query<HistoryQuery>,
) -> Result<JsonResponse<SampleList>, ApiError> {
    let since_ms = query.since.map(Timestamp::as_millisecond);
    // LIMIT: an hour of samples at the default interval.
    let limit = query.limit.unwrap_or(360);
    let samples = app.service.sandboxes().metrics_history(&who, &ident, since_ms, limit).await?;
    Ok(ok(SampleList { items: samples.into_iter().map(Sample::from_core).collect() }))
}

/// Returns the server's metrics in the Prometheus text format. Needs an admin key.
#[utoipa::path(get, path = "/metrics", tag = "server",
    responses((status = 200, content_type = "text/plain", body = String)))]
pub(crate) async fn figures(State(app): State<App>, Caller(who): Caller) -> Result<Response, ApiError> {
    atoll_model::policy::authz::admin(&who)
        .map_err(|denied| ApiError::new(Code::Forbidden, denied.to_string()))?;
    let text = telemetry::render(&app.service.stats());
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response())
}
