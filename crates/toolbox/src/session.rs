//! Sessions: one long-lived shell that keeps its folder, variables and functions between commands.
//!
//! ```text
//!  host                              inside the sandbox
//!  Sessions ── a line of stdin ────▸ bash, tagged with the session's name
//!           ── files, watches ─────▸ /tmp/.atoll-sessions/KEY/name
//!                                    …/KEY/ended            its exit code, once it ended by itself
//!                                    …/KEY/COMMAND/command  the command; sourced by the shell
//!                                    …/KEY/COMMAND/out err  its output
//!                                    …/KEY/COMMAND/in       a pipe for input, of commands in the background
//!                                    …/KEY/COMMAND/exit     its exit code, once it ended
//! ```
//!
//! A session is a process and a folder, so no state is kept on the host: it survives a restart of the server and a
//! pause of the sandbox, and ends with the sandbox's processes. Commands of one session run one after the other.
//! Background processes of a command continue to write to its files.
//!
//! No part of a command or of a name is put into a shell line; they are passed in files.

mod files;
mod follow;
mod output;
mod run;

use std::time::Duration;

use bytes::Bytes;

use atoll_agentapi::{AgentError, ProcessEvent, ProcessInfo, StartProcess};

pub use follow::{LogEvent, LogFollow};
pub use output::CommandOutput;
pub use run::{CommandDone, NewCommand, SessionLogs};

use crate::{Toolbox, ToolboxError};

/// LIMIT: each costs the sandbox a process.
const SESSIONS_MAX: usize = 256;
/// The lock that creates of sessions take in turn.
const CREATE_LOCK: &str = "create a session";
/// LIMIT: length of a name; it is stored as hex in a tag.
const NAME_MAX: usize = 256;
/// How long a shell may take to end by itself.
const LEAVE: Duration = Duration::from_secs(2);

const TAG: &str = "atoll-session/";
/// The folder of all sessions, each below it with a random name; below the folder for temporary files.
const ROOT: &str = ".atoll-sessions";
/// The pid of a session whose shell has ended.
const GONE: u32 = 0;
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

/// A session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShellSession {
    /// The name that the user chose.
    pub name: String,
    /// The pid of its shell.
    pub(crate) pid: u32,
    /// Its folder.
    pub(crate) key: String,
    started_at_ms: u64,
}

/// A command of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionCommand {
    /// Its id; later ones sort after it.
    pub id: String,
    /// The text of the command.
    pub command: String,
    /// `None` while it runs or waits.
    pub exit_code: Option<i32>,
}

/// The sessions of one sandbox.
#[derive(Debug)]
pub struct Sessions<'a> {
    toolbox: &'a Toolbox,
}

impl<'a> Sessions<'a> {
    pub(crate) fn new(toolbox: &'a Toolbox) -> Self {
        Self { toolbox }
    }

    /// Starts a session. A taken name is [`ToolboxError::Exists`].
    pub async fn create(&self, name: &str, cwd: Option<&str>) -> Result<ShellSession, ToolboxError> {
        if name.is_empty() || name.len() > NAME_MAX || name.chars().any(char::is_control) {
            let message = format!("the session's name must have 1 to {NAME_MAX} printable characters");
            return Err(ToolboxError::Invalid(message));
        }
        // One at a time, so that neither a name nor the limit is passed by two at once.
        let _turn = self.toolbox.sandbox.setup_locks().lock(CREATE_LOCK).await;
        let known = self.list().await?;
        if known.iter().any(|session| session.name == name) {
            return Err(ToolboxError::Exists(format!("a session {name:?} already exists")));
        }
        if known.len() >= SESSIONS_MAX {
            let message = format!("the sandbox has {SESSIONS_MAX} sessions already; delete some of them");
            return Err(ToolboxError::Conflict(message));
        }
        self.sweep(name).await;
        self.start(name, cwd).await
    }

    async fn start(&self, name: &str, cwd: Option<&str>) -> Result<ShellSession, ToolboxError> {
        let key = crate::random_id()?;
        self.open_root().await?;
        let folder = format!("{}/{key}", self.root());
        let sandbox = &self.toolbox.sandbox;
        sandbox
            .make_dir(folder.as_bytes(), self.toolbox.user(), Some(0o700))
            .await
            .map_err(ToolboxError::file)?;
        sandbox
            .write_bytes(
                format!("{folder}/name").as_bytes(),
                self.toolbox.user(),
                Some(0o600),
                name.to_owned().into(),
            )
            .await
            .map_err(ToolboxError::file)?;
        let start = StartProcess {
            cmd: "/bin/bash".to_owned(),
            cwd: cwd.unwrap_or_default().to_owned(),
            tag: tag(name, &key),
            stdin: true,
            user: self.toolbox.user.clone(),
            ..Default::default()
        };
        let (started, _) = sandbox.start(start).await.map_err(ToolboxError::process)?;
        sandbox
            .send_stdin(started.pid, run::greeting(&folder).as_ref())
            .await
            .map_err(ToolboxError::process)?;
        Ok(ShellSession { name: name.to_owned(), pid: started.pid, key, started_at_ms: 0 })
    }

    /// The sessions with a running shell, oldest first.
    pub async fn list(&self) -> Result<Vec<ShellSession>, ToolboxError> {
        let processes = self.toolbox.sandbox.list().await.map_err(ToolboxError::process)?;
        let mut found: Vec<ShellSession> = processes.iter().filter_map(session_of).collect();
        found.sort_by_key(|session| (session.started_at_ms, session.pid));
        let mut known = std::collections::BTreeSet::new();
        found.retain(|session| known.insert(session.name.clone()));
        Ok(found)
    }

    /// A session by its name. If its shell ended by itself: [`ToolboxError::Ended`].
    pub async fn find(&self, name: &str) -> Result<ShellSession, ToolboxError> {
        if let Some(session) = self.list().await?.into_iter().find(|session| session.name == name) {
            return Ok(session);
        }
        Err(match self.ended(name).await? {
            Some(_) => ToolboxError::Ended(format!("the shell of session {name:?} has ended")),
            None => missing(name),
        })
    }

    /// A session by its name, even if its shell ended by itself: the output of its commands can still be read.
    pub async fn find_kept(&self, name: &str) -> Result<ShellSession, ToolboxError> {
        if let Some(session) = self.list().await?.into_iter().find(|session| session.name == name) {
            return Ok(session);
        }
        let key = self.ended(name).await?.ok_or_else(|| missing(name))?;
        Ok(ShellSession { name: name.to_owned(), pid: GONE, key, started_at_ms: 0 })
    }

    /// Ends the shell with everything that runs in it, and removes its commands.
    pub async fn delete(&self, name: &str) -> Result<(), ToolboxError> {
        if let Some(session) = self.list().await?.into_iter().find(|session| session.name == name) {
            return self.end(&session).await;
        }
        match self.ended(name).await? {
            Some(key) => self.forget(&key).await,
            None => Err(missing(name)),
        }
    }

    /// Asks the shell and its children to end, then forces them.
    async fn end(&self, session: &ShellSession) -> Result<(), ToolboxError> {
        let sandbox = &self.toolbox.sandbox;
        let gone = |error: &AgentError| error.kind() == atoll_model::ErrorKind::NotFound;
        let mut stream = match sandbox.attach(session.pid, false).await {
            Err(error) if gone(&error) => return self.forget(&session.key).await,
            attached => attached.map_err(ToolboxError::process)?,
        };
        let mark = format!("{}/{}/{}", self.root(), session.key, run::KILLED);
        // On a full disk the session ends all the same.
        let _ = sandbox.write_bytes(mark.as_bytes(), self.toolbox.user(), Some(0o600), Bytes::new()).await;
        for signal in [SIGTERM, SIGKILL] {
            match sandbox.signal(session.pid, signal).await {
                Err(error) if gone(&error) => break,
                sent => sent.map_err(ToolboxError::process)?,
            }
            let left = async {
                while let Some(Ok(event)) = stream.next().await {
                    if matches!(event, ProcessEvent::Exit(_)) {
                        break;
                    }
                }
            };
            let _ = tokio::time::timeout(LEAVE, left).await;
        }
        self.forget(&session.key).await
    }
}

fn missing(name: &str) -> ToolboxError {
    ToolboxError::NotFound(format!("there is no session {name:?}"))
}

fn tag(name: &str, key: &str) -> String {
    format!("{TAG}{key}/{}", hex::encode(name))
}

/// A process that is a session. Any program that can start processes can also start one of this form, without any gain.
fn session_of(process: &ProcessInfo) -> Option<ShellSession> {
    let (key, name) = process.tag.strip_prefix(TAG)?.split_once('/')?;
    if !is_key(key) {
        return None;
    }
    let name = String::from_utf8(hex::decode(name).ok()?).ok()?;
    let key = key.to_owned();
    Some(ShellSession { name, pid: process.pid, key, started_at_ms: process.started_at_ms })
}

/// Only generated names become parts of paths.
fn is_key(text: &str) -> bool {
    !text.is_empty() && text.len() <= 64 && text.bytes().all(|b| b.is_ascii_digit() || b.is_ascii_lowercase())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn process(tag: String) -> ProcessInfo {
        ProcessInfo {
            pid: 7,
            cmd: String::new(),
            args: Vec::new(),
            cwd: String::new(),
            tag,
            user: String::new(),
            started_at_ms: 1,
            pty: false,
            logged: false,
        }
    }

    #[test]
    fn a_tag_names_its_session_whatever_the_name_holds() {
        for name in ["build", "a/b c", "日本", "../../etc"] {
            assert!(atoll_agentapi::is_reserved_tag(&tag(name, "0a1b")));
            let session = session_of(&process(tag(name, "0a1b"))).unwrap();
            assert_eq!((session.name.as_str(), session.key.as_str(), session.pid), (name, "0a1b", 7));
        }
    }

    #[test]
    fn a_forged_tag_leads_to_no_path_outside() {
        for forged in ["atoll-session/../61", "atoll-session//61", "atoll-session/a", "atoll-session/A/61"] {
            assert_eq!(session_of(&process(forged.into())), None, "{forged}");
        }
    }
}
