//! The verbs for one or several sandboxes: `pause`, `resume`, `start`, `stop`, `restart`, `archive`, `restore`,
//! `rollback`, `hold`, `extend`, `rm`, `signal`. With several targets they continue after a failure; the exit status
//! reports it.

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
    let targets = if args.all {
        let query = ListQuery { label: list::labels(&args.label), ..ListQuery::default() };
        let found = client.sandboxes(&query, None).await?;
        let ids: Vec<String> = found.items.into_iter().map(|sandbox| sandbox.id).collect();
        confirm(context, &args, ids.len())?;
        ids
    } else {
        args.sandboxes
    };
    let mut tally = Tally::new(context);
    for ident in &targets {
        context.out.status(&format!("deleting {ident} …"));
        let answer = client.delete_sandbox(ident).await;
        context.out.status_done();
        if args.force && answer.as_ref().is_err_and(|failure| failure.is("sandbox_not_found")) {
            continue;
        }
        tally.count(&client, ident, answer).await?;
    }
    tally.end()
}

fn confirm(context: &CommandContext, args: &Rm, count: usize) -> Result<(), Failure> {
    if args.force || count == 0 || context.out.ask(&format!("Delete {count} sandboxes with their files?")) {
        return Ok(());
    }
    Err(Failure::usage(
        format!("{count} sandboxes were not deleted"),
        "add --force to delete them without confirmation",
    ))
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
