//! The Python SDK: its own suites against a real server, its types, its wheel and its examples. `sdk/python/tests` holds the
//! suites, `examples/python` the programs that the documentation shows.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::print_stderr, reason = "a suite that does not run says so")]

use std::path::{Path, PathBuf};
use std::process::Command;

use atoll_tests::{Options, World, run_with};

/// Where the wheel is installed for a test, below the folder of its world.
const INSTALLED: &str = "python-sdk";

/// One of the things that `scripts/get-python-sdk-deps` gives; `None` where it cannot be had, which on CI is a failure.
pub(crate) fn tool(what: &str) -> Option<PathBuf> {
    let got = Command::new(here("scripts/get-python-sdk-deps")).arg(what).output().expect("the script");
    if got.status.success() {
        return Some(String::from_utf8_lossy(&got.stdout).trim().into());
    }
    let said = String::from_utf8_lossy(&got.stderr);
    assert!(std::env::var_os("CI").is_none(), "the packages of the Python SDK's tests cannot be had: {said}");
    eprintln!("not run: the Python SDK: {said}");
    None
}

pub(crate) fn here(path: &str) -> PathBuf {
    Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("..").join(path)
}

/// A server with what the suites start from.
fn options() -> Options {
    Options { templates: vec!["busybox", "code-interpreter-slim"], ..Options::debian() }
}

/// Runs a program to its end; its output is shown, and it must succeed.
async fn passes(world: &World, what: &str, command: Command) {
    let done = world.output(command).await;
    eprintln!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{what} failed ({})", done.status);
}

/// A Python with the SDK as pip installs it from the folder, and with the server and a key in its environment.
pub(crate) async fn with_sdk(world: &World, python: &Path) -> Command {
    let target = world.folder().join(INSTALLED);
    if !target.exists() {
        let mut pip = Command::new(python);
        pip.args(["-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--no-deps"]);
        pip.arg("--no-build-isolation").arg("--target").arg(&target).arg(here("sdk/python"));
        passes(world, "pip install of the SDK", pip).await;
    }
    let mut command = Command::new(python);
    command
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", world.folder())
        .env("PYTHONPATH", target)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("ATOLL_URL", world.admin().base())
        .env("ATOLL_API_KEY", world.admin().key())
        .env("ATOLL_CODE_TEMPLATE", "code-interpreter-slim");
    command
}

/// Words of `SDK_ONLY`: arguments for pytest, all tests when it is not set.
fn only() -> Vec<String> {
    std::env::var("SDK_ONLY").unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

#[test]
fn the_python_sdk_passes_its_own_suites() {
    let Some(python) = tool("python") else { return };
    run_with(options(), async |world| {
        let mut suite = with_sdk(world, &python).await;
        suite.args(["-m", "pytest"]).args(only()).current_dir(here("sdk/python"));
        passes(world, "the suite of the Python SDK", suite).await;
    });
}

#[test]
fn the_python_sdk_and_its_examples_have_correct_types() {
    let Some(pyright) = tool("pyright") else { return };
    let checked = Command::new(pyright).arg("--project").arg(here("sdk/python")).output().expect("it starts");
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
}

#[test]
fn the_python_examples_print_what_the_guide_shows() {
    let Some(python) = tool("python") else { return };
    let guide = std::fs::read_to_string(here("docs/sdk/python.md")).expect("the guide");
    run_with(options(), async |world| {
        for name in ["data_analysis", "web_app", "coding_agent", "chat_backend"] {
            let program = here("examples/python").join(format!("{name}.py"));
            let lines = std::fs::read_to_string(&program).expect("the example").lines().count();
            assert!(lines <= 80, "{name}.py has {lines} lines");
            let mut example = with_sdk(world, &python).await;
            example.arg(&program).current_dir(world.folder());
            let done = world.output(example).await;
            let (said, wrong) =
                (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr).into_owned());
            assert!(done.status.success(), "{name}.py failed: {said}{wrong}");
            assert!(
                guide.contains(&*said),
                "docs/sdk/python.md does not show what {name}.py prints:\n{said}"
            );
        }
    });
}
