//! The verbs on one or several sandboxes: `pause`, `resume`, `start`, `stop`, `restart`, `archive`, `restore`, `rollback`,
//! `hold`, `extend`, `rm`, `signal`. Several targets go on past a failure; the exit status tells.

use reqwest::Method;
use serde_json::{Map, Value, json};

use super::{
    CommandContext, create, items, list, sandbox_path, suggest, text,
    wait::{Work, carry_out},
};
use crate::{
    cli::{
        life::{Extend, Hold, Pause, Restore, Rollback, Thread},
        sandbox::{Rm, Signal},
    },
    client::{Client, segment},
    failure::Failure,
};

/// A verb as the API calls it, as the line says it, and where it leads.
#[derive(Debug, Clone, Copy)]
pub(super) struct Verb {
    name: &'static str,
    doing: &'static str,
    goal: &'static [&'static str],
}

pub(super) const START: Verb = Verb { name: "start", doing: "starting", goal: &["running"] };
pub(super) const RESUME: Verb = Verb { name: "resume", doing: "resuming", goal: &["running"] };
pub(super) const RESTART: Verb = Verb { name: "restart", doing: "restarting", goal: &["running"] };
pub(super) const STOP: Verb = Verb { name: "stop", doing: "stopping", goal: &["stopped"] };
pub(super) const ARCHIVE: Verb = Verb { name: "archive", doing: "archiving", goal: &["archived"] };
const PAUSE: Verb = Verb { name: "pause", doing: "pausing", goal: &["paused"] };
const RESTORE: Verb = Verb { name: "restore", doing: "restoring", goal: &["stopped"] };
const ROLLBACK: Verb = Verb { name: "rollback", doing: "rolling back", goal: &["running", "stopped"] };

/// Does `verb` to each target.
pub(super) async fn each(
    context: &CommandContext,
    targets: &[String],
    verb: Verb,
    body: Option<Value>,
) -> Result<(), Failure> {
    let client = context.client()?;
    let mut tally = Tally::new(context);
    for ident in targets {
        let mut request = client.request(Method::POST, &sandbox_path(ident, &format!("/{}", verb.name)));
        if let Some(body) = &body {
            request = request.json(body);
        }
        let work = Work { ident, doing: verb.doing, goal: verb.goal };
        let answer = carry_out(context, &client, work, request).await;
        tally.count(&client, ident, answer).await?;
    }
    tally.end()
}

pub(super) async fn pause(context: &CommandContext, args: Pause) -> Result<(), Failure> {
    let body = args.memory.map(|memory| json!({ "memory": memory.as_str() }));
    each(context, &args.sandboxes, PAUSE, body).await
}

pub(super) async fn rollback(context: &CommandContext, args: Rollback) -> Result<(), Failure> {
    each(context, &[args.sandbox], ROLLBACK, Some(json!({ "snapshot": args.snapshot }))).await
}

/// Brings archived ones back, or makes a new one from an archive.
pub(super) async fn restore(context: &CommandContext, args: Restore) -> Result<(), Failure> {
    let Some(key) = args.from else { return each(context, &args.sandboxes, RESTORE, None).await };
    let mut body = Map::from_iter([("archive".to_owned(), json!(key))]);
    body.extend(args.name.map(|name| ("name".to_owned(), json!(name))));
    let client = context.client()?;
    create::make(context, &client, &body, create::Wait::Yes, None).await
}

pub(super) async fn hold(context: &CommandContext, args: Hold) -> Result<(), Failure> {
    let client = context.client()?;
    let path = sandbox_path(&args.sandbox, "/hold");
    let answer = if args.release {
        client.delete(&path).await
    } else {
        let mut body = Map::from_iter([("for_s".to_owned(), json!(args.duration.whole()))]);
        body.extend(args.reason.map(|reason| ("reason".to_owned(), json!(reason))));
        client.post(&path, &body).await
    };
    one(context, &client, &args.sandbox, answer).await
}

pub(super) async fn extend(context: &CommandContext, args: Extend) -> Result<(), Failure> {
    let client = context.client()?;
    let body = json!({ "seconds": args.duration.whole() });
    let answer = client.post(&sandbox_path(&args.sandbox, "/extend"), &body).await;
    one(context, &client, &args.sandbox, answer).await
}

/// The answer of a verb that takes one sandbox.
pub(super) async fn one(
    context: &CommandContext,
    client: &Client,
    ident: &str,
    answer: Result<Value, Failure>,
) -> Result<(), Failure> {
    match answer {
        Ok(sandbox) if context.out.json => context.out.json(&sandbox),
        // What the user typed, so that output and input line up.
        Ok(_) => context.out.line(ident),
        Err(failure) => Err(suggest(client, ident, failure).await),
    }
}

/// Ends threads and says what became of their sandboxes.
pub(super) async fn thread(context: &CommandContext, Thread::End { threads }: Thread) -> Result<(), Failure> {
    let client = context.client()?;
    for thread in &threads {
        let ended = client.delete(&format!("/v1/threads/{}", segment(thread))).await?;
        if context.out.json {
            context.out.json(&ended)?;
            continue;
        }
        let sandboxes = items(ended);
        if sandboxes.is_empty() {
            context.out.tell(&format!("no sandbox is bound to {thread}"));
        }
        for sandbox in &sandboxes {
            context.out.line(&format!("{}  {}", text(sandbox, "id"), text(sandbox, "phase")))?;
        }
    }
    Ok(())
}

pub(super) async fn rm(context: &CommandContext, args: Rm) -> Result<(), Failure> {
    let client = context.client()?;
    let targets = if args.all {
        let found = list::every(&client, list::filter(&args.label), None).await?;
        let ids: Vec<String> = found.iter().map(|sandbox| text(sandbox, "id").to_owned()).collect();
        confirm(context, &args, ids.len())?;
        ids
    } else {
        args.sandboxes
    };
    let mut tally = Tally::new(context);
    for ident in &targets {
        context.out.status(&format!("deleting {ident} …"));
        let answer = client.delete(&sandbox_path(ident, "")).await;
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
        "add --force to delete them without a question",
    ))
}

pub(super) async fn signal(context: &CommandContext, args: Signal) -> Result<(), Failure> {
    let client = context.client()?;
    let path = sandbox_path(&args.sandbox, &format!("/processes/{}/signal", args.pid));
    match client.post(&path, &json!({ "signal": args.signal })).await {
        Ok(_) => Ok(()),
        Err(failure) => Err(suggest(&client, &args.sandbox, failure).await),
    }
}

/// Prints each result as it comes and remembers whether one failed.
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
        answer: Result<Value, Failure>,
    ) -> Result<(), Failure> {
        let out = self.context.out;
        match answer {
            Ok(sandbox) if out.json => out.json(&sandbox),
            // What the user typed, so that output and input line up.
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
