//! `atoll thread`: list, show, end.

use jiff::Timestamp;

use super::{CommandContext, list::or_dash, moment, pretty};
use crate::{
    cli::life::Thread,
    client::Client,
    failure::Failure,
    human::{Table, age},
};

pub(super) async fn thread(context: &CommandContext, command: Thread) -> Result<(), Failure> {
    let client = context.client()?;
    match command {
        Thread::Ls { quiet } => ls(context, &client, quiet).await,
        Thread::Show { thread } => {
            let found = client.thread(&thread).await?;
            if context.out.json { context.out.json(&found) } else { context.out.line(&pretty(&found)) }
        }
        Thread::End { threads } => end(context, &client, &threads).await,
    }
}

async fn ls(context: &CommandContext, client: &Client, quiet: bool) -> Result<(), Failure> {
    let (out, found) = (context.out, client.threads(None).await?);
    if quiet {
        return found.items.iter().try_for_each(|thread| out.line(&thread.thread));
    }
    if out.json {
        return out.json(&found);
    }
    let mut table = Table::new(&["THREAD", "PROVIDER", "SANDBOX", "PHASE", "AGE"]);
    for thread in &found.items {
        table.row(vec![
            thread.thread.clone(),
            thread.provider.clone(),
            or_dash(thread.sandbox.as_deref().unwrap_or("")),
            thread.phase.as_ref().map_or_else(|| "-".to_owned(), |phase| phase.as_str().to_owned()),
            age(moment(thread.created_at.as_str()), Timestamp::now()),
        ]);
    }
    table.lines().iter().try_for_each(|line| out.line(line))?;
    if found.items.is_empty() {
        out.tell("there are no threads; `atoll create --thread NAME` binds one");
    }
    Ok(())
}

/// Ends threads and reports what happened to their sandboxes.
async fn end(context: &CommandContext, client: &Client, threads: &[String]) -> Result<(), Failure> {
    for thread in threads {
        let ended = client.end_thread(thread).await?;
        if context.out.json {
            context.out.json(&ended)?;
            continue;
        }
        if ended.items.is_empty() {
            context.out.tell(&format!("no sandbox is bound to {thread}"));
        }
        for sandbox in &ended.items {
            context.out.line(&format!("{}  {}", sandbox.id, sandbox.phase.as_str()))?;
        }
    }
    Ok(())
}
