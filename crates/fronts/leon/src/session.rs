//! Sessions: list, pause, resume, destroy.

use atoll_front_kit::paging::{READ_AT_ONCE, read_all};
use atoll_front_kit::{ApiError, Caller, JsonResponse, Path, Query, ok, rfc3339_millis};
use atoll_model::{Intent, Lease, Phase, Principal};
use atoll_service::{Filter, Pause};
use axum::extract::State;
use serde::{Deserialize, Serialize};

use crate::Leon;

/// Which provider a request means.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ProviderQuery {
    provider: Option<String>,
}

/// A sandbox as Leon lists it.
#[derive(Debug, Serialize)]
pub(crate) struct LeonSession {
    session_id: String,
    /// `None`: the sandbox belongs to no thread.
    thread_id: Option<String>,
    provider: String,
    status: &'static str,
    created_at: String,
    /// The last activity; of a sandbox that was never used its creation.
    last_active: String,
    lease_id: String,
    instance_id: Option<String>,
    desired_state: &'static str,
    observed_state: &'static str,
}

#[derive(Debug, Serialize)]
pub(crate) struct LeonSessions {
    sessions: Vec<LeonSession>,
}

/// The answer of a verb.
#[derive(Debug, Serialize)]
pub(crate) struct SessionAction {
    ok: bool,
    action: &'static str,
    session_id: String,
    provider: String,
    thread_id: Option<String>,
    lease_id: String,
}

impl SessionAction {
    fn done(action: &'static str, lease: Lease) -> JsonResponse<Self> {
        let (id, provider, thread_id) = (lease.id.to_string(), lease.provider, lease.thread);
        ok(Self { ok: true, action, session_id: id.clone(), provider, thread_id, lease_id: id })
    }
}

/// Leon's word for a phase.
const fn status(phase: Phase) -> &'static str {
    match phase {
        Phase::Creating | Phase::Starting | Phase::Resuming | Phase::Restoring => "starting",
        Phase::Running => "running",
        Phase::Pausing | Phase::Paused => "paused",
        Phase::Stopping | Phase::Stopped | Phase::Archiving | Phase::Archived => "stopped",
        Phase::Failed => "failed",
        Phase::Deleting | Phase::Deleted => "deleted",
    }
}

/// Leon's word for an intent.
const fn desired(intent: Intent) -> &'static str {
    match intent {
        Intent::Run => "running",
        Intent::Pause => "paused",
        Intent::Stop => "stopped",
        Intent::Archive => "archived",
        Intent::Delete => "deleted",
    }
}

fn session(app: &Leon, lease: Lease) -> LeonSession {
    let active_ms = app.service.sandboxes().active_at_ms(&lease).unwrap_or(lease.created_at.wall_ms);
    LeonSession {
        session_id: lease.id.to_string(),
        thread_id: lease.thread,
        provider: lease.provider,
        status: status(lease.phase),
        created_at: rfc3339_millis(lease.created_at.wall_ms),
        last_active: rfc3339_millis(active_ms),
        lease_id: lease.id.to_string(),
        instance_id: lease.instance.map(|instance| instance.to_string()),
        desired_state: desired(lease.intent),
        observed_state: lease.phase.as_str(),
    }
}

pub(crate) async fn list(
    State(app): State<Leon>,
    Caller(who): Caller,
    Query(query): Query<ProviderQuery>,
) -> Result<JsonResponse<LeonSessions>, ApiError> {
    let filter = Filter { provider: query.provider, limit: READ_AT_ONCE, ..Filter::default() };
    let sandboxes = app.service.sandboxes();
    let leases =
        read_all(|_| true, |cursor| sandboxes.list(&who, Filter { cursor, ..filter.clone() })).await?;
    Ok(ok(LeonSessions { sessions: leases.into_iter().map(|lease| session(&app, lease)).collect() }))
}

/// The sandbox that a request names.
pub(crate) async fn found(
    app: &Leon,
    who: &Principal,
    id: &str,
    query: &ProviderQuery,
) -> Result<Lease, ApiError> {
    Ok(app.service.sandboxes().find_session(who, query.provider.as_deref(), id).await?)
}

/// What a request does with a session.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SessionVerb {
    Pause,
    Resume,
    Destroy,
}

pub(crate) async fn act(
    State(app): State<Leon>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Query(query): Query<ProviderQuery>,
    verb: SessionVerb,
) -> Result<JsonResponse<SessionAction>, ApiError> {
    let lease = found(&app, &who, &id, &query).await?;
    let (sandboxes, id) = (app.service.sandboxes(), lease.id.as_str());
    let action = match verb {
        SessionVerb::Pause => match sandboxes.pause(&who, id, Pause::default(), true).await?.phase {
            // Its provider cannot pause this one.
            Phase::Stopped => "stop",
            _ => "pause",
        },
        SessionVerb::Resume => {
            sandboxes.resume(&who, id, true).await?;
            "resume"
        }
        SessionVerb::Destroy => {
            sandboxes.delete(&who, id, true).await?;
            "destroy"
        }
    };
    Ok(SessionAction::done(action, lease))
}
