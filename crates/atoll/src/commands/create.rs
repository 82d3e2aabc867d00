//! `atoll create`: prints one object with `--json`, else the id on stdout and the next command on stderr.

use std::collections::BTreeMap;

use atoll_client::client::Answer;
use atoll_client::sandbox_requests::CreateBody;
use atoll_client::sandboxes::Sandbox;
use atoll_client::words::Isolation;

use super::{
    CommandContext,
    network::{self, WithPolicy},
    queue_wait, template, volume,
};
use crate::{
    cli::{
        sandbox::{Create, Shape},
        values::{Mebibytes, Pair},
    },
    client::Client,
    failure::Failure,
};

/// Whether to wait until the sandbox runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    Yes,
    No,
}

pub(super) async fn create(context: &CommandContext, args: Create) -> Result<(), Failure> {
    let client = context.client()?;
    let wait = if args.detach { Wait::No } else { Wait::Yes };
    let body = whole(&args);
    let body = WithPolicy { body: &body, network: network::asked(&args.shape.reach)? };
    network::note(context.out, &args.shape.reach);
    if let Some(image) = &args.shape.image {
        template::ensure(context, &client, image, args.shape.provider.as_deref()).await?;
    }
    let key = args.idempotency_key.as_deref();
    if args.shape.queue && wait == Wait::Yes {
        let answer = client.create_sandbox(&body, false, key).await;
        let answer = match answer {
            Ok(sandbox) => queue_wait::until_running(context, &client, sandbox).await,
            refused => refused,
        };
        let answer = checked(&client, &args, answer).await;
        return show(context, &client, body.body, answer).await;
    }
    context.out.status("creating …");
    let answer = client.create_sandbox(&body, wait == Wait::Yes, key).await;
    let answer = checked(&client, &args, answer).await;
    context.out.status_done();
    show(context, &client, body.body, answer).await
}

/// The status that a shell reports for a program that does not exist.
const NOT_FOUND: i32 = 127;

/// Deletes a sandbox whose start command is one word that is no program: the word was meant as its name. A sandbox that
/// may have existed before is kept.
async fn checked(
    client: &Client,
    args: &Create,
    answer: Result<Answer<Sandbox>, Failure>,
) -> Result<Answer<Sandbox>, Failure> {
    let sandbox = answer?;
    let failure = sandbox.command_failure.as_ref().filter(|failure| failure.exit_code == NOT_FOUND);
    let is_new = args.thread.is_none() && args.idempotency_key.is_none();
    let ([word], Some(failure), true) = (args.command.as_slice(), failure, is_new) else {
        return Ok(sandbox);
    };
    let refused =
        Failure::new("invalid_argument", format!("the start command is no program: {}", failure.message));
    let hint = match &args.shape.name {
        None => format!("to name the sandbox: atoll create --name {word}"),
        Some(_) => "leave out the word, or give a program and its arguments".to_owned(),
    };
    match client.delete_sandbox(&sandbox.id).await {
        Ok(_) => Err(refused.hint(hint)),
        Err(_) => Err(refused.hint(format!("{hint}; `atoll rm {}` deletes what was created", sandbox.id))),
    }
}

/// Creates a sandbox and shows the result.
pub(super) async fn make(
    context: &CommandContext,
    client: &Client,
    body: &WithPolicy<'_, CreateBody>,
    wait: Wait,
    idempotency_key: Option<&str>,
) -> Result<(), Failure> {
    context.out.status("creating …");
    let answer = client.create_sandbox(body, wait == Wait::Yes, idempotency_key).await;
    context.out.status_done();
    show(context, client, body.body, answer).await
}

async fn show(
    context: &CommandContext,
    client: &Client,
    body: &CreateBody,
    answer: Result<Answer<Sandbox>, Failure>,
) -> Result<(), Failure> {
    let sandbox = match answer {
        Ok(sandbox) => sandbox,
        Err(failure) => return Err(explained(client, body, failure).await),
    };
    warn_of_isolation(context, &sandbox);
    warn_of_command(context, &sandbox);
    if context.out.json {
        return context.out.json(&sandbox);
    }
    context.out.line(&sandbox.id)?;
    let name = sandbox.name.as_ref().unwrap_or(&sandbox.id);
    context.out.tell_faint(&format!("next: atoll sh {name}"));
    Ok(())
}

/// Announces a start command that could not be started.
fn warn_of_command(context: &CommandContext, sandbox: &Sandbox) {
    if let Some(failure) = &sandbox.command_failure {
        context.out.say(&format!(
            "warning: the start command of sandbox {} failed: {}",
            sandbox.id, failure.message
        ));
    }
}

/// Announces a sandbox without isolation.
pub(super) fn warn_of_isolation(context: &CommandContext, sandbox: &Sandbox) {
    if sandbox.isolation == Isolation::None {
        context.out.say(&format!(
            "warning: isolation: none; code in sandbox {} runs on the server's machine with the rights of the server",
            sandbox.id
        ));
    }
}

/// Adds the most similar name as a hint to an unknown template or volume.
pub(super) async fn explained(client: &Client, body: &CreateBody, failure: Failure) -> Failure {
    let wanted = body.template.as_deref().unwrap_or_default();
    let failure = template::nearest(client, wanted, failure).await;
    let volumes: Vec<&str> = body.mounts.iter().map(|mount| mount.volume.as_str()).collect();
    volume::nearest(client, &volumes, failure).await
}

/// The whole body of a create, without the network policy.
fn whole(args: &Create) -> CreateBody {
    let timers = &args.timers;
    CreateBody {
        timeout_s: args.timeout.map(|v| v.whole()),
        on_timeout: args.on_timeout.map(Into::into),
        snapshot: args.snapshot.clone(),
        memory: args.memory_of_snapshot,
        thread: args.thread.clone(),
        private_env: args.private_env.iter().cloned().collect(),
        command: (!args.command.is_empty()).then(|| args.command.clone()),
        auto_pause_s: timers.auto_pause.map(|v| v.0),
        auto_stop_s: timers.auto_stop.map(|v| v.0),
        checkpoint_after_s: timers.checkpoint_after.map(|v| v.0),
        auto_archive_s: timers.auto_archive.map(|v| v.0),
        auto_delete_s: timers.auto_delete.map(|v| v.0),
        on_exit: timers.on_exit.map(Into::into),
        wake: timers.wake.map(Into::into),
        ..body(&args.shape)
    }
}

/// The given options only: the server has the defaults. The network policy is separate.
pub(super) fn body(shape: &Shape) -> CreateBody {
    CreateBody {
        queue: shape.queue,
        queue_timeout_s: shape.queue_timeout.map(|v| v.whole()),
        template: shape.template.as_ref().map(ToString::to_string),
        provider: shape.provider.clone(),
        image: shape.image.as_ref().map(ToString::to_string),
        mounts: volume::mounts(&shape.volume),
        name: shape.name.clone(),
        cpu: shape.cpu,
        memory_mib: shape.memory.map(Mebibytes::as_limit),
        disk_mib: shape.disk.map(Mebibytes::as_limit),
        pids: shape.pids.map(i64::from),
        storage: shape.storage.map(Into::into),
        user: shape.user.clone(),
        env: pairs(&shape.env),
        labels: pairs(&shape.label),
        ..CreateBody::default()
    }
}

/// Pairs as a map; the last value of a repeated key is used.
pub(super) fn pairs(pairs: &[Pair]) -> BTreeMap<String, String> {
    pairs.iter().map(|Pair(key, value)| (key.clone(), value.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command, network::Reach};
    use clap::Parser;
    use serde_json::json;

    fn sent(body: &CreateBody, reach: &Reach) -> serde_json::Value {
        let network = network::asked(reach).expect("valid");
        serde_json::to_value(WithPolicy { body, network }).expect("JSON")
    }

    #[test]
    fn only_what_was_said_is_sent() {
        assert_eq!(sent(&body(&Shape::default()), &Reach::default()), json!({}));
        let shape = Shape {
            memory: Some(Mebibytes(64)),
            env: vec![Pair("A".into(), "1".into()), Pair("A".into(), "2".into())],
            reach: Reach { learn: true, ..Reach::default() },
            ..Shape::default()
        };
        assert_eq!(
            sent(&body(&shape), &shape.reach),
            json!({"memory_mib": 64, "env": {"A": "2"}, "network": {"mode": "allow-all", "learn": true}})
        );
    }

    #[test]
    fn every_option_of_create_has_its_field() {
        let line = "atoll create --snapshot clean --memory-of-snapshot --auto-stop never --auto-pause 10m \
            --checkpoint-after 1h --auto-archive 7d --auto-delete 0 --timeout 1h --on-timeout pause --on-exit pause \
            --thread t --wake explicit --env K=v --private-env K --provider container --queue --queue-timeout 5m";
        let Command::Create(args) = Cli::try_parse_from(line.split_whitespace()).expect("valid").command
        else {
            panic!("create")
        };
        assert_eq!(
            sent(&whole(&args), &args.shape.reach),
            json!({"snapshot": "clean", "memory": true, "auto_stop_s": -1, "auto_pause_s": 600,
                "checkpoint_after_s": 3600, "auto_archive_s": 604_800, "auto_delete_s": 0, "timeout_s": 3600,
                "on_timeout": "pause", "on_exit": "pause", "thread": "t", "wake": "explicit", "env": {"K": "v"},
                "private_env": ["K"], "provider": "container", "queue": true, "queue_timeout_s": 300})
        );
    }
}
