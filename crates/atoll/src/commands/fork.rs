//! `atoll fork`: creates sandboxes from a live one; prints their ids on stdout, and what was not granted on stderr.

use atoll_client::sandboxes::ForkBody;

use super::{CommandContext, create, suggest};
use crate::{cli::life::Fork, failure::Failure};

pub(super) async fn fork(context: &CommandContext, args: Fork) -> Result<(), Failure> {
    let client = context.client()?;
    context.out.status(&format!("forking {} …", args.sandbox));
    let answer = client.fork(&args.sandbox, &body(&args)).await;
    context.out.status_done();
    let forked = match answer {
        Ok(forked) => forked,
        Err(failure) => return Err(suggest(&client, &args.sandbox, failure).await),
    };
    if context.out.json {
        return context.out.json(&forked);
    }
    if let Some(why) = &forked.memory_refused {
        context.out.say(&format!("atoll: files only, without processes: {why}"));
    }
    forked.sandboxes.iter().try_for_each(|child| context.out.line(&child.id))
}

fn body(args: &Fork) -> ForkBody {
    ForkBody {
        count: args.count,
        memory: args.memory,
        labels: (!args.label.is_empty()).then(|| create::pairs(&args.label)),
        timeout_s: args.timeout.map(|v| v.whole()),
    }
}
