//! The server's side of the launcher: starts it, sends requests, passes replies to their callers, and starts it again
//! when it has died. A request that is under way when the launcher dies gets an error.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;

use super::protocol::{Criu, Hello, Reply, Request, Spawn, StepFailure, Times};
use super::wire;

/// LIMIT: a launcher is ready within some milliseconds.
const START_WITHIN: Duration = Duration::from_secs(10);
/// LIMIT: clone and mounts take some milliseconds each, and a hundred requests may be queued before this one.
const SPAWN_WITHIN: Duration = Duration::from_secs(20);
/// LIMIT: how long a CRIU without launcher may take until it ends; a dump of a large sandbox takes the longest.
const ABANDONED_WITHIN: Duration = Duration::from_secs(300);

/// How to run a launcher: a program, and the arguments that make it a launcher.
#[derive(Debug, Clone)]
pub struct LauncherCommand {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
}

impl LauncherCommand {
    /// The running program as `<program> launcher`.
    #[must_use]
    pub fn myself() -> Self {
        Self { program: "/proc/self/exe".into(), arguments: vec!["launcher".into()] }
    }
}

/// The launcher could not start a first process.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The launcher did not start.
    #[error("the launcher could not be started")]
    Start(#[source] io::Error),
    /// The launcher died while the request was under way.
    #[error("the launcher died")]
    Died,
    /// The launcher did not answer in time.
    #[error("the launcher did not answer in time")]
    Late,
    /// A step failed.
    #[error("{step}")]
    Step {
        /// The name of the step.
        step: String,
        /// The system error.
        #[source]
        cause: io::Error,
    },
}

impl From<StepFailure> for LaunchError {
    fn from(failure: StepFailure) -> Self {
        Self::Step { step: failure.step, cause: io::Error::from_raw_os_error(failure.errno) }
    }
}

/// A process that exists and whose mounts and network are being made.
#[derive(Debug)]
pub(crate) struct Spawning {
    pub(crate) pid: i32,
    pub(crate) pidfd: OwnedFd,
    pub(crate) netns: OwnedFd,
    pub(crate) control: OwnedFd,
    rest: mpsc::UnboundedReceiver<LauncherReply>,
    times: Times,
}

impl Spawning {
    /// The step times that the launcher has reported so far.
    pub(crate) fn launcher_times(&mut self) -> Times {
        if let Ok(LauncherReply::Mounted(times)) = self.rest.try_recv() {
            self.times = times;
        }
        std::mem::take(&mut self.times)
    }

    /// Waits until the launcher has made the mounts.
    pub(crate) async fn mounted(&mut self) -> Result<(), LaunchError> {
        match self.rest.recv().await {
            Some(LauncherReply::Mounted(times)) => {
                self.times = times;
                Ok(())
            }
            Some(LauncherReply::Failed(failure)) => Err(failure.into()),
            Some(LauncherReply::Spawned { .. } | LauncherReply::Begun) | None => Err(LaunchError::Died),
        }
    }
}

#[derive(Debug)]
enum LauncherReply {
    Spawned { pid: i32, pidfd: OwnedFd, netns: OwnedFd, control: OwnedFd },
    Mounted(Times),
    Begun,
    Failed(StepFailure),
}

/// The launcher of one server.
#[derive(Debug)]
pub(crate) struct Launcher {
    command: LauncherCommand,
    hello: Hello,
    next: AtomicU64,
    running: tokio::sync::Mutex<Option<Arc<LauncherProcess>>>,
}

/// One launcher process.
#[derive(Debug)]
struct LauncherProcess {
    socket: AsyncFd<OwnedFd>,
    pid: u32,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    is_over: bool,
    // Unbounded, but each request gets at most two replies.
    requests: HashMap<u64, mpsc::UnboundedSender<LauncherReply>>,
}

impl Launcher {
    pub(crate) fn new(command: LauncherCommand, hello: Hello) -> Self {
        Self { command, hello, next: AtomicU64::new(1), running: tokio::sync::Mutex::new(None) }
    }

    /// The running launcher process; starts one if there is none.
    async fn running(&self) -> Result<Arc<LauncherProcess>, LaunchError> {
        let mut slot = self.running.lock().await;
        if let Some(running) = slot.as_ref().filter(|running| !running.is_over()) {
            return Ok(Arc::clone(running));
        }
        let started =
            tokio::time::timeout(START_WITHIN, LauncherProcess::start(&self.command, &self.hello)).await;
        let running = started.map_err(|_| LaunchError::Late)??;
        *slot = Some(Arc::clone(&running));
        Ok(running)
    }

    /// Starts the launcher ahead of the first request.
    pub(crate) async fn warm(&self) -> Result<(), LaunchError> {
        self.running().await.map(drop)
    }

    /// The pid of the running launcher process.
    pub(crate) async fn pid(&self) -> Option<u32> {
        self.running.lock().await.as_ref().filter(|running| !running.is_over()).map(|running| running.pid)
    }

    /// Requests a first process. The id of `request` is set here.
    pub(crate) async fn spawn(
        &self,
        mut request: Spawn,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Spawning, LaunchError> {
        request.id = self.next.fetch_add(1, Ordering::Relaxed);
        let mut rest = self.ask(request.id, Request::Spawn(request), descriptors).await?;
        match tokio::time::timeout(SPAWN_WITHIN, rest.recv()).await.map_err(|_| LaunchError::Late)? {
            Some(LauncherReply::Spawned { pid, pidfd, netns, control }) => {
                Ok(Spawning { pid, pidfd, netns, control, rest, times: Times::new() })
            }
            Some(LauncherReply::Failed(failure)) => Err(failure.into()),
            Some(LauncherReply::Mounted(_) | LauncherReply::Begun) | None => Err(LaunchError::Died),
        }
    }

    /// Runs CRIU; returns the channel over which it reports its progress. The id of `request` is set here.
    pub(crate) async fn criu(
        &self,
        mut request: Criu,
        descriptors: Vec<OwnedFd>,
    ) -> Result<CriuChannel, LaunchError> {
        request.id = self.next.fetch_add(1, Ordering::Relaxed);
        let (line, theirs) = CriuChannel::new().map_err(LaunchError::Start)?;
        let descriptors = theirs.into_iter().chain(descriptors).collect();
        let mut rest = self.ask(request.id, Request::Criu(request), descriptors).await?;
        match tokio::time::timeout(SPAWN_WITHIN, rest.recv()).await.map_err(|_| LaunchError::Late)? {
            Some(LauncherReply::Begun) => Ok(line),
            Some(LauncherReply::Failed(failure)) => Err(failure.into()),
            Some(_) | None => {
                // The launcher may have started CRIU before it died, and CRIU continues without it.
                line.abandon().await;
                Err(LaunchError::Died)
            }
        }
    }

    async fn ask(
        &self,
        id: u64,
        request: Request,
        descriptors: Vec<OwnedFd>,
    ) -> Result<mpsc::UnboundedReceiver<LauncherReply>, LaunchError> {
        let running = self.running().await?;
        let (answers, rest) = mpsc::unbounded_channel();
        running.expect(id, answers)?;
        let asked = running.ask(&request, &descriptors).await;
        drop(descriptors);
        if asked.is_err() {
            running.forget(id);
            return Err(LaunchError::Died);
        }
        Ok(rest)
    }
}

/// A message of a running CRIU.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CriuMessage {
    /// CRIU has reached a step and waits for [`CriuChannel::go_on`]. The pid is that of the first process of the
    /// sandbox.
    Step { action: String, pid: i32 },
    /// CRIU has ended with this code, and with this error text if the code is not zero.
    Ended(i32, String),
    /// CRIU could not be started.
    Failed(String),
}

/// The channel to a running CRIU: a pipe in each direction, because CRIU's scripts can open a pipe of the keeper but no
/// socket.
#[derive(Debug)]
pub(crate) struct CriuChannel {
    heard: tokio::io::BufReader<tokio::net::unix::pipe::Receiver>,
    said: tokio::net::unix::pipe::Sender,
}

impl CriuChannel {
    /// A channel, and the other ends of its pipes: one to write messages, one to read replies.
    fn new() -> io::Result<(Self, [OwnedFd; 2])> {
        use tokio::net::unix::pipe::{Receiver, Sender};
        let pipe = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC);
        let ((heard, they_say), (they_hear, said)) = (pipe()?, pipe()?);
        let heard = tokio::io::BufReader::new(Receiver::from_owned_fd(heard)?);
        Ok((Self { heard, said: Sender::from_owned_fd(said)? }, [they_say, they_hear]))
    }

    /// The next message. An error when the other side has ended.
    pub(crate) async fn hear(&mut self) -> io::Result<CriuMessage> {
        use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _};
        /// LIMIT: the length of a message; the messages have a few words.
        const LINE_MAX: u64 = 4_096;
        let mut text = String::new();
        (&mut self.heard).take(LINE_MAX).read_line(&mut text).await?;
        read_word(text.trim_end()).ok_or(io::ErrorKind::UnexpectedEof.into())
    }

    /// Waits until no CRIU is left. A restore aborts at its next step, because it gets no reply; a dump completes.
    async fn abandon(self) {
        let Self { mut heard, said } = self;
        drop(said);
        let mut unread = tokio::io::sink();
        let ended = tokio::io::copy_buf(&mut heard, &mut unread);
        if tokio::time::timeout(ABANDONED_WITHIN, ended).await.is_err() {
            tracing::warn!("CRIU still runs after the launcher has died");
        }
    }

    /// Lets CRIU continue.
    pub(crate) async fn go_on(&mut self) -> io::Result<()> {
        tokio::io::AsyncWriteExt::write_all(&mut self.said, b"ok\n").await
    }
}

fn read_word(line: &str) -> Option<CriuMessage> {
    let (first, rest) = line.split_once(' ')?;
    match first {
        "ended" => {
            let (code, complaint) = rest.split_once(' ').unwrap_or((rest, ""));
            Some(CriuMessage::Ended(code.parse().ok()?, complaint.to_owned()))
        }
        "failed" => Some(CriuMessage::Failed(rest.to_owned())),
        action => Some(CriuMessage::Step { action: action.to_owned(), pid: rest.parse().ok()? }),
    }
}

impl LauncherProcess {
    #[expect(clippy::disallowed_methods, reason = "ends when the launcher's socket closes")]
    async fn start(command: &LauncherCommand, hello: &Hello) -> Result<Arc<Self>, LaunchError> {
        let (ours, theirs) = wire::pair().map_err(LaunchError::Start)?;
        // `Command` execs at once after the fork, without running Rust code in between, so the threads of this process
        // are no problem. The socket is passed as standard input.
        let mut child = Command::new(&command.program)
            .args(&command.arguments)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            // Ctrl-C at a terminal is meant for the server, which still needs the launcher while it drains.
            .process_group(0)
            .spawn()
            .map_err(LaunchError::Start)?;
        rustix::io::ioctl_fionbio(&ours, true).map_err(|cause| LaunchError::Start(cause.into()))?;
        let socket = crate::sys::watch(ours).map_err(LaunchError::Start)?;
        let bytes = serde_json::to_vec(hello).map_err(|cause| LaunchError::Start(cause.into()))?;
        wire::send(socket.get_ref(), &bytes, &[]).map_err(LaunchError::Start)?;
        let running = Arc::new(Self { socket, pid: child.id(), waiting: Mutex::default() });
        match running.receive().await {
            Ok(Some((Reply::Ready, _))) => {}
            Ok(Some((Reply::Failed { failure, .. }, _))) => {
                end(&mut child);
                return Err(failure.into());
            }
            _ => {
                end(&mut child);
                return Err(LaunchError::Died);
            }
        }
        tokio::spawn(Arc::clone(&running).listen(child));
        Ok(running)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self) -> bool {
        self.lock().is_over
    }

    fn expect(&self, id: u64, answers: mpsc::UnboundedSender<LauncherReply>) -> Result<(), LaunchError> {
        let mut waiting = self.lock();
        if waiting.is_over {
            return Err(LaunchError::Died);
        }
        waiting.requests.insert(id, answers);
        Ok(())
    }

    fn forget(&self, id: u64) {
        self.lock().requests.remove(&id);
    }

    async fn ask(&self, request: &Request, descriptors: &[OwnedFd]) -> io::Result<()> {
        let bytes = serde_json::to_vec(request)?;
        let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
        loop {
            let mut ready = self.socket.writable().await?;
            match ready.try_io(|socket| wire::send(socket.get_ref(), &bytes, &descriptors)) {
                Ok(outcome) => return outcome,
                Err(_would_block) => {}
            }
        }
    }

    async fn receive(&self) -> io::Result<Option<(Reply, Vec<OwnedFd>)>> {
        let mut buffer = [0; 8 * 1024];
        loop {
            let mut ready = self.socket.readable().await?;
            match ready.try_io(|socket| wire::receive(socket.get_ref(), &mut buffer)) {
                Ok(Ok(Some((length, descriptors)))) => {
                    return Ok(Some((serde_json::from_slice(&buffer[..length])?, descriptors)));
                }
                Ok(Ok(None)) => return Ok(None),
                Ok(Err(error)) => return Err(error),
                Err(_would_block) => {}
            }
        }
    }

    /// Distributes replies until the launcher process ends, then reaps it.
    async fn listen(self: Arc<Self>, mut child: Child) {
        while let Ok(Some((reply, descriptors))) = self.receive().await {
            self.dispatch(reply, descriptors);
        }
        {
            let mut waiting = self.lock();
            waiting.is_over = true;
            // Dropping the senders gives every waiting caller an error.
            waiting.requests.clear();
        }
        tracing::warn!(pid = child.id(), "the launcher ended");
        let _ = tokio::task::spawn_blocking(move || end(&mut child)).await;
    }

    fn dispatch(&self, reply: Reply, descriptors: Vec<OwnedFd>) {
        let (id, answer, is_last) = match reply {
            Reply::Ready => return,
            Reply::Spawned { id, pid } => {
                let mut each = descriptors.into_iter();
                let (Some(pidfd), Some(netns), Some(control)) = (each.next(), each.next(), each.next())
                else {
                    return;
                };
                (id, LauncherReply::Spawned { pid, pidfd, netns, control }, false)
            }
            Reply::Mounted { id, times } => (id, LauncherReply::Mounted(times), true),
            Reply::Begun { id } => (id, LauncherReply::Begun, true),
            Reply::Failed { id, failure } => (id, LauncherReply::Failed(failure), true),
        };
        let waiter = {
            let mut waiting = self.lock();
            if is_last { waiting.requests.remove(&id) } else { waiting.requests.get(&id).cloned() }
        };
        let unheard = match waiter {
            Some(waiter) => waiter.send(answer).err().map(|error| error.0),
            None => Some(answer),
        };
        if let Some(LauncherReply::Spawned { pidfd, .. }) = unheard {
            // The caller has gone away, and no other code knows this process.
            let _ = rustix::process::pidfd_send_signal(&pidfd, rustix::process::Signal::KILL);
        }
    }
}

fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}
