//! A conversation with a running server: attaches at the end of its output, sends a request, and reads until the
//! answer.

use std::sync::Arc;

use atoll_agentapi::{ProcessEvent, ProcessStream, Session};
use serde_json::{Value, json};

use super::wire::{Frames, frame};
use crate::error::said;
use crate::{Toolbox, ToolboxError};

/// LIMIT: bytes of a server's log output; it is kept for error messages.
const WORDS_MAX: usize = 4 << 10;

pub(super) struct LspConnection {
    sandbox: Arc<dyn Session>,
    pid: u32,
    stream: ProcessStream,
    frames: Frames,
    words: Vec<u8>,
}

impl LspConnection {
    pub(super) fn over(toolbox: &Toolbox, pid: u32, stream: ProcessStream) -> Self {
        let (sandbox, frames) = (Arc::clone(&toolbox.sandbox), Frames::new(&toolbox.account));
        Self { sandbox, pid, stream, frames, words: Vec::new() }
    }

    pub(super) async fn attach(toolbox: &Toolbox, pid: u32) -> Result<Self, ToolboxError> {
        // A position after all output means the end; and the process waits for a reader with a position, so no output
        // is lost.
        let stream = toolbox.sandbox.attach_from(pid, u64::MAX).await.map_err(ToolboxError::process)?;
        Ok(Self::over(toolbox, pid, stream))
    }

    pub(super) const fn pid(&self) -> u32 {
        self.pid
    }

    /// The log output of the server.
    pub(super) fn words(&self) -> String {
        String::from_utf8_lossy(&self.words).into_owned()
    }

    /// Sends a notification.
    pub(super) async fn tell(&mut self, method: &str, params: Value) -> Result<(), ToolboxError> {
        let message = match params {
            Value::Null => json!({ "jsonrpc": "2.0", "method": method }),
            params => json!({ "jsonrpc": "2.0", "method": method, "params": params }),
        };
        self.send(&message).await
    }

    /// Sends a request and waits for the answer.
    pub(super) async fn ask(&mut self, method: &str, params: Value) -> Result<Value, ToolboxError> {
        let id = crate::random_id()?;
        let mut message = json!({ "jsonrpc": "2.0", "id": id, "method": method });
        if !params.is_null() {
            message["params"] = params;
        }
        self.send(&message).await?;
        loop {
            while let Some(message) = self.frames.next()? {
                if message.get("method").is_some() {
                    self.answer(&message).await?;
                } else if message.get("id").and_then(Value::as_str) == Some(&id) {
                    return outcome(method, message);
                }
            }
            self.read().await?;
        }
    }

    /// Waits until the server is gone.
    pub(super) async fn end(&mut self) {
        while self.read().await.is_ok() {
            self.frames.clear();
        }
    }

    async fn read(&mut self) -> Result<(), ToolboxError> {
        match self.stream.next().await {
            Some(Ok(ProcessEvent::Stdout(data) | ProcessEvent::Pty(data))) => self.frames.feed(&data)?,
            Some(Ok(ProcessEvent::Stderr(data))) => {
                self.words.extend_from_slice(&data[..data.len().min(WORDS_MAX)]);
                self.words.drain(..self.words.len().saturating_sub(WORDS_MAX));
            }
            Some(Ok(ProcessEvent::Dropped(_))) => {
                return Err(ToolboxError::Unreadable {
                    tool: "the language server",
                    why: "a part is missing",
                });
            }
            Some(Ok(ProcessEvent::Exit(_))) | None => {
                return Err(ToolboxError::Ended("the language server has ended".into()));
            }
            Some(Err(error)) => return Err(ToolboxError::process(error)),
        }
        Ok(())
    }

    /// A server may send requests too; some wait for an answer.
    async fn answer(&mut self, asked: &Value) -> Result<(), ToolboxError> {
        let Some(id) = asked.get("id") else { return Ok(()) };
        let result = match asked.get("method").and_then(Value::as_str) {
            Some("workspace/configuration") => {
                let items = asked.pointer("/params/items").and_then(Value::as_array).map_or(0, Vec::len);
                Value::Array(vec![Value::Null; items.min(1_000)])
            }
            _ => Value::Null,
        };
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "result": result })).await
    }

    async fn send(&self, message: &Value) -> Result<(), ToolboxError> {
        self.sandbox.send_stdin(self.pid, frame(message).as_ref()).await.map_err(ToolboxError::process)
    }
}

fn outcome(method: &str, mut message: Value) -> Result<Value, ToolboxError> {
    match message.get("error") {
        // A method that a server does not support has no results.
        Some(error) if error.get("code").and_then(Value::as_i64) == Some(-32601) => Ok(Value::Null),
        Some(error) if !error.is_null() => {
            let words = error.get("message").and_then(Value::as_str).unwrap_or("no reason");
            Err(ToolboxError::Conflict(format!("the language server refused {method}: {}", said(words))))
        }
        _ => Ok(message.get_mut("result").map_or(Value::Null, Value::take)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_a_result_or_a_refusal() {
        assert_eq!(outcome("m", json!({"id": "a", "result": [1]})).unwrap(), json!([1]));
        assert_eq!(outcome("m", json!({"id": "a"})).unwrap(), Value::Null);
        assert_eq!(outcome("m", json!({"error": {"code": -32601}})).unwrap(), Value::Null);
        assert!(outcome("m", json!({"error": {"code": 1, "message": "no"}})).is_err());
    }
}
