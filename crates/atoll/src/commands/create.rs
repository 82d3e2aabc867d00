//! `atoll create`: one object with `--json`, else the id on stdout and the next command on stderr.

use reqwest::Method;
use serde_json::{Map, Value, json};

use super::{CommandContext, network, template, text, volume};
use crate::{
    cli::{
        life::Timers,
        sandbox::{Create, Shape},
        values::Pair,
    },
    client::Client,
    failure::Failure,
    out::Shade,
};

/// Whether to answer when it runs, or at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    Yes,
    No,
}

pub(super) async fn create(context: &CommandContext, args: Create) -> Result<(), Failure> {
    let client = context.client()?;
    let wait = if args.detach { Wait::No } else { Wait::Yes };
    let body = whole(&args)?;
    network::note(context.out, &args.shape.reach);
    if let Some(image) = &args.shape.image {
        template::ensure(context, &client, image).await?;
    }
    make(context, &client, &body, wait, args.idempotency_key.as_deref()).await
}

/// Asks for a sandbox and shows what was made.
pub(super) async fn make(
    context: &CommandContext,
    client: &Client,
    body: &Map<String, Value>,
    wait: Wait,
    idempotency_key: Option<&str>,
) -> Result<(), Failure> {
    context.out.status("creating …");
    let wait = if wait == Wait::Yes { "1" } else { "0" };
    let answer = send(client, body, wait, idempotency_key).await;
    context.out.status_done();
    let sandbox = match answer {
        Ok(sandbox) => sandbox,
        Err(failure) => return Err(explained(client, body, failure).await),
    };
    if context.out.json {
        return context.out.json(&sandbox);
    }
    context.out.line(text(&sandbox, "id"))?;
    let name = if text(&sandbox, "name").is_empty() { text(&sandbox, "id") } else { text(&sandbox, "name") };
    context.out.tell(&context.out.shade_talk(Shade::Faint, &format!("next: atoll sh {name}")));
    Ok(())
}

/// A template or volume that is not there gets the nearest name as a hint.
pub(super) async fn explained(client: &Client, body: &Map<String, Value>, failure: Failure) -> Failure {
    let wanted = body.get("template").and_then(Value::as_str).unwrap_or_default();
    let failure = template::nearest(client, wanted, failure).await;
    volume::nearest(client, &body.get("mounts").cloned().unwrap_or_default(), failure).await
}

/// The whole body of a create.
fn whole(args: &Create) -> Result<Map<String, Value>, Failure> {
    let mut body = body(&args.shape)?;
    let fields = [
        ("timeout_s", args.timeout.map(|v| json!(v.whole()))),
        ("on_timeout", args.on_timeout.map(|v| json!(v.as_str()))),
        ("snapshot", args.snapshot.as_ref().map(|v| json!(v))),
        ("memory", args.memory_of_snapshot.then_some(json!(true))),
        ("thread", args.thread.as_ref().map(|v| json!(v))),
        ("private_env", (!args.private_env.is_empty()).then(|| json!(args.private_env))),
        ("command", (!args.command.is_empty()).then(|| json!(args.command))),
    ];
    body.extend(fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
    body.extend(timers(&args.timers));
    Ok(body)
}

/// Timers that were named, as create and update take them.
pub(super) fn timers(timers: &Timers) -> impl Iterator<Item = (String, Value)> {
    let fields = [
        ("auto_pause_s", timers.auto_pause.map(|v| json!(v.0))),
        ("auto_stop_s", timers.auto_stop.map(|v| json!(v.0))),
        ("checkpoint_after_s", timers.checkpoint_after.map(|v| json!(v.0))),
        ("auto_archive_s", timers.auto_archive.map(|v| json!(v.0))),
        ("auto_delete_s", timers.auto_delete.map(|v| json!(v.0))),
        ("on_exit", timers.on_exit.map(|v| json!(v.as_str()))),
        ("wake", timers.wake.map(|v| json!(v.as_str()))),
    ];
    fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)))
}

/// Asks for a sandbox.
pub(super) async fn send(
    client: &Client,
    body: &Map<String, Value>,
    wait: &str,
    idempotency_key: Option<&str>,
) -> Result<Value, Failure> {
    let mut request = client.request(Method::POST, "/v1/sandboxes").query(&[("wait", wait)]).json(body);
    if let Some(key) = idempotency_key {
        request = request.header("Idempotency-Key", key);
    }
    client.json(request).await
}

/// What was said, and nothing else: the rest is the server's default.
pub(super) fn body(shape: &Shape) -> Result<Map<String, Value>, Failure> {
    let mut body = Map::new();
    let mut put = |field: &str, value: Option<Value>| {
        if let Some(value) = value {
            body.insert(field.to_owned(), value);
        }
    };
    put("template", shape.template.as_ref().map(|v| json!(v)));
    put("image", shape.image.as_ref().map(|v| json!(v)));
    put("mounts", volume::mounts(&shape.volume));
    put("name", shape.name.as_ref().map(|v| json!(v)));
    put("cpu", shape.cpu.map(|v| json!(v)));
    put("memory_mib", shape.memory.map(|v| json!(v.0)));
    put("disk_mib", shape.disk.map(|v| json!(v.0)));
    put("pids", shape.pids.map(|v| json!(v)));
    put("network", network::asked(&shape.reach)?);
    put("storage", shape.storage.map(|v| json!(v.as_str())));
    put("user", shape.user.as_ref().map(|v| json!(v)));
    put("env", pairs(&shape.env));
    put("labels", pairs(&shape.label));
    Ok(body)
}

/// Pairs as an object; the last of a repeated key holds. Nothing said is nothing sent.
pub(super) fn pairs(pairs: &[Pair]) -> Option<Value> {
    if pairs.is_empty() {
        return None;
    }
    let fields = pairs.iter().map(|Pair(key, value)| (key.clone(), json!(value)));
    Some(Value::Object(fields.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command, network::Reach, values::Mebibytes};
    use clap::Parser;

    #[test]
    fn only_what_was_said_is_sent() {
        assert_eq!(body(&Shape::default()).map(Value::Object), Ok(json!({})));
        let shape = Shape {
            memory: Some(Mebibytes(64)),
            env: vec![Pair("A".into(), "1".into()), Pair("A".into(), "2".into())],
            reach: Reach { learn: true, ..Reach::default() },
            ..Shape::default()
        };
        assert_eq!(
            body(&shape).map(Value::Object),
            Ok(json!({"memory_mib": 64, "env": {"A": "2"}, "network": {"mode": "allow-all", "learn": true}}))
        );
    }

    #[test]
    fn every_option_of_create_has_its_field() {
        let line = "atoll create --snapshot clean --memory-of-snapshot --auto-stop never --auto-pause 10m \
            --checkpoint-after 1h --auto-archive 7d --auto-delete 0 --timeout 1h --on-timeout pause --on-exit pause \
            --thread t --wake explicit --env K=v --private-env K";
        let Command::Create(args) = Cli::try_parse_from(line.split_whitespace()).expect("valid").command
        else {
            panic!("create")
        };
        assert_eq!(
            whole(&args).map(Value::Object),
            Ok(json!({"snapshot": "clean", "memory": true, "auto_stop_s": -1, "auto_pause_s": 600,
                "checkpoint_after_s": 3600, "auto_archive_s": 604_800, "auto_delete_s": 0, "timeout_s": 3600,
                "on_timeout": "pause", "on_exit": "pause", "thread": "t", "wake": "explicit", "env": {"K": "v"},
                "private_env": ["K"]}))
        );
    }
}
