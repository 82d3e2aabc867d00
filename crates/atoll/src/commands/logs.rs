//! `atoll logs`: shows the output of the start command and of detached processes.

use atoll_client::{
    client::{Answer, SseEvent},
    exec::DroppedOutput,
    processes::LogEntry,
    sandboxes::Sandbox,
};

use super::{CommandContext, suggest};
use crate::{cli::sandbox::Logs, client::Events, failure::Failure};

pub(super) async fn logs(context: &CommandContext, args: Logs) -> Result<(), Failure> {
    let client = context.client()?;
    let mut events = match client.logs(&args.sandbox, args.follow).await {
        Ok(events) => events,
        Err(failure) => return Err(suggest(&client, &args.sandbox, failure).await),
    };
    if args.follow {
        tell_failure(context, &client.sandbox(&args.sandbox).await);
    }
    let mut silent = true;
    while let Some(event) = events.next().await? {
        silent = false;
        show(context, &events, &event)?;
    }
    let sandbox = client.sandbox(&args.sandbox).await;
    if !args.follow {
        tell_failure(context, &sandbox);
    }
    if silent {
        explain(context, &sandbox);
    }
    Ok(())
}

/// Says how the start command failed, which its output may not tell.
fn tell_failure(context: &CommandContext, sandbox: &Result<Answer<Sandbox>, Failure>) {
    let failure = sandbox.as_ref().ok().and_then(|sandbox| sandbox.command_failure.as_ref());
    if let Some(failure) = failure {
        context.out.say(&format!("atoll: the start command failed at {}: {}", failure.at, failure.message));
    }
}

/// Explains an empty log if nothing could have been written.
fn explain(context: &CommandContext, sandbox: &Result<Answer<Sandbox>, Failure>) {
    let Ok(shown) = sandbox else { return };
    if shown.command.is_none() {
        context.out.say(
            "atoll: no logs: the sandbox has no start command and no detached process with output; other commands write to \
             their own caller",
        );
    }
}

fn show(context: &CommandContext, events: &Events, event: &SseEvent) -> Result<(), Failure> {
    let out = context.out;
    if out.json {
        return out.json(&event.raw());
    }
    if event.name == "dropped" {
        let lost = events.read::<DroppedOutput>(event)?.bytes;
        out.say(&format!("atoll: {lost} bytes were lost here: this client read too slowly"));
        return Ok(());
    }
    let bytes = events.read::<LogEntry>(event)?.into_typed().chunk.into_bytes().unwrap_or_default();
    if event.name == "stderr" { out.stderr_bytes(&bytes) } else { out.bytes(&bytes) }
}
