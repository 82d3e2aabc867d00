//! Terminals: a shell bound to a thread of conversation. The same thread gets the same shell with its folder and
//! environment, until the shell or the instance ends.
//!
//! The registry is in the store, so it outlives the server: a row says how the shell was started and how large the terminal
//! is; the shell is a process in the sandbox that has the row's id in its tag. A row whose process has ended is removed when
//! somebody looks. Every front has its terminals here, under the name that its user chose as the thread.

use std::collections::BTreeMap;

use atoll_agentapi::Session;
use atoll_model::{Code, InstanceId, Lease, Principal};
use atoll_store::{Terminal, TerminalSettings};
use bytes::Bytes;
use futures::stream::BoxStream;

use crate::activity::ActivityKind;
use crate::agent::{AgentOperation, refusal};
use crate::exec::{size, start};
use crate::follow::exec_events;
use crate::random::entropy;
use crate::sandboxes::{Sandboxes, SandboxesState};
use crate::session::SandboxSession;
use crate::{Exec, ExecEvent, OpenTerminal, ServiceError, TerminalSize};

/// LIMIT: more shells than a conversation needs; each takes a process of the sandbox.
const TERMINALS_MAX: usize = 64;
const THREAD_MAX: usize = 256;
/// LIMIT: of what the registry holds of one terminal; a shell's own variables are a few kilobytes.
const SETTINGS_BYTES: usize = 64 << 10;
const CWD_MAX: usize = 4_096;
const USUAL_SIZE: TerminalSize = TerminalSize { cols: 80, rows: 24 };
const HANGUP: i32 = 1;

/// The writing side of an attached terminal. Input wakes a paused sandbox, as any request does.
#[derive(Debug, Clone)]
pub struct TerminalInput {
    session: SandboxSession,
    pid: u32,
    wakes: bool,
}

impl TerminalInput {
    /// The same, which waits while the sandbox is paused instead of waking it.
    #[must_use]
    pub fn without_wake(self) -> Self {
        Self { wakes: false, ..self }
    }

    /// Writes input.
    pub async fn write(&self, data: Bytes) -> Result<(), ServiceError> {
        self.wake().await?;
        let written = self.session.send_stdin(self.pid, &data).await;
        written.map_err(|error| refusal(AgentOperation::Process, error))
    }

    /// Changes the size.
    pub async fn resize(&self, to: TerminalSize) -> Result<(), ServiceError> {
        self.wake().await?;
        let resized = self.session.resize(self.pid, size(to)).await;
        resized.map_err(|error| refusal(AgentOperation::Process, error))
    }

    async fn wake(&self) -> Result<(), ServiceError> {
        if !self.wakes {
            return Ok(());
        }
        self.session.wake().await.map_err(|error| match error.code {
            Code::ProcessNotFound => {
                ServiceError::new(Code::ProcessNotFound, "the shell of the terminal has ended")
                    .hint("open it again with its thread")
            }
            _ => error,
        })
    }
}

impl Sandboxes {
    /// Opens a terminal, or returns the existing one of this thread.
    pub async fn open_terminal(
        &self,
        who: &Principal,
        ident: &str,
        open: OpenTerminal,
    ) -> Result<Terminal, ServiceError> {
        check(&open)?;
        self.session(who, ident).await?.open_terminal(open).await
    }

    /// Opens a terminal of a thread that has none. The shell of a lazy one does not wake a paused sandbox.
    pub async fn create_terminal(
        &self,
        who: &Principal,
        ident: &str,
        open: OpenTerminal,
    ) -> Result<Terminal, ServiceError> {
        check(&open)?;
        let (lease, _) = self.find(who, ident).await?;
        match (&lease.instance, open.lazy) {
            (Some(instance), true) => {
                let known = self.inner.current_terminals(&lease).await?;
                let is_taken = known.iter().any(|terminal| terminal.thread == open.thread);
                if is_taken {
                    return Err(taken(&open.thread));
                }
                refuse_more(&known)?;
                let waiting = self.inner.row(&lease, instance.clone(), open)?;
                self.inner.put_new(waiting).await
            }
            _ => self.session(who, ident).await?.create_terminal(open).await,
        }
    }

    /// Follows a terminal: the kept end of its output first, then live. The handle writes to it.
    pub async fn terminal_attach(
        &self,
        who: &Principal,
        ident: &str,
        terminal: &str,
    ) -> Result<(BoxStream<'static, ExecEvent>, TerminalInput), ServiceError> {
        let sandbox = self.awake_session(who, ident, ActivityKind::Terminal).await?;
        let terminal = sandbox.terminal_by_id(terminal).await?;
        sandbox.attach_terminal(&terminal).await
    }

    /// The terminals of a sandbox, by the registry alone: it is not woken, and a shell that ended a moment ago may be among
    /// them.
    pub async fn list_terminals(&self, who: &Principal, ident: &str) -> Result<Vec<Terminal>, ServiceError> {
        let (lease, _) = self.find(who, ident).await?;
        self.inner.current_terminals(&lease).await
    }

    /// Changes the size of a terminal.
    pub async fn resize_terminal(
        &self,
        who: &Principal,
        ident: &str,
        terminal: &Terminal,
        to: TerminalSize,
    ) -> Result<Terminal, ServiceError> {
        match terminal.pid {
            Some(_) => self.session(who, ident).await?.resize_terminal(terminal, to).await,
            None => self.inner.note_size(terminal, to).await,
        }
    }

    /// Ends a terminal's shell and removes its record.
    pub async fn close_terminal(
        &self,
        who: &Principal,
        ident: &str,
        terminal: &str,
    ) -> Result<(), ServiceError> {
        let sandbox = self.session(who, ident).await?;
        let terminal = sandbox.terminal_by_id(terminal).await?;
        sandbox.close_terminal(&terminal).await
    }
}

impl SandboxSession {
    /// The terminals whose shell runs or waits for its first use, oldest first.
    pub async fn terminals(&self) -> Result<Vec<Terminal>, ServiceError> {
        let known = self.inner.current_terminals(&self.lease).await?;
        if known.iter().all(|terminal| terminal.pid.is_none()) {
            return Ok(known);
        }
        // An agent that does not answer says nothing of its shells.
        let Ok(processes) = self.list().await else { return Ok(known) };
        let is_there = |terminal: &Terminal| {
            let tag = tag(&terminal.id);
            let runs = |pid| processes.iter().any(|process| process.pid == pid && process.tag == tag);
            terminal.pid.is_none_or(runs)
        };
        let (there, ended): (Vec<_>, Vec<_>) = known.into_iter().partition(is_there);
        for terminal in ended {
            self.inner.store.delete_terminal(&self.lease.id, &terminal.id).await?;
        }
        Ok(there)
    }

    /// The terminal of a thread.
    pub async fn terminal(&self, thread: &str) -> Result<Terminal, ServiceError> {
        let known = self.terminals().await?;
        known.into_iter().find(|terminal| terminal.thread == thread).ok_or_else(missing)
    }

    pub(crate) async fn terminal_by_id(&self, id: &str) -> Result<Terminal, ServiceError> {
        let known = self.terminals().await?;
        known.into_iter().find(|terminal| terminal.id == id).ok_or_else(missing)
    }

    /// Opens a terminal, or finds the one of this thread again.
    pub async fn open_terminal(&self, open: OpenTerminal) -> Result<Terminal, ServiceError> {
        check(&open)?;
        let known = self.terminals().await?;
        match known.iter().find(|terminal| terminal.thread == open.thread) {
            Some(terminal) => {
                let begun = self.begun(terminal).await?;
                self.resize_terminal(&begun, open.size).await
            }
            None => {
                refuse_more(&known)?;
                Ok(self.put_started(open).await?.0)
            }
        }
    }

    /// Opens a terminal of a thread that has none.
    pub async fn create_terminal(&self, open: OpenTerminal) -> Result<Terminal, ServiceError> {
        check(&open)?;
        let known = self.terminals().await?;
        if known.iter().any(|terminal| terminal.thread == open.thread) {
            return Err(taken(&open.thread));
        }
        refuse_more(&known)?;
        let thread = open.thread.clone();
        let (made, is_new) = self.put_started(open).await?;
        if is_new { Ok(made) } else { Err(taken(&thread)) }
    }

    /// Starts a shell and writes its row, or answers with the row that another request for the thread wrote first.
    async fn put_started(&self, open: OpenTerminal) -> Result<(Terminal, bool), ServiceError> {
        let instance = self.instance()?;
        let mut fresh = self.inner.row(&self.lease, instance, open)?;
        if !fresh.settings.lazy {
            self.start_shell(&mut fresh).await?;
        }
        let (id, pid) = (fresh.id.clone(), fresh.pid);
        let kept = self.inner.store.put_terminal(fresh).await?;
        let is_new = kept.id == id;
        if let Some(pid) = pid.filter(|_| !is_new) {
            // One shell is enough.
            let _ = self.signal(pid, HANGUP).await;
        }
        Ok((kept, is_new))
    }

    fn instance(&self) -> Result<InstanceId, ServiceError> {
        let current = self.handle.lease().instance.clone();
        current.ok_or_else(|| ServiceError::new(Code::SandboxUnavailable, "the sandbox has no instance"))
    }

    /// Starts the shell of a terminal and notes its pid and folder.
    async fn start_shell(&self, terminal: &mut Terminal) -> Result<(), ServiceError> {
        let pid = start_shell(self, &terminal.id, &terminal.settings).await?;
        terminal.pid = Some(pid);
        if let Ok(processes) = self.list().await
            && let Some(shell) = processes.into_iter().find(|process| process.pid == pid)
        {
            terminal.settings.cwd = Some(shell.cwd).filter(|cwd| !cwd.is_empty());
        }
        Ok(())
    }

    /// The terminal with its shell, which is started if it waited for its first use.
    async fn begun(&self, terminal: &Terminal) -> Result<Terminal, ServiceError> {
        if terminal.pid.is_some() {
            return Ok(terminal.clone());
        }
        let mut begun = Terminal { instance: self.instance()?, ..terminal.clone() };
        self.start_shell(&mut begun).await?;
        if self.inner.store.update_terminal(begun.clone(), None).await? {
            return Ok(begun);
        }
        if let Some(pid) = begun.pid {
            // Another request was faster; one shell is enough.
            let _ = self.signal(pid, HANGUP).await;
        }
        self.terminal_by_id(&terminal.id).await
    }

    /// Follows a terminal: the kept end of its output first, then live. The handle writes to it.
    pub async fn attach_terminal(
        &self,
        terminal: &Terminal,
    ) -> Result<(BoxStream<'static, ExecEvent>, TerminalInput), ServiceError> {
        let pid = self.begun(terminal).await?.pid.ok_or_else(missing)?;
        let stream = self.attach(pid, true).await;
        let stream = stream.map_err(|error| refusal(AgentOperation::Process, error))?;
        Ok((exec_events(stream), TerminalInput { session: self.clone(), pid, wakes: true }))
    }

    /// Changes the size of a terminal.
    pub async fn resize_terminal(
        &self,
        terminal: &Terminal,
        to: TerminalSize,
    ) -> Result<Terminal, ServiceError> {
        if let Some(pid) = terminal.pid {
            let resized = self.resize(pid, size(to)).await;
            resized.map_err(|error| refusal(AgentOperation::Process, error))?;
        }
        self.inner.note_size(terminal, to).await
    }

    /// Ends a terminal's shell and forgets it.
    pub async fn close_terminal(&self, terminal: &Terminal) -> Result<(), ServiceError> {
        self.end_terminal(terminal, HANGUP).await
    }

    /// The same, by a signal of the caller's choice.
    pub async fn end_terminal(&self, terminal: &Terminal, signal: i32) -> Result<(), ServiceError> {
        if let Some(pid) = terminal.pid {
            let ended = self.signal(pid, signal).await;
            match ended.map_err(|error| refusal(AgentOperation::Process, error)) {
                Ok(()) => {}
                Err(error) if error.code == Code::ProcessNotFound => {}
                Err(error) => return Err(error),
            }
        }
        self.inner.store.delete_terminal(&self.lease.id, &terminal.id).await?;
        Ok(())
    }
}

impl SandboxesState {
    /// The rows of the instance that the sandbox has now.
    async fn current_terminals(&self, lease: &Lease) -> Result<Vec<Terminal>, ServiceError> {
        let mut known = self.store.terminals(&lease.id).await?;
        let instance = self
            .registry
            .get(&lease.id)
            .map_or_else(|| lease.instance.clone(), |handle| handle.lease().instance.clone());
        known.retain(|terminal| Some(&terminal.instance) == instance.as_ref());
        Ok(known)
    }

    fn row(&self, lease: &Lease, instance: InstanceId, open: OpenTerminal) -> Result<Terminal, ServiceError> {
        let OpenTerminal { thread, size, shell, cwd, env, user, lazy } = open;
        Ok(Terminal {
            id: hex::encode(entropy::<10>()?),
            sandbox: lease.id.clone(),
            instance,
            thread,
            pid: None,
            created_at_ms: self.clock.now().wall_ms,
            settings: TerminalSettings { cols: size.cols, rows: size.rows, shell, cwd, env, user, lazy },
        })
    }

    async fn put_new(&self, terminal: Terminal) -> Result<Terminal, ServiceError> {
        let (id, thread) = (terminal.id.clone(), terminal.thread.clone());
        let kept = self.store.put_terminal(terminal).await?;
        if kept.id == id { Ok(kept) } else { Err(taken(&thread)) }
    }

    async fn note_size(&self, terminal: &Terminal, to: TerminalSize) -> Result<Terminal, ServiceError> {
        let mut sized = terminal.clone();
        (sized.settings.cols, sized.settings.rows) = (to.cols, to.rows);
        self.store.update_terminal(sized.clone(), terminal.pid).await?;
        Ok(sized)
    }
}

/// The size of a terminal, also of one that an older server opened.
#[must_use]
pub fn terminal_size(terminal: &Terminal) -> TerminalSize {
    match (terminal.settings.cols, terminal.settings.rows) {
        (0, _) | (_, 0) => USUAL_SIZE,
        (cols, rows) => TerminalSize { cols, rows },
    }
}

fn tag(id: &str) -> String {
    format!("terminal-{id}")
}

fn missing() -> ServiceError {
    ServiceError::new(Code::ProcessNotFound, "there is no such terminal")
        .hint("open it again with its thread")
}

fn taken(thread: &str) -> ServiceError {
    ServiceError::new(Code::AlreadyExists, format!("a terminal {thread:?} already exists"))
}

fn refuse_more(known: &[Terminal]) -> Result<(), ServiceError> {
    if known.len() < TERMINALS_MAX {
        return Ok(());
    }
    let message = format!("the sandbox has {TERMINALS_MAX} terminals already");
    Err(ServiceError::new(Code::SandboxExhausted, message).hint("close some of them"))
}

fn check(open: &OpenTerminal) -> Result<(), ServiceError> {
    let OpenTerminal { thread, cwd, env, shell, .. } = open;
    if thread.is_empty() || thread.len() > THREAD_MAX || thread.chars().any(char::is_control) {
        let problem = format!("must have 1 to {THREAD_MAX} printable characters");
        return Err(ServiceError::field("thread", problem));
    }
    if cwd.as_ref().is_some_and(|cwd| cwd.len() > CWD_MAX) {
        return Err(ServiceError::field("cwd", format!("must have at most {CWD_MAX} bytes")));
    }
    let bytes = env.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>()
        + shell.iter().flatten().map(String::len).sum::<usize>();
    if bytes > SETTINGS_BYTES {
        return Err(ServiceError::field("env", format!("must have at most {SETTINGS_BYTES} bytes in all")));
    }
    Ok(())
}

/// Tries the asked shell, or bash and then sh.
async fn start_shell(
    sandbox: &SandboxSession,
    id: &str,
    settings: &TerminalSettings,
) -> Result<u32, ServiceError> {
    let default =
        [vec!["/bin/bash".to_owned(), "-i".to_owned()], vec!["/bin/sh".to_owned(), "-i".to_owned()]];
    let shells = settings.shell.clone().map_or_else(|| default.to_vec(), |shell| vec![shell]);
    let mut env: BTreeMap<String, String> = settings.env.clone();
    env.entry("TERM".to_owned()).or_insert_with(|| "xterm-256color".to_owned());
    let mut last = ServiceError::new(Code::InvalidRequest, "shell needs a program");
    for argv in shells {
        let exec = Exec {
            argv,
            cwd: settings.cwd.clone(),
            env: env.clone(),
            user: settings.user.clone(),
            terminal: Some(TerminalSize { cols: settings.cols, rows: settings.rows }),
            tag: Some(tag(id)),
            ..Default::default()
        };
        match start(sandbox, exec).await {
            Ok((pid, _)) => return Ok(pid),
            Err(error) => last = error,
        }
    }
    Err(last)
}
