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

use crate::report::Report;

/// Prints and writes the figures.
#[derive(Debug, Parser)]
pub(crate) struct Options {
    /// Fewer samples; finishes within a minute.
    #[arg(long)]
    pub(crate) quick: bool,
    /// The binary under test.
    #[arg(long, default_value = "target/release/atoll")]
    pub(crate) atoll: PathBuf,
    /// Only the rows about the life of a sandbox; nothing is written.
    #[arg(long)]
    pub(crate) life: bool,
    /// Only the rows about what leaves a sandbox; nothing is written.
    #[arg(long)]
    pub(crate) egress: bool,
    /// Only the rows about previews; nothing is written.
    #[arg(long)]
    pub(crate) previews: bool,
    /// Only the rows about images and builds; nothing is written.
    #[arg(long)]
    pub(crate) images: bool,
    /// Only the rows about the E2B front under its vendor's SDK; nothing is written.
    #[arg(long)]
    pub(crate) e2b: bool,
    /// Only the rows about the Daytona front under its vendor's SDK; nothing is written.
    #[arg(long)]
    pub(crate) daytona: bool,
    /// Only the rows about the Python SDK; nothing is written.
    #[arg(long)]
    pub(crate) python_sdk: bool,
    /// Only the rows about the provider docker and about lists of sessions; nothing is written.
    #[arg(long)]
    pub(crate) docker: bool,
    /// Only the rows about the queue of a full server; nothing is written.
    #[arg(long)]
    pub(crate) queue: bool,
    /// Only the rows about MCP; nothing is written.
    #[arg(long)]
    pub(crate) mcp: bool,
    /// Only the rows about the providers e2b and daytona; nothing is written.
    #[arg(long)]
    pub(crate) remote: bool,
    /// Only the rows about the TypeScript SDK; nothing is written.
    #[arg(long)]
    pub(crate) sdk_typescript: bool,
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
    server::cache_templates(options)?;
    sdk_typescript::build();
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
    if options.life
        || options.egress
        || options.previews
        || options.images
        || options.e2b
        || options.daytona
        || options.python_sdk
        || options.docker
        || options.queue
        || options.mcp
        || options.remote
        || options.sdk_typescript
    {
        return Ok(());
    }
    std::fs::write(&options.out, text).with_context(|| format!("cannot write {}", options.out.display()))
}

fn rows(options: &Options, place: &Path, rootfs: &Path, report: &mut Report) -> Result<()> {
    if options.life {
        return life::measure(options, place, report);
    }
    if options.egress {
        return egress::measure(options, place, report);
    }
    if options.previews {
        return previews::measure(options, place, report);
    }
    if options.images {
        return images::measure(options, place, rootfs, report);
    }
    if options.e2b {
        return e2b::measure(options, place, report);
    }
    if options.queue {
        return queue::measure(options, place, report);
    }
    if options.python_sdk {
        return python_sdk::measure(options, place, report);
    }
    if options.docker {
        docker::measure(options, place, rootfs, report)?;
        return sessions::measure(options, place, rootfs, report);
    }
    if options.mcp {
        return mcp::measure(options, place, report);
    }
    if options.remote {
        return remote::measure(options, place, report);
    }
    if options.daytona {
        return daytona::measure(options, place, report);
    }
    if options.sdk_typescript {
        return sdk_typescript::measure(options, place, report);
    }
    density::measure(options, place, report)?;
    latency::warm(options, place, report)?;
    latency::cold(options, place, report)?;
    latency::burst(options, place, report)?;
    latency::exec(options, place, report)?;
    sessions::measure(options, place, rootfs, report)?;
    queue::measure(options, place, report)?;
    mcp::measure(options, place, report)?;
    transfer::measure(options, place, report)?;
    life::measure(options, place, report)?;
    egress::measure(options, place, report)?;
    previews::measure(options, place, report)?;
    images::measure(options, place, rootfs, report)?;
    e2b::measure(options, place, report)?;
    daytona::measure(options, place, report)?;
    remote::measure(options, place, report)?;
    python_sdk::measure(options, place, report)?;
    sdk_typescript::measure(options, place, report)?;
    docker::measure(options, place, rootfs, report)?;
    peers::measure(options, place, rootfs, report)
}
