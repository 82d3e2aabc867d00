//! The sandbox's logs: output of detached processes and of the lease's own command.

use atoll_agentapi::{LogTail, Session};
use atoll_model::Principal;
use futures::stream::BoxStream;

use crate::agent::{AgentOperation, refusal};
use crate::follow::WayBack;
use crate::sandboxes::Sandboxes;
use crate::{LogLine, LogStream, ServiceError};

impl Sandboxes {
    /// Output of detached processes and of the lease's own command: the kept output, then, with `follow`, new output.
    pub async fn logs(
        &self,
        who: &Principal,
        ident: &str,
        follow: bool,
    ) -> Result<BoxStream<'static, LogLine>, ServiceError> {
        let session = self.session_if_running(who, ident).await?;
        let tail =
            session.logs(follow, None).await.map_err(|error| refusal(AgentOperation::Process, error))?;
        let back = follow.then(|| WayBack::new(session.handle.clone()));
        let reader = LogReader { tail, back, last: None, told: None };
        let lines =
            futures::stream::unfold(reader, |mut reader| async move { Some((reader.next().await?, reader)) });
        Ok(session.during(lines))
    }
}

/// Continues after a restore of the sandbox's memory, from the piece after the last one.
struct LogReader {
    tail: LogTail,
    /// Only set for a follower.
    back: Option<WayBack>,
    /// When the last piece was written, and how many pieces of that millisecond were read.
    last: Option<(u64, u32)>,
    /// The pieces that are repeated at the beginning of a second reading.
    told: Option<(u64, u32)>,
}

impl LogReader {
    async fn next(&mut self) -> Option<LogLine> {
        loop {
            match self.tail.next().await? {
                Ok(line) if self.is_told(line.at_ms) => {}
                Ok(line) => {
                    self.last = match self.last {
                        Some((at_ms, count)) if at_ms == line.at_ms => Some((at_ms, count + 1)),
                        _ => Some((line.at_ms, 1)),
                    };
                    return Some(log_line(line));
                }
                Err(error) => {
                    let agent = self.back.as_mut()?.after(&error).await?;
                    self.tail = agent.logs(true, None).await.ok()?;
                    self.told = self.last;
                }
            }
        }
    }

    /// The kept pieces are repeated in the same order and form; the first newer one ends the repetition.
    fn is_told(&mut self, at_ms: u64) -> bool {
        match &mut self.told {
            Some((last, _)) if at_ms < *last => true,
            Some((last, count)) if at_ms == *last => {
                *count -= 1;
                if *count == 0 {
                    self.told = None;
                }
                true
            }
            Some(_) => {
                self.told = None;
                false
            }
            None => false,
        }
    }
}

fn log_line(line: atoll_agentapi::LogLine) -> LogLine {
    LogLine {
        at_ms: i64::try_from(line.at_ms).unwrap_or(i64::MAX),
        pid: line.pid,
        stream: match line.stream {
            atoll_agentapi::LogStream::Stdout => LogStream::Stdout,
            atoll_agentapi::LogStream::Stderr => LogStream::Stderr,
            atoll_agentapi::LogStream::Pty => LogStream::Terminal,
        },
        data: line.data,
        dropped: line.dropped,
    }
}
