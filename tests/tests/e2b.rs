//! The E2B front under the vendor's own SDKs, unmodified, against a real server with exactly what `atoll env e2b` prints:
//! `tests/e2b/` holds the flows, `examples/e2b/` the programs that run against either cloud.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::print_stderr, reason = "a suite that does not run says so")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use atoll_tests::image::{self, Image, Layer, Packing};
use atoll_tests::registry::{ADDRESS, Registry};
use atoll_tests::{Options, World, run_with, until};
use tokio::net::TcpStream;

/// What a rule injects in the suites' network cases, and the secret that one fills in.
const INJECTED: &str = "by the rule";
const SECRET: &str = "canary-of-a-secret";

/// How long what was ended may take to be gone.
const PATIENCE: Duration = Duration::from_secs(60);

/// One of the things that `scripts/get-e2b-sdk` gives; `None` where it cannot be had, which on CI is a failure.
fn sdk(what: &str) -> Option<PathBuf> {
    let script = here("../scripts/get-e2b-sdk");
    let got = Command::new(script).arg(what).output().expect("the script");
    if got.status.success() {
        return Some(String::from_utf8_lossy(&got.stdout).trim().into());
    }
    let said = String::from_utf8_lossy(&got.stderr);
    assert!(std::env::var_os("CI").is_none(), "the E2B SDKs cannot be had: {said}");
    eprintln!("not run: the E2B SDKs: {said}");
    None
}

fn here(path: &str) -> PathBuf {
    Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join(path)
}

/// A server with what E2B's programs start from, that trusts the registry of the test.
fn options() -> Options {
    Options { templates: vec!["busybox", "code-interpreter-slim"], ..Options::debian() }
        .env("ATOLL_REGISTRY_INSECURE", ADDRESS)
}

/// A program of the SDK with the variables that `atoll env e2b` prints, the key of a tenant, and no others.
async fn with_sdk(world: &World, program: &Path) -> Command {
    let variables = printed(world, &[]).await;
    for name in ["E2B_API_URL", "E2B_SANDBOX_URL", "E2B_VOLUME_API_URL"] {
        assert!(variables.contains_key(name), "{name} is missing: {variables:?}");
    }
    with_variables(world, program, variables).await
}

/// What `atoll env e2b` prints.
async fn printed(world: &World, more: &[&str]) -> BTreeMap<String, String> {
    let mut env = world.command();
    env.args(["env", "e2b", "--json"]).args(more);
    let said = world.output(env).await;
    assert!(said.status.success(), "atoll env: {}", String::from_utf8_lossy(&said.stderr));
    serde_json::from_slice(&said.stdout).expect("variables")
}

async fn with_variables(world: &World, program: &Path, variables: BTreeMap<String, String>) -> Command {
    let (tenant, other) = (world.tenant("e2b").await, world.tenant("other").await);
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", world.folder())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .envs(variables)
        .env("E2B_API_KEY", tenant.key())
        .env("E2B_OTHER_KEY", other.key())
        .env("E2B_FIRST_KEY", world.first_tenant().await.key())
        .env("E2B_TEST_IMAGE", format!("{ADDRESS}/small:1"));
    command
}

/// A base that E2B's commands can run in: they ask for bash by its path.
fn small() -> Image {
    let bash = Layer::new().file("bin/bash", 0o755, "#!/bin/sh\nexec /bin/sh \"$@\"\n").file(
        "etc/of-the-image",
        0o644,
        "image\n",
    );
    image::busybox().layer(&bash, Packing::Gzip)
}

/// What arrived on the internet is what the policies of the suite say, and nothing else.
fn arrived(world: &World) {
    let seen =
        |path: &str| world.internet.requests().into_iter().filter(|r| r.target() == path).collect::<Vec<_>>();
    assert!(seen("/e2b-never").is_empty(), "a policy was passed: {:#?}", seen("/e2b-never"));
    let ruled: Vec<_> = seen("/e2b-ruled").iter().map(|request| request.header("x-injected")).collect();
    assert_eq!(ruled, [Some(INJECTED.to_owned())]);
    let filled: Vec<_> = seen("/e2b-secret").iter().map(|request| request.header("authorization")).collect();
    assert_eq!(filled, [Some(format!("Bearer {SECRET}"))]);
    let others = world.internet.requests().into_iter().filter(|request| request.target() != "/e2b-secret");
    assert!(others.into_iter().all(|request| !format!("{request:?}").contains(SECRET)));
    assert!(!world.log().contains(SECRET), "a secret is in the server's log");
}

/// Runs a program to its end; what it said is shown, and its end must be a good one.
async fn passes(world: &World, what: &str, command: Command) {
    let done = world.output(command).await;
    eprintln!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{what} failed ({})", done.status);
}

/// What the suite ended is gone: every sandbox, snapshot and volume of it.
async fn nothing_is_left(world: &World) {
    let began = Instant::now();
    for kind in ["sandboxes", "snapshots", "volumes"] {
        loop {
            let page = world.admin().get(&format!("/v1/{kind}")).await.ok();
            let left = page["items"].as_array().expect("items");
            if left.is_empty() {
                break;
            }
            assert!(began.elapsed() < PATIENCE, "{} {kind} are left: {left:#?}", left.len());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Words of `E2B_ONLY`: the tests to run, all when it is not set.
fn only() -> Vec<String> {
    std::env::var("E2B_ONLY").unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

#[test]
fn the_official_python_sdk_finds_everything_as_its_guide_says() {
    let Some(python) = sdk("python") else { return };
    run_with(options(), async |world| {
        let registry = Registry::start(world).await;
        registry.push(&small(), "small", "1").await;
        let mut suite = with_sdk(world, &python).await;
        suite.arg(here("e2b/python/run.py")).args(only());
        passes(world, "the Python suite", suite).await;
        if only().is_empty() {
            arrived(world);
        }
        nothing_is_left(world).await;
        drop(registry);
    });
}

/// The classes of the Python suite that need nothing but the SDK, by names below a domain and over TLS.
const BY_NAMES: &[&str] =
    &["test_commands.Input", "test_watch", "test_volume", "test_code.Contexts.test_a_restart"];

#[test]
fn the_official_python_sdk_works_by_names_over_tls_too() {
    let Some(python) = sdk("python") else { return };
    run_with(Options { tls: true, ..options() }, async |world| {
        until("the TLS port is open", async || TcpStream::connect("127.0.0.1:7443").await.ok()).await;
        let variables = printed(world, &["--tls", "--proxy", "always"]).await;
        assert!(
            variables.contains_key("E2B_DOMAIN") && !variables.contains_key("E2B_API_URL"),
            "{variables:?}"
        );
        let mut suite = with_variables(world, &python, variables).await;
        suite.arg(here("e2b/python/run.py")).args(BY_NAMES);
        passes(world, "the Python suite over TLS", suite).await;
        nothing_is_left(world).await;
    });
}

#[test]
fn the_official_javascript_sdk_finds_everything_as_its_guide_says() {
    let (Some(node), Some(modules)) = (sdk("node"), sdk("modules")) else { return };
    run_with(options(), async |world| {
        let registry = Registry::start(world).await;
        registry.push(&small(), "small", "1").await;
        // Node looks for packages above the file that asks for them.
        let folder = world.folder().join("js");
        let copied = Command::new("cp").arg("-r").arg(here("e2b/js")).arg(&folder).status().expect("cp");
        assert!(copied.success(), "a copy of the suite");
        std::os::unix::fs::symlink(modules, folder.join("node_modules")).expect("a link");
        let mut suite = with_sdk(world, &node).await;
        suite.args(["--test", "--test-reporter", "spec"]);
        for word in only() {
            suite.args(["--test-name-pattern", &word]);
        }
        suite.arg(folder.join("all.test.mjs")).current_dir(&folder);
        passes(world, "the JavaScript suite", suite).await;
        if only().is_empty() {
            arrived(world);
        }
        nothing_is_left(world).await;
        drop(registry);
    });
}

#[test]
#[ignore = "makes a template of some 5 GB, which takes minutes: make nightly"]
fn nightly_the_full_interpreter_template_has_e2bs_libraries_r_and_java() {
    let Some(python) = sdk("python") else { return };
    let options =
        Options { template: "code-interpreter-full", templates: vec!["busybox"], ..Options::default() };
    run_with(options, async |world| {
        let mut suite = with_sdk(world, &python).await;
        suite.arg(here("e2b/full.py"));
        passes(world, "the full interpreter template", suite).await;
        nothing_is_left(world).await;
    });
}

#[test]
fn the_examples_run_here_as_they_run_on_e2bs_cloud() {
    let Some(python) = sdk("python") else { return };
    run_with(options(), async |world| {
        let command = with_sdk(world, &python).await;
        let examples = here("../examples/e2b");
        let mut programs: Vec<PathBuf> = std::fs::read_dir(&examples)
            .expect("examples")
            .map(|entry| entry.expect("an entry").path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "py"))
            .collect();
        programs.sort();
        assert_eq!(programs.len(), 5, "{programs:?}");
        let environment: Vec<_> = command
            .get_envs()
            .filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())))
            .collect();
        for program in programs {
            let mut example = Command::new(&python);
            example.env_clear().envs(environment.clone()).arg(&program).current_dir(world.folder());
            passes(world, &program.display().to_string(), example).await;
        }
    });
}
