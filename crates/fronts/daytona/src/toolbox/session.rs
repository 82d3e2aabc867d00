//! Sessions: a shell that keeps its state, its commands, and their output. Each line of output begins with three bytes
//! that identify its stream.

use atoll_front_kit::{ApiError, Json, JsonObject, JsonResponse, Marked, Path, Query, ok, stream_json};
use atoll_toolbox::{
    LogEvent, LogFollow, NewCommand, SessionCommand, SessionLogs, ShellSession as Kept, ToolboxError,
};
use axum::Router;
use axum::extract::ws::Message;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use serde::{Deserialize, Serialize};

use super::inside::Inside;
use super::refusal::{bad, of_process};
use super::socket::{self, Close, GOING_AWAY, Heard, Socket};
use crate::DaytonaApp;
use crate::error::daemon;

mod entrypoint;

const STDOUT: &str = "\x01\x01\x01";
const STDERR: &str = "\x02\x02\x02";
/// The session of the sandbox's own command.
const ENTRYPOINT: &str = "entrypoint";

pub(super) fn routes() -> Router<DaytonaApp> {
    Router::new()
        .route("/process/session", get(list).post(create))
        .route("/process/session/entrypoint", get(entrypoint::find))
        .route("/process/session/entrypoint/logs", get(entrypoint::logs))
        .route("/process/session/{session}", get(find).delete(remove))
        .route("/process/session/{session}/exec", post(exec))
        .route("/process/session/{session}/command/{command}", get(command))
        .route("/process/session/{session}/command/{command}/logs", get(logs))
        .route("/process/session/{session}/command/{command}/input", post(input))
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct SessionResponse {
    session_id: String,
    commands: Vec<Command>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Command {
    id: String,
    command: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
}

impl From<SessionCommand> for Command {
    fn from(kept: SessionCommand) -> Self {
        Self { id: kept.id, command: kept.command, exit_code: kept.exit_code }
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CreateSessionRequest {
    session_id: String,
}

async fn create(inside: Inside, Json(body): Json<CreateSessionRequest>) -> Result<StatusCode, ApiError> {
    if body.session_id == ENTRYPOINT {
        return Err(bad("the session id \"entrypoint\" is reserved"));
    }
    inside.toolbox.sessions().create(&body.session_id, None).await.map_err(of_process)?;
    Ok(StatusCode::CREATED)
}

async fn list(inside: Inside) -> Result<JsonResponse<Vec<SessionResponse>>, ApiError> {
    let mut all = Vec::new();
    for session in inside.toolbox.sessions().list().await.map_err(of_process)? {
        all.push(shown(&inside, session).await?);
    }
    Ok(ok(all))
}

async fn find(
    inside: Inside,
    Path((_, session)): Path<(String, String)>,
) -> Result<JsonResponse<SessionResponse>, ApiError> {
    let kept = inside.toolbox.sessions().find_kept(&session).await.map_err(of_process)?;
    Ok(ok(shown(&inside, kept).await?))
}

async fn shown(inside: &Inside, kept: Kept) -> Result<SessionResponse, ApiError> {
    let commands = inside.toolbox.sessions().commands(&kept).await.map_err(of_process)?;
    Ok(SessionResponse { session_id: kept.name, commands: commands.into_iter().map(Command::from).collect() })
}

async fn remove(inside: Inside, Path((_, session)): Path<(String, String)>) -> Result<StatusCode, ApiError> {
    inside.toolbox.sessions().delete(&session).await.map_err(of_process)?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecBody {
    command: String,
    #[serde(default)]
    run_async: Option<bool>,
    /// The name of the field in older SDKs.
    #[serde(default, rename = "async")]
    is_async: Option<bool>,
    #[serde(default)]
    suppress_input_echo: Option<bool>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Started {
    cmd_id: String,
}

async fn exec(
    inside: Inside,
    Path((_, session)): Path<(String, String)>,
    Json(body): Json<ExecBody>,
) -> Result<Response, ApiError> {
    let sessions = inside.toolbox.sessions();
    let kept = sessions.find(&session).await.map_err(of_process)?;
    let goes_on = body.run_async.or(body.is_async).unwrap_or(false);
    let new = NewCommand {
        command: body.command,
        takes_input: goes_on,
        quiet_input: goes_on && body.suppress_input_echo.unwrap_or(false),
        timeout: None,
    };
    if goes_on {
        let cmd_id = sessions.start_command(&kept, &new).await.map_err(of_process)?;
        return Ok(JsonResponse(StatusCode::ACCEPTED, Started { cmd_id }).into_response());
    }
    let done = sessions.run(&kept, &new).await.map_err(of_process)?;
    let answer = JsonObject::new().field("cmdId", &done.id).field("exitCode", &done.exit_code);
    Ok(stream_json(with_output(answer, &done.output.into_pieces())))
}

/// The same output three times, as the vendor sends it: both streams with marks, and each separately.
fn with_output(answer: JsonObject, pieces: &[LogEvent]) -> JsonObject {
    let marked = pieces.iter().filter_map(|event| match event {
        LogEvent::Stdout(data) => Some(Marked { mark: STDOUT, text: data.clone() }),
        LogEvent::Stderr(data) => Some(Marked { mark: STDERR, text: data.clone() }),
        LogEvent::Exit(_) => None,
    });
    let stdout = pieces.iter().filter_map(|event| match event {
        LogEvent::Stdout(data) => Some(data.clone()),
        LogEvent::Stderr(_) | LogEvent::Exit(_) => None,
    });
    let stderr = pieces.iter().filter_map(|event| match event {
        LogEvent::Stderr(data) => Some(data.clone()),
        LogEvent::Stdout(_) | LogEvent::Exit(_) => None,
    });
    answer.lines("output", marked.collect()).texts("stdout", stdout).texts("stderr", stderr)
}

async fn command(
    inside: Inside,
    Path((_, session, command)): Path<(String, String, String)>,
) -> Result<JsonResponse<Command>, ApiError> {
    let sessions = inside.toolbox.sessions();
    let kept = sessions.find_kept(&session).await.map_err(of_process)?;
    Ok(ok(sessions.command(&kept, &command).await.map_err(of_process)?.into()))
}

#[derive(Debug, Deserialize)]
struct InputBody {
    data: String,
}

async fn input(
    inside: Inside,
    Path((_, session, command)): Path<(String, String, String)>,
    Json(body): Json<InputBody>,
) -> Result<StatusCode, ApiError> {
    let sessions = inside.toolbox.sessions();
    let kept = sessions.find(&session).await.map_err(of_process)?;
    // COMPAT(daytona): input consists of lines; the end of the last one may be left out.
    let mut data = body.data;
    if !data.ends_with('\n') {
        data.push('\n');
    }
    let given = sessions.input(&kept, &command, data.as_bytes()).await;
    given.map_err(|error| match error {
        atoll_toolbox::ToolboxError::Ended(message) => {
            daemon(StatusCode::GONE, "COMMAND_ALREADY_COMPLETED", message)
        }
        error => of_process(error),
    })?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Default, Deserialize)]
struct SessionLogsQuery {
    #[serde(default)]
    follow: Option<bool>,
}

fn shown_logs(logs: SessionLogs) -> JsonObject {
    with_output(JsonObject::new(), &[LogEvent::Stdout(logs.stdout), LogEvent::Stderr(logs.stderr)])
}

/// The output of a command so far; over a socket, the output until its end.
async fn logs(State(app): State<DaytonaApp>, request: Request) -> Result<Response, ApiError> {
    let (mut parts, _) = request.into_parts();
    let inside = Inside::from_request_parts(&mut parts, &app).await?;
    let Path((_, session, command)) =
        Path::<(String, String, String)>::from_request_parts(&mut parts, &app).await?;
    let Query(query) = Query::<SessionLogsQuery>::from_request_parts(&mut parts, &app).await?;
    let sessions = inside.toolbox.sessions();
    let kept = sessions.find_kept(&session).await.map_err(of_process)?;
    if !(query.follow.unwrap_or(false) && socket::is_asked(&parts.headers)) {
        let logs = sessions.logs(&kept, &command).await.map_err(of_process)?;
        return Ok(stream_json(shown_logs(logs)));
    }
    let upgrade = socket::asked(&mut parts, &app).await?;
    sessions.command(&kept, &command).await.map_err(of_process)?;
    let follow = sessions.follow(&kept, &command).await.map_err(of_process)?;
    let account = inside.sandbox.account.clone();
    socket::upgrade((&app, &account), upgrade, &parts.headers, move |socket| async move {
        // The sandbox does not count as idle while a client follows.
        let _inside = inside;
        let next = |mut follow: LogFollow| async move { follow.next().await.map(|event| (event, follow)) };
        follow_on(socket, stream::unfold(follow, next).boxed()).await
    })
}

type LogEvents = BoxStream<'static, Result<LogEvent, ToolboxError>>;

/// Sends log events until they end or the client disconnects.
async fn follow_on(mut socket: Socket, mut events: LogEvents) -> (Socket, Close) {
    loop {
        // Both are cancel-safe: the socket and the stream keep what they have not returned.
        let event = tokio::select! {
            event = events.next() => event,
            heard = socket.hear() => match heard {
                Heard::Gone => return (socket, Close::normal()),
                Heard::Data(_) | Heard::Nothing => continue,
            },
        };
        match event {
            Some(Ok(LogEvent::Exit(_))) => return (socket, Close::normal()),
            Some(Ok(event)) => {
                if !socket.send(framed(&event)).await {
                    return (socket, Close::new(GOING_AWAY, ""));
                }
            }
            Some(Err(error)) => return (socket, Close::failed(&of_process(error))),
            None => return (socket, Close::normal()),
        }
    }
}

fn framed(event: &LogEvent) -> Message {
    let (mark, data) = match event {
        LogEvent::Stdout(data) => (STDOUT, data),
        LogEvent::Stderr(data) => (STDERR, data),
        LogEvent::Exit(_) => return Message::Binary(Bytes::new()),
    };
    Message::Binary([mark.as_bytes(), data].concat().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_line_says_of_which_stream_it_is() {
        let logs = SessionLogs { stdout: Bytes::from_static(b"a\nb"), stderr: Bytes::from_static(b"e\n") };
        let body =
            axum::body::to_bytes(stream_json(shown_logs(logs)).into_body(), 4_096).await.unwrap_or_default();
        let shown: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
        assert_eq!(shown["output"], "\u{1}\u{1}\u{1}a\n\u{1}\u{1}\u{1}b\u{2}\u{2}\u{2}e\n");
        assert_eq!((&shown["stdout"], &shown["stderr"]), (&"a\nb".into(), &"e\n".into()));
        assert_eq!(
            framed(&LogEvent::Stderr(Bytes::from_static(b"x"))),
            Message::Binary(Bytes::from_static(b"\x02\x02\x02x"))
        );
    }
}
