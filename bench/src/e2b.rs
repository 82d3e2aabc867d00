//! The E2B front through the official Python SDK, in one process; beside it the same program against a server that does
//! nothing, which is the SDK's own share.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use crate::Options;
use crate::report::{Bar, Report};
use crate::sdk::Timed;
use crate::server::{self, Server};
use crate::{nothing, sdk};

mod answers;

/// The kernel and charts; what `code-interpreter` is in the tests too.
pub(crate) const INTERPRETER: &str = "code-interpreter-slim";
const TEN_MB: f64 = 10.0;
/// Until every kernel that waits in the pool has been started.
const WARM_UP: Duration = Duration::from_secs(10);

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
    let server = Server::start_with(options, place, 8, &[("ATOLL_WARM_KERNELS", "4")])?;
    std::thread::sleep(WARM_UP);
    let (address, key) = server.address();
    let origin = format!("http://{address}");
    let here = take(&format!("{origin}/e2b"), &origin, &key)?;
    rows(&here, &alone, report);
    Ok(())
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
    for (row, name) in [("write", "files.write of 10 MB to a new file"), ("read", "files.read of 10 MB")] {
        let (here, alone) = (here.samples(row).p50(), alone.samples(row).p50());
        report.figure(&format!("E2B: {name}"), TEN_MB / here * 1_000.0, "MB/s", None);
        let of = format!("E2B: {name}, share of the SDK against a server that does nothing");
        report.figure(&of, alone / here * 100.0, "%", Some(Bar::AtLeast(60.0)));
    }
}
