//! The list of sessions that Leon's page reads.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::Options;
use crate::docker;
use crate::peers;
use crate::report::{Bar, Report};
use crate::server::{self, Server};
use crate::stats::Samples;

const SESSIONS: usize = 500;

/// Lists sandboxes in threads, in turn at `container`, `local` and, where Docker is installed, `docker`.
pub(crate) fn measure(options: &Options, place: &Path, rootfs: &Path, report: &mut Report) -> Result<()> {
    let home = place.join("docker-sessions");
    let docker = peers::start_docker(&home).ok();
    let settings = match &docker {
        Some(docker) => {
            peers::import(docker.command(), rootfs)?;
            Some(docker::write_settings(place, &home)?)
        }
        None => None,
    };
    let server = Server::start_with(options, place, 0, &[("ATOLL_ALLOW_LOCAL", "true")])?;
    let listed = list(&server, if options.quick { 20 } else { 100 });
    // The rows that follow know no such provider.
    settings.map_or(Ok(()), std::fs::remove_file)?;
    drop(server);
    let (providers, samples) = listed?;
    let name = format!("list of {SESSIONS} sessions of {providers} provider(s)");
    report.row(&name, &samples, Some(Bar::Latency { p50_ms: 20.0, p99_ms: None }));
    Ok(())
}

/// How many providers the sessions are at, and how long their list takes.
fn list(server: &Server, rounds: usize) -> Result<(usize, Samples)> {
    let mut client = server.client()?;
    let providers = client.get("/v1/providers")?.json()?;
    let providers = providers["items"].as_array().context("no providers")?.clone();
    let mut ids = Vec::new();
    for n in 0..SESSIONS {
        let provider = &providers[n % providers.len()]["name"];
        let body =
            json!({ "provider": provider, "thread": format!("talk-{n}"), "memory_mib": 32, "pids": 64 });
        let made = client.post("/v1/sandboxes", &body)?.json()?;
        ids.push(made["id"].as_str().with_context(|| format!("no id in {made}"))?.to_owned());
    }
    let mut samples = Samples::default();
    for _ in 0..rounds {
        let begin = Instant::now();
        let answer = client.get("/api/sandbox/sessions")?;
        samples.add(begin.elapsed());
        let count = answer.json()?["sessions"].as_array().map_or(0, Vec::len);
        ensure!(count == SESSIONS, "{count} sessions");
    }
    ids.iter().try_for_each(|id| server::delete(&mut client, id))?;
    Ok((providers.len(), samples))
}
