//! `atoll run`: creates a sandbox, runs a command, deletes it. Streams and exit status are those of the command.
//!
//! The sandbox has a short lifetime that is renewed while the command runs: if this program is killed, the server
//! deletes the sandbox. The sandbox is kept only with `--keep`.

use std::{collections::BTreeMap, num::NonZeroU64, time::Duration};

use atoll_client::{
    exec::ExecBody,
    sandbox_requests::{CreateBody, UpdateBody},
};

use super::{
    CommandContext, command_hints, create, learned_policy,
    network::{self, WithPolicy},
    process::{self, Input, Signals, signal_status, with_exit},
    queue_wait, template, terminal,
};
use crate::{
    cli::sandbox::Run,
    client::Client,
    failure::{EXIT_OURS, Failure},
    server::background,
};

/// LIMIT: the lifetime of the sandbox after this program is killed.
const LIFETIME_S: u64 = 900;
const RENEW_EVERY: Duration = Duration::from_secs(300);

pub(super) async fn run(context: &CommandContext, args: Run) -> Result<u8, Failure> {
    let mut signals = Signals::listen()?;
    // Before a server is started for it.
    let network = network::asked(&args.shape.reach).map_err(with_exit)?;
    let body = CreateBody { timeout_s: Some(LIFETIME_S), ..create::body(&args.shape) };
    let wanted = WithPolicy { body: &body, network };
    network::note(context.out, &args.shape.reach);
    let client = tokio::select! {
        client = background::client(&context.global, context.out) => client.map_err(with_exit)?,
        number = signals.next() => return Err(Failure::silent(signal_status(number))),
    };
    if let Some(image) = &args.shape.image {
        let provider = args.shape.provider.as_deref();
        tokio::select! {
            here = template::ensure(context, &client, image, provider) => here.map_err(with_exit)?,
            number = signals.next() => return Err(Failure::silent(signal_status(number))),
        }
    }
    let key = once();
    let created = match client.create_sandbox(&wanted, !body.queue, Some(&key)).await {
        Ok(sandbox) if body.queue => queue_wait::until_running(context, &client, sandbox).await,
        created => created,
    };
    let sandbox = match created {
        Ok(sandbox) => sandbox,
        Err(failure) => {
            forget(&client, &wanted, &key, &failure).await;
            // No command ran yet, so Atoll itself failed.
            return Err(create::explained(&client, &body, failure).await.exit(EXIT_OURS));
        }
    };
    create::warn_of_isolation(context, &sandbox);
    let id = sandbox.id.clone();
    let outcome = tokio::select! {
        outcome = command(context, &client, &id, &args, &mut signals) => outcome,
        never = renew(&client, &id) => never,
    };
    let outcome = outcome.map_err(|failure| command_hints::of_run(failure, &args.command));
    // With --json it is part of the result.
    if args.shape.reach.learn && !context.out.json {
        tokio::select! {
            told = learned_policy::after_run(context, &client, &id, args.policy_out.as_deref()) => {
                if let Err(failure) = told {
                    failure.report(context.out);
                }
            }
            _ = signals.next() => context.out.say("atoll: not waiting for the learned policy"),
        }
    }
    tokio::select! {
        () = finish(context, &client, &id, args.keep) => {}
        _ = signals.next() => context.out.say(&format!("atoll: the server will delete {id}")),
    }
    outcome
}

/// A unique key of this run, so that its sandbox can be found again.
fn once() -> String {
    let mut bytes = [0; 16];
    // Without randomness a sandbox that cannot start is deleted only at the end of its lifetime.
    let _ = getrandom::fill(&mut bytes);
    bytes.iter().fold("run-".to_owned(), |text, byte| format!("{text}{byte:02x}"))
}

/// Deletes a sandbox that was created and could not start, because its id is not known. The same create with the same
/// key returns it.
async fn forget(client: &Client, wanted: &WithPolicy<'_, CreateBody>, key: &str, failure: &Failure) {
    let refused =
        ["invalid_request", "unauthenticated", "forbidden", "no_server", "quota_exceeded", "no_capacity"];
    if refused.iter().any(|code| failure.is(code)) || failure.code.ends_with("_not_found") {
        return;
    }
    if let Ok(left) = client.create_sandbox(wanted, false, Some(key)).await {
        // Its lifetime ends it if this fails.
        let _ = client.delete_sandbox(&left.id).await;
    }
}

async fn command(
    context: &CommandContext,
    client: &Client,
    id: &str,
    args: &Run,
    signals: &mut Signals,
) -> Result<u8, Failure> {
    if args.attach.tty {
        let wish = terminal::TerminalRequest {
            command: Some(args.command.clone()),
            cwd: args.workdir.clone(),
            user: None,
            env: BTreeMap::new(),
            thread: None,
        };
        return terminal::session(context, client, id, wish).await.map_err(with_exit);
    }
    let input = Input::of_stdin(args.attach.interactive);
    if context.out.json {
        return tokio::select! {
            outcome = one_object(context, client, id, args, input) => outcome,
            number = signals.next() => Err(Failure::silent(signal_status(number))),
        };
    }
    process::join(context, client, id, body(args), input, signals).await
}

/// The result of the command and, with `--learn`, the policy, for `--json`.
async fn one_object(
    context: &CommandContext,
    client: &Client,
    id: &str,
    args: &Run,
    input: Input,
) -> Result<u8, Failure> {
    let begun = jiff::Timestamp::now();
    let mut result = process::gather(client, id, body(args), input).await?;
    let exit = process::exit_of(&result);
    process::explain_kill(context, client, id, &exit, begun).await;
    if args.shape.reach.learn {
        let learned = learned_policy::after_run(context, client, id, args.policy_out.as_deref()).await?;
        result = result.with_field("learned", learned.raw().clone());
    }
    context.out.json(&result)?;
    Ok(process::status(&exit))
}

fn body(args: &Run) -> ExecBody {
    ExecBody {
        argv: Some(args.command.clone()),
        cwd: args.workdir.clone(),
        timeout_s: args.timeout.map(|v| v.0),
        ..ExecBody::default()
    }
}

/// A change to another lifetime, or to none.
fn lifetime(seconds: Option<NonZeroU64>) -> UpdateBody {
    UpdateBody { timeout_s: Some(seconds), ..UpdateBody::default() }
}

/// Renews the lifetime until it is dropped.
async fn renew(client: &Client, id: &str) -> Result<u8, Failure> {
    loop {
        tokio::time::sleep(RENEW_EVERY).await;
        // If the server is restarting, the next attempt succeeds.
        let _ = client.update_sandbox(id, &lifetime(NonZeroU64::new(LIFETIME_S))).await;
    }
}

async fn finish(context: &CommandContext, client: &Client, id: &str, keep: bool) {
    let out = context.out;
    if keep {
        let kept = client.update_sandbox(id, &lifetime(None)).await;
        match kept {
            Ok(_) => {
                out.say(&format!("atoll: kept {id}; `atoll sh {id}` opens it, `atoll rm {id}` deletes it"))
            }
            Err(failure) => failure.report(out),
        }
        return;
    }
    if let Err(failure) = client.delete_sandbox(id).await {
        out.say(&format!("atoll: {id} was not deleted: {failure}"));
        out.tell_faint("the server deletes it within 15 minutes");
    }
}
