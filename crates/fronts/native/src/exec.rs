//! Commands: run one and wait for its result, or follow it as it runs.

use std::time::Duration;

use atoll_client::exec::{Detached, DroppedOutput, ExecBody, ExecExit, ExecResult, OutputChunk, StreamError};
use atoll_front_kit::{ApiError, Caller, JsonObject, JsonResponse, Path, StrictJson, stream_json};
use atoll_service::{Exec, ExecEvent, ExecOutcome, ServiceError};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::stream::{self, BoxStream, Stream, StreamExt};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::App;
use crate::convert::{FromApi, FromCore, IntoCore};
use crate::sse::{self, Utf8Carry};

/// LIMIT: a command contains its standard input.
pub(crate) const EXEC_MAX: usize = 8 << 20;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(exec)).routes(routes!(exec_stream))
}

impl FromApi<ExecBody> for Exec {
    fn from_api(body: ExecBody) -> Result<Self, ApiError> {
        let stdin = match (body.stdin, body.stdin_base64) {
            (Some(_), Some(_)) => return Err(ApiError::invalid("stdin and stdin_base64 cannot be combined")),
            (Some(text), None) => Some(Bytes::from(text)),
            (None, Some(coded)) => {
                let bytes = STANDARD.decode(coded);
                Some(bytes.map_err(|e| ApiError::invalid(format!("stdin_base64 is not base64: {e}")))?.into())
            }
            (None, None) => None,
        };
        Ok(Self {
            argv: argv(body.argv, body.command)?,
            cwd: body.cwd,
            env: body.env,
            user: body.user,
            open_stdin: body.open_stdin.unwrap_or(body.detach && stdin.is_none()),
            stdin,
            timeout: body.timeout_s.map(seconds).transpose()?,
            detach: body.detach,
            terminal: None,
            tag: body.tag,
            keep_tail: false,
            ends_with_caller: false,
        })
    }
}

// The agent runs sh instead if a sandbox has no bash.
const SHELL: &str = "/bin/bash";

fn argv(argv: Option<Vec<String>>, command: Option<String>) -> Result<Vec<String>, ApiError> {
    match (argv, command) {
        (Some(argv), None) => Ok(argv),
        (None, Some(line)) if line.is_empty() => Err(ApiError::invalid("command is empty")),
        (None, Some(line)) => Ok(vec![SHELL.to_owned(), "-c".to_owned(), line]),
        (Some(_), Some(_)) => Err(ApiError::invalid("argv and command cannot be combined")),
        (None, None) => Err(ApiError::invalid("argv or command is missing")),
    }
}

pub(crate) fn seconds(value: f64) -> Result<Duration, ApiError> {
    Duration::try_from_secs_f64(value)
        .ok()
        .filter(|timeout| !timeout.is_zero())
        .ok_or_else(|| ApiError::invalid(format!("timeout_s must be a number above 0, not {value}")))
}

/// The response of type [`ExecResult`], whose texts are encoded while they are written.
fn result(outcome: ExecOutcome) -> JsonObject {
    let truncated = outcome.stdout.is_truncated() || outcome.stderr.is_truncated();
    let (stdout, stderr) = (outcome.stdout.head, outcome.stderr.head);
    let mut answer = JsonObject::new()
        .field("exit_code", &outcome.exit_code)
        .field("signal", &outcome.signal)
        .field("timed_out", &outcome.timed_out)
        .text("stdout", stdout.clone())
        .text("stderr", stderr.clone());
    for (name, bytes) in [("stdout_base64", stdout), ("stderr_base64", stderr)] {
        if std::str::from_utf8(&bytes).is_err() {
            answer = answer.base64(name, bytes);
        }
    }
    answer
        .field("truncated", &truncated)
        .field("pid", &outcome.pid)
        .field("duration_ms", &outcome.duration_ms)
}

/// Runs a command and returns when it has ended.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/exec", tag = "commands",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    request_body = ExecBody,
    responses((status = 200, body = ExecResult), (status = 202, body = Detached, description = "With `detach`")))]
pub(crate) async fn exec(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    StrictJson(body): StrictJson<ExecBody, EXEC_MAX>,
) -> Result<Response, ApiError> {
    let detach = body.detach;
    let outcome = app.service.sandboxes().exec(&who, &ident, body.into_core()?).await?;
    if detach {
        return Ok(JsonResponse(StatusCode::ACCEPTED, Detached { pid: outcome.pid }).into_response());
    }
    Ok(stream_json(result(outcome)))
}

/// Runs a command and streams its output.
///
/// Events: `start {pid}`, `stdout` and `stderr {data | data_base64}`, `dropped {bytes}` if the client reads too
/// slowly, and at the end `exit {exit_code, signal, timed_out}` or `error {code, message}`. Closing the stream does
/// not end the command.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/exec/stream", tag = "commands",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    request_body = ExecBody,
    responses((status = 200, content_type = "text/event-stream", body = String)))]
pub(crate) async fn exec_stream(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    StrictJson(body): StrictJson<ExecBody, EXEC_MAX>,
) -> Result<Response, ApiError> {
    let (pid, events) = app.service.sandboxes().exec_stream(&who, &ident, body.into_core()?).await?;
    Ok(sse::respond(&app, follow(pid, events)))
}

/// A process's events as server-sent events.
pub(crate) fn follow(
    pid: u32,
    events: BoxStream<'static, ExecEvent>,
) -> impl Stream<Item = Event> + Send + 'static {
    stream::iter([sse::event("start", &Detached { pid })]).chain(output_events(events))
}

/// The events of a process without the first.
pub(crate) fn output_events(
    events: impl Stream<Item = ExecEvent> + Send + 'static,
) -> impl Stream<Item = Event> + Send + 'static {
    let mut render = OutputRenderer::default();
    events.flat_map(move |event| stream::iter(render.events(event)))
}

#[derive(Default)]
struct OutputRenderer {
    stdout: Utf8Carry,
    stderr: Utf8Carry,
    terminal: Utf8Carry,
}

impl FromCore<ServiceError> for StreamError {
    fn from_core(error: ServiceError) -> Self {
        Self { code: error.code.as_str().to_owned(), message: error.message, hint: error.hint }
    }
}

impl OutputRenderer {
    fn events(&mut self, event: ExecEvent) -> Vec<Event> {
        let last = match event {
            ExecEvent::Stdout(bytes) => return chunk("stdout", self.stdout.push(bytes)),
            ExecEvent::Stderr(bytes) => return chunk("stderr", self.stderr.push(bytes)),
            ExecEvent::Terminal(bytes) => return chunk("terminal", self.terminal.push(bytes)),
            ExecEvent::Dropped(bytes) => return vec![sse::event("dropped", &DroppedOutput { bytes })],
            // The stream sends keep-alive comments of its own.
            ExecEvent::KeepAlive => return Vec::new(),
            ExecEvent::Exit { exit_code, signal, timed_out } => {
                sse::event("exit", &ExecExit { exit_code, signal, timed_out })
            }
            ExecEvent::Lost(error) => sse::event("error", &StreamError::from_core(error)),
        };
        let mut events = chunk("stdout", self.stdout.finish());
        events.extend(chunk("stderr", self.stderr.finish()));
        events.extend(chunk("terminal", self.terminal.finish()));
        events.push(last);
        events
    }
}

fn chunk(name: &str, chunk: Option<OutputChunk>) -> Vec<Event> {
    chunk.into_iter().map(|chunk| sse::event(name, &chunk)).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use atoll_front_kit::parse_json;

    fn parse(text: &str) -> Result<Exec, ApiError> {
        parse_json::<ExecBody>(text.as_bytes())?.into_core()
    }

    #[test]
    fn a_command_is_argv_or_a_line_and_never_both() {
        assert_eq!(parse(r#"{"argv":["true"]}"#).unwrap().argv, ["true"]);
        assert_eq!(parse(r#"{"command":"a | b"}"#).unwrap().argv.last().unwrap(), "a | b");
        assert!(parse("{}").unwrap_err().message.contains("missing"));
        assert!(parse(r#"{"argv":["a"],"command":"b"}"#).unwrap_err().message.contains("cannot be combined"));
    }

    #[test]
    fn stdin_comes_as_text_or_as_base64() {
        let stdin = |text: &str| parse(text).map(|exec| exec.stdin.unwrap());
        assert_eq!(stdin(r#"{"argv":["cat"],"stdin":"é"}"#).unwrap(), "é");
        assert_eq!(stdin(r#"{"argv":["cat"],"stdin_base64":"/w=="}"#).unwrap(), &b"\xff"[..]);
        assert!(
            stdin(r#"{"argv":["cat"],"stdin_base64":"?"}"#).unwrap_err().message.starts_with("stdin_base64")
        );
    }

    #[test]
    fn timeouts_that_are_no_time_are_refused() {
        for bad in ["0", "-1", "1e300"] {
            let error = parse(&format!(r#"{{"argv":["a"],"timeout_s":{bad}}}"#)).unwrap_err();
            assert!(error.message.starts_with("timeout_s"), "{error:?}");
        }
        let exec = parse(r#"{"argv":["a"],"timeout_s":0.5}"#).unwrap();
        assert_eq!(exec.timeout, Some(Duration::from_millis(500)));
    }

    #[tokio::test]
    async fn a_stream_flushes_what_it_held_back_before_the_exit() {
        let exit = ExecEvent::Exit { exit_code: 0, signal: None, timed_out: false };
        let events = vec![ExecEvent::Stdout(Bytes::from_static(b"a\xc3")), ExecEvent::KeepAlive, exit];
        let events = follow(7, stream::iter(events).boxed());
        let response =
            axum::response::sse::Sse::new(events.map(Ok::<_, std::convert::Infallible>)).into_response();
        let body = axum::body::to_bytes(response.into_body(), 4_096).await.unwrap();
        let text = String::from_utf8(body.to_vec()).unwrap();
        let names: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
        assert_eq!(names, ["start", "stdout", "stdout", "exit"]);
        assert!(text.contains(r#"data: {"data_base64":"ww=="}"#), "{text}");
    }
}
