//! A client of envd, the agent in E2B's sandboxes, through the vendor's proxy.
//!
//! Atoll's agent serves the same services, so the transport, the frames and the limits are those of [`AgentClient`](super::AgentClient).
//! Only what envd has is called: `process.Process`, `filesystem.Filesystem` and `/files`.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use buffa::MessageField;
use bytes::Bytes;
use futures::Stream;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, header};
use tokio::io::{AsyncRead, AsyncWrite};

use super::files::{Entry, EntryKind, READ_SILENCE, Range, files_uri, number, range_header, upload};
use super::liveness::Patience;
use super::process::{
    ExitStatus, INPUT_PIECE, ProcessEvent, ProcessInfo, ProcessSource, ProcessStream, StartProcess, Started,
    TerminalSize, selector,
};
use super::rpc::{Frames, RpcLink, accept, basic_user};
use super::transport::{BodyReader, Transport, TransportBody, full};
use super::{AgentToken, TREE_LIMIT, header_of};
use crate::error::{AgentError, RpcCode};
use crate::proto::filesystem::{self as files, FileType};
use crate::proto::process::{self as wire, process_event::EndEvent};

/// LIMIT: an answer over the internet, with the wake of a busy sandbox.
const CALL_LIMIT: Duration = Duration::from_secs(30);
/// How long a stream may be silent unless the caller says otherwise.
const SILENCE_LIMIT: Duration = Duration::from_secs(90);
/// The owner of a file whose name is all that envd tells: the kernel's own number for a user that it cannot show.
const UNKNOWN_ID: u32 = 65_534;
const SIGKILL: i32 = 9;

/// Where requests for one sandbox go: the host that they name, and headers that the vendor's proxy reads.
#[derive(Clone)]
pub struct EnvdAddress {
    /// The value of `Host`.
    pub host: String,
    /// Headers for the vendor's proxy.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The sandbox's own token, where it has one.
    pub token: Option<AgentToken>,
}

/// A client of the envd of one sandbox. Cloning is cheap and shares the connections.
#[derive(Clone)]
pub struct EnvdClient {
    transport: Arc<Transport>,
    headers: Arc<HeaderMap>,
    patience: Patience,
    silence: Duration,
}

impl std::fmt::Debug for EnvdClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EnvdClient").finish_non_exhaustive()
    }
}

impl EnvdClient {
    /// A client that connects with `connect` whenever there is no idle connection.
    ///
    /// # Errors
    /// The host is not valid in a header.
    pub fn new<F, Fut, S>(connect: F, address: EnvdAddress) -> Result<Self, AgentError>
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = io::Result<S>> + Send + 'static,
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let mut headers: HeaderMap = address.headers.into_iter().collect();
        let host = HeaderValue::from_str(&address.host);
        headers.insert(header::HOST, host.map_err(|_| AgentError::Argument("the host cannot be sent"))?);
        if let Some(token) = &address.token {
            headers.insert(crate::TOKEN_HEADER, header_of(token));
        }
        Ok(Self {
            transport: Arc::new(Transport::new(connect)),
            headers: Arc::new(headers),
            patience: Patience::default(),
            silence: SILENCE_LIMIT,
        })
    }

    /// The same client, whose streams fail after this time without a byte. It asks for a sign of life four times as often.
    #[must_use]
    pub fn with_silence(&self, silence: Duration) -> Self {
        Self { silence, ..self.clone() }
    }

    fn request(
        &self,
        method: Method,
        uri: &str,
        user: Option<&str>,
    ) -> Result<Request<TransportBody>, AgentError> {
        let mut request = Request::builder()
            .method(method)
            .uri(uri)
            .body(full(Bytes::new()))
            .map_err(|_| AgentError::Argument("the request has no valid address"))?;
        *request.headers_mut() = (*self.headers).clone();
        if let Some(user) = user {
            request.headers_mut().insert(header::AUTHORIZATION, basic_user(user)?);
        }
        Ok(request)
    }

    fn link(&self) -> RpcLink<'_> {
        RpcLink { transport: &self.transport, patience: &self.patience }
    }

    async fn unary<Q: buffa::Message, A: buffa::Message>(
        &self,
        uri: &'static str,
        user: Option<&str>,
        limit: Duration,
        message: &Q,
    ) -> Result<A, AgentError> {
        let request = self.request(Method::POST, uri, user)?;
        self.link().unary(limit, uri, request, message).await
    }

    async fn follow<Q: buffa::Message>(
        &self,
        uri: &'static str,
        user: Option<&str>,
        timeout: Option<Duration>,
        message: &Q,
    ) -> Result<(Started, ProcessStream), AgentError> {
        let mut request = self.request(Method::POST, uri, user)?;
        let ping = HeaderValue::from((self.silence.as_secs() / 4).max(1));
        request.headers_mut().insert("keepalive-ping-interval", ping);
        if let Some(timeout) = timeout {
            let left = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX).max(1);
            request.headers_mut().insert("connect-timeout-ms", HeaderValue::from(left));
        }
        let mut frames = self.link().stream(CALL_LIMIT, uri, request, message).await?;
        frames.silence = self.silence;
        let mut process = EnvdProcess { frames, ended: false, has_timeout: timeout.is_some() };
        let started = self.patience.within(uri, CALL_LIMIT, process.started()).await?;
        Ok((started, ProcessStream::new(process)))
    }

    /// Starts a process; returns when it runs. `logged` and `detached` have no counterpart in envd.
    pub async fn start(&self, what: StartProcess) -> Result<(Started, ProcessStream), AgentError> {
        let config = wire::ProcessConfig {
            cmd: what.cmd,
            args: what.args,
            envs: what.envs.into_iter().collect(),
            cwd: Some(what.cwd).filter(|cwd| !cwd.is_empty()),
            ..Default::default()
        };
        let request = wire::StartRequest {
            process: MessageField::some(config),
            pty: what.pty.map(pty).into(),
            tag: Some(what.tag).filter(|tag| !tag.is_empty()),
            stdin: Some(what.stdin),
            ..Default::default()
        };
        self.follow("/process.Process/Start", what.user.as_deref(), what.timeout, &request).await
    }

    /// The output of a running process from now on.
    pub async fn connect(&self, pid: u32) -> Result<ProcessStream, AgentError> {
        let request = wire::ConnectRequest { process: selector(pid), ..Default::default() };
        self.follow("/process.Process/Connect", None, None, &request).await.map(|(_, stream)| stream)
    }

    /// Processes that envd started and that still run. Their users and start times are not told.
    pub async fn list(&self) -> Result<Vec<ProcessInfo>, AgentError> {
        let request = wire::ListRequest::default();
        let answer: wire::ListResponse =
            self.unary("/process.Process/List", None, CALL_LIMIT, &request).await?;
        Ok(answer.processes.into_iter().map(ProcessInfo::from).collect())
    }

    /// Writes to the standard input of a process, or with `terminal` to its terminal.
    pub async fn send_input(&self, pid: u32, data: &[u8], terminal: bool) -> Result<(), AgentError> {
        use wire::process_input::Input;
        for piece in data.chunks(INPUT_PIECE) {
            let input = if terminal { Input::Pty(piece.to_vec()) } else { Input::Stdin(piece.to_vec()) };
            let input = wire::ProcessInput { input: Some(input), ..Default::default() };
            let request = wire::SendInputRequest {
                process: selector(pid),
                input: MessageField::some(input),
                ..Default::default()
            };
            let uri = "/process.Process/SendInput";
            self.unary::<_, wire::SendInputResponse>(uri, None, CALL_LIMIT, &request).await?;
        }
        Ok(())
    }

    /// Closes the standard input of a process.
    pub async fn close_stdin(&self, pid: u32) -> Result<(), AgentError> {
        let request = wire::CloseStdinRequest { process: selector(pid), ..Default::default() };
        let closed = self.unary("/process.Process/CloseStdin", None, CALL_LIMIT, &request).await;
        closed.map(|_: wire::CloseStdinResponse| ())
    }

    /// Sends SIGKILL or SIGTERM to a process.
    pub async fn signal(&self, pid: u32, signal: wire::Signal) -> Result<(), AgentError> {
        let request =
            wire::SendSignalRequest { process: selector(pid), signal: signal.into(), ..Default::default() };
        let sent = self.unary("/process.Process/SendSignal", None, CALL_LIMIT, &request).await;
        sent.map(|_: wire::SendSignalResponse| ())
    }

    /// Sets the size of the terminal of a process.
    pub async fn resize(&self, pid: u32, size: TerminalSize) -> Result<(), AgentError> {
        let request = wire::UpdateRequest {
            process: selector(pid),
            pty: MessageField::some(pty(size)),
            ..Default::default()
        };
        let done = self.unary("/process.Process/Update", None, CALL_LIMIT, &request).await;
        done.map(|_: wire::UpdateResponse| ())
    }

    /// Describes a path.
    pub async fn stat(&self, path: &str, user: Option<&str>) -> Result<Entry, AgentError> {
        let request = files::StatRequest { path: path.to_owned(), ..Default::default() };
        let answer: files::StatResponse =
            self.unary("/filesystem.Filesystem/Stat", user, CALL_LIMIT, &request).await?;
        entry(answer.entry.into_option())
    }

    /// The entries of one folder.
    pub async fn list_dir(&self, path: &str, user: Option<&str>) -> Result<Vec<Entry>, AgentError> {
        let request = files::ListDirRequest { path: path.to_owned(), depth: 1, ..Default::default() };
        let answer: files::ListDirResponse =
            self.unary("/filesystem.Filesystem/ListDir", user, TREE_LIMIT, &request).await?;
        answer.entries.into_iter().map(|one| entry(Some(one))).collect()
    }

    /// Makes a folder and those above it. An existing one is `already_exists`.
    pub async fn make_dir(&self, path: &str, user: Option<&str>) -> Result<(), AgentError> {
        let request = files::MakeDirRequest { path: path.to_owned(), ..Default::default() };
        let made = self.unary("/filesystem.Filesystem/MakeDir", user, CALL_LIMIT, &request).await;
        made.map(|_: files::MakeDirResponse| ())
    }

    /// Renames; a file at the destination is replaced.
    pub async fn move_entry(&self, from: &str, to: &str, user: Option<&str>) -> Result<(), AgentError> {
        let request =
            files::MoveRequest { source: from.to_owned(), destination: to.to_owned(), ..Default::default() };
        let moved = self.unary("/filesystem.Filesystem/Move", user, TREE_LIMIT, &request).await;
        moved.map(|_: files::MoveResponse| ())
    }

    /// Removes a path and everything below it. Envd does not tell whether it was there.
    pub async fn remove(&self, path: &str, user: Option<&str>) -> Result<(), AgentError> {
        let request = files::RemoveRequest { path: path.to_owned(), ..Default::default() };
        let removed = self.unary("/filesystem.Filesystem/Remove", user, TREE_LIMIT, &request).await;
        removed.map(|_: files::RemoveResponse| ())
    }

    /// Opens a file, or a part of it that is not empty.
    pub async fn read_file(
        &self,
        path: &str,
        user: Option<&str>,
        range: Option<Range>,
    ) -> Result<EnvdFile, AgentError> {
        let uri = files_uri(path.as_bytes(), user, None);
        let mut request = self.request(Method::GET, &uri, None)?;
        if let Some(range) = range {
            request.headers_mut().insert(header::RANGE, range_header(range)?);
        }
        let call = async {
            let answer = self.transport.send(request).await?;
            let (status, headers) = (answer.head.status, answer.head.headers.clone());
            Ok((status, headers, accept(answer).await?))
        };
        let (status, headers, body) = self.patience.within("read_file", CALL_LIMIT, call).await?;
        if range.is_some() && status != StatusCode::PARTIAL_CONTENT {
            return Err(AgentError::Protocol("the agent did not send the requested range"));
        }
        let left = number(&headers, "content-length");
        let size = if range.is_some() { whole_size(&headers) } else { left };
        Ok(EnvdFile { size, body, left, patience: self.patience.clone() })
    }

    /// Writes a file. Envd may leave a part of it where the upload breaks off.
    pub async fn write_file<S>(
        &self,
        path: &str,
        user: Option<&str>,
        len: Option<u64>,
        content: S,
    ) -> Result<(), AgentError>
    where
        S: Stream<Item = io::Result<Bytes>> + Send + 'static,
    {
        let request = self.request(Method::POST, &files_uri(path.as_bytes(), user, None), None)?;
        upload(&self.transport, &self.patience, request, len, content).await
    }
}

fn pty(size: TerminalSize) -> wire::PTY {
    let size = wire::pty::Size { cols: size.cols.into(), rows: size.rows.into(), ..Default::default() };
    wire::PTY { size: MessageField::some(size), ..Default::default() }
}

impl From<wire::ProcessInfo> for ProcessInfo {
    fn from(info: wire::ProcessInfo) -> Self {
        let config = info.config.into_option().unwrap_or_default();
        Self {
            pid: info.pid,
            cmd: config.cmd,
            args: config.args,
            cwd: config.cwd.unwrap_or_default(),
            tag: info.tag.unwrap_or_default(),
            user: String::new(),
            started_at_ms: 0,
            pty: false,
            logged: false,
        }
    }
}

/// A file of a sandbox that is being read.
pub struct EnvdFile {
    /// Bytes of the whole file, where envd tells them.
    pub size: Option<u64>,
    body: BodyReader,
    /// Announced bytes that did not arrive yet.
    left: Option<u64>,
    patience: Patience,
}

impl EnvdFile {
    /// The bytes as a `Stream`; it ends after an error.
    pub fn into_stream(self) -> impl Stream<Item = Result<Bytes, AgentError>> + Send + 'static {
        futures::stream::unfold(Some(self), |file| async move {
            let mut file = file?;
            let item = file.next().await.transpose()?;
            let rest = item.is_ok().then_some(file);
            Some((item, rest))
        })
    }

    async fn next(&mut self) -> Result<Option<Bytes>, AgentError> {
        let chunk = self.patience.within("file", READ_SILENCE, self.body.chunk()).await?;
        match (&chunk, self.left) {
            (Some(chunk), Some(left)) => {
                let rest = left.checked_sub(chunk.len() as u64);
                self.left = Some(rest.ok_or(AgentError::Protocol("more bytes than announced"))?);
            }
            (None, Some(left)) if left > 0 => return Err(AgentError::Protocol("the file ended early")),
            (Some(_) | None, _) => {}
        }
        Ok(chunk)
    }
}

/// The part of `Content-Range` after the slash.
fn whole_size(headers: &HeaderMap) -> Option<u64> {
    let range = headers.get(header::CONTENT_RANGE)?.to_str().ok()?;
    range.rsplit_once('/')?.1.trim().parse().ok()
}

fn entry(found: Option<files::EntryInfo>) -> Result<Entry, AgentError> {
    let found = found.ok_or(AgentError::Protocol("an answer without its entry"))?;
    // A link is told by its target; the type is that of what it points to.
    let target = found.symlink_target.filter(|target| !target.is_empty());
    let kind = match (&target, found.r#type.as_known()) {
        (Some(_), _) | (None, Some(FileType::FILE_TYPE_SYMLINK)) => EntryKind::Symlink,
        (None, Some(FileType::FILE_TYPE_FILE)) => EntryKind::File,
        (None, Some(FileType::FILE_TYPE_DIRECTORY)) => EntryKind::Directory,
        (None, Some(FileType::FILE_TYPE_UNSPECIFIED) | None) => EntryKind::Other,
    };
    let modified_at_ms = found
        .modified_time
        .into_option()
        .map_or(0, |at| at.seconds.saturating_mul(1_000).saturating_add(i64::from(at.nanos) / 1_000_000));
    Ok(Entry {
        name: found.name.into_bytes(),
        path: found.path.into_bytes(),
        kind,
        size: u64::try_from(found.size).unwrap_or(0),
        mode: found.mode & 0o7777,
        uid: numeric_id(&found.owner),
        gid: numeric_id(&found.group),
        owner: found.owner,
        group: found.group,
        modified_at_ms,
        symlink_target: target.map(String::into_bytes),
        metadata: found.metadata.into_iter().collect(),
    })
}

fn numeric_id(name: &str) -> u32 {
    match name {
        "root" => 0,
        name => name.parse().unwrap_or(UNKNOWN_ID),
    }
}

/// The events of one process, over one connection.
struct EnvdProcess {
    frames: Frames,
    ended: bool,
    /// The process has a deadline, and the end of the stream by a deadline is that of the process.
    has_timeout: bool,
}

#[async_trait]
impl ProcessSource for EnvdProcess {
    async fn next(&mut self) -> Option<Result<ProcessEvent, AgentError>> {
        if self.ended {
            return None;
        }
        let item = match self.event().await {
            Err(AgentError::Refused { code: RpcCode::DeadlineExceeded, .. }) if self.has_timeout => {
                let (signal, timed_out) = (Some(SIGKILL), true);
                Ok(ProcessEvent::Exit(ExitStatus { code: None, signal, timed_out, core_dumped: false }))
            }
            other => other,
        };
        self.ended = !matches!(&item, Ok(event) if !matches!(event, ProcessEvent::Exit(_)));
        Some(item)
    }

    fn position(&self) -> Option<u64> {
        None
    }
}

impl EnvdProcess {
    /// `StartResponse` and `ConnectResponse` are the same on the wire.
    async fn message(&mut self) -> Result<Option<wire::process_event::Event>, AgentError> {
        let message = self.frames.next::<wire::StartResponse>().await?;
        let message = message.ok_or(AgentError::Protocol("the stream ended without an exit"))?;
        Ok(message.event.into_option().and_then(|event| event.event))
    }

    async fn started(&mut self) -> Result<Started, AgentError> {
        use wire::process_event::Event;
        loop {
            match self.message().await? {
                Some(Event::Start(start)) => return Ok(Started { pid: start.pid }),
                Some(Event::Keepalive(_)) | None => {}
                Some(Event::Data(_) | Event::End(_)) => {
                    return Err(AgentError::Protocol("output came before the start"));
                }
            }
        }
    }

    async fn event(&mut self) -> Result<ProcessEvent, AgentError> {
        use wire::process_event::{Event, data_event::Output};
        loop {
            match self.message().await? {
                Some(Event::Data(data)) => match data.output {
                    Some(Output::Stdout(data)) => return Ok(ProcessEvent::Stdout(data.into())),
                    Some(Output::Stderr(data)) => return Ok(ProcessEvent::Stderr(data.into())),
                    Some(Output::Pty(data)) => return Ok(ProcessEvent::Pty(data.into())),
                    None => {}
                },
                Some(Event::End(end)) => {
                    let exit = ProcessEvent::Exit(exit_status(&end));
                    // The end frame follows the exit; reading it gives the connection back.
                    let last = self.frames.next::<wire::StartResponse>();
                    let _ = tokio::time::timeout(Duration::from_millis(200), last).await;
                    return Ok(exit);
                }
                Some(Event::Start(_)) => return Err(AgentError::Protocol("a process started twice")),
                Some(Event::Keepalive(_)) | None => {}
            }
        }
    }
}

/// Envd names a signal in words, those of Go's `syscall.Signal`.
fn exit_status(end: &EndEvent) -> ExitStatus {
    const NAMES: [(&str, i32); 14] = [
        ("hangup", 1),
        ("interrupt", 2),
        ("quit", 3),
        ("illegal instruction", 4),
        ("trace/breakpoint trap", 5),
        ("aborted", 6),
        ("bus error", 7),
        ("floating point exception", 8),
        ("killed", 9),
        ("user defined signal 1", 10),
        ("segmentation fault", 11),
        ("user defined signal 2", 12),
        ("broken pipe", 13),
        ("terminated", 15),
    ];
    let words = end.status.strip_prefix("signal: ");
    let core_dumped = words.is_some_and(|words| words.ends_with("(core dumped)"));
    let words = words.map(|words| words.trim_end_matches("(core dumped)").trim());
    let signal = words.map(|words| {
        let named = NAMES.iter().find(|(name, _)| *name == words).map(|(_, number)| *number);
        let number = words.strip_prefix("signal ").unwrap_or(words).parse().ok();
        named.or(number).unwrap_or(SIGKILL)
    });
    // A process that was ended by a signal has no code of its own.
    let code = signal.is_none().then_some(end.exit_code);
    ExitStatus { code, signal, timed_out: false, core_dumped }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_is_a_code_or_a_signal() {
        let end = |exit_code, status: &str| {
            exit_status(&EndEvent { exit_code, status: status.to_owned(), ..Default::default() })
        };
        assert_eq!((end(3, "exit status 3").code, end(3, "exit status 3").signal), (Some(3), None));
        for (status, signal) in
            [("signal: killed", 9), ("signal: terminated", 15), ("signal: 40", 40), ("signal: signal 33", 33)]
        {
            assert_eq!((end(-1, status).code, end(-1, status).signal), (None, Some(signal)), "{status}");
        }
        let dumped = end(-1, "signal: segmentation fault (core dumped)");
        assert_eq!((dumped.signal, dumped.core_dumped), (Some(11), true));
    }

    #[test]
    fn a_link_is_told_by_its_target() {
        let link = files::EntryInfo {
            r#type: FileType::FILE_TYPE_FILE.into(),
            symlink_target: Some("/etc/hosts".to_owned()),
            owner: "user".to_owned(),
            ..Default::default()
        };
        let link = entry(Some(link)).expect("an entry");
        assert_eq!((link.kind, link.uid), (EntryKind::Symlink, UNKNOWN_ID));
        assert!(entry(None).is_err());
    }
}
