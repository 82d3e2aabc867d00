//! Processes: starts, output, and finding them again.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_agentapi::{ProcessEvent, RpcCode, StartProcess, TerminalSize};
use atoll_model::ErrorKind;
use atoll_provider::{Capability, ProcessOutput, ProcessSpec, ProviderError, RunningProcess, StartedProcess};
use futures::StreamExt;

use crate::error::SessionRefusal;
use crate::ring::{OutputEnd, OutputRing, ReadPosition, RingReader};
use crate::state::{AdapterState, now_ms};

/// LIMIT: running processes of one instance whose output is kept.
const RUNNING_MAX: usize = 256;
/// LIMIT: ended processes whose output and exit can still be read.
const ENDED_MAX: usize = 16;

/// Where a byte came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputChannel {
    Stdout,
    Stderr,
    Terminal,
}

/// Where a logged byte came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LogSource {
    pub(crate) pid: u32,
    pub(crate) channel: OutputChannel,
    pub(crate) at_ms: u64,
}

/// A process and its output.
pub(crate) struct AdapterProcess {
    pub(crate) pid: u32,
    /// The vendor's id.
    pub(crate) id: String,
    pub(crate) cmd: String,
    pub(crate) args: Vec<String>,
    pub(crate) envs: BTreeMap<String, String>,
    pub(crate) cwd: String,
    pub(crate) tag: String,
    pub(crate) user: String,
    pub(crate) started_at_ms: u64,
    pub(crate) pty: bool,
    pub(crate) logged: bool,
    pub(crate) output: Arc<OutputRing<OutputChannel>>,
}

/// The processes whose output the adapter keeps.
pub(crate) struct ProcessTable {
    entries: Mutex<VecDeque<Arc<AdapterProcess>>>,
    /// What all rings of the instance cost.
    total: Arc<AtomicUsize>,
    /// One at a time is found at the provider, so that none is followed twice.
    search: tokio::sync::Mutex<()>,
}

impl ProcessTable {
    pub(crate) fn new(total: Arc<AtomicUsize>) -> Self {
        Self { entries: Mutex::default(), total, search: tokio::sync::Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<AdapterProcess>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest one: vendors use process ids again.
    fn find(&self, is_wanted: impl Fn(&AdapterProcess) -> bool) -> Option<Arc<AdapterProcess>> {
        self.lock().iter().rev().find(|process| is_wanted(process)).cloned()
    }

    fn running(&self) -> Vec<Arc<AdapterProcess>> {
        self.lock().iter().filter(|process| !process.output.is_finished()).cloned().collect()
    }

    fn insert(&self, process: &Arc<AdapterProcess>) {
        let mut entries = self.lock();
        let is_ended = |process: &Arc<AdapterProcess>| process.output.is_finished();
        let mut spare =
            entries.iter().filter(|process| is_ended(process)).count().saturating_sub(ENDED_MAX - 1);
        entries.retain(|old| {
            let goes = is_ended(old) && (spare > 0 || old.pid == process.pid);
            spare = spare.saturating_sub(usize::from(goes));
            !goes
        });
        entries.push_back(Arc::clone(process));
    }

    /// A number for a vendor's id: the id itself where it is one, else always the same one for the same id.
    fn pid_of(&self, id: &str) -> u32 {
        if let Some(pid) = id.parse::<u32>().ok().filter(|pid| *pid != 0) {
            return pid;
        }
        let hash =
            id.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        let mut pid = (hash & 0x7fff_ffff).max(1);
        while self.find(|other| other.pid == pid && other.id != id).is_some() {
            pid = (pid % 0x7fff_ffff) + 1;
        }
        pid
    }
}

impl AdapterState {
    /// As the agent does: where there is no bash, its place is taken by `/bin/sh`.
    async fn start_or_use_sh(&self, spec: ProcessSpec) -> Result<StartedProcess, SessionRefusal> {
        let session = self.session()?;
        let is_bash = matches!(spec.argv[0].as_str(), "/bin/bash" | "/usr/bin/bash" | "bash");
        match session.start_process(&self.target, spec.clone()).await {
            Err(ProviderError::Refused { kind: ErrorKind::NotFound, .. }) if is_bash => {
                let mut argv = spec.argv;
                argv[0] = "/bin/sh".to_owned();
                Ok(session.start_process(&self.target, ProcessSpec { argv, ..spec }).await?)
            }
            outcome => Ok(outcome?),
        }
    }

    /// Starts a process; the reader gets its output from the first byte on.
    pub(crate) async fn start(
        self: &Arc<Self>,
        what: StartProcess,
        user: Option<String>,
    ) -> Result<(Arc<AdapterProcess>, RingReader<OutputChannel>), SessionRefusal> {
        if what.stdin && what.pty.is_none() {
            self.need(Capability::Stdin)?;
        }
        if what.pty.is_some() {
            self.need(Capability::Terminal)?;
        }
        if what.cmd.is_empty() {
            return Err(SessionRefusal::invalid("the program is missing"));
        }
        if self.processes.running().len() >= RUNNING_MAX {
            let message = format!("too many processes: {RUNNING_MAX} of this sandbox run already");
            return Err(SessionRefusal::new(RpcCode::ResourceExhausted, message));
        }
        let cwd = self.folder(&what.cwd)?;
        let spec = ProcessSpec {
            argv: std::iter::once(&what.cmd).chain(&what.args).cloned().collect(),
            cwd: cwd.clone(),
            env: self.environment(&what.envs),
            user: user.clone(),
            stdin: what.stdin,
            terminal: what.pty,
            timeout: what.timeout,
            tag: what.tag.clone(),
        };
        let StartedProcess { id, output } = self.start_or_use_sh(spec).await?;
        let process = AdapterProcess {
            pid: self.processes.pid_of(&id),
            id,
            cmd: what.cmd,
            args: what.args,
            envs: what.envs,
            cwd: cwd.unwrap_or_default(),
            tag: what.tag,
            user: user.unwrap_or_default(),
            started_at_ms: now_ms(),
            pty: what.pty.is_some(),
            logged: what.logged,
            output: OutputRing::new(&self.processes.total),
        };
        let reader_of = |process: &AdapterProcess| process.output.reader(ReadPosition::At(0), !what.detached);
        Ok(self.follow(process, output, reader_of))
    }

    /// Keeps the output of a process from now on. The reader is made before the first byte arrives.
    fn follow<R>(
        self: &Arc<Self>,
        process: AdapterProcess,
        output: ProcessOutput,
        reader_of: impl FnOnce(&AdapterProcess) -> R,
    ) -> (Arc<AdapterProcess>, R) {
        let process = Arc::new(process);
        let reader = reader_of(&process);
        self.processes.insert(&process);
        let logs = process.logged.then(|| Arc::clone(&self.logs));
        self.spawn(pump(Arc::clone(&process), output, logs));
        (process, reader)
    }

    /// The processes that run: those that were started here, and those that the provider still has from before a restart.
    pub(crate) async fn running(&self) -> Result<Vec<Arc<AdapterProcess>>, SessionRefusal> {
        let mut running = self.processes.running();
        for other in self.session()?.processes(&self.target).await? {
            if self.processes.find(|process| process.id == other.id).is_none() {
                running.push(Arc::new(self.described(other)));
            }
        }
        Ok(running)
    }

    fn described(&self, process: RunningProcess) -> AdapterProcess {
        let mut argv = process.argv.into_iter();
        AdapterProcess {
            pid: self.processes.pid_of(&process.id),
            id: process.id,
            cmd: argv.next().unwrap_or_default(),
            args: argv.collect(),
            envs: BTreeMap::new(),
            cwd: String::new(),
            tag: process.tag,
            user: process.user,
            started_at_ms: process.started_at_ms,
            pty: process.terminal,
            logged: false,
            output: OutputRing::new(&self.processes.total),
        }
    }

    pub(crate) async fn by_pid(self: &Arc<Self>, pid: u32) -> Result<Arc<AdapterProcess>, SessionRefusal> {
        self.find(|process| process.pid == pid, || format!("process {pid} is not running")).await
    }

    pub(crate) async fn by_tag(self: &Arc<Self>, tag: &str) -> Result<Arc<AdapterProcess>, SessionRefusal> {
        self.find(|process| process.tag == tag, || format!("process with tag {tag} not found")).await
    }

    pub(crate) async fn send_signal(
        &self,
        process: &AdapterProcess,
        signal: i32,
    ) -> Result<(), SessionRefusal> {
        if !(1..=64).contains(&signal) {
            return Err(SessionRefusal::invalid(format!("there is no signal {signal}")));
        }
        self.need(Capability::Signal)?;
        Ok(self.session()?.signal(&self.target, &process.id, signal).await?)
    }

    pub(crate) async fn write_input(
        &self,
        process: &AdapterProcess,
        data: Vec<u8>,
    ) -> Result<(), SessionRefusal> {
        self.need(if process.pty { Capability::Terminal } else { Capability::Stdin })?;
        Ok(self.session()?.write_stdin(&self.target, &process.id, data.into()).await?)
    }

    pub(crate) async fn close_input(&self, process: &AdapterProcess) -> Result<(), SessionRefusal> {
        self.need(Capability::Stdin)?;
        Ok(self.session()?.close_stdin(&self.target, &process.id).await?)
    }

    pub(crate) async fn resize_terminal(
        &self,
        process: &AdapterProcess,
        size: TerminalSize,
    ) -> Result<(), SessionRefusal> {
        self.need(Capability::Terminal)?;
        Ok(self.session()?.resize_terminal(&self.target, &process.id, size).await?)
    }

    /// A process that is known, or one that the provider still has from before a restart of the server.
    async fn find(
        self: &Arc<Self>,
        is_wanted: impl Fn(&AdapterProcess) -> bool + Send,
        missing: impl FnOnce() -> String + Send,
    ) -> Result<Arc<AdapterProcess>, SessionRefusal> {
        let _search = self.processes.search.lock().await;
        if let Some(process) = self.processes.find(&is_wanted) {
            return Ok(process);
        }
        let found = self.running().await?.into_iter().find(|process| is_wanted(process));
        // It is in no table, so nobody else has it.
        let found = found.and_then(Arc::into_inner);
        let process = found.ok_or_else(|| SessionRefusal::new(RpcCode::NotFound, missing()))?;
        let output = self.session()?.attach_process(&self.target, &process.id).await?;
        Ok(self.follow(process, output, |_| ()).0)
    }
}

/// Takes the output from the provider as fast as its patient reader takes it from the ring.
async fn pump(
    process: Arc<AdapterProcess>,
    mut output: ProcessOutput,
    logs: Option<Arc<OutputRing<LogSource>>>,
) {
    let end = loop {
        let (channel, data) = match output.next().await {
            Some(Ok(ProcessEvent::Stdout(data))) => (OutputChannel::Stdout, data),
            Some(Ok(ProcessEvent::Stderr(data))) => (OutputChannel::Stderr, data),
            Some(Ok(ProcessEvent::Pty(data))) => (OutputChannel::Terminal, data),
            Some(Ok(ProcessEvent::Dropped(bytes))) => {
                process.output.skip(bytes);
                continue;
            }
            Some(Ok(ProcessEvent::Exit(status))) => break OutputEnd::Exit(status),
            Some(Err(error)) => break OutputEnd::Failed(error.into()),
            None => {
                let message = "the provider lost the process before it ended";
                break OutputEnd::Failed(SessionRefusal::new(RpcCode::Unavailable, message));
            }
        };
        if let Some(logs) = &logs {
            logs.publish(LogSource { pid: process.pid, channel, at_ms: now_ms() }, &data).await;
        }
        process.output.publish(channel, &data).await;
    };
    process.output.finish(end);
}
