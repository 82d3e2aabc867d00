//! How an answer is sent: as JSON if it comes soon, otherwise as an event stream with progress before the answer.
//!
//! When the client closes the connection, hyper drops the response, and with it the work and the command in the sandbox.

use std::convert::Infallible;
use std::time::Duration;

use atoll_front_kit::JsonResponse;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::future::BoxFuture;
use futures::stream;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::era::Era;
use crate::http::status;
use crate::message::RpcResponse;

/// How long a stream is not begun, in the hope of an answer.
const DEFERRED_FOR: Duration = Duration::from_secs(1);
/// The time between two messages about progress.
const PROGRESS_EVERY: Duration = Duration::from_secs(2);
// LIMIT: below the 30 s and 60 s after which common proxies drop a silent connection.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// What is known about an answer before it is there.
pub(crate) struct PendingAnswer {
    pub(crate) era: Era,
    /// Progress is sent with this token.
    pub(crate) progress: Option<Value>,
    /// What runs, for messages about progress.
    pub(crate) what: String,
    pub(crate) accepts_events: bool,
}

type Work = BoxFuture<'static, RpcResponse>;

/// Waits for the answer and sends it.
pub(crate) async fn respond(pending: PendingAnswer, mut work: Work) -> Response {
    let begun = Instant::now();
    let whole = |response: RpcResponse| json_response(status(pending.era, &response), &response);
    if !pending.accepts_events {
        return whole(work.await);
    }
    match tokio::time::timeout(DEFERRED_FOR, &mut work).await {
        Ok(response) => whole(response),
        Err(_) => events(pending, work, begun),
    }
}

pub(crate) fn json_response(status: StatusCode, response: &RpcResponse) -> Response {
    JsonResponse(status, response).into_response()
}

fn events(pending: PendingAnswer, work: Work, begun: Instant) -> Response {
    let state = StreamState { pending, work: Some(work), begun, next: begun };
    let events = stream::unfold(state, StreamState::next);
    let mut response = Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response();
    // Some proxies buffer a response unless this header disables it.
    response
        .headers_mut()
        .insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

struct StreamState {
    pending: PendingAnswer,
    /// `None`: the answer was sent.
    work: Option<Work>,
    begun: Instant,
    /// When to send progress.
    next: Instant,
}

impl StreamState {
    async fn next(mut self) -> Option<(Result<Event, Infallible>, Self)> {
        let mut work = self.work.take()?;
        let Some(token) = &self.pending.progress else {
            let event = message(&work.await);
            return Some((event, self));
        };
        tokio::select! {
            response = &mut work => Some((message(&response), self)),
            () = tokio::time::sleep_until(self.next) => {
                let event = message(&progress(token, &self.pending.what, self.begun.elapsed()));
                self.next = Instant::now() + PROGRESS_EVERY;
                self.work = Some(work);
                Some((event, self))
            }
        }
    }
}

/// One message as an event. Newlines inside are escaped by JSON, so one event is one line of data.
fn message(message: &impl serde::Serialize) -> Result<Event, Infallible> {
    let text = serde_json::to_string(message).unwrap_or_else(|_| "null".to_owned());
    Ok(Event::default().event("message").data(text))
}

fn progress(token: &Value, what: &str, elapsed: Duration) -> Value {
    let seconds = elapsed.as_secs_f64();
    json!({
        "jsonrpc": "2.0",
        "method": "notifications/progress",
        "params": {
            "progressToken": token,
            "progress": (seconds * 10.0).round() / 10.0,
            "message": format!("{what} has run for {} s", elapsed.as_secs()),
        },
    })
}
