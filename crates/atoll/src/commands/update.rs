//! `atoll update` and `atoll resize`: labels, limits, network, lifetime and timers of a live sandbox.

use serde_json::{Map, Value, json};

use super::{CommandContext, create, lifecycle, network, sandbox_path};
use crate::{
    cli::{life::Resize, sandbox::Update, values::Pair},
    client::Client,
    failure::Failure,
};

pub(super) async fn update(context: &CommandContext, args: Update) -> Result<(), Failure> {
    let mut body = changes(&args);
    let relabels = !args.label.is_empty() || !args.remove_label.is_empty();
    if body.is_empty() && !relabels && args.reach.is_silent() && !args.no_learn {
        return Err(Failure::usage("nothing to change", "say what: `atoll update --help` lists it"));
    }
    network::mistaken(&args.reach)?;
    let client = context.client()?;
    let answer = apply(&client, &args, &mut body, relabels).await;
    lifecycle::one(context, &client, &args.sandbox, answer).await
}

pub(super) async fn resize(context: &CommandContext, args: Resize) -> Result<(), Failure> {
    let fields = [
        ("cpu", args.cpu.map(|v| json!(v))),
        ("memory_mib", args.memory.map(|v| json!(v.0))),
        ("disk_mib", args.disk.map(|v| json!(v.0))),
        ("pids", args.pids.map(|v| json!(v))),
    ];
    let body: Map<String, Value> =
        fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect();
    if body.is_empty() {
        return Err(Failure::usage("nothing to change", "say what: --cpu, --memory, --disk or --pids"));
    }
    let client = context.client()?;
    let answer = client.patch(&sandbox_path(&args.sandbox, ""), &body).await;
    lifecycle::one(context, &client, &args.sandbox, answer).await
}

async fn apply(
    client: &Client,
    args: &Update,
    body: &mut Map<String, Value>,
    relabels: bool,
) -> Result<Value, Failure> {
    let path = sandbox_path(&args.sandbox, "");
    if relabels {
        // The API replaces all labels at once, so the others are read first.
        let now = client.get(&path).await?;
        body.insert("labels".to_owned(), relabelled(&now["labels"], args));
    }
    if !args.reach.is_silent() || args.no_learn {
        let mut policy = match &args.reach.network {
            Some(_) => network::asked(&args.reach)?.unwrap_or_default(),
            // What it has stays, and what was said is added; values that are not shown stay too.
            None => network::added(&client.get(&path).await?["network"], &args.reach),
        };
        if let Some(fields) = policy.as_object_mut().filter(|_| args.no_learn) {
            fields.remove("learn");
        }
        body.insert("network".to_owned(), policy);
    }
    client.patch(&path, body).await
}

fn changes(args: &Update) -> Map<String, Value> {
    let fields = [
        ("cpu", args.cpu.map(|v| json!(v))),
        ("memory_mib", args.memory.map(|v| json!(v.0))),
        ("disk_mib", args.disk.map(|v| json!(v.0))),
        ("pids", args.pids.map(|v| json!(v))),
        ("timeout_s", args.timeout.map(|v| json!(v.whole()))),
        ("timeout_s", args.no_timeout.then_some(Value::Null)),
        ("on_timeout", args.on_timeout.map(|v| json!(v.as_str()))),
    ];
    let named = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    named.chain(create::timers(&args.timers)).collect()
}

fn relabelled(now: &Value, args: &Update) -> Value {
    let mut labels = now.as_object().cloned().unwrap_or_default();
    for key in &args.remove_label {
        labels.remove(key);
    }
    for Pair(key, value) in &args.label {
        labels.insert(key.clone(), json!(value));
    }
    Value::Object(labels)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn parsed(words: &[&str]) -> Update {
        let line = ["atoll", "update", "box"].iter().chain(words);
        let Command::Update(args) = Cli::try_parse_from(line).expect("valid").command else {
            panic!("update")
        };
        args
    }

    #[test]
    fn a_removed_lifetime_is_sent_as_null() {
        assert_eq!(Value::Object(changes(&parsed(&["--no-timeout"]))), json!({"timeout_s": null}));
        assert_eq!(Value::Object(changes(&parsed(&["--timeout", "1m"]))), json!({"timeout_s": 60}));
        assert_eq!(
            Value::Object(changes(&parsed(&["--auto-pause", "10m", "--auto-stop", "never"]))),
            json!({"auto_pause_s": 600, "auto_stop_s": -1})
        );
        assert_eq!(Value::Object(changes(&parsed(&[]))), json!({}));
    }

    #[test]
    fn labels_that_were_not_named_stay() {
        let args = parsed(&["--label", "a=2", "--remove-label", "b"]);
        assert_eq!(relabelled(&json!({"a": "1", "b": "1", "c": "1"}), &args), json!({"a": "2", "c": "1"}));
    }
}
