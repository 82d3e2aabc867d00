//! Events of sandboxes in order: read a range of them, or follow.

use atoll_client::events::{Event, EventKind, EventList, EventsQuery};
use atoll_front_kit::{ApiError, Caller, Query, ok, rfc3339_millis};
use atoll_model::{EventKind as Happened, SandboxEvent};
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::App;
use crate::convert::FromCore;
use crate::sse;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(events))
}

impl FromCore<SandboxEvent> for Event {
    fn from_core(event: SandboxEvent) -> Self {
        let what = match event.what {
            Happened::Phase { from, to, reason } => {
                EventKind::Phase { from: from.map(Into::into), to: to.into(), reason: reason.into() }
            }
            Happened::Stage { stage } => EventKind::Stage { stage: stage.into() },
            Happened::Queued { place } => EventKind::Queued { queue: place.into() },
            Happened::OutOfMemory => EventKind::OutOfMemory,
            Happened::Snapshotted { snapshot, memory } => {
                EventKind::Snapshotted { snapshot: snapshot.into(), memory }
            }
            Happened::Forked { children } => {
                EventKind::Forked { children: children.into_iter().map(Into::into).collect() }
            }
            Happened::Checkpointed { failure } => EventKind::Checkpointed { failure },
            Happened::Moved { from, to, failure } => EventKind::Moved { from, to, failure },
            Happened::Updated { fields } => EventKind::Updated { fields },
        };
        Self {
            seq: event.seq,
            tenant: event.tenant.into(),
            sandbox: event.sandbox.into(),
            instance: event.instance.map(Into::into),
            at: rfc3339_millis(event.at.wall_ms),
            by: event.by.map(Into::into),
            what,
        }
    }
}

/// Reads the newest events, or those after a number, or follows them with `follow=1`.
///
/// Each server-sent event has the object below as data, its `kind` as name and its `seq` as id. A client that
/// reconnects with `Last-Event-ID` continues without a gap.
#[utoipa::path(get, path = "/v1/events", tag = "events",
    params(EventsQuery, ("Last-Event-ID" = Option<u64>, Header, description = "Like `after`, and has precedence over it.")),
    responses((status = 200, content((EventList = "application/json"), (String = "text/event-stream")))))]
pub(crate) async fn events(
    State(app): State<App>,
    Caller(who): Caller,
    Query(query): Query<EventsQuery>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let sandbox = query.sandbox.as_deref();
    let after = last_event_id(&headers)?.or(query.after);
    if query.follow.unwrap_or_default().0 {
        let events = app.service.follow_events(&who, sandbox, after).await?;
        return Ok(sse::respond(&app, events.map(|event| frame(&Event::from_core(event)))));
    }
    // LIMIT: a page that is quick to read and to send.
    let limit = query.limit.unwrap_or(100).min(1_000);
    let events = app.service.events(&who, sandbox, after, limit).await?;
    Ok(ok(EventList { items: events.into_iter().map(Event::from_core).collect() }).into_response())
}

fn frame(event: &Event) -> axum::response::sse::Event {
    sse::event(event.what.name(), event).id(event.seq.to_string())
}

pub(crate) fn last_event_id(headers: &HeaderMap) -> Result<Option<u64>, ApiError> {
    let Some(value) = headers.get("last-event-id") else { return Ok(None) };
    let number = value.to_str().ok().and_then(|text| text.parse().ok());
    number.map(Some).ok_or_else(|| ApiError::invalid("Last-Event-ID must be the seq of an event"))
}
