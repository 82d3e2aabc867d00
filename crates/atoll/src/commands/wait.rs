//! Waits for long operations with a status line. The server answers after its own timeout; the operation continues, and
//! this waits until the sandbox is in a resting phase.

use std::time::Duration;

use atoll_client::{client::Answer, sandboxes::Sandbox, words::Phase};
use tokio::time::{Instant, interval, sleep};

use super::CommandContext;
use crate::{client::Client, failure::Failure};

/// One verb on one sandbox.
#[derive(Debug, Clone, Copy)]
pub(super) struct Work<'a> {
    pub(super) ident: &'a str,
    /// The text for the status line: `archiving`.
    pub(super) doing: &'a str,
    /// Phases that mean success.
    pub(super) goal: &'a [Phase],
}

/// How often the line is updated.
const TICK: Duration = Duration::from_millis(250);
/// How often a server that stopped waiting is queried.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// LIMIT: how many times a resting phase that is not the goal is seen before it counts as the end; an intermediate step
/// takes less time.
const LOOKS: u32 = 10;

/// Sends the request and waits for the end of the operation; returns the sandbox.
pub(super) async fn carry_out(
    context: &CommandContext,
    client: &Client,
    work: Work<'_>,
    answer: impl Future<Output = Result<Answer<Sandbox>, Failure>>,
) -> Result<Answer<Sandbox>, Failure> {
    let began = Instant::now();
    let mut tick = interval(TICK);
    let mut end = std::pin::pin!(finish(client, work, answer));
    let answer = loop {
        tokio::select! {
            answer = end.as_mut() => break answer,
            _ = tick.tick() => context.out.status(&line(work, began.elapsed())),
        }
    };
    context.out.status_done();
    answer
}

fn line(work: Work<'_>, since: Duration) -> String {
    match since.as_secs() {
        // A quick operation shows no time.
        0 => format!("{} {} …", work.doing, work.ident),
        secs => format!("{} {} … {secs}s", work.doing, work.ident),
    }
}

async fn finish(
    client: &Client,
    work: Work<'_>,
    answer: impl Future<Output = Result<Answer<Sandbox>, Failure>>,
) -> Result<Answer<Sandbox>, Failure> {
    match answer.await {
        Err(failure) if failure.is("deadline_exceeded") => rest(client, work).await,
        answer => answer,
    }
}

async fn rest(client: &Client, work: Work<'_>) -> Result<Answer<Sandbox>, Failure> {
    let mut elsewhere = 0;
    loop {
        let sandbox = client.sandbox(work.ident).await?;
        let phase = sandbox.phase;
        if work.goal.contains(&phase) {
            return Ok(sandbox);
        }
        elsewhere = if RESTING.contains(&phase) { elsewhere + 1 } else { 0 };
        if elsewhere >= LOOKS || matches!(phase, Phase::Failed | Phase::Deleted) {
            return Err(missed(work, phase, sandbox.reason.text()));
        }
        sleep(ASK_EVERY).await;
    }
}

const RESTING: [Phase; 4] = [Phase::Running, Phase::Paused, Phase::Stopped, Phase::Archived];

fn missed(work: Work<'_>, phase: Phase, why: &str) -> Failure {
    let phase = phase.as_str();
    Failure::new("failed", format!("{} {} did not succeed: it is {phase} ({why})", work.doing, work.ident))
        .hint(format!("`atoll events {}` shows the steps", work.ident))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_shows_seconds_once_there_are_some() {
        let work = Work { ident: "box", doing: "archiving", goal: &[Phase::Archived] };
        assert_eq!(line(work, Duration::from_millis(900)), "archiving box …");
        assert_eq!(line(work, Duration::from_millis(2_100)), "archiving box … 2s");
    }

    #[test]
    fn what_did_not_succeed_says_why() {
        let work = Work { ident: "box", doing: "archiving", goal: &[Phase::Archived] };
        assert_eq!(
            missed(work, Phase::Stopped, "no bucket").message,
            "archiving box did not succeed: it is stopped (no bucket)"
        );
    }
}
