//! The TypeScript SDK against a real server: `sdk/typescript/test` holds the cases, `examples/typescript` the programs of the documentation,
//! `tests/guides/toolkits` those in the call forms of the guide of toolkits. The toolkits for E2B and Daytona run with the vendors' own
//! packages, the smoke tests on Node, Bun, Deno and Chromium.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::print_stderr, reason = "a suite that does not run says so")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use atoll_tests::{Options, World, json, run_with, until};

use crate::remote_agentbay_server;
use crate::remote_server::{RemoteService, SERVICE, objects};

const SUITES: [&str; 7] = ["transport", "sandbox", "toolkits", "leftovers", "ai_sdk", "runtimes", "examples"];

fn repository() -> PathBuf {
    Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"))
        .join("..")
        .canonicalize()
        .unwrap()
}

/// Type checks the SDK and compiles it with its tests into a folder. False where its packages cannot be had, which on CI is a failure.
fn compile(into: &Path) -> bool {
    let script = repository().join("scripts/build-sdk-typescript");
    let made = Command::new(script).arg("tests").arg(into).output().expect("the script");
    let said = String::from_utf8_lossy(&made.stderr);
    let missing = matches!(made.status.code(), Some(2 | 3));
    assert!(made.status.success() || missing, "the TypeScript SDK does not compile: {said}");
    assert!(!missing || std::env::var_os("CI").is_none(), "packages cannot be had: {said}");
    if missing {
        eprintln!("not run: the TypeScript SDK: {said}");
    }
    !missing
}

fn node() -> PathBuf {
    let got = Command::new(repository().join("scripts/get-node")).output().expect("the script");
    String::from_utf8_lossy(&got.stdout).trim().into()
}

/// Words of `SDK_ONLY`: the suites to run, all when it is not set.
fn suites() -> Vec<String> {
    let only = std::env::var("SDK_ONLY").unwrap_or_else(|_| SUITES.join(" "));
    only.split_whitespace().map(|name| format!("test/{name}.test.js")).collect()
}

/// Node in the folder of the compiled SDK, with a key of the first tenant.
async fn program(world: &World, folder: &Path) -> Command {
    let temporary = folder.join("tmp");
    std::fs::create_dir_all(&temporary).unwrap();
    let client = world.first_tenant().await;
    let mut command = Command::new(node());
    command
        .current_dir(folder)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", world.folder())
        .env("TMPDIR", temporary)
        .env("ATOLL_URL", client.base())
        .env("ATOLL_API_KEY", client.key())
        .env("ATOLL_ADMIN_KEY", world.admin().key())
        .env("ATOLL_REPOSITORY", repository());
    command
}

async fn suite(world: &World, folder: &Path) -> Command {
    let mut command = program(world, folder).await;
    command.args(["--test", "--test-reporter=spec", "--test-concurrency=2"]).args(suites());
    command
}

fn options() -> Options {
    Options { templates: vec!["busybox", "code-interpreter-slim"], ..Options::debian() }
}

fn succeeded(done: &Output) {
    eprintln!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "the suite failed ({})", done.status);
}

async fn leaves_nothing(world: &World, what: &str) {
    for kind in ["sandboxes", "snapshots", "volumes"] {
        until(&format!("no {kind} of {what} are left"), async || {
            let page = world.admin().get(&format!("/v1/{kind}")).await.ok();
            page["items"].as_array().is_some_and(Vec::is_empty).then_some(())
        })
        .await;
    }
}

#[test]
fn the_typescript_sdk_does_what_its_documentation_says() {
    let folder = tempfile::tempdir().unwrap();
    if !compile(folder.path()) {
        return;
    }
    run_with(options().env("ATOLL_ALLOW_LOCAL", "true"), async |world| {
        succeeded(&world.output(suite(world, folder.path()).await).await);
        leaves_nothing(world, "the suite").await;
    });
}

/// AgentBay loses the files of a stopped sandbox.
#[test]
fn toolkits_at_providers_that_lack_something_end_what_they_create() {
    let folder = tempfile::tempdir().unwrap();
    if !compile(folder.path()) {
        return;
    }
    run_with(options(), async |world| {
        let (_bay, _proxy) = remote_agentbay_server::with_service(world).await;
        let service = RemoteService::start(world, "busybox").await;
        let account = service.account().await;
        let settings = json!({ "provider": "daytona", "daytona": {
            "api_key": account.key(), "api_url": format!("http://{SERVICE}/daytona/api"), "snapshot": "busybox",
            "user": "root", "cwd": "/workspace" } });
        remote_agentbay_server::configure(world, "cloud", &settings).await;
        let mut command = program(world, folder.path()).await;
        command.args(["--test", "--test-reporter=spec", "test/vendor_providers.test.js"]);
        succeeded(&world.output(command).await);
        leaves_nothing(world, "the toolkits").await;
        until("nothing is left at the vendor", async || objects(&account).await.is_empty().then_some(()))
            .await;
        remote_agentbay_server::forget_providers(world);
        service.uninstall().await;
    });
}

#[test]
fn programs_of_the_guide_of_toolkits_run() {
    let folder = tempfile::tempdir().unwrap();
    if !compile(folder.path()) {
        return;
    }
    let guides = folder.path().join("tests/guides/toolkits");
    let mut programs: Vec<PathBuf> =
        std::fs::read_dir(guides).unwrap().map(|entry| entry.unwrap().path()).collect();
    programs.sort();
    assert!(programs.len() >= 7, "{programs:?}");
    run_with(options(), async |world| {
        let client = world.first_tenant().await;
        let templates = [
            ("data-science:mine", "FROM code-interpreter-slim\n"),
            ("my-template", "FROM debian\nRUN echo mine > /etc/of-mine\n"),
        ];
        for (name, dockerfile) in templates {
            let (built, log) =
                client.build(json!({ "template": name, "dockerfile": dockerfile }), None).await;
            assert_eq!(built["status"], "ready", "{built} {log}");
        }
        for path in programs {
            let mut command = program(world, folder.path()).await;
            command.arg(&path).env("E2B_API_KEY", client.key()).env("DAYTONA_API_KEY", client.key());
            let done = world.output(command).await;
            let said = [done.stdout, done.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
            assert!(done.status.success(), "{}: {}", path.display(), said.concat());
            leaves_nothing(world, &path.display().to_string()).await;
        }
        for (name, _) in templates {
            client.delete(&format!("/v1/templates/{}", name.replace(':', "%3A"))).await.ok();
        }
    });
}
