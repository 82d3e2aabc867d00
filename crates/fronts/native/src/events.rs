//! What happened to sandboxes, in order: read a stretch, or follow.

use atoll_front_kit::{ApiError, Caller, Query, ok, rfc3339_millis};
use atoll_model::{EventKind, SandboxEvent};
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::App;
use crate::flag::Flag;
use crate::sandboxes::{Phase, Reason};
use crate::sse;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(events))
}

/// Something that happened to a sandbox.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Event {
    /// Orders all events of a server; hand it in as `after`.
    seq: u64,
    tenant: String,
    sandbox: String,
    instance: Option<String>,
    #[schema(format = DateTime)]
    at: String,
    #[serde(flatten)]
    what: What,
}

/// What happened.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum What {
    /// The phase changed.
    Phase { from: Option<Phase>, to: Phase, reason: Reason },
    /// A process inside was ended because memory ran out.
    OutOfMemory,
    /// A snapshot was taken of it.
    Snapshotted {
        snapshot: String,
        /// Its processes too.
        memory: bool,
    },
    /// Sandboxes were forked from it.
    Forked { children: Vec<String> },
    /// Its memory was written to disk while it was paused, or could not be.
    Checkpointed {
        /// What went wrong; it stands still with its memory as before.
        failure: Option<String>,
    },
    /// Labels, limits, timers, timeout or network policy were changed.
    Updated { fields: Vec<String> },
}

impl What {
    const fn name(&self) -> &'static str {
        match self {
            Self::Phase { .. } => "phase",
            Self::OutOfMemory => "out_of_memory",
            Self::Snapshotted { .. } => "snapshotted",
            Self::Forked { .. } => "forked",
            Self::Checkpointed { .. } => "checkpointed",
            Self::Updated { .. } => "updated",
        }
    }
}

impl From<SandboxEvent> for Event {
    fn from(event: SandboxEvent) -> Self {
        let what = match event.what {
            EventKind::Phase { from, to, reason } => {
                What::Phase { from: from.map(Into::into), to: to.into(), reason: reason.into() }
            }
            EventKind::OutOfMemory => What::OutOfMemory,
            EventKind::Snapshotted { snapshot, memory } => {
                What::Snapshotted { snapshot: snapshot.into(), memory }
            }
            EventKind::Forked { children } => {
                What::Forked { children: children.into_iter().map(Into::into).collect() }
            }
            EventKind::Checkpointed { failure } => What::Checkpointed { failure },
            EventKind::Updated { fields } => What::Updated { fields },
        };
        Self {
            seq: event.seq,
            tenant: event.tenant.into(),
            sandbox: event.sandbox.into(),
            instance: event.instance.map(Into::into),
            at: rfc3339_millis(event.at.wall_ms),
            what,
        }
    }
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct EventList {
    /// Oldest first.
    items: Vec<Event>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct EventsQuery {
    /// Only of this sandbox: id, unique prefix of an id, or name.
    sandbox: Option<String>,
    /// Only those after this `seq`; 0 begins with the oldest kept. Without it a follower sees what comes.
    after: Option<u64>,
    /// At most this many; not when following.
    limit: Option<u32>,
    /// `1`: server-sent events, replay first, then live.
    #[param(value_type = Option<String>, pattern = "^(0|1|true|false)$")]
    follow: Option<Flag>,
}

/// Reads events, or follows them with `follow=1`.
///
/// Each server-sent event has the object below as its data, its `kind` as its name and its `seq` as its id; a client
/// that comes back with `Last-Event-ID` goes on without a gap.
#[utoipa::path(get, path = "/v1/events", tag = "events",
    params(EventsQuery, ("Last-Event-ID" = Option<u64>, Header, description = "Like `after`; it wins.")),
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
        return Ok(sse::respond(&app, events.map(|event| frame(&Event::from(event)))));
    }
    // LIMIT: a page that is quick to read and quick to send.
    let limit = query.limit.unwrap_or(100).min(1_000);
    let events = app.service.events(&who, sandbox, after, limit).await?;
    Ok(ok(EventList { items: events.into_iter().map(Event::from).collect() }).into_response())
}

fn frame(event: &Event) -> axum::response::sse::Event {
    sse::event(event.what.name(), event).id(event.seq.to_string())
}

pub(crate) fn last_event_id(headers: &HeaderMap) -> Result<Option<u64>, ApiError> {
    let Some(value) = headers.get("last-event-id") else { return Ok(None) };
    let number = value.to_str().ok().and_then(|text| text.parse().ok());
    number.map(Some).ok_or_else(|| ApiError::invalid("Last-Event-ID must be the seq of an event"))
}
