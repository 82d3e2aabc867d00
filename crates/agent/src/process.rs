//! Processes: start, output, exit, input, signals. Independent of the wire protocol.
//!
//! ```text
//! spawn ──fork──► table (pid → Process) ◄── reaper (SIGCHLD, waits for all children)
//!                   │                            │ status
//!                   └──► pump: exec result, then output ──► hub ──► readers (bounded), tail, logs
//! ```
//! One thread forks and reaps, with no await between fork and registration, so no exit is lost.

mod output;
mod pump;
mod reaper;
mod spawn;
mod table;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::io::Errno;
use rustix::termios::Winsize;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::time::Instant;

pub(crate) use output::{Hub, Item, OutputReader, OutputSource, Patience, ReadFrom};
pub(crate) use pump::start;
pub(crate) use reaper::reap_forever;
pub(crate) use spawn::CHILD_NOFILE;
pub(crate) use table::Table;

use crate::error::AgentError;
use crate::running;
use crate::users::User;

/// LIMIT: how long a write to stdin waits for a process that does not read.
const INPUT_WAIT: Duration = Duration::from_secs(8);

/// LIMIT: how long a kill waits for the end of the process; longer only while it waits for a device.
const KILL_WAIT: Duration = Duration::from_secs(2);

/// A caller's clock started before the agent's: on it, a deadline this near may already have passed.
const DEADLINE_SLACK: Duration = Duration::from_millis(20);

/// A validated request to start a process.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) cmd: String,
    pub(crate) args: Vec<String>,
    /// The variables of the request, shown by List.
    pub(crate) request_envs: BTreeMap<String, String>,
    /// The whole environment.
    pub(crate) envs: BTreeMap<String, String>,
    /// Absolute.
    pub(crate) cwd: String,
    pub(crate) pty: Option<Size>,
    pub(crate) tag: Option<String>,
    pub(crate) stdin: bool,
    pub(crate) logged: bool,
    pub(crate) user: User,
    pub(crate) timeout: Option<Duration>,
}

/// Columns and rows; numbers above the kernel's maximum are reduced to it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    pub(crate) cols: u32,
    pub(crate) rows: u32,
}

impl From<Size> for Winsize {
    fn from(size: Size) -> Self {
        let cut = |n: u32| u16::try_from(n).unwrap_or(u16::MAX);
        Self { ws_row: cut(size.rows), ws_col: cut(size.cols), ws_xpixel: 0, ws_ypixel: 0 }
    }
}

/// Properties of a process that callers can query.
#[derive(Debug, Default)]
pub(crate) struct ProcessFacts {
    pub(crate) cmd: String,
    pub(crate) args: Vec<String>,
    pub(crate) envs: BTreeMap<String, String>,
    pub(crate) cwd: String,
    pub(crate) tag: Option<String>,
    pub(crate) user: String,
    pub(crate) started_at_ms: u64,
    pub(crate) pty: bool,
    pub(crate) logged: bool,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exit {
    pub(crate) code: i32,
    /// 0: not ended by a signal.
    pub(crate) signal: i32,
    pub(crate) core_dumped: bool,
    pub(crate) timed_out: bool,
}

/// A process that the agent started; kept for a while after its end.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) facts: ProcessFacts,
    pub(crate) hub: Hub,
    input: tokio::sync::Mutex<Input>,
    terminal: Mutex<Option<Arc<AsyncFd<OwnedFd>>>>,
    life: Mutex<ProcessState>,
    exited: Notify,
    /// Told to all callers that wait for the end.
    reaped: Notify,
    /// On the agent's clock; moved when the sandbox was paused.
    deadline: Mutex<Option<Instant>>,
}

#[derive(Debug, Default)]
struct ProcessState {
    status: Option<Exit>,
    timed_out: bool,
}

#[derive(Debug)]
enum Input {
    None,
    Pipe(AsyncFd<OwnedFd>),
    Closed,
    Terminal(Arc<AsyncFd<OwnedFd>>),
}

impl Process {
    /// Called once, by the reaper.
    fn set_exit(&self, mut exit: Exit) {
        let mut life = self.life();
        exit.timed_out = life.timed_out;
        life.status = Some(exit);
        self.exited.notify_one();
        self.reaped.notify_waiters();
    }

    fn exit(&self) -> Option<Exit> {
        self.life().status
    }

    fn life(&self) -> std::sync::MutexGuard<'_, ProcessState> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Signals the process group. The pid cannot have been reused: reaping happens on this thread and marks the process
    /// first.
    pub(crate) fn signal(&self, signal: i32) -> Result<(), AgentError> {
        if self.exit().is_some() {
            return Err(not_running(self.pid));
        }
        match kill_group(self.pid, signal) {
            Ok(()) => Ok(()),
            Err(Errno::SRCH) => Err(not_running(self.pid)),
            Err(Errno::INVAL) => Err(AgentError::Invalid(format!("no signal {signal}"))),
            Err(errno) => Err(AgentError::from_errno(errno, "signal")),
        }
    }

    /// Signals the process group; after SIGKILL, returns when the process is gone, so that its pid no longer exists. A process that the
    /// kernel cannot end yet is not waited for longer than [`KILL_WAIT`].
    pub(crate) async fn signal_and_wait(&self, signal: i32) -> Result<(), AgentError> {
        let reaped = self.reaped.notified();
        self.signal(signal)?;
        if signal == libc::SIGKILL && self.exit().is_none() {
            running::within(KILL_WAIT, reaped).await;
        }
        Ok(())
    }

    fn deadline(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.deadline.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the deadline has passed on the caller's clock. If so, the process is ended now and no longer listed.
    fn is_overdue(&self) -> bool {
        let now = Instant::now();
        // A deadline long ago has not really passed: the sandbox was paused, and the pump is about to move the
        // deadline.
        let is_due = |at: Instant| now + DEADLINE_SLACK >= at && now < at + running::SLICE;
        let overdue = self.deadline().is_some_and(is_due);
        if overdue {
            self.expire();
        }
        overdue
    }

    /// The deadline passed: kills the group, and the exit will give the reason.
    fn expire(&self) {
        let mut life = self.life();
        if life.status.is_none() {
            life.timed_out = true;
            drop(life);
            let _ = kill_group(self.pid, libc::SIGKILL);
        }
    }

    /// Writes all data, in the order of calls. Waits, for a limited time, while the process does not read.
    pub(crate) async fn write_input(&self, data: &[u8]) -> Result<(), AgentError> {
        let writing = async {
            let input = self.input.lock().await;
            match &*input {
                Input::Pipe(fd) => write_all(fd, data).await,
                Input::Terminal(fd) => write_all(fd, data).await,
                Input::None => Err(AgentError::Internal("stdin was not requested at start".into())),
                Input::Closed => Err(AgentError::Internal("stdin is closed".into())),
            }
        };
        let late = || {
            Err(AgentError::Exhausted(
                "the process does not read its stdin; part of the input may be written".into(),
            ))
        };
        running::within(INPUT_WAIT, writing).await.unwrap_or_else(late)
    }

    /// Closes stdin. If it is closed already, that is no error; a terminal cannot be closed.
    pub(crate) async fn close_input(&self) -> Result<(), AgentError> {
        let closing = async {
            let mut input = self.input.lock().await;
            match &*input {
                Input::Pipe(_) => *input = Input::Closed,
                Input::Closed | Input::None => {}
                Input::Terminal(_) => {
                    return Err(AgentError::Conflict("a terminal's input cannot be closed; send ^D".into()));
                }
            }
            Ok(())
        };
        let late = || Err(AgentError::Exhausted("another write to stdin is still waiting".into()));
        running::within(INPUT_WAIT, closing).await.unwrap_or_else(late)
    }

    /// The input has no reader after the exit; closing it saves a descriptor.
    async fn release_input(&self) {
        *self.input.lock().await = Input::Closed;
    }

    fn release_terminal(&self) {
        *self.terminal.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub(crate) fn resize(&self, size: Size) -> Result<(), AgentError> {
        let terminal = self.terminal.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(terminal) = &*terminal else {
            return Err(AgentError::Conflict("the process has no terminal".into()));
        };
        rustix::termios::tcsetwinsize(terminal.get_ref(), size.into())
            .map_err(|errno| AgentError::from_errno(errno, "resize"))
    }
}

pub(crate) fn not_running(pid: u32) -> AgentError {
    AgentError::NotFound(format!("process with pid {pid} not found"))
}

#[expect(
    clippy::disallowed_methods,
    reason = "the agent's own clock: the time that it reports of its processes"
)]
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Signals a whole group; if the group is gone but its leader lives (it has changed its group), only the leader.
fn kill_group(pid: u32, signal: i32) -> Result<(), Errno> {
    let raw = i32::try_from(pid).map_err(|_| Errno::SRCH)?;
    let send = |target: i32| {
        // SAFETY: kill takes two integers and touches no memory.
        match unsafe { libc::kill(target, signal) } {
            0 => Ok(()),
            _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
        }
    };
    match send(-raw) {
        Err(Errno::SRCH) => send(raw),
        other => other,
    }
}

fn closed() -> AgentError {
    AgentError::Internal("the process closed its stdin".into())
}

async fn write_all(fd: &AsyncFd<OwnedFd>, mut data: &[u8]) -> Result<(), AgentError> {
    while !data.is_empty() {
        let mut guard =
            fd.writable().await.map_err(|_| AgentError::Unavailable("the agent's event loop ends".into()))?;
        // A terminal that no process has open accepts no data, but is reported as ready for ever.
        let is_hung_up = guard.ready().is_write_closed();
        let wrote = guard.try_io(|fd| rustix::io::write(fd.get_ref(), data).map_err(std::io::Error::from));
        match wrote {
            Ok(Ok(n)) => data = &data[n..],
            Ok(Err(e)) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Ok(Err(_)) => return Err(closed()),
            // Without this check the loop would block all other tasks of the agent.
            Err(_would_block) if is_hung_up => return Err(closed()),
            Err(_would_block) => {}
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use rustix::pty::OpenptFlags;
    use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};

    /// A terminal in raw mode, as a full-screen program uses it: the agent's end, and the program's.
    fn terminal() -> (OwnedFd, OwnedFd) {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = rustix::pty::openpt(flags).unwrap();
        rustix::pty::unlockpt(&ours).unwrap();
        let theirs = rustix::pty::ioctl_tiocgptpeer(&ours, flags).unwrap();
        let mut raw = tcgetattr(&theirs).unwrap();
        raw.make_raw();
        tcsetattr(&theirs, OptionalActions::Now, &raw).unwrap();
        rustix::io::ioctl_fionbio(&ours, true).unwrap();
        (ours, theirs)
    }

    #[test]
    fn input_for_a_terminal_whose_program_is_gone_ends_and_the_agent_goes_on() {
        let (told, heard) = std::sync::mpsc::channel();
        // On a separate thread: the agent's loop has only one, which must not be blocked.
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let (ours, theirs) = terminal();
                let ours = crate::readiness::watched(ours).unwrap();
                let dying = async {
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                    drop(theirs);
                };
                let (written, ()) = tokio::join!(write_all(&ours, &[b'a'; 1 << 20]), dying);
                told.send(written.is_err()).unwrap();
            });
        });
        let ended = heard.recv_timeout(std::time::Duration::from_secs(60));
        assert_eq!(ended, Ok(true), "the write ends, with a refusal");
    }
}
