//! `atoll logs`: what the start command and detached processes wrote.

use serde_json::Value;

use super::{CommandContext, sandbox_path, suggest};
use crate::{
    cli::sandbox::Logs,
    client::{
        Client,
        sse::{Events, payload},
    },
    failure::Failure,
};

pub(super) async fn logs(context: &CommandContext, args: Logs) -> Result<(), Failure> {
    let client = context.client()?;
    let follow = if args.follow { "1" } else { "0" };
    let path = sandbox_path(&args.sandbox, "/logs");
    let request = client.request(reqwest::Method::GET, &path).query(&[("follow", follow)]);
    let answer = match client.send(request).await {
        Ok(answer) => answer,
        Err(failure) => return Err(suggest(&client, &args.sandbox, failure).await),
    };
    let mut events = Events::new(answer);
    let mut silent = true;
    while let Some(event) = events.next().await? {
        silent = false;
        show(context, &event.name, &event.json())?;
    }
    if silent {
        explain(context, &client, &args.sandbox).await;
    }
    Ok(())
}

/// Why there is nothing to show, where nothing could ever have been written.
async fn explain(context: &CommandContext, client: &Client, sandbox: &str) {
    let Ok(shown) = client.get(&sandbox_path(sandbox, "")).await else { return };
    if shown["command"].is_null() {
        context.out.say(
            "atoll: no logs: it has no start command and no detached process wrote anything; other commands write to \
             whoever runs them",
        );
    }
}

fn show(context: &CommandContext, name: &str, line: &Value) -> Result<(), Failure> {
    let out = context.out;
    if out.json {
        return out.json(line);
    }
    match name {
        "dropped" => {
            out.say(&format!("atoll: {} bytes were lost here: this end read too slowly", line["bytes"]));
            Ok(())
        }
        "stderr" => out.stderr_bytes(&payload(line)),
        _ => out.bytes(&payload(line)),
    }
}
