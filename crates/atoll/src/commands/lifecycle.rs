//! The verbs for one or several sandboxes: `pause`, `resume`, `start`, `stop`, `restart`, `archive`, `restore`,
//! `rollback`, `hold`, `extend`, `rm`, `signal`. With several targets they continue after a failure; the exit status
//! reports it.

use std::collections::BTreeMap;

use atoll_client::{
    client::{Answer, LifecycleVerb},
    processes::{Signal as SignalName, SignalBody},
    sandbox_requests::CreateBody,
    sandboxes::{ExtendBody, HoldBody, ListQuery, PauseBody, RollbackBody, Sandbox},
    words::Phase,
};

use super::{
    CommandContext, create, list,
    network::WithPolicy,
    suggest,
    tenant::TenantNames,
    wait::{Work, carry_out},
};
use crate::{
    cli::{
        life::{Extend, Hold, Pause, Restore, Rollback},
        sandbox::{Rm, Signal},
    },
    client::Client,
    failure::Failure,
};

/// A verb, its text for the status line, and the phases that it leads to.
#[derive(Debug, Clone)]
pub(super) struct Verb {
    verb: LifecycleVerb,
    doing: &'static str,
    goal: &'static [Phase],
}

const fn verb(verb: LifecycleVerb, doing: &'static str, goal: &'static [Phase]) -> Verb {
    Verb { verb, doing, goal }
}

pub(super) const START: Verb = verb(LifecycleVerb::Start, "starting", &[Phase::Running]);
pub(super) const RESUME: Verb = verb(LifecycleVerb::Resume, "resuming", &[Phase::Running]);
pub(super) const RESTART: Verb = verb(LifecycleVerb::Restart, "restarting", &[Phase::Running]);
pub(super) const STOP: Verb = verb(LifecycleVerb::Stop, "stopping", &[Phase::Stopped]);
pub(super) const ARCHIVE: Verb = verb(LifecycleVerb::Archive, "archiving", &[Phase::Archived]);
const RESTORE: Verb = verb(LifecycleVerb::Restore, "restoring", &[Phase::Stopped]);

/// Applies `verb` to each target.
pub(super) async fn each(context: &CommandContext, targets: &[String], verb: Verb) -> Result<(), Failure> {
    let client = context.client()?;
    let mut tally = Tally::new(context);
    for ident in targets {
        let work = Work { ident, doing: verb.doing, goal: verb.goal };
        let answer = carry_out(context, &client, work, client.change_phase(ident, &verb.verb)).await;
        tally.count(&client, ident, answer).await?;
    }
    tally.end()
}

pub(super) async fn pause(context: &CommandContext, args: Pause) -> Result<(), Failure> {
    let body = PauseBody { memory: args.memory.map(Into::into) };
    each(context, &args.sandboxes, verb(LifecycleVerb::Pause(body), "pausing", &[Phase::Paused])).await
}

pub(super) async fn rollback(context: &CommandContext, args: Rollback) -> Result<(), Failure> {
    let rollback = LifecycleVerb::Rollback(RollbackBody { snapshot: args.snapshot });
    each(context, &[args.sandbox], verb(rollback, "rolling back", &[Phase::Running, Phase::Stopped])).await
}

/// Restores archived sandboxes, or creates a new one from an archive.
pub(super) async fn restore(context: &CommandContext, args: Restore) -> Result<(), Failure> {
    let Some(key) = args.from else { return each(context, &args.sandboxes, RESTORE).await };
    let body = CreateBody { archive: Some(key), name: args.name, ..CreateBody::default() };
    let body = WithPolicy { body: &body, network: None };
    let client = context.client()?;
    create::make(context, &client, &body, create::Wait::Yes, None).await
}

pub(super) async fn hold(context: &CommandContext, args: Hold) -> Result<(), Failure> {
    let client = context.client()?;
    let answer = if args.release {
        client.release(&args.sandbox).await
    } else {
        let body = HoldBody { for_s: args.duration.whole(), reason: args.reason };
        client.hold(&args.sandbox, &body).await
    };
    one(context, &client, &args.sandbox, answer).await
}

pub(super) async fn extend(context: &CommandContext, args: Extend) -> Result<(), Failure> {
    let client = context.client()?;
    let answer = client.extend(&args.sandbox, &ExtendBody { seconds: args.duration.whole() }).await;
    one(context, &client, &args.sandbox, answer).await
}

/// Reports the result of a verb for one sandbox.
pub(super) async fn one(
    context: &CommandContext,
    client: &Client,
    ident: &str,
    answer: Result<Answer<Sandbox>, Failure>,
) -> Result<(), Failure> {
    match answer {
        Ok(sandbox) if context.out.json => context.out.json(&sandbox),
        // The text that the user typed, so that output and input correspond.
        Ok(_) => context.out.line(ident),
        Err(failure) => Err(suggest(client, ident, failure).await),
    }
}

pub(super) async fn rm(context: &CommandContext, args: Rm) -> Result<(), Failure> {
    let client = context.client()?;
    let targets = match args.all || args.all_tenants {
        true => all(context, &client, &args).await?,
        false => args.sandboxes,
    };
    let mut tally = Tally::new(context);
    for ident in &targets {
        context.out.status(&format!("deleting {ident} …"));
        let answer = match args.snapshots {
            true => client.delete_with_snapshots(ident).await,
            false => client.delete_sandbox(ident).await,
        };
        context.out.status_done();
        if args.force && answer.as_ref().is_err_and(|failure| failure.is("sandbox_not_found")) {
            continue;
        }
        let deleted = answer.as_ref().ok().map(|sandbox| sandbox.id.clone());
        tally.count(&client, ident, answer).await?;
        if let (Some(id), false) = (deleted, args.snapshots) {
            tell_kept(context, &client, ident, &id).await;
        }
    }
    tally.end()
}

/// LIMIT: how many of the snapshots that outlive their sandbox are named.
const KEPT_SHOWN: u32 = 3;

/// Names the snapshots that outlive their sandbox.
async fn tell_kept(context: &CommandContext, client: &Client, ident: &str, id: &str) {
    let Ok(kept) = client.snapshots(Some(id), Some(KEPT_SHOWN + 1)).await else { return };
    let shown = kept.items.iter().take(KEPT_SHOWN as usize);
    let names: Vec<String> = shown.map(|one| one.name.clone().unwrap_or_else(|| one.id.clone())).collect();
    if names.is_empty() {
        return;
    }
    let more = if kept.items.len() > names.len() { ", …" } else { "" };
    context.out.say(&format!(
        "atoll: kept the snapshots of {ident}: {}{more}; `atoll rm --snapshots {id}` removes them",
        names.join(", ")
    ));
}

/// The sandboxes of the key's own tenant, or of every tenant, once the user has agreed to their end.
async fn all(context: &CommandContext, client: &Client, args: &Rm) -> Result<Vec<String>, Failure> {
    let tenant = match args.all_tenants {
        true => None,
        false => Some(client.current_key().await?.record.tenant.clone()),
    };
    let query = ListQuery { label: list::labels(&args.label), tenant, ..ListQuery::default() };
    let found = client.sandboxes(&query, None).await?.items;
    if !found.is_empty() && !args.force {
        let names = TenantNames::read(client).await;
        confirm(context, &counts(found.iter().map(|sandbox| names.name(&sandbox.tenant))))?;
    }
    Ok(found.into_iter().map(|sandbox| sandbox.id).collect())
}

/// `3 sandboxes of acme`, or `5 sandboxes of 2 tenants (3 of acme, 2 of default)`.
fn counts<'a>(tenants: impl Iterator<Item = &'a str>) -> String {
    let mut by_tenant: BTreeMap<&str, usize> = BTreeMap::new();
    tenants.for_each(|tenant| *by_tenant.entry(tenant).or_default() += 1);
    let count: usize = by_tenant.values().sum();
    let what = if count == 1 { "sandbox" } else { "sandboxes" };
    let each: Vec<String> = by_tenant.iter().map(|(tenant, count)| format!("{count} of {tenant}")).collect();
    match by_tenant.len() {
        1 => format!("{count} {what} of {}", by_tenant.keys().copied().collect::<String>()),
        several => format!("{count} {what} of {several} tenants ({})", each.join(", ")),
    }
}

fn confirm(context: &CommandContext, what: &str) -> Result<(), Failure> {
    if context.out.ask(&format!("Delete {what} with their files?")) {
        return Ok(());
    }
    Err(Failure::usage(format!("not deleted: {what}"), "add --force to delete them without confirmation"))
}

pub(super) async fn signal(context: &CommandContext, args: Signal) -> Result<(), Failure> {
    let client = context.client()?;
    let body = SignalBody { signal: SignalName::Number(args.signal) };
    match client.signal(&args.sandbox, args.pid, &body).await {
        Ok(()) => Ok(()),
        Err(failure) => Err(suggest(&client, &args.sandbox, failure).await),
    }
}

/// Prints each result as it arrives and records failures.
struct Tally<'a> {
    context: &'a CommandContext,
    failed: u32,
}

impl<'a> Tally<'a> {
    fn new(context: &'a CommandContext) -> Self {
        Self { context, failed: 0 }
    }

    async fn count(
        &mut self,
        client: &Client,
        ident: &str,
        answer: Result<Answer<Sandbox>, Failure>,
    ) -> Result<(), Failure> {
        let out = self.context.out;
        match answer {
            Ok(sandbox) if out.json => out.json(&sandbox),
            // The text that the user typed, so that output and input correspond.
            Ok(_) => out.line(ident),
            Err(failure) if failure.is("no_server") => Err(failure),
            Err(failure) => {
                self.failed += 1;
                suggest(client, ident, failure).await.report(out);
                Ok(())
            }
        }
    }

    fn end(self) -> Result<(), Failure> {
        if self.failed == 0 { Ok(()) } else { Err(Failure::silent(1)) }
    }
}

#[cfg(test)]
mod tests {
    use super::counts;

    #[test]
    fn the_question_names_how_many_sandboxes_of_whom_end() {
        assert_eq!(counts(["acme"].into_iter()), "1 sandbox of acme");
        assert_eq!(counts(["acme", "acme"].into_iter()), "2 sandboxes of acme");
        let several = counts(["default", "acme", "acme"].into_iter());
        assert_eq!(several, "3 sandboxes of 2 tenants (2 of acme, 1 of default)");
    }
}
