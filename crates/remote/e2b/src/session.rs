//! Commands and files by the calls of envd, the service's agent in each sandbox.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use atoll_agentapi::proto::process::Signal;
use atoll_agentapi::{
    AgentError, Entry, EntryKind, ProcessEvent, ProcessStream, Range, RpcCode, StartProcess, TerminalSize,
    UploadStream,
};
use atoll_model::ErrorKind;
use atoll_provider::{
    FileContent, ProcessOutput, ProcessSpec, ProviderError, RunningProcess, SessionSupport, StartedProcess,
    Target,
};
use atoll_remote::{ObjectState, gone, random_hex};
use bytes::Bytes;
use futures::StreamExt;

use crate::access::E2bAccess;
use crate::lifecycle::E2bObject;
use crate::{E2bProvider, E2bShared};

/// Before the tags of processes: a server with this API may keep some tags for itself.
const TAG_PREFIX: &str = "by-atoll:";
const ROOT: &str = "root";
/// The mode of a new file at the service.
const FILE_MODE: u32 = 0o644;
/// LIMIT: how often the output of a process is attached again after its connection broke.
const ATTACH_ATTEMPTS: u32 = 3;
/// How often it is looked whether a paused sandbox runs again.
const RESUME_POLL: Duration = Duration::from_millis(250);
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

fn refused(kind: ErrorKind, message: impl Into<String>) -> ProviderError {
    ProviderError::Refused { kind, message: message.into() }
}

fn pid_of(id: &str) -> Result<u32, ProviderError> {
    id.parse().map_err(|_| refused(ErrorKind::NotFound, format!("there is no process {id}")))
}

/// One running object, for one call.
struct Call {
    shared: Arc<E2bShared>,
    target: Target,
    object: E2bObject,
    access: Arc<E2bAccess>,
}

impl E2bProvider {
    async fn begin_call(&self, target: &Target) -> Result<Call, ProviderError> {
        let (object, access) = self.shared.access(target).await?;
        Ok(Call { shared: Arc::clone(&self.shared), target: target.clone(), object, access })
    }
}

impl Call {
    /// The result of a call of envd. Where there was no answer, the service is asked whether the object is still there.
    async fn told<T>(&self, outcome: Result<T, AgentError>) -> Result<T, ProviderError> {
        match outcome {
            Ok(value) => Ok(value),
            Err(error) => Err(self.explain(error).await),
        }
    }

    async fn explain(&self, error: AgentError) -> ProviderError {
        match error {
            AgentError::Refused { code: RpcCode::Unavailable | RpcCode::Unknown, message } => {
                self.unanswered(message).await
            }
            AgentError::Refused { code: RpcCode::Unauthenticated, message } => {
                // The service gave it other tokens: the next call asks for them.
                let access = &self.access;
                if let Some(slot) = self.shared.table.existing(&self.target.sandbox) {
                    slot.update(&self.object.instance, |object| {
                        object.access.take_if(|current| Arc::ptr_eq(current, access));
                    });
                }
                self.unanswered(message).await
            }
            error @ AgentError::Refused { .. } => refused(error.kind(), error.to_string()),
            AgentError::Upload(cause) => {
                refused(ErrorKind::Invalid, format!("the upload broke off: {cause}"))
            }
            error @ AgentError::Argument(_) => refused(ErrorKind::Invalid, error.to_string()),
            other => self.unanswered(with_cause(&other)).await,
        }
    }

    async fn unanswered(&self, why: String) -> ProviderError {
        match self.shared.is_there(&self.target.sandbox, &self.object).await {
            true => ProviderError::Transient { what: "calling the sandbox".to_owned(), why },
            false => gone(&self.target.sandbox),
        }
    }

    /// Runs a small program as root, to its end.
    async fn run(&self, argv: &[&str]) -> Result<(), ProviderError> {
        let what = StartProcess {
            cmd: argv[0].to_owned(),
            args: argv[1..].iter().map(|arg| (*arg).to_owned()).collect(),
            user: Some(ROOT.to_owned()),
            cwd: "/".to_owned(),
            timeout: Some(Duration::from_secs(30)),
            ..StartProcess::default()
        };
        let run = async {
            let (_, output) = self.access.envd.start(what).await?;
            output.collect(4 << 10).await
        };
        let done = self.told(run.await).await?;
        if done.status.shell_code() == 0 {
            return Ok(());
        }
        let said: String =
            String::from_utf8_lossy(&done.stderr).chars().filter(|c| !c.is_control()).collect();
        Err(refused(ErrorKind::Invalid, format!("{} failed: {said}", argv[0])))
    }

    async fn set_mode(&self, path: &str, mode: u32) -> Result<(), ProviderError> {
        self.run(&["chmod", &format!("{:o}", mode & 0o7777), path]).await
    }

    /// The output of a process. Where its connection breaks, or the sandbox was paused, the process is attached again; what it
    /// wrote meanwhile is lost, because the service keeps none of it.
    fn output(self, pid: u32, stream: ProcessStream) -> ProcessOutput {
        let state = Some((self, stream, ATTACH_ATTEMPTS));
        let events = futures::stream::unfold(state, move |state| async move {
            let (call, mut stream, mut attempts) = state?;
            loop {
                let error = match stream.next().await? {
                    Ok(event) => {
                        if matches!(event, ProcessEvent::Exit(_)) {
                            call.access.forget_terminal(pid);
                        }
                        return Some((Ok(event), Some((call, stream, ATTACH_ATTEMPTS))));
                    }
                    Err(error) => error,
                };
                if attempts == 0 {
                    return Some((Err(call.explain(error).await), None));
                }
                attempts -= 1;
                match call.attach_again(pid, error).await {
                    Ok(attached) => stream = attached,
                    Err(error) => return Some((Err(error), None)),
                }
            }
        });
        events.boxed()
    }

    async fn attach_again(&self, pid: u32, error: AgentError) -> Result<ProcessStream, ProviderError> {
        let is_broken = matches!(
            error,
            AgentError::Transport(_)
                | AgentError::Deadline { .. }
                | AgentError::Connect(_)
                | AgentError::Protocol(_)
        );
        loop {
            // Gone where it was halted or destroyed.
            let (_, object) = self.shared.table.live(&self.target)?;
            if object.state == ObjectState::Running {
                break;
            }
            tokio::time::sleep(RESUME_POLL).await;
        }
        if !is_broken {
            return Err(self.explain(error).await);
        }
        let (_, access) = self.shared.access(&self.target).await?;
        let attached = access.envd.connect(pid).await;
        match attached {
            Ok(stream) => Ok(stream),
            // The error says more than that it cannot be attached.
            Err(_) => Err(self.explain(error).await),
        }
    }
}

fn with_cause(error: &AgentError) -> String {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("{error}{cause}")
}

#[async_trait]
impl SessionSupport for E2bProvider {
    async fn start_process(
        &self,
        target: &Target,
        what: ProcessSpec,
    ) -> Result<StartedProcess, ProviderError> {
        let call = self.begin_call(target).await?;
        let mut argv = what.argv.into_iter();
        let program =
            argv.next().ok_or_else(|| refused(ErrorKind::Invalid, "there is no program to start"))?;
        let is_terminal = what.terminal.is_some();
        let start = StartProcess {
            cmd: program.clone(),
            args: argv.collect(),
            envs: what.env,
            cwd: what.cwd.unwrap_or_default(),
            pty: what.terminal,
            tag: if what.tag.is_empty() { String::new() } else { format!("{TAG_PREFIX}{}", what.tag) },
            stdin: what.stdin,
            user: what.user,
            timeout: what.timeout,
            ..StartProcess::default()
        };
        let started = match call.access.envd.start(start).await {
            Err(AgentError::Refused { message, .. }) if is_missing_program(&message) => {
                return Err(refused(ErrorKind::NotFound, format!("command not found: '{program}'")));
            }
            outcome => outcome,
        };
        let (started, stream) = call.told(started).await?;
        if is_terminal {
            call.access.remember_terminal(started.pid);
        }
        Ok(StartedProcess { id: started.pid.to_string(), output: call.output(started.pid, stream) })
    }

    async fn attach_process(&self, target: &Target, id: &str) -> Result<ProcessOutput, ProviderError> {
        let (call, pid) = (self.begin_call(target).await?, pid_of(id)?);
        let stream = call.told(call.access.envd.connect(pid).await).await?;
        Ok(call.output(pid, stream))
    }

    async fn processes(&self, target: &Target) -> Result<Vec<RunningProcess>, ProviderError> {
        let call = self.begin_call(target).await?;
        let listed = call.told(call.access.envd.list().await).await?;
        let shown = listed.into_iter().map(|process| RunningProcess {
            id: process.pid.to_string(),
            argv: std::iter::once(process.cmd).chain(process.args).collect(),
            tag: process.tag.strip_prefix(TAG_PREFIX).unwrap_or(&process.tag).to_owned(),
            user: process.user,
            started_at_ms: process.started_at_ms,
            terminal: call.access.is_terminal(process.pid),
        });
        Ok(shown.collect())
    }

    async fn write_stdin(&self, target: &Target, id: &str, data: Bytes) -> Result<(), ProviderError> {
        let (call, pid) = (self.begin_call(target).await?, pid_of(id)?);
        let envd = &call.access.envd;
        if call.access.is_terminal(pid) {
            return call.told(envd.send_input(pid, &data, true).await).await;
        }
        match envd.send_input(pid, &data, false).await {
            // It may have a terminal, which another process of this server opened.
            Err(AgentError::Refused { code, message })
                if !matches!(code, RpcCode::NotFound | RpcCode::Unavailable | RpcCode::Unauthenticated) =>
            {
                match envd.send_input(pid, &data, true).await {
                    Ok(()) => {
                        call.access.remember_terminal(pid);
                        Ok(())
                    }
                    Err(_) => call.told(Err(AgentError::Refused { code, message })).await,
                }
            }
            outcome => call.told(outcome).await,
        }
    }

    async fn close_stdin(&self, target: &Target, id: &str) -> Result<(), ProviderError> {
        let (call, pid) = (self.begin_call(target).await?, pid_of(id)?);
        call.told(call.access.envd.close_stdin(pid).await).await
    }

    /// Envd sends two signals; the others are sent by a command.
    async fn signal(&self, target: &Target, id: &str, signal: i32) -> Result<(), ProviderError> {
        let (call, pid) = (self.begin_call(target).await?, pid_of(id)?);
        let known = match signal {
            SIGKILL => Some(Signal::SIGNAL_SIGKILL),
            SIGTERM => Some(Signal::SIGNAL_SIGTERM),
            _ => None,
        };
        if let Some(signal) = known {
            return call.told(call.access.envd.signal(pid, signal).await).await;
        }
        let line = format!("kill -{signal} -- -{pid} 2>/dev/null || kill -{signal} {pid}");
        call.run(&["/bin/sh", "-c", &line]).await
    }

    async fn resize_terminal(
        &self,
        target: &Target,
        id: &str,
        size: TerminalSize,
    ) -> Result<(), ProviderError> {
        let (call, pid) = (self.begin_call(target).await?, pid_of(id)?);
        call.told(call.access.envd.resize(pid, size).await).await
    }

    async fn stat(&self, target: &Target, path: &str, user: Option<&str>) -> Result<Entry, ProviderError> {
        let call = self.begin_call(target).await?;
        call.told(call.access.envd.stat(path, user).await).await
    }

    async fn list_folder(
        &self,
        target: &Target,
        path: &str,
        user: Option<&str>,
    ) -> Result<Vec<Entry>, ProviderError> {
        let call = self.begin_call(target).await?;
        call.told(call.access.envd.list_dir(path, user).await).await
    }

    async fn read_file(
        &self,
        target: &Target,
        path: &str,
        user: Option<&str>,
        range: Option<Range>,
    ) -> Result<FileContent, ProviderError> {
        let call = self.begin_call(target).await?;
        let entry = call.told(call.access.envd.stat(path, user).await).await?;
        if entry.kind == EntryKind::Directory {
            return Err(refused(ErrorKind::Invalid, format!("{path} is a folder")));
        }
        let empty = |size| FileContent { size, mode: entry.mode, stream: futures::stream::empty().boxed() };
        let is_behind = |range: &Range| entry.kind == EntryKind::File && range.start >= entry.size;
        if range.is_some_and(|range| range.len == Some(0) || is_behind(&range)) {
            return Ok(empty(entry.size));
        }
        let file = match call.access.envd.read_file(path, user, range).await {
            Err(AgentError::Refused { code: RpcCode::OutOfRange, .. }) => return Ok(empty(entry.size)),
            outcome => call.told(outcome).await?,
        };
        let (size, mode) = (file.size.unwrap_or(entry.size), entry.mode);
        let call = Arc::new(call);
        let stream = file.into_stream().then(move |chunk| {
            let call = Arc::clone(&call);
            async move { call.told(chunk).await }
        });
        Ok(FileContent { size, mode, stream: stream.boxed() })
    }

    /// Envd writes in place, and a broken upload leaves a part: the bytes go to a file beside it, which is renamed at the end.
    async fn write_file(
        &self,
        target: &Target,
        path: &str,
        user: Option<&str>,
        mode: Option<u32>,
        len: Option<u64>,
        content: UploadStream,
    ) -> Result<(), ProviderError> {
        let call = self.begin_call(target).await?;
        let envd = &call.access.envd;
        let mode = match (mode, envd.stat(path, user).await) {
            (_, Ok(entry)) if entry.kind == EntryKind::Directory => {
                return Err(refused(ErrorKind::Invalid, format!("{path} is a folder")));
            }
            (Some(mode), _) => mode,
            (None, Ok(entry)) if entry.kind == EntryKind::File => entry.mode,
            (None, Ok(_) | Err(AgentError::Refused { code: RpcCode::NotFound, .. })) => FILE_MODE,
            (None, Err(error)) => return Err(call.explain(error).await),
        };
        let (folder, _) = path.rsplit_once('/').unwrap_or_default();
        let unique = random_hex().map_err(|cause| ProviderError::Failed {
            step: "naming a file".to_owned(),
            cause: Box::new(cause),
        })?;
        let beside = format!("{folder}/.atoll-upload-{unique}");
        let written = async {
            call.told(envd.write_file(&beside, user, len, content).await).await?;
            if mode != FILE_MODE {
                call.set_mode(&beside, mode).await?;
            }
            call.told(envd.move_entry(&beside, path, user).await).await
        };
        let written = written.await;
        if written.is_err()
            && let Err(error) = envd.remove(&beside, user).await
        {
            tracing::debug!(sandbox = %target.sandbox, %error, "a part of a file could not be removed");
        }
        written
    }

    async fn make_folder(
        &self,
        target: &Target,
        path: &str,
        user: Option<&str>,
        mode: Option<u32>,
    ) -> Result<(), ProviderError> {
        let call = self.begin_call(target).await?;
        call.told(call.access.envd.make_dir(path, user).await).await?;
        match mode {
            Some(mode) => call.set_mode(path, mode).await,
            None => Ok(()),
        }
    }

    async fn rename(
        &self,
        target: &Target,
        from: &str,
        to: &str,
        user: Option<&str>,
    ) -> Result<(), ProviderError> {
        let call = self.begin_call(target).await?;
        call.told(call.access.envd.move_entry(from, to, user).await).await
    }

    /// Envd does not tell whether there was something to remove.
    async fn remove(&self, target: &Target, path: &str, user: Option<&str>) -> Result<(), ProviderError> {
        let call = self.begin_call(target).await?;
        call.told(call.access.envd.stat(path, user).await).await?;
        call.told(call.access.envd.remove(path, user).await).await
    }
}

/// Envd reports it with the words of Go's `exec`, or of the system.
fn is_missing_program(message: &str) -> bool {
    let message = message.to_lowercase();
    message.contains("executable file not found")
        || message.contains("no such file or directory") && !message.contains("cwd")
}
