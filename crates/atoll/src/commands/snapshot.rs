//! `atoll snapshot`: take, list, show, remove, verify.

use atoll_client::snapshots::{Snapshot as SnapshotAnswer, SnapshotBody};
use jiff::Timestamp;

use super::{CommandContext, KNOWN_MAX, moment, pretty, suggest, tenant::TenantNames};
use crate::{
    cli::life::{Kept, Snapshot, SnapshotVerb},
    client::{Client, similar_names},
    failure::Failure,
    human::{Table, age, bytes},
};

pub(super) async fn snapshot(context: &CommandContext, args: Snapshot) -> Result<(), Failure> {
    let client = context.client()?;
    match args.verb {
        // The grammar requires one of the two.
        None => take(context, &client, args.sandbox.as_deref().unwrap_or_default(), args.kept).await,
        Some(SnapshotVerb::Create { sandbox, kept }) => take(context, &client, &sandbox, kept).await,
        Some(SnapshotVerb::Ls { sandbox, quiet }) => ls(context, &client, sandbox, quiet).await,
        Some(SnapshotVerb::Show { snapshot }) => match client.snapshot(&snapshot).await {
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

async fn take(context: &CommandContext, client: &Client, sandbox: &str, kept: Kept) -> Result<(), Failure> {
    let body = SnapshotBody { name: kept.name, tenant_wide: kept.global, memory: kept.memory };
    context.out.status(&format!("taking a snapshot of {sandbox} …"));
    let answer = client.take_snapshot(sandbox, &body).await;
    context.out.status_done();
    match answer {
        Ok(taken) if context.out.json => context.out.json(&taken),
        Ok(taken) => context.out.line(&taken.id),
        Err(failure) => Err(suggest(client, sandbox, failure).await),
    }
}

async fn ls(
    context: &CommandContext,
    client: &Client,
    sandbox: Option<String>,
    quiet: bool,
) -> Result<(), Failure> {
    let found = match client.snapshots(sandbox.as_deref(), None).await {
        Ok(found) => found,
        Err(failure) => return Err(suggest(client, sandbox.as_deref().unwrap_or_default(), failure).await),
    };
    let out = context.out;
    if quiet {
        return found.items.iter().try_for_each(|snapshot| out.line(&snapshot.id));
    }
    if out.json {
        return out.json(&found);
    }
    // The tenant is of interest only where there are several.
    let tenants = match found.items.windows(2).any(|pair| pair[0].tenant != pair[1].tenant) {
        true => Some(TenantNames::read(client).await),
        false => None,
    };
    table(&found.items, tenants.as_ref(), Timestamp::now())
        .lines()
        .iter()
        .try_for_each(|line| out.line(line))?;
    if found.items.is_empty() {
        out.tell("there are no snapshots; `atoll snapshot SANDBOX` takes one");
    }
    Ok(())
}

fn table(snapshots: &[SnapshotAnswer], tenants: Option<&TenantNames>, now: Timestamp) -> Table {
    let mut head = vec!["ID", "NAME", "SANDBOX", "TEMPLATE", "MEMORY", "SIZE", "AGE"];
    head.extend(tenants.map(|_| "TENANT"));
    let mut table = Table::new(&head);
    for snapshot in snapshots {
        let mut row = vec![
            snapshot.id.clone(),
            super::list::or_dash(&name(snapshot)),
            snapshot.sandbox.clone(),
            snapshot.template.clone(),
            if snapshot.memory { "yes" } else { "-" }.to_owned(),
            bytes(snapshot.bytes),
            age(moment(snapshot.created_at.as_str()), now),
        ];
        row.extend(tenants.map(|tenants| tenants.name(&snapshot.tenant).to_owned()));
        table.row(row);
    }
    table
}

/// The name with the sandbox that it belongs to, as commands take it; empty if it has none.
pub(super) fn name(snapshot: &SnapshotAnswer) -> String {
    let name = snapshot.name.as_deref().unwrap_or_default();
    if name.is_empty() || snapshot.tenant_wide {
        return name.to_owned();
    }
    format!("{}:{name}", snapshot.sandbox_name.as_ref().unwrap_or(&snapshot.sandbox))
}

/// An action on several snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SnapshotAction {
    Remove,
    Verify,
}

/// Continues after a failure; the exit status reports it.
async fn each(
    context: &CommandContext,
    client: &Client,
    snapshots: &[String],
    what: SnapshotAction,
) -> Result<(), Failure> {
    let mut failed = false;
    for snapshot in snapshots {
        let answer = match what {
            SnapshotAction::Remove => client.delete_snapshot(snapshot).await.map(|()| None),
            SnapshotAction::Verify => {
                context.out.status(&format!("reading {snapshot} …"));
                let answer = client.verify_snapshot(snapshot).await;
                context.out.status_done();
                answer.map(Some)
            }
        };
        match answer {
            Ok(Some(whole)) if context.out.json => context.out.json(&whole)?,
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

/// Adds the most similar name as a hint to an unknown snapshot.
async fn nearest(client: &Client, wanted: &str, failure: Failure) -> Failure {
    if !failure.is("snapshot_not_found") {
        return failure;
    }
    let Ok(known) = client.first_snapshots(KNOWN_MAX).await else { return failure };
    let named = known.items.iter().map(name).filter(|name| !name.is_empty());
    let names: Vec<String> = named.chain(known.items.iter().map(|snapshot| snapshot.id.clone())).collect();
    match similar_names::nearest(wanted, names.iter().map(String::as_str)) {
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
        let snapshots: [SnapshotAnswer; 1] = [serde_json::from_value(serde_json::json!({"id": "sbcdefghijklmnopqrst", "name": "clean",
            "tenant": "t", "sandbox": "abcdefghijklmnopqrst", "provider": "container", "state": "ready", "template": "host",
            "template_version": "v", "env_names": [], "user": "user", "workdir": "/", "command": null, "cpu": 1.0,
            "memory_mib": 512, "disk_mib": 2048, "pids": 256, "network": "allow-all", "memory": true,
            "bytes": 52_428_800, "stood_still_us": 0, "created_at": "2026-01-01T00:00:00Z"}))
        .expect("a snapshot")];
        let of_box = SnapshotAnswer {
            tenant_wide: false,
            sandbox_name: Some("box".to_owned()),
            ..snapshots[0].clone()
        };
        assert_eq!(name(&of_box), "box:clean");
        assert_eq!(name(&SnapshotAnswer { sandbox_name: None, ..of_box }), "abcdefghijklmnopqrst:clean");
        insta::assert_snapshot!(table(&snapshots, None, now).lines().join("\n"), @r"
        ID                    NAME   SANDBOX               TEMPLATE  MEMORY  SIZE    AGE
        sbcdefghijklmnopqrst  clean  abcdefghijklmnopqrst  host      yes     50 MiB  1h
        ");
        let tenants = TenantNames::of([("t", "acme")]);
        insta::assert_snapshot!(table(&snapshots, Some(&tenants), now).lines().join("\n"), @r"
        ID                    NAME   SANDBOX               TEMPLATE  MEMORY  SIZE    AGE  TENANT
        sbcdefghijklmnopqrst  clean  abcdefghijklmnopqrst  host      yes     50 MiB  1h   acme
        ");
    }
}
