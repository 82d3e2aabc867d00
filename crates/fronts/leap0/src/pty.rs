//! PTY sessions: our terminals by a name of the user's choice. The name is the terminal's thread, so that other fronts find the
//! same shell by it.

use std::collections::BTreeMap;
use std::num::NonZeroU16;

use atoll_front_kit::{ApiError, Caller, Json, JsonResponse, Path, authenticate, created, ok, rfc3339};
use atoll_model::{Code, Lease, Principal};
use atoll_service::{OpenTerminal, ServiceError, Terminal, TerminalSize, terminal_size};
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

mod socket;

/// What a session has where its user said nothing.
const SIZE: TerminalSize = TerminalSize { cols: 80, rows: 24 };

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
    fn new(terminal: Terminal, lease: &Lease) -> Self {
        let size = terminal_size(&terminal);
        let Terminal { thread, pid, created_at_ms, settings, .. } = terminal;
        Self {
            id: thread,
            cwd: settings.cwd.unwrap_or_else(|| lease.workdir.clone()),
            envs: settings.env,
            cols: size.cols,
            rows: size.rows,
            created_at: rfc3339(created_at_ms),
            active: pid.is_some(),
            lazy_start: settings.lazy,
        }
    }
}

async fn one(
    app: &Leap0App,
    who: &Principal,
    sandbox: &str,
    id: &str,
) -> Result<(Lease, Terminal), ApiError> {
    let lease = app.service.sandboxes().get(who, sandbox).await?;
    let all = app.service.sandboxes().list_terminals(who, lease.id.as_str()).await?;
    let missing =
        || ApiError::new(Code::ProcessNotFound, format!("sandbox {} has no such PTY session", lease.id));
    let found = all.into_iter().find(|terminal| terminal.thread == id).ok_or_else(missing)?;
    Ok((lease, found))
}

async fn list(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<JsonResponse<ItemList<Pty>>, ApiError> {
    let lease = app.service.sandboxes().get(&who, &id).await?;
    let all = app.service.sandboxes().list_terminals(&who, lease.id.as_str()).await?;
    Ok(ok(ItemList { items: all.into_iter().map(|terminal| Pty::new(terminal, &lease)).collect() }))
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

async fn create(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Path(sandbox): Path<String>,
    Json(body): Json<CreatePtyRequest>,
) -> Result<JsonResponse<Pty>, ApiError> {
    let lease = app.service.sandboxes().get(&who, &sandbox).await?;
    let open = OpenTerminal {
        thread: match body.id {
            Some(id) => id,
            None => fresh_id()?,
        },
        size: TerminalSize {
            cols: body.cols.map_or(SIZE.cols, NonZeroU16::get),
            rows: body.rows.map_or(SIZE.rows, NonZeroU16::get),
        },
        shell: None,
        cwd: body.cwd.filter(|cwd| !cwd.is_empty()).map(|cwd| below(&lease.workdir, &cwd)),
        env: body.envs.unwrap_or_default(),
        user: None,
        lazy: body.lazy_start.unwrap_or(false),
    };
    let made =
        app.service.sandboxes().create_terminal(&who, lease.id.as_str(), open).await.map_err(|error| {
            match error.code {
                Code::AlreadyExists => {
                    ApiError::new(Code::AlreadyExists, "a PTY session with that id already exists")
                }
                _ => error.into(),
            }
        })?;
    Ok(created(Pty::new(made, &lease)))
}

fn fresh_id() -> Result<String, ApiError> {
    let mut random = [0; 10];
    getrandom::fill(&mut random)
        .map_err(|cause| ApiError::new(Code::Internal, "no random bytes").caused_by(cause))?;
    Ok(format!("pty-{}", hex::encode(random)))
}

async fn find(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Path((sandbox, id)): Path<(String, String)>,
) -> Result<JsonResponse<Pty>, ApiError> {
    let (lease, terminal) = one(&app, &who, &sandbox, &id).await?;
    Ok(ok(Pty::new(terminal, &lease)))
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
    let (lease, terminal) = one(&app, &who, &sandbox, &id).await?;
    let size = TerminalSize { cols: body.cols.get(), rows: body.rows.get() };
    let sized = app.service.sandboxes().resize_terminal(&who, lease.id.as_str(), &terminal, size).await?;
    Ok(ok(Pty::new(sized, &lease)))
}

async fn remove(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Path((sandbox, id)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    let (lease, terminal) = one(&app, &who, &sandbox, &id).await?;
    match app.service.sandboxes().close_terminal(&who, lease.id.as_str(), &terminal.id).await {
        // Its shell ended by itself a moment ago.
        Ok(()) | Err(ServiceError { code: Code::ProcessNotFound, .. }) => Ok(StatusCode::NO_CONTENT),
        Err(error) => Err(error.into()),
    }
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
    let (lease, terminal) = one(&app, &who, &sandbox, &id).await?;
    let attached = app.service.sandboxes().terminal_attach(&who, lease.id.as_str(), &terminal.id).await?;
    let ends = socket::Ends { app: app.clone(), who, sandbox: lease.id, terminal: terminal.id };
    socket::upgrade(upgrade, attached, ends)
}
