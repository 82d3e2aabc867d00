//! The Leap0 front under the vendor's own Python SDK, unmodified, against a real server: `tests/leap0/` holds the flows.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::print_stderr, reason = "a suite that does not run says so")]

use std::path::{Path, PathBuf};
use std::process::Command;

use atoll_tests::{Options, World, run_with, until};
use tokio::net::TcpStream;

/// The SDK as `scripts/get-leap0-sdk` gives it; `None` where it cannot be had, which on CI is a failure.
fn python() -> Option<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/get-leap0-sdk");
    let got = Command::new(script).output().expect("the script");
    if got.status.success() {
        return Some(String::from_utf8_lossy(&got.stdout).trim().into());
    }
    let said = String::from_utf8_lossy(&got.stderr);
    assert!(std::env::var_os("CI").is_none(), "the Leap0 SDK cannot be had: {said}");
    eprintln!("not run: python >= 3.12 with the Leap0 SDK: {said}");
    None
}

/// The variables by which the SDK finds this world. Names below `localhost` have no address here, so that its requests to
/// sandboxes go through the server's CONNECT.
fn sdk(world: &World, python: &Path, key: &str) -> Command {
    let mut command = Command::new(python);
    command
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", world.folder())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("LEAP0_API_KEY", key)
        .env("LEAP0_BASE_URL", "http://127.0.0.1:7070/leap0")
        .env("LEAP0_SANDBOX_DOMAIN", "atoll.localhost:7443")
        .env("SSL_CERT_FILE", world.authority())
        .env("HTTPS_PROXY", "http://127.0.0.1:7070")
        .env("NO_PROXY", "127.0.0.1");
    command
}

#[test]
fn the_official_sdk_passes_the_flows_of_the_vendors_guide() {
    let Some(python) = python() else { return };
    run_with(Options { tls: true, ..Options::debian() }, async |world| {
        until("the TLS port is open", async || TcpStream::connect("127.0.0.1:7443").await.ok()).await;
        let tenant = world.tenant("leap0").await;
        let mut suite = sdk(world, &python, tenant.key());
        let flows = Path::new(env!("CARGO_MANIFEST_DIR")).join("leap0");
        suite.args(["-m", "unittest", "discover", "--verbose", "--start-directory"]).arg(flows);
        if let Ok(only) = std::env::var("LEAP0_ONLY") {
            suite.args(["-k", &only]);
        }
        let done = world.output(suite).await;
        let said = String::from_utf8_lossy(&done.stderr);
        eprintln!("{said}");
        assert!(done.status.success(), "the SDK's flows failed ({})", done.status);
        assert!(!world.log().contains("canary-of-a-key"), "a secret is in the server's log");
    });
}
