//! Shells with a terminal, by a name of the user's choice.
//!
//! A terminal is a process whose tag holds its name and how it was made, so it is found again after a restart of the server and
//! after a pause. Several may read and write one terminal. It is gone when its shell is.

use std::collections::BTreeMap;

use std::sync::Arc;

use atoll_agentapi::{
    AgentError, ExitStatus, ProcessEvent, ProcessInfo, ProcessStream, RpcCode, Session, StartProcess,
    TerminalSize,
};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{Toolbox, ToolboxError};

/// LIMIT: each costs the sandbox a process.
const PTYS_MAX: usize = 64;
const NAME_MAX: usize = 256;
/// LIMIT: what is noted of one in its tag.
const NOTE_MAX: usize = 64 << 10;
const TAG: &str = "atoll-pty/";
const SIGKILL: i32 = 9;

/// Columns and rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowSize {
    /// Columns.
    pub cols: u16,
    /// Rows.
    pub rows: u16,
}

impl Default for WindowSize {
    fn default() -> Self {
        Self { cols: 80, rows: 24 }
    }
}

/// A terminal to be made.
#[derive(Debug, Clone, Default)]
pub struct NewPty {
    /// What it is called.
    pub name: String,
    /// Where its shell starts; by default the sandbox's working directory.
    pub cwd: Option<String>,
    /// On top of the sandbox's environment.
    pub env: BTreeMap<String, String>,
    /// How large it is.
    pub size: WindowSize,
}

/// A terminal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pty {
    /// What it is called.
    pub name: String,
    /// Where its shell started.
    pub cwd: String,
    /// What it was given on top of the sandbox's environment.
    pub env: BTreeMap<String, String>,
    /// How large it was made.
    pub size: WindowSize,
    /// When, in Unix milliseconds.
    pub created_at_ms: u64,
    pid: u32,
}

/// What a tag holds.
#[derive(Serialize, Deserialize)]
struct Note {
    name: String,
    env: BTreeMap<String, String>,
    size: WindowSize,
}

/// How a shell ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PtyEnd {
    /// As a shell shows it: 128 and the signal where one ended it.
    pub exit_code: i32,
    /// The signal.
    pub signal: Option<i32>,
}

/// What a terminal says. `End` is the last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PtyEvent {
    /// It shows something.
    Output(Bytes),
    /// So many bytes were lost because nobody read them.
    Dropped(u64),
    /// Its shell is gone.
    End(PtyEnd),
}

/// The reading side.
#[derive(Debug)]
pub struct PtyOutput {
    stream: ProcessStream,
}

impl PtyOutput {
    /// The next event; `None` after the end or an error. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<PtyEvent, ToolboxError>> {
        let event = match self.stream.next().await? {
            Ok(event) => event,
            Err(error) => return Some(Err(ToolboxError::process(error))),
        };
        Some(Ok(match event {
            ProcessEvent::Stdout(data) | ProcessEvent::Stderr(data) | ProcessEvent::Pty(data) => {
                PtyEvent::Output(data)
            }
            ProcessEvent::Dropped(bytes) => PtyEvent::Dropped(bytes),
            ProcessEvent::Exit(status) => PtyEvent::End(end_of(&status)),
        }))
    }
}

/// The writing side. Clones write to the same terminal.
#[derive(Debug, Clone)]
pub struct PtyInput {
    sandbox: Arc<dyn Session>,
    pid: u32,
}

impl PtyInput {
    /// Types.
    pub async fn write(&self, data: &[u8]) -> Result<(), ToolboxError> {
        self.sandbox.send_stdin(self.pid, data.as_ref()).await.map_err(gone_is_ended)
    }
}

/// The terminals of one sandbox.
#[derive(Debug)]
pub struct Ptys<'a> {
    toolbox: &'a Toolbox,
}

impl<'a> Ptys<'a> {
    pub(crate) fn new(toolbox: &'a Toolbox) -> Self {
        Self { toolbox }
    }

    /// All of them, oldest first.
    pub async fn list(&self) -> Result<Vec<Pty>, ToolboxError> {
        let processes = self.toolbox.sandbox.list().await.map_err(ToolboxError::process)?;
        let mut found: Vec<Pty> = processes.into_iter().filter_map(pty_of).collect();
        found.sort_by_key(|pty| (pty.created_at_ms, pty.pid));
        let mut known = std::collections::BTreeSet::new();
        found.retain(|pty| known.insert(pty.name.clone()));
        Ok(found)
    }

    /// One of them.
    pub async fn find(&self, name: &str) -> Result<Pty, ToolboxError> {
        let found = self.list().await?.into_iter().find(|pty| pty.name == name);
        found.ok_or_else(|| ToolboxError::NotFound(format!("there is no terminal {name:?}")))
    }

    /// Makes one: a login shell in it. A name that is taken is [`ToolboxError::Exists`].
    pub async fn create(&self, new: NewPty) -> Result<Pty, ToolboxError> {
        if new.name.is_empty() || new.name.len() > NAME_MAX || new.name.chars().any(char::is_control) {
            let message = format!("the terminal's name must have 1 to {NAME_MAX} printable characters");
            return Err(ToolboxError::Invalid(message));
        }
        let known = self.list().await?;
        let taken = || ToolboxError::Exists(format!("a terminal {:?} already exists", new.name));
        if known.iter().any(|pty| pty.name == new.name) {
            return Err(taken());
        }
        if known.len() >= PTYS_MAX {
            let message = format!("the sandbox has {PTYS_MAX} terminals already; end some of them");
            return Err(ToolboxError::Conflict(message));
        }
        let pid = self.start(&new).await?;
        let kept = self.list().await?.into_iter().find(|pty| pty.name == new.name);
        match kept {
            Some(pty) if pty.pid == pid => Ok(pty),
            // Another request for the same name was faster; one shell is enough.
            Some(_) => {
                let _ = self.toolbox.sandbox.signal(pid, SIGKILL).await;
                Err(taken())
            }
            None => Err(ToolboxError::Ended("the shell ended as soon as it began".into())),
        }
    }

    async fn start(&self, new: &NewPty) -> Result<u32, ToolboxError> {
        let mut envs = new.env.clone();
        envs.entry("TERM".to_owned()).or_insert_with(|| "xterm-256color".to_owned());
        let start = StartProcess {
            cmd: "/bin/bash".to_owned(),
            args: vec!["-il".to_owned()],
            envs,
            cwd: new.cwd.clone().unwrap_or_default(),
            pty: Some(TerminalSize { cols: new.size.cols, rows: new.size.rows }),
            tag: tag(new)?,
            user: self.toolbox.user.clone(),
            ..Default::default()
        };
        let (started, _) = self.toolbox.sandbox.start(start).await.map_err(ToolboxError::process)?;
        Ok(started.pid)
    }

    /// Follows one: the kept end of what it showed comes first.
    pub async fn attach(&self, pty: &Pty) -> Result<(PtyOutput, PtyInput), ToolboxError> {
        let stream = self.toolbox.sandbox.attach(pty.pid, true).await.map_err(gone_is_ended)?;
        Ok((PtyOutput { stream }, PtyInput { sandbox: self.toolbox.sandbox.clone(), pid: pty.pid }))
    }

    /// Changes its size.
    pub async fn resize(&self, pty: &Pty, size: WindowSize) -> Result<(), ToolboxError> {
        let size = TerminalSize { cols: size.cols, rows: size.rows };
        self.toolbox.sandbox.resize(pty.pid, size).await.map_err(gone_is_ended)
    }

    /// Ends its shell with all that runs in the foreground of it.
    pub async fn kill(&self, pty: &Pty) -> Result<(), ToolboxError> {
        self.toolbox.sandbox.signal(pty.pid, SIGKILL).await.map_err(gone_is_ended)
    }
}

fn gone_is_ended(error: AgentError) -> ToolboxError {
    match error {
        AgentError::Refused { code: RpcCode::NotFound | RpcCode::FailedPrecondition, .. } => {
            ToolboxError::Ended("the terminal's shell has ended".into())
        }
        error => ToolboxError::process(error),
    }
}

fn end_of(status: &ExitStatus) -> PtyEnd {
    PtyEnd { exit_code: status.shell_code(), signal: status.signal }
}

fn tag(new: &NewPty) -> Result<String, ToolboxError> {
    let note = Note { name: new.name.clone(), env: new.env.clone(), size: new.size };
    let text =
        serde_json::to_string(&note).map_err(|_| ToolboxError::Invalid("env cannot be stored".into()))?;
    if text.len() > NOTE_MAX {
        return Err(ToolboxError::TooLarge { what: "env".into(), max: NOTE_MAX as u64 });
    }
    Ok(format!("{TAG}{text}"))
}

fn pty_of(process: ProcessInfo) -> Option<Pty> {
    let note: Note = serde_json::from_str(process.tag.strip_prefix(TAG)?).ok()?;
    Some(Pty {
        name: note.name,
        cwd: process.cwd,
        env: note.env,
        size: note.size,
        created_at_ms: process.started_at_ms,
        pid: process.pid,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_tells_how_a_terminal_was_made() {
        let new = NewPty {
            name: "a/b \"c\"".into(),
            env: [("A".to_owned(), "ü\n".to_owned())].into(),
            size: WindowSize { cols: 120, rows: 40 },
            cwd: None,
        };
        let process = ProcessInfo {
            pid: 9,
            cmd: String::new(),
            args: Vec::new(),
            cwd: "/srv".into(),
            tag: tag(&new).unwrap(),
            user: String::new(),
            started_at_ms: 5,
            pty: true,
            logged: false,
        };
        let pty = pty_of(process).unwrap();
        assert_eq!((pty.name, pty.env, pty.size, pty.cwd.as_str()), (new.name, new.env, new.size, "/srv"));
        let large = NewPty { env: [("A".to_owned(), "x".repeat(NOTE_MAX))].into(), ..NewPty::default() };
        assert!(tag(&large).is_err());
    }
}
