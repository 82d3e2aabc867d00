//! `atoll start|stop|restart|rm|signal`. Several targets go on past a failure; the exit status tells.

use reqwest::Method;
use serde_json::{Value, json};

use super::{Context, list, sandbox_path, suggest, text};
use crate::{
    cli::sandbox::{Rm, Signal, Targets},
    client::Client,
    failure::Failure,
};

/// `start`, `stop` or `restart` each target.
pub(super) async fn each(context: &Context, args: Targets, verb: &str) -> Result<(), Failure> {
    let client = context.client()?;
    let mut tally = Tally::new(context);
    for ident in &args.sandboxes {
        context.out.status(&format!("{verb} {ident} …"));
        let request = client.request(Method::POST, &sandbox_path(ident, &format!("/{verb}")));
        let answer = client.json(request).await;
        context.out.status_done();
        tally.count(&client, ident, answer).await?;
    }
    tally.end()
}

pub(super) async fn rm(context: &Context, args: Rm) -> Result<(), Failure> {
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

fn confirm(context: &Context, args: &Rm, count: usize) -> Result<(), Failure> {
    if args.force || count == 0 || context.out.ask(&format!("Delete {count} sandboxes with their files?")) {
        return Ok(());
    }
    Err(Failure::usage(
        format!("{count} sandboxes were not deleted"),
        "add --force to delete them without a question",
    ))
}

pub(super) async fn signal(context: &Context, args: Signal) -> Result<(), Failure> {
    let client = context.client()?;
    let path = sandbox_path(&args.sandbox, &format!("/processes/{}/signal", args.pid));
    match client.post(&path, &json!({ "signal": args.signal })).await {
        Ok(_) => Ok(()),
        Err(failure) => Err(suggest(&client, &args.sandbox, failure).await),
    }
}

/// Prints each result as it comes and remembers whether one failed.
struct Tally<'a> {
    context: &'a Context,
    failed: u32,
}

impl<'a> Tally<'a> {
    fn new(context: &'a Context) -> Self {
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
