//! Handles every request: its id, its span, its metrics, its line in the log, the body of an error, and the response if
//! a handler panicked.
//!
//! Never logs headers, query strings or bodies: they can hold secrets.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use atoll_budget::{HeldAnswer, RequestBudget, WholeAnswer};
use atoll_model::{Code, ErrorKind};
use atoll_service::ServiceError;
use axum::body::Body;
use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderName, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::FutureExt;
use tracing::field::Empty;
use tracing::{Instrument, Span};

use crate::{ApiError, Front, Mount, RequestInfo};

/// The counter of requests, by method, route and status.
pub const REQUESTS_TOTAL: &str = "atoll_http_requests_total";
/// The histogram of seconds from a request's head to its response's head, by method and route.
pub const REQUEST_SECONDS: &str = "atoll_http_request_seconds";

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
// LIMIT: a UUID with a prefix; longer ones only bloat the logs.
const REQUEST_ID_MAX: usize = 64;

/// The path of a request before its front's prefix was removed.
#[derive(Clone)]
pub(crate) struct WholePath(pub(crate) String);

pub(crate) async fn observe(
    front: Arc<dyn Front>,
    mount: Arc<Mount>,
    request: Request,
    next: Next,
) -> Response {
    let since = Instant::now();
    let budget = RequestBudget::of(request.extensions()).cloned();
    let info = RequestInfo {
        id: accept_id(&request).unwrap_or_else(fresh_id),
        method: request.method().clone(),
        path: whole_path(&request).to_owned(),
        headers: request.headers().clone(),
    };
    let matched = request.extensions().get::<MatchedPath>().cloned();
    let route = match &matched {
        Some(matched) => format!("{}{}", mount.prefix_text(), matched.as_str()),
        None => "(none)".to_owned(),
    };
    let span = tracing::info_span!("request", front = mount.name, method = %info.method, route,
        request_id = %info.id, key = Empty);
    let response = AssertUnwindSafe(next.run(request).instrument(span.clone())).catch_unwind().await;
    let response = response.unwrap_or_else(|_| {
        let error = ApiError::new(Code::Internal, "the server failed on this request");
        error.hint("search the server's logs for the request id").into_response()
    });
    let response = count_body(response, budget.as_ref());
    let mut response = span.in_scope(|| render_error(&*front, response, &info));
    // An id consists of characters that a header can contain.
    if let Ok(value) = HeaderValue::from_str(&info.id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    let took = since.elapsed();
    count_request(&info.method, route.clone(), response.status().as_u16(), took);
    log_response(&span, &route, response.status().as_u16(), took);
    response
}

/// The path as the client sent it.
fn whole_path(request: &Request) -> &str {
    request.extensions().get::<WholePath>().map_or(request.uri().path(), |path| &path.0)
}

/// Counts a body that is in memory as a whole until it is written. Refuses it if the budget has no room.
fn count_body(mut response: Response, budget: Option<&RequestBudget>) -> Response {
    let is_whole = response.extensions_mut().remove::<WholeAnswer>().is_some();
    let Some(budget) = budget.filter(|_| is_whole) else { return response };
    let (head, body) = response.into_parts();
    match HeldAnswer::new(body, &budget.account()) {
        Ok(held) => Response::from_parts(head, Body::new(held)),
        Err(exhausted) => ApiError::from(ServiceError::from(exhausted)).into_response(),
    }
}

/// Makes the front write an error. Headers that the handler set beside the error are kept.
fn render_error(front: &dyn Front, mut response: Response, info: &RequestInfo) -> Response {
    let Some(error) = response.extensions_mut().remove::<ApiError>() else { return response };
    log_error(&error);
    let mut rendered = front.render_error(&error, info);
    for (name, value) in response.headers() {
        // The length is that of the empty body.
        if name != header::CONTENT_LENGTH && !rendered.headers().contains_key(name) {
            rendered.headers_mut().append(name, value.clone());
        }
    }
    rendered
}

/// The response for paths without a route.
pub(crate) async fn route_not_found(request: Request) -> ApiError {
    let (method, path) = (request.method(), whole_path(&request));
    ApiError::new(Code::RouteNotFound, format!("there is no {method} {path}"))
}

/// The response for routes that exist with other methods.
pub(crate) async fn method_not_allowed(request: Request) -> ApiError {
    let (method, path) = (request.method(), whole_path(&request));
    ApiError::new(Code::MethodNotAllowed, format!("{path} does not support {method}"))
}

fn log_error(error: &ApiError) {
    let (code, message) = (error.code.as_str(), error.message.as_str());
    let cause = error.cause.as_deref().map(|cause| error_chain(cause));
    match error.kind() {
        ErrorKind::Internal => tracing::error!(code, error = message, cause, "refused"),
        ErrorKind::Unavailable | ErrorKind::Unsupported => {
            tracing::warn!(code, error = message, cause, "refused")
        }
        ErrorKind::NotFound
        | ErrorKind::Exists
        | ErrorKind::Conflict
        | ErrorKind::Invalid
        | ErrorKind::Unauthenticated
        | ErrorKind::Forbidden
        | ErrorKind::Exhausted => tracing::debug!(code, error = message, cause, "refused"),
    }
}

/// An error and its causes in one line.
#[must_use]
pub fn error_chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}

fn count_request(method: &Method, route: String, status: u16, took: Duration) {
    // Labels must be few: a client can send any method, so only the known ones are distinguished.
    let method = match method.as_str() {
        "GET" => "GET",
        "POST" => "POST",
        "PUT" => "PUT",
        "PATCH" => "PATCH",
        "DELETE" => "DELETE",
        "HEAD" => "HEAD",
        _ => "other",
    };
    let labels = [("method", method.to_owned()), ("route", route)];
    metrics::histogram!(REQUEST_SECONDS, &labels).record(took.as_secs_f64());
    let [(_, method), (_, route)] = labels;
    let status = status.to_string();
    metrics::counter!(REQUESTS_TOTAL, "method" => method, "route" => route, "status" => status).increment(1);
}

fn log_response(span: &Span, route: &str, status: u16, took: Duration) {
    let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    // Probes arrive every few seconds and would hide other lines.
    if matches!(route, "/health" | "/metrics") {
        tracing::debug!(parent: span, status, took_us, "answered");
    } else {
        tracing::info!(parent: span, status, took_us, "answered");
    }
}

fn accept_id(request: &Request) -> Option<String> {
    let id = request.headers().get(REQUEST_ID)?.to_str().ok()?;
    let is_allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    (!id.is_empty() && id.len() <= REQUEST_ID_MAX && id.bytes().all(is_allowed)).then(|| id.to_owned())
}

/// Unique across restarts by its random half, cheap by its counting half.
fn fresh_id() -> String {
    static START: LazyLock<u64> = LazyLock::new(|| getrandom::u64().unwrap_or_default());
    static COUNT: AtomicU64 = AtomicU64::new(1);
    format!("{:016x}{:08x}", *START, COUNT.fetch_add(1, Ordering::Relaxed))
}
