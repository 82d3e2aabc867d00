//! Processes that were started through the API: list, attach, signal, stdin; and their logs.

use atoll_client::exec::{DroppedOutput, OutputChunk};
use atoll_client::processes::{AttachQuery, LogEntry, LogsQuery, Process, ProcessList, Signal, SignalBody};
use atoll_front_kit::{
    ApiError, Caller, JsonResponse, Path, Query, RequestBudget, StrictJson, ok, read_body, rfc3339_millis,
};
use atoll_service::{LogLine, LogStream, ProcessRecord};
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use futures::StreamExt;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::App;
use crate::convert::FromCore;
use crate::exec::EXEC_MAX;
use crate::exec::follow;
use crate::sse;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(attach))
        .routes(routes!(signal))
        .routes(routes!(write_stdin, close_stdin))
        .routes(routes!(logs))
}

impl FromCore<ProcessRecord> for Process {
    fn from_core(record: ProcessRecord) -> Self {
        Self {
            pid: record.pid,
            argv: record.argv,
            cwd: record.cwd,
            user: record.user,
            tag: record.tag,
            pty: record.terminal,
            started_at: (record.started_at_ms > 0).then(|| rfc3339_millis(record.started_at_ms)),
            running: true,
        }
    }
}

#[rustfmt::skip]
const SIGNALS: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM", "TERM",
    "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO",
    "PWR", "SYS",
];

fn signal_number(signal: &Signal) -> Result<i32, ApiError> {
    let found = match signal {
        Signal::Number(number) => (1..=64).contains(number).then_some(*number),
        Signal::Name(name) => {
            let bare = name.strip_prefix("SIG").unwrap_or(name);
            SIGNALS.iter().zip(1..).find(|(known, _)| **known == bare).map(|(_, number)| number)
        }
    };
    found.ok_or_else(|| ApiError::invalid("signal must be a name such as \"TERM\" or a number from 1 to 64"))
}

/// Lists the running processes that were started through the API.
#[utoipa::path(get, path = "/v1/sandboxes/{ident}/processes", tag = "commands",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    responses((status = 200, body = ProcessList)))]
pub(crate) async fn list(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
) -> Result<JsonResponse<ProcessList>, ApiError> {
    let records = app.service.sandboxes().processes(&who, &ident).await?;
    Ok(ok(ProcessList { items: records.into_iter().map(Process::from_core).collect() }))
}

/// Follows the output of a process. The events are those of `exec/stream`, and `terminal` for a process with a
/// terminal.
#[utoipa::path(get, path = "/v1/sandboxes/{ident}/processes/{pid}/attach", tag = "commands",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name"),
        ("pid" = u32, Path), AttachQuery),
    responses((status = 200, content_type = "text/event-stream", body = String)))]
pub(crate) async fn attach(
    State(app): State<App>,
    Caller(who): Caller,
    Path((ident, pid)): Path<(String, u32)>,
    Query(query): Query<AttachQuery>,
) -> Result<Response, ApiError> {
    let tail = query.tail.unwrap_or_default().0;
    let events = app.service.sandboxes().attach(&who, &ident, pid, tail).await?;
    Ok(sse::respond(&app, follow(pid, events)))
}

/// Sends a signal to a process.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/processes/{pid}/signal", tag = "commands",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name"), ("pid" = u32, Path)),
    request_body = SignalBody, responses((status = 204, description = "Sent")))]
pub(crate) async fn signal(
    State(app): State<App>,
    Caller(who): Caller,
    Path((ident, pid)): Path<(String, u32)>,
    StrictJson(body): StrictJson<SignalBody>,
) -> Result<StatusCode, ApiError> {
    app.service.sandboxes().signal(&who, &ident, pid, signal_number(&body.signal)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Writes to the stdin of a process that was started with `open_stdin` or has a terminal.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/processes/{pid}/stdin", tag = "commands",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name"), ("pid" = u32, Path)),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 204, description = "Written")))]
pub(crate) async fn write_stdin(
    State(app): State<App>,
    Caller(who): Caller,
    Path((ident, pid)): Path<(String, u32)>,
    budget: Option<Extension<RequestBudget>>,
    body: Body,
) -> Result<StatusCode, ApiError> {
    let data = read_body(body, EXEC_MAX, budget.as_deref()).await?;
    app.service.sandboxes().write_stdin(&who, &ident, pid, data).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Closes the stdin of a process.
#[utoipa::path(delete, path = "/v1/sandboxes/{ident}/processes/{pid}/stdin", tag = "commands",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name"), ("pid" = u32, Path)),
    responses((status = 204, description = "Closed")))]
pub(crate) async fn close_stdin(
    State(app): State<App>,
    Caller(who): Caller,
    Path((ident, pid)): Path<(String, u32)>,
) -> Result<StatusCode, ApiError> {
    app.service.sandboxes().close_stdin(&who, &ident, pid).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn log_entry(line: LogLine) -> LogEntry {
    let stream = match line.stream {
        LogStream::Stdout => "stdout",
        LogStream::Stderr => "stderr",
        LogStream::Terminal => "terminal",
    };
    LogEntry {
        at: rfc3339_millis(line.at_ms),
        pid: line.pid,
        stream: stream.to_owned(),
        chunk: OutputChunk::new(line.data.into()),
    }
}

/// Returns the output of the start command and of detached processes, from a ring buffer.
///
/// Events: `stdout`, `stderr` and `terminal` `{at, pid, stream, data | data_base64}`, and `dropped {bytes}` if the
/// client reads too slowly. With `Accept: application/x-ndjson` the same objects are sent one per line.
#[utoipa::path(get, path = "/v1/sandboxes/{ident}/logs", tag = "commands",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name"), LogsQuery),
    responses((status = 200, content((String = "text/event-stream"), (String = "application/x-ndjson")))))]
pub(crate) async fn logs(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    Query(query): Query<LogsQuery>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let lines = app.service.sandboxes().logs(&who, &ident, query.follow.unwrap_or_default().0).await?;
    if accepts_ndjson(&headers) {
        return Ok(ndjson(lines.take_until(app.shutdown.draining())));
    }
    let events = lines.flat_map(|line| {
        let dropped =
            (line.dropped > 0).then(|| sse::event("dropped", &DroppedOutput { bytes: line.dropped }));
        let line = log_entry(line);
        futures::stream::iter(dropped.into_iter().chain([sse::event(&line.stream, &line)]))
    });
    Ok(sse::respond(&app, events))
}

fn accepts_ndjson(headers: &HeaderMap) -> bool {
    headers.get(header::ACCEPT).and_then(|v| v.to_str().ok()).is_some_and(|v| v.contains("ndjson"))
}

fn ndjson(lines: impl futures::Stream<Item = LogLine> + Send + 'static) -> Response {
    let text = lines.map(|line| {
        let mut text = serde_json::to_vec(&log_entry(line)).map_err(std::io::Error::other)?;
        text.push(b'\n');
        Ok::<_, std::io::Error>(Bytes::from(text))
    });
    let mut response = Response::new(Body::from_stream(text));
    let ndjson = HeaderValue::from_static("application/x-ndjson");
    response.headers_mut().insert(header::CONTENT_TYPE, ndjson);
    response
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use atoll_front_kit::parse_json;

    #[test]
    fn signals_come_by_name_or_number() {
        let number = |text: &str| signal_number(&parse_json::<SignalBody>(text.as_bytes())?.signal);
        for (text, expected) in [
            (r#"{"signal":"TERM"}"#, 15),
            (r#"{"signal":"SIGKILL"}"#, 9),
            (r#"{"signal":2}"#, 2),
            (r#"{"signal":"SYS"}"#, 31),
        ] {
            assert_eq!(number(text).unwrap(), expected);
        }
        for bad in [r#"{"signal":"NOPE"}"#, r#"{"signal":0}"#, r#"{"signal":65}"#, r#"{"signal":[]}"#, "{}"] {
            assert!(number(bad).unwrap_err().message.contains("signal"), "{bad}");
        }
    }
}
