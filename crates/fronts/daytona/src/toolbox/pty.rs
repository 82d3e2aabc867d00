//! Terminals with names that the user chooses, over a socket: data in binary frames in both directions, events of the
//! terminal in texts.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use atoll_front_kit::{ApiError, Json, JsonResponse, Path, Query, created, ok, rfc3339_millis};
use atoll_model::SandboxId;
use atoll_toolbox::{NewPty, Pty as Kept, PtyEnd, PtyEvent, PtyInput, PtyOutput, ToolboxError, WindowSize};
use axum::Router;
use axum::extract::ws::Message;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::{get, post};
use base64::Engine;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::execute::variables;
use super::inside::Inside;
use super::refusal::{bad, of_process};
use super::socket::{self, Close, FAILED, GOING_AWAY, Heard, NORMAL, Socket};
use crate::DaytonaApp;
use crate::error::text;

/// Clients offer it if they want a text about the end too.
const EXIT_CONTROL: &str = "X-Daytona-Pty-Exit-Control";
/// The prefix of variables, which are JSON in base64.
const ENVS: &str = "X-Daytona-Pty-Envs~";
/// LIMIT: that of Daytona.
const SIZE_MAX: u16 = 1_000;
/// LIMIT: sizes that are remembered; without them a terminal is shown as it was made.
const SIZES_MAX: usize = 10_000;
const SIGKILL: i32 = 9;

pub(super) fn routes() -> Router<DaytonaApp> {
    Router::new()
        .route("/process/pty", get(list).post(create))
        .route("/process/pty/create-connect", get(create_connect))
        .route("/process/pty/{pty}", get(find).delete(kill))
        .route("/process/pty/{pty}/resize", post(resize))
        .route("/process/pty/{pty}/connect", get(connect))
}

/// Sizes that terminals were given after they were made: the agent does not tell them. In memory, and bounded.
#[derive(Clone, Default)]
pub(super) struct Sizes(Arc<Mutex<HashMap<(SandboxId, String), WindowSize>>>);

impl Sizes {
    fn get(&self, sandbox: &SandboxId, name: &str) -> Option<WindowSize> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&(sandbox.clone(), name.to_owned())).copied()
    }

    fn put(&self, sandbox: &SandboxId, name: &str, size: Option<WindowSize>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (sandbox.clone(), name.to_owned());
        match size {
            None => {
                known.remove(&key);
            }
            Some(size) => {
                if known.len() >= SIZES_MAX && !known.contains_key(&key) {
                    known.clear();
                }
                known.insert(key, size);
            }
        }
    }
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

fn shown(app: &DaytonaApp, inside: &Inside, kept: Kept) -> Pty {
    let size = app.toolbox.sizes.get(&inside.lease().id, &kept.name).unwrap_or(kept.size);
    Pty {
        id: kept.name,
        cwd: kept.cwd,
        envs: kept.env,
        cols: size.cols,
        rows: size.rows,
        created_at: rfc3339_millis(i64::try_from(kept.created_at_ms).unwrap_or(0)),
        active: true,
        lazy_start: false,
    }
}

#[derive(Debug, Serialize)]
struct Ptys {
    sessions: Vec<Pty>,
}

async fn list(State(app): State<DaytonaApp>, inside: Inside) -> Result<JsonResponse<Ptys>, ApiError> {
    let found = inside.toolbox.ptys().list().await.map_err(of_process)?;
    Ok(ok(Ptys { sessions: found.into_iter().map(|kept| shown(&app, &inside, kept)).collect() }))
}

async fn find(
    State(app): State<DaytonaApp>,
    inside: Inside,
    Path((_, id)): Path<(String, String)>,
) -> Result<JsonResponse<Pty>, ApiError> {
    let kept = inside.toolbox.ptys().find(&id).await.map_err(of_process)?;
    Ok(ok(shown(&app, &inside, kept)))
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

async fn create(
    State(app): State<DaytonaApp>,
    inside: Inside,
    Json(body): Json<CreatePtyRequest>,
) -> Result<JsonResponse<Made>, ApiError> {
    let kept = make(&app, &inside, body).await?;
    Ok(created(Made { session_id: kept.name }))
}

async fn make(app: &DaytonaApp, inside: &Inside, body: CreatePtyRequest) -> Result<Kept, ApiError> {
    let usual = WindowSize::default();
    let size = size(body.cols.unwrap_or(usual.cols), body.rows.unwrap_or(usual.rows))?;
    let name = body.id.filter(|id| !id.is_empty()).ok_or_else(|| bad("id is required"))?;
    app.toolbox.sizes.put(&inside.lease().id, &name, None);
    let new = NewPty { name, cwd: inside.cwd(body.cwd.as_deref()), env: variables(body.envs)?, size };
    inside.toolbox.ptys().create(new).await.map_err(of_process)
}

fn size(cols: u16, rows: u16) -> Result<WindowSize, ApiError> {
    if !(1..=SIZE_MAX).contains(&cols) || !(1..=SIZE_MAX).contains(&rows) {
        return Err(bad(format!("cols and rows must be between 1 and {SIZE_MAX}")));
    }
    Ok(WindowSize { cols, rows })
}

#[derive(Debug, Deserialize)]
struct ResizeBody {
    cols: u16,
    rows: u16,
}

async fn resize(
    State(app): State<DaytonaApp>,
    inside: Inside,
    Path((_, id)): Path<(String, String)>,
    Json(body): Json<ResizeBody>,
) -> Result<JsonResponse<Pty>, ApiError> {
    let size = size(body.cols, body.rows)?;
    let ptys = inside.toolbox.ptys();
    let kept = ptys.find(&id).await.map_err(of_process)?;
    ptys.resize(&kept, size).await.map_err(of_process)?;
    app.toolbox.sizes.put(&inside.lease().id, &id, Some(size));
    Ok(ok(shown(&app, &inside, kept)))
}

async fn kill(
    State(app): State<DaytonaApp>,
    inside: Inside,
    Path((_, id)): Path<(String, String)>,
) -> Result<JsonResponse<serde_json::Value>, ApiError> {
    let ptys = inside.toolbox.ptys();
    let kept = ptys.find(&id).await.map_err(of_process)?;
    match ptys.kill(&kept).await {
        // It ended by itself a moment ago.
        Ok(()) | Err(ToolboxError::Ended(_)) => {}
        Err(error) => return Err(of_process(error)),
    }
    app.toolbox.sizes.put(&inside.lease().id, &id, None);
    Ok(ok(json!({ "message": "PTY session deleted" })))
}

/// Makes a terminal and connects to it. Every refusal is before the upgrade, so that the client receives a status.
async fn create_connect(State(app): State<DaytonaApp>, request: Request) -> Result<Response, ApiError> {
    let (mut parts, _) = request.into_parts();
    let inside = Inside::from_request_parts(&mut parts, &app).await?;
    let Query(mut body) = Query::<CreatePtyRequest>::from_request_parts(&mut parts, &app).await?;
    let upgrade = socket::asked(&mut parts, &app).await?;
    body.envs = envs(&parts.headers)?;
    let kept = make(&app, &inside, body).await?;
    attach(&app, inside, kept, upgrade, &parts.headers).await
}

async fn connect(State(app): State<DaytonaApp>, request: Request) -> Result<Response, ApiError> {
    let (mut parts, _) = request.into_parts();
    let inside = Inside::from_request_parts(&mut parts, &app).await?;
    let Path((_, id)) = Path::<(String, String)>::from_request_parts(&mut parts, &app).await?;
    let upgrade = socket::asked(&mut parts, &app).await?;
    let kept = inside.toolbox.ptys().find(&id).await.map_err(of_process)?;
    attach(&app, inside, kept, upgrade, &parts.headers).await
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
    kept: Kept,
    upgrade: axum::extract::ws::WebSocketUpgrade,
    headers: &HeaderMap,
) -> Result<Response, ApiError> {
    let (output, input) = inside.toolbox.ptys().attach(&kept).await.map_err(of_process)?;
    let tells_exit = socket::offered(headers).iter().any(|offer| offer == EXIT_CONTROL);
    let sizes = app.toolbox.sizes.clone();
    let account = inside.sandbox.account.clone();
    socket::upgrade((app, &account), upgrade, headers, move |socket| async move {
        let bridge = Bridge { socket, output, input, tells_exit };
        let (socket, close, ended) = bridge.run().await;
        if ended {
            sizes.put(&inside.lease().id, &kept.name, None);
        }
        (socket, close)
    })
}

struct Bridge {
    socket: Socket,
    output: PtyOutput,
    input: PtyInput,
    tells_exit: bool,
}

impl Bridge {
    /// Until one of both sides is gone; `true`: the terminal is.
    async fn run(mut self) -> (Socket, Close, bool) {
        let connected = json!({ "type": "control", "status": "connected" }).to_string();
        if !self.socket.text(connected).await {
            return (self.socket, Close::new(GOING_AWAY, ""), false);
        }
        loop {
            // Both are cancel-safe: the socket and the stream keep what they have not returned.
            let over = tokio::select! {
                heard = self.socket.hear() => self.hear(heard).await,
                event = self.output.next() => self.tell(event).await,
            };
            if let Some((close, ended)) = over {
                return (self.socket, close, ended);
            }
        }
    }

    async fn hear(&mut self, heard: Heard) -> Option<(Close, bool)> {
        match heard {
            Heard::Nothing => None,
            Heard::Gone => Some((Close::normal(), false)),
            Heard::Data(data) => match self.input.write(&data).await {
                // Its end is told by its output.
                Ok(()) | Err(ToolboxError::Ended(_)) => None,
                Err(error) => Some((Close::failed(&of_process(error)), false)),
            },
        }
    }

    async fn tell(&mut self, event: Option<Result<PtyEvent, ToolboxError>>) -> Option<(Close, bool)> {
        match event {
            Some(Ok(PtyEvent::Output(data))) => {
                let sent = self.socket.send(Message::Binary(data)).await;
                (!sent).then(|| (Close::new(GOING_AWAY, ""), false))
            }
            Some(Ok(PtyEvent::Dropped(_))) => None,
            Some(Ok(PtyEvent::End(end))) => {
                if self.tells_exit {
                    let mut exited = ended(end);
                    exited["type"] = json!("control");
                    exited["status"] = json!("exited");
                    self.socket.text(exited.to_string()).await;
                }
                let code = if end.exit_code == 0 { NORMAL } else { FAILED };
                Some((Close::new(code, ended(end).to_string()), true))
            }
            Some(Err(error)) => {
                let refused = of_process(error);
                let told = json!({ "type": "control", "status": "error", "error": text(&refused) });
                self.socket.text(told.to_string()).await;
                Some((Close::failed(&refused), false))
            }
            None => Some((Close::new(FAILED, "the terminal has ended"), true)),
        }
    }
}

fn ended(end: PtyEnd) -> serde_json::Value {
    match end.signal {
        None => json!({ "exitCode": end.exit_code }),
        Some(SIGKILL) => json!({ "exitCode": end.exit_code, "exitReason": "SIGKILL" }),
        Some(signal) => json!({ "exitCode": end.exit_code, "exitReason": format!("signal {signal}") }),
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
        assert_eq!(ended(PtyEnd { exit_code: 0, signal: None }), json!({"exitCode": 0}));
        let killed = ended(PtyEnd { exit_code: 137, signal: Some(9) });
        assert_eq!(killed, json!({"exitCode": 137, "exitReason": "SIGKILL"}));
    }

    #[test]
    fn any_offer_of_variables_is_read_or_refused() {
        atoll_robustness::check("pty_offer", |bytes| {
            let Ok(value) = HeaderValue::from_bytes(bytes) else { return };
            let _ = envs(&HeaderMap::from_iter([(header::SEC_WEBSOCKET_PROTOCOL, value)]));
        });
    }
}
