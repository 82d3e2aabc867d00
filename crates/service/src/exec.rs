//! Commands inside a sandbox: run and collected, streamed, attached to, signalled.

use std::time::Duration;

use atoll_agentapi::{
    AgentError, ExitStatus, ProcessEvent, ProcessStream, RESERVED_TAGS, RpcCode, Session, StartProcess,
    is_reserved_tag,
};
use atoll_budget::{Account, Collector, Keep};
use atoll_model::{Code, Principal};
use bytes::Bytes;
use futures::stream::BoxStream;
use tokio::time::Instant;

use crate::activity::ActivityKind;
use crate::agent::{AgentOperation, refusal};
use crate::follow::{awake_for, exec_events, unseen_end};
use crate::registry::Handle;
use crate::sandboxes::Sandboxes;
use crate::session::SandboxSession;
use crate::{Exec, ExecEvent, ExecOutcome, ProcessRecord, ServiceError, TerminalSize};

/// LIMIT: bytes of collected output per stream; a caller that needs more uses a stream.
const OUTPUT_MAX: usize = 8 << 20;
/// LIMIT: what a kernel accepts as arguments, minus room for the environment.
const ARGV_MAX: usize = 1 << 20;
const ENV_MAX: usize = 1 << 20;
/// How long to wait for the end of a command after its own timeout.
const AFTER_TIMEOUT: Duration = Duration::from_secs(10);
/// LIMIT: input is sent to the agent in pieces that it can hold.
const STDIN_CHUNK: usize = 64 << 10;
const SIGKILL: i32 = 9;

impl Sandboxes {
    /// Runs a command and collects its output. After its timeout the exit code is 124.
    pub async fn exec(&self, who: &Principal, ident: &str, exec: Exec) -> Result<ExecOutcome, ServiceError> {
        check(&exec)?;
        // A detached command continues by itself; its CPU usage keeps the sandbox awake, not this call.
        let kind = if exec.detach { ActivityKind::Request } else { ActivityKind::Command };
        let sandbox = self.awake_session(who, ident, kind).await?;
        let begun = Instant::now();
        let keep = if exec.keep_tail { Keep::both(OUTPUT_MAX) } else { Keep::head(OUTPUT_MAX) };
        let (limit, detach, ends_with_caller) = (exec.timeout, exec.detach, exec.ends_with_caller);
        // Input of a detached command outlives its request.
        let stdin =
            if detach { held(&sandbox.account, exec.stdin.clone()).await? } else { exec.stdin.clone() };
        let (pid, stream) = start(&sandbox, exec).await?;
        if detach {
            self.feed(sandbox, pid, stdin);
            return Ok(ExecOutcome { pid, duration_ms: ms_since(begun), ..ExecOutcome::default() });
        }
        let mut abandoned = AbandonedCommand { sandbox: ends_with_caller.then(|| sandbox.clone()), pid };
        let mut output = OutputStreams::new(&sandbox.account, keep);
        let status = {
            let reading = output.read(stream);
            match stdin {
                None => bounded(&sandbox.handle, limit, reading).await?,
                Some(stdin) => {
                    let feeding = async {
                        write_all(&sandbox, pid, stdin).await;
                        std::future::pending::<std::convert::Infallible>().await
                    };
                    // The command may end without reading its input.
                    tokio::select! {
                        status = bounded(&sandbox.handle, limit, reading) => status?,
                        never = feeding => match never {},
                    }
                }
            }
        };
        abandoned.sandbox = None;
        Ok(ExecOutcome {
            exit_code: status.shell_code(),
            signal: status.signal,
            timed_out: status.timed_out,
            stdout: output.stdout.finish(),
            stderr: output.stderr.finish(),
            pid,
            duration_ms: ms_since(begun),
        })
    }

    /// Starts a command and follows it. Dropping the stream leaves the command running.
    pub async fn exec_stream(
        &self,
        who: &Principal,
        ident: &str,
        exec: Exec,
    ) -> Result<(u32, BoxStream<'static, ExecEvent>), ServiceError> {
        check(&exec)?;
        let sandbox = self.awake_session(who, ident, ActivityKind::Command).await?;
        let stdin = held(&sandbox.account, exec.stdin.clone()).await?;
        let (pid, stream) = start(&sandbox, exec).await?;
        self.feed(sandbox, pid, stdin);
        Ok((pid, exec_events(stream)))
    }

    /// Sends input to a detached command in the background.
    fn feed(&self, sandbox: SandboxSession, pid: u32, stdin: Option<Bytes>) {
        if let Some(stdin) = stdin {
            let closing = self.inner.closing.clone();
            self.inner.spawn(async move {
                tokio::select! {
                    () = closing.cancelled() => {}
                    () = write_all(&sandbox, pid, stdin) => {}
                }
            });
        }
    }

    /// Processes that were started through the service and still run.
    pub async fn processes(&self, who: &Principal, ident: &str) -> Result<Vec<ProcessRecord>, ServiceError> {
        let sandbox = self.session(who, ident).await?;
        let found = sandbox.list().await.map_err(|error| refusal(AgentOperation::Process, error))?;
        Ok(found.into_iter().map(record).collect())
    }

    /// Sends a signal to a process and its group.
    pub async fn signal(
        &self,
        who: &Principal,
        ident: &str,
        pid: u32,
        signal: i32,
    ) -> Result<(), ServiceError> {
        if !(1..=64).contains(&signal) {
            return Err(ServiceError::new(Code::InvalidRequest, "signal must be between 1 and 64"));
        }
        let sandbox = self.session(who, ident).await?;
        sandbox.signal(pid, signal).await.map_err(|error| refusal(AgentOperation::Process, error))
    }

    /// Writes to a process's stdin or terminal.
    pub async fn write_stdin(
        &self,
        who: &Principal,
        ident: &str,
        pid: u32,
        data: Bytes,
    ) -> Result<(), ServiceError> {
        let sandbox = self.session(who, ident).await?;
        for chunk in data.chunks(STDIN_CHUNK) {
            sandbox.send_stdin(pid, chunk).await.map_err(|error| stdin_refusal(pid, error))?;
        }
        Ok(())
    }

    /// Ends a process's stdin.
    pub async fn close_stdin(&self, who: &Principal, ident: &str, pid: u32) -> Result<(), ServiceError> {
        let sandbox = self.session(who, ident).await?;
        sandbox.close_stdin(pid).await.map_err(|error| refusal(AgentOperation::Process, error))
    }

    /// Follows a process; with `tail` the kept end of its output is first.
    pub async fn attach(
        &self,
        who: &Principal,
        ident: &str,
        pid: u32,
        tail: bool,
    ) -> Result<BoxStream<'static, ExecEvent>, ServiceError> {
        let sandbox = self.awake_session(who, ident, ActivityKind::Command).await?;
        let stream =
            sandbox.attach(pid, tail).await.map_err(|error| refusal(AgentOperation::Process, error))?;
        Ok(exec_events(stream))
    }
}

fn check(exec: &Exec) -> Result<(), ServiceError> {
    let bad = |field: &str, problem: &str| {
        Err(ServiceError::new(Code::InvalidRequest, format!("{field} {problem}")).about(field, problem))
    };
    if exec.argv.first().is_none_or(String::is_empty) {
        return bad("argv", "needs a program");
    }
    if exec.argv.iter().map(|arg| arg.len() + 1).sum::<usize>() > ARGV_MAX {
        return bad("argv", "is longer than 1 MiB");
    }
    if exec.env.iter().map(|(k, v)| k.len() + v.len() + 2).sum::<usize>() > ENV_MAX {
        return bad("env", "is longer than 1 MiB");
    }
    if exec.argv.iter().chain(&exec.cwd).chain(&exec.user).any(|text| text.contains('\0')) {
        return Err(ServiceError::new(
            Code::InvalidRequest,
            "argv, cwd and user must not contain a NUL byte",
        ));
    }
    if exec.env.iter().any(|(k, v)| k.is_empty() || k.contains(['=', '\0']) || v.contains('\0')) {
        return bad(
            "env",
            "names must not be empty or contain '='; names and values must not contain a NUL byte",
        );
    }
    if exec.tag.as_deref().is_some_and(is_reserved_tag) {
        let begins = RESERVED_TAGS.join(" or ");
        return bad(
            "tag",
            &format!("must not begin with {begins}: these tags belong to Atoll's own processes"),
        );
    }
    if exec.timeout.is_some_and(|timeout| timeout.is_zero()) {
        return bad("timeout_s", "must be more than 0");
    }
    Ok(())
}

pub(crate) async fn start(sandbox: &dyn Session, exec: Exec) -> Result<(u32, ProcessStream), ServiceError> {
    let mut argv = exec.argv.into_iter();
    let process = StartProcess {
        cmd: argv.next().unwrap_or_default(),
        args: argv.collect(),
        envs: exec.env,
        cwd: exec.cwd.unwrap_or_default(),
        pty: exec.terminal.map(size),
        tag: exec.tag.unwrap_or_default(),
        stdin: exec.stdin.is_some() || exec.open_stdin,
        logged: exec.detach,
        detached: exec.detach,
        user: exec.user,
        timeout: exec.timeout,
    };
    let (started, stream) =
        sandbox.start(process).await.map_err(|error| refusal(AgentOperation::Start, error))?;
    Ok((started.pid, stream))
}

pub(crate) const fn size(size: TerminalSize) -> atoll_agentapi::TerminalSize {
    atoll_agentapi::TerminalSize { cols: size.cols, rows: size.rows }
}

/// The agent's code for a stdin that cannot be written is that of E2B's agent, `internal`: the server has not failed.
fn stdin_refusal(pid: u32, error: AgentError) -> ServiceError {
    match &error {
        AgentError::Refused { code: RpcCode::Internal, message } if message.contains("not requested") => {
            ServiceError::new(Code::InvalidArgument, format!("process {pid} was started without stdin"))
                .hint("start it with open_stdin")
        }
        AgentError::Refused { code: RpcCode::Internal, message } if message.contains("stdin") => {
            ServiceError::new(Code::ProcessNotFound, format!("process {pid} has ended or closed its stdin"))
                .hint("list the running processes, or start it again")
        }
        _ => refusal(AgentOperation::Process, error),
    }
}

/// Writes input and closes it. A process that does not accept it is no error.
async fn write_all(sandbox: &dyn Session, pid: u32, stdin: Bytes) {
    for chunk in stdin.chunks(STDIN_CHUNK) {
        if let Err(error) = sandbox.send_stdin(pid, chunk).await {
            tracing::debug!(pid, %error, "input was not accepted");
            return;
        }
    }
    if let Err(error) = sandbox.close_stdin(pid).await {
        tracing::debug!(pid, %error, "input could not be closed");
    }
}

/// Limits the time of a command, with some tolerance; pauses do not count.
async fn bounded<T>(
    handle: &Handle,
    limit: Option<Duration>,
    reading: impl Future<Output = Result<T, ServiceError>>,
) -> Result<T, ServiceError> {
    match limit.and_then(|limit| limit.checked_add(AFTER_TIMEOUT)) {
        None => reading.await,
        Some(limit) => tokio::select! {
            done = reading => done,
            () = awake_for(handle, limit) => Err(unseen_end()),
        },
    }
}

/// Ends a command whose caller went away before it ended.
struct AbandonedCommand {
    /// `None`: the command has ended, or continues without its caller.
    sandbox: Option<SandboxSession>,
    pid: u32,
}

impl Drop for AbandonedCommand {
    fn drop(&mut self) {
        let Some(sandbox) = self.sandbox.take() else { return };
        let (inner, pid) = (std::sync::Arc::clone(&sandbox.inner), self.pid);
        inner.spawn(async move {
            if let Err(error) = sandbox.signal(pid, SIGKILL).await {
                tracing::debug!(pid, %error, "an abandoned command could not be ended");
            }
        });
    }
}

/// Input that is counted in the budget until the command has received it.
async fn held(account: &Account, stdin: Option<Bytes>) -> Result<Option<Bytes>, ServiceError> {
    let Some(stdin) = stdin else { return Ok(None) };
    let mut reservation = account.reserve();
    reservation.grow(stdin.len()).await?;
    Ok(Some(reservation.attach(stdin)))
}

fn ms_since(begun: Instant) -> u64 {
    u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// Both streams of a command.
struct OutputStreams {
    stdout: Collector,
    stderr: Collector,
}

impl OutputStreams {
    fn new(account: &Account, keep: Keep) -> Self {
        Self { stdout: Collector::new(account, keep), stderr: Collector::new(account, keep) }
    }

    async fn read(&mut self, mut stream: ProcessStream) -> Result<ExitStatus, ServiceError> {
        while let Some(event) = stream.next().await {
            match event.map_err(|error| refusal(AgentOperation::Process, error))? {
                ProcessEvent::Stdout(data) | ProcessEvent::Pty(data) => self.stdout.push(&data).await,
                ProcessEvent::Stderr(data) => self.stderr.push(&data).await,
                ProcessEvent::Dropped(bytes) => self.stdout.lost(bytes),
                ProcessEvent::Exit(status) => return Ok(status),
            }
        }
        Err(ServiceError::new(Code::SandboxUnavailable, "the exit of the command was not observed"))
    }
}

fn record(info: atoll_agentapi::ProcessInfo) -> ProcessRecord {
    ProcessRecord {
        pid: info.pid,
        argv: std::iter::once(info.cmd).chain(info.args).collect(),
        cwd: info.cwd,
        user: info.user,
        tag: Some(info.tag).filter(|tag| !tag.is_empty()),
        terminal: info.pty,
        started_at_ms: i64::try_from(info.started_at_ms).unwrap_or(i64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_without_sense_are_refused_before_the_sandbox_is_asked() {
        let exec = |argv: &[&str]| Exec {
            argv: argv.iter().map(|arg| (*arg).to_owned()).collect(),
            ..Default::default()
        };
        assert!(check(&exec(&["ls", "-l"])).is_ok());
        for bad in [exec(&[]), exec(&[""]), exec(&["a\0b"]), exec(&["x", &"y".repeat(ARGV_MAX)])] {
            assert_eq!(check(&bad).expect_err("bad").code, Code::InvalidRequest);
        }
        let odd = Exec { env: [("A=".to_owned(), String::new())].into(), ..exec(&["ls"]) };
        assert!(check(&odd).is_err());
        for tag in ["atoll-context/python/default-python", "atoll-session/a/61", "terminal-0a"] {
            let forged = Exec { tag: Some(tag.to_owned()), ..exec(&["ls"]) };
            let refused = check(&forged).expect_err("reserved");
            assert_eq!(refused.field.expect("a field").name, "tag");
        }
        assert!(check(&Exec { tag: Some("my-terminal-1".to_owned()), ..exec(&["ls"]) }).is_ok());
        let never = Exec { timeout: Some(Duration::ZERO), ..exec(&["ls"]) };
        assert!(check(&never).is_err());
    }
}
