//! Follows a process across changes of its sandbox: it waits for the end of a pause, and after a restore of memory the
//! reader is attached again at its position, so that no output is lost or repeated. It never wakes a sandbox, and it
//! ends when the processes no longer exist.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use atoll_agentapi::{AgentClient, AgentError, ProcessEvent, ProcessSource, ProcessStream};
use atoll_model::{Code, InstanceId};
use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::time::Instant;

use crate::activity::Busy;
use crate::agent::{AgentOperation, refusal};
use crate::registry::{DriverState, Handle};
use crate::{ExecEvent, ServiceError};

/// LIMIT: a connection to one instance that fails repeatedly is not opened again without end.
const ATTEMPTS: u32 = 3;

/// The events of one process. Keeps its sandbox busy.
pub(crate) struct Follow {
    back: WayBack,
    pid: u32,
    stream: ProcessStream,
    ended: bool,
    _busy: Arc<Busy>,
}

impl Follow {
    pub(crate) fn new(handle: Handle, busy: Arc<Busy>, pid: u32, stream: ProcessStream) -> Self {
        Self { back: WayBack::new(handle), pid, stream, ended: false, _busy: busy }
    }

    /// Attaches again once the sandbox runs, or returns why that is not possible.
    async fn again(&mut self, mut error: AgentError) -> Result<(), AgentError> {
        let Some(from) = self.stream.position() else { return Err(error) };
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
        Err(error)
    }
}

#[async_trait]
impl ProcessSource for Follow {
    /// Cancel-safe between events and while it waits for the end of a pause.
    async fn next(&mut self) -> Option<Result<ProcessEvent, AgentError>> {
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

    fn position(&self) -> Option<u64> {
        self.stream.position()
    }
}

/// The events of a process as those of the service.
pub(crate) fn exec_events(stream: ProcessStream) -> BoxStream<'static, ExecEvent> {
    stream.into_stream().map(exec_event).boxed()
}

/// Reconnects to the same processes after a connection to their agent failed.
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

    /// Waits for the end of a pause and returns the agent of the same processes. `None` if they no longer exist, if the
    /// error is not one of the connection, or if it fails repeatedly.
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

/// Whether only the connection failed, not the process.
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

fn exec_event(event: Result<ProcessEvent, AgentError>) -> ExecEvent {
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
        Err(error) => ExecEvent::Lost(refusal(AgentOperation::Process, error)),
    }
}

/// Waits until the sandbox has been awake for this long; pauses do not count.
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

/// The error for a command whose end was not seen.
pub(crate) fn unseen_end() -> ServiceError {
    ServiceError::new(Code::SandboxUnavailable, "the sandbox did not report how the command ended")
}
