//! Follows a process over whatever happens to its sandbox: a pause is waited out, and after a restore of its memory the
//! reader is attached again where it was, so that nothing is lost or told twice. It never wakes anybody, and it ends when
//! the processes are gone.

use std::time::Duration;

use atoll_agentapi::{AgentClient, AgentError, ProcessEvent, ProcessStream};
use atoll_model::{Code, InstanceId};
use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::time::Instant;

use crate::activity::Busy;
use crate::agent::{AgentOperation, refusal};
use crate::registry::{DriverState, Handle};
use crate::wake::SandboxAgent;
use crate::{ExecEvent, ServiceError};

/// LIMIT: a connection to one instance that breaks again and again is not made anew for ever.
const ATTEMPTS: u32 = 3;

/// A reader of one process, and a reason for its sandbox to stay awake.
pub(crate) struct Follow {
    back: WayBack,
    pid: u32,
    stream: ProcessStream,
    ended: bool,
    _busy: Busy,
}

impl Follow {
    pub(crate) fn new(sandbox: SandboxAgent, pid: u32, stream: ProcessStream) -> Self {
        let SandboxAgent { handle, busy, .. } = sandbox;
        Self { back: WayBack::new(handle), pid, stream, ended: false, _busy: busy }
    }

    /// The next event; `None` after the exit or an error. Cancel-safe between events and while it waits out a pause.
    pub(crate) async fn next(&mut self) -> Option<Result<ProcessEvent, ServiceError>> {
        while !self.ended {
            match self.stream.next().await {
                Some(Ok(event)) => {
                    self.ended = matches!(event, ProcessEvent::Exit(_));
                    return Some(Ok(event));
                }
                Some(Err(error)) => {
                    if let Err(lost) = self.again(error).await {
                        self.ended = true;
                        return Some(Err(lost));
                    }
                }
                None => self.ended = true,
            }
        }
        None
    }

    /// Attaches again, once the sandbox runs; or says why that is no use.
    async fn again(&mut self, mut error: AgentError) -> Result<(), ServiceError> {
        let Some(from) = self.stream.position() else { return Err(refusal(AgentOperation::Process, error)) };
        while let Some(agent) = self.back.after(&error).await {
            match agent.attach_from(self.pid, from).await {
                Ok(stream) => {
                    tracing::debug!(pid = self.pid, from, "a reader is attached again");
                    self.stream = stream;
                    return Ok(());
                }
                Err(again) => error = again,
            }
        }
        Err(refusal(AgentOperation::Process, error))
    }

    pub(crate) fn into_events(self) -> BoxStream<'static, ExecEvent> {
        let events = futures::stream::unfold(self, |mut follow| async move {
            follow.next().await.map(|event| (exec_event(event), follow))
        });
        events.boxed()
    }
}

/// The way back to the same processes after a connection to their agent broke.
pub(crate) struct WayBack {
    handle: Handle,
    epoch: u64,
    instance: Option<InstanceId>,
    attempts: u32,
}

impl WayBack {
    pub(crate) fn new(handle: Handle) -> Self {
        let (epoch, instance) = (handle.activity.epoch(), handle.lease().instance.clone());
        Self { handle, epoch, instance, attempts: 0 }
    }

    /// Waits out a pause and answers with the agent of the same processes. `None`: they are gone, or what broke is no
    /// connection, or it breaks again and again.
    pub(crate) async fn after(&mut self, error: &AgentError) -> Option<AgentClient> {
        if !broken(error) {
            return None;
        }
        let mut state = self.handle.state.clone();
        let awake = |state: &DriverState| !state.lease.phase.is_suspended();
        let DriverState { lease, agent, .. } = state.wait_for(awake).await.ok()?.clone();
        if self.instance != lease.instance {
            (self.instance, self.attempts) = (lease.instance.clone(), 0);
        }
        self.attempts += 1;
        let same = self.handle.activity.epoch() == self.epoch && self.attempts <= ATTEMPTS;
        Some(agent.filter(|_| same)?.with_pulse(self.handle.activity.pulse()))
    }
}

/// Whether only the connection is gone, not what is at its other end.
const fn broken(error: &AgentError) -> bool {
    matches!(
        error,
        AgentError::Connect(_)
            | AgentError::Transport(_)
            | AgentError::Deadline { .. }
            | AgentError::Ended
            | AgentError::Protocol(_)
    )
}

fn exec_event(event: Result<ProcessEvent, ServiceError>) -> ExecEvent {
    match event {
        Ok(ProcessEvent::Stdout(data)) => ExecEvent::Stdout(data),
        Ok(ProcessEvent::Stderr(data)) => ExecEvent::Stderr(data),
        Ok(ProcessEvent::Pty(data)) => ExecEvent::Terminal(data),
        Ok(ProcessEvent::Dropped(bytes)) => ExecEvent::Dropped(bytes),
        Ok(ProcessEvent::Exit(status)) => ExecEvent::Exit {
            exit_code: status.shell_code(),
            signal: status.signal,
            timed_out: status.timed_out,
        },
        Err(error) => ExecEvent::Lost(error),
    }
}

/// Waits until the sandbox has been awake for so long; pauses do not count.
pub(crate) async fn awake_for(handle: &Handle, limit: Duration) {
    let mut state = handle.state.clone();
    let mut left = limit;
    loop {
        let phase = state.borrow_and_update().lease.phase;
        let counts = !phase.is_suspended();
        let since = Instant::now();
        tokio::select! {
            () = tokio::time::sleep(left), if counts => return,
            changed = state.changed() => {
                if counts {
                    left = left.saturating_sub(since.elapsed());
                }
                if changed.is_err() {
                    return tokio::time::sleep(left).await;
                }
            }
        }
    }
}

/// The end of a command was not seen.
pub(crate) fn unseen_end() -> ServiceError {
    ServiceError::new(Code::SandboxUnavailable, "the sandbox did not report how the command ended")
}
