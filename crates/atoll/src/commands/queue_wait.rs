//! Waits for a queued create with a status line that shows its place. Ctrl-C, SIGTERM and SIGHUP cancel the create.

use std::time::Duration;

use atoll_client::client::Answer;
use atoll_client::sandboxes::{QueuePlace, Sandbox};
use atoll_client::words::{Phase, ReasonCode};
use tokio::signal::unix::{SignalKind, signal};

use super::CommandContext;
use crate::client::Client;
use crate::failure::Failure;

/// How often the server is asked for the place.
const ASK_EVERY: Duration = Duration::from_millis(250);
/// LIMIT: how often in a row no server may answer. A queued create outlives a restart of its server, so the wait does too.
const SILENT_MAX: u32 = 120;

/// Returns the sandbox once it runs.
pub(super) async fn until_running(
    context: &CommandContext,
    client: &Client,
    sandbox: Answer<Sandbox>,
) -> Result<Answer<Sandbox>, Failure> {
    let id = sandbox.id.clone();
    if let Some(place) = sandbox.queue {
        context.out.say(&format!("sandbox {id} is queued: {}", place_text(place)));
    }
    let outcome = tokio::select! {
        outcome = followed(context, client, sandbox) => outcome,
        // Without handlers for the signals the wait goes on.
        Ok(()) = ended() => Err(cancelled(client, &id).await),
    };
    context.out.status_done();
    outcome
}

/// Returns when this command is told to end.
async fn ended() -> std::io::Result<()> {
    let (mut terminate, mut hangup) = (signal(SignalKind::terminate())?, signal(SignalKind::hangup())?);
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted,
        _ = terminate.recv() => Ok(()),
        _ = hangup.recv() => Ok(()),
    }
}

async fn followed(
    context: &CommandContext,
    client: &Client,
    mut sandbox: Answer<Sandbox>,
) -> Result<Answer<Sandbox>, Failure> {
    let mut silent = 0;
    while sandbox.phase == Phase::Creating {
        context.out.status(&match sandbox.queue {
            Some(place) => format!("queued: {} …", place_text(place)),
            None => "creating …".to_owned(),
        });
        tokio::time::sleep(ASK_EVERY).await;
        match client.sandbox(&sandbox.id).await {
            Ok(now) => (sandbox, silent) = (now, 0),
            Err(failure) if failure.is("no_server") && silent < SILENT_MAX => silent += 1,
            Err(failure) => return Err(failure),
        }
    }
    match sandbox.phase {
        Phase::Deleting | Phase::Deleted | Phase::Failed => Err(not_running(&sandbox)),
        _ => Ok(sandbox),
    }
}

async fn cancelled(client: &Client, id: &str) -> Failure {
    match client.delete_sandbox(id).await {
        Ok(_) => Failure::new("cancelled", format!("the create of sandbox {id} was cancelled")),
        Err(failure) => failure.hint(format!("`atoll rm {id}` cancels the create")),
    }
}

pub(super) fn place_text(place: QueuePlace) -> String {
    let QueuePlace { position, ahead } = place;
    match ahead {
        0 => "next".to_owned(),
        _ => format!("position {position} of your tenant, {ahead} ahead"),
    }
}

fn not_running(sandbox: &Sandbox) -> Failure {
    let id = &sandbox.id;
    if sandbox.reason.code == ReasonCode::QueueTimedOut {
        let message = format!("sandbox {id} was queued, and no place was free for it in time");
        return Failure::new("queue_timed_out", message).hint(
            "it is deleted; create it again with a longer --queue-timeout, or delete other sandboxes first",
        );
    }
    let (phase, why) = (sandbox.phase.as_str(), sandbox.reason.text());
    Failure::new("failed", format!("sandbox {id} does not run: it is {phase} ({why})"))
        .hint(format!("`atoll events {id}` shows the steps"))
}
