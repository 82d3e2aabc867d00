//! The binary: configuration, wiring and the command line.
//!
//! ```text
//! main ─ parse ─┬─ launcher   before any thread exists: it clones
//!               ├─ serve      wires store, engine, service and front; the only place that knows concrete types
//!               └─ commands   an HTTP client of /v1
//! ```

mod cli;
mod client;
mod commands;
mod contexts;
mod environment;
mod failure;
mod human;
mod out;
mod serve;
mod server;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};

use cli::{Cli, Command};
use commands::CommandContext;
use failure::{EXIT_OURS, Failure};
use out::Out;

/// Commands that end with the status of the program that they ran.
const PASS_THROUGH: [&str; 5] = ["run", "exec", "code", "git", "grep"];

fn main() -> ExitCode {
    let parsed = Cli::command()
        .try_get_matches()
        .and_then(|matches| Ok((Cli::from_arg_matches(&matches)?, contexts::Typed::of(&matches))));
    let (mut cli, typed) = match parsed {
        Ok(parsed) => parsed,
        Err(refused) => return usage(&without_hidden_guesses(refused)),
    };
    cli.global.drop_empty();
    server::config_file::apply_to_client(&mut cli.global);
    // An error means that the process already has a provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let out = Out::new(cli.global.json);
    if cli.command.uses_context()
        && let Err(failure) = contexts::apply(&mut cli.global, typed, out)
    {
        failure.report(out);
        return ExitCode::from(failure.exit);
    }
    let result = match cli.command {
        Command::Launcher { arguments } => return serve::launcher(arguments),
        Command::Serve(_) => serve::serve(std::env::args_os().collect(), out),
        command => client_command(CommandContext { global: cli.global, out }, command),
    };
    match result {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            failure.report(out);
            ExitCode::from(failure.exit)
        }
    }
}

/// A client needs only one thread, and a thread that waits for input must not delay the end.
fn client_command(context: CommandContext, command: Command) -> Result<u8, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Failure::new("internal", format!("no runtime: {e}")).exit(EXIT_OURS))?;
    let result = runtime.block_on(commands::dispatch(&context, command));
    runtime.shutdown_background();
    result
}

/// An error of the grammar without guesses that the help does not show: commands and options for programs.
fn without_hidden_guesses(mut refused: clap::Error) -> clap::Error {
    use clap::error::{ContextKind, ContextValue};
    let mut grammar = Cli::command();
    grammar.build();
    let mut shown = std::collections::BTreeSet::new();
    collect_shown(&grammar, &mut shown);
    for kind in [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg] {
        let kept = match refused.remove(kind) {
            Some(ContextValue::Strings(guesses)) => {
                let kept: Vec<_> = guesses.into_iter().filter(|guess| shown.contains(guess)).collect();
                (!kept.is_empty()).then_some(ContextValue::Strings(kept))
            }
            Some(ContextValue::String(guess)) if !shown.contains(&guess) => None,
            other => other,
        };
        if let Some(kept) = kept {
            refused.insert(kind, kept);
        }
    }
    refused
}

/// The names of commands and options that the help shows.
fn collect_shown(command: &clap::Command, shown: &mut std::collections::BTreeSet<String>) {
    for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
        let aliases = argument.get_visible_aliases().unwrap_or_default();
        let names = argument.get_long().into_iter().chain(aliases);
        shown.extend(names.map(|name| format!("--{name}")));
    }
    for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        shown.insert(command.get_name().to_owned());
        shown.extend(command.get_visible_aliases().map(str::to_owned));
        collect_shown(command, shown);
    }
}

/// The most similar command to an unknown one, if clap itself finds none. `words` are the arguments of the program.
fn similar_command(refused: &clap::Error, mut words: impl Iterator<Item = String>) -> Option<String> {
    use clap::error::{ContextKind, ContextValue};
    let Some(ContextValue::String(wrong)) = refused.get(ContextKind::InvalidSubcommand) else { return None };
    if refused.get(ContextKind::SuggestedSubcommand).is_some() {
        return None;
    }
    // The names below are those of commands, not of the parts of a command such as `tenant`.
    if words.find(|word| !word.starts_with('-')).as_ref() != Some(wrong) {
        return None;
    }
    let grammar = Cli::command();
    let names =
        grammar.get_subcommands().filter(|command| !command.is_hide_set()).map(clap::Command::get_name);
    client::similar_names::nearest(wrong, names).map(str::to_owned)
}

/// Help goes to stdout and is no failure. Commands that pass statuses through have status 125 for their own errors.
fn usage(refused: &clap::Error) -> ExitCode {
    let wants_json = std::env::args().skip(1).take_while(|word| word != "--").any(|word| word == "--json");
    if refused.use_stderr() && wants_json {
        let text = refused.render().to_string();
        let (message, rest) = text.split_once("\n\n").unwrap_or((&text, ""));
        let message = message.trim().trim_start_matches("error: ");
        Failure::usage(message, rest.trim()).report(Out::new(true));
    } else {
        // If the terminal cannot be written to, the error cannot be reported either.
        let _ = refused.print();
        if let Some(near) = similar_command(refused, std::env::args().skip(1)) {
            Out::new(false).say(&format!("\n  tip: did you mean `atoll {near}`?"));
        }
    }
    if !refused.use_stderr() {
        return ExitCode::SUCCESS;
    }
    // Options may come before the verb.
    let grammar = Cli::command();
    let verb = std::env::args().skip(1).find(|word| grammar.find_subcommand(word).is_some());
    let passes_through = verb.is_some_and(|verb| PASS_THROUGH.contains(&verb.as_str()));
    ExitCode::from(if passes_through { EXIT_OURS } else { 2 })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn guesses_name_only_what_the_help_shows() {
        let said = |line: &str| {
            let refused = Cli::try_parse_from(format!("atoll {line}").split(' ')).expect_err("refused");
            without_hidden_guesses(refused).render().to_string()
        };
        for (line, hidden) in
            [("launchr", "launcher"), ("serve --backgroun", "--background"), ("lunch", "launch")]
        {
            let text = said(line);
            assert!(!text.contains(&format!("'{hidden}")), "{line}: {text}");
        }
        assert!(said("snapsho").contains("'snapshot'"), "{}", said("snapsho"));
        assert!(said("ls --quie").contains("'--quiet'"), "{}", said("ls --quie"));
    }

    #[test]
    fn a_command_with_two_letters_swapped_is_found() {
        let near = |line: &str| {
            let words = line.split(' ').map(str::to_owned);
            let refused = Cli::try_parse_from(format!("atoll {line}").split(' ')).expect_err("no command");
            similar_command(&refused, words)
        };
        assert_eq!(near("rnu").as_deref(), Some("run"));
        assert_eq!(near("zebra"), None);
        // `rm` deletes a sandbox, so it is no tip for a part of another command.
        assert_eq!(near("tenant rm acme"), None);
    }
}
