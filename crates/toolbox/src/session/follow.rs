//! The output of a command while it runs: a watch on its folder reports changes, and its files are read from the last
//! position.

use std::collections::VecDeque;
use std::time::Duration;

use std::sync::Arc;

use atoll_agentapi::{AgentError, ProcessEvent, ProcessStream, Range, RpcCode, Session, WatchStream};
use bytes::Bytes;

use super::{GONE, Sessions, ShellSession, run};
use crate::ToolboxError;

/// LIMIT: bytes of one piece; a slow client holds no more than that.
const PIECE_MAX: u64 = 256 << 10;
/// Events may be lost if the kernel's queue was full; so the files are also checked this often.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How often without a watch.
const LOOK_OFTEN: Duration = Duration::from_millis(200);

/// An event of a command. `Exit` is the last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogEvent {
    /// Standard output.
    Stdout(Bytes),
    /// Standard error.
    Stderr(Bytes),
    /// It ended.
    Exit(i32),
}

impl LogEvent {
    /// The number of output bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Stdout(data) | Self::Stderr(data) => data.len(),
            Self::Exit(_) => 0,
        }
    }

    /// Whether it has no output.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A reader of one command from its beginning.
pub struct LogFollow {
    sandbox: Arc<dyn Session>,
    user: Option<String>,
    folder: String,
    name: String,
    watch: Option<WatchStream>,
    /// `None`: the shell is gone.
    shell: Option<ProcessStream>,
    /// How much of each file was read.
    read: [u64; 2],
    waiting: VecDeque<LogEvent>,
    /// The exit code of the shell, if it is gone.
    left: Option<i32>,
    ended: bool,
    /// There may be new output without an event of the watch.
    again: bool,
}

impl std::fmt::Debug for LogFollow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogFollow").field("folder", &self.folder).finish_non_exhaustive()
    }
}

impl Sessions<'_> {
    /// Follows a command; its earlier output comes first.
    pub async fn follow(&self, session: &ShellSession, id: &str) -> Result<LogFollow, ToolboxError> {
        let folder = self.folder(session, id);
        let (sandbox, user) = (self.toolbox.sandbox.clone(), self.toolbox.user.clone());
        let attached = async {
            match session.pid {
                GONE => Ok(None),
                pid => sandbox.attach(pid, false).await.map(Some),
            }
        };
        let (watch, shell) = tokio::join!(sandbox.watch(folder.as_bytes(), user.as_deref(), false), attached);
        let watch = match watch {
            Ok(watch) => Some(watch),
            // The kernel limits the number of watches; without one the files are checked more often.
            Err(error) if error.kind() == atoll_model::ErrorKind::Exhausted => None,
            Err(error) if error.kind() == atoll_model::ErrorKind::NotFound => {
                let message = format!("session {:?} has no such command", session.name);
                return Err(ToolboxError::NotFound(message));
            }
            Err(error) => return Err(ToolboxError::file(error)),
        };
        let shell = shell.map_err(ToolboxError::process)?;
        let left = shell.is_none().then_some(-1);
        Ok(LogFollow {
            sandbox,
            user,
            folder,
            name: session.name.clone(),
            watch,
            shell,
            read: [0; 2],
            waiting: VecDeque::new(),
            left,
            ended: false,
            again: true,
        })
    }
}

impl LogFollow {
    /// The next event; `None` after the exit or an error. Cancel-safe: the position advances only when a piece is
    /// returned.
    pub async fn next(&mut self) -> Option<Result<LogEvent, ToolboxError>> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                self.ended |= matches!(event, LogEvent::Exit(_));
                return Some(Ok(event));
            }
            if self.ended {
                return None;
            }
            if let Err(error) = self.more().await {
                self.ended = true;
                return Some(Err(error));
            }
        }
    }

    async fn more(&mut self) -> Result<(), ToolboxError> {
        if !std::mem::take(&mut self.again) && self.left.is_none() {
            self.wait().await?;
        }
        self.look().await
    }

    /// Waits until there may be new output.
    async fn wait(&mut self) -> Result<(), ToolboxError> {
        let look_again = if self.watch.is_some() { LOOK_EVERY } else { LOOK_OFTEN };
        let changed = async {
            match &mut self.watch {
                Some(watch) => watch.next().await,
                None => std::future::pending().await,
            }
        };
        let said = async {
            match &mut self.shell {
                Some(shell) => shell.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            change = changed => match change {
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(ToolboxError::file(error)),
                None => self.watch = None,
            },
            event = said => match event {
                Some(Ok(ProcessEvent::Exit(status))) => self.left = Some(status.shell_code()),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(ToolboxError::process(error)),
                None => self.left = Some(-1),
            },
            () = tokio::time::sleep(look_again) => {}
        }
        Ok(())
    }

    /// The exit is checked first: then all its output is in the files.
    async fn look(&mut self) -> Result<(), ToolboxError> {
        let exit = self.exit().await?;
        let (mut came, mut more) = (false, exit.is_some() || self.left.is_some());
        for stream in [0, 1] {
            if let Some(mut data) = self.piece(stream).await? {
                more |= data.len() as u64 == PIECE_MAX;
                // A character is not split between pieces; after the exit no more bytes follow.
                let is_over = exit.is_some() || self.left.is_some();
                let whole =
                    if is_over && (data.len() as u64) < PIECE_MAX { data.len() } else { whole_chars(&data) };
                data.truncate(whole);
                if data.is_empty() {
                    continue;
                }
                came = true;
                self.read[stream] += data.len() as u64;
                let event = if stream == 0 { LogEvent::Stdout(data) } else { LogEvent::Stderr(data) };
                self.waiting.push_back(event);
            }
        }
        match (came, exit, self.left) {
            // The rest is read after this was returned.
            (true, ..) => self.again = more,
            (false, Some(code), _) => self.waiting.push_back(LogEvent::Exit(code)),
            // The shell was killed, or replaced by a program: that also ended the command.
            (false, None, Some(code)) if self.folder_is_there().await? => {
                self.waiting.push_back(LogEvent::Exit(code));
            }
            (false, None, Some(_)) => {
                return Err(ToolboxError::Ended(format!("session {:?} was deleted", self.name)));
            }
            (false, None, None) if self.folder_is_there().await? => {}
            // Without it the end of the command cannot be seen.
            (false, None, None) => {
                let name = &self.name;
                let message =
                    format!("session {name:?} was deleted, or its folder was removed inside the sandbox");
                return Err(ToolboxError::Ended(message));
            }
        }
        Ok(())
    }

    async fn piece(&self, stream: usize) -> Result<Option<Bytes>, ToolboxError> {
        let path = format!("{}/{}", self.folder, ["out", "err"][stream]);
        let range = Range { start: self.read[stream], len: Some(PIECE_MAX) };
        let mut reader =
            match self.sandbox.read_file(path.as_bytes(), self.user.as_deref(), Some(range)).await {
                Ok(reader) => reader,
                // The file does not exist yet, or has no new content.
                Err(AgentError::Refused { code: RpcCode::NotFound | RpcCode::OutOfRange, .. }) => {
                    return Ok(None);
                }
                Err(error) => return Err(ToolboxError::file(error)),
            };
        let mut piece = Vec::with_capacity(usize::try_from(reader.len.min(PIECE_MAX)).unwrap_or(0));
        while let Some(chunk) = reader.next().await {
            piece.extend_from_slice(&chunk.map_err(ToolboxError::file)?);
        }
        Ok(Some(piece).filter(|piece| !piece.is_empty()).map(Bytes::from))
    }

    async fn exit(&self) -> Result<Option<i32>, ToolboxError> {
        let path = format!("{}/exit", self.folder);
        match self.sandbox.read_file(path.as_bytes(), self.user.as_deref(), None).await {
            Err(error) if error.kind() == atoll_model::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(ToolboxError::file(error)),
            Ok(reader) => {
                let text = reader.read_to_end(64).await.map_err(ToolboxError::file)?;
                Ok(run::parse_exit(&text))
            }
        }
    }

    async fn folder_is_there(&self) -> Result<bool, ToolboxError> {
        match self.sandbox.stat(self.folder.as_bytes(), self.user.as_deref()).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == atoll_model::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(ToolboxError::file(error)),
        }
    }
}

/// The length of the complete characters; invalid bytes are passed on.
fn whole_chars(data: &[u8]) -> usize {
    match data[data.len().saturating_sub(4)..].utf8_chunks().last() {
        // At most three bytes can be the beginning of an incomplete character.
        Some(chunk)
            if !chunk.invalid().is_empty()
                && std::str::from_utf8(chunk.invalid()).is_err_and(|e| e.error_len().is_none()) =>
        {
            data.len() - chunk.invalid().len()
        }
        _ => data.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::whole_chars;

    #[test]
    fn a_character_that_has_only_begun_is_left_for_later() {
        for (text, whole) in [
            (&b"ab"[..], 2),
            ("aé".as_bytes(), 3),
            (b"a\xc3", 1),
            (b"a\xe6\x97", 1),
            (b"a\xff", 2),
            (b"\xffa", 2),
            (b"", 0),
        ] {
            assert_eq!(whole_chars(text), whole, "{text:?}");
        }
    }
}
