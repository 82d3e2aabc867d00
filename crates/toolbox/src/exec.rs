//! Runs one shell command to its end: its output is returned in the order in which it was written.
//!
//! The shell command consists only of the given command and constant text.

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_agentapi::{ProcessEvent, ProcessStream, Session, StartProcess};
use atoll_budget::{CollectedOutput, Collector, Keep};

use crate::{Toolbox, ToolboxError};

/// LIMIT: bytes that are kept of both streams together, half of the beginning and half of the end.
pub(crate) const OUTPUT_MAX: usize = 16 << 20;
/// LIMIT: the kernel accepts 128 KiB as one argument; a longer command is sent by stdin.
const ARGUMENT_MAX: usize = 96 << 10;
/// How long to wait for the end of a command after its timeout.
const AFTER_TIMEOUT: Duration = Duration::from_secs(10);

/// A shell command.
#[derive(Debug, Clone, Default)]
pub struct ShellLine {
    /// The command as a person would type it.
    pub line: String,
    /// The working directory; by default the sandbox's.
    pub cwd: Option<String>,
    /// Added to the sandbox's environment.
    pub env: BTreeMap<String, String>,
    /// After this time all its processes are ended.
    pub timeout: Option<Duration>,
}

/// The result of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramResult {
    /// The exit code, as in a shell.
    pub exit_code: i32,
    /// Both streams, in the order in which they arrived.
    pub output: CollectedOutput,
}

impl Toolbox {
    /// Runs a command with bash, or with sh if there is no bash. Every exit code is a regular result.
    pub async fn shell(&self, line: ShellLine) -> Result<ProgramResult, ToolboxError> {
        let limit = line.timeout;
        let (args, input) = shell_args(line.line);
        let start = StartProcess {
            cmd: "/bin/bash".to_owned(),
            args,
            envs: line.env,
            cwd: line.cwd.unwrap_or_default(),
            stdin: input.is_some(),
            user: self.user.clone(),
            timeout: limit,
            ..Default::default()
        };
        self.collect(start, input, "the command").await
    }

    /// Starts a program, sends its input, and waits for its end.
    pub(crate) async fn collect(
        &self,
        start: StartProcess,
        input: Option<Vec<u8>>,
        what: &'static str,
    ) -> Result<ProgramResult, ToolboxError> {
        let limit = start.timeout;
        let (started, stream) = self.sandbox.start(start).await.map_err(ToolboxError::process)?;
        let reading = async {
            match input {
                None => self.read(stream).await,
                Some(input) => {
                    // The program may end without reading all of it.
                    let (read, ()) =
                        tokio::join!(self.read(stream), feed(&*self.sandbox, started.pid, &input));
                    read
                }
            }
        };
        let (ran, timed_out) = match limit.and_then(|limit| limit.checked_add(AFTER_TIMEOUT)) {
            None => reading.await?,
            Some(all) => match tokio::time::timeout(all, reading).await {
                Ok(read) => read?,
                Err(_) => return Err(ToolboxError::TimedOut { what, limit: limit.unwrap_or_default() }),
            },
        };
        match limit {
            Some(limit) if timed_out => Err(ToolboxError::TimedOut { what, limit }),
            _ => Ok(ran),
        }
    }

    /// The whole output, and whether the agent ended the program at its deadline.
    async fn read(&self, mut stream: ProcessStream) -> Result<(ProgramResult, bool), ToolboxError> {
        let mut output = Collector::new(&self.account, Keep::both(OUTPUT_MAX));
        while let Some(event) = stream.next().await {
            match event.map_err(ToolboxError::process)? {
                ProcessEvent::Stdout(data) | ProcessEvent::Stderr(data) | ProcessEvent::Pty(data) => {
                    output.push(&data).await;
                }
                ProcessEvent::Dropped(bytes) => output.lost(bytes),
                ProcessEvent::Exit(status) => {
                    let ran = ProgramResult { exit_code: status.shell_code(), output: output.finish() };
                    return Ok((ran, status.timed_out));
                }
            }
        }
        Err(ToolboxError::Unreadable { tool: "the agent", why: "a process without an end" })
    }
}

/// Prepended to the command: one pipe for both streams, because the order of writes to two pipes is unknown. On the
/// same line, so that line numbers in the shell's messages stay right.
const ONE_PIPE: &str = "exec 2>&1; ";

/// Arguments of a shell, and its input if the command is too long for an argument.
fn shell_args(line: String) -> (Vec<String>, Option<Vec<u8>>) {
    let dash_c = "-c".to_owned();
    if line.len() <= ARGUMENT_MAX {
        return (vec![dash_c, format!("{ONE_PIPE}{line}")], None);
    }
    (vec![dash_c, format!("{ONE_PIPE}eval \"$(cat)\"")], Some(line.into_bytes()))
}

/// Sends all input. If the program does not read it, that is no error.
pub(crate) async fn feed(sandbox: &dyn Session, pid: u32, input: &[u8]) {
    if sandbox.send_stdin(pid, input).await.is_ok() {
        let _ = sandbox.close_stdin(pid).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_argument_however_long_it_is() {
        assert_eq!(
            shell_args("echo 'a b'".into()),
            (vec!["-c".into(), "exec 2>&1; echo 'a b'".into()], None)
        );
        let long = "x".repeat(ARGUMENT_MAX + 1);
        let (args, input) = shell_args(long.clone());
        assert_eq!((args.len(), input), (2, Some(long.into_bytes())));
        assert!(args[1].len() < 100);
    }
}
