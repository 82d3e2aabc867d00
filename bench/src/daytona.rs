//! The Daytona front through the official Python SDK, in one process; beside it the same program against a server that does
//! nothing, which is the SDK's own share.

use std::path::Path;

use anyhow::Result;

use crate::Options;
use crate::nothing;
use crate::report::{Bar, Report};
use crate::sdk::{self, Timed};
use crate::server::Server;

mod answers;

const TEN_MB: f64 = 10.0;

pub(crate) fn measure(options: &Options, place: &Path, report: &mut Report) -> Result<()> {
    let Some(python) = sdk::python("get-daytona-sdk") else {
        report.note("Daytona: its SDK cannot be had (scripts/get-daytona-sdk says why)");
        return Ok(());
    };
    let rounds = if options.quick { 40 } else { 200 };
    let take = |api: &str, key: &str, more: &[(&str, &str)]| {
        let env = [&[("DAYTONA_API_URL", api), ("DAYTONA_API_KEY", key)], more].concat();
        Timed::take(&python, include_str!("daytona/probe.py"), place, rounds, &env)
    };
    let nothing = nothing::serve(answers::answer)?;
    let alone = take(&format!("{nothing}/api"), "dtn_none", &[("NOTHING", "1")])?;
    let server = Server::start(options, place, 8)?;
    let (address, key) = server.address();
    let here = take(&format!("http://{address}/daytona/api"), &key, &[])?;
    rows(&here, &alone, report);
    Ok(())
}

fn rows(here: &Timed, alone: &Timed, report: &mut Report) {
    for (row, name, p50_ms) in
        [("create", "create() + process.exec(\"echo hi\")", 40.0), ("exec", "process.exec(\"echo hi\")", 8.0)]
    {
        let bar = Bar::Latency { p50_ms, p99_ms: None };
        report.row(&format!("Daytona: {name}"), &here.samples(row), Some(bar));
        report.row(&format!("Daytona: {name}, the SDK alone"), &alone.samples(row), None);
    }
    let bar = Bar::Latency { p50_ms: 20.0, p99_ms: None };
    report.row("Daytona: a wait ends after the change, by the socket", &here.samples("wait"), Some(bar));
    for (row, name) in [("upload", "fs.upload_file of 10 MB"), ("download", "fs.download_file of 10 MB")] {
        let (here, alone) = (here.samples(row).p50(), alone.samples(row).p50());
        report.figure(&format!("Daytona: {name}"), TEN_MB / here * 1_000.0, "MB/s", None);
        let of = format!("Daytona: {name}, share of the SDK against a server that does nothing");
        report.figure(&of, alone / here * 100.0, "%", Some(Bar::AtLeast(60.0)));
    }
}
