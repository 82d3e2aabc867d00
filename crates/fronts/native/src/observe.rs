//! Around every request: its id, its span, its figures, and the envelope of whatever was refused.
//!
//! A panic in a handler becomes a 500 with the request id and the server lives. Never logs headers, query strings or
//! bodies: they can hold secrets.

use std::panic::AssertUnwindSafe;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use atoll_budget::{HeldAnswer, RequestBudget, WholeAnswer};
use atoll_model::{Code, ErrorKind};
use atoll_service::ServiceError;
use axum::body::Body;
use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderName, HeaderValue, Method, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::FutureExt;
use tracing::field::Empty;
use tracing::{Instrument, Span};

use crate::error::ApiError;
use crate::telemetry;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
// LIMIT: a UUID with a prefix; longer ones only bloat the logs.
const REQUEST_ID_MAX: usize = 64;

pub(crate) async fn observe(request: Request, next: Next) -> Response {
    let budget = RequestBudget::of(request.extensions()).cloned();
    let since = Instant::now();
    let id = accept_id(&request).unwrap_or_else(fresh_id);
    let method = request.method().clone();
    let matched = request.extensions().get::<MatchedPath>().cloned();
    let route = matched.as_ref().map_or("(none)", MatchedPath::as_str);
    // What every call of that SDK carries; nobody else does.
    let is_leap0 = request.headers().contains_key("leap0-source");
    let span = tracing::info_span!("request", method = %method, route, request_id = %id, key = Empty);

    let answer = AssertUnwindSafe(next.run(request).instrument(span.clone())).catch_unwind().await;
    let response = answer.unwrap_or_else(|_| panicked().into_response());
    let mut response = counted(response, budget.as_ref());
    if is_leap0 && let Some(error) = response.extensions_mut().get_mut::<ApiError>() {
        error.hint = Some("this is the native API; for the Leap0 SDK the base URL ends in /leap0".to_owned());
    }
    span.in_scope(|| finish_error(&mut response, &id));
    // An id is made of characters that a header can hold.
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }

    let took = since.elapsed();
    telemetry::request(method.as_str(), route, response.status().as_u16(), took);
    note(&span, route, &response, took.as_micros());
    response
}

/// Counts an answer that is in memory as a whole until it is written; where there is no room for it, refuses.
fn counted(mut response: Response, budget: Option<&RequestBudget>) -> Response {
    let is_whole = response.extensions_mut().remove::<WholeAnswer>().is_some();
    let Some(budget) = budget.filter(|_| is_whole) else { return response };
    let (head, body) = response.into_parts();
    match HeldAnswer::new(body, &budget.account()) {
        Ok(held) => Response::from_parts(head, Body::new(held)),
        Err(exhausted) => ApiError::from(ServiceError::from(exhausted)).into_response(),
    }
}

/// For paths that no route matches.
pub(crate) async fn route_not_found(method: Method, uri: Uri) -> ApiError {
    ApiError::new(Code::RouteNotFound, format!("there is no {method} {}", uri.path()))
        .hint("/docs lists every route")
}

/// For routes that exist with other methods.
pub(crate) async fn method_not_allowed(method: Method, uri: Uri) -> ApiError {
    ApiError::new(Code::MethodNotAllowed, format!("{} does not answer {method}", uri.path()))
        .hint("the Allow header names the methods")
}

fn panicked() -> ApiError {
    ApiError::new(Code::Internal, "the server failed on this request")
        .hint("the request id finds it in the server's logs")
}

/// Gives a refusal its body. What refuses without an [`ApiError`] (none of ours does) keeps what it has.
fn finish_error(response: &mut Response, id: &str) {
    let Some(error) = response.extensions_mut().remove::<ApiError>() else { return };
    log(&error);
    let body = error.render(id);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
    *response.body_mut() = Body::from(body);
}

fn log(error: &ApiError) {
    let (code, message) = (error.code.as_str(), error.message.as_str());
    let cause = error.cause.as_deref().map(chain);
    match error.code.kind() {
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

/// The error and what it came from, in one line.
fn chain(error: &(dyn std::error::Error + Send + Sync + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}

fn note(span: &Span, route: &str, response: &Response, took_us: u128) {
    let status = response.status().as_u16();
    let took_us = u64::try_from(took_us).unwrap_or(u64::MAX);
    // Probes come every few seconds and would drown the rest.
    if matches!(route, "/health" | "/metrics") {
        tracing::debug!(parent: span, status, took_us, "answered");
    } else {
        tracing::info!(parent: span, status, took_us, "answered");
    }
}

fn accept_id(request: &Request) -> Option<String> {
    let id = request.headers().get(REQUEST_ID)?.to_str().ok()?;
    let sane = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    (!id.is_empty() && id.len() <= REQUEST_ID_MAX && id.bytes().all(sane)).then(|| id.to_owned())
}

/// Unique over restarts by its random half, cheap by its counting half.
fn fresh_id() -> String {
    static START: LazyLock<u64> = LazyLock::new(|| getrandom::u64().unwrap_or_default());
    static COUNT: AtomicU64 = AtomicU64::new(1);
    format!("{:016x}{:08x}", *START, COUNT.fetch_add(1, Ordering::Relaxed))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::error::Envelope;
    use axum::Router;
    use axum::http::StatusCode;
    use axum::routing::get;
    use http_body_util::BodyExt;
    use tower::ServiceExt;

    fn router() -> Router {
        async fn boom() {
            panic!("on purpose");
        }
        Router::new()
            .route("/ok", get(|| async { "ok" }))
            .route("/boom", get(boom))
            .method_not_allowed_fallback(method_not_allowed)
            .fallback(route_not_found)
            .layer(axum::middleware::from_fn(observe))
    }

    async fn ask(method: &str, path: &str, id: Option<&str>) -> (StatusCode, String, Option<Envelope>) {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(id) = id {
            request = request.header(REQUEST_ID, id);
        }
        let response = router().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        let (status, id) = (response.status(), response.headers()[REQUEST_ID].to_str().unwrap().to_owned());
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, id, serde_json::from_slice(&body).ok())
    }

    #[tokio::test]
    async fn a_panic_is_a_500_with_its_id_and_the_next_request_is_served() {
        let (status, id, envelope) = ask("GET", "/boom", None).await;
        let envelope = envelope.unwrap();
        assert_eq!((status.as_u16(), envelope.code.as_str(), &envelope.request_id), (500, "internal", &id));
        assert!(!envelope.message.contains("on purpose"));
        assert_eq!(ask("GET", "/ok", None).await.0, 200);
    }

    #[tokio::test]
    async fn unknown_routes_and_methods_get_the_envelope() {
        let (status, _, envelope) = ask("GET", "/nope", None).await;
        assert_eq!((status.as_u16(), envelope.unwrap().code.as_str()), (404, "route_not_found"));
        let (status, _, envelope) = ask("DELETE", "/ok", None).await;
        assert_eq!((status.as_u16(), envelope.unwrap().code.as_str()), (405, "method_not_allowed"));
    }

    #[tokio::test]
    async fn an_sdk_at_the_wrong_base_url_is_told_the_right_one() {
        let request = Request::builder().uri("/nope").header("Leap0-Source", "sdk-python");
        let response = router().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let envelope: Envelope = serde_json::from_slice(&body).unwrap();
        assert!(envelope.hint.unwrap().contains("/leap0"));
    }

    #[tokio::test]
    async fn a_sane_request_id_is_kept_and_any_other_replaced() {
        assert_eq!(ask("GET", "/ok", Some("trace-1.a_b")).await.1, "trace-1.a_b");
        for bad in ["", "a b", "<x>", &"a".repeat(65)] {
            assert_ne!(ask("GET", "/ok", Some(bad)).await.1, bad);
        }
        assert_ne!(ask("GET", "/ok", None).await.1, ask("GET", "/ok", None).await.1);
    }
}
