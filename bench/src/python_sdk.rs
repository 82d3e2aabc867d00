//! The Python SDK beside the same calls by raw HTTP, in one process, and the time that its import takes.

use std::path::Path;

use anyhow::Result;

use crate::Options;
use crate::report::{Bar, Report};
use crate::sdk::{self, Timed};
use crate::server::Server;

pub(crate) fn measure(options: &Options, place: &Path, report: &mut Report) -> Result<()> {
    let Some(python) = sdk::python("get-python-sdk-deps") else {
        report.note("Python SDK: its dependencies cannot be had (scripts/get-python-sdk-deps says why)");
        return Ok(());
    };
    let rounds = if options.quick { 40 } else { 200 };
    let server = Server::start(options, place, 8)?;
    let (address, key) = server.address();
    let url = format!("http://{address}");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../sdk/python/src");
    let env = [("ATOLL_URL", url.as_str()), ("ATOLL_API_KEY", key.as_str()), ("PYTHONPATH", source)];
    let timed = Timed::take(&python, include_str!("python_sdk/probe.py"), place, rounds, &env)?;
    let (sdk, raw) = (timed.samples("sdk"), timed.samples("raw"));
    let share = sdk.p50() / raw.p50();
    report.row("Python SDK: sandboxes.create() + commands.run(\"echo hi\")", &sdk, None);
    report.row("Python SDK: the same two calls by httpx", &raw, None);
    report.figure("Python SDK: share of raw HTTP, by p50", share, "×", Some(Bar::AtMost(1.25)));
    let bar = Bar::Latency { p50_ms: 150.0, p99_ms: None };
    report.row("Python SDK: from atoll_sandbox import Atoll", &timed.samples("import"), Some(bar));
    Ok(())
}
