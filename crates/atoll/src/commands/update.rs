//! `atoll update`: labels, limits, network and lifetime of a live sandbox.

use serde_json::{Map, Value, json};

use super::{Context, sandbox_path, suggest};
use crate::{
    cli::{sandbox::Update, values::Pair},
    client::Client,
    failure::Failure,
};

pub(super) async fn update(context: &Context, args: Update) -> Result<(), Failure> {
    let mut body = changes(&args);
    let relabels = !args.label.is_empty() || !args.remove_label.is_empty();
    if body.is_empty() && !relabels {
        return Err(Failure::usage("nothing to change", "say what: `atoll update --help` lists it"));
    }
    let client = context.client()?;
    match apply(&client, &args, &mut body, relabels).await {
        Ok(sandbox) if context.out.json => context.out.json(&sandbox),
        // What the user typed, as the other verbs do.
        Ok(_) => context.out.line(&args.sandbox),
        Err(failure) => Err(suggest(&client, &args.sandbox, failure).await),
    }
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
    client.patch(&path, body).await
}

fn changes(args: &Update) -> Map<String, Value> {
    let fields = [
        ("cpu", args.cpu.map(|v| json!(v))),
        ("memory_mib", args.memory.map(|v| json!(v.0))),
        ("disk_mib", args.disk.map(|v| json!(v.0))),
        ("pids", args.pids.map(|v| json!(v))),
        ("network", args.network.map(|v| json!(v.as_str()))),
        ("timeout_s", args.timeout.map(|v| json!(v.whole()))),
        ("timeout_s", args.no_timeout.then_some(Value::Null)),
    ];
    fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
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
        assert_eq!(Value::Object(changes(&parsed(&[]))), json!({}));
    }

    #[test]
    fn labels_that_were_not_named_stay() {
        let args = parsed(&["--label", "a=2", "--remove-label", "b"]);
        assert_eq!(relabelled(&json!({"a": "1", "b": "1", "c": "1"}), &args), json!({"a": "2", "c": "1"}));
    }
}
