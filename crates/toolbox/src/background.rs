//! Commands that continue when their caller goes away, and are looked at later by an id.
//!
//! Each has a session of its own (`session.rs`), whose shell ends after the command. Its output is a file in the sandbox.

use std::time::Duration;

use atoll_agentapi::Range;

use crate::{LogEvent, NewCommand, Sessions, ShellSession, Toolbox, ToolboxError};

/// The names of these sessions begin with it.
const PREFIX: &str = "background-";

/// A command that was started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackgroundCommand {
    /// Names it in later calls.
    pub id: String,
    /// The pid of its shell.
    pub pid: u32,
}

/// A command as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackgroundState {
    /// `None` while it runs.
    pub exit_code: Option<i32>,
    /// The output from the requested byte on, at most as many bytes as requested.
    pub output: Vec<u8>,
    /// Bytes of the whole output so far.
    pub written: u64,
    /// The file in the sandbox with the whole output, stdout and stderr in order.
    pub file: String,
}

impl Toolbox {
    /// Starts a command with bash, or with sh if there is no bash.
    pub async fn start_background(
        &self,
        command: String,
        cwd: Option<&str>,
    ) -> Result<BackgroundCommand, ToolboxError> {
        let id = crate::random_id()?;
        let sessions = self.sessions();
        let session = sessions.create(&format!("{PREFIX}{id}"), cwd).await?;
        // One file for both streams, in the order of writes; and the shell ends with the status of the command.
        let command = format!("exec 2>&1; {command}\nexit");
        let command = NewCommand { command, ..NewCommand::default() };
        sessions.start_command(&session, &command).await?;
        Ok(BackgroundCommand { id, pid: session.pid })
    }

    /// Looks at a command: waits up to `wait` for its end, and reads its output from byte `from` on.
    pub async fn background(
        &self,
        id: &str,
        from: u64,
        max: u64,
        wait: Duration,
    ) -> Result<BackgroundState, ToolboxError> {
        let sessions = self.sessions();
        let session = found(&sessions, id).await?;
        let command = first(&sessions, &session, id).await?;
        if !wait.is_zero() {
            let ended = async {
                let mut follow = sessions.follow(&session, &command).await?;
                while let Some(event) = follow.next().await {
                    if matches!(event?, LogEvent::Exit(_)) {
                        break;
                    }
                }
                Ok::<_, ToolboxError>(())
            };
            // A shell that was ended from outside is seen below.
            let _ = tokio::time::timeout(wait, ended).await;
        }
        // Read before the output, which is then complete if there is an exit code.
        let exit_code = sessions.command(&session, &command).await?.exit_code;
        let file = sessions.output_file(&session, &command);
        let (output, written) = self.part(&file, from, max).await?;
        Ok(BackgroundState { exit_code, output, written, file })
    }

    /// Ends a command with everything that it started, and forgets it.
    pub async fn end_background(&self, id: &str) -> Result<(), ToolboxError> {
        self.sessions().delete(&format!("{PREFIX}{id}")).await.map_err(|error| missing(error, id))
    }

    /// A part of a file that may not exist yet, and the size of the file.
    async fn part(&self, path: &str, from: u64, max: u64) -> Result<(Vec<u8>, u64), ToolboxError> {
        let whole = match self.sandbox.read_file(path.as_bytes(), self.user(), None).await {
            Err(error) if error.kind() == atoll_model::ErrorKind::NotFound => return Ok((Vec::new(), 0)),
            opened => opened.map_err(ToolboxError::file)?,
        };
        let size = whole.size;
        drop(whole);
        if from >= size || max == 0 {
            return Ok((Vec::new(), size));
        }
        let range = Range { start: from, len: Some(max.min(size - from)) };
        let part = self.sandbox.read_file(path.as_bytes(), self.user(), Some(range)).await;
        let bytes = part.map_err(ToolboxError::file)?.read_to_end(max).await.map_err(ToolboxError::file)?;
        Ok((bytes, size))
    }
}

async fn found(sessions: &Sessions<'_>, id: &str) -> Result<ShellSession, ToolboxError> {
    sessions.find_kept(&format!("{PREFIX}{id}")).await.map_err(|error| missing(error, id))
}

async fn first(sessions: &Sessions<'_>, session: &ShellSession, id: &str) -> Result<String, ToolboxError> {
    let commands = sessions.commands(session).await?;
    commands.into_iter().next().map(|command| command.id).ok_or_else(|| gone(id))
}

fn missing(error: ToolboxError, id: &str) -> ToolboxError {
    match error {
        ToolboxError::NotFound(_) => gone(id),
        error => error,
    }
}

fn gone(id: &str) -> ToolboxError {
    let shown: String = id.chars().take(64).collect();
    ToolboxError::NotFound(format!("there is no command {shown:?} in the background"))
}
