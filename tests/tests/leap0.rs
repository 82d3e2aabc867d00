//! The Leap0 front under the vendor's own Python SDK, unmodified, against a real server: `tests/leap0/` holds the flows.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::print_stderr, reason = "a suite that does not run says so")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use atoll_tests::image::{self, Layer, Packing};
use atoll_tests::registry::{self, Registry};
use atoll_tests::{Options, World, run_with, until};
use tokio::net::TcpStream;

/// The SDK as `scripts/get-leap0-sdk` gives it; `None` where it cannot be had, which on CI is a failure.
pub(crate) fn python() -> Option<PathBuf> {
    let script = Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"))
        .join("../scripts/get-leap0-sdk");
    let got = Command::new(script).output().expect("the script");
    if got.status.success() {
        return Some(String::from_utf8_lossy(&got.stdout).trim().into());
    }
    let said = String::from_utf8_lossy(&got.stderr);
    assert!(std::env::var_os("CI").is_none(), "the Leap0 SDK cannot be had: {said}");
    eprintln!("not run: python >= 3.12 with the Leap0 SDK: {said}");
    None
}

/// The SDK with the variables that `atoll env leap0` prints, and no others. Names below `localhost` have no address here, so
/// that its requests to sandboxes go through the server's CONNECT.
pub(crate) async fn sdk(world: &World, python: &Path) -> Command {
    let mut env = world.command();
    env.args(["env", "leap0", "--json", "--proxy", "always"]);
    let said = world.output(env).await;
    assert!(said.status.success(), "atoll env: {}", String::from_utf8_lossy(&said.stderr));
    let variables: BTreeMap<String, String> = serde_json::from_slice(&said.stdout).expect("variables");
    assert!(variables.contains_key("HTTPS_PROXY"), "{variables:?}");
    let mut command = Command::new(python);
    command
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", world.folder())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .envs(variables);
    command
}

/// What a transform injects in `tests/leap0/test_policy.py`.
const KEY: &str = "canary-of-a-key";

/// The key arrived where its policy says, and nowhere else.
fn arrived(world: &World) {
    let seen =
        |path: &str| world.internet.requests().into_iter().filter(|r| r.target() == path).collect::<Vec<_>>();
    let changed = seen("/leap0-changed");
    let keys: Vec<_> = changed.iter().map(|request| request.header("authorization")).collect();
    assert_eq!(keys, [Some(format!("Bearer {KEY}"))]);
    assert!(seen("/leap0-never").is_empty(), "a name that no list has was reached");
    let others = world.internet.requests().into_iter().filter(|request| request.target() != "/leap0-changed");
    assert!(others.into_iter().all(|request| !format!("{request:?}").contains(KEY)));
}

#[test]
fn the_official_sdk_passes_the_flows_of_the_vendors_guide() {
    let Some(python) = python() else { return };
    run_with(
        Options { tls: true, templates: vec!["busybox", "code-interpreter-slim"], ..Options::debian() }
            .env("ATOLL_REGISTRY_INSECURE", registry::ADDRESS),
        async |world| {
            until("the TLS port is open", async || TcpStream::connect("127.0.0.1:7443").await.ok()).await;
            let registry = Registry::start(world).await;
            let mark = Layer::new().file("etc/mark", 0o644, "of the image\n");
            registry.push(&image::busybox().layer(&mark, Packing::Gzip), "tools/marked", "1").await;
            let (tenant, other) = (world.tenant("leap0").await, world.tenant("other").await);
            let mut suite = sdk(world, &python).await;
            suite.env("LEAP0_API_KEY", tenant.key()).env("LEAP0_OTHER_KEY", other.key());
            suite.env("LEAP0_FIRST_KEY", world.first_tenant().await.key());
            suite.env("LEAP0_TEST_IMAGE", registry.name("tools/marked:1"));
            let flows =
                Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("leap0");
            suite
                .args(["-m", "unittest", "discover", "--verbose", "--durations", "5", "--start-directory"])
                .arg(flows);
            if let Ok(only) = std::env::var("LEAP0_ONLY") {
                suite.args(["-k", &only]);
            }
            let done = world.output(suite).await;
            let said = String::from_utf8_lossy(&done.stderr);
            eprintln!("{said}");
            assert!(done.status.success(), "the SDK's flows failed ({})", done.status);
            assert!(!world.log().contains(KEY), "a secret is in the server's log");
            arrived(world);
        },
    );
}
