//! Processes below a supervisor in the sandbox ([`crate::scripts`]): each call takes the output that is new since the one before.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use atoll_agentapi::{ExitStatus, ProcessEvent};
use atoll_model::ErrorKind;
use atoll_provider::{ProcessOutput, ProcessSpec, ProviderError, RunningProcess, StartedProcess, Target};
use atoll_remote::{CallError, Repeat, gone, random_hex};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::StreamExt;
use serde::{Deserialize, Serialize};

use crate::lifecycle::DaytonaObject;
use crate::scripts::{self, MissingPart, NotedExit, Report};
use crate::toolbox::{DaytonaAccess, KnownProcess, SCRIPT_WITHIN, ScriptRun, word};
use crate::{DaytonaProvider, DaytonaShared};

/// LIMIT: bytes of each stream in one answer.
pub(crate) const WINDOW: usize = 512 << 10;
/// LIMIT: bytes of input in one call: a command line has at most 128 KiB.
const INPUT_MAX: usize = 48 << 10;
/// LIMIT: bytes of arguments that are kept for lists of processes.
const META_MAX: usize = 4 << 10;
/// LIMIT: how long a call waits for new output.
const READ_HOLD: Duration = Duration::from_secs(10);
/// LIMIT: of time limits: programs that wait take no larger number.
const LIMIT_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 3_600);
const SIGKILL: i32 = 9;
/// LIMIT: a process that does not read its input.
const INPUT_WITHIN: Duration = Duration::from_secs(60);

pub(crate) fn refused(kind: ErrorKind, message: impl Into<String>) -> ProviderError {
    ProviderError::Refused { kind, message: message.into() }
}

pub(crate) fn no_process(id: &str) -> ProviderError {
    refused(ErrorKind::NotFound, format!("there is no process {id}"))
}

#[expect(clippy::disallowed_methods, reason = "a time for people, which nothing is decided by")]
fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(0)
}

/// What is kept about a process in the sandbox.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct ProcessMeta {
    argv: Vec<String>,
    #[serde(default)]
    tag: String,
    #[serde(default)]
    started_at_ms: u64,
    #[serde(default)]
    terminal: bool,
}

impl ProcessMeta {
    pub(crate) fn of(what: &ProcessSpec) -> Self {
        let mut room = META_MAX;
        let fits = |word: &&String| {
            room = room.saturating_sub(word.len() + 1);
            room > 0
        };
        Self {
            argv: what.argv.iter().take_while(fits).cloned().collect(),
            tag: what.tag.clone(),
            started_at_ms: now_ms(),
            terminal: what.terminal.is_some(),
        }
    }

    pub(crate) fn encoded(&self) -> String {
        STANDARD.encode(serde_json::to_vec(self).unwrap_or_default())
    }

    fn decoded(text: &str) -> Self {
        let bytes = STANDARD.decode(text).unwrap_or_default();
        serde_json::from_slice(&bytes).unwrap_or_default()
    }
}

/// One running object, for one call.
pub(crate) struct ToolboxCall {
    pub(crate) shared: Arc<DaytonaShared>,
    pub(crate) target: Target,
    pub(crate) object: DaytonaObject,
    pub(crate) access: Arc<DaytonaAccess>,
}

impl DaytonaProvider {
    pub(crate) async fn begin_call(&self, target: &Target) -> Result<ToolboxCall, ProviderError> {
        let (object, access) = self.shared.access(target).await?;
        Ok(ToolboxCall { shared: Arc::clone(&self.shared), target: target.clone(), object, access })
    }
}

impl ToolboxCall {
    /// The result of a call of the toolbox. After an error the service is asked whether the object still runs.
    pub(crate) async fn told<T>(&self, outcome: Result<T, CallError>) -> Result<T, ProviderError> {
        match outcome {
            Ok(value) => Ok(value),
            Err(error) => Err(self.explain(error).await),
        }
    }

    pub(crate) async fn explain(&self, error: CallError) -> ProviderError {
        let is_current = self.shared.table.live(&self.target).is_ok();
        if !is_current || !self.shared.is_running(&self.target.sandbox, &self.object).await {
            return gone(&self.target.sandbox);
        }
        let CallError::Refused { status, message } = error else {
            return error.into_provider("calling the sandbox");
        };
        match status {
            400 | 422 => refused(ErrorKind::Invalid, message),
            403 => refused(ErrorKind::Forbidden, message),
            404 | 410 => refused(ErrorKind::NotFound, message),
            409 => refused(ErrorKind::Conflict, message),
            status => CallError::Refused { status, message }.into_provider("calling the sandbox"),
        }
    }

    pub(crate) async fn script(&self, run: ScriptRun<'_>) -> Result<String, ProviderError> {
        self.told(self.access.run(run).await).await
    }

    pub(crate) async fn start(self, what: ProcessSpec) -> Result<StartedProcess, ProviderError> {
        check_words(&what)?;
        let token = new_token()?;
        let ended = self.access.take_ended();
        let folder = what.cwd.as_deref().unwrap_or_else(|| self.shared.settings.workdir());
        let line = start_line(&what, folder, &token, &ended);
        let executed = self.access.execute(&line, Repeat::Always, SCRIPT_WITHIN).await;
        if executed.is_err() {
            self.access.put_back_ended(&ended);
        }
        let done = self.told(executed).await?;
        // A shell that has printed everything may have been killed: see the script.
        let report = match Report::parse(&done.result) {
            Some(report) => report,
            None if done.exit_code != 0 => return Err(self.explain(self.access.failed(&done)).await),
            None => return Err(self.odd()),
        };
        missing_part(&report, &what, folder)?;
        let pid = report.pid.ok_or_else(|| self.odd())?;
        self.access.remember_process(pid, KnownProcess { token: token.clone(), is_terminal: false });
        let mut follower = OutputFollower::new(self, pid, token, (0, 0));
        follower.take(report);
        Ok(StartedProcess { id: pid.to_string(), output: follower.into_stream() })
    }

    fn report(&self, printed: &str) -> Result<Report, ProviderError> {
        Report::parse(printed).ok_or_else(|| self.odd())
    }

    /// A script did not run as it should: the image lacks what it needs.
    pub(crate) fn odd(&self) -> ProviderError {
        ProviderError::Unsupported {
            what: "running commands in this image".to_owned(),
            hint: "its image needs a POSIX shell with the programs of coreutils or busybox".to_owned(),
        }
    }

    /// The processes that run.
    pub(crate) async fn list(&self) -> Result<Vec<(KnownProcess, RunningProcess)>, ProviderError> {
        let printed = self.script(ScriptRun::new(scripts::LIST, Vec::new())).await?;
        let processes = printed.lines().filter_map(|line| {
            let mut words = line.split(' ');
            let (token, pid, meta) = (words.next()?, words.next()?.parse::<u32>().ok()?, words.next()?);
            let meta = ProcessMeta::decoded(meta);
            let known = KnownProcess { token: token.to_owned(), is_terminal: meta.terminal };
            let running = RunningProcess {
                id: pid.to_string(),
                argv: meta.argv,
                tag: meta.tag,
                user: String::new(),
                started_at_ms: meta.started_at_ms,
                terminal: meta.terminal,
            };
            Some((known, running))
        });
        Ok(processes.collect())
    }

    /// A process that runs, by its id.
    pub(crate) async fn find(&self, id: &str) -> Result<(u32, KnownProcess), ProviderError> {
        let pid: u32 = id.parse().map_err(|_| no_process(id))?;
        if let Some(known) = self.access.known_process(pid) {
            return Ok((pid, known));
        }
        let found = self.list().await?.into_iter().find(|(_, process)| process.id == id);
        let (known, _) = found.ok_or_else(|| no_process(id))?;
        self.access.remember_process(pid, known.clone());
        Ok((pid, known))
    }

    /// The output of a process from now on.
    pub(crate) async fn follow(self, pid: u32, token: String) -> Result<ProcessOutput, ProviderError> {
        let printed = self.script(ScriptRun::new(scripts::SIZES, vec![token.as_str()])).await?;
        let sizes: Vec<u64> = printed.lines().filter_map(|line| line.trim().parse().ok()).collect();
        match sizes.as_slice() {
            [out, err] => Ok(OutputFollower::new(self, pid, token, (*out, *err)).into_stream()),
            _ => Err(no_process(&pid.to_string())),
        }
    }

    /// Runs a script about a process, which answers `ok`.
    pub(crate) async fn on_process(&self, id: &str, run: ScriptRun<'_>) -> Result<(), ProviderError> {
        let printed = self.script(run).await?;
        match self.told(word(&printed)).await? {
            "ok" => Ok(()),
            "n" => Err(no_process(id)),
            _ => Err(self.odd()),
        }
    }

    pub(crate) async fn input(&self, id: &str, token: &str, data: &[u8]) -> Result<(), ProviderError> {
        for piece in data.chunks(INPUT_MAX) {
            let encoded = STANDARD.encode(piece);
            let run = ScriptRun::new(scripts::INPUT, vec![token, &encoded]);
            let run = ScriptRun { repeat: Repeat::Unsent, attempt_within: INPUT_WITHIN, ..run };
            self.on_process(id, run).await?;
        }
        Ok(())
    }
}

/// The line that starts a command.
fn start_line(what: &ProcessSpec, folder: &str, token: &str, ended: &str) -> String {
    let meta = ProcessMeta::of(what).encoded();
    let limit = what.timeout.map_or_else(|| "-".to_owned(), seconds);
    let input = if what.stdin { "i" } else { "-" };
    let program = what.argv.first().map(String::as_str).unwrap_or_default();
    let arguments = [token, folder, input, &limit, &meta, ended, program, search_path(what)];
    let command = scripts::with_environment(&what.env, &what.argv);
    scripts::start_line(arguments.into_iter().chain(command.iter().map(String::as_str)))
}

/// A time limit as a shell takes it.
pub(crate) fn seconds(limit: Duration) -> String {
    limit.min(LIMIT_MAX).as_secs_f64().to_string()
}

/// Where the program is looked for, if the caller says so.
pub(crate) fn search_path(what: &ProcessSpec) -> &str {
    what.env.get("PATH").map(String::as_str).unwrap_or_default()
}

/// Words that no program can be started with.
pub(crate) fn check_words(what: &ProcessSpec) -> Result<(), ProviderError> {
    if let Some(name) =
        what.env.keys().find(|name| name.is_empty() || name.contains('=') || name.starts_with('-'))
    {
        return Err(refused(ErrorKind::Invalid, format!("{name:?} cannot name a variable")));
    }
    let mut words = what.argv.iter().chain(what.cwd.as_ref()).chain(what.env.keys()).chain(what.env.values());
    match words.any(|word| word.contains('\0')) {
        true => Err(refused(ErrorKind::Invalid, "a command must not contain a NUL byte")),
        false => Ok(()),
    }
}

/// Refuses where a script says that the program or the folder is not there.
fn missing_part(report: &Report, what: &ProcessSpec, folder: &str) -> Result<(), ProviderError> {
    let program = what.argv.first().map(String::as_str).unwrap_or_default();
    match report.missing {
        Some(MissingPart::Program) => {
            Err(refused(ErrorKind::NotFound, format!("command not found: '{program}'")))
        }
        Some(MissingPart::Folder) => {
            Err(refused(ErrorKind::NotFound, format!("there is no folder {folder}")))
        }
        Some(MissingPart::Process) | None => Ok(()),
    }
}

/// A name for a process, which the same call again has, too.
pub(crate) fn new_token() -> Result<String, ProviderError> {
    random_hex().map_err(|cause| ProviderError::Failed {
        step: "naming a process".to_owned(),
        cause: Box::new(cause),
    })
}

/// Reads the output of a process from one position on.
struct OutputFollower {
    call: ToolboxCall,
    pid: u32,
    token: String,
    /// Bytes of both streams that were read.
    read: (u64, u64),
    events: VecDeque<ProcessEvent>,
    /// How often the supervisor was missing.
    lost: u32,
    is_over: bool,
}

impl OutputFollower {
    fn new(call: ToolboxCall, pid: u32, token: String, read: (u64, u64)) -> Self {
        Self { call, pid, token, read, events: VecDeque::new(), lost: 0, is_over: false }
    }

    fn take(&mut self, report: Report) {
        let is_all = report.out.len() < WINDOW && report.err.len() < WINDOW;
        self.read.0 += report.out.len() as u64;
        self.read.1 += report.err.len() as u64;
        let output =
            [(report.out, ProcessEvent::Stdout as fn(Bytes) -> _), (report.err, ProcessEvent::Stderr)];
        self.events
            .extend(output.into_iter().filter(|(data, _)| !data.is_empty()).map(|(data, of)| of(data)));
        if let Some(exit) = report.exit.filter(|_| is_all) {
            self.events.push_back(ProcessEvent::Exit(status(exit)));
            self.is_over = true;
            self.call.access.forget_process(self.pid, &self.token, self.read.0 + self.read.1);
        }
        self.lost = if report.is_lost { self.lost + 1 } else { 0 };
    }

    async fn read(&self) -> Result<Report, ProviderError> {
        let silence = self.call.shared.timing.stream_silence;
        let hold = READ_HOLD.min(silence / 3);
        // Ten short waits and then ten in a second.
        let looks = (10 + hold.as_millis() / 100).to_string();
        let (out, err, window) = (self.read.0.to_string(), self.read.1.to_string(), WINDOW.to_string());
        let run = ScriptRun::new(scripts::READ, vec![&self.token, &out, &err, &window, &looks]);
        let printed = self.call.script(ScriptRun { attempt_within: silence, ..run }).await?;
        self.call.report(&printed)
    }

    async fn next(&mut self) -> Option<Result<ProcessEvent, ProviderError>> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(Ok(event));
            }
            if self.is_over {
                return None;
            }
            match self.read().await {
                Ok(report) if report.missing.is_none() => self.take(report),
                Ok(_) => return self.fail(no_process(&self.pid.to_string())),
                Err(error) => return self.fail(error),
            }
            if self.lost > 1 {
                let (what, why) = ("following a process", "the program that watched it was ended");
                return self.fail(ProviderError::Transient { what: what.to_owned(), why: why.to_owned() });
            }
        }
    }

    fn fail(&mut self, error: ProviderError) -> Option<Result<ProcessEvent, ProviderError>> {
        self.is_over = true;
        Some(Err(error))
    }

    fn into_stream(self) -> ProcessOutput {
        let events = futures::stream::unfold(self, |mut follower| async move {
            let event = follower.next().await?;
            Some((event, follower))
        });
        events.boxed()
    }
}

/// A shell tells a signal as 128 and its number, which a program can end with, too: it counts as one that was sent from here.
pub(crate) fn status(exit: NotedExit) -> ExitStatus {
    let by_signal = exit.is_late || exit.signal > 0 && exit.status == 128 + exit.signal;
    ExitStatus {
        code: (!by_signal).then_some(exit.status),
        // A late process was killed, also where its status came before.
        signal: by_signal.then_some(if exit.is_late { SIGKILL } else { exit.signal }),
        timed_out: exit.is_late,
        core_dumped: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_a_signal_where_one_was_sent() {
        let of = |status, is_late, signal| super::status(NotedExit { status, is_late, signal });
        assert_eq!((of(143, false, 15).signal, of(143, false, 15).code), (Some(15), None));
        assert_eq!((of(143, false, 0).signal, of(143, false, 0).code), (None, Some(143)));
        assert_eq!(of(0, false, 15).code, Some(0), "it did not end by the signal");
        assert!(of(137, true, 0).timed_out);
    }

    #[test]
    fn what_is_kept_about_a_process_is_bounded() {
        let argv = vec!["sh".to_owned(), "-c".to_owned(), "x".repeat(META_MAX)];
        let meta = ProcessMeta::of(&ProcessSpec { argv, tag: "t".to_owned(), ..ProcessSpec::default() });
        let again = ProcessMeta::decoded(&meta.encoded());
        assert_eq!(
            (again.argv, again.tag.as_str(), again.terminal),
            (vec!["sh".to_owned(), "-c".to_owned()], "t", false)
        );
        assert!(ProcessMeta::decoded("!").argv.is_empty());
    }
}
