//! The TypeScript SDK against a real server: `sdk/typescript/test` holds the cases, `examples/typescript` the programs of the documentation.
//! The toolkits for E2B and Daytona run with the vendors' own packages, the smoke tests on Node, Bun, Deno and Chromium.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::print_stderr, reason = "a suite that does not run says so")]

use std::path::{Path, PathBuf};
use std::process::Command;

use atoll_tests::{Options, World, run_with, until};

const SUITES: [&str; 6] = ["transport", "sandbox", "toolkits", "ai_sdk", "runtimes", "examples"];

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

async fn suite(world: &World, folder: &Path) -> Command {
    let temporary = folder.join("tmp");
    std::fs::create_dir(&temporary).unwrap();
    let client = world.first_tenant().await;
    let mut command = Command::new(node());
    command
        .args(["--test", "--test-reporter=spec", "--test-concurrency=2"])
        .args(suites())
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

#[test]
fn the_typescript_sdk_does_what_its_documentation_says() {
    let folder = tempfile::tempdir().unwrap();
    if !compile(folder.path()) {
        return;
    }
    let options = Options { templates: vec!["busybox", "code-interpreter-slim"], ..Options::debian() };
    run_with(options.env("ATOLL_ALLOW_LOCAL", "true"), async |world| {
        let done = world.output(suite(world, folder.path()).await).await;
        eprintln!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        assert!(done.status.success(), "the suite failed ({})", done.status);
        for kind in ["sandboxes", "snapshots", "volumes"] {
            until(&format!("no {kind} of the suite are left"), async || {
                let page = world.admin().get(&format!("/v1/{kind}")).await.ok();
                page["items"].as_array().is_some_and(Vec::is_empty).then_some(())
            })
            .await;
        }
    });
}
