//! `atoll snapshot`: take, list, show, remove, verify.

use jiff::Timestamp;
use reqwest::Method;
use serde_json::{Map, Value, json};

use super::{CommandContext, items, moment, pretty, sandbox_path, suggest, text};
use crate::{
    cli::life::{Kept, Snapshot, SnapshotVerb},
    client::{Client, segment, similar_names},
    failure::Failure,
    human::{Table, age, bytes},
};

pub(super) async fn snapshot(context: &CommandContext, args: Snapshot) -> Result<(), Failure> {
    let client = context.client()?;
    match args.verb {
        // The grammar asks for one of the two.
        None => take(context, &client, args.sandbox.as_deref().unwrap_or_default(), args.kept).await,
        Some(SnapshotVerb::Create { sandbox, kept }) => take(context, &client, &sandbox, kept).await,
        Some(SnapshotVerb::Ls { sandbox, quiet }) => ls(context, &client, sandbox, quiet).await,
        Some(SnapshotVerb::Show { snapshot }) => match client.get(&path(&snapshot)).await {
            Ok(found) if context.out.json => context.out.json(&found),
            Ok(found) => context.out.line(&pretty(&found)),
            Err(failure) => Err(nearest(&client, &snapshot, failure).await),
        },
        Some(SnapshotVerb::Rm { snapshots }) => {
            each(context, &client, &snapshots, SnapshotAction::Remove).await
        }
        Some(SnapshotVerb::Verify { snapshots }) => {
            each(context, &client, &snapshots, SnapshotAction::Verify).await
        }
    }
}

fn path(snapshot: &str) -> String {
    format!("/v1/snapshots/{}", segment(snapshot))
}

async fn take(context: &CommandContext, client: &Client, sandbox: &str, kept: Kept) -> Result<(), Failure> {
    let mut body = Map::new();
    body.extend(kept.name.map(|name| ("name".to_owned(), json!(name))));
    body.extend(kept.memory.then(|| ("memory".to_owned(), json!(true))));
    context.out.status(&format!("taking a snapshot of {sandbox} …"));
    let answer = client.post(&sandbox_path(sandbox, "/snapshots"), &body).await;
    context.out.status_done();
    match answer {
        Ok(taken) if context.out.json => context.out.json(&taken),
        Ok(taken) => context.out.line(text(&taken, "id")),
        Err(failure) => Err(suggest(client, sandbox, failure).await),
    }
}

async fn ls(
    context: &CommandContext,
    client: &Client,
    sandbox: Option<String>,
    quiet: bool,
) -> Result<(), Failure> {
    let query: Vec<_> = sandbox.iter().map(|sandbox| ("sandbox", sandbox.clone())).collect();
    let found = match super::list::pages(client, "/v1/snapshots", query, None).await {
        Ok(found) => found,
        Err(failure) => return Err(suggest(client, sandbox.as_deref().unwrap_or_default(), failure).await),
    };
    let out = context.out;
    if quiet {
        return found.iter().try_for_each(|snapshot| out.line(text(snapshot, "id")));
    }
    if out.json {
        return out.json(&found);
    }
    table(&found, Timestamp::now()).lines().iter().try_for_each(|line| out.line(line))?;
    if found.is_empty() {
        out.tell("there is none; `atoll snapshot SANDBOX` takes one");
    }
    Ok(())
}

fn table(snapshots: &[Value], now: Timestamp) -> Table {
    let mut table = Table::new(&["ID", "NAME", "SANDBOX", "TEMPLATE", "MEMORY", "SIZE", "AGE"]);
    for snapshot in snapshots {
        table.row(vec![
            text(snapshot, "id").to_owned(),
            super::list::or_dash(text(snapshot, "name")),
            text(snapshot, "sandbox").to_owned(),
            text(snapshot, "template").to_owned(),
            if snapshot["memory"] == true { "yes" } else { "-" }.to_owned(),
            bytes(snapshot["bytes"].as_u64().unwrap_or(0)),
            age(moment(snapshot, "created_at"), now),
        ]);
    }
    table
}

/// What is done to several snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SnapshotAction {
    Remove,
    Verify,
}

/// Goes on past a failure; the status tells.
async fn each(
    context: &CommandContext,
    client: &Client,
    snapshots: &[String],
    what: SnapshotAction,
) -> Result<(), Failure> {
    let mut failed = false;
    for snapshot in snapshots {
        let answer = match what {
            SnapshotAction::Remove => client.delete(&path(snapshot)).await,
            SnapshotAction::Verify => {
                context.out.status(&format!("reading {snapshot} …"));
                let answer =
                    client.json(client.request(Method::POST, &format!("{}/verify", path(snapshot)))).await;
                context.out.status_done();
                answer
            }
        };
        match answer {
            Ok(whole) if context.out.json && what == SnapshotAction::Verify => context.out.json(&whole)?,
            Ok(_) => context.out.named("snapshot", snapshot)?,
            Err(failure) if failure.is("no_server") => return Err(failure),
            Err(failure) => {
                failed = true;
                nearest(client, snapshot, failure).await.report(context.out);
            }
        }
    }
    if failed { Err(Failure::silent(1)) } else { Ok(()) }
}

/// An unknown snapshot gets the nearest name as a hint.
async fn nearest(client: &Client, wanted: &str, failure: Failure) -> Failure {
    if !failure.is("snapshot_not_found") {
        return failure;
    }
    let Ok(answer) = client.get("/v1/snapshots?limit=200").await else { return failure };
    let known = items(answer);
    let names = known.iter().flat_map(|snapshot| [text(snapshot, "name"), text(snapshot, "id")]);
    match similar_names::nearest(wanted, names.filter(|name| !name.is_empty())) {
        Some(name) => failure.hint(format!("did you mean {name}? `atoll snapshot ls` shows every snapshot")),
        None => failure.hint("`atoll snapshot ls` shows every snapshot"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_as_reviewed() {
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().expect("valid");
        let snapshots =
            [json!({"id": "sbcdefghijklmnopqrst", "name": "clean", "sandbox": "abcdefghijklmnopqrst",
            "template": "host", "memory": true, "bytes": 52_428_800, "created_at": "2026-01-01T00:00:00Z"})];
        insta::assert_snapshot!(table(&snapshots, now).lines().join("\n"), @r"
        ID                    NAME   SANDBOX               TEMPLATE  MEMORY  SIZE    AGE
        sbcdefghijklmnopqrst  clean  abcdefghijklmnopqrst  host      yes     50 MiB  1h
        ");
    }
}
