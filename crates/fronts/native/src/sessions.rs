//! Shell sessions: shells that keep their state between commands, and the output of their commands.

use atoll_client::sessions::{
    Session, SessionBody, SessionCommand, SessionDetails, SessionExecBody, SessionList, SessionOutput,
    SessionResult, SessionStarted,
};
use atoll_front_kit::{
    ApiError, Caller, JsonObject, JsonResponse, Path, RequestBudget, StrictJson, created, ok, read_body,
    stream_json,
};
use atoll_service::{ExecEvent, ServiceError};
use atoll_toolbox::{LogEvent, LogFollow, NewCommand, ToolboxError};
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::App;
use crate::convert::FromCore;
use crate::exec::{EXEC_MAX, output_events, seconds};
use crate::sse;
use crate::tools::{SandboxTools, tools};

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(find, remove))
        .routes(routes!(exec))
        .routes(routes!(command))
        .routes(routes!(logs))
        .routes(routes!(logs_stream))
        .routes(routes!(write_stdin))
}

impl FromCore<atoll_toolbox::SessionCommand> for SessionCommand {
    fn from_core(command: atoll_toolbox::SessionCommand) -> Self {
        Self { id: command.id, command: command.command, exit_code: command.exit_code }
    }
}

/// Lists the sessions whose shell runs, oldest first.
#[utoipa::path(get, path = "/v1/sandboxes/{ident}/sessions", tag = "sessions",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    responses((status = 200, body = SessionList)))]
pub(crate) async fn list(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
) -> Result<JsonResponse<SessionList>, ApiError> {
    let found = tools(&app, &who, &ident).await?.toolbox.sessions().list().await?;
    let items = found.into_iter().map(|session| Session { name: session.name }).collect();
    Ok(ok(SessionList { items }))
}

/// Starts a session.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/sessions", tag = "sessions",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    request_body = SessionBody, responses((status = 201, body = Session)))]
pub(crate) async fn create(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    StrictJson(body): StrictJson<SessionBody>,
) -> Result<JsonResponse<Session>, ApiError> {
    let tools = tools(&app, &who, &ident).await?;
    let session = tools.toolbox.sessions().create(&body.name, body.cwd.as_deref()).await?;
    Ok(created(Session { name: session.name }))
}

/// Returns a session with its commands, also after its shell has exited.
#[utoipa::path(get, path = "/v1/sandboxes/{ident}/sessions/{session}", tag = "sessions",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name"), ("session" = String, Path)),
    responses((status = 200, body = SessionDetails)))]
pub(crate) async fn find(
    State(app): State<App>,
    Caller(who): Caller,
    Path((ident, session)): Path<(String, String)>,
) -> Result<JsonResponse<SessionDetails>, ApiError> {
    let tools = tools(&app, &who, &ident).await?;
    let sessions = tools.toolbox.sessions();
    let found = sessions.find_kept(&session).await?;
    let commands = sessions.commands(&found).await?.into_iter().map(SessionCommand::from_core).collect();
    Ok(ok(SessionDetails { name: found.name, commands }))
}

/// Ends a session with its processes, and deletes the output of its commands.
#[utoipa::path(delete, path = "/v1/sandboxes/{ident}/sessions/{session}", tag = "sessions",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name"), ("session" = String, Path)),
    responses((status = 204, description = "Gone")))]
pub(crate) async fn remove(
    State(app): State<App>,
    Caller(who): Caller,
    Path((ident, session)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    tools(&app, &who, &ident).await?.toolbox.sessions().delete(&session).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Runs a command in a session. If the client goes away, the command goes on.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/sessions/{session}/exec", tag = "sessions",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name"), ("session" = String, Path)),
    request_body = SessionExecBody,
    responses((status = 200, body = SessionResult), (status = 202, body = SessionStarted, description = "With `detach`")))]
pub(crate) async fn exec(
    State(app): State<App>,
    Caller(who): Caller,
    Path((ident, session)): Path<(String, String)>,
    StrictJson(body): StrictJson<SessionExecBody, EXEC_MAX>,
) -> Result<Response, ApiError> {
    let SessionExecBody { command, detach, quiet_stdin, timeout_s } = body;
    if detach && timeout_s.is_some() {
        return Err(ApiError::invalid("timeout_s and detach cannot be combined")
            .hint("a detached command is not waited for; follow it with its logs"));
    }
    let timeout = timeout_s.map(seconds).transpose()?;
    let new = NewCommand { command, takes_input: detach, quiet_input: quiet_stdin, timeout };
    let tools = tools(&app, &who, &ident).await?;
    let sessions = tools.toolbox.sessions();
    let session = sessions.find(&session).await?;
    if detach {
        let id = sessions.start_command(&session, &new).await?;
        return Ok(JsonResponse(StatusCode::ACCEPTED, SessionStarted { id }).into_response());
    }
    let done = sessions.run(&session, &new).await?;
    let (mut stdout, mut stderr): (Vec<Bytes>, Vec<Bytes>) = Default::default();
    for piece in done.output.into_pieces() {
        match piece {
            LogEvent::Stdout(data) => stdout.push(data),
            LogEvent::Stderr(data) => stderr.push(data),
            LogEvent::Exit(_) => {}
        }
    }
    let answer = JsonObject::new().field("id", &done.id).field("exit_code", &done.exit_code);
    Ok(stream_json(answer.texts("stdout", stdout).texts("stderr", stderr)))
}

/// Returns a command of a session.
#[utoipa::path(get, path = "/v1/sandboxes/{ident}/sessions/{session}/commands/{command}", tag = "sessions",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name"), ("session" = String, Path),
        ("command" = String, Path)),
    responses((status = 200, body = SessionCommand)))]
pub(crate) async fn command(
    State(app): State<App>,
    Caller(who): Caller,
    Path((ident, session, command)): Path<(String, String, String)>,
) -> Result<JsonResponse<SessionCommand>, ApiError> {
    let tools = tools(&app, &who, &ident).await?;
    let sessions = tools.toolbox.sessions();
    let session = sessions.find_kept(&session).await?;
    Ok(ok(SessionCommand::from_core(sessions.command(&session, &command).await?)))
}

/// Returns what a command has written so far.
#[utoipa::path(get, path = "/v1/sandboxes/{ident}/sessions/{session}/commands/{command}/logs", tag = "sessions",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name"), ("session" = String, Path),
        ("command" = String, Path)),
    responses((status = 200, body = SessionOutput)))]
pub(crate) async fn logs(
    State(app): State<App>,
    Caller(who): Caller,
    Path((ident, session, command)): Path<(String, String, String)>,
) -> Result<Response, ApiError> {
    let tools = tools(&app, &who, &ident).await?;
    let sessions = tools.toolbox.sessions();
    let session = sessions.find_kept(&session).await?;
    let exit_code = sessions.command(&session, &command).await?.exit_code;
    let logs = sessions.logs(&session, &command).await?;
    let answer = JsonObject::new().field("exit_code", &exit_code);
    Ok(stream_json(answer.text("stdout", logs.stdout).text("stderr", logs.stderr)))
}

/// Follows the output of a command from its beginning.
///
/// Events: `stdout` and `stderr {data | data_base64}`, and at the end `exit {exit_code}` or `error {code, message}`.
/// Closing the stream does not end the command.
#[utoipa::path(get, path = "/v1/sandboxes/{ident}/sessions/{session}/commands/{command}/logs/stream", tag = "sessions",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name"), ("session" = String, Path),
        ("command" = String, Path)),
    responses((status = 200, content_type = "text/event-stream", body = String)))]
pub(crate) async fn logs_stream(
    State(app): State<App>,
    Caller(who): Caller,
    Path((ident, session, command)): Path<(String, String, String)>,
) -> Result<Response, ApiError> {
    let tools = tools(&app, &who, &ident).await?;
    let follow = {
        let sessions = tools.toolbox.sessions();
        let session = sessions.find_kept(&session).await?;
        let command = sessions.command(&session, &command).await?;
        sessions.follow(&session, &command.id).await?
    };
    Ok(sse::respond(&app, output_events(log_events(tools, follow))))
}

fn log_events(tools: SandboxTools, follow: LogFollow) -> impl Stream<Item = ExecEvent> + Send + 'static {
    let next = |mut follow: LogFollow| async move { follow.next().await.map(|event| (event, follow)) };
    stream::unfold(follow, next).map(move |event| {
        let _awake = &tools;
        exec_event(event)
    })
}

fn exec_event(event: Result<LogEvent, ToolboxError>) -> ExecEvent {
    match event {
        Ok(LogEvent::Stdout(data)) => ExecEvent::Stdout(data),
        Ok(LogEvent::Stderr(data)) => ExecEvent::Stderr(data),
        Ok(LogEvent::Exit(exit_code)) => ExecEvent::Exit { exit_code, signal: None, timed_out: false },
        Err(error) => ExecEvent::Lost(ServiceError::new(error.code(), error.to_string())),
    }
}

/// Writes to the stdin of a command that was started with `detach`. At most 1 MiB per call.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/sessions/{session}/commands/{command}/stdin", tag = "sessions",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name"), ("session" = String, Path),
        ("command" = String, Path)),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 204, description = "Written")))]
pub(crate) async fn write_stdin(
    State(app): State<App>,
    Caller(who): Caller,
    Path((ident, session, command)): Path<(String, String, String)>,
    budget: Option<Extension<RequestBudget>>,
    body: Body,
) -> Result<StatusCode, ApiError> {
    let data = read_body(body, EXEC_MAX, budget.as_deref()).await?;
    let tools = tools(&app, &who, &ident).await?;
    let sessions = tools.toolbox.sessions();
    let session = sessions.find(&session).await?;
    sessions.input(&session, &command, &data).await?;
    Ok(StatusCode::NO_CONTENT)
}
