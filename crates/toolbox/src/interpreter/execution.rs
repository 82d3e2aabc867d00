//! One execution: its output, results and errors, until its end. It has an optional deadline, and is interrupted when
//! its caller is gone.

use std::collections::VecDeque;
use std::time::Duration;

use std::sync::Arc;

use atoll_agentapi::{AgentError, ExitStatus, ProcessEvent, ProcessStream, Session};
use futures::Stream;
use serde_json::json;
use tokio::time::Instant;

use super::decode::{Decoder, request};
use super::{Execute, InterpreterContext, Language, Rich, SIGINT, SIGKILL};
use crate::{Toolbox, ToolboxError};

/// How long a context may be silent after an interrupt before it is interrupted again, or ended.
const GRACE: Duration = Duration::from_secs(5);
/// LIMIT: interrupts before a context is ended.
const INTERRUPTS_MAX: u8 = 2;
/// LIMIT: how long a context may continue to send output after an interrupt. Output from before is still in flight.
const GRACE_MAX: Duration = Duration::from_secs(20);
/// How long the end of one stream of a shell waits for the end of the other, which the code may have closed or redirected.
const OTHER_END: Duration = Duration::from_secs(3);
/// LIMIT: the same while only the stream that has ended sends output: a process in the background may never stop.
const OTHER_END_MAX: Duration = Duration::from_secs(15);
/// How long an incomplete line waits for its rest.
const LINE_WAIT: Duration = Duration::from_millis(20);
/// LIMIT: bytes of a line that is assembled this way.
const LINE_MAX: usize = 64 << 10;
/// LIMIT: for the interrupt of an abandoned execution.
const FAREWELL: Duration = Duration::from_secs(10);

/// An event of an execution. `End` is the last.
#[derive(Debug, Clone, PartialEq)]
pub enum ExecutionEvent {
    /// It started; with its number in its context.
    Started {
        /// From 1.
        count: u64,
    },
    /// Standard output.
    Stdout(String),
    /// Standard error.
    Stderr(String),
    /// A value, or displayed data.
    Result(Box<Rich>),
    /// It failed.
    Error {
        /// The type of the error.
        name: String,
        /// Its message.
        value: String,
        traceback: String,
    },
    /// It exceeded its time limit and was interrupted; the end follows.
    TimedOut,
    /// So many bytes were lost because they were not read.
    Dropped(u64),
    /// It ended.
    End,
}

/// A running execution.
pub struct Execution {
    sandbox: Arc<dyn Session>,
    context: InterpreterContext,
    id: String,
    stream: ProcessStream,
    decoder: Decoder,
    waiting: VecDeque<ExecutionEvent>,
    /// The error that ended it, to be returned after the queued events.
    failed: Option<ToolboxError>,
    started: bool,
    ended: bool,
    deadline: Option<Instant>,
    /// When the first interrupt was sent, and how many were.
    interrupted_at: Option<Instant>,
    interrupts: u8,
    /// Since when the stream that has not marked its end sends nothing, while the other one has ended.
    quiet_since: Option<Instant>,
}

impl std::fmt::Debug for Execution {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Execution").field("context", &self.context.id).finish_non_exhaustive()
    }
}

impl Execution {
    pub(super) async fn begin(
        toolbox: &Toolbox,
        context: InterpreterContext,
        id: String,
        execute: Execute,
    ) -> Result<Self, ToolboxError> {
        let sandbox = Arc::clone(&toolbox.sandbox);
        // A position after all output means the end; and the process waits for a reader with a position, so no output
        // is lost.
        let stream = sandbox.attach_from(context.pid, u64::MAX).await.map_err(ToolboxError::process)?;
        let deadline = execute.timeout.map(|timeout| Instant::now() + timeout);
        let (request, decoder) = request(&toolbox.account, &context, &id, &execute);
        let execution = Self {
            sandbox,
            context,
            id,
            stream,
            decoder,
            waiting: VecDeque::new(),
            failed: None,
            started: false,
            ended: false,
            deadline,
            interrupted_at: None,
            interrupts: 0,
            quiet_since: None,
        };
        let pid = execution.context.pid;
        execution.sandbox.send_stdin(pid, request.as_ref()).await.map_err(ToolboxError::process)?;
        Ok(execution)
    }

    /// The context it runs in.
    pub fn context(&self) -> &InterpreterContext {
        &self.context
    }

    /// The next event; `None` after the end or an error. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<ExecutionEvent, ToolboxError>> {
        loop {
            self.complete_line().await;
            if let Some(event) = self.waiting.pop_front() {
                self.started |= matches!(event, ExecutionEvent::Started { .. });
                if event == ExecutionEvent::End {
                    self.ended = true;
                    // A stream that nobody reads would hold up the output of the context, and with it other executions.
                    self.stream.detach();
                }
                return Some(Ok(event));
            }
            if self.ended {
                return None;
            }
            let more = match self.failed.take() {
                Some(error) => Err(error),
                None => self.more().await,
            };
            if let Err(error) = more {
                self.ended = true;
                return Some(Err(error));
            }
        }
    }

    /// The events as a `Stream`. Dropped before its end, it interrupts the execution.
    pub fn into_stream(self) -> impl Stream<Item = Result<ExecutionEvent, ToolboxError>> + Send + 'static {
        futures::stream::unfold(self, |mut execution| async move {
            let item = execution.next().await?;
            Some((item, execution))
        })
    }

    async fn more(&mut self) -> Result<(), ToolboxError> {
        if self.decoder.lacks_an_end() {
            return self.other_end().await;
        }
        let Some(deadline) = self.deadline else {
            let event = self.stream.next().await;
            return self.take(event);
        };
        // Checked first: with a flood of output an event is always ready, and the deadline would never be checked.
        if Instant::now() >= deadline {
            return self.expire().await;
        }
        match tokio::time::timeout_at(deadline, self.stream.next()).await {
            Ok(event) => {
                self.extend_grace();
                self.take(event)
            }
            Err(_) => self.expire().await,
        }
    }

    /// Waits for the end of a shell's second stream, for a limited time.
    async fn other_end(&mut self) -> Result<(), ToolboxError> {
        let quiet_since = *self.quiet_since.get_or_insert_with(Instant::now);
        let Ok(event) = tokio::time::timeout(OTHER_END, self.stream.next()).await else {
            self.decoder.end_without_marker(&mut self.waiting);
            return Ok(());
        };
        let is_awaited = matches!(&event, Some(Ok(event)) if self.decoder.is_of_open_stream(event));
        if is_awaited {
            self.quiet_since = None;
        } else if quiet_since.elapsed() >= OTHER_END_MAX {
            self.decoder.end_without_marker(&mut self.waiting);
            return Ok(());
        }
        self.take(event)
    }

    /// A context that still sends output after an interrupt gets more time.
    fn extend_grace(&mut self) {
        if let Some(at) = self.interrupted_at {
            self.deadline = Some((Instant::now() + GRACE).min(at + GRACE_MAX));
        }
    }

    /// A program may write a line in pieces (R does); it is returned in one piece, unless the rest takes too long.
    /// Queued events stay in the queue, so that nothing is lost when this is cancelled.
    async fn complete_line(&mut self) {
        if !self.decoder.reads_raw_output() {
            return;
        }
        let until = Instant::now() + LINE_WAIT;
        while self.failed.is_none() && self.waiting.len() == 1 && is_partial_line(&self.waiting[0]) {
            let Ok(event) = tokio::time::timeout_at(until, self.stream.next()).await else { return };
            self.failed = self.take(event).err();
            join_lines(&mut self.waiting);
        }
    }

    /// First an interrupt, then another one, because code can lose one (Python drops an exception in `__del__`); if both did not
    /// help, the end of the context. A queued execution is removed from the queue, if its context supports that, and not
    /// waited for.
    async fn expire(&mut self) -> Result<(), ToolboxError> {
        self.interrupts += 1;
        if self.interrupts > INTERRUPTS_MAX {
            self.sandbox.signal(self.context.pid, SIGKILL).await.map_err(ToolboxError::process)?;
            self.deadline = None;
            return Ok(());
        }
        let now = Instant::now();
        self.deadline = Some(now + GRACE);
        if self.interrupted_at.is_none() {
            self.interrupted_at = Some(now);
            self.waiting.push_back(ExecutionEvent::TimedOut);
            if !self.started {
                self.waiting.push_back(ExecutionEvent::End);
            }
        }
        let aim = InterruptTarget::One { id: &self.id, started: self.started };
        interrupt(&*self.sandbox, &self.context, aim).await.map_err(ToolboxError::process)
    }

    fn take(&mut self, event: Option<Result<ProcessEvent, AgentError>>) -> Result<(), ToolboxError> {
        match event.transpose().map_err(ToolboxError::process)? {
            Some(ProcessEvent::Stdout(data) | ProcessEvent::Pty(data)) => {
                self.decoder.stdout(&self.id, &data, &mut self.waiting)
            }
            Some(ProcessEvent::Stderr(data)) => {
                self.decoder.stderr(&data, &mut self.waiting);
                Ok(())
            }
            Some(ProcessEvent::Dropped(bytes)) => {
                self.waiting.push_back(ExecutionEvent::Dropped(bytes));
                Ok(())
            }
            Some(ProcessEvent::Exit(status)) => {
                self.lost(status);
                Ok(())
            }
            None => {
                Err(ToolboxError::Unreadable { tool: "a context", why: "it ended without an end message" })
            }
        }
    }

    /// The context ended during the execution.
    fn lost(&mut self, status: ExitStatus) {
        let value = format!("the context ended with code {}", status.shell_code());
        let error = ExecutionEvent::Error { name: "ContextDied".into(), value, traceback: String::new() };
        self.waiting.extend([error, ExecutionEvent::End]);
    }
}

impl Drop for Execution {
    fn drop(&mut self) {
        let handle = match tokio::runtime::Handle::try_current() {
            Ok(handle) if !self.ended => handle,
            _ => return,
        };
        let (sandbox, context) = (self.sandbox.clone(), self.context.clone());
        let (id, started) = (self.id.clone(), self.started);
        // The caller is gone, so no one can own this task; it is one small request with its own deadline.
        handle.spawn(async move {
            let aim = InterruptTarget::One { id: &id, started };
            let _ = tokio::time::timeout(FAREWELL, interrupt(&*sandbox, &context, aim)).await;
        });
    }
}

fn is_partial_line(event: &ExecutionEvent) -> bool {
    match event {
        ExecutionEvent::Stdout(text) | ExecutionEvent::Stderr(text) => {
            !text.ends_with('\n') && text.len() < LINE_MAX
        }
        _ => false,
    }
}

/// Joins the first two events if they are parts of one line.
fn join_lines(events: &mut VecDeque<ExecutionEvent>) {
    use ExecutionEvent::{Stderr, Stdout};
    while events.len() > 1 && is_partial_line(&events[0]) {
        let joined = match (&events[0], &events[1]) {
            (Stdout(one), Stdout(two)) => Stdout(format!("{one}{two}")),
            (Stderr(one), Stderr(two)) => Stderr(format!("{one}{two}")),
            _ => return,
        };
        events.pop_front();
        events[0] = joined;
    }
}

/// The target of an interrupt.
#[derive(Clone, Copy)]
pub(super) enum InterruptTarget<'a> {
    /// The running execution.
    Running,
    /// One execution, which may still be queued.
    One { id: &'a str, started: bool },
}

pub(super) async fn interrupt(
    sandbox: &dyn Session,
    context: &InterpreterContext,
    aim: InterruptTarget<'_>,
) -> Result<(), AgentError> {
    let (id, runs) = match aim {
        InterruptTarget::Running => (None, true),
        InterruptTarget::One { id, started } => (Some(id), started),
    };
    match context.language {
        // The bridge knows which one runs.
        Language::Python => {
            let line = format!("{}\n", json!({ "op": "interrupt", "id": id }));
            sandbox.send_stdin(context.pid, line.as_bytes()).await
        }
        Language::JavaScript | Language::TypeScript if !runs => {
            let line = format!("{}\n", json!({ "op": "cancel", "id": id }));
            sandbox.send_stdin(context.pid, line.as_bytes()).await
        }
        Language::Bash | Language::R | Language::Java if !runs => Ok(()),
        Language::JavaScript | Language::TypeScript | Language::Bash | Language::R | Language::Java => {
            sandbox.signal(context.pid, SIGINT).await
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_one_line_are_put_together_and_lines_are_not() {
        let out = |text: &str| ExecutionEvent::Stdout(text.to_owned());
        let err = |text: &str| ExecutionEvent::Stderr(text.to_owned());
        let mut events: VecDeque<_> = [out("[1]"), out(" \"hi\""), out("\n"), out("next\n"), err("a")].into();
        join_lines(&mut events);
        assert_eq!(events, [out("[1] \"hi\"\n"), out("next\n"), err("a")]);
        let mut apart: VecDeque<_> = [out("a"), err("b"), out("c")].into();
        join_lines(&mut apart);
        assert_eq!(apart, [out("a"), err("b"), out("c")], "streams stay apart");
        assert!(!is_partial_line(&ExecutionEvent::End) && !is_partial_line(&out(&"x".repeat(LINE_MAX))));
    }
}
