//! `atoll top`: what sandboxes use. A live table on a terminal, once elsewhere.

use std::time::Duration;

use futures::{StreamExt, stream};
use serde_json::{Value, json};

use super::{CommandContext, list, sandbox_path, suggest, text};
use crate::{
    cli::sandbox::Top,
    client::Client,
    failure::Failure,
    human::{Table, bytes},
};

/// LIMIT: enough to hide the round trips, few enough to leave the server to others.
const ASK_AT_ONCE: usize = 16;

pub(super) async fn top(context: &CommandContext, args: Top) -> Result<(), Failure> {
    let client = context.client()?;
    let live = context.out.is_terminal() && !args.once && !context.out.json;
    loop {
        let uses = uses(&client, &args.sandboxes).await?;
        if context.out.json {
            return context.out.json(&uses);
        }
        let text = table(&uses).lines().join("\n");
        if !live {
            return context.out.line(&text);
        }
        context.out.line(&format!("\x1b[H\x1b[2J{text}"))?;
        tokio::time::sleep(Duration::from_secs_f64(args.interval.0.max(0.2))).await;
    }
}

async fn uses(client: &Client, wanted: &[String]) -> Result<Vec<Value>, Failure> {
    let sandboxes = if wanted.is_empty() {
        list::every(client, vec![("phase", "running,paused".to_owned())], None).await?
    } else {
        let mut found = Vec::new();
        for ident in wanted {
            match client.get(&sandbox_path(ident, "")).await {
                Ok(sandbox) => found.push(sandbox),
                Err(failure) => return Err(suggest(client, ident, failure).await),
            }
        }
        found
    };
    let asked = sandboxes.into_iter().map(|sandbox| async move {
        let sample = client.get(&sandbox_path(text(&sandbox, "id"), "/metrics")).await;
        // One that ended since the list was made uses nothing.
        json!({"sandbox": sandbox["id"], "name": sandbox["name"], "phase": sandbox["phase"],
               "held": sandbox["held"], "hold": sandbox["hold"],
               "memory_mib": sandbox["memory_mib"], "disk_mib": sandbox["disk_mib"], "pids": sandbox["pids"],
               "use": sample.unwrap_or(Value::Null)})
    });
    Ok(stream::iter(asked).buffered(ASK_AT_ONCE).collect().await)
}

fn table(uses: &[Value]) -> Table {
    let mut table = Table::new(&["ID", "NAME", "PHASE", "CPU %", "MEMORY", "OF", "DISK", "OF", "PIDS"]);
    for row in uses {
        let used = &row["use"];
        let size = |field: &str| used[field].as_u64().map_or_else(|| "-".to_owned(), bytes);
        let limit = |field: &str| row[field].as_u64().map_or_else(|| "-".to_owned(), |mib| bytes(mib << 20));
        table.row(vec![
            text(row, "sandbox").to_owned(),
            list::or_dash(text(row, "name")),
            list::phase(row),
            used["cpu_pct"].as_f64().map_or_else(|| "-".to_owned(), |pct| format!("{pct:.1}")),
            size("memory_bytes"),
            limit("memory_mib"),
            size("disk_bytes"),
            limit("disk_mib"),
            used["pids"].as_u64().map_or_else(|| "-".to_owned(), |pids| pids.to_string()),
        ]);
    }
    table
}
