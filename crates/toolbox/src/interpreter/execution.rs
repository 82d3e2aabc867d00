//! One execution: what it writes, shows and fails with, until its end. It has a deadline if one was asked for, and is
//! interrupted when nobody waits for it any more.

use std::collections::VecDeque;
use std::time::Duration;

use atoll_agentapi::{AgentClient, AgentError, ExitStatus, ProcessEvent, ProcessStream};
use bytes::Bytes;
use futures::Stream;
use serde_json::json;
use tokio::time::Instant;

use super::wire::{Lines, Markers, Shown, Told, Utf8, is_heavy};
use super::{Context, Execute, Language, Rich, SIGINT, SIGKILL};
use crate::ToolboxError;

/// How long an interrupt may take to work before the context is ended.
const GRACE: Duration = Duration::from_secs(5);
/// LIMIT: for the interrupt of an execution that nobody waits for.
const FAREWELL: Duration = Duration::from_secs(10);

/// Said in place of a result that holds too many values to be read.
const LEFT_OUT: &str =
    "a result was left out: it holds more values than are passed on; print it, or write it to a file\n";

/// What happens in an execution. `End` is the last.
#[derive(Debug, Clone, PartialEq)]
pub enum ExecutionEvent {
    /// It runs; the how manieth of its context.
    Started {
        /// From 1.
        count: u64,
    },
    /// Standard output.
    Stdout(String),
    /// Standard error.
    Stderr(String),
    /// A value, or something that was displayed.
    Result(Box<Rich>),
    /// It failed.
    Error {
        /// What sort of failure.
        name: String,
        /// Its words.
        value: String,
        /// Where.
        traceback: String,
    },
    /// Its time was over; it was interrupted, and the end follows.
    TimedOut,
    /// So many bytes were lost because nobody read them.
    Dropped(u64),
    /// It ended.
    End,
}

/// An execution that runs.
pub struct Execution {
    agent: AgentClient,
    context: Context,
    id: String,
    stream: ProcessStream,
    decoder: Decoder,
    waiting: VecDeque<ExecutionEvent>,
    started: bool,
    ended: bool,
    deadline: Option<Instant>,
    interrupted: bool,
}

impl std::fmt::Debug for Execution {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Execution").field("context", &self.context.id).finish_non_exhaustive()
    }
}

impl Execution {
    pub(super) async fn begin(
        agent: AgentClient,
        context: Context,
        id: String,
        execute: Execute,
    ) -> Result<Self, ToolboxError> {
        // Ahead of all output means at its end; and a reader that names its place is waited for, so that nothing is lost.
        let stream = agent.attach_from(context.pid, u64::MAX).await.map_err(ToolboxError::process)?;
        let deadline = execute.timeout.map(|timeout| Instant::now() + timeout);
        let (request, decoder) = request(&context, &id, &execute);
        let execution = Self {
            agent,
            context,
            id,
            stream,
            decoder,
            waiting: VecDeque::new(),
            started: false,
            ended: false,
            deadline,
            interrupted: false,
        };
        let pid = execution.context.pid;
        execution.agent.send_stdin(pid, request).await.map_err(ToolboxError::process)?;
        Ok(execution)
    }

    /// The context it runs in.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The next event; `None` after the end or an error. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<ExecutionEvent, ToolboxError>> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                self.started |= matches!(event, ExecutionEvent::Started { .. });
                self.ended |= event == ExecutionEvent::End;
                return Some(Ok(event));
            }
            if self.ended {
                return None;
            }
            if let Err(error) = self.more().await {
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
        let Some(deadline) = self.deadline else {
            let event = self.stream.next().await;
            return self.take(event);
        };
        // Looked at first: a flood always has an event ready, and would be read for ever.
        if Instant::now() >= deadline {
            return self.expire().await;
        }
        match tokio::time::timeout_at(deadline, self.stream.next()).await {
            Ok(event) => self.take(event),
            Err(_) => self.expire().await,
        }
    }

    /// First an interrupt; if that did not help, the end of the context. What still stands behind others is taken back, as
    /// far as its context can, and not waited for.
    async fn expire(&mut self) -> Result<(), ToolboxError> {
        if std::mem::replace(&mut self.interrupted, true) {
            self.agent.signal(self.context.pid, SIGKILL).await.map_err(ToolboxError::process)?;
            self.deadline = None;
            return Ok(());
        }
        self.waiting.push_back(ExecutionEvent::TimedOut);
        self.deadline = Some(Instant::now() + GRACE);
        if !self.started {
            self.waiting.push_back(ExecutionEvent::End);
        }
        let aim = Aim::One { id: &self.id, started: self.started };
        interrupt(&self.agent, &self.context, aim).await.map_err(ToolboxError::process)
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
            None => Err(ToolboxError::Unreadable { tool: "a context", why: "it ended without an end" }),
        }
    }

    /// The context ended under it.
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
        let (agent, context) = (self.agent.clone(), self.context.clone());
        let (id, started) = (self.id.clone(), self.started);
        // Whoever waited has gone, so nobody is left to own this; it is one small request with a deadline of its own.
        handle.spawn(async move {
            let aim = Aim::One { id: &id, started };
            let _ = tokio::time::timeout(FAREWELL, interrupt(&agent, &context, aim)).await;
        });
    }
}

/// What an interrupt is for.
#[derive(Clone, Copy)]
pub(super) enum Aim<'a> {
    /// Whatever runs now.
    Running,
    /// One execution, which may still stand behind others.
    One { id: &'a str, started: bool },
}

pub(super) async fn interrupt(
    agent: &AgentClient,
    context: &Context,
    aim: Aim<'_>,
) -> Result<(), AgentError> {
    let (id, runs) = match aim {
        Aim::Running => (None, true),
        Aim::One { id, started } => (Some(id), started),
    };
    match context.language {
        // The bridge knows which of them runs.
        Language::Python => {
            let line = format!("{}\n", json!({ "op": "interrupt", "id": id }));
            agent.send_stdin(context.pid, line).await
        }
        Language::JavaScript | Language::TypeScript if !runs => {
            let line = format!("{}\n", json!({ "op": "cancel", "id": id }));
            agent.send_stdin(context.pid, line).await
        }
        Language::Bash if !runs => Ok(()),
        Language::JavaScript | Language::TypeScript | Language::Bash => {
            agent.signal(context.pid, SIGINT).await
        }
    }
}

/// What is written to the context, and how its answers are read.
fn request(context: &Context, id: &str, execute: &Execute) -> (Bytes, Decoder) {
    match context.language {
        Language::Python | Language::JavaScript | Language::TypeScript => {
            let (code, env, base) = (&execute.code, &execute.env, &context.base);
            let request = json!({ "op": "execute", "id": id, "code": code, "env": env, "base": base });
            (format!("{request}\n").into(), Decoder::Bridge(Lines::default()))
        }
        Language::Bash => {
            let (out, err) = (Side::new(id), Side::new(id));
            (script(id, execute).into(), Decoder::Shell { out, err, code: None })
        }
    }
}

/// The code as one argument of `eval`, between two markers on each stream. `command` keeps a shell alive that would leave at a
/// mistake in the code; the trap keeps it alive when the code is interrupted.
fn script(id: &str, execute: &Execute) -> String {
    let mut env = String::new();
    for (name, value) in &execute.env {
        env.push_str(&format!("{name}={} ", quoted(value)));
    }
    let code = quoted(&execute.code);
    // Lines of their own: after a mistake in the code some shells forget the rest of its line.
    [
        format!("trap : INT; __atoll_n=$((__atoll_n+1)); printf '\\036{id} s\\036' >&2; printf '\\036{id} s %d\\036' \"$__atoll_n\""),
        format!("{env}command eval {code} </dev/null"),
        format!("printf '\\036{id} e %d\\036' \"$?\"; printf '\\036{id} e\\036' >&2\n"),
    ]
    .join("\n")
}

/// As one word of a shell, whatever it holds.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Reads what a context writes.
enum Decoder {
    Bridge(Lines),
    Shell { out: Side, err: Side, code: Option<i32> },
}

/// One of a shell's two streams.
struct Side {
    markers: Markers,
    text: Utf8,
    begun: bool,
    ended: bool,
    /// What came before the other stream told of the beginning.
    early: String,
}

impl Side {
    fn new(id: &str) -> Self {
        Self {
            markers: Markers::new(id),
            text: Utf8::default(),
            begun: false,
            ended: false,
            early: String::new(),
        }
    }
}

impl Decoder {
    fn stdout(
        &mut self,
        id: &str,
        data: &[u8],
        into: &mut VecDeque<ExecutionEvent>,
    ) -> Result<(), ToolboxError> {
        match self {
            Self::Bridge(lines) => {
                for line in lines.feed(data)? {
                    if is_heavy(&line) && names(&line, id) {
                        into.push_back(ExecutionEvent::Stderr(LEFT_OUT.to_owned()));
                        continue;
                    }
                    into.extend(
                        Told::parse(&line).filter(|told| told.id.as_deref() == Some(id)).and_then(event),
                    );
                }
            }
            Self::Shell { out, err, code } => {
                for shown in out.markers.feed(data) {
                    match shown {
                        // What stands before the first marker belongs to another execution.
                        Shown::Output(bytes) if out.begun && !out.ended => {
                            push_text(into, out.text.feed(&bytes), ExecutionEvent::Stdout);
                        }
                        Shown::Output(_) => {}
                        Shown::Marker(words) if words.first().is_some_and(|word| word == "s") => {
                            out.begun = true;
                            let count = words.get(1).and_then(|word| word.parse().ok()).unwrap_or(0);
                            into.push_back(ExecutionEvent::Started { count });
                            push_text(into, std::mem::take(&mut err.early), ExecutionEvent::Stderr);
                        }
                        Shown::Marker(words) => {
                            out.ended = true;
                            *code = words.get(1).and_then(|word| word.parse().ok());
                        }
                    }
                }
                self.finish(into);
            }
        }
        Ok(())
    }

    fn stderr(&mut self, data: &[u8], into: &mut VecDeque<ExecutionEvent>) {
        // A bridge's own stderr is for people who look at it with a debugger.
        let Self::Shell { out, err, .. } = self else { return };
        for shown in err.markers.feed(data) {
            match shown {
                Shown::Output(bytes) if err.begun && !err.ended => {
                    let text = err.text.feed(&bytes);
                    // The streams are read side by side: this one may be ahead.
                    if out.begun {
                        push_text(into, text, ExecutionEvent::Stderr);
                    } else {
                        err.early.push_str(&text);
                    }
                }
                Shown::Output(_) => {}
                Shown::Marker(words) if words.first().is_some_and(|word| word == "s") => err.begun = true,
                Shown::Marker(_) => err.ended = true,
            }
        }
        self.finish(into);
    }

    /// Both streams say when they are at their end; the execution ends with the later one.
    fn finish(&mut self, into: &mut VecDeque<ExecutionEvent>) {
        let Self::Shell { out, err, code } = self else { return };
        if !(out.ended && err.ended) {
            return;
        }
        let Some(code) = code.take() else { return };
        if code != 0 {
            let value = code.to_string();
            into.push_back(ExecutionEvent::Error {
                name: "ExitCode".into(),
                value,
                traceback: String::new(),
            });
        }
        into.push_back(ExecutionEvent::End);
    }
}

/// Whether a line that is not read tells of this execution: a bridge names it at once, and nobody else knows the name.
fn names(line: &[u8], id: &str) -> bool {
    let beginning = &line[..line.len().min(256)];
    beginning.windows(id.len()).any(|window| window == id.as_bytes())
}

fn push_text(into: &mut VecDeque<ExecutionEvent>, text: String, make: fn(String) -> ExecutionEvent) {
    if !text.is_empty() {
        into.push_back(make(text));
    }
}

fn event(told: Told) -> Option<ExecutionEvent> {
    Some(match told.kind.as_str() {
        "started" => ExecutionEvent::Started { count: told.count },
        "stdout" => ExecutionEvent::Stdout(told.text),
        "stderr" => ExecutionEvent::Stderr(told.text),
        "result" => ExecutionEvent::Result(Box::new(Rich::of(told.data, told.main))),
        "error" => ExecutionEvent::Error { name: told.name, value: told.value, traceback: told.traceback },
        "end" => ExecutionEvent::End,
        _ => return None,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn context(language: Language) -> Context {
        Context { id: "c".into(), language, cwd: String::new(), created_at_ms: 0, pid: 1, base: None }
    }

    #[test]
    fn code_is_one_word_of_a_shell() {
        assert_eq!(quoted("a'b; rm -rf /"), r"'a'\''b; rm -rf /'");
        let execute = Execute { code: "echo 'x'".into(), ..Default::default() };
        assert!(script("id", &execute).contains(r"command eval 'echo '\''x'\''' </dev/null"));
    }

    #[test]
    fn a_shell_ends_when_both_of_its_streams_do() {
        let (_, mut decoder) = request(&context(Language::Bash), "n", &Execute::default());
        let mut events = VecDeque::new();
        // The second stream may be heard first.
        decoder.stderr(b"old\x1en s\x1eah", &mut events);
        decoder.stdout("n", b"old\x1en s 3\x1ehi", &mut events).unwrap();
        decoder.stdout("n", b"\x1en e 2\x1e", &mut events).unwrap();
        decoder.stderr(b"oh", &mut events);
        assert!(!events.contains(&ExecutionEvent::End));
        decoder.stderr(b"\x1en e\x1e", &mut events);
        let error =
            ExecutionEvent::Error { name: "ExitCode".into(), value: "2".into(), traceback: String::new() };
        let expected = [
            ExecutionEvent::Started { count: 3 },
            ExecutionEvent::Stderr("ah".into()),
            ExecutionEvent::Stdout("hi".into()),
            ExecutionEvent::Stderr("oh".into()),
            error,
            ExecutionEvent::End,
        ];
        assert_eq!(events, expected);
    }

    #[test]
    fn a_result_of_too_many_values_is_left_out_and_said_to_be() {
        let (_, mut decoder) = request(&context(Language::Python), "mine", &Execute::default());
        let heavy = |id: &str| {
            let many = "0,".repeat(600_000);
            format!("{{\"type\":\"result\",\"id\":\"{id}\",\"data\":{{\"application/json\":[{many}0]}}}}\n")
        };
        let mut events = VecDeque::new();
        decoder.stdout("mine", heavy("mine").as_bytes(), &mut events).unwrap();
        decoder.stdout("mine", heavy("other").as_bytes(), &mut events).unwrap();
        assert_eq!(events, [ExecutionEvent::Stderr(LEFT_OUT.to_owned())]);
    }

    #[test]
    fn lines_for_others_are_not_ours() {
        let (_, mut decoder) = request(&context(Language::Python), "mine", &Execute::default());
        let mut events = VecDeque::new();
        let wire = b"{\"type\":\"stdout\",\"id\":\"other\",\"text\":\"a\"}\nnoise\n{\"type\":\"end\",\"id\":\"mine\"}\n";
        decoder.stdout("mine", wire, &mut events).unwrap();
        assert_eq!(events, [ExecutionEvent::End]);
    }
}
