//! `atoll events`: the events of sandboxes, with reasons.

use atoll_client::{
    client::Answer,
    events::{Event, EventKind, EventsQuery},
};

use super::{CommandContext, moment, suggest};
use crate::{cli::sandbox::Events as Args, client::Client, failure::Failure, human::harmless};

pub(super) async fn events(context: &CommandContext, args: Args) -> Result<(), Failure> {
    let client = context.client()?;
    if args.follow {
        let query =
            EventsQuery { sandbox: args.sandbox.clone(), after: args.after, ..EventsQuery::default() };
        let mut stream = client.follow_events(&query).await?;
        while let Some(event) = stream.next().await? {
            show(context, &stream.read(&event)?)?;
        }
        return Ok(());
    }
    let shown = match args.after {
        Some(after) => pages(context, &client, &args, after).await,
        None => newest(context, &client, &args).await,
    };
    match shown {
        Err(failure) => Err(suggest(&client, args.sandbox.as_deref().unwrap_or(""), failure).await),
        done => done,
    }
}

/// Shows the newest events.
async fn newest(context: &CommandContext, client: &Client, args: &Args) -> Result<(), Failure> {
    let query =
        EventsQuery { sandbox: args.sandbox.clone(), limit: Some(args.limit), ..EventsQuery::default() };
    let mut events = client.events(&query).await?.into_answers();
    events.try_for_each(|event| show(context, &event))
}

/// Shows all events after a number, page by page.
async fn pages(context: &CommandContext, client: &Client, args: &Args, after: u64) -> Result<(), Failure> {
    let mut after = after;
    loop {
        let query = EventsQuery {
            sandbox: args.sandbox.clone(),
            after: Some(after),
            limit: Some(PAGE),
            follow: None,
        };
        let page = client.events(&query).await?;
        // A page that does not advance would mean an endless loop.
        let Some(last) = page.items.last().map(|event| event.seq).filter(|last| *last > after) else {
            return Ok(());
        };
        page.into_answers().try_for_each(|event| show(context, &event))?;
        after = last;
    }
}

/// The page size of the server.
const PAGE: u32 = 500;

fn show(context: &CommandContext, event: &Answer<Event>) -> Result<(), Failure> {
    if context.out.json { context.out.json(event) } else { context.out.line(&sentence(event)) }
}

fn sentence(event: &Event) -> String {
    let at =
        moment(event.at.as_str()).map_or_else(String::new, |at| at.strftime("%Y-%m-%d %H:%M:%S").to_string());
    let what = match &event.what {
        EventKind::Phase { from, to, reason } => {
            let from = from.map_or("nothing", |from| from.as_str());
            format!("{from} -> {} ({})", to.as_str(), reason.text())
        }
        EventKind::Stage { stage } => stage.as_str().to_owned(),
        EventKind::Queued { queue } => format!("queued, {} ahead", queue.ahead),
        EventKind::Updated { fields } => format!("updated {}", fields.join(", ")),
        EventKind::Snapshotted { snapshot, memory } => {
            let with = if *memory { " with its memory" } else { "" };
            format!("snapshot {snapshot} taken{with}")
        }
        EventKind::Forked { children } => format!("forked into {}", children.join(", ")),
        EventKind::Checkpointed { failure: None } => "memory written to disk".to_owned(),
        EventKind::Checkpointed { failure: Some(why) } => {
            format!("memory could not be written to disk ({why})")
        }
        EventKind::Moved { from, to, failure: None } => format!("moved from {from} to {to}"),
        EventKind::Moved { to, failure: Some(why), .. } => format!("could not be moved to {to} ({why})"),
        EventKind::OutOfMemory => "out of memory".to_owned(),
        EventKind::Unknown => {
            "an event that this version of atoll does not support; --json shows it".to_owned()
        }
    };
    let by = event.by.as_ref().map(|key| format!(", by {}", key.name.as_deref().unwrap_or(&key.id)));
    harmless(&format!("{at}  {}  {what}{}", event.sandbox, by.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn events_read_as_sentences() {
        let said = |what: serde_json::Value| {
            let mut event = json!({"seq": 3, "tenant": "t", "sandbox": "abc", "instance": null,
                "at": "2026-01-02T03:04:05Z"});
            let fields = what.as_object().expect("object").clone();
            event.as_object_mut().expect("object").extend(fields);
            sentence(&serde_json::from_value(event).expect("an event"))
        };
        let phase =
            json!({"kind": "phase", "from": "creating", "to": "running", "reason": {"code": "completed"}});
        assert_eq!(said(phase), "2026-01-02 03:04:05  abc  creating -> running (completed)");
        for (event, want) in [
            (
                json!({"kind": "out_of_memory", "at": "1970-01-01T00:00:00Z"}),
                "1970-01-01 00:00:00  abc  out of memory",
            ),
            (
                json!({"kind": "snapshotted", "snapshot": "s1", "memory": true}),
                "snapshot s1 taken with its memory",
            ),
            (json!({"kind": "forked", "children": ["a", "b"]}), "forked into a, b"),
            (
                json!({"kind": "updated", "fields": ["labels"], "by": {"id": "k1", "name": "unix:anna"}}),
                "updated labels, by unix:anna",
            ),
            (json!({"kind": "checkpointed", "failure": null}), "memory written to disk"),
            (json!({"kind": "of a newer server", "x": 1}), "--json shows it"),
        ] {
            assert!(said(event.clone()).ends_with(want), "{}", said(event));
        }
    }
}
