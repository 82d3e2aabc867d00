//! The list of sessions that Leon's page reads.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::Options;
use crate::report::{Bar, Report};
use crate::server::{self, Server};
use crate::stats::Samples;

const SESSIONS: usize = 500;

/// Lists sandboxes in threads, in turn at all providers of the server.
pub(crate) fn measure(options: &Options, place: &Path, report: &mut Report) -> Result<()> {
    let server = Server::start(options, place, 0)?;
    let mut client = server.client()?;
    let providers = client.get("/v1/providers")?.json()?;
    let providers = providers["items"].as_array().context("no providers")?.clone();
    let mut ids = Vec::new();
    for n in 0..SESSIONS {
        let provider = &providers[n % providers.len()]["name"];
        let body = json!({ "template": server::TEMPLATE, "provider": provider, "thread": format!("talk-{n}"),
            "memory_mib": 32, "pids": 16, "network": "deny-all" });
        let made = client.post("/v1/sandboxes", &body)?.json()?;
        ids.push(made["id"].as_str().with_context(|| format!("no id in {made}"))?.to_owned());
    }
    let mut samples = Samples::default();
    for _ in 0..if options.quick { 20 } else { 100 } {
        let begin = Instant::now();
        let answer = client.get("/api/sandbox/sessions")?;
        samples.add(begin.elapsed());
        let count = answer.json()?["sessions"].as_array().map_or(0, Vec::len);
        ensure!(count == SESSIONS, "{count} sessions");
    }
    let name = format!("list of {SESSIONS} sessions of {} provider(s)", providers.len());
    report.row(&name, &samples, Some(Bar::Latency { p50_ms: 20.0, p99_ms: None }));
    ids.iter().try_for_each(|id| server::delete(&mut client, id))
}
