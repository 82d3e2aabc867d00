//! `atoll ls` and `atoll ps`: tables for people, ids with `-q`, arrays with `--json`.

use jiff::Timestamp;
use serde_json::Value;

use super::{CommandContext, items, moment, sandbox_path, suggest, text};
use crate::{
    cli::{
        sandbox::{Ls, Target},
        values::Pair,
    },
    client::Client,
    failure::Failure,
    human::{Table, age, bytes, left},
};

pub(super) async fn ls(context: &CommandContext, args: Ls) -> Result<(), Failure> {
    let client = context.client()?;
    let mut query = filter(&args.label);
    // Without a phase the server lists all that are not deleted.
    if !args.phase.is_empty() {
        query.push(("phase", args.phase.join(",")));
    }
    if args.all {
        query.push(("all", "1".to_owned()));
    }
    if let Some(template) = args.template {
        query.push(("template", template));
    }
    let sandboxes = every(&client, query, args.limit).await?;
    let out = context.out;
    if args.quiet {
        return sandboxes.iter().try_for_each(|sandbox| out.line(text(sandbox, "id")));
    }
    if out.json {
        return out.json(&sandboxes);
    }
    for line in table(&sandboxes, Timestamp::now()).lines() {
        out.line(&line)?;
    }
    if sandboxes.is_empty() {
        out.tell("there is none; `atoll create` makes a sandbox");
    }
    Ok(())
}

/// The label part of a query.
pub(super) fn filter(labels: &[Pair]) -> Vec<(&'static str, String)> {
    labels.iter().map(|Pair(key, value)| ("label", format!("{key}={value}"))).collect()
}

/// All sandboxes, or the first `limit`.
pub(super) async fn every(
    client: &Client,
    query: Vec<(&'static str, String)>,
    limit: Option<u32>,
) -> Result<Vec<Value>, Failure> {
    pages(client, "/v1/sandboxes", query, limit).await
}

/// All pages of a list, or the first `limit` items.
pub(super) async fn pages(
    client: &Client,
    path: &str,
    query: Vec<(&'static str, String)>,
    limit: Option<u32>,
) -> Result<Vec<Value>, Failure> {
    let wanted = limit.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX));
    let mut all = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let mut page = query.clone();
        page.push(("limit", (wanted - all.len()).min(PAGE).to_string()));
        page.extend(cursor.take().map(|cursor| ("cursor", cursor)));
        let answer = client.get_query(path, &page).await?;
        cursor = answer["next_cursor"].as_str().map(str::to_owned);
        let found = items(answer);
        let empty = found.is_empty();
        all.extend(found);
        // An empty page with a cursor would be a server that goes round in circles.
        if cursor.is_none() || empty || all.len() >= wanted {
            return Ok(all);
        }
    }
}

const PAGE: usize = 100;

fn table(sandboxes: &[Value], now: Timestamp) -> Table {
    let mut table = Table::new(&["ID", "NAME", "TEMPLATE", "PHASE", "CPU", "MEMORY", "AGE", "LEFT"]);
    for sandbox in sandboxes {
        let mib = sandbox["memory_mib"].as_u64().unwrap_or(0);
        table.row(vec![
            text(sandbox, "id").to_owned(),
            or_dash(text(sandbox, "name")),
            text(sandbox, "template").to_owned(),
            phase(sandbox),
            sandbox["cpu"].as_f64().map_or_else(|| "-".to_owned(), |cpu| cpu.to_string()),
            bytes(mib << 20),
            age(moment(sandbox, "created_at"), now),
            if counts_down(sandbox) { left(moment(sandbox, "timeout_at"), now) } else { or_dash("") },
        ]);
    }
    table
}

/// Whether its lifetime runs: that of what is gone does not, nor that of a sleeper whose lifetime counts only awake.
pub(super) fn counts_down(sandbox: &Value) -> bool {
    match text(sandbox, "phase") {
        "deleting" | "deleted" => false,
        "paused" | "stopped" | "archived" => text(sandbox, "timeout_counts") != "awake",
        _ => true,
    }
}

/// The phase, and where the memory of a paused one is, or that it is held awake.
pub(super) fn phase(sandbox: &Value) -> String {
    let phase = text(sandbox, "phase");
    match phase {
        "paused" if text(sandbox, "held") == "disk" => "paused (disk)".to_owned(),
        "running" if is_held(sandbox) => "running (held)".to_owned(),
        other => other.to_owned(),
    }
}

/// Whether a hold is in force; one that is over may still be written down.
fn is_held(sandbox: &Value) -> bool {
    moment(&sandbox["hold"], "until").is_some_and(|until| until > Timestamp::now())
}

pub(super) fn or_dash(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { text.to_owned() }
}

pub(super) async fn ps(context: &CommandContext, args: Target) -> Result<(), Failure> {
    let client = context.client()?;
    let answer = match client.get(&sandbox_path(&args.sandbox, "/processes")).await {
        Ok(answer) => answer,
        Err(failure) => return Err(suggest(&client, &args.sandbox, failure).await),
    };
    let processes = items(answer);
    if context.out.json {
        return context.out.json(&processes);
    }
    let now = Timestamp::now();
    let mut table = Table::new(&["PID", "USER", "AGE", "TERMINAL", "COMMAND"]);
    for process in &processes {
        let argv: Vec<&str> =
            process["argv"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let has_terminal = ["pty", "terminal"].iter().any(|field| process[*field].as_bool() == Some(true));
        table.row(vec![
            process["pid"].to_string(),
            or_dash(text(process, "user")),
            age(moment(process, "started_at"), now),
            if has_terminal { "yes" } else { "-" }.to_owned(),
            kernel(text(process, "tag")).unwrap_or_else(|| argv.join(" ")),
        ]);
    }
    table.lines().iter().try_for_each(|line| context.out.line(line))
}

/// What a process of the code interpreter is, by the tag that its kernels have; their command lines tell nobody anything.
fn kernel(tag: &str) -> Option<String> {
    let kind = tag.strip_prefix("atoll-context/")?;
    let (language, waits) = match kind.strip_prefix("warm/") {
        Some(language) => (language, ", waiting for its first code"),
        None => (kind.split('/').next().unwrap_or(kind), ""),
    };
    Some(format!("code interpreter ({language}{waits})"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_kernel_is_told_by_its_language() {
        assert_eq!(kernel("atoll-context/python/abc").as_deref(), Some("code interpreter (python)"));
        let waiting = "code interpreter (python, waiting for its first code)";
        assert_eq!(kernel("atoll-context/warm/python").as_deref(), Some(waiting));
        assert_eq!(kernel("web"), None);
    }

    #[test]
    fn a_lifetime_that_stands_still_has_nothing_left_to_show() {
        let of = |phase: &str, counts: &str| json!({"phase": phase, "timeout_counts": counts});
        for (phase, counts, wanted) in [
            ("running", "awake", true),
            ("paused", "always", true),
            ("paused", "awake", false),
            ("archived", "awake", false),
            ("failed", "awake", true),
            ("deleted", "always", false),
        ] {
            assert_eq!(counts_down(&of(phase, counts)), wanted, "{phase} {counts}");
        }
        // An older server does not say it.
        assert!(counts_down(&json!({"phase": "paused"})));
    }

    #[test]
    fn the_table_is_as_reviewed() {
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().expect("valid");
        let sandboxes = [
            json!({"id": "abcdefghijklmnopqrst", "name": "box", "template": "debian", "phase": "running", "cpu": 0.5,
                   "memory_mib": 512, "created_at": "2026-01-01T00:00:00Z", "timeout_at": "2026-01-01T01:05:00Z"}),
            json!({"id": "bbcdefghijklmnopqrst", "name": null, "template": "host", "phase": "stopped", "cpu": 2.0,
                   "memory_mib": 2048, "created_at": "2026-01-01T00:59:50Z", "timeout_at": null}),
            json!({"id": "cbcdefghijklmnopqrst", "name": "nap", "template": "host", "phase": "paused", "held": "disk",
                   "cpu": 1.0, "memory_mib": 512, "created_at": "2026-01-01T00:00:00Z", "timeout_at": null}),
        ];
        insta::assert_snapshot!(table(&sandboxes, now).lines().join("\n"), @r"
        ID                    NAME  TEMPLATE  PHASE          CPU  MEMORY   AGE  LEFT
        abcdefghijklmnopqrst  box   debian    running        0.5  512 MiB  1h   5m
        bbcdefghijklmnopqrst  -     host      stopped        2    2 GiB    10s  -
        cbcdefghijklmnopqrst  nap   host      paused (disk)  1    512 MiB  1h   -
        ");
    }
}
