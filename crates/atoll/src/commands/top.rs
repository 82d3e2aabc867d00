//! `atoll top`: shows the resource use of sandboxes. A live table on a terminal, once elsewhere.

use std::time::Duration;

use atoll_client::{
    client::Answer,
    metrics::Sample,
    sandboxes::{ListQuery, Sandbox},
};
use futures::{StreamExt, stream};
use serde_json::json;

use super::{CommandContext, list, suggest};
use crate::{
    cli::sandbox::Top,
    client::Client,
    failure::Failure,
    human::{Table, bytes},
};

/// LIMIT: enough to hide the round trips, few enough not to load the server.
const ASK_AT_ONCE: usize = 16;

pub(super) async fn top(context: &CommandContext, args: Top) -> Result<(), Failure> {
    let client = context.client()?;
    let live = context.out.is_terminal() && !args.once && !context.out.json;
    loop {
        let uses = uses(&client, &args.sandboxes).await?;
        if context.out.json {
            return context.out.json(&uses.iter().map(as_json).collect::<Vec<_>>());
        }
        let text = table(&uses).lines().join("\n");
        if !live {
            return context.out.line(&text);
        }
        context.out.line(&format!("\x1b[H\x1b[2J{text}"))?;
        tokio::time::sleep(Duration::from_secs_f64(args.interval.0.max(0.2))).await;
    }
}

/// A sandbox and its resource use; `None` if it ended since the list was made.
type Usage = (Answer<Sandbox>, Option<Answer<Sample>>);

async fn uses(client: &Client, wanted: &[String]) -> Result<Vec<Usage>, Failure> {
    let sandboxes: Vec<Answer<Sandbox>> = if wanted.is_empty() {
        let query = ListQuery { phase: Some("running,paused".to_owned()), ..ListQuery::default() };
        client.sandboxes(&query, None).await?.into_answers().collect()
    } else {
        let mut found = Vec::new();
        for ident in wanted {
            match client.sandbox(ident).await {
                Ok(sandbox) => found.push(sandbox),
                Err(failure) => return Err(suggest(client, ident, failure).await),
            }
        }
        found
    };
    let asked = sandboxes.into_iter().map(|sandbox| async move {
        let sample = client.metrics(&sandbox.id).await.ok();
        (sandbox, sample)
    });
    Ok(stream::iter(asked).buffered(ASK_AT_ONCE).collect().await)
}

fn as_json((sandbox, sample): &Usage) -> impl serde::Serialize + use<> {
    json!({"sandbox": sandbox.id, "name": sandbox.name, "phase": sandbox.phase.as_str(), "held": sandbox.held,
        "hold": sandbox.hold, "memory_mib": sandbox.memory_mib, "disk_mib": sandbox.disk_mib,
        "pids": sandbox.pids, "use": sample})
}

fn table(uses: &[Usage]) -> Table {
    let mut table = Table::new(&["ID", "NAME", "PHASE", "CPU %", "MEMORY", "OF", "DISK", "OF", "PIDS"]);
    let dash = || "-".to_owned();
    for (sandbox, sample) in uses {
        let used = sample.as_deref();
        let limit = |mib: u32| bytes(u64::from(mib) << 20);
        table.row(vec![
            sandbox.id.clone(),
            list::or_dash(sandbox.name.as_deref().unwrap_or("")),
            list::phase(sandbox),
            used.map_or_else(dash, |used| format!("{:.1}", used.cpu_pct)),
            used.map_or_else(dash, |used| bytes(used.memory_bytes)),
            limit(sandbox.memory_mib),
            used.and_then(|used| used.disk_bytes).map_or_else(dash, bytes),
            limit(sandbox.disk_mib),
            used.map_or_else(dash, |used| used.pids.to_string()),
        ]);
    }
    table
}
