//! Checks whether the start command of a template is ready: a port listens, an HTTP request is answered, or a command
//! exits with 0. The check is repeated until a deadline. A check of a port is short, so one that hangs only counts as
//! failed. A command may take all the remaining time: `sleep 10` is a way to express "after ten seconds".

use std::sync::Arc;
use std::time::Duration;

use atoll_agentapi::AgentClient;
use atoll_model::{Code, ReadyCheck};
use atoll_provider::{Provider, Target};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use crate::{Exec, ServiceError};

/// LIMIT: pauses grow: most programs are ready in the first second, and the others take long.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LAST_PAUSE: Duration = Duration::from_millis(500);
/// LIMIT: one check of a port.
const LOOK: Duration = Duration::from_secs(5);
/// LIMIT: the least time for a command; zero would mean no limit.
const SHORTEST: Duration = Duration::from_millis(10);
/// LIMIT: bytes of a response; only its first line matters.
const HEAD_BYTES: usize = 512;

/// The sandbox to check.
pub(crate) struct Looked<'a> {
    pub(crate) provider: &'a Arc<dyn Provider>,
    pub(crate) target: Target,
    pub(crate) agent: &'a AgentClient,
}

/// Waits until the check holds.
pub(crate) async fn until_ready(
    looked: &Looked<'_>,
    check: &ReadyCheck,
    deadline: Instant,
) -> Result<(), ServiceError> {
    let mut pause = FIRST_PAUSE;
    loop {
        let until = match check {
            ReadyCheck::Port { .. } | ReadyCheck::Url { .. } => deadline.min(Instant::now() + LOOK),
            ReadyCheck::Command { .. } => deadline,
        };
        if tokio::time::timeout_at(until, look(looked, check, until)).await == Ok(true) {
            return Ok(());
        }
        if Instant::now() + pause >= deadline {
            let message =
                format!("the start command of the template was not ready in time: {}", words(check));
            return Err(ServiceError::new(Code::DeadlineExceeded, message)
                .hint("check the output of the command, or allow more time"));
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

async fn look(looked: &Looked<'_>, check: &ReadyCheck, until: Instant) -> bool {
    match check {
        ReadyCheck::Port { port } => looked.provider.dial(&looked.target, *port).await.is_ok(),
        ReadyCheck::Url { port, path, status } => answers(looked, *port, path).await == Some(*status),
        ReadyCheck::Command { command } => succeeds(looked.agent, command, until).await,
    }
}

/// The status of the response to a plain request.
async fn answers(looked: &Looked<'_>, port: u16, path: &str) -> Option<u16> {
    // A line end in the path would begin another request.
    if path.chars().any(|c| c.is_control() || c == ' ') {
        return None;
    }
    let mut stream = looked.provider.dial(&looked.target, port).await.ok()?;
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUser-Agent: atoll-ready\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut head = Vec::with_capacity(HEAD_BYTES);
    while head.len() < HEAD_BYTES && !head.contains(&b'\n') {
        if stream.read_buf(&mut head).await.ok()? == 0 {
            break;
        }
    }
    status(&head)
}

fn status(head: &[u8]) -> Option<u16> {
    let line = head.split(|byte| *byte == b'\n').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split_whitespace();
    words.next().filter(|version| version.starts_with("HTTP/1."))?;
    words.next()?.parse().ok()
}

async fn succeeds(agent: &AgentClient, command: &str, until: Instant) -> bool {
    let argv = ["/bin/sh", "-c", command].map(str::to_owned).to_vec();
    // The agent ends it by then, even if this task no longer waits for it.
    let timeout = Some(until.saturating_duration_since(Instant::now()).max(SHORTEST));
    let exec = Exec { argv, timeout, ..Default::default() };
    let Ok((_, mut stream)) = crate::exec::start(agent, exec).await else { return false };
    while let Some(event) = stream.next().await {
        match event {
            Ok(atoll_agentapi::ProcessEvent::Exit(status)) => return status.shell_code() == 0,
            Ok(_) => {}
            Err(_) => return false,
        }
    }
    false
}

fn words(check: &ReadyCheck) -> String {
    match check {
        ReadyCheck::Port { port } => format!("no program listens on port {port}"),
        ReadyCheck::Url { port, path, status } => {
            format!("port {port} does not answer {status} to GET {}", crate::sandboxes::printable(path))
        }
        ReadyCheck::Command { command } => {
            format!("the command {} does not exit with 0", crate::sandboxes::printable(command))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_status_line_counts() {
        assert_eq!(status(b"HTTP/1.1 200 OK\r\nA: b\r\n"), Some(200));
        assert_eq!(status(b"HTTP/1.0 503\r\n"), Some(503));
        for odd in [&b""[..], b"\n", b"SSH-2.0-x\r\n", b"HTTP/1.1\r\n", b"HTTP/1.1 x\r\n", b"\xff\xfe 200\n"]
        {
            assert_eq!(status(odd), None);
        }
    }
}
