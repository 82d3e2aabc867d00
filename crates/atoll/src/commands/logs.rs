//! `atoll logs`: shows the output of the start command and of detached processes.

use atoll_client::{client::SseEvent, exec::DroppedOutput, processes::LogEntry};

use super::{CommandContext, suggest};
use crate::{
    cli::sandbox::Logs,
    client::{Client, Events},
    failure::Failure,
};

pub(super) async fn logs(context: &CommandContext, args: Logs) -> Result<(), Failure> {
    let client = context.client()?;
    let mut events = match client.logs(&args.sandbox, args.follow).await {
        Ok(events) => events,
        Err(failure) => return Err(suggest(&client, &args.sandbox, failure).await),
    };
    let mut silent = true;
    while let Some(event) = events.next().await? {
        silent = false;
        show(context, &events, &event)?;
    }
    if silent {
        explain(context, &client, &args.sandbox).await;
    }
    Ok(())
}

/// Explains an empty log if nothing could have been written.
async fn explain(context: &CommandContext, client: &Client, sandbox: &str) {
    let Ok(shown) = client.sandbox(sandbox).await else { return };
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
