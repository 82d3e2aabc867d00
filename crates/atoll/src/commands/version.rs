//! `atoll version`, `openapi` and `completions`: information about this program.

use clap::CommandFactory;
use serde_json::json;

use super::CommandContext;
use crate::{cli::Cli, failure::Failure, serve};

const OURS: &str = env!("CARGO_PKG_VERSION");

pub(super) async fn version(context: &CommandContext) -> Result<(), Failure> {
    let server = match context.client() {
        Ok(client) => client.health().await.ok().map(|health| health.version.clone()),
        Err(_) => None,
    };
    if context.out.json {
        return context.out.json(&json!({"client": OURS, "server": server}));
    }
    context.out.line(&format!("client {OURS}"))?;
    match server {
        Some(theirs) => {
            context.out.line(&format!("server {theirs}"))?;
            if theirs != OURS {
                context.out.say("atoll: client and server differ; restart the server after an upgrade");
            }
            Ok(())
        }
        None => context.out.line("server not running"),
    }
}

pub(super) fn openapi(context: &CommandContext) -> Result<(), Failure> {
    context.out.line(&serve::openapi_text())
}

pub(super) fn completions(context: &CommandContext, shell: clap_complete::Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "atoll", &mut script);
    context.out.bytes(&script)
}
