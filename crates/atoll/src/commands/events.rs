//! `atoll events`: what happened to sandboxes, and why.

use serde_json::Value;

use super::{CommandContext, items, moment, suggest, text};
use crate::{
    cli::sandbox::Events as Args,
    client::{Client, sse::Events},
    failure::Failure,
    human::harmless,
};

pub(super) async fn events(context: &CommandContext, args: Args) -> Result<(), Failure> {
    let client = context.client()?;
    if args.follow {
        let mut query = vec![("follow", "1".to_owned())];
        query.extend(args.sandbox.clone().map(|sandbox| ("sandbox", sandbox)));
        query.extend(args.after.map(|seq| ("after", seq.to_string())));
        let request = client.request(reqwest::Method::GET, "/v1/events").query(&query);
        let mut stream = Events::new(client.send(request).await?);
        while let Some(event) = stream.next().await? {
            show(context, &event.json())?;
        }
        return Ok(());
    }
    match pages(context, &client, &args).await {
        Err(failure) => Err(suggest(&client, args.sandbox.as_deref().unwrap_or(""), failure).await),
        done => done,
    }
}

/// Shows what happened so far, page by page, each as it comes.
async fn pages(context: &CommandContext, client: &Client, args: &Args) -> Result<(), Failure> {
    let mut after = args.after;
    loop {
        let mut query = vec![("limit", PAGE.to_string())];
        query.extend(args.sandbox.clone().map(|sandbox| ("sandbox", sandbox)));
        query.extend(after.map(|seq| ("after", seq.to_string())));
        let page = items(client.get_query("/v1/events", &query).await?);
        page.iter().try_for_each(|event| show(context, event))?;
        let last = page.last().and_then(|event| event["seq"].as_u64());
        // A page that does not lead on would be a server that goes round in circles.
        if page.len() < PAGE || last <= after {
            return Ok(());
        }
        after = last;
    }
}

/// As many as the server hands out at once.
const PAGE: usize = 1_000;

fn show(context: &CommandContext, event: &Value) -> Result<(), Failure> {
    if context.out.json { context.out.json(event) } else { context.out.line(&sentence(event)) }
}

fn sentence(event: &Value) -> String {
    let at = moment(event, "at").map_or_else(String::new, |at| at.strftime("%Y-%m-%d %H:%M:%S").to_string());
    let what = match text(event, "kind") {
        "phase" => {
            let from = event["from"].as_str().unwrap_or("nothing");
            let reason = &event["reason"];
            let why = reason["message"].as_str().or(reason["code"].as_str()).unwrap_or("");
            format!("{from} -> {} ({why})", text(event, "to"))
        }
        "updated" => format!("updated {}", words(&event["fields"]).join(", ")),
        "snapshotted" => {
            let with = if event["memory"] == true { " with its memory" } else { "" };
            format!("snapshot {} taken{with}", text(event, "snapshot"))
        }
        "forked" => format!("forked into {}", words(&event["children"]).join(", ")),
        "checkpointed" => match event["failure"].as_str() {
            None => "memory written to disk".to_owned(),
            Some(why) => format!("memory could not be written to disk ({why})"),
        },
        other => other.replace('_', " "),
    };
    harmless(&format!("{at}  {}  {what}", text(event, "sandbox")))
}

/// The texts of a list.
fn words(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn events_read_as_sentences() {
        let event = json!({"seq": 3, "sandbox": "abc", "at": "2026-01-02T03:04:05Z", "kind": "phase",
            "from": "creating", "to": "running", "reason": {"code": "completed"}});
        assert_eq!(sentence(&event), "2026-01-02 03:04:05  abc  creating -> running (completed)");
        let event = json!({"sandbox": "abc", "at": 0, "kind": "out_of_memory"});
        assert_eq!(sentence(&event), "1970-01-01 00:00:00  abc  out of memory");
        for (event, want) in [
            (
                json!({"kind": "snapshotted", "snapshot": "s1", "memory": true}),
                "snapshot s1 taken with its memory",
            ),
            (json!({"kind": "forked", "children": ["a", "b"]}), "forked into a, b"),
            (json!({"kind": "checkpointed", "failure": null}), "memory written to disk"),
        ] {
            assert!(sentence(&event).ends_with(want), "{}", sentence(&event));
        }
    }
}
