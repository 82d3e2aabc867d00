//! `atoll fork`: sandboxes from a live one; their ids on stdout, what was not granted on stderr.

use serde_json::{Map, Value, json};

use super::{CommandContext, create, items, sandbox_path, suggest, text};
use crate::{cli::life::Fork, failure::Failure};

pub(super) async fn fork(context: &CommandContext, args: Fork) -> Result<(), Failure> {
    let client = context.client()?;
    context.out.status(&format!("forking {} …", args.sandbox));
    let answer = client.post(&sandbox_path(&args.sandbox, "/fork"), &body(&args)).await;
    context.out.status_done();
    let forked = match answer {
        Ok(forked) => forked,
        Err(failure) => return Err(suggest(&client, &args.sandbox, failure).await),
    };
    if context.out.json {
        return context.out.json(&forked);
    }
    if let Some(why) = forked["memory_refused"].as_str() {
        context.out.say(&format!("atoll: files only, without processes: {why}"));
    }
    items(forked["sandboxes"].clone()).iter().try_for_each(|child| context.out.line(text(child, "id")))
}

fn body(args: &Fork) -> Map<String, Value> {
    let fields = [
        ("count", Some(json!(args.count))),
        ("memory", args.memory.then_some(json!(true))),
        ("labels", create::pairs(&args.label)),
        ("timeout_s", args.timeout.map(|v| json!(v.whole()))),
    ];
    fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}
