//! The code interpreter: contexts, and code over a socket. Output is sent as JSON texts, the end as the close of the
//! socket.

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_front_kit::{ApiError, Json, JsonResponse, Path, ok, parse_json_or_empty, rfc3339_millis};
use atoll_toolbox::{
    Execute, Execution, ExecutionEvent, InterpreterContext as Kept, Language, NewContext, ToolboxError,
};
use axum::Router;
use axum::extract::{FromRequestParts, Request, State};
use axum::response::Response;
use axum::routing::{delete, get};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::execute::{timeout as timeout_of, variables};
use super::inside::Inside;
use super::refusal::of_process;
use super::socket::{self, Close, FAILED, GOING_AWAY, Heard, Socket};
use crate::DaytonaApp;

/// COMPAT(daytona): the close code that its SDK treats as a timeout.
const TIMED_OUT: u16 = 4008;
/// COMPAT(daytona): the default.
const TIMEOUT: Duration = Duration::from_secs(600);
/// LIMIT: a client sends its code right after it connects.
const FIRST_WITHIN: Duration = Duration::from_secs(30);

pub(super) fn routes() -> Router<DaytonaApp> {
    Router::new()
        .route("/process/interpreter/context", get(list).post(create))
        .route("/process/interpreter/context/{context}", delete(remove))
        .route("/process/interpreter/execute", get(execute))
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ContextResponse {
    id: String,
    cwd: String,
    language: &'static str,
    active: bool,
    created_at: String,
}

impl From<Kept> for ContextResponse {
    fn from(kept: Kept) -> Self {
        Self {
            language: kept.language.as_str(),
            id: kept.id,
            cwd: kept.cwd,
            active: true,
            created_at: rfc3339_millis(i64::try_from(kept.created_at_ms).unwrap_or(0)),
        }
    }
}

#[derive(Debug, Serialize)]
struct Contexts {
    contexts: Vec<ContextResponse>,
}

#[derive(Debug, Default, Deserialize)]
struct CreateContextRequest {
    cwd: Option<String>,
    language: Option<String>,
}

async fn create(
    inside: Inside,
    Json(body): Json<CreateContextRequest>,
) -> Result<JsonResponse<ContextResponse>, ApiError> {
    let language =
        body.language.as_deref().map_or(Ok(Language::Python), Language::parse).map_err(of_process)?;
    let new = NewContext { language, cwd: inside.cwd(body.cwd.as_deref()) };
    Ok(ok(inside.interpreter().create_context(&new).await.map_err(of_process)?.into()))
}

async fn list(inside: Inside) -> Result<JsonResponse<Contexts>, ApiError> {
    let found = inside.interpreter().contexts().await.map_err(of_process)?;
    // The default context, which runs code without a context, is not listed.
    let own = found.into_iter().filter(|kept| !kept.id.starts_with("default-"));
    Ok(ok(Contexts { contexts: own.map(ContextResponse::from).collect() }))
}

async fn remove(
    inside: Inside,
    Path((_, context)): Path<(String, String)>,
) -> Result<JsonResponse<Value>, ApiError> {
    inside.interpreter().delete_context(&context).await.map_err(of_process)?;
    Ok(ok(json!({ "message": "context deleted" })))
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecuteFrame {
    code: String,
    context_id: Option<String>,
    envs: Option<BTreeMap<String, String>>,
    /// Seconds; 0: no timeout.
    timeout: Option<u64>,
}

async fn execute(State(app): State<DaytonaApp>, request: Request) -> Result<Response, ApiError> {
    let (mut parts, _) = request.into_parts();
    let inside = Inside::from_request_parts(&mut parts, &app).await?;
    let upgrade = socket::asked(&mut parts, &app).await?;
    let account = inside.sandbox.account.clone();
    socket::upgrade((&app, &account), upgrade, &parts.headers, move |mut socket| async move {
        let first = timeout(FIRST_WITHIN, first_frame(&mut socket)).await.ok().flatten();
        let Some(first) = first else { return (socket, Close::new(FAILED, "no code was sent")) };
        match begin(&inside, &first).await {
            Ok(execution) => run(socket, execution).await,
            Err(error) => (socket, Close::failed(&error)),
        }
    })
}

async fn first_frame(socket: &mut Socket) -> Option<Bytes> {
    loop {
        match socket.hear().await {
            Heard::Data(data) => return Some(data),
            Heard::Nothing => {}
            Heard::Gone => return None,
        }
    }
}

async fn begin(inside: &Inside, frame: &[u8]) -> Result<Execution, ApiError> {
    let asked: ExecuteFrame = parse_json_or_empty(frame)?;
    let limit = match asked.timeout {
        None => Some(TIMEOUT),
        asked => timeout_of(asked),
    };
    let interpreter = inside.interpreter();
    let context = match &asked.context_id {
        Some(id) if !id.is_empty() => interpreter.context(id).await,
        _ => interpreter.default_context(Language::Python).await,
    };
    let execute = Execute { code: asked.code, env: variables(asked.envs)?, timeout: limit };
    interpreter.execute(&context.map_err(of_process)?, execute).await.map_err(of_process)
}

/// Runs until the end of the execution; if the client disconnects, the execution is interrupted.
async fn run(mut socket: Socket, mut execution: Execution) -> (Socket, Close) {
    let mut timed_out = false;
    loop {
        // Both are cancel-safe: the socket and the execution keep what they have not returned.
        let event = tokio::select! {
            event = execution.next() => event,
            heard = socket.hear() => match heard {
                Heard::Gone => return (socket, Close::new(GOING_AWAY, "")),
                Heard::Data(_) | Heard::Nothing => continue,
            },
        };
        match event {
            Some(Ok(ExecutionEvent::TimedOut)) => timed_out = true,
            Some(Ok(ExecutionEvent::End)) | None => {
                let close = match timed_out {
                    true => Close::new(TIMED_OUT, "the code met its timeout"),
                    false => Close::normal(),
                };
                return (socket, close);
            }
            Some(Ok(event)) => {
                if let Some(told) = told(event)
                    && !socket.text(told.to_string()).await
                {
                    return (socket, Close::new(GOING_AWAY, ""));
                }
            }
            Some(Err(error)) => return (socket, failed(error)),
        }
    }
}

fn failed(error: ToolboxError) -> Close {
    match error {
        ToolboxError::TimedOut { .. } => Close::new(TIMED_OUT, "the code met its timeout"),
        error => Close::failed(&of_process(error)),
    }
}

/// COMPAT(daytona): values and pictures have no frame there.
fn told(event: ExecutionEvent) -> Option<Value> {
    match event {
        ExecutionEvent::Stdout(text) => Some(json!({ "type": "stdout", "text": text })),
        ExecutionEvent::Stderr(text) => Some(json!({ "type": "stderr", "text": text })),
        ExecutionEvent::Error { name, value, traceback } => {
            let traceback = plain(&traceback);
            Some(json!({ "type": "error", "name": name, "value": value, "traceback": traceback }))
        }
        ExecutionEvent::Dropped(bytes) => {
            Some(json!({ "type": "stderr", "text": format!("[{bytes} bytes were lost]\n") }))
        }
        ExecutionEvent::Started { .. }
        | ExecutionEvent::Result(_)
        | ExecutionEvent::TimedOut
        | ExecutionEvent::End => None,
    }
}

/// The text without the colours of a terminal.
fn plain(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\u{1b}' {
            shown.push(c);
        } else if chars.clone().next() == Some('[') {
            chars.next();
            for c in chars.by_ref() {
                if ('@'..='~').contains(&c) {
                    break;
                }
            }
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_taken_away() {
        assert_eq!(plain("\u{1b}[0;31mValueError\u{1b}[0m: a [1] \u{1b}["), "ValueError: a [1] ");
    }

    #[test]
    fn only_what_the_sdk_reads_is_told() {
        assert_eq!(told(ExecutionEvent::Stdout("x".into())), Some(json!({"type": "stdout", "text": "x"})));
        assert_eq!(told(ExecutionEvent::Started { count: 1 }), None);
    }
}
