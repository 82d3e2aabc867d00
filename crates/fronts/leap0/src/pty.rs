//! PTY sessions: our terminals by a name of the user's choice. The name is the terminal's thread, so that other fronts find the
//! same shell by it.
//!
//! What Leap0 shows of a session and a terminal does not keep (its size, its first folder, that it starts with the first
//! connection) stands in [`Sessions`], in memory: after a restart of the server a session is shown with defaults.

use std::collections::BTreeMap;
use std::num::NonZeroU16;

use atoll_front_kit::{ApiError, Caller, Json, JsonResponse, Path, authenticate, created, ok, rfc3339};
use atoll_model::{Code, Lease, Principal};
use atoll_service::{OpenTerminal, Terminal, TerminalSize};
use axum::Router;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{get, post};
use serde::{Deserialize, Serialize};

use crate::Leap0App;
use crate::filesystem::below;
use crate::response::ItemList;

mod sessions;
mod socket;

use sessions::PtySession;
pub(crate) use sessions::Sessions;

pub(crate) fn routes() -> Router<Leap0App> {
    Router::new()
        .route("/v1/sandbox/{id}/pty", get(list).post(create))
        .route("/v1/sandbox/{id}/pty/{session}", get(find).delete(remove))
        .route("/v1/sandbox/{id}/pty/{session}/resize", post(resize))
        .route("/v1/sandbox/{id}/pty/{session}/connect", get(connect))
}

#[derive(Debug, Serialize)]
struct Pty {
    id: String,
    cwd: String,
    envs: BTreeMap<String, String>,
    cols: u16,
    rows: u16,
    created_at: String,
    /// Whether its shell has been started.
    active: bool,
    lazy_start: bool,
}

impl Pty {
    fn new(id: String, session: PtySession, active: bool, lease: &Lease) -> Self {
        Self {
            id,
            cwd: session.cwd.unwrap_or_else(|| lease.workdir.clone()),
            envs: session.envs,
            cols: session.size.cols,
            rows: session.size.rows,
            created_at: rfc3339(session.created_at_ms),
            active,
            lazy_start: session.lazy_start,
        }
    }
}

/// A session and, where its shell was started, the terminal.
struct Known {
    id: String,
    session: PtySession,
    terminal: Option<Terminal>,
}

impl Known {
    fn shown(self, lease: &Lease) -> Pty {
        Pty::new(self.id, self.session, self.terminal.is_some(), lease)
    }
}

/// All sessions of a sandbox: its terminals of this incarnation, and those that wait for their first connection.
async fn known(app: &Leap0App, who: &Principal, sandbox: &str) -> Result<(Lease, Vec<Known>), ApiError> {
    let lease = app.service.get(who, sandbox).await?;
    let terminals = app.service.list_terminals(who, sandbox).await?;
    let mut kept = app.sessions.of(&lease.id);
    let mut all: Vec<Known> = terminals
        .into_iter()
        .filter(|terminal| Some(&terminal.instance) == lease.instance.as_ref())
        .map(|terminal| {
            let id = terminal.thread.clone();
            let session = kept.remove(&id).unwrap_or_else(|| PtySession::unknown(terminal.created_at_ms));
            Known { id, session, terminal: Some(terminal) }
        })
        .collect();
    let waiting = kept.into_iter().filter(|(_, session)| session.waits);
    all.extend(waiting.map(|(id, session)| Known { id, session, terminal: None }));
    all.sort_by(|a, b| (a.session.created_at_ms, &a.id).cmp(&(b.session.created_at_ms, &b.id)));
    Ok((lease, all))
}

async fn one(app: &Leap0App, who: &Principal, sandbox: &str, id: &str) -> Result<(Lease, Known), ApiError> {
    let (lease, all) = known(app, who, sandbox).await?;
    let found = all.into_iter().find(|known| known.id == id);
    let missing =
        || ApiError::new(Code::ProcessNotFound, format!("sandbox {} has no such PTY session", lease.id));
    let found = found.ok_or_else(missing)?;
    Ok((lease, found))
}

async fn list(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<JsonResponse<ItemList<Pty>>, ApiError> {
    let (lease, all) = known(&app, &who, &id).await?;
    Ok(ok(ItemList { items: all.into_iter().map(|known| known.shown(&lease)).collect() }))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CreatePtyRequest {
    id: Option<String>,
    cols: Option<NonZeroU16>,
    rows: Option<NonZeroU16>,
    cwd: Option<String>,
    envs: Option<BTreeMap<String, String>>,
    lazy_start: Option<bool>,
}

#[expect(clippy::disallowed_methods, reason = "the creation time that a session shows")]
async fn create(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Path(sandbox): Path<String>,
    Json(body): Json<CreatePtyRequest>,
) -> Result<JsonResponse<Pty>, ApiError> {
    let (lease, all) = known(&app, &who, &sandbox).await?;
    let id = match body.id {
        Some(id) => id,
        None => fresh_id()?,
    };
    if all.iter().any(|known| known.id == id) {
        return Err(ApiError::new(Code::AlreadyExists, "a PTY session with that id already exists"));
    }
    let lazy_start = body.lazy_start.unwrap_or(false);
    let session = PtySession {
        size: TerminalSize {
            cols: body.cols.map_or(sessions::SIZE.cols, NonZeroU16::get),
            rows: body.rows.map_or(sessions::SIZE.rows, NonZeroU16::get),
        },
        cwd: body.cwd.filter(|cwd| !cwd.is_empty()).map(|cwd| below(&lease.workdir, &cwd)),
        envs: body.envs.unwrap_or_default(),
        created_at_ms: jiff::Timestamp::now().as_millisecond(),
        lazy_start,
        waits: lazy_start,
    };
    session.check(&id)?;
    app.sessions.put(&lease.id, &id, session.clone())?;
    if !lazy_start
        && let Err(error) = app.service.open_terminal(&who, lease.id.as_str(), terminal(&id, &session)).await
    {
        app.sessions.remove(&lease.id, &id);
        return Err(error.into());
    }
    Ok(created(Pty::new(id, session, !lazy_start, &lease)))
}

fn fresh_id() -> Result<String, ApiError> {
    let mut random = [0; 10];
    getrandom::fill(&mut random)
        .map_err(|cause| ApiError::new(Code::Internal, "no random bytes").caused_by(cause))?;
    Ok(format!("pty-{}", hex::encode(random)))
}

fn terminal(id: &str, session: &PtySession) -> OpenTerminal {
    OpenTerminal {
        thread: id.to_owned(),
        size: session.size,
        shell: None,
        cwd: session.cwd.clone(),
        env: session.envs.clone(),
        user: None,
    }
}

async fn find(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Path((sandbox, id)): Path<(String, String)>,
) -> Result<JsonResponse<Pty>, ApiError> {
    let (lease, known) = one(&app, &who, &sandbox, &id).await?;
    Ok(ok(known.shown(&lease)))
}

#[derive(Debug, Deserialize)]
struct ResizeBody {
    cols: NonZeroU16,
    rows: NonZeroU16,
}

async fn resize(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Path((sandbox, id)): Path<(String, String)>,
    Json(body): Json<ResizeBody>,
) -> Result<JsonResponse<Pty>, ApiError> {
    let (lease, mut known) = one(&app, &who, &sandbox, &id).await?;
    let size = TerminalSize { cols: body.cols.get(), rows: body.rows.get() };
    if let Some(terminal) = &known.terminal {
        let (_, input) = app.service.terminal_attach(&who, lease.id.as_str(), &terminal.id).await?;
        input.resize(size).await?;
    }
    known.session.size = size;
    app.sessions.put(&lease.id, &id, known.session.clone())?;
    Ok(ok(known.shown(&lease)))
}

async fn remove(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Path((sandbox, id)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    let (lease, known) = one(&app, &who, &sandbox, &id).await?;
    if let Some(terminal) = known.terminal {
        app.service.close_terminal(&who, lease.id.as_str(), &terminal.id).await?;
    }
    app.sessions.remove(&lease.id, &id);
    Ok(StatusCode::NO_CONTENT)
}

/// Connects to the shell, which is started now if it waited for this. Every refusal is before the upgrade, so that the
/// client receives a status.
async fn connect(State(app): State<Leap0App>, request: Request) -> Result<Response, ApiError> {
    let (mut parts, _) = request.into_parts();
    let who = authenticate(&app, &parts.headers).await?;
    let Path((sandbox, id)) = Path::<(String, String)>::from_request_parts(&mut parts, &app).await?;
    let upgrade = WebSocketUpgrade::from_request_parts(&mut parts, &app)
        .await
        .map_err(|rejection| ApiError::invalid(rejection.body_text()))?;
    let (lease, Known { mut session, terminal: started, .. }) = one(&app, &who, &sandbox, &id).await?;
    let started = match started {
        Some(started) => started,
        None => {
            let opened = app.service.open_terminal(&who, lease.id.as_str(), terminal(&id, &session)).await?;
            session.waits = false;
            app.sessions.put(&lease.id, &id, session)?;
            opened
        }
    };
    let attached = app.service.terminal_attach(&who, lease.id.as_str(), &started.id).await?;
    let ends = socket::Ends { app: app.clone(), who, sandbox: lease.id, session: id, terminal: started.id };
    socket::upgrade(upgrade, attached, ends)
}
