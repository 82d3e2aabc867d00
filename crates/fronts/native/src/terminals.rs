//! Terminals: shells bound to a thread of conversation, over WebSocket.

use atoll_client::terminals::{Terminal, TerminalBody, TerminalList};
use atoll_front_kit::{
    ApiError, Caller, JsonResponse, Path, StrictJson, authenticate_key, ok, rfc3339_millis,
};
use atoll_service::{OpenTerminal, TerminalSize};
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::App;
use crate::convert::{FromCore, IntoApi};

mod gate;
mod socket;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list, open)).routes(routes!(close)).routes(routes!(connect))
}

impl FromCore<atoll_service::Terminal> for Terminal {
    fn from_core(terminal: atoll_service::Terminal) -> Self {
        Self {
            id: terminal.id,
            sandbox: terminal.sandbox.into(),
            thread: terminal.thread,
            pid: terminal.pid.unwrap_or(0),
            created_at: rfc3339_millis(terminal.created_at_ms),
        }
    }
}

fn opening(body: TerminalBody) -> OpenTerminal {
    OpenTerminal {
        thread: body.thread,
        size: TerminalSize { cols: body.cols.map_or(80, u16::from), rows: body.rows.map_or(24, u16::from) },
        shell: body.shell,
        cwd: body.cwd,
        env: body.env,
        user: body.user,
        lazy: false,
    }
}

/// Lists the terminals of a sandbox.
#[utoipa::path(get, path = "/v1/sandboxes/{ident}/terminals", tag = "terminals",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    responses((status = 200, body = TerminalList)))]
pub(crate) async fn list(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
) -> Result<JsonResponse<TerminalList>, ApiError> {
    let terminals = app.service.sandboxes().list_terminals(&who, &ident).await?;
    // A terminal of another front whose shell waits for its first use has no process yet.
    let started = terminals.into_iter().filter(|terminal| terminal.pid.is_some());
    Ok(ok(TerminalList { items: started.map(Terminal::from_core).collect() }))
}

/// Opens a terminal for a thread, or returns the existing one.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/terminals", tag = "terminals",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    request_body = TerminalBody, responses((status = 201, body = Terminal)))]
pub(crate) async fn open(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    StrictJson(body): StrictJson<TerminalBody>,
) -> Result<JsonResponse<Terminal>, ApiError> {
    let terminal = app.service.sandboxes().open_terminal(&who, &ident, opening(body)).await?;
    Ok(JsonResponse(StatusCode::CREATED, terminal.into_api()))
}

/// Ends a terminal and its shell.
#[utoipa::path(delete, path = "/v1/sandboxes/{ident}/terminals/{tid}", tag = "terminals",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name"), ("tid" = String, Path)),
    responses((status = 204, description = "Gone")))]
pub(crate) async fn close(
    State(app): State<App>,
    Caller(who): Caller,
    Path((ident, tid)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    app.service.sandboxes().close_terminal(&who, &ident, &tid).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Connects to a terminal by WebSocket.
///
/// Server to client: binary frames are output; text frames are JSON, `{"type":"exit","exit_code",…}` and
/// `{"type":"dropped","bytes"}` and `{"type":"error","code","message"}`. Client to server: binary frames are input; text
/// frames are `{"type":"resize","cols","rows"}` or `{"type":"input","data"}`. A browser sends its key as the sub-protocol
/// `atoll.key.KEY` beside `atoll`; a foreign `Origin` is refused. Closing the socket leaves the shell running.
#[utoipa::path(get, path = "/v1/sandboxes/{ident}/terminals/{tid}/ws", tag = "terminals",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name"), ("tid" = String, Path)),
    responses((status = 101, description = "Switches to a WebSocket")))]
pub(crate) async fn connect(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    let (mut parts, _) = request.into_parts();
    gate::check_origin(&parts.headers, &app.origins)?;
    // Only this route accepts a key as a sub-protocol, which is the only field that a page can set.
    let who = authenticate_key(&app, gate::key(&parts.headers)).await?;
    gate::check_no_origin(&parts.headers)?;
    let Path((ident, tid)) = Path::<(String, String)>::from_request_parts(&mut parts, &app).await?;
    let attached = app.service.sandboxes().terminal_attach(&who, &ident, &tid).await?;
    let upgrade = WebSocketUpgrade::from_request_parts(&mut parts, &app).await.map_err(|rejection| {
        ApiError::invalid(rejection.body_text()).hint("this route supports WebSocket only")
    })?;
    socket::upgrade(upgrade, attached, (&app, &who))
}
