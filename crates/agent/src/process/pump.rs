//! Starts a process and forwards its output until every end is closed. One task per process does this.
//!
//! Order: result of exec → output until the exit is known → the rest in the pipes → exit to the readers → output of
//! grandchildren that kept the pipes, into tail and logs only, so that they are never blocked.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, oneshot};

use super::output::{OutputReader, OutputSource, Patience, ReadFrom};
use super::spawn::{self, Child, SpawnStep};
use super::{Exit, Hub, Input, Plan, Process, ProcessFacts, ProcessState, now_ms};
use crate::error::AgentError;
use crate::readiness::watched;
use crate::running;
use crate::state::Agent;

/// How long after the exit a grandchild's output still counts: enough for `exec > >(tee log)`, too short to be noticed
/// after `server &`.
const DRAIN_GRACE: Duration = Duration::from_millis(100);

/// LIMIT: a child that was stopped before its exec by another process does not block its caller for ever.
const EXEC_LIMIT: Duration = Duration::from_secs(10);

/// LIMIT: bytes of one read, as SDKs expect it from envd.
const CHUNK: usize = 32 * 1024;
const TERMINAL_CHUNK: usize = 16 * 1024;

/// Starts the process of the plan. Returns when the program runs or could not be started.
#[expect(
    clippy::disallowed_methods,
    reason = "ends with the process that it belongs to, also without a reader"
)]
pub(crate) async fn start(
    agent: &Arc<Agent>,
    plan: Plan,
    patience: Patience,
) -> Result<(Arc<Process>, OutputReader), AgentError> {
    if agent.processes.is_full() {
        return Err(AgentError::Exhausted("too many processes were started through the agent".into()));
    }
    let child = spawn::spawn(&plan)?;
    // No await between the fork and the registration: the reaper runs on this thread and must know the pid.
    let (process, mut ends, verdict) = register(agent, &plan, child)?;
    let Some(reader) = process.hub.reader(patience, ReadFrom::Now) else {
        return Err(AgentError::Internal("the new process cannot have a reader".into()));
    };
    let (answer, answered) = oneshot::channel();
    let (owner, subject) = (Arc::clone(agent), Arc::clone(&process));
    let timeout = plan.timeout;
    let shown = ProcessLabel { cmd: plan.cmd, cwd: plan.cwd };
    tokio::spawn(async move {
        match exec_verdict(&subject, verdict, &shown).await {
            Ok(()) => {
                let _ = answer.send(Ok(()));
                carry(&owner, &subject, &mut ends, timeout).await;
            }
            Err(refusal) => {
                owner.processes.forget(&subject);
                let _ = answer.send(Err(refusal));
            }
        }
    });
    let gone = || Err(AgentError::Internal("the start was abandoned".into()));
    answered.await.unwrap_or_else(|_| gone())?;
    Ok((process, reader))
}

struct ProcessLabel {
    cmd: String,
    cwd: String,
}

type OutputPipe = Option<(OutputSource, Arc<AsyncFd<OwnedFd>>)>;

/// The agent's ends of the output.
struct Ends {
    first: OutputPipe,
    second: OutputPipe,
}

fn register(
    agent: &Agent,
    plan: &Plan,
    child: Child,
) -> Result<(Arc<Process>, Ends, AsyncFd<OwnedFd>), AgentError> {
    let pid = child.pid;
    wrap(agent, plan, child).inspect_err(|_| {
        // The event loop accepts no more descriptors: the child must not run unobserved. The reaper collects it.
        let _ = super::kill_group(pid, libc::SIGKILL);
    })
}

fn wrap(
    agent: &Agent,
    plan: &Plan,
    child: Child,
) -> Result<(Arc<Process>, Ends, AsyncFd<OwnedFd>), AgentError> {
    let watch = |fd: OwnedFd| {
        watched(fd)
            .map_err(|e| AgentError::from_errno(Errno::from_io_error(&e).unwrap_or(Errno::MFILE), "start"))
    };
    let wire = |source: OutputSource, fd: Option<OwnedFd>| -> Result<OutputPipe, AgentError> {
        fd.map(|fd| Ok((source, Arc::new(watch(fd)?)))).transpose()
    };
    let verdict = watch(child.verdict)?;
    let terminal = child.terminal.map(watch).transpose()?.map(Arc::new);
    let input = match (&terminal, child.stdin) {
        (Some(terminal), _) => Input::Terminal(Arc::clone(terminal)),
        (None, Some(stdin)) => Input::Pipe(watch(stdin)?),
        (None, None) => Input::None,
    };
    let ends = match &terminal {
        Some(terminal) => Ends { first: Some((OutputSource::Pty, Arc::clone(terminal))), second: None },
        None => Ends {
            first: wire(OutputSource::Stdout, child.stdout)?,
            second: wire(OutputSource::Stderr, child.stderr)?,
        },
    };
    let process = Arc::new(Process {
        pid: child.pid,
        facts: facts(plan),
        hub: Hub::default(),
        input: tokio::sync::Mutex::new(input),
        terminal: Mutex::new(terminal),
        life: Mutex::new(ProcessState::default()),
        exited: Notify::new(),
        reaped: Notify::new(),
        deadline: Mutex::new(plan.timeout.map(|limit| tokio::time::Instant::now() + limit)),
    });
    agent.processes.insert(Arc::clone(&process));
    Ok((process, ends, verdict))
}

fn facts(plan: &Plan) -> ProcessFacts {
    ProcessFacts {
        cmd: plan.cmd.clone(),
        args: plan.args.clone(),
        envs: plan.request_envs.clone(),
        cwd: plan.cwd.clone(),
        tag: plan.tag.clone(),
        user: plan.user.name.clone(),
        started_at_ms: now_ms(),
        pty: plan.pty.is_some(),
        logged: plan.logged,
    }
}

async fn exec_verdict(
    process: &Process,
    verdict: AsyncFd<OwnedFd>,
    shown: &ProcessLabel,
) -> Result<(), AgentError> {
    let reading = async {
        loop {
            let Ok(mut guard) = verdict.readable().await else { return None };
            match spawn::read_verdict(verdict.get_ref()) {
                Some(failure) => return failure,
                None => guard.clear_ready(),
            }
        }
    };
    let Some(failure) = running::within(EXEC_LIMIT, reading).await else {
        process.expire();
        return Err(AgentError::Unavailable("the process ended before its program started".into()));
    };
    let Some((step, errno)) = failure else { return Ok(()) };
    Err(match (step, errno) {
        (SpawnStep::Cwd, Errno::ACCESS | Errno::LOOP) => {
            AgentError::Denied(format!("cwd '{}' is not accessible", shown.cwd))
        }
        (SpawnStep::Cwd, Errno::NOTDIR) => {
            AgentError::Invalid(format!("cwd '{}' is not a directory", shown.cwd))
        }
        (SpawnStep::Cwd, Errno::NOENT) => AgentError::Invalid(format!("cwd '{}' does not exist", shown.cwd)),
        // Probably not the caller's fault: the agent lacks descriptors or memory.
        (SpawnStep::Cwd, errno) => AgentError::from_errno(errno, &format!("cwd '{}'", shown.cwd)),
        (SpawnStep::Exec, Errno::NOENT) => {
            AgentError::NotFound(format!("command not found: '{}'", shown.cmd))
        }
        (SpawnStep::Exec, errno) => AgentError::from_errno(errno, &format!("'{}'", shown.cmd)),
        (SpawnStep::Session | SpawnStep::Stdio | SpawnStep::Identity, errno) => {
            AgentError::from_errno(errno, &format!("start (step {step:?})"))
        }
    })
}

async fn carry(agent: &Agent, process: &Arc<Process>, ends: &mut Ends, timeout: Option<Duration>) {
    let carrying = carry_until_exit(agent, process, ends);
    let exit = match timeout {
        None => carrying.await,
        Some(limit) => {
            // The deadline runs in parallel with the output, which may wait for a reader.
            let expiring = async {
                running::sleep(limit, |left| {
                    *process.deadline() = Some(tokio::time::Instant::now() + left);
                })
                .await;
                process.expire();
                std::future::pending::<Exit>().await
            };
            tokio::select! { exit = carrying => exit, exit = expiring => exit }
        }
    };
    drain(agent, process, ends, true).await;
    process.hub.finish(exit);
    process.release_input().await;
    drain(agent, process, ends, false).await;
    process.release_terminal();
}

async fn carry_until_exit(agent: &Agent, process: &Process, ends: &mut Ends) -> Exit {
    loop {
        let which = tokio::select! {
            () = process.exited.notified() => None,
            () = readable(&ends.first) => Some(true),
            () = readable(&ends.second) => Some(false),
        };
        match which {
            None => {
                if let Some(exit) = process.exit() {
                    return exit;
                }
            }
            Some(true) => _ = pass(agent, process, &mut ends.first).await,
            Some(false) => _ = pass(agent, process, &mut ends.second).await,
        }
    }
}

/// Continues to read after the exit: with `briefly` for the grace period, otherwise until the last holder of the pipes
/// is gone.
async fn drain(agent: &Agent, process: &Process, ends: &mut Ends, briefly: bool) {
    if briefly {
        // Output from before the exit is already in the pipes: it is forwarded first, however long the readers need.
        while pass(agent, process, &mut ends.first).await || pass(agent, process, &mut ends.second).await {}
    }
    let rest = async {
        while ends.first.is_some() || ends.second.is_some() {
            let first = tokio::select! {
                () = readable(&ends.first) => true,
                () = readable(&ends.second) => false,
            };
            pass(agent, process, if first { &mut ends.first } else { &mut ends.second }).await;
        }
    };
    if briefly {
        let _ = tokio::time::timeout(DRAIN_GRACE, rest).await;
    } else {
        rest.await;
    }
}

async fn readable(wire: &OutputPipe) {
    match wire {
        Some((_, fd)) => {
            let _ = fd.readable().await;
        }
        None => std::future::pending().await,
    }
}

/// Forwards one chunk from the pipe to all readers. False: no data (for now, or for ever: then the pipe is closed).
async fn pass(agent: &Agent, process: &Process, wire: &mut OutputPipe) -> bool {
    let Some((source, fd)) = wire else { return false };
    let source = *source;
    match read_chunk(fd, source) {
        Ok(Some(data)) => {
            if process.facts.logged {
                agent.logs.append(process.pid, source, &data);
            }
            process.hub.publish(source, data).await;
            true
        }
        Ok(None) => false,
        Err(()) => {
            *wire = None;
            false
        }
    }
}

/// `Ok(None)`: no data now. `Err`: the end.
fn read_chunk(fd: &AsyncFd<OwnedFd>, source: OutputSource) -> Result<Option<Bytes>, ()> {
    thread_local! {
        // One shared buffer: only the runtime's thread reads, and never across an await.
        static BUFFER: std::cell::RefCell<Vec<u8>> = const { std::cell::RefCell::new(Vec::new()) };
    }
    let size = if source == OutputSource::Pty { TERMINAL_CHUNK } else { CHUNK };
    BUFFER.with_borrow_mut(|buffer| {
        buffer.resize(CHUNK, 0);
        loop {
            match rustix::io::read(fd.get_ref(), &mut buffer[..size]) {
                Ok(0) => return Err(()),
                Ok(n) => return Ok(Some(Bytes::copy_from_slice(&buffer[..n]))),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    clear_readiness(fd);
                    return Ok(None);
                }
                // A terminal whose last holder is gone returns EIO.
                Err(_) => return Err(()),
            }
        }
    })
}

/// Marks the descriptor as empty in the event loop, so that the next `readable` waits for the kernel.
fn clear_readiness(fd: &AsyncFd<OwnedFd>) {
    let waker = futures::task::noop_waker_ref();
    let mut context = std::task::Context::from_waker(waker);
    if let std::task::Poll::Ready(Ok(mut guard)) = fd.poll_read_ready(&mut context) {
        guard.clear_ready();
    }
}
