//! The toolbox of one object: the calls of Daytona's daemon in a sandbox that this provider makes.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use atoll_remote::{
    CallError, Measurement, Repeat, UsageMeter, VendorBody, VendorCall, VendorClient, VendorStream,
    parsed_answer, unreadable_answer,
};
use bytes::Bytes;
use futures::StreamExt;
use http::{HeaderName, HeaderValue, Method};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::api::PortLink;
use crate::scripts;
use crate::terminal::TerminalInput;

/// LIMIT: a script that waits for nothing.
pub(crate) const SCRIPT_WITHIN: Duration = Duration::from_secs(30);
/// LIMIT: silence of a file that is transferred.
const TRANSFER_SILENCE: Duration = Duration::from_secs(60);
/// LIMIT: the whole transfer of an upload.
const UPLOAD_WITHIN: Duration = Duration::from_secs(30 * 60);
/// LIMIT: bytes of a command line; the kernel takes 128 KiB for one argument.
const LINE_MAX: usize = 120 << 10;
/// Ended processes, or bytes of their output, whose files are removed together: that costs the next command a millisecond.
const FORGOTTEN_TOGETHER: (usize, u64) = (16, 1 << 20);
/// How long it is remembered in the sandbox that a call was made.
const MARKS_FOR: Duration = Duration::from_secs(10 * 60);
/// LIMIT: calls that are remembered so.
const MARKS_MAX: usize = 4_096;
/// LIMIT: processes and links that are remembered.
const REMEMBERED_MAX: usize = 512;

/// Access to one object while it runs. Contains tokens.
pub(crate) struct DaytonaAccess {
    pub(crate) client: VendorClient,
    pub(crate) id: String,
    pub(crate) base: String,
    headers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) meter: UsageMeter,
    /// Processes by process id.
    known: Mutex<HashMap<u32, KnownProcess>>,
    /// Files of processes whose end was read: a later start removes them.
    ended: Mutex<EndedFiles>,
    links: Mutex<HashMap<u16, PortLink>>,
    /// Input to terminals that are followed.
    pub(crate) terminals: Mutex<HashMap<u32, mpsc::Sender<TerminalInput>>>,
}

impl std::fmt::Debug for DaytonaAccess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DaytonaAccess").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A process that was started here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KnownProcess {
    /// The name of its files, or of its terminal.
    pub(crate) token: String,
    pub(crate) is_terminal: bool,
}

/// A file, as the daemon describes it.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FileInfo {
    pub(crate) name: String,
    pub(crate) is_dir: bool,
    pub(crate) size: u64,
    /// In the form of `ls`.
    #[serde(default)]
    pub(crate) mode: String,
    /// Octal digits.
    #[serde(default)]
    pub(crate) permissions: String,
    #[serde(default)]
    pub(crate) owner: String,
    #[serde(default)]
    pub(crate) group: String,
    #[serde(default)]
    pub(crate) modified_at: Option<String>,
}

/// How a line ended, and what it printed.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Executed {
    #[serde(default)]
    pub(crate) exit_code: i32,
    pub(crate) result: String,
}

/// A script to run.
pub(crate) struct ScriptRun<'a> {
    pub(crate) script: &'a str,
    pub(crate) arguments: Vec<&'a str>,
    pub(crate) repeat: Repeat,
    /// The deadline of one attempt.
    pub(crate) attempt_within: Duration,
}

impl<'a> ScriptRun<'a> {
    /// A script that may be repeated.
    pub(crate) fn new(script: &'a str, arguments: Vec<&'a str>) -> Self {
        let repeat = Repeat::Always;
        Self { script, arguments, repeat, attempt_within: SCRIPT_WITHIN }
    }
}

fn query(path: &str) -> String {
    utf8_percent_encode(path, NON_ALPHANUMERIC).to_string()
}

impl DaytonaAccess {
    pub(crate) fn new(
        client: VendorClient,
        base: String,
        id: String,
        headers: Vec<(HeaderName, HeaderValue)>,
    ) -> Self {
        Self {
            client,
            id,
            base,
            headers,
            meter: UsageMeter::default(),
            known: Mutex::default(),
            ended: Mutex::default(),
            links: Mutex::default(),
            terminals: Mutex::default(),
        }
    }

    /// Headers beside the key.
    pub(crate) fn headers(&self) -> Vec<(HeaderName, HeaderValue)> {
        self.headers.clone()
    }

    fn request(&self, method: Method, path: &str) -> VendorCall {
        let path = format!("/{}{path}", self.id);
        VendorCall { headers: self.headers(), ..VendorCall::new(method, path) }
    }

    /// Runs a script in the sandbox; its output. A status other than 0 is an error with what it said.
    pub(crate) async fn run(&self, run: ScriptRun<'_>) -> Result<String, CallError> {
        let line = scripts::line(run.script, run.arguments);
        self.run_line(&line, run.repeat, run.attempt_within).await
    }

    /// As [`Self::run`], for a whole line.
    pub(crate) async fn run_line(
        &self,
        line: &str,
        repeat: Repeat,
        attempt_within: Duration,
    ) -> Result<String, CallError> {
        let done = self.execute(line, repeat, attempt_within).await?;
        match done.exit_code {
            0 => Ok(done.result),
            _ => Err(self.failed(&done)),
        }
    }

    /// Runs a line in the shell of the sandbox.
    pub(crate) async fn execute(
        &self,
        line: &str,
        repeat: Repeat,
        attempt_within: Duration,
    ) -> Result<Executed, CallError> {
        if line.len() > LINE_MAX {
            let message = "the command, its arguments and its environment are too long".to_owned();
            return Err(CallError::Refused { status: 400, message });
        }
        let call =
            self.request(Method::POST, "/process/execute").body(json!({ "command": line, "cwd": "/" }));
        let call = VendorCall { repeat, attempt_within, within: attempt_within * 3, ..call };
        parsed_answer(&self.client.call(call).await?)
    }

    /// A script ended with an error.
    pub(crate) fn failed(&self, done: &Executed) -> CallError {
        let said = self.client.redacted(&done.result);
        CallError::Refused { status: 500, message: format!("a script ended with {}: {said}", done.exit_code) }
    }

    pub(crate) async fn stat(&self, path: &str) -> Result<FileInfo, CallError> {
        let call = self.request(Method::GET, &format!("/files/info?path={}", query(path)));
        parsed_answer(&self.client.call(call).await?)
    }

    pub(crate) async fn list(&self, path: &str) -> Result<Vec<FileInfo>, CallError> {
        let call = self.request(Method::GET, &format!("/files?path={}", query(path)));
        parsed_answer(&self.client.call(call).await?)
    }

    pub(crate) async fn make_folder(&self, path: &str, mode: u32) -> Result<(), CallError> {
        let path = format!("/files/folder?path={}&mode={mode:04o}", query(path));
        self.client.call(self.request(Method::POST, &path)).await.map(drop)
    }

    pub(crate) async fn remove(&self, path: &str) -> Result<(), CallError> {
        let path = format!("/files?path={}&recursive=true", query(path));
        self.client.call(self.request(Method::DELETE, &path)).await.map(drop)
    }

    pub(crate) async fn download(&self, path: &str) -> Result<VendorStream, CallError> {
        let call = self.request(Method::GET, &format!("/files/download?path={}", query(path)));
        let call = VendorCall { attempt_within: TRANSFER_SILENCE, within: TRANSFER_SILENCE, ..call };
        self.client.stream(call, None).await
    }

    /// Uploads a file; missing folders above it are made. A stream that breaks off leaves a part of it, or nothing.
    pub(crate) async fn upload(
        &self,
        path: &str,
        boundary: &str,
        content: atoll_agentapi::UploadStream,
    ) -> Result<(), CallError> {
        let head = format!(
            "--{boundary}\r\ncontent-disposition: form-data; name=\"files[0].path\"\r\n\r\n{path}\r\n--{boundary}\r\n\
             content-disposition: form-data; name=\"files[0].file\"; filename=\"file\"\r\n\
             content-type: application/octet-stream\r\n\r\n"
        );
        let end = format!("\r\n--{boundary}--\r\n");
        let whole = |text: String| futures::stream::once(async move { Ok(Bytes::from(text)) });
        let content = whole(head).chain(content).chain(whole(end)).boxed();
        let body = VendorBody { kind: format!("multipart/form-data; boundary={boundary}"), content };
        let call = self.request(Method::POST, "/files/bulk-upload");
        let call = VendorCall { attempt_within: TRANSFER_SILENCE, within: UPLOAD_WITHIN, ..call };
        let mut answer = self.client.stream(call, Some(body)).await?;
        while let Some(piece) = answer.content.next().await {
            piece?;
        }
        Ok(())
    }

    pub(crate) async fn measure(&self) -> Result<Measurement, CallError> {
        parsed_answer(&self.client.call(self.request(Method::GET, "/system/metrics")).await?)
    }

    pub(crate) async fn resize_terminal(&self, name: &str, cols: u16, rows: u16) -> Result<(), CallError> {
        let call = self.request(Method::POST, &format!("/process/pty/{name}/resize"));
        self.client.call(call.body(json!({ "cols": cols, "rows": rows }))).await.map(drop)
    }

    /// Ends a terminal with its processes.
    pub(crate) async fn remove_terminal(&self, name: &str) -> Result<(), CallError> {
        let call = self.request(Method::DELETE, &format!("/process/pty/{name}"));
        self.client.call(call).await.map(drop)
    }

    /// The way to a port, if it was asked for before.
    pub(crate) fn link(&self, port: u16) -> Option<PortLink> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner).get(&port).cloned()
    }

    pub(crate) fn remember_link(&self, port: u16, link: PortLink) {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        if links.len() < REMEMBERED_MAX {
            links.insert(port, link);
        }
    }

    pub(crate) fn known_process(&self, pid: u32) -> Option<KnownProcess> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).get(&pid).cloned()
    }

    pub(crate) fn remember_process(&self, pid: u32, process: KnownProcess) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that are not remembered are found in the sandbox.
        if known.len() >= REMEMBERED_MAX {
            known.clear();
        }
        known.insert(pid, process);
    }

    /// The end of a process was read, and so many bytes of output.
    pub(crate) fn forget_process(&self, pid: u32, token: &str, bytes: u64) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|known, process| *known != pid || process.token != token);
        drop(known);
        self.forget_files(token, bytes);
    }

    /// The files of a token, with so many bytes, are not needed any more.
    pub(crate) fn forget_files(&self, token: &str, bytes: u64) {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).add(token, bytes);
    }

    /// The files that are to be removed, as patterns.
    pub(crate) fn take_ended(&self) -> String {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// They were not removed.
    pub(crate) fn put_back_ended(&self, patterns: &str) {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        ended.patterns.extend(patterns.split_whitespace().map(str::to_owned));
        ended.patterns.truncate(REMEMBERED_MAX);
    }
}

/// Files of calls that are over. What they wrote is removed soon. The marks that a call was made stay for a while: the same call may
/// arrive once more, late, and must find them.
#[derive(Default)]
struct EndedFiles {
    patterns: Vec<String>,
    /// Bytes of output in them.
    bytes: u64,
    marks: VecDeque<(Instant, String)>,
}

impl EndedFiles {
    fn add(&mut self, token: &str, bytes: u64) {
        if self.patterns.len() < REMEMBERED_MAX {
            self.patterns.push(format!("{token}.[!ms]*"));
            self.bytes = self.bytes.saturating_add(bytes);
        }
        self.marks.push_back((Instant::now(), format!("{token}.*")));
        if self.marks.len() > MARKS_MAX {
            self.patterns.extend(self.marks.pop_front().map(|(_, pattern)| pattern));
        }
    }

    fn take(&mut self) -> String {
        let (many, large) = FORGOTTEN_TOGETHER;
        if self.patterns.len() < many && self.bytes < large {
            return String::new();
        }
        while let Some((_, mark)) = self.marks.pop_front_if(|(since, _)| since.elapsed() >= MARKS_FOR) {
            self.patterns.push(mark);
        }
        let count = self.patterns.len().min(64);
        self.bytes = 0;
        self.patterns.drain(..count).collect::<Vec<_>>().join(" ")
    }
}

/// An answer of a script that has only words.
pub(crate) fn word(output: &str) -> Result<&str, CallError> {
    output.lines().last().map(str::trim).ok_or_else(unreadable_answer)
}
