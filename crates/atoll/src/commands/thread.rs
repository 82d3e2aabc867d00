//! `atoll thread`: list, show, end.

use atoll_client::threads::Thread as ThreadAnswer;
use jiff::Timestamp;

use super::{CommandContext, list::or_dash, moment};
use crate::{
    cli::life::Thread,
    client::Client,
    failure::Failure,
    human::{Table, age, harmless},
};

pub(super) async fn thread(context: &CommandContext, command: Thread) -> Result<(), Failure> {
    let client = context.client()?;
    match command {
        Thread::Ls { quiet } => ls(context, &client, quiet).await,
        Thread::Show { thread } => {
            let found = client.thread(&thread).await?;
            if context.out.json {
                return context.out.json(&found);
            }
            page(&found, Timestamp::now()).iter().try_for_each(|line| context.out.line(line))
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

/// The page of one thread.
fn page(thread: &ThreadAnswer, now: Timestamp) -> Vec<String> {
    let sandbox = match (&thread.sandbox, &thread.phase) {
        (Some(id), Some(phase)) => format!("{id} ({})", phase.as_str()),
        (Some(id), None) => id.clone(),
        (None, _) => "none; the next create makes one".to_owned(),
    };
    let created = format!("{} ago", age(moment(thread.created_at.as_str()), now));
    let rows = [
        ("sandbox", sandbox.as_str()),
        ("provider", thread.provider.as_str()),
        ("tenant", thread.tenant.as_str()),
        ("created", created.as_str()),
    ];
    let rows = rows.iter().map(|(label, value)| format!("  {label:<9} {}", harmless(value)));
    std::iter::once(harmless(&thread.thread)).chain(rows).collect()
}

/// Ends threads and reports what happened to their sandboxes.
async fn end(context: &CommandContext, client: &Client, threads: &[String]) -> Result<(), Failure> {
    for thread in threads {
        // The server ends an unknown thread without an error, so that a call can be repeated. A person may have mistyped it.
        client.thread(thread).await?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_as_reviewed() {
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().expect("valid");
        let fields = serde_json::json!({
            "thread": "conversation-7", "tenant": "tnabcdefghijklmnopqr", "provider": "container",
            "sandbox": "abcdefghijklmnopqrst", "phase": "paused", "created_at": "2026-01-01T00:00:00Z",
        });
        let mut thread: ThreadAnswer = serde_json::from_value(fields).expect("a thread");
        insta::assert_snapshot!(page(&thread, now).join("\n"), @r"
        conversation-7
          sandbox   abcdefghijklmnopqrst (paused)
          provider  container
          tenant    tnabcdefghijklmnopqr
          created   1h ago
        ");
        (thread.sandbox, thread.phase) = (None, None);
        assert_eq!(page(&thread, now)[1], "  sandbox   none; the next create makes one");
    }
}
