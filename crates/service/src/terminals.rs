//! Terminals: a shell bound to a thread of conversation. The same thread gets the same shell with its folder and
//! environment, until the shell or the instance ends.

use std::collections::BTreeMap;

use atoll_agentapi::Session;
use atoll_model::{Code, Principal};
use atoll_store::Terminal;
use bytes::Bytes;
use futures::stream::BoxStream;

use crate::activity::ActivityKind;
use crate::agent::{AgentOperation, refusal};
use crate::exec::{size, start};
use crate::follow::exec_events;
use crate::random::entropy;
use crate::service::{Service, ServiceShared};
use crate::session::SandboxSession;
use crate::{Exec, ExecEvent, OpenTerminal, ServiceError, TerminalSize};

/// LIMIT: more shells than a conversation needs; each takes a process of the sandbox.
const TERMINALS_MAX: usize = 64;
const THREAD_MAX: usize = 256;
const HANGUP: i32 = 1;

/// The writing side of an attached terminal. Input wakes a paused sandbox, as any request does.
#[derive(Debug, Clone)]
pub struct TerminalInput {
    session: SandboxSession,
    pid: u32,
}

impl TerminalInput {
    /// Types.
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
        self.session.wake().await.map_err(|error| match error.code {
            Code::ProcessNotFound => {
                ServiceError::new(Code::ProcessNotFound, "the shell of the terminal has ended")
                    .hint("open it again with its thread")
            }
            _ => error,
        })
    }
}

impl Service {
    /// Opens a terminal, or finds the one of this thread again.
    pub async fn open_terminal(
        &self,
        who: &Principal,
        ident: &str,
        open: OpenTerminal,
    ) -> Result<Terminal, ServiceError> {
        if open.thread.is_empty()
            || open.thread.len() > THREAD_MAX
            || open.thread.chars().any(char::is_control)
        {
            let message = format!("thread must have 1 to {THREAD_MAX} printable characters");
            return Err(ServiceError::new(Code::InvalidRequest, message));
        }
        let sandbox = self.session(who, ident).await?;
        let known = self.inner.store.terminals(&sandbox.lease.id).await?;
        if let Some(terminal) = known.iter().find(|terminal| terminal.thread == open.thread) {
            if self.is_live(&sandbox, terminal).await {
                let resized = sandbox.resize(terminal.pid, size(open.size)).await;
                resized.map_err(|error| refusal(AgentOperation::Process, error))?;
                return Ok(terminal.clone());
            }
            self.inner.store.delete_terminal(&sandbox.lease.id, &terminal.id).await?;
        } else if known.len() >= TERMINALS_MAX {
            let message = format!("the sandbox has {TERMINALS_MAX} terminals already");
            return Err(ServiceError::new(Code::SandboxExhausted, message).hint("close some of them"));
        }
        self.start_terminal(&sandbox, open).await
    }

    async fn start_terminal(
        &self,
        sandbox: &SandboxSession,
        open: OpenTerminal,
    ) -> Result<Terminal, ServiceError> {
        let instance = sandbox
            .lease
            .instance
            .clone()
            .ok_or_else(|| ServiceError::new(Code::SandboxUnavailable, "the sandbox has no instance"))?;
        let id = hex::encode(entropy::<10>()?);
        let pid = start_shell(sandbox, &id, &open).await?;
        let fresh = Terminal {
            id: id.clone(),
            sandbox: sandbox.lease.id.clone(),
            instance,
            thread: open.thread,
            pid,
            created_at_ms: self.inner.clock.now().wall_ms,
        };
        let kept = self.inner.store.put_terminal(fresh).await?;
        if kept.id != id {
            // Another request for the same thread was faster; one shell is enough.
            let _ = sandbox.signal(pid, HANGUP).await;
        }
        Ok(kept)
    }

    /// Follows a terminal: the kept end of its output first, then live. The handle writes to it.
    pub async fn terminal_attach(
        &self,
        who: &Principal,
        ident: &str,
        terminal: &str,
    ) -> Result<(BoxStream<'static, ExecEvent>, TerminalInput), ServiceError> {
        let sandbox = self.awake_session(who, ident, ActivityKind::Terminal).await?;
        let pid = self.terminal(&sandbox, terminal).await?.pid;
        let stream = sandbox.attach(pid, true).await;
        let stream = stream.map_err(|error| refusal(AgentOperation::Process, error))?;
        Ok((exec_events(stream), TerminalInput { session: sandbox, pid }))
    }

    /// The terminals of a sandbox.
    pub async fn list_terminals(&self, who: &Principal, ident: &str) -> Result<Vec<Terminal>, ServiceError> {
        let (lease, _) = self.find(who, ident).await?;
        Ok(self.inner.store.terminals(&lease.id).await?)
    }

    /// Ends a terminal's shell and removes its record.
    pub async fn close_terminal(
        &self,
        who: &Principal,
        ident: &str,
        terminal: &str,
    ) -> Result<(), ServiceError> {
        let sandbox = self.session(who, ident).await?;
        let terminal = self.terminal(&sandbox, terminal).await?;
        match sandbox
            .signal(terminal.pid, HANGUP)
            .await
            .map_err(|error| refusal(AgentOperation::Process, error))
        {
            Ok(()) => {}
            Err(error) if error.code == Code::ProcessNotFound => {}
            Err(error) => return Err(error),
        }
        self.inner.store.delete_terminal(&sandbox.lease.id, &terminal.id).await?;
        Ok(())
    }

    async fn terminal(&self, sandbox: &SandboxSession, id: &str) -> Result<Terminal, ServiceError> {
        let found = self.inner.store.terminals(&sandbox.lease.id).await?;
        let current = |terminal: &Terminal| {
            terminal.id == id && Some(&terminal.instance) == sandbox.lease.instance.as_ref()
        };
        found.into_iter().find(current).ok_or_else(|| {
            ServiceError::new(Code::ProcessNotFound, "there is no such terminal")
                .hint("open it again with its thread")
        })
    }

    async fn is_live(&self, sandbox: &SandboxSession, terminal: &Terminal) -> bool {
        Some(&terminal.instance) == sandbox.lease.instance.as_ref()
            && ServiceShared::runs(sandbox, terminal.pid).await
    }
}

/// Tries the asked shell, or bash and then sh.
async fn start_shell(sandbox: &SandboxSession, id: &str, open: &OpenTerminal) -> Result<u32, ServiceError> {
    let default =
        [vec!["/bin/bash".to_owned(), "-i".to_owned()], vec!["/bin/sh".to_owned(), "-i".to_owned()]];
    let shells = open.shell.clone().map_or_else(|| default.to_vec(), |shell| vec![shell]);
    let mut env: BTreeMap<String, String> = open.env.clone();
    env.entry("TERM".to_owned()).or_insert_with(|| "xterm-256color".to_owned());
    let mut last = ServiceError::new(Code::InvalidRequest, "shell needs a program");
    for argv in shells {
        let exec = Exec {
            argv,
            cwd: open.cwd.clone(),
            env: env.clone(),
            user: open.user.clone(),
            terminal: Some(open.size),
            tag: Some(format!("terminal-{id}")),
            ..Default::default()
        };
        match start(sandbox, exec).await {
            Ok((pid, _)) => return Ok(pid),
            Err(error) => last = error,
        }
    }
    Err(last)
}
