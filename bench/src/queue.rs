//! The queue of a full server: how soon a queued create has the place that became free.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::Options;
use crate::http::Client;
use crate::report::{Bar, Report};
use crate::server::{self, Server};
use crate::stats::Samples;

/// Creates that wait behind the measured one.
const BEHIND: usize = 20;

/// A server with one place. Each round deletes the sandbox that has it, and the next queued create gets it.
pub(crate) fn measure(options: &Options, place: &Path, report: &mut Report) -> Result<()> {
    let server = Server::start_with(options, place, 0, &[("ATOLL_LIVE_MAX", "1")])?;
    let mut client = server.client()?;
    let mut running = server::create(&mut client)?;
    let mut queued = Vec::new();
    for _ in 0..BEHIND {
        queued.push(enqueue(&mut client)?);
    }
    let (mut begun, mut runs) = (Samples::default(), Samples::default());
    for _ in 0..if options.quick { 20 } else { 100 } {
        queued.push(enqueue(&mut client)?);
        let next = queued.remove(0);
        let begin = Instant::now();
        client.delete(&format!("/v1/sandboxes/{running}?wait=0"))?;
        until_running(&mut client, &next)?;
        runs.add(begin.elapsed());
        let free = at(&mut client, &running, |event| event["to"] == "deleting")?;
        let boots = at(&mut client, &next, |event| event["stage"] == "booting")?;
        begun.add(Duration::try_from(boots.duration_since(free)).unwrap_or_default());
        running = next;
    }
    let name = format!("a place is free → the next queued create starts ({BEHIND} more wait)");
    report.row(&name, &begun, Some(Bar::Latency { p50_ms: 20.0, p99_ms: Some(20.0) }));
    report.row("delete is sent → the next queued create runs, cold", &runs, None);
    queued.iter().chain([&running]).try_for_each(|id| server::delete(&mut client, id))
}

fn enqueue(client: &mut Client) -> Result<String> {
    let body =
        json!({ "template": server::TEMPLATE, "memory_mib": 64, "network": "deny-all", "queue": true });
    let made = client.post("/v1/sandboxes?wait=0", &body)?.json()?;
    Ok(made["id"].as_str().with_context(|| format!("no id in {made}"))?.to_owned())
}

fn until_running(client: &mut Client, id: &str) -> Result<()> {
    loop {
        let found = client.get(&format!("/v1/sandboxes/{id}"))?.json()?;
        if found["phase"] == "running" {
            return Ok(());
        }
        anyhow::ensure!(found["phase"] == "creating", "{found}");
    }
}

/// When the server recorded an event, in whole milliseconds.
fn at(client: &mut Client, id: &str, is: impl Fn(&Value) -> bool) -> Result<Timestamp> {
    let events = client.get(&format!("/v1/events?sandbox={id}&after=0"))?.json()?;
    let found = events["items"].as_array().into_iter().flatten().find(|event| is(event));
    let text = found.and_then(|event| event["at"].as_str()).context("no such event")?;
    Ok(text.parse()?)
}
