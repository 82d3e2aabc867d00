//! The TypeScript SDK beside the same calls by `fetch`, in one process.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::Options;
use crate::report::{Bar, Report};
use crate::sdk::Timed;
use crate::server::Server;

/// The SDK may take a quarter longer than the calls that it makes.
const MOST: f64 = 1.25;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Builds the SDK; needs the network the first time. Without it the rows are left out.
pub(crate) fn build() {
    let built = Command::new(repository().join("scripts/build-sdk-typescript")).output();
    if !built.is_ok_and(|output| output.status.success()) {
        eprintln!("the TypeScript SDK cannot be built (scripts/build-sdk-typescript says why)");
    }
}

pub(crate) fn measure(options: &Options, place: &Path, report: &mut Report) -> Result<()> {
    let package = repository().join("sdk/typescript/dist/index.js");
    let node = Command::new(repository().join("scripts/get-node")).output()?;
    if !node.status.success() || !package.exists() {
        report.note("TypeScript SDK: not built (scripts/build-sdk-typescript says why)");
        return Ok(());
    }
    let node = PathBuf::from(String::from_utf8_lossy(&node.stdout).trim());
    let server = Server::start(options, place, 8)?;
    let (address, key) = server.address();
    let (package, origin) = (package.canonicalize()?, format!("http://{address}"));
    let env = [
        ("ATOLL_SDK", package.to_str().unwrap_or_default()),
        ("ATOLL_URL", origin.as_str()),
        ("ATOLL_API_KEY", key.as_str()),
    ];
    let rounds = if options.quick { 40 } else { 200 };
    let timed =
        Timed::take_file(&node, "probe.mjs", include_str!("sdk_typescript/probe.mjs"), place, rounds, &env)?;
    for (what, name) in [("create", "create + run(\"echo hi\")"), ("run", "run(\"echo hi\")")] {
        let (sdk, raw) = (timed.samples(&format!("sdk_{what}")), timed.samples(&format!("raw_{what}")));
        report.row(&format!("TypeScript SDK: {name}"), &sdk, None);
        report.row(&format!("TypeScript SDK: {name}, the same by fetch"), &raw, None);
        let bar = (what == "create").then_some(Bar::AtMost(MOST));
        report.figure(
            &format!("TypeScript SDK: {name}, p50 of the SDK to p50 of fetch"),
            sdk.p50() / raw.p50(),
            "x",
            bar,
        );
    }
    Ok(())
}
