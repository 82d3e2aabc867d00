//! MCP on stdin and stdout: every request becomes a POST to `/mcp` of the server, which has the tools.
//!
//! ```text
//! stdin ─ line ─► request ─► task: POST /mcp ─► messages ─► stdout, one line each
//!                 notifications/cancelled ─► ends the task; the server sees the closed connection and ends the command
//! end of stdin ─► tasks end, the sandbox of this process is deleted
//! ```
//!
//! This process is one client for the server: a random name in a header keeps its sandbox apart from those of other processes.
//! A client that does not read its answers stops its own requests and nothing else: a thread writes, and signals are still obeyed.

use std::borrow::Cow;
use std::collections::HashMap;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};

use crate::client::Client;
use crate::commands::CommandContext;
use crate::failure::Failure;
use crate::out::Out;

/// LIMIT: bytes of one message; the server accepts less.
const LINE_MAX: u64 = 16 << 20;
/// LIMIT: bytes of a header that repeats a part of a message; the server refuses a request with longer ones.
const HEADER_MAX: usize = 4 << 10;
/// LIMIT: requests at once.
const REQUESTS_MAX: usize = 256;
/// LIMIT: requests and answers that wait. Beyond it no further line is read.
const WAITING_MAX: usize = 2 * REQUESTS_MAX;
/// LIMIT: messages that wait for the thread that writes.
const LINES_MAX: usize = 16;
/// How long answers may still take when the client has closed stdin.
const LAST_ANSWERS: Duration = Duration::from_secs(1);
/// How long the sandbox of this process may take to be deleted. Clients wait about two seconds before they send a signal.
const CLEANUP: Duration = Duration::from_secs(5);
/// The header that names this process.
const PROCESS: &str = "atoll-mcp-process";

const PARSE_ERROR: i32 = -32_700;
const INVALID_REQUEST: i32 = -32_600;
const INVALID_PARAMS: i32 = -32_602;
const INTERNAL_ERROR: i32 = -32_603;

/// Serves until stdin ends or a signal comes.
pub(super) async fn run(context: &CommandContext) -> Result<(), Failure> {
    let mut bridge = StdioBridge::new(context.client()?, context.out)?;
    let served = bridge.serve().await;
    bridge.end().await;
    served
}

/// The rest of a line, or as much of it as a message may have.
async fn read_line(stdin: &mut BufReader<tokio::io::Stdin>, line: &mut Vec<u8>) -> std::io::Result<usize> {
    stdin.take(LINE_MAX).read_until(b'\n', line).await
}

/// Writes messages on a thread of its own: a full pipe must not keep this process from its signals.
struct LineWriter {
    lines: mpsc::Sender<String>,
    /// Completed when all lines are written, or the reader is gone.
    ended: oneshot::Receiver<()>,
}

impl LineWriter {
    fn start(out: Out) -> Self {
        let (lines, mut waiting) = mpsc::channel::<String>(LINES_MAX);
        let (done, ended) = oneshot::channel();
        std::thread::spawn(move || {
            while let Some(line) = waiting.blocking_recv() {
                if out.line(&line).is_err() {
                    break;
                }
            }
            // Senders find the channel closed.
            drop(waiting);
            let _ = done.send(());
        });
        Self { lines, ended }
    }
}

async fn write(lines: &mpsc::Sender<String>, line: String) -> Result<(), Failure> {
    lines.send(line).await.map_err(|_| Failure::reader_gone())
}

struct StdioBridge {
    client: Client,
    writer: LineWriter,
    process: String,
    tasks: JoinSet<Forwarded>,
    /// Running requests by their id.
    running: HashMap<String, AbortHandle>,
    /// A tool was called, so there may be a sandbox.
    called_tool: bool,
}

/// A request whose answer was written, or why it could not be.
struct Forwarded {
    /// `None`: the server was not asked.
    id: Option<String>,
    written: Result<(), Failure>,
}

/// A message of the client, as far as the bridge looks into it.
#[derive(Deserialize)]
struct ClientLine {
    id: Option<Box<RawValue>>,
    method: Option<String>,
    params: Option<LineParams>,
}

#[derive(Deserialize, Default)]
struct LineParams {
    #[serde(rename = "_meta")]
    meta: Option<LineMeta>,
    name: Option<Box<RawValue>>,
    uri: Option<Box<RawValue>>,
    #[serde(rename = "requestId")]
    request_id: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
struct LineMeta {
    #[serde(rename = "io.modelcontextprotocol/protocolVersion")]
    version: Option<Box<RawValue>>,
}

impl StdioBridge {
    fn new(client: Client, out: Out) -> Result<Self, Failure> {
        let mut random = [0_u8; 16];
        getrandom::fill(&mut random)
            .map_err(|e| Failure::new("internal", format!("the machine has no random bytes: {e}")))?;
        let process = hex::encode(random);
        let (writer, tasks) = (LineWriter::start(out), JoinSet::new());
        Ok(Self { client, writer, process, tasks, running: HashMap::new(), called_tool: false })
    }

    /// Takes lines and writes answers.
    async fn serve(&mut self) -> Result<(), Failure> {
        let broken = |e: std::io::Error| Failure::new("internal", format!("signals cannot be watched: {e}"));
        let mut terminate = signal(SignalKind::terminate()).map_err(broken)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(broken)?;
        let (mut stdin, mut line) = (BufReader::new(tokio::io::stdin()), Vec::new());
        loop {
            tokio::select! {
                // Cancel-safe: the part of a line that was read stays in `line`.
                read = read_line(&mut stdin, &mut line), if self.tasks.len() < WAITING_MAX => match read {
                    Ok(0) | Err(_) => return Ok(()),
                    Ok(_) if line.last() != Some(&b'\n') && line.len() as u64 >= LINE_MAX => {
                        return Err(Failure::new("usage", "a message on stdin is longer than 16 MiB"));
                    }
                    Ok(_) => {
                        self.receive(&line);
                        line.clear();
                    }
                },
                Some(done) = self.tasks.join_next() => self.finish(done)?,
                _ = terminate.recv() => return Ok(()),
                _ = interrupt.recv() => return Ok(()),
            }
        }
    }

    /// Takes one line of stdin.
    fn receive(&mut self, line: &[u8]) {
        let text = String::from_utf8_lossy(line);
        let text = text.trim();
        if text.is_empty() {
            return;
        }
        let Ok(message) = serde_json::from_str::<ClientLine>(text) else {
            // The server would refuse it too, but only here there is a place for an answer without an id.
            let what =
                if serde_json::from_str::<&RawValue>(text).is_ok() { INVALID_REQUEST } else { PARSE_ERROR };
            return self.answer(failed(None, what, "this line is not a message of MCP"));
        };
        match (message.id, message.method) {
            (Some(id), Some(method)) => {
                let headers = headers(&self.process, &method, message.params.unwrap_or_default());
                if headers.iter().any(|(_, text)| text.len() > HEADER_MAX) {
                    let why = format!("the method, name or URI is longer than {HEADER_MAX} bytes");
                    return self.answer(failed(Some(&id), INVALID_PARAMS, &why));
                }
                self.called_tool |= method == "tools/call";
                self.forward(id, text.to_owned(), headers);
            }
            // Nothing else that a client notifies of concerns a server without sessions.
            (None, Some(method)) if method == "notifications/cancelled" => {
                let cancelled = message.params.and_then(|params| params.request_id);
                if let Some(task) = cancelled.and_then(|id| self.running.remove(id.get())) {
                    task.abort();
                }
            }
            _ => {}
        }
    }

    /// Answers without the server.
    fn answer(&mut self, line: String) {
        let lines = self.writer.lines.clone();
        self.tasks.spawn(async move { Forwarded { id: None, written: write(&lines, line).await } });
    }

    fn forward(&mut self, id: Box<RawValue>, message: String, headers: Vec<(&'static str, String)>) {
        if self.running.len() >= REQUESTS_MAX {
            return self.answer(failed(Some(&id), INTERNAL_ERROR, "too many requests at once"));
        }
        let (client, lines, key) = (self.client.clone(), self.writer.lines.clone(), id.get().to_owned());
        let task = self.tasks.spawn(async move {
            let written = match post(&client, message, headers, &lines, &id).await {
                Ok(()) => Ok(()),
                Err(failure) if failure.is("broken_pipe") => Err(failure),
                Err(failure) => write(&lines, failed(Some(&id), INTERNAL_ERROR, &sentence(&failure))).await,
            };
            Forwarded { id: Some(id.get().to_owned()), written }
        });
        self.running.insert(key, task);
    }

    fn finish(&mut self, done: Result<Forwarded, tokio::task::JoinError>) -> Result<(), Failure> {
        // A task that was cancelled has left the map already.
        let Ok(done) = done else { return Ok(()) };
        if let Some(id) = &done.id {
            self.running.remove(id);
        }
        done.written
    }

    /// Ends what runs, and deletes the sandbox of this process.
    async fn end(mut self) {
        let last = async { while self.tasks.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(LAST_ANSWERS, last).await;
        self.tasks.shutdown().await;
        let LineWriter { lines, ended } = self.writer;
        drop(lines);
        let _ = tokio::time::timeout(LAST_ANSWERS, ended).await;
        if !self.called_tool {
            return;
        }
        let message = r#"{"jsonrpc":"2.0","id":0,"method":"tools/call","params":{"name":"sandbox_delete"}}"#;
        let deleting = async {
            let headers = [(PROCESS, self.process.clone())];
            if let Ok(mut answer) = self.client.mcp(message.to_owned(), headers).await {
                while let Ok(Some(_)) = answer.messages.next().await {}
            }
        };
        // If it fails, the server deletes the sandbox when it has been idle for long.
        let _ = tokio::time::timeout(CLEANUP, deleting).await;
    }
}

/// Sends a request and writes the messages that the server answers.
async fn post(
    client: &Client,
    message: String,
    headers: Vec<(&'static str, String)>,
    lines: &mpsc::Sender<String>,
    id: &RawValue,
) -> Result<(), Failure> {
    let mut answer = client.mcp(message, headers).await?;
    let mut count = 0;
    while let Some(event) = answer.messages.next().await? {
        count += 1;
        match refusal(answer.status, &event.data) {
            Some(refused) => write(lines, refused.with_id(id)).await?,
            None => write(lines, event.data).await?,
        }
    }
    match count {
        0 => {
            let why = format!("{} answered {} without a message", client.address, answer.status);
            Err(Failure::new("bad_answer", why)
                .hint("is this the address of an Atoll server that knows MCP?"))
        }
        _ => Ok(()),
    }
}

/// An answer to a request that the server refused before it read its id, such as one with a wrong key.
#[derive(Deserialize)]
struct RefusedLine {
    #[serde(rename = "id")]
    _null: (),
    error: Box<RawValue>,
}

fn refusal(status: u16, text: &str) -> Option<RefusedLine> {
    if (200..300).contains(&status) {
        return None;
    }
    serde_json::from_str(text).ok()
}

impl RefusedLine {
    fn with_id(&self, id: &RawValue) -> String {
        format!(r#"{{"jsonrpc":"2.0","id":{},"error":{}}}"#, id.get(), self.error.get())
    }
}

/// The headers that repeat parts of a message, which revisions since 2026-07-28 require.
fn headers(process: &str, method: &str, params: LineParams) -> Vec<(&'static str, String)> {
    let mut headers = vec![(PROCESS, process.to_owned())];
    let version = params.meta.and_then(|meta| meta.version).and_then(|version| text_of(&version));
    let Some(version) = version else { return headers };
    headers.push(("mcp-protocol-version", header_text(&version).into_owned()));
    headers.push(("mcp-method", header_text(method).into_owned()));
    let name = match method {
        "tools/call" | "prompts/get" => params.name,
        "resources/read" => params.uri,
        _ => None,
    };
    if let Some(name) = name.and_then(|name| text_of(&name)) {
        headers.push(("mcp-name", header_text(&name).into_owned()));
    }
    headers
}

fn text_of(raw: &RawValue) -> Option<String> {
    serde_json::from_str(raw.get()).ok()
}

/// A text as it may stand in a header: in base64 unless it is printable ASCII.
fn header_text(text: &str) -> Cow<'_, str> {
    let is_plain = text.bytes().all(|b| (b' '..=b'~').contains(&b)) && text.trim() == text;
    match is_plain && !text.starts_with("=?base64?") {
        true => Cow::Borrowed(text),
        false => Cow::Owned(format!("=?base64?{}?=", STANDARD.encode(text))),
    }
}

#[derive(Serialize)]
struct FailedLine<'a> {
    jsonrpc: &'static str,
    id: Option<&'a RawValue>,
    error: LineError<'a>,
}

#[derive(Serialize)]
struct LineError<'a> {
    code: i32,
    message: &'a str,
}

fn failed(id: Option<&RawValue>, code: i32, message: &str) -> String {
    let line = FailedLine { jsonrpc: "2.0", id, error: LineError { code, message } };
    serde_json::to_string(&line).unwrap_or_default()
}

fn sentence(failure: &Failure) -> String {
    match &failure.hint {
        Some(hint) => format!("{} ({hint})", failure.message),
        None => failure.message.clone(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn headers_of(line: &str) -> Vec<(&'static str, String)> {
        let message: ClientLine = serde_json::from_str(line).unwrap();
        headers("p", &message.method.unwrap(), message.params.unwrap_or_default())
    }

    #[test]
    fn a_message_that_describes_itself_is_repeated_in_headers() {
        let meta = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}"#;
        let line = format!(r#"{{"id":1,"method":"tools/call","params":{{"name":"shell",{meta}}}}}"#);
        let said = [
            (PROCESS, "p"),
            ("mcp-protocol-version", "2026-07-28"),
            ("mcp-method", "tools/call"),
            ("mcp-name", "shell"),
        ];
        assert_eq!(headers_of(&line), said.map(|(name, value)| (name, value.to_owned())));
        let line = format!(r#"{{"id":1,"method":"resources/read","params":{{"uri":"é",{meta}}}}}"#);
        assert_eq!(headers_of(&line).last().unwrap().1, "=?base64?w6k=?=");
        let old = r#"{"id":1,"method":"tools/call","params":{"name":"shell"}}"#;
        assert_eq!(headers_of(old), [(PROCESS, "p".to_owned())]);
    }

    #[test]
    fn a_refusal_without_an_id_gets_that_of_the_request() {
        let text = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"no"}}"#;
        let id: Box<RawValue> = serde_json::from_str("\"7\"").unwrap();
        let line = refusal(401, text).unwrap().with_id(&id);
        assert_eq!(line, r#"{"jsonrpc":"2.0","id":"7","error":{"code":-32600,"message":"no"}}"#);
        assert!(refusal(200, text).is_none());
        assert!(refusal(404, r#"{"jsonrpc":"2.0","id":3,"error":{}}"#).is_none());
    }
}
