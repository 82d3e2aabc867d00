//! The E2B front through the official Python SDK, in one process; beside it the same program against a server that does
//! nothing, which is the SDK's own share.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::Options;
use crate::report::{Bar, Report};
use crate::server::{self, Server};
use crate::stats::Samples;

mod nothing;

/// The kernel and charts; what `code-interpreter` is in the tests too.
const INTERPRETER: &str = "code-interpreter-slim";
const TEN_MB: f64 = 10.0;

pub(crate) fn measure(options: &Options, place: &Path, report: &mut Report) -> Result<()> {
    let Some(python) = sdk() else {
        report.note("E2B: its SDK cannot be had (scripts/get-e2b-sdk says why)");
        return Ok(());
    };
    server::make_template(place, INTERPRETER)?;
    let rounds = if options.quick { 40 } else { 200 };
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let nothing = format!("http://{}", listener.local_addr()?);
    nothing::serve(listener);
    let alone = Timed::take(&python, place, rounds, &nothing, &nothing, "e2b_none")?;
    let server = Server::start(options, place, 8)?;
    warm_kernels(&server, 4)?;
    let (address, key) = server.address();
    let origin = format!("http://{address}");
    let here = Timed::take(&python, place, rounds, &format!("{origin}/e2b"), &origin, &key)?;
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

/// Milliseconds by row.
struct Timed(Value);

impl Timed {
    fn take(python: &Path, place: &Path, rounds: u32, api: &str, door: &str, key: &str) -> Result<Self> {
        let program = place.join("probe.py");
        std::fs::write(&program, include_str!("e2b/probe.py"))?;
        let ran = Command::new(python)
            .arg(&program)
            .arg(rounds.to_string())
            .env("E2B_API_URL", api)
            .env("E2B_SANDBOX_URL", door)
            .env("E2B_API_KEY", key)
            .output()
            .context("cannot run the SDK's python")?;
        if !ran.status.success() {
            bail!("the probe failed: {}", String::from_utf8_lossy(&ran.stderr));
        }
        Ok(Self(serde_json::from_slice(&ran.stdout).context("the probe's figures")?))
    }

    fn samples(&self, row: &str) -> Samples {
        let mut samples = Samples::default();
        for ms in self.0[row].as_array().into_iter().flatten().filter_map(Value::as_f64) {
            samples.add(Duration::from_secs_f64(ms / 1_000.0));
        }
        samples
    }
}

/// The SDK's python, if it can be had.
fn sdk() -> Option<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/get-e2b-sdk");
    let got = Command::new(script).arg("python").output().ok()?;
    got.status.success().then(|| String::from_utf8_lossy(&got.stdout).trim().into())
}
