//! Processes: start, attach, list, stdin, signals, terminal size.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use buffa::MessageField;
use bytes::Bytes;
use futures::Stream;

use super::rpc::Frames;
use super::{AgentClient, CALL_LIMIT};
use crate::error::AgentError;
use crate::proto::agent::__buffa::oneof::process_event::Event;
use crate::proto::{agent, process};

/// LIMIT: the agent accepts messages of up to 4 MiB.
pub(super) const INPUT_PIECE: usize = 1 << 20;

/// A request to start a process. `Default` has no command: set at least `cmd`.
#[derive(Debug, Clone, Default)]
pub struct StartProcess {
    /// Program: a path, or a name looked up in the sandbox's PATH.
    pub cmd: String,
    /// Arguments after the program's name.
    pub args: Vec<String>,
    /// Added to the sandbox's environment; these have precedence.
    pub envs: BTreeMap<String, String>,
    /// Empty: the default working directory, else the user's home. Relative: below the home.
    pub cwd: String,
    /// Give it a terminal.
    pub pty: Option<TerminalSize>,
    /// A name to find it by.
    pub tag: String,
    /// Keep stdin open for `send_stdin`; otherwise it is `/dev/null`.
    pub stdin: bool,
    /// Output also goes to the sandbox's logs.
    pub logged: bool,
    /// The stream carries only the exit, no output. With `logged`: a background service.
    pub detached: bool,
    /// The sandbox's user to run as; `None`: the default user.
    pub user: Option<String>,
    /// After this time the process group is killed and the exit has `timed_out`.
    pub timeout: Option<Duration>,
}

/// Columns and rows. Any value is allowed, including 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminalSize {
    /// Columns.
    pub cols: u16,
    /// Rows.
    pub rows: u16,
}

/// The process is running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Started {
    /// Its id inside the sandbox.
    pub pid: u32,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExitStatus {
    /// Its exit code, unless a signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// The agent killed it at its deadline.
    pub timed_out: bool,
    /// It would have dumped core.
    pub core_dumped: bool,
}

impl ExitStatus {
    /// The exit code of a shell: 124 after a timeout, 128 + signal, else the code.
    pub fn shell_code(&self) -> i32 {
        match (self.timed_out, self.code, self.signal) {
            (true, _, _) => 124,
            (false, Some(code), _) => code,
            (false, None, signal) => 128 + signal.unwrap_or(0),
        }
    }
}

/// An event of a process. `Exit` is the last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessEvent {
    /// Bytes of standard output.
    Stdout(Bytes),
    /// Bytes of standard error.
    Stderr(Bytes),
    /// Bytes of the terminal.
    Pty(Bytes),
    /// So many bytes were lost because this reader was slow.
    Dropped(u64),
    /// It ended.
    Exit(ExitStatus),
}

impl ProcessEvent {
    /// The number of output bytes that it represents.
    fn bytes(&self) -> u64 {
        match self {
            Self::Stdout(data) | Self::Stderr(data) | Self::Pty(data) => data.len() as u64,
            Self::Dropped(bytes) => *bytes,
            Self::Exit(_) => 0,
        }
    }
}

/// A process that the agent started and that has not been reaped.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct ProcessInfo {
    pub pid: u32,
    pub cmd: String,
    pub args: Vec<String>,
    pub cwd: String,
    pub tag: String,
    pub user: String,
    pub started_at_ms: u64,
    pub pty: bool,
    pub logged: bool,
}

/// All output of a command and how it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandOutput {
    /// Standard output, or the terminal's.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
    /// Bytes above the caller's limit, or lost.
    pub dropped: u64,
    /// How it ended.
    pub status: ExitStatus,
}

/// Live events of one process. Dropping it detaches; the process continues.
pub struct ProcessStream {
    source: Box<dyn ProcessSource>,
}

/// The source of a [`ProcessStream`]'s events.
#[async_trait]
pub trait ProcessSource: Send + Sync {
    /// The next event; `None` after `Exit` or after an error. Cancel-safe.
    async fn next(&mut self) -> Option<Result<ProcessEvent, AgentError>>;

    /// How many bytes of the process's output precede the next event, including lost bytes; `None` if not known.
    fn position(&self) -> Option<u64>;
}

/// The source of a stream that is detached.
struct NoSource;

#[async_trait]
impl ProcessSource for NoSource {
    async fn next(&mut self) -> Option<Result<ProcessEvent, AgentError>> {
        None
    }

    fn position(&self) -> Option<u64> {
        None
    }
}

impl std::fmt::Debug for ProcessStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProcessStream").field("position", &self.position()).finish_non_exhaustive()
    }
}

impl ProcessStream {
    /// The events of `source`.
    pub fn new(source: impl ProcessSource + 'static) -> Self {
        Self { source: Box::new(source) }
    }

    /// Detaches from the process: there are no more events.
    pub fn detach(&mut self) {
        self.source = Box::new(NoSource);
    }

    /// [`ProcessSource::position`]. [`AgentClient::attach_from`] continues there.
    pub fn position(&self) -> Option<u64> {
        self.source.position()
    }

    /// [`ProcessSource::next`].
    pub async fn next(&mut self) -> Option<Result<ProcessEvent, AgentError>> {
        self.source.next().await
    }

    /// All output until the process ends, at most `output_max` bytes of each stream.
    pub async fn collect(mut self, output_max: usize) -> Result<CommandOutput, AgentError> {
        let (mut stdout, mut stderr, mut dropped) = (Vec::new(), Vec::new(), 0u64);
        let mut keep = |into: &mut Vec<u8>, data: &[u8]| {
            let fits = data.len().min(output_max - into.len());
            into.extend_from_slice(&data[..fits]);
            dropped += (data.len() - fits) as u64;
        };
        let mut lost = 0u64;
        while let Some(event) = self.next().await {
            match event? {
                ProcessEvent::Stdout(data) | ProcessEvent::Pty(data) => keep(&mut stdout, &data),
                ProcessEvent::Stderr(data) => keep(&mut stderr, &data),
                ProcessEvent::Dropped(bytes) => lost = lost.saturating_add(bytes),
                ProcessEvent::Exit(status) => {
                    return Ok(CommandOutput {
                        stdout,
                        stderr,
                        dropped: dropped.saturating_add(lost),
                        status,
                    });
                }
            }
        }
        Err(AgentError::Protocol("the stream ended without an exit"))
    }

    /// The events as a `Stream`.
    pub fn into_stream(self) -> impl Stream<Item = Result<ProcessEvent, AgentError>> + Send + 'static {
        futures::stream::unfold(
            self,
            |mut stream| async move { stream.next().await.map(|item| (item, stream)) },
        )
    }
}

/// The events from an agent, over one connection.
struct AgentProcess {
    frames: Frames,
    ended: bool,
    position: Option<u64>,
}

#[async_trait]
impl ProcessSource for AgentProcess {
    async fn next(&mut self) -> Option<Result<ProcessEvent, AgentError>> {
        if self.ended {
            return None;
        }
        let item = self.event().await.transpose();
        if let (Some(Ok(event)), Some(position)) = (&item, &mut self.position) {
            *position = position.saturating_add(event.bytes());
        }
        self.ended = !matches!(item, Some(Ok(ref event)) if !matches!(event, ProcessEvent::Exit(_)));
        if matches!(item, Some(Ok(ProcessEvent::Exit(_)))) {
            // The end frame follows the exit; reading it gives the connection back.
            let end = self.frames.next::<agent::ProcessEvent>();
            let _ = tokio::time::timeout(Duration::from_millis(200), end).await;
        }
        item
    }

    fn position(&self) -> Option<u64> {
        self.position
    }
}

impl AgentProcess {
    async fn event(&mut self) -> Result<Option<ProcessEvent>, AgentError> {
        while let Some(message) = self.frames.next::<agent::ProcessEvent>().await? {
            return Ok(Some(match message.event {
                Some(Event::Stdout(data)) => ProcessEvent::Stdout(data.into()),
                Some(Event::Stderr(data)) => ProcessEvent::Stderr(data.into()),
                Some(Event::Pty(data)) => ProcessEvent::Pty(data.into()),
                Some(Event::Dropped(bytes)) => ProcessEvent::Dropped(bytes),
                Some(Event::Exit(exit)) => ProcessEvent::Exit(ExitStatus {
                    code: (exit.signal == 0).then_some(exit.code),
                    signal: (exit.signal != 0).then_some(exit.signal),
                    timed_out: exit.timed_out,
                    core_dumped: exit.core_dumped,
                }),
                Some(Event::Started(_)) => return Err(AgentError::Protocol("a process started twice")),
                Some(Event::Keepalive(_)) | None => continue,
            }));
        }
        Err(AgentError::Protocol("the stream ended without an exit"))
    }

    async fn started(&mut self) -> Result<Started, AgentError> {
        loop {
            let first = self.frames.next::<agent::ProcessEvent>().await?;
            match first.ok_or(AgentError::Protocol("the stream ended without a start"))?.event {
                Some(Event::Started(started)) => {
                    self.position = started.position;
                    return Ok(Started { pid: started.pid });
                }
                Some(Event::Keepalive(_)) | None => {}
                Some(_) => return Err(AgentError::Protocol("output came before the start")),
            }
        }
    }
}

impl AgentClient {
    /// Starts a process; returns when it runs, or with a typed error.
    pub async fn start(&self, what: StartProcess) -> Result<(Started, ProcessStream), AgentError> {
        let request = agent::StartRequest {
            cmd: what.cmd,
            args: what.args,
            envs: what.envs.into_iter().collect(),
            cwd: what.cwd,
            pty: what.pty.map(size_message).into(),
            tag: what.tag,
            stdin: what.stdin,
            logged: what.logged,
            user: what.user.unwrap_or_default(),
            timeout_ms: what.timeout.map_or(0, |t| u64::try_from(t.as_millis()).unwrap_or(u64::MAX).max(1)),
            detached: what.detached,
            ..Default::default()
        };
        self.open("/atoll.agent.v1.Agent/Start", &request).await
    }

    /// Attaches to a running process; with `tail`, the kept end of its output comes first. A process that ended
    /// recently still returns its exit.
    pub async fn attach(&self, pid: u32, tail: bool) -> Result<ProcessStream, AgentError> {
        let request = agent::AttachRequest { pid, tail, ..Default::default() };
        self.open("/atoll.agent.v1.Agent/Attach", &request).await.map(|(_, stream)| stream)
    }

    /// Attaches to a process again, at the position where another stream of it ended. Bytes that are no longer in the
    /// kept tail are reported as [`ProcessEvent::Dropped`].
    pub async fn attach_from(&self, pid: u32, from: u64) -> Result<ProcessStream, AgentError> {
        let request = agent::AttachRequest { pid, tail: true, from: Some(from), ..Default::default() };
        self.open("/atoll.agent.v1.Agent/Attach", &request).await.map(|(_, stream)| stream)
    }

    /// Starts a process and collects its output, at most `output_max` bytes of each stream.
    pub async fn run(&self, what: StartProcess, output_max: usize) -> Result<CommandOutput, AgentError> {
        let (_, stream) = self.start(what).await?;
        stream.collect(output_max).await
    }

    /// Processes that the agent started and that still run.
    pub async fn list(&self) -> Result<Vec<ProcessInfo>, AgentError> {
        let answer: agent::ListResponse =
            self.unary("/atoll.agent.v1.Agent/List", &agent::ListRequest::default()).await?;
        Ok(answer.processes.into_iter().map(ProcessInfo::from).collect())
    }

    /// Writes to a process's stdin or terminal, large inputs in pieces. Each piece waits while the process does not
    /// read, within the call's deadline.
    pub async fn send_stdin(&self, pid: u32, data: impl AsRef<[u8]>) -> Result<(), AgentError> {
        for piece in data.as_ref().chunks(INPUT_PIECE) {
            let input = process::process_input::Input::Stdin(piece.to_vec());
            let request = process::SendInputRequest {
                process: selector(pid),
                input: MessageField::some(process::ProcessInput { input: Some(input), ..Default::default() }),
                ..Default::default()
            };
            self.unary::<_, process::SendInputResponse>("/process.Process/SendInput", &request).await?;
        }
        Ok(())
    }

    /// Closes a process's stdin. Repeating it is no error.
    pub async fn close_stdin(&self, pid: u32) -> Result<(), AgentError> {
        let request = process::CloseStdinRequest { process: selector(pid), ..Default::default() };
        self.unary("/process.Process/CloseStdin", &request).await.map(|_: process::CloseStdinResponse| ())
    }

    /// Sends a signal to a process's group.
    pub async fn signal(&self, pid: u32, signal: i32) -> Result<(), AgentError> {
        let request = agent::SignalRequest { pid, signal, ..Default::default() };
        self.unary("/atoll.agent.v1.Agent/Signal", &request).await.map(|_: agent::SignalResponse| ())
    }

    /// Sets the size of a process's terminal.
    pub async fn resize(&self, pid: u32, size: TerminalSize) -> Result<(), AgentError> {
        let size =
            process::pty::Size { cols: size.cols.into(), rows: size.rows.into(), ..Default::default() };
        let pty = process::PTY { size: MessageField::some(size), ..Default::default() };
        let request = process::UpdateRequest {
            process: selector(pid),
            pty: MessageField::some(pty),
            ..Default::default()
        };
        self.unary("/process.Process/Update", &request).await.map(|_: process::UpdateResponse| ())
    }

    async fn open<Q: buffa::Message>(
        &self,
        uri: &'static str,
        request: &Q,
    ) -> Result<(Started, ProcessStream), AgentError> {
        let frames = self.stream(uri, request).await?;
        let mut process = AgentProcess { frames, ended: false, position: None };
        let started = self.patience.within(uri, CALL_LIMIT, process.started()).await?;
        Ok((started, ProcessStream::new(process)))
    }
}

fn size_message(size: TerminalSize) -> agent::Size {
    agent::Size { cols: size.cols.into(), rows: size.rows.into(), ..Default::default() }
}

pub(super) fn selector(
    pid: u32,
) -> MessageField<process::ProcessSelector, buffa::Inline<process::ProcessSelector>> {
    MessageField::some(process::ProcessSelector {
        selector: Some(process::process_selector::Selector::Pid(pid)),
        ..Default::default()
    })
}

impl From<agent::ProcessInfo> for ProcessInfo {
    fn from(info: agent::ProcessInfo) -> Self {
        Self {
            pid: info.pid,
            cmd: info.cmd,
            args: info.args,
            cwd: info.cwd,
            tag: info.tag,
            user: info.user,
            started_at_ms: info.started_at_ms,
            pty: info.pty,
            logged: info.logged,
        }
    }
}
