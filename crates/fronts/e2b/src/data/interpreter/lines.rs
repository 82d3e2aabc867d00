//! Sends an execution as JSON lines, each as soon as it is available.
//!
//! If the sandbox ends in the middle, the response is aborted, so that it never looks complete. If the client
//! disconnects, the execution is dropped, which interrupts it.

use std::time::Duration;

use atoll_toolbox::{Execution, ExecutionEvent, Language, Rich, ToolboxError};
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderValue, header};
use serde::Serialize;
use serde_json::{Map, Value};

use super::super::Data;
use super::super::awake::AwakeSandbox;

/// COMPAT(e2b): the longest silence of the vendor's server.
const KEEPALIVE: Duration = Duration::from_secs(5);

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Line {
    NumberOfExecutions { execution_count: u64 },
    Stdout { text: String, timestamp: String },
    Stderr { text: String, timestamp: String },
    Result(Box<Shown>),
    Error { name: String, value: String, traceback: String },
    Keepalive,
    EndOfExecution,
}

#[derive(Debug, Default, Serialize)]
struct Shown {
    #[serde(flatten)]
    forms: Forms,
    is_main_result: bool,
    #[serde(skip_serializing_if = "Map::is_empty")]
    extra: Map<String, Value>,
}

/// Only existing forms are sent: the SDKs list the fields that they find.
#[derive(Debug, Default, Serialize)]
#[serde(default)]
struct Forms {
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    html: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    markdown: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    svg: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    png: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    jpeg: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pdf: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    latex: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    json: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    javascript: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    chart: Option<Value>,
}

impl From<Rich> for Shown {
    fn from(rich: Rich) -> Self {
        Self {
            forms: Forms {
                text: rich.text.map(unquoted),
                html: rich.html,
                markdown: rich.markdown,
                svg: rich.svg,
                png: rich.png,
                jpeg: rich.jpeg,
                pdf: rich.pdf,
                latex: rich.latex,
                json: rich.json,
                javascript: rich.javascript,
                data: rich.data,
                chart: rich.chart,
            },
            is_main_result: rich.is_main,
            extra: rich.extra.into_iter().collect(),
        }
    }
}

/// COMPAT(e2b): a text is shown without the quotes that its kernel puts around it.
fn unquoted(text: String) -> String {
    let bare = ['\'', '"'].iter().find_map(|quote| text.strip_prefix(*quote)?.strip_suffix(*quote));
    bare.map(str::to_owned).unwrap_or(text)
}

pub(super) fn answer(data: Data, awake: AwakeSandbox, execution: Execution) -> Response {
    let running = Running { data, awake, execution: Some(execution) };
    let lines = futures::stream::unfold(running, |mut running| async move {
        let line = running.next().await?;
        Some((line, running))
    });
    ndjson(Body::from_stream(lines))
}

fn ndjson(body: Body) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// The response for a sandbox that ended while its kernel started: an aborted one, by which the SDKs detect that the
/// sandbox was killed during the request.
pub(super) fn broken_off() -> Response {
    let lines = futures::stream::iter([Ok(written(&[Line::Keepalive])), Err(Ended)]);
    ndjson(Body::from_stream(lines))
}

struct Running {
    data: Data,
    awake: AwakeSandbox,
    /// `None` after its end.
    execution: Option<Execution>,
}

/// The sandbox ended.
#[derive(Debug, thiserror::Error)]
#[error("the sandbox ended in the middle of an execution")]
struct Ended;

impl Running {
    async fn next(&mut self) -> Option<Result<Bytes, Ended>> {
        let execution = self.execution.as_mut()?;
        let Ok(event) = tokio::time::timeout(KEEPALIVE, execution.next()).await else {
            return Some(Ok(written(&[Line::Keepalive])));
        };
        let lines = match event {
            None | Some(Ok(ExecutionEvent::End)) => {
                self.execution = None;
                return Some(Ok(written(&[Line::EndOfExecution])));
            }
            Some(Ok(ExecutionEvent::Stdout(text))) if execution.context().language == Language::Java => {
                lines_of_java(&text)
            }
            Some(Ok(event)) => vec![line_of(event)],
            Some(Err(_)) if !self.data.still_runs(&self.awake) => {
                self.execution = None;
                return Some(Err(Ended));
            }
            Some(Err(error)) => {
                self.execution = None;
                vec![died(&error), Line::EndOfExecution]
            }
        };
        Some(Ok(written(&lines)))
    }
}

#[expect(clippy::disallowed_methods, reason = "the time that a line of output shows")]
fn line_of(event: ExecutionEvent) -> Line {
    let timestamp = || jiff::Timestamp::now().to_string();
    match event {
        ExecutionEvent::Started { count } => Line::NumberOfExecutions { execution_count: count },
        ExecutionEvent::Stdout(text) => Line::Stdout { text, timestamp: timestamp() },
        ExecutionEvent::Stderr(text) => Line::Stderr { text, timestamp: timestamp() },
        ExecutionEvent::Result(rich) => Line::Result(Box::new(Shown::from(*rich))),
        ExecutionEvent::Error { name, value, traceback } => Line::Error { name, value, traceback },
        ExecutionEvent::TimedOut => {
            let value = "the execution took too long and was interrupted".to_owned();
            Line::Error { name: "TimeoutError".to_owned(), value, traceback: String::new() }
        }
        ExecutionEvent::Dropped(bytes) => {
            let text = format!("({bytes} bytes of output were lost)\n");
            Line::Stderr { text, timestamp: timestamp() }
        }
        ExecutionEvent::End => Line::EndOfExecution,
    }
}

/// The process of the context ended: its code ended it, or another call restarted it.
fn died(error: &ToolboxError) -> Line {
    Line::Error {
        name: "ContextEnded".to_owned(),
        value: error.to_string(),
        traceback: "The context ended before the code did. It starts anew with the next execution."
            .to_owned(),
    }
}

/// COMPAT(e2b): for Java each line end is an output of its own.
fn lines_of_java(text: &str) -> Vec<Line> {
    let ends = text.split_inclusive('\n').flat_map(|line| match line.strip_suffix('\n') {
        Some("") | None => vec![line],
        Some(bare) => vec![bare, "\n"],
    });
    ends.map(|piece| line_of(ExecutionEvent::Stdout(piece.to_owned()))).collect()
}

fn written(lines: &[Line]) -> Bytes {
    let mut text = Vec::new();
    for line in lines {
        serde_json::to_writer(&mut text, line).expect("texts, numbers and JSON always serialise");
        text.push(b'\n');
    }
    text.into()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(event: ExecutionEvent) -> Value {
        let bytes = written(&[line_of(event)]);
        assert!(bytes.ends_with(b"\n") && !bytes[..bytes.len() - 1].contains(&b'\n'));
        serde_json::from_slice(&bytes).unwrap()
    }

    #[test]
    fn lines_are_what_the_sdks_read() {
        assert_eq!(
            read(ExecutionEvent::Started { count: 3 }),
            json!({ "type": "number_of_executions", "execution_count": 3 })
        );
        let out = read(ExecutionEvent::Stdout("a\nb".into()));
        assert_eq!((out["type"].as_str(), out["text"].as_str()), (Some("stdout"), Some("a\nb")));
        assert!(out["timestamp"].as_str().unwrap().ends_with('Z'));
        let error = ExecutionEvent::Error { name: "E".into(), value: "v".into(), traceback: "t".into() };
        assert_eq!(read(error), json!({ "type": "error", "name": "E", "value": "v", "traceback": "t" }));
        assert_eq!(
            serde_json::from_slice::<Value>(&written(&[Line::Keepalive])).unwrap(),
            json!({ "type": "keepalive" })
        );
        assert_eq!(read(ExecutionEvent::End), json!({ "type": "end_of_execution" }));
    }

    #[test]
    fn a_result_has_the_forms_that_it_has_and_no_more() {
        let rich = Rich {
            is_main: true,
            text: Some("'hi'".into()),
            chart: Some(json!({ "type": "line" })),
            extra: [("x/y".to_owned(), json!([1]))].into(),
            ..Rich::default()
        };
        assert_eq!(
            read(ExecutionEvent::Result(Box::new(rich))),
            json!({
                "type": "result", "text": "hi", "chart": { "type": "line" }, "is_main_result": true,
                "extra": { "x/y": [1] },
            })
        );
    }

    #[test]
    fn the_end_of_a_line_of_java_is_an_output_of_its_own() {
        let told: Vec<String> = lines_of_java("a\nb\n\nc")
            .into_iter()
            .map(|line| match line {
                Line::Stdout { text, .. } => text,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(told, ["a", "\n", "b", "\n", "\n", "c"]);
    }

    #[test]
    fn quotes_go_in_pairs() {
        for (quoted, bare) in
            [("'a'", "a"), ("\"it's\"", "it's"), ("'a", "'a"), ("a", "a"), ("'", "'"), ("''", ""), ("1", "1")]
        {
            assert_eq!(unquoted(quoted.to_owned()), bare);
        }
    }
}
