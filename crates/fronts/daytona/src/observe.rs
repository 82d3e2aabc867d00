//! Around every request: its span, its figures, its line in the log, the body of a refusal, and an answer where a handler
//! panicked.
//!
//! Never logs headers, query strings or bodies: they can hold secrets.

use std::panic::AssertUnwindSafe;
use std::time::Instant;

use atoll_budget::{HeldAnswer, RequestBudget, WholeAnswer};
use atoll_model::{Code, ErrorKind};
use atoll_service::ServiceError;
use axum::body::Body;
use axum::extract::{MatchedPath, Request};
use axum::http::{Method, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::FutureExt;
use jiff::Timestamp;
use tracing::Instrument;
use tracing::field::Empty;

use crate::error::ApiError;

#[expect(clippy::disallowed_methods, reason = "the time that an error shows")]
pub(crate) async fn observe(request: Request, next: Next) -> Response {
    let budget = RequestBudget::of(request.extensions()).cloned();
    let since = Instant::now();
    let method = request.method().clone();
    let path = format!("{}{}", crate::PREFIX, request.uri().path());
    let matched = request.extensions().get::<MatchedPath>().cloned();
    let route = matched.as_ref().map_or("(none)", MatchedPath::as_str).to_owned();
    let span = tracing::info_span!("daytona", method = %method, route, key = Empty);
    let answer = AssertUnwindSafe(next.run(request).instrument(span.clone())).catch_unwind().await;
    let response = answer.unwrap_or_else(|_| {
        ApiError::new(Code::Internal, "the server failed on this request").into_response()
    });
    let mut response = counted(response, budget.as_ref());
    let (status, took) = (response.status().as_u16(), since.elapsed());
    let refused = response.extensions_mut().remove::<ApiError>();
    if let Some(error) = &refused {
        let body = error.render(&method, &path, &crate::output::time(Timestamp::now().as_millisecond()));
        *response.body_mut() = Body::from(body);
    }
    span.in_scope(|| {
        if let Some(error) = &refused {
            log(error);
        }
        tracing::info!(status, took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX), "answered");
    });
    metrics::histogram!("atoll_daytona_seconds", "route" => route).record(took.as_secs_f64());
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
}

/// For routes that exist with other methods.
pub(crate) async fn method_not_allowed(method: Method, uri: Uri) -> ApiError {
    ApiError::new(Code::MethodNotAllowed, format!("{} does not answer {method}", uri.path()))
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
