//! `atoll grep`: finds lines in the files of a sandbox.

use atoll_client::files::{GrepBody, GrepMatch};

use super::{CommandContext, suggest};
use crate::{
    cli::tools::GrepFiles,
    failure::{EXIT_OURS, Failure},
};

/// The exit status of grep without a match.
const EXIT_NO_MATCH: u8 = 1;

pub(super) async fn grep(context: &CommandContext, args: GrepFiles) -> Result<u8, Failure> {
    let ours = |failure: Failure| failure.exit(EXIT_OURS);
    let client = context.client().map_err(ours)?;
    let body = GrepBody {
        path: args.path,
        pattern: args.pattern,
        literal: args.fixed,
        ignore_case: args.ignore_case,
        include: args.include,
        exclude: args.exclude,
    };
    let found = match client.grep_files(&args.sandbox, &body).await {
        Ok(found) => found,
        Err(failure) => return Err(ours(suggest(&client, &args.sandbox, failure).await)),
    };
    if context.out.json {
        context.out.json(&found)?;
    } else {
        for GrepMatch { path, line, text } in &found.items {
            context.out.line(&format!("{}:{line}:{text}", context.out.name(path)))?;
        }
    }
    if found.truncated {
        context.out.say("atoll: a limit was reached; there may be more lines that match");
    }
    Ok(if found.items.is_empty() { EXIT_NO_MATCH } else { 0 })
}
