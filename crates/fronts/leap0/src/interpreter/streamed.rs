//! An execution as server-sent events: `{"type": 0 stdout | 1 stderr | 2 exit | 3 error, "data", "code"}`.

use std::time::Duration;

use atoll_toolbox::{Execution, ExecutionEvent, ToolboxError};
use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use serde::Serialize;

use crate::filesystem::AwakeFiles;

/// LIMIT: how long the removal of a context may take after the client has disconnected.
const FAREWELL: Duration = Duration::from_secs(10);

#[derive(Debug, Serialize)]
struct Event {
    #[serde(rename = "type")]
    kind: u8,
    data: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<i32>,
}

/// The event that the SDK raises as an exception.
#[derive(Debug, Serialize)]
struct Broken {
    envelope: &'static str,
    error: String,
}

const STDOUT: u8 = 0;
const STDERR: u8 = 1;
const EXIT: u8 = 2;
const ERROR: u8 = 3;

/// The response. `own` is the context that was created for it and ends with it.
pub(super) fn answer(awake: AwakeFiles, execution: Execution, own: Option<String>) -> Response {
    let running =
        Running { execution: Some(execution), own: Own { awake: Some(awake), context: own }, code: 0 };
    let events = futures::stream::unfold(running, |mut running| async move {
        let event = running.next().await?;
        Some((Ok::<_, std::convert::Infallible>(event), running))
    });
    let mut response = Response::new(Body::from_stream(events));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

struct Running {
    /// `None` after its end.
    execution: Option<Execution>,
    own: Own,
    code: i32,
}

impl Running {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            let event = match self.execution.as_mut()?.next().await {
                Some(event) => event,
                None => Ok(ExecutionEvent::End),
            };
            let (kind, data) = match event {
                Ok(ExecutionEvent::Started { .. }) => continue,
                Ok(ExecutionEvent::Stdout(text)) => (STDOUT, text),
                Ok(ExecutionEvent::Stderr(text)) => (STDERR, text),
                Ok(ExecutionEvent::Result(rich)) => match rich.text {
                    // These events have no type for a value, so it is sent as output.
                    Some(text) => (STDOUT, text + "\n"),
                    None => continue,
                },
                Ok(ExecutionEvent::Error { name, value, traceback }) => {
                    self.code = 1;
                    (ERROR, if traceback.is_empty() { format!("{name}: {value}") } else { traceback })
                }
                Ok(ExecutionEvent::TimedOut) => {
                    self.code = 124;
                    (ERROR, "the execution took longer than its timeout and was interrupted".to_owned())
                }
                Ok(ExecutionEvent::Dropped(bytes)) => {
                    (STDERR, format!("({bytes} bytes of output were lost)\n"))
                }
                Ok(ExecutionEvent::End) => {
                    self.execution = None;
                    self.own.end().await;
                    return Some(frame(&Event { kind: EXIT, data: String::new(), code: Some(self.code) }));
                }
                Err(error) => {
                    self.execution = None;
                    self.own.end().await;
                    return Some(frame(&Broken { envelope: "error", error: error.to_string() }));
                }
            };
            return Some(frame(&Event { kind, data, code: None }));
        }
    }
}

fn frame(event: &impl Serialize) -> Bytes {
    let data = serde_json::to_string(event).expect("texts and numbers always serialise");
    Bytes::from(format!("data: {data}\n\n"))
}

/// A context that belongs to one execution, and the sandbox that is awake for it.
struct Own {
    awake: Option<AwakeFiles>,
    context: Option<String>,
}

impl Own {
    async fn end(&mut self) {
        let Some((awake, context)) = self.awake.take().zip(self.context.take()) else { return };
        if let Err(error) = remove(&awake, &context).await {
            tracing::debug!(%error, "the context of one execution could not be removed");
        }
    }
}

async fn remove(awake: &AwakeFiles, context: &str) -> Result<(), ToolboxError> {
    awake.toolbox.interpreter().delete_context(context).await
}

/// The client disconnected in the middle: the context must be ended here.
impl Drop for Own {
    fn drop(&mut self) {
        let Some((awake, context)) = self.awake.take().zip(self.context.take()) else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        // The time is bounded. If the removal fails, the context lives until the sandbox ends, which has no other
        // effect.
        runtime.spawn(async move {
            let _ = tokio::time::timeout(FAREWELL, remove(&awake, &context)).await;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_whatever_it_holds() {
        let event = frame(&Event { kind: STDOUT, data: "a\nb\r\n\n".to_owned(), code: None });
        assert_eq!(event, "data: {\"type\":0,\"data\":\"a\\nb\\r\\n\\n\"}\n\n");
        let exit = frame(&Event { kind: EXIT, data: String::new(), code: Some(0) });
        assert_eq!(exit, "data: {\"type\":2,\"data\":\"\",\"code\":0}\n\n");
    }
}
