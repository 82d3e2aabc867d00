//! Terminals with names that the user chooses, over a socket: data in binary frames in both directions, events of the
//! terminal in texts.

use std::collections::BTreeMap;

use atoll_front_kit::{ApiError, Json, JsonResponse, Path, Query, created, ok, rfc3339_millis};
use atoll_model::{Code, Lease};
use atoll_service::{ExecEvent, OpenTerminal, Terminal, TerminalInput, TerminalSize, terminal_size};
use axum::Router;
use axum::extract::ws::Message;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::{get, post};
use base64::Engine;
use futures::StreamExt;
use futures::stream::BoxStream;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::execute::variables;
use super::inside::Inside;
use super::refusal::{bad, of_terminal};
use super::socket::{self, Close, FAILED, GOING_AWAY, Heard, NORMAL, Socket};
use crate::DaytonaApp;
use crate::error::text;

/// Clients offer it if they want a text about the end too.
const EXIT_CONTROL: &str = "X-Daytona-Pty-Exit-Control";
/// The prefix of variables, which are JSON in base64.
const ENVS: &str = "X-Daytona-Pty-Envs~";
/// LIMIT: that of Daytona.
const SIZE_MAX: u16 = 1_000;
const USUAL: TerminalSize = TerminalSize { cols: 80, rows: 24 };
/// COMPAT(daytona): a login shell: bash, or sh where there is none.
const SHELL: [&str; 3] = ["/bin/sh", "-c", "[ -x /bin/bash ] && exec /bin/bash -il; exec /bin/sh -il"];
const SIGKILL: i32 = 9;

pub(super) fn routes() -> Router<DaytonaApp> {
    Router::new()
        .route("/process/pty", get(list).post(create))
        .route("/process/pty/create-connect", get(create_connect))
        .route("/process/pty/{pty}", get(find).delete(kill))
        .route("/process/pty/{pty}/resize", post(resize))
        .route("/process/pty/{pty}/connect", get(connect))
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Pty {
    id: String,
    cwd: String,
    envs: BTreeMap<String, String>,
    cols: u16,
    rows: u16,
    created_at: String,
    active: bool,
    lazy_start: bool,
}

fn shown(terminal: Terminal, lease: &Lease) -> Pty {
    let size = terminal_size(&terminal);
    let Terminal { thread, created_at_ms, settings, .. } = terminal;
    Pty {
        id: thread,
        cwd: settings.cwd.unwrap_or_else(|| lease.workdir.clone()),
        envs: settings.env,
        cols: size.cols,
        rows: size.rows,
        created_at: rfc3339_millis(created_at_ms),
        active: true,
        lazy_start: settings.lazy,
    }
}

#[derive(Debug, Serialize)]
struct Ptys {
    sessions: Vec<Pty>,
}

async fn list(inside: Inside) -> Result<JsonResponse<Ptys>, ApiError> {
    let found = inside.sandbox.terminals().await.map_err(of_terminal)?;
    Ok(ok(Ptys { sessions: found.into_iter().map(|terminal| shown(terminal, inside.lease())).collect() }))
}

async fn find(inside: Inside, Path((_, id)): Path<(String, String)>) -> Result<JsonResponse<Pty>, ApiError> {
    let terminal = inside.sandbox.terminal(&id).await.map_err(of_terminal)?;
    Ok(ok(shown(terminal, inside.lease())))
}

#[derive(Debug, Default, Deserialize)]
struct CreatePtyRequest {
    id: Option<String>,
    cols: Option<u16>,
    rows: Option<u16>,
    cwd: Option<String>,
    envs: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Made {
    session_id: String,
}

async fn create(inside: Inside, Json(body): Json<CreatePtyRequest>) -> Result<JsonResponse<Made>, ApiError> {
    let terminal = make(&inside, body).await?;
    Ok(created(Made { session_id: terminal.thread }))
}

async fn make(inside: &Inside, body: CreatePtyRequest) -> Result<Terminal, ApiError> {
    let open = OpenTerminal {
        thread: body.id.filter(|id| !id.is_empty()).ok_or_else(|| bad("id is required"))?,
        size: size(body.cols.unwrap_or(USUAL.cols), body.rows.unwrap_or(USUAL.rows))?,
        shell: Some(SHELL.map(str::to_owned).to_vec()),
        cwd: inside.cwd(body.cwd.as_deref()),
        env: variables(body.envs)?,
        user: None,
        lazy: false,
    };
    inside.sandbox.create_terminal(open).await.map_err(of_terminal)
}

fn size(cols: u16, rows: u16) -> Result<TerminalSize, ApiError> {
    if !(1..=SIZE_MAX).contains(&cols) || !(1..=SIZE_MAX).contains(&rows) {
        return Err(bad(format!("cols and rows must be between 1 and {SIZE_MAX}")));
    }
    Ok(TerminalSize { cols, rows })
}

#[derive(Debug, Deserialize)]
struct ResizeBody {
    cols: u16,
    rows: u16,
}

async fn resize(
    inside: Inside,
    Path((_, id)): Path<(String, String)>,
    Json(body): Json<ResizeBody>,
) -> Result<JsonResponse<Pty>, ApiError> {
    let size = size(body.cols, body.rows)?;
    let terminal = inside.sandbox.terminal(&id).await.map_err(of_terminal)?;
    let sized = inside.sandbox.resize_terminal(&terminal, size).await.map_err(of_terminal)?;
    Ok(ok(shown(sized, inside.lease())))
}

async fn kill(
    inside: Inside,
    Path((_, id)): Path<(String, String)>,
) -> Result<JsonResponse<serde_json::Value>, ApiError> {
    let terminal = inside.sandbox.terminal(&id).await.map_err(of_terminal)?;
    inside.sandbox.end_terminal(&terminal, SIGKILL).await.map_err(of_terminal)?;
    Ok(ok(json!({ "message": "PTY session deleted" })))
}

/// Makes a terminal and connects to it. Every refusal is before the upgrade, so that the client receives a status.
async fn create_connect(State(app): State<DaytonaApp>, request: Request) -> Result<Response, ApiError> {
    let (mut parts, _) = request.into_parts();
    let inside = Inside::from_request_parts(&mut parts, &app).await?;
    let Query(mut body) = Query::<CreatePtyRequest>::from_request_parts(&mut parts, &app).await?;
    let upgrade = socket::asked(&mut parts, &app).await?;
    body.envs = envs(&parts.headers)?;
    let terminal = make(&inside, body).await?;
    attach(&app, inside, terminal, upgrade, &parts.headers).await
}

async fn connect(State(app): State<DaytonaApp>, request: Request) -> Result<Response, ApiError> {
    let (mut parts, _) = request.into_parts();
    let inside = Inside::from_request_parts(&mut parts, &app).await?;
    let Path((_, id)) = Path::<(String, String)>::from_request_parts(&mut parts, &app).await?;
    let upgrade = socket::asked(&mut parts, &app).await?;
    let terminal = inside.sandbox.terminal(&id).await.map_err(of_terminal)?;
    attach(&app, inside, terminal, upgrade, &parts.headers).await
}

/// Variables in an offered subprotocol of the handshake: a query would be written to logs.
fn envs(headers: &HeaderMap) -> Result<Option<BTreeMap<String, String>>, ApiError> {
    let offers = socket::offered(headers);
    let Some(encoded) = offers.iter().find_map(|offer| offer.strip_prefix(ENVS)) else { return Ok(None) };
    let wrong = || bad(format!("what follows {ENVS} is not a JSON object of strings in base64"));
    let engine = base64::engine::general_purpose::URL_SAFE_NO_PAD;
    let text = engine.decode(encoded.trim_end_matches('=')).map_err(|_| wrong())?;
    serde_json::from_slice(&text).map(Some).map_err(|_| wrong())
}

async fn attach(
    app: &DaytonaApp,
    inside: Inside,
    terminal: Terminal,
    upgrade: axum::extract::ws::WebSocketUpgrade,
    headers: &HeaderMap,
) -> Result<Response, ApiError> {
    let (output, input) = inside.sandbox.attach_terminal(&terminal).await.map_err(of_terminal)?;
    let tells_exit = socket::offered(headers).iter().any(|offer| offer == EXIT_CONTROL);
    let account = inside.sandbox.account.clone();
    socket::upgrade((app, &account), upgrade, headers, move |socket| async move {
        // The sandbox counts as busy as long as somebody is connected.
        let _inside = inside;
        Bridge { socket, output, input: input.without_wake(), tells_exit }.run().await
    })
}

struct Bridge {
    socket: Socket,
    output: BoxStream<'static, ExecEvent>,
    input: TerminalInput,
    tells_exit: bool,
}

impl Bridge {
    /// Until one of both sides is gone.
    async fn run(mut self) -> (Socket, Close) {
        let connected = json!({ "type": "control", "status": "connected" }).to_string();
        if !self.socket.text(connected).await {
            return (self.socket, Close::new(GOING_AWAY, ""));
        }
        loop {
            // Both are cancel-safe: the socket and the stream keep what they have not returned.
            let over = tokio::select! {
                heard = self.socket.hear() => self.hear(heard).await,
                event = self.output.next() => self.tell(event).await,
            };
            if let Some(close) = over {
                return (self.socket, close);
            }
        }
    }

    async fn hear(&mut self, heard: Heard) -> Option<Close> {
        match heard {
            Heard::Nothing => None,
            Heard::Gone => Some(Close::normal()),
            Heard::Data(data) => match self.input.write(data).await {
                Ok(()) => None,
                // Its end is told by its output.
                Err(error) if error.code == Code::ProcessNotFound => None,
                Err(error) => Some(Close::failed(&of_terminal(error))),
            },
        }
    }

    async fn tell(&mut self, event: Option<ExecEvent>) -> Option<Close> {
        match event {
            Some(ExecEvent::Terminal(data) | ExecEvent::Stdout(data) | ExecEvent::Stderr(data)) => {
                let sent = self.socket.send(Message::Binary(data)).await;
                (!sent).then(|| Close::new(GOING_AWAY, ""))
            }
            Some(ExecEvent::Dropped(_) | ExecEvent::KeepAlive) => None,
            Some(ExecEvent::Exit { exit_code, signal, .. }) => {
                let end = ended(exit_code, signal);
                if self.tells_exit {
                    let mut exited = end.clone();
                    exited["type"] = json!("control");
                    exited["status"] = json!("exited");
                    self.socket.text(exited.to_string()).await;
                }
                let code = if exit_code == 0 { NORMAL } else { FAILED };
                Some(Close::new(code, end.to_string()))
            }
            Some(ExecEvent::Lost(error)) => {
                let refused = of_terminal(error);
                let told = json!({ "type": "control", "status": "error", "error": text(&refused) });
                self.socket.text(told.to_string()).await;
                Some(Close::failed(&refused))
            }
            None => Some(Close::new(FAILED, "the terminal has ended")),
        }
    }
}

fn ended(exit_code: i32, signal: Option<i32>) -> serde_json::Value {
    match signal {
        None => json!({ "exitCode": exit_code }),
        Some(SIGKILL) => json!({ "exitCode": exit_code, "exitReason": "SIGKILL" }),
        Some(signal) => json!({ "exitCode": exit_code, "exitReason": format!("signal {signal}") }),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use axum::http::{HeaderValue, header};

    #[test]
    fn variables_come_in_an_offer() {
        let encoded = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(r#"{"A":"ü?"}"#);
        let offer = format!("{EXIT_CONTROL}, {ENVS}{encoded}");
        let mut headers = HeaderMap::new();
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_str(&offer).unwrap());
        assert_eq!(envs(&headers).unwrap().unwrap()["A"], "ü?");
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static("X-Daytona-Pty-Envs~!!"));
        assert!(envs(&headers).is_err());
        assert!(envs(&HeaderMap::new()).unwrap().is_none());
    }

    #[test]
    fn sizes_have_bounds_and_ends_their_reason() {
        assert!(size(1, 1_000).is_ok() && size(0, 10).is_err() && size(10, 1_001).is_err());
        assert_eq!(ended(0, None), json!({"exitCode": 0}));
        assert_eq!(ended(137, Some(9)), json!({"exitCode": 137, "exitReason": "SIGKILL"}));
    }

    #[test]
    fn any_offer_of_variables_is_read_or_refused() {
        atoll_robustness::check("pty_offer", |bytes| {
            let Ok(value) = HeaderValue::from_bytes(bytes) else { return };
            let _ = envs(&HeaderMap::from_iter([(header::SEC_WEBSOCKET_PROTOCOL, value)]));
        });
    }
}
