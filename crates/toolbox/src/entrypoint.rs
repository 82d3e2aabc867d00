//! The sandbox's start command: whether it runs, and its output as far as the agent keeps it.

use atoll_agentapi::{LogLine, LogStream, LogTail, ProcessStream};

use crate::{LogEvent, SessionLogs, Toolbox, ToolboxError};

/// The tag of the start command's process.
const TAG: &str = "command";
/// LIMIT: bytes that are returned in one piece.
const LOGS_MAX: u64 = 16 << 20;

/// The process of the start command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entrypoint {
    /// Whether it has not ended.
    pub is_running: bool,
    pid: Option<u32>,
}

/// The output of the start command, until it ends.
#[derive(Debug)]
pub struct EntrypointFollow {
    tail: LogTail,
    process: Option<ProcessStream>,
    pid: Option<u32>,
}

impl Toolbox {
    /// The process of the sandbox's start command.
    pub async fn entrypoint(&self) -> Result<Entrypoint, ToolboxError> {
        let found = self.sandbox.list().await.map_err(ToolboxError::process)?;
        let pid = found.into_iter().find(|process| process.tag == TAG).map(|process| process.pid);
        Ok(Entrypoint { is_running: pid.is_some(), pid })
    }

    /// Its output.
    pub async fn entrypoint_logs(&self) -> Result<SessionLogs, ToolboxError> {
        let pid = self.entrypoint().await?.pid;
        let mut tail = self.sandbox.logs(false, Some(LOGS_MAX)).await.map_err(ToolboxError::process)?;
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let mut reservation = self.account.reserve();
        let mut own = EntrypointPid(pid);
        while let Some(line) = tail.next().await {
            match own.event(line.map_err(ToolboxError::process)?) {
                Some(LogEvent::Stdout(data)) => stdout.extend_from_slice(&data),
                Some(LogEvent::Stderr(data)) => stderr.extend_from_slice(&data),
                Some(LogEvent::Exit(_)) | None => {}
            }
            reservation.grow(stdout.len() + stderr.len()).await?;
        }
        let of_stderr = reservation.split(stderr.len());
        Ok(SessionLogs { stdout: reservation.attach(stdout), stderr: of_stderr.attach(stderr) })
    }

    /// Follows its output; the kept output comes first.
    pub async fn entrypoint_follow(&self) -> Result<EntrypointFollow, ToolboxError> {
        let sandbox = &self.sandbox;
        let pid = self.entrypoint().await?.pid;
        let process = match pid {
            Some(pid) => Some(sandbox.attach(pid, false).await.map_err(ToolboxError::process)?),
            None => None,
        };
        let tail = sandbox.logs(process.is_some(), Some(LOGS_MAX)).await.map_err(ToolboxError::process)?;
        Ok(EntrypointFollow { tail, process, pid })
    }
}

impl EntrypointFollow {
    /// The next piece; `None` when it has ended. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<LogEvent, ToolboxError>> {
        let mut own = EntrypointPid(self.pid);
        loop {
            let over = async {
                match &mut self.process {
                    Some(process) => while let Some(Ok(_)) = process.next().await {},
                    None => std::future::pending().await,
                }
            };
            let line = tokio::select! {
                biased;
                line = self.tail.next() => line?,
                () = over => return None,
            };
            match line {
                Err(error) => return Some(Err(ToolboxError::process(error))),
                Ok(line) => {
                    let event = own.event(line);
                    self.pid = own.0;
                    if let Some(event) = event {
                        return Some(Ok(event));
                    }
                }
            }
        }
    }
}

/// The process whose lines count: the start command, which was the first to be logged.
struct EntrypointPid(Option<u32>);

impl EntrypointPid {
    fn event(&mut self, line: LogLine) -> Option<LogEvent> {
        if *self.0.get_or_insert(line.pid) != line.pid {
            return None;
        }
        Some(match line.stream {
            LogStream::Stdout | LogStream::Pty => LogEvent::Stdout(line.data),
            LogStream::Stderr => LogEvent::Stderr(line.data),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn only_lines_of_the_command_count() {
        let line =
            |pid, stream| LogLine { pid, stream, at_ms: 0, data: Bytes::from_static(b"x"), dropped: 0 };
        let mut own = EntrypointPid(None);
        assert_eq!(own.event(line(5, LogStream::Stderr)), Some(LogEvent::Stderr(Bytes::from_static(b"x"))));
        assert_eq!(own.event(line(6, LogStream::Stdout)), None);
        assert!(own.event(line(5, LogStream::Stdout)).is_some());
    }
}
