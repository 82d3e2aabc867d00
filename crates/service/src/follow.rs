//! Follows a process over whatever happens to its sandbox: a pause is waited out, and after a restore of its memory the
//! reader is attached again where it was, so that nothing is lost or told twice. It never wakes anybody, and it ends when
//! the processes are gone.

use std::time::Duration;

use atoll_agentapi::{AgentError, ProcessEvent, ProcessStream};
use atoll_model::{Code, Phase};
use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::time::Instant;

use crate::activity::Busy;
use crate::agent::{About, refusal};
use crate::registry::Handle;
use crate::wake::SandboxAgent;
use crate::{ExecEvent, ServiceError};

/// LIMIT: a connection that breaks again and again without a byte in between is not attached for ever.
const ATTEMPTS: u32 = 3;

/// A reader of one process, and a reason for its sandbox to stay awake.
pub(crate) struct Follow {
    handle: Handle,
    epoch: u64,
    pid: u32,
    stream: ProcessStream,
    attempts: u32,
    ended: bool,
    _busy: Busy,
}

impl Follow {
    pub(crate) fn new(sandbox: SandboxAgent, pid: u32, stream: ProcessStream) -> Self {
        let SandboxAgent { handle, busy, .. } = sandbox;
        Self { epoch: handle.activity.epoch(), handle, pid, stream, attempts: 0, ended: false, _busy: busy }
    }

    /// The next event; `None` after the exit or an error. Cancel-safe between events and while it waits out a pause.
    pub(crate) async fn next(&mut self) -> Option<Result<ProcessEvent, ServiceError>> {
        while !self.ended {
            match self.stream.next().await {
                Some(Ok(event)) => {
                    self.attempts = 0;
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
        let from = self.stream.position();
        while let (true, Some(from)) = (broken(&error) && self.attempts < ATTEMPTS, from) {
            self.attempts += 1;
            let mut state = self.handle.state.clone();
            let awake = state.wait_for(|state| {
                !matches!(state.lease.phase, Phase::Pausing | Phase::Paused | Phase::Resuming)
            });
            let Ok(agent) = awake.await.map(|state| state.agent.clone()) else { break };
            let Some(agent) = agent.filter(|_| self.handle.activity.epoch() == self.epoch) else { break };
            let agent = agent.with_pulse(self.handle.activity.pulse());
            match agent.attach_from(self.pid, from).await {
                Ok(stream) => {
                    tracing::debug!(sandbox = %self.handle.lease().id, pid = self.pid, from, "a reader is attached again");
                    self.stream = stream;
                    return Ok(());
                }
                Err(again) => error = again,
            }
        }
        Err(refusal(About::Process, error))
    }

    pub(crate) fn into_events(self) -> BoxStream<'static, ExecEvent> {
        let events = futures::stream::unfold(self, |mut follow| async move {
            follow.next().await.map(|event| (exec_event(event), follow))
        });
        events.boxed()
    }
}

/// Whether only the connection is gone, not the process.
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
        let counts = !matches!(phase, Phase::Pausing | Phase::Paused | Phase::Resuming);
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
    ServiceError::new(Code::SandboxUnavailable, "the sandbox did not say how the command ended")
}
