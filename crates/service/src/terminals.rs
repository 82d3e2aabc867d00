//! Terminals: a shell bound to a thread of conversation. The same thread gets the same shell with its folder and
//! environment, until the shell or the instance ends.
//!
//! The registry is in the store, so it outlives the server: a row says how the shell is started and how large the terminal
//! is; the shell is a process in the sandbox that has the row's id in its tag. A row whose process has ended is removed by
//! the next list. Every front has its terminals here, under the name that its user chose as the thread.
//!
//! ```text
//! row without pid ──► shell with the row's tag ──► pid in the row ──► ended: first the shell, then the row
//! ```
//! The row is written first and removed last, so every shell has one. A request that finds a row without a pid looks for
//! the shell by its tag, and starts one only if there is none. All of this continues when the client goes away.

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_agentapi::{ProcessInfo, Session};
use atoll_model::{Code, Lease, Principal};
use atoll_store::{StoreError, Terminal, TerminalSettings};
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
const TERMINALS_MAX: u32 = 64;
const THREAD_MAX: usize = 256;
/// LIMIT: of what the registry holds of one terminal; a shell's own variables are a few kilobytes.
const SETTINGS_BYTES: usize = 64 << 10;
const CWD_MAX: usize = 4_096;
const USUAL_SIZE: TerminalSize = TerminalSize { cols: 80, rows: 24 };
/// The beginning of the tags of shells.
const TAG: &str = "terminal-";
const HANGUP: i32 = 1;
const KILL: i32 = 9;
/// How long a shell may take to end by itself.
const LEAVE: Duration = Duration::from_secs(1);
const LEAVE_POLL: Duration = Duration::from_millis(20);

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
        if !open.lazy || lease.instance.is_none() {
            return self.session(who, ident).await?.create_terminal(open).await;
        }
        let thread = open.thread.clone();
        let (kept, is_new) = self.inner.put_row(&lease, open).await?;
        if is_new { Ok(kept) } else { Err(taken(&thread)) }
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
        Ok(self.inner.store.terminals(&lease.id).await?)
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
        let known = self.inner.store.terminals(&self.lease.id).await?;
        if known.iter().all(|terminal| terminal.pid.is_none()) {
            return Ok(known);
        }
        // An agent that does not answer says nothing of its shells.
        let Ok(processes) = self.list().await else { return Ok(known) };
        let is_there = |terminal: &Terminal| {
            let tag = tag(terminal);
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
        let size = open.size;
        let known = self.terminals().await?;
        let known = known.into_iter().find(|terminal| terminal.thread == open.thread);
        let (found, is_new) = match known {
            Some(terminal) => (terminal, false),
            None => self.put_started(open).await?,
        };
        if is_new {
            return Ok(found);
        }
        let started = self.started(&found).await?;
        self.resize_terminal(&started, size).await
    }

    /// Opens a terminal of a thread that has none.
    pub async fn create_terminal(&self, open: OpenTerminal) -> Result<Terminal, ServiceError> {
        check(&open)?;
        let thread = open.thread.clone();
        // Rows of shells that have ended are removed, so they do not count.
        self.terminals().await?;
        let (made, is_new) = self.put_started(open).await?;
        if is_new { Ok(made) } else { Err(taken(&thread)) }
    }

    /// Writes the row of a terminal and starts its shell; or answers with the row that the thread has already. Continues when
    /// the caller goes away.
    async fn put_started(&self, open: OpenTerminal) -> Result<(Terminal, bool), ServiceError> {
        let own = self.clone();
        let starting = async move {
            let (kept, is_new) = own.inner.put_row(&own.lease, open).await?;
            if !is_new || kept.settings.lazy {
                return Ok((kept, is_new));
            }
            own.inner.failpoint.reach("terminal.row").await;
            match own.start_noted(&kept).await {
                Ok(started) => Ok((started, true)),
                Err(error) => {
                    own.forget_unstarted(&kept).await?;
                    Err(error)
                }
            }
        };
        self.inner.run_detached(starting).await
    }

    /// Removes the row of a terminal whose shell could not be started, unless another request has started it.
    async fn forget_unstarted(&self, terminal: &Terminal) -> Result<(), ServiceError> {
        if self.inner.store.delete_unstarted_terminal(&terminal.sandbox, &terminal.id).await? {
            // The shell may run nevertheless: the answer of its start may have been lost.
            for shell in self.shells(terminal).await.unwrap_or_default() {
                let _ = self.end_shell(shell.pid, &shell.tag, HANGUP).await;
            }
        }
        Ok(())
    }

    /// The terminal with its shell, which is started if that has not happened yet. Continues when the caller goes away.
    async fn started(&self, terminal: &Terminal) -> Result<Terminal, ServiceError> {
        if terminal.pid.is_some() {
            return Ok(terminal.clone());
        }
        let (own, terminal) = (self.clone(), terminal.clone());
        self.inner.run_detached(async move { own.start_noted(&terminal).await }).await
    }

    /// Finds or starts the shell of a terminal and notes its pid and folder.
    async fn start_noted(&self, terminal: &Terminal) -> Result<Terminal, ServiceError> {
        let _turn = self.handle.setup_locks.lock(&tag(terminal)).await;
        let pid = match self.shells(terminal).await?.first() {
            Some(shell) => shell.pid,
            None => start_shell(self, terminal).await?,
        };
        self.inner.failpoint.reach("terminal.shell").await;
        let shells = self.shells(terminal).await.unwrap_or_default();
        let mut noted = Terminal { pid: Some(pid), ..terminal.clone() };
        if let Some(shell) = shells.iter().find(|shell| shell.pid == pid) {
            noted.settings.cwd = Some(shell.cwd.clone()).filter(|cwd| !cwd.is_empty());
        }
        let is_noted = self.inner.store.update_terminal(noted.clone(), None).await?;
        let kept = if is_noted { noted } else { self.noted_by_other(terminal, pid).await? };
        // One shell is enough: a server that was killed may have left another.
        for other in shells.iter().filter(|shell| Some(shell.pid) != kept.pid) {
            let _ = self.end_shell(other.pid, &other.tag, HANGUP).await;
        }
        Ok(kept)
    }

    /// The terminal after another request changed it first. The shell that was started for nothing is ended.
    async fn noted_by_other(&self, terminal: &Terminal, pid: u32) -> Result<Terminal, ServiceError> {
        let known = self.inner.store.terminals(&self.lease.id).await?;
        let kept = known.into_iter().find(|known| known.id == terminal.id);
        if kept.as_ref().and_then(|kept| kept.pid) != Some(pid) {
            self.end_shell(pid, &tag(terminal), HANGUP).await?;
        }
        kept.ok_or_else(missing)
    }

    /// The processes with the tag of a terminal, oldest first.
    async fn shells(&self, terminal: &Terminal) -> Result<Vec<ProcessInfo>, ServiceError> {
        let tag = tag(terminal);
        let mut found = self.list().await.map_err(|error| refusal(AgentOperation::Process, error))?;
        found.retain(|process| process.tag == tag);
        found.sort_by_key(|process| (process.started_at_ms, process.pid));
        Ok(found)
    }

    /// Sends a signal to a shell; one that has not ended after a short time is killed.
    async fn end_shell(&self, pid: u32, tag: &str, signal: i32) -> Result<(), ServiceError> {
        for signal in [signal, KILL] {
            let sent = self.signal(pid, signal).await;
            match sent.map_err(|error| refusal(AgentOperation::Process, error)) {
                Ok(()) => {}
                Err(error) if error.code == Code::ProcessNotFound => return Ok(()),
                Err(error) => return Err(error),
            }
            let until = tokio::time::Instant::now() + LEAVE;
            while tokio::time::Instant::now() < until {
                let known = self.list().await.map_err(|error| refusal(AgentOperation::Process, error))?;
                if !known.iter().any(|process| process.pid == pid && process.tag == tag) {
                    return Ok(());
                }
                tokio::time::sleep(LEAVE_POLL).await;
            }
        }
        // A killed process that waits for the kernel ends later.
        Ok(())
    }

    /// Follows a terminal: the kept end of its output first, then live. The handle writes to it.
    pub async fn attach_terminal(
        &self,
        terminal: &Terminal,
    ) -> Result<(BoxStream<'static, ExecEvent>, TerminalInput), ServiceError> {
        let pid = self.started(terminal).await?.pid.ok_or_else(missing)?;
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

    /// The same, by a signal of the caller's choice. Continues when the caller goes away.
    pub async fn end_terminal(&self, terminal: &Terminal, signal: i32) -> Result<(), ServiceError> {
        let (own, terminal) = (self.clone(), terminal.clone());
        self.inner.run_detached(async move { own.end_with_shell(terminal, signal).await }).await
    }

    async fn end_with_shell(&self, terminal: Terminal, signal: i32) -> Result<(), ServiceError> {
        let store = &self.inner.store;
        let mut current = Some(terminal);
        while let Some(terminal) = current.take() {
            for shell in self.shells(&terminal).await? {
                self.end_shell(shell.pid, &shell.tag, signal).await?;
            }
            if terminal.pid.is_some() {
                store.delete_terminal(&self.lease.id, &terminal.id).await?;
            } else if !store.delete_unstarted_terminal(&self.lease.id, &terminal.id).await? {
                // Another request noted its shell meanwhile, or removed it.
                let known = store.terminals(&self.lease.id).await?;
                current = known.into_iter().find(|known| known.id == terminal.id);
            }
        }
        Ok(())
    }
}

impl SandboxesState {
    /// Writes the row of a terminal without a shell; or answers with the one that the thread has already.
    async fn put_row(&self, lease: &Lease, open: OpenTerminal) -> Result<(Terminal, bool), ServiceError> {
        let row = self.row(lease, open)?;
        let id = row.id.clone();
        let kept = self.store.put_terminal(row, TERMINALS_MAX).await?;
        let is_new = kept.id == id;
        Ok((kept, is_new))
    }

    fn row(&self, lease: &Lease, open: OpenTerminal) -> Result<Terminal, ServiceError> {
        let OpenTerminal { thread, size, shell, cwd, env, user, lazy } = open;
        let no_instance = || StoreError::NoInstance { sandbox: lease.id.clone() };
        let (cols, rows) = (size.cols, size.rows);
        Ok(Terminal {
            id: hex::encode(entropy::<10>()?),
            sandbox: lease.id.clone(),
            // The store takes the one of its transaction.
            instance: lease.instance.clone().ok_or_else(no_instance)?,
            thread,
            pid: None,
            created_at_ms: self.clock.now().wall_ms,
            settings: TerminalSettings { cols, rows, shell, cwd, env, user, lazy, forked_from: None },
        })
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

/// The tag of a terminal's shell. A fork with memory has shells that were started for the terminals of its parent.
fn tag(terminal: &Terminal) -> String {
    format!("{TAG}{}", terminal.settings.forked_from.as_ref().unwrap_or(&terminal.id))
}

fn missing() -> ServiceError {
    ServiceError::new(Code::ProcessNotFound, "there is no such terminal")
        .hint("open it again with its thread")
}

fn taken(thread: &str) -> ServiceError {
    ServiceError::new(Code::AlreadyExists, format!("a terminal {thread:?} already exists"))
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
async fn start_shell(sandbox: &SandboxSession, terminal: &Terminal) -> Result<u32, ServiceError> {
    let settings = &terminal.settings;
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
            tag: Some(tag(terminal)),
            ..Default::default()
        };
        match start(sandbox, exec).await {
            Ok((pid, _)) => return Ok(pid),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::TAG;

    #[test]
    fn no_request_can_start_a_process_that_looks_like_a_shell() {
        assert!(atoll_agentapi::is_reserved_tag(TAG));
    }
}
