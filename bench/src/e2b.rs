//! The E2B front through the official Python SDK, in one process; beside it the same program against a server that does
//! nothing, which is the SDK's own share.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde_json::json;

use crate::Options;
use crate::report::{Bar, Report};
use crate::sdk::Timed;
use crate::server::{self, Server};
use crate::{nothing, sdk};

mod answers;

/// The kernel and charts; what `code-interpreter` is in the tests too.
const INTERPRETER: &str = "code-interpreter-slim";
const TEN_MB: f64 = 10.0;

pub(crate) fn measure(options: &Options, place: &Path, report: &mut Report) -> Result<()> {
    let Some(python) = sdk::python("get-e2b-sdk") else {
        report.note("E2B: its SDK cannot be had (scripts/get-e2b-sdk says why)");
        return Ok(());
    };
    server::make_template(place, INTERPRETER)?;
    let rounds = if options.quick { 40 } else { 200 };
    let take = |api: &str, door: &str, key: &str| {
        let env = [("E2B_API_URL", api), ("E2B_SANDBOX_URL", door), ("E2B_API_KEY", key)];
        Timed::take(&python, include_str!("e2b/probe.py"), place, rounds, &env)
    };
    let nothing = nothing::serve(answers::answer)?;
    let alone = take(&nothing, &nothing, "e2b_none")?;
    let server = Server::start(options, place, 8)?;
    warm_kernels(&server, 4)?;
    let (address, key) = server.address();
    let origin = format!("http://{address}");
    let here = take(&format!("{origin}/e2b"), &origin, &key)?;
    rows(&here, &alone, report);
    Ok(())
}

/// Keeps instances of the interpreter's template ready and waits until the last has its kernel.
fn warm_kernels(server: &Server, pool: u32) -> Result<()> {
    let mut client = server.client()?;
    client.patch(&format!("/v1/templates/{INTERPRETER}"), &json!({ "pool": pool }))?.json()?;
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(60) {
        let shown = client.get(&format!("/v1/templates/{INTERPRETER}"))?.json()?;
        if shown["pooled"].as_u64() >= Some(u64::from(pool)) {
            std::thread::sleep(Duration::from_secs(2));
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    bail!("no warm instances of {INTERPRETER} within a minute")
}

fn rows(here: &Timed, alone: &Timed, report: &mut Report) {
    let bars = [
        ("create", "Sandbox.create() + commands.run(\"echo hi\")", Some(15.0)),
        ("run", "commands.run(\"echo hi\")", Some(6.0)),
        ("first_code", "the first run_code(\"1+1\") in a fresh sandbox", Some(150.0)),
        ("code", "run_code(\"1+1\") in a warm context", Some(8.0)),
    ];
    for (row, name, p50_ms) in bars {
        let bar = p50_ms.map(|p50_ms| Bar::Latency { p50_ms, p99_ms: None });
        report.row(&format!("E2B: {name}"), &here.samples(row), bar);
        report.row(&format!("E2B: {name}, the SDK alone"), &alone.samples(row), None);
    }
    for (row, name) in [("write", "files.write of 10 MB"), ("read", "files.read of 10 MB")] {
        let (here, alone) = (here.samples(row).p50(), alone.samples(row).p50());
        report.figure(&format!("E2B: {name}"), TEN_MB / here * 1_000.0, "MB/s", None);
        let of = format!("E2B: {name}, share of the SDK against a server that does nothing");
        report.figure(&of, alone / here * 100.0, "%", Some(Bar::AtLeast(60.0)));
    }
}
