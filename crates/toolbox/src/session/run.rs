//! Commands of a session: how the shell runs one, its result, and its input.

use std::time::Duration;

use bytes::Bytes;

use atoll_agentapi::{AgentError, Range, RpcCode, StartProcess};

use super::{CommandOutput, SessionCommand, Sessions, ShellSession, is_key};
use crate::{LogEvent, ToolboxError};

/// LIMIT: bytes of a stream that are returned in one piece; of a longer one the end.
const LOGS_MAX: u64 = 16 << 20;
/// LIMIT: a command is text that a person or program wrote.
const COMMAND_MAX: usize = 8 << 20;
/// LIMIT: bytes of a command that answers show; the folder of a session belongs to the sandbox, which can put any file there.
const SHOWN_MAX: u64 = 16 << 10;
/// LIMIT: commands in an answer, the newest.
const LISTED_MAX: usize = 1_000;
/// LIMIT: bytes of input per call.
const INPUT_MAX: usize = 1 << 20;
/// LIMIT: how long input waits for a queued command.
const BEGIN_LIMIT: Duration = Duration::from_secs(10);
/// Files that mark that a command accepts input, and whether the input is echoed.
const QUIET: &str = "quiet";
/// The file that marks that the session is being ended.
pub(super) const KILLED: &str = "killed";
const ECHO: &str = "echo";
/// LIMIT: how long input waits for a command that does not read.
const INPUT_LIMIT: Duration = Duration::from_secs(10);

/// A command for a session.
#[derive(Debug, Clone, Default)]
pub struct NewCommand {
    /// The command as a person would type it; may have several lines.
    pub command: String,
    /// It accepts input; otherwise its input is empty.
    pub takes_input: bool,
    /// Its input is not written to its output.
    pub quiet_input: bool,
    /// How long [`Sessions::run`] waits for its end; the command continues afterwards.
    pub timeout: Option<Duration>,
}

/// The output of a command, as far as it is kept. Its bytes are counted until they are dropped.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionLogs {
    /// Standard output.
    pub stdout: Bytes,
    /// Standard error.
    pub stderr: Bytes,
}

/// A command that ended.
#[derive(Debug)]
pub struct CommandDone {
    pub id: String,
    /// The exit code, as in a shell.
    pub exit_code: i32,
    pub output: CommandOutput,
}

/// The first input of a new shell: it records its own end. `folder` is a generated path that needs no quoting.
/// `command` skips functions of the user with the same name, here and below. When a signal ends the shell, `$?` is the
/// status of the last command that finished, so the session's end is marked before.
pub(super) fn greeting(folder: &str) -> String {
    format!(
        "__atoll_at=\ntrap '__atoll_code=$?; command test -e {folder}/{KILLED} && __atoll_code=143; case $__atoll_at in ?*) command echo $__atoll_code >\"$__atoll_at/exit\";; esac; \
         command echo $__atoll_code >{folder}/ended' EXIT\n"
    )
}

/// The line that makes the shell run a command. At the top level and not in a function, because `declare` would make
/// variables local to the function. The dot command keeps heredocs, line numbers and `return` as in a script. Input is
/// opened before output: once there is output, input is not lost.
fn line(folder: &str, takes_input: bool) -> String {
    let (before, input) = match takes_input {
        true => ("command mkfifo -m 600 \"$__atoll_at/in\" && ", "<>\"$__atoll_at/in\""),
        false => ("", "</dev/null"),
    };
    format!(
        "__atoll_at={folder}; {before}. \"$__atoll_at/command\" {input} >>\"$__atoll_at/out\" 2>>\"$__atoll_at/err\"; \
         command echo $? >\"$__atoll_at/exit\"; __atoll_at=\n"
    )
}

impl Sessions<'_> {
    /// Passes a command to the shell, which runs it after the earlier ones. Returns its id.
    pub async fn start_command(
        &self,
        session: &ShellSession,
        new: &NewCommand,
    ) -> Result<String, ToolboxError> {
        let id = self.place(session, new).await?;
        self.tell(session, &id, new).await?;
        Ok(id)
    }

    /// Runs a command to its end. If the caller goes away or its timeout passes, the command continues.
    pub async fn run(&self, session: &ShellSession, new: &NewCommand) -> Result<CommandDone, ToolboxError> {
        let Some(limit) = new.timeout else { return self.run_to_end(session, new).await };
        let ended = tokio::time::timeout(limit, self.run_to_end(session, new)).await;
        ended.unwrap_or(Err(ToolboxError::TimedOut { what: "the wait for the command", limit }))
    }

    async fn run_to_end(
        &self,
        session: &ShellSession,
        new: &NewCommand,
    ) -> Result<CommandDone, ToolboxError> {
        let id = self.place(session, new).await?;
        let mut follow = self.follow(session, &id).await?;
        self.tell(session, &id, new).await?;
        let mut output = CommandOutput::default();
        while let Some(event) = follow.next().await {
            match event? {
                LogEvent::Exit(exit_code) => return Ok(CommandDone { id, exit_code, output }),
                event => output.push(&self.toolbox.account, event).await,
            }
        }
        Err(ToolboxError::Ended(format!("the shell of session {:?} was ended", session.name)))
    }

    async fn place(&self, session: &ShellSession, new: &NewCommand) -> Result<String, ToolboxError> {
        if new.command.trim().is_empty() {
            return Err(ToolboxError::Invalid("command must not be empty".into()));
        }
        if new.command.len() > COMMAND_MAX || new.command.contains('\0') {
            let message = format!("a command must have at most {COMMAND_MAX} bytes and no NUL byte");
            return Err(ToolboxError::Invalid(message));
        }
        let id = command_id()?;
        let folder = self.folder(session, &id);
        let (sandbox, user) = (&self.toolbox.sandbox, self.toolbox.user());
        if new.takes_input {
            let how = if new.quiet_input { QUIET } else { ECHO };
            let noted = sandbox
                .write_bytes(format!("{folder}/{how}").as_bytes(), user, Some(0o600), Bytes::new())
                .await;
            noted.map_err(ToolboxError::file)?;
        }
        let text = format!("{}\n", new.command);
        let written =
            sandbox.write_bytes(format!("{folder}/command").as_bytes(), user, Some(0o600), text.into()).await;
        written.map_err(ToolboxError::file)?;
        Ok(id)
    }

    async fn tell(&self, session: &ShellSession, id: &str, new: &NewCommand) -> Result<(), ToolboxError> {
        let line = line(&self.folder(session, id), new.takes_input);
        self.toolbox.sandbox.send_stdin(session.pid, line.as_ref()).await.map_err(|error| match error {
            AgentError::Refused { code: RpcCode::NotFound | RpcCode::FailedPrecondition, .. } => {
                ToolboxError::Ended(format!("the shell of session {:?} has ended", session.name))
            }
            error => ToolboxError::process(error),
        })
    }

    /// The newest commands of a session, oldest first.
    pub async fn commands(&self, session: &ShellSession) -> Result<Vec<SessionCommand>, ToolboxError> {
        let root = format!("{}/{}", self.root(), session.key);
        let listed = self.toolbox.sandbox.list_dir(root.as_bytes(), self.toolbox.user(), 1).await;
        let (entries, _) = listed.map_err(ToolboxError::file)?;
        let mut ids: Vec<String> = entries
            .into_iter()
            .filter(|entry| entry.kind == atoll_agentapi::EntryKind::Directory)
            .filter_map(|entry| String::from_utf8(entry.name).ok())
            .filter(|id| is_key(id))
            .collect();
        ids.sort();
        ids.drain(..ids.len().saturating_sub(LISTED_MAX));
        let mut found = Vec::with_capacity(ids.len());
        for id in ids {
            found.push(self.command(session, &id).await?);
        }
        Ok(found)
    }

    /// A command by its id, with the beginning of its text.
    pub async fn command(&self, session: &ShellSession, id: &str) -> Result<SessionCommand, ToolboxError> {
        let gone = || ToolboxError::NotFound(format!("session {:?} has no such command", session.name));
        if !is_key(id) {
            return Err(gone());
        }
        let folder = self.folder(session, id);
        let text = self.head(&format!("{folder}/command")).await?.ok_or_else(gone)?;
        let command = String::from_utf8_lossy(&text).trim_end_matches('\n').to_owned();
        let exit_code = self.exit_code(&folder).await?;
        Ok(SessionCommand { id: id.to_owned(), command, exit_code })
    }

    /// The output of a command so far.
    pub async fn logs(&self, session: &ShellSession, id: &str) -> Result<SessionLogs, ToolboxError> {
        self.command(session, id).await?;
        let folder = self.folder(session, id);
        let stdout = self.tail(&format!("{folder}/out")).await?;
        let stderr = self.tail(&format!("{folder}/err")).await?;
        Ok(SessionLogs { stdout, stderr })
    }

    /// Sends input to a running command.
    pub async fn input(&self, session: &ShellSession, id: &str, data: &[u8]) -> Result<(), ToolboxError> {
        if data.len() > INPUT_MAX {
            return Err(ToolboxError::TooLarge { what: "input".into(), max: INPUT_MAX as u64 });
        }
        if self.command(session, id).await?.exit_code.is_some() {
            return Err(ToolboxError::Ended("the command has ended already".into()));
        }
        let folder = self.folder(session, id);
        let begun = tokio::time::timeout(BEGIN_LIMIT, self.begun(&folder)).await;
        begun.unwrap_or_else(|_| {
            let seconds = BEGIN_LIMIT.as_secs();
            Err(ToolboxError::Conflict(format!(
                "the command did not begin within {seconds} s: another one runs"
            )))
        })?;
        // Opened in both directions, the pipe never waits for its other end.
        let pass = "if [ -e \"$1/quiet\" ]; then exec cat 1<>\"$1/in\"; \
                    else exec tee -a \"$1/out\" 1<>\"$1/in\"; fi";
        let start = StartProcess {
            cmd: "/bin/sh".to_owned(),
            args: vec!["-c".to_owned(), pass.to_owned(), "sh".to_owned(), folder],
            stdin: true,
            user: self.toolbox.user.clone(),
            timeout: Some(INPUT_LIMIT),
            ..Default::default()
        };
        let passed = self.toolbox.collect(start, Some(data.to_vec()), "input").await?;
        match passed.exit_code {
            0 => Ok(()),
            _ => {
                Err(ToolboxError::Conflict(crate::error::said(&String::from_utf8_lossy(&passed.output.head))))
            }
        }
    }

    /// Waits until a command that accepts input has started.
    async fn begun(&self, folder: &str) -> Result<(), ToolboxError> {
        let files = self.toolbox.files();
        let (quiet, echo, out) =
            (format!("{folder}/{QUIET}"), format!("{folder}/{ECHO}"), format!("{folder}/out"));
        if !files.exists(&echo).await? && !files.exists(&quiet).await? {
            return Err(ToolboxError::Conflict("the command does not accept input".into()));
        }
        let watched = self.toolbox.sandbox.watch(folder.as_bytes(), self.toolbox.user(), false).await;
        let mut watched = watched.map_err(ToolboxError::file)?;
        while !files.exists(&out).await? {
            match watched.next().await {
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(ToolboxError::file(error)),
                None => return Err(ToolboxError::Ended("the command has ended already".into())),
            }
        }
        Ok(())
    }

    /// The last part of a file; a missing one is empty.
    async fn tail(&self, path: &str) -> Result<Bytes, ToolboxError> {
        let (sandbox, user) = (&self.toolbox.sandbox, self.toolbox.user());
        let opened = match sandbox.read_file(path.as_bytes(), user, None).await {
            Err(error) if error.kind() == atoll_model::ErrorKind::NotFound => return Ok(Bytes::new()),
            opened => opened.map_err(ToolboxError::file)?,
        };
        let reader = match opened.size.checked_sub(LOGS_MAX) {
            None | Some(0) => opened,
            Some(start) => {
                let range = Range { start, len: Some(LOGS_MAX) };
                sandbox.read_file(path.as_bytes(), user, Some(range)).await.map_err(ToolboxError::file)?
            }
        };
        let mut reservation = self.toolbox.account.reserve();
        reservation.grow(usize::try_from(reader.len).unwrap_or(usize::MAX)).await?;
        let tail = reader.read_to_end(LOGS_MAX).await.map_err(ToolboxError::file)?;
        Ok(reservation.attach(tail))
    }

    /// The beginning of a file; `None` if it does not exist.
    async fn head(&self, path: &str) -> Result<Option<Vec<u8>>, ToolboxError> {
        let (sandbox, user) = (&self.toolbox.sandbox, self.toolbox.user());
        let opened = match sandbox.read_file(path.as_bytes(), user, None).await {
            Err(error) if error.kind() == atoll_model::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(ToolboxError::file)?,
        };
        let reader = match opened.size > SHOWN_MAX {
            false => opened,
            true => {
                let range = Range { start: 0, len: Some(SHOWN_MAX) };
                sandbox.read_file(path.as_bytes(), user, Some(range)).await.map_err(ToolboxError::file)?
            }
        };
        reader.read_to_end(SHOWN_MAX).await.map(Some).map_err(ToolboxError::file)
    }

    /// The whole content of a small file; `None` if it does not exist.
    pub(super) async fn bytes(&self, path: &str, max: u64) -> Result<Option<Vec<u8>>, ToolboxError> {
        match self.toolbox.sandbox.read_file(path.as_bytes(), self.toolbox.user(), None).await {
            Err(error) if error.kind() == atoll_model::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(ToolboxError::file(error)),
            Ok(reader) => reader.read_to_end(max).await.map(Some).map_err(ToolboxError::file),
        }
    }

    /// The exit code of a command; a number without a line end is still being written.
    pub(super) async fn exit_code(&self, folder: &str) -> Result<Option<i32>, ToolboxError> {
        let text = self.bytes(&format!("{folder}/exit"), 64).await?;
        Ok(text.as_deref().and_then(parse_exit))
    }
}

pub(super) fn parse_exit(text: &[u8]) -> Option<i32> {
    std::str::from_utf8(text.strip_suffix(b"\n")?).ok()?.trim().parse().ok()
}

/// Later ids sort after earlier ones: the time, then randomness.
#[expect(
    clippy::disallowed_methods,
    reason = "compared with file times and ids that the sandbox made, on the same wall clock"
)]
fn command_id() -> Result<String, ToolboxError> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let micros = now.map_or(0, |now| u64::try_from(now.as_micros()).unwrap_or(u64::MAX));
    let random = crate::random_id()?;
    Ok(format!("{micros:016x}{}", &random[..8]))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn input_is_open_before_there_is_output() {
        let line = line("/x", true);
        assert!(line.find("/in\"").unwrap() < line.find("/out\"").unwrap(), "{line}");
    }

    #[test]
    fn a_code_counts_when_its_line_is_whole() {
        assert_eq!(parse_exit(b"42\n"), Some(42));
        for half in [&b"4"[..], b"", b"\n", b"x\n"] {
            assert_eq!(parse_exit(half), None);
        }
    }

    #[test]
    fn later_commands_sort_behind() {
        let ids: Vec<String> = (0..50).map(|_| command_id().unwrap()).collect();
        assert!(ids.iter().all(|id| is_key(id)));
        assert!(ids.windows(2).all(|two| two[0][..16] <= two[1][..16]));
    }

    /// The lines are tested with a real shell: the host reads the files that they make.
    #[test]
    fn a_shell_keeps_its_state_between_commands_and_tells_their_ends() {
        for shell in ["bash", "sh"] {
            let Some(told) = talk(
                shell,
                &["cd /; X=5; declare -A m 2>/dev/null; echo out; echo err >&2; false", "echo $X; pwd"],
            ) else {
                continue;
            };
            assert_eq!(told[0], ("out\n".into(), "err\n".into(), Some(1)), "{shell}");
            assert_eq!(told[1], ("5\n/\n".into(), String::new(), Some(0)), "{shell}");
        }
    }

    #[test]
    fn functions_of_the_user_do_not_hide_the_end() {
        let change = "echo() { printf changed; }; mkfifo() { false; }; test() { false; }; echo x";
        for shell in ["bash", "sh"] {
            let Some(told) = talk(shell, &[change, "printf there; false", "exit 3"]) else { continue };
            assert_eq!(told[0], ("changed".into(), String::new(), Some(0)), "{shell}");
            assert_eq!(told[1], ("there".into(), String::new(), Some(1)), "{shell}");
            assert_eq!(told[2].2, Some(3), "{shell}");
        }
    }

    #[test]
    fn an_exit_ends_the_command_with_its_code() {
        let Some(told) = talk("bash", &["echo bye; exit 7"]) else { return };
        assert_eq!(told[0], ("bye\n".into(), String::new(), Some(7)));
    }

    #[test]
    fn a_syntax_error_does_not_end_a_bash() {
        let Some(told) = talk("bash", &["if then", "echo there"]) else { return };
        assert!(told[0].1.contains("syntax error") && told[0].2 != Some(0), "{told:?}");
        assert_eq!(told[1].0, "there\n");
    }

    #[test]
    fn a_command_that_is_ended_with_its_session_does_not_look_successful() {
        use std::io::Write as _;
        use std::process::{Command, Stdio};
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_str().unwrap();
        let mut child = Command::new("bash").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let at = format!("{root}/c0");
        std::fs::create_dir(&at).unwrap();
        std::fs::write(format!("{at}/command"), "echo begun; sleep 60\n").unwrap();
        stdin.write_all(greeting(root).as_bytes()).unwrap();
        stdin.write_all(line(&at, false).as_bytes()).unwrap();
        while !std::fs::read(format!("{at}/out")).is_ok_and(|out| out == b"begun\n") {
            std::thread::sleep(Duration::from_millis(5));
        }
        std::fs::write(format!("{root}/{KILLED}"), b"").unwrap();
        Command::new("kill").arg(child.id().to_string()).status().unwrap();
        child.wait().unwrap();
        assert_eq!(parse_exit(&std::fs::read(format!("{at}/exit")).unwrap()), Some(143));
    }

    type Told = (String, String, Option<i32>);

    fn talk(shell: &str, commands: &[&str]) -> Option<Vec<Told>> {
        use std::io::Write as _;
        use std::process::{Command, Stdio};
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_str().unwrap();
        let mut child = Command::new(shell)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(greeting(root).as_bytes()).unwrap();
        for (number, command) in commands.iter().enumerate() {
            let at = format!("{root}/c{number}");
            std::fs::create_dir(&at).unwrap();
            std::fs::write(format!("{at}/command"), format!("{command}\n")).unwrap();
            stdin.write_all(line(&at, false).as_bytes()).unwrap();
        }
        drop(stdin);
        child.wait().unwrap();
        let read =
            |number: usize, name: &str| std::fs::read(format!("{root}/c{number}/{name}")).unwrap_or_default();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let told = |number| {
            (text(read(number, "out")), text(read(number, "err")), parse_exit(&read(number, "exit")))
        };
        Some((0..commands.len()).map(told).collect())
    }
}
