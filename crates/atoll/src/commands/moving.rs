//! `atoll move`: moves a sandbox to another provider, shows the progress, and lists what stayed behind.

use std::time::Duration;

use atoll_client::{
    client::Answer,
    moving::{LeftBehind, MoveSandboxBody, Moving},
    sandboxes::Sandbox,
};
use tokio::time::sleep;

use super::{CommandContext, suggest};
use crate::{
    cli::life::Move,
    client::Client,
    failure::Failure,
    human::{bytes, harmless},
};

/// How often the progress is read.
const LOOK_EVERY: Duration = Duration::from_millis(300);
/// LIMIT: names of each kind that are printed; `--json` has more.
const NAMES_MAX: usize = 10;

pub(super) async fn move_sandbox(context: &CommandContext, args: Move) -> Result<(), Failure> {
    let client = context.client()?;
    context.out.status(&format!("moving {} to {} …", args.sandbox, args.to));
    let body = MoveSandboxBody { provider: args.to.clone(), template: args.template.clone() };
    let ended = match client.move_sandbox(&args.sandbox, &body, false).await {
        Ok(begun) => until_moved(context, &client, &begun).await,
        Err(failure) => Err(failure),
    };
    context.out.status_done();
    let sandbox = match ended {
        Ok(sandbox) => sandbox,
        Err(failure) => return Err(suggest(&client, &args.sandbox, failure).await),
    };
    if context.out.json {
        return context.out.json(&sandbox);
    }
    report(context, &sandbox);
    // The text that the user typed, so that output and input correspond.
    context.out.line(&args.sandbox)
}

/// Follows a move that was recorded. The old copy may still be in removal when it returns.
async fn until_moved(
    context: &CommandContext,
    client: &Client,
    begun: &Sandbox,
) -> Result<Answer<Sandbox>, Failure> {
    let started_at = begun.moving.as_ref().map(|moving| moving.started_at.clone());
    loop {
        let sandbox = client.sandbox(&begun.id).await?;
        let is_copied = |moving: &Moving| moving.stage != atoll_client::words::MoveStage::Copying;
        let is_over = sandbox
            .moving
            .as_ref()
            .is_none_or(|now| is_copied(now) || Some(&now.started_at) != started_at.as_ref());
        if let Some(moving) = sandbox.moving.as_ref().filter(|_| !is_over) {
            context.out.status(&line(&sandbox, moving));
        } else if is_at_rest(&sandbox) {
            return match sandbox.last_move.as_ref().and_then(|last| last.failure.clone()) {
                Some(why) => {
                    Err(Failure::new("not_moved", format!("sandbox {} was not moved: {why}", sandbox.id)))
                }
                None => Ok(sandbox),
            };
        }
        sleep(LOOK_EVERY).await;
    }
}

/// Whether nothing follows: a sandbox that was running is started at its new place.
fn is_at_rest(sandbox: &Sandbox) -> bool {
    use atoll_client::words::{Intent, Phase};
    match sandbox.phase {
        Phase::Running | Phase::Failed | Phase::Deleted | Phase::Paused | Phase::Archived => true,
        Phase::Stopped => sandbox.intent != Intent::Run,
        _ => false,
    }
}

fn line(sandbox: &Sandbox, moving: &Moving) -> String {
    format!("moving {} to {} …", sandbox.id, harmless(&progress(moving)))
}

/// How far a copy is: `docker: copying, 3 MiB in 12 entries`.
pub(super) fn progress(moving: &Moving) -> String {
    let what = format!("{}: {}", moving.to, moving.step.as_str());
    match moving.entries {
        0 => what,
        entries => format!("{what}, {} in {entries} entries", bytes(moving.bytes)),
    }
}

fn report(context: &CommandContext, sandbox: &Sandbox) {
    let Some(last) = &sandbox.last_move else { return };
    let said = format!(
        "atoll: moved from {} to {}: {} in {} entries",
        harmless(&last.from),
        harmless(&last.to),
        bytes(last.bytes),
        last.entries
    );
    context.out.say(&said);
    for left in &last.left_behind {
        context.out.say(&left_line(left));
    }
}

fn left_line(left: &LeftBehind) -> String {
    let names: Vec<String> = left.names.iter().take(NAMES_MAX).map(|name| harmless(name)).collect();
    let more = left.count.saturating_sub(names.len() as u64);
    let more = if more == 0 { String::new() } else { format!(", and {more} more") };
    format!("  left behind, {}: {}{more}", left.kind.as_str(), names.join(", "))
}

#[cfg(test)]
mod tests {
    use atoll_client::words::LeftBehindKind;

    use super::*;

    #[test]
    fn long_lists_are_cut_and_names_are_harmless() {
        let names = (0..12).map(|n| if n == 0 { "/a\u{1b}[2J".to_owned() } else { format!("/{n}") });
        let left = LeftBehind { kind: LeftBehindKind::Files, names: names.collect(), count: 300 };
        let line = left_line(&left);
        assert!(line.starts_with("  left behind, files: /a\\u{1b}[2J, /1, "), "{line}");
        assert!(line.ends_with("/9, and 290 more"), "{line}");
    }
}
