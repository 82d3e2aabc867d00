//! Runs the few programs that make a template (mmdebstrap, tar, apt-get): with a deadline, with their output passed on
//! line by line, and so that they end with this process.
//!
//! Programs of templates and sandboxes are never run here; the launcher and the agent run those.

use std::io::{BufRead, BufReader, Read};
use std::ops::ControlFlow;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use crate::environment::program_path;
use crate::error::TemplateError;

/// Called with each line of progress; returning `Break` cancels the work.
pub type Progress<'a> = &'a mut dyn FnMut(&str) -> ControlFlow<()>;

/// LIMIT: lines of output kept to explain a failure.
const TAIL_LINES: usize = 12;
/// LIMIT: bytes of one line that are passed on; a tool that writes no line breaks cannot fill memory.
const LINE_MAX: u64 = 4096;
/// LIMIT: bytes of captured standard output.
const OUTPUT_MAX: u64 = 4 << 20;
/// How often a silent tool is checked.
const TICK: Duration = Duration::from_millis(50);

/// A program to run, and the data for the error if it is missing.
pub(crate) struct Tool {
    pub name: &'static str,
    pub package: &'static str,
    pub template: &'static str,
    pub limit: Duration,
}

impl Tool {
    /// Runs `command` to its end and passes each line of its standard error to `progress`.
    pub(crate) fn run(&self, command: &mut Command, progress: Progress) -> Result<(), TemplateError> {
        let mut child = ChildGuard(
            self.spawn(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()))?,
        );
        let lines = lines_of(child.0.stderr.take().expect("stderr is a pipe"));
        let deadline = Instant::now() + self.limit;
        let mut tail: Vec<String> = Vec::new();
        let status = loop {
            match lines.recv_timeout(TICK) {
                Ok(line) => {
                    if progress(&line).is_break() {
                        return Err(TemplateError::Cancelled);
                    }
                    tail.push(line);
                    let excess = tail.len().saturating_sub(TAIL_LINES);
                    tail.drain(..excess);
                }
                // A grandchild may hold the pipe open after the tool itself has ended.
                Err(RecvTimeoutError::Timeout) => {
                    if let Some(status) = self.ended(&mut child.0)? {
                        break status;
                    }
                }
                Err(RecvTimeoutError::Disconnected) => break self.wait(&mut child.0, deadline)?,
            }
            if Instant::now() > deadline {
                return Err(TemplateError::ToolTimedOut { tool: self.name, limit_s: self.limit.as_secs() });
            }
        };
        self.judge(status, &tail.join(" | "))
    }

    /// Runs `command` and returns its standard output. For tools that end quickly.
    #[expect(
        clippy::disallowed_methods,
        reason = "ends when the tool's pipe closes; a tool that takes too long is killed"
    )]
    pub(crate) fn output(&self, command: &mut Command) -> Result<Vec<u8>, TemplateError> {
        let mut child = ChildGuard(
            self.spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()))?,
        );
        let stdout = child.0.stdout.take().expect("stdout is a pipe");
        let (send, receive) = sync_channel(1);
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = send.send(stdout.take(OUTPUT_MAX).read_to_end(&mut bytes).map(|_| bytes));
        });
        let deadline = Instant::now() + self.limit;
        let timed_out = TemplateError::ToolTimedOut { tool: self.name, limit_s: self.limit.as_secs() };
        let bytes =
            receive.recv_timeout(self.limit).map_err(|_| timed_out)?.map_err(|cause| self.failed(&cause))?;
        let status = self.wait(&mut child.0, deadline)?;
        self.judge(status, "")?;
        Ok(bytes)
    }

    fn spawn(&self, command: &mut Command) -> Result<Child, TemplateError> {
        command.env("LC_ALL", "C").spawn().map_err(|cause| match cause.kind() {
            std::io::ErrorKind::NotFound => self.missing(),
            _ => self.failed(&cause),
        })
    }

    /// The error for a tool that is not installed.
    pub(crate) fn missing(&self) -> TemplateError {
        TemplateError::ToolMissing { tool: self.name, template: self.template, package: self.package }
    }

    fn wait(&self, child: &mut Child, deadline: Instant) -> Result<ExitStatus, TemplateError> {
        loop {
            if let Some(status) = self.ended(child)? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                return Err(TemplateError::ToolTimedOut { tool: self.name, limit_s: self.limit.as_secs() });
            }
            std::thread::sleep(TICK / 10);
        }
    }

    fn ended(&self, child: &mut Child) -> Result<Option<ExitStatus>, TemplateError> {
        child.try_wait().map_err(|cause| self.failed(&cause))
    }

    fn judge(&self, status: ExitStatus, tail: &str) -> Result<(), TemplateError> {
        if status.success() {
            return Ok(());
        }
        Err(TemplateError::ToolFailed { tool: self.name, status: status.to_string(), tail: tail.to_owned() })
    }

    fn failed(&self, cause: &std::io::Error) -> TemplateError {
        TemplateError::ToolFailed { tool: self.name, status: "not run".to_owned(), tail: cause.to_string() }
    }
}

/// Whether a program of this name is in the search path. Checked before long work begins, not in its middle.
pub(crate) fn installed(program: &str) -> bool {
    std::env::split_paths(&program_path()).any(|folder| folder.join(program).is_file())
}

/// A command whose whole process tree ends with the thread that started it: a build must not continue after the
/// server's death.
///
/// It has its own pid and mount namespaces, which also removes its mounts.
pub(crate) fn contained(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args([
        "--pdeathsig",
        "KILL",
        "--",
        "unshare",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "--",
        program,
    ]);
    command
}

/// A child that is killed and reaped when this is dropped.
struct ChildGuard(Child);

impl Drop for ChildGuard {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

/// The lines of a stream, through a small queue. The reader ends with the stream or with the receiver.
#[expect(clippy::disallowed_methods, reason = "ends when the tool's pipe closes or the receiver is gone")]
fn lines_of(stream: impl Read + Send + 'static) -> Receiver<String> {
    let (send, receive) = sync_channel(64);
    std::thread::spawn(move || {
        let mut reader = BufReader::new(stream);
        let mut line = Vec::new();
        while matches!(reader.by_ref().take(LINE_MAX).read_until(b'\n', &mut line), Ok(n) if n > 0) {
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            line.clear();
            if !text.is_empty() && send.send(text).is_err() {
                return;
            }
        }
    });
    receive
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const SH: Tool = Tool { name: "sh", package: "dash", template: "test", limit: Duration::from_secs(5) };

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn lines_are_passed_on_and_a_failure_carries_the_last_ones() {
        let mut seen = Vec::new();
        let failed = SH.run(&mut sh("echo one >&2; echo two >&2; exit 3"), &mut |line| {
            seen.push(line.to_owned());
            ControlFlow::Continue(())
        });
        assert_eq!(seen, ["one", "two"]);
        assert!(matches!(failed, Err(TemplateError::ToolFailed { tail, .. }) if tail == "one | two"));
    }

    #[test]
    fn a_tool_that_never_ends_is_stopped_at_its_limit() {
        let tool = Tool { limit: Duration::from_millis(200), ..SH };
        let began = Instant::now();
        let result = tool.run(&mut sh("exec sleep 600"), &mut |_| ControlFlow::Continue(()));
        assert!(matches!(result, Err(TemplateError::ToolTimedOut { .. })));
        assert!(began.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn cancelling_ends_the_tool() {
        let result = SH.run(&mut sh("echo begin >&2; exec sleep 60"), &mut |_| ControlFlow::Break(()));
        assert!(matches!(result, Err(TemplateError::Cancelled)));
    }

    #[test]
    fn a_missing_tool_names_its_package() {
        let tool = Tool { name: "no-such-tool", package: "no-such-package", ..SH };
        let error = tool.output(&mut Command::new("/nonexistent/no-such-tool")).unwrap_err();
        assert_eq!(error.hint().unwrap(), "apt-get install -y no-such-package");
    }

    #[test]
    fn output_is_what_the_tool_wrote() {
        assert_eq!(SH.output(&mut sh("echo answer")).unwrap(), b"answer\n");
    }
}
