//! The sandbox's logs: output of the start command and of logged processes.

use bytes::Bytes;
use futures::Stream;

use super::AgentClient;
use super::rpc::Frames;
use crate::error::AgentError;
use crate::proto::agent;

/// The source of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum LogStream {
    Stdout,
    Stderr,
    Pty,
}

/// A piece of logged output; not split at line ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    /// The process.
    pub pid: u32,
    /// Its source.
    pub stream: LogStream,
    /// Unix milliseconds by the sandbox's clock.
    pub at_ms: u64,
    /// The bytes.
    pub data: Bytes,
    /// Bytes lost before this piece because the reader was slow.
    pub dropped: u64,
}

/// Logged output, kept and then live.
pub struct LogTail {
    frames: Frames,
}

impl std::fmt::Debug for LogTail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogTail").finish_non_exhaustive()
    }
}

impl LogTail {
    /// The next piece, `None` at the end (only without follow). Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<LogLine, AgentError>> {
        loop {
            match self.frames.next::<agent::LogEvent>().await {
                Ok(Some(event)) if event.keepalive => {}
                Ok(Some(event)) => return Some(Ok(line(event))),
                Ok(None) => return None,
                Err(e) => return Some(Err(e)),
            }
        }
    }

    /// The pieces as a `Stream`; it ends after an error.
    pub fn into_stream(self) -> impl Stream<Item = Result<LogLine, AgentError>> + Send + 'static {
        futures::stream::unfold(Some(self), |tail| async move {
            let mut tail = tail?;
            let item = tail.next().await?;
            let rest = item.is_ok().then_some(tail);
            Some((item, rest))
        })
    }
}

fn line(event: agent::LogEvent) -> LogLine {
    use agent::log_event::Stream;
    let stream = match event.stream.as_known() {
        Some(Stream::STREAM_STDERR) => LogStream::Stderr,
        Some(Stream::STREAM_PTY) => LogStream::Pty,
        Some(Stream::STREAM_STDOUT | Stream::STREAM_UNSPECIFIED) | None => LogStream::Stdout,
    };
    LogLine { pid: event.pid, stream, at_ms: event.at_ms, data: event.data.into(), dropped: event.dropped }
}

impl AgentClient {
    /// Logged output: the kept part (the newest `tail_bytes`, or all with `None`), then, with `follow`, new output.
    pub async fn logs(&self, follow: bool, tail_bytes: Option<u64>) -> Result<LogTail, AgentError> {
        let request =
            agent::LogsRequest { follow, tail_bytes: tail_bytes.unwrap_or(0), ..Default::default() };
        let frames = self.stream("/atoll.agent.v1.Agent/Logs", &request).await?;
        Ok(LogTail { frames })
    }
}
