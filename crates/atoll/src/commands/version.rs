//! `atoll version`, `openapi`, `completions` and `man`: information about this program.

use std::path::Path;

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

/// Writes one page per command that the help shows: `atoll.1`, `atoll-run.1`, `atoll-template-make.1`.
pub(super) fn manual_pages(folder: &Path) -> Result<(), Failure> {
    clap_mangen::generate_to(Cli::command(), folder)
        .map_err(|cause| Failure::new("io", format!("cannot write {}: {cause}", folder.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shown_command_has_a_manual_page_and_hidden_ones_have_none() {
        let folder = tempfile::tempdir().expect("temporary folder");
        manual_pages(folder.path()).expect("written");
        let page = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap_or_default();
        let grammar = Cli::command();
        for command in grammar.get_subcommands() {
            let text = page(&format!("atoll-{}.1", command.get_name()));
            assert_eq!(text.is_empty(), command.is_hide_set(), "{}", command.get_name());
        }
        assert!(page("atoll.1").contains("Run untrusted code in isolated Linux sandboxes"));
        assert!(page("atoll-template-make.1").starts_with(".ie"), "{}", page("atoll-template-make.1"));
    }
}
