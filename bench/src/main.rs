//! Measures the bars of DESIGN §8 beside the peers a user would pick.
//!
//! Everything runs inside a network namespace of its own, so that the firewall rules of other engines stay there.
//! Ratios are taken within one run on one machine; the first thing timed is the machine itself.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark talks to the terminal")]

mod app;
mod daytona;
mod density;
mod docker;
mod e2b;
mod egress;
mod http;
mod images;
mod latency;
mod layout;
mod life;
mod mcp;
mod noise;
mod nothing;
mod parts;
mod peers;
mod previews;
mod python_sdk;
mod queue;
mod remote;
mod report;
mod sdk;
mod sdk_typescript;
mod server;
mod sessions;
mod soak;
mod stats;
mod transfer;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Parser;

use crate::parts::Part;
use crate::report::Report;

/// Prints and writes the figures.
#[derive(Debug, Parser)]
pub(crate) struct Options {
    /// Only the main parts, with fewer samples, in about a minute; nothing is written.
    #[arg(long)]
    pub(crate) quick: bool,
    /// The binary under test.
    #[arg(long, default_value = "target/release/atoll")]
    pub(crate) atoll: PathBuf,
    /// Only these parts; nothing is written.
    #[arg(long, value_delimiter = ',', value_name = "PART")]
    pub(crate) only: Vec<Part>,
    /// The summary of the last soak.
    #[arg(long, default_value = "target/soak.json")]
    pub(crate) soak: PathBuf,
    /// Where the figures go.
    #[arg(long, default_value = "bench/RESULTS.md")]
    pub(crate) out: PathBuf,
    /// Be the app that the rows about previews ask, at this port.
    #[arg(long, hide = true)]
    app: Option<u16>,
    /// One figure about an app, taken beside it: what, address, host, key.
    #[arg(long, hide = true, num_args = 4)]
    probe: Option<Vec<String>>,
    /// Set by the program itself once it is inside its own network namespace.
    #[arg(long, hide = true)]
    inside: bool,
}

fn main() -> Result<()> {
    let options = Options::parse();
    match (options.app, &options.probe) {
        (Some(port), _) => app::serve(port),
        (None, Some(what)) => {
            println!("{}", previews::probe(what)?);
            Ok(())
        }
        (None, None) if options.inside => measure(&options),
        (None, None) => enter_namespace(&options),
    }
}

/// Starts this program again in network and mount namespaces of its own.
fn enter_namespace(options: &Options) -> Result<()> {
    let parts = parts::chosen(options);
    server::cache_templates(&parts)?;
    for part in parts {
        part.fetch();
    }
    let program = std::env::current_exe()?;
    let status = Command::new("unshare")
        .args(["--net", "--mount", "--"])
        .arg(program)
        .args(std::env::args_os().skip(1))
        .arg("--inside")
        .status()
        .context("cannot run unshare (package util-linux)")?;
    if status.success() { Ok(()) } else { bail!("the measurement failed: {status}") }
}

fn measure(options: &Options) -> Result<()> {
    let up = Command::new("ip").args(["link", "set", "lo", "up"]).status().context("cannot run ip")?;
    anyhow::ensure!(up.success(), "cannot raise lo");
    let place = tempfile::Builder::new().prefix("atoll-bench.").tempdir_in("/var/tmp")?;
    let mut report = Report::new(options.quick);
    noise::measure(&mut report)?;
    let rootfs = server::prepare_template(place.path())?;
    let measured = rows(options, place.path(), &rootfs, &mut report);
    // Also after a failure: a pool that stays mounted would outlive the folder.
    server::uninstall(options, place.path())?;
    measured?;
    report.compare_with_peers();
    soak::quote(options, &mut report);
    let text = report.render();
    print!("{text}");
    if options.quick || !options.only.is_empty() {
        return Ok(());
    }
    std::fs::write(&options.out, text).with_context(|| format!("cannot write {}", options.out.display()))
}

fn rows(options: &Options, place: &Path, rootfs: &Path, report: &mut Report) -> Result<()> {
    for part in parts::chosen(options) {
        let began = std::time::Instant::now();
        part.measure(options, place, rootfs, report)?;
        println!("{part:?}: measured in {} s", began.elapsed().as_secs());
    }
    Ok(())
}
