//! The real coding CLI of Deep Agents (`dcode -n --sandbox atoll`) with a model of the test's own: it works in a sandbox, and the
//! sandbox ends with it, also when it is killed.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::process::Command;

use atoll_tests::{Options, World, run_with, until};

use crate::sdk_python::{here, tool, with_sdk};

/// Runs the driver with the environment of the CLI; what it printed. `None` where the packages cannot be had.
async fn drive(world: &World, words: &[&str]) -> Option<String> {
    let (python, cli) = (tool("python")?, tool("dcode")?);
    let sdk = with_sdk(world, &python).await;
    let home = world.folder().join("home-of-the-cli");
    std::fs::create_dir_all(&home).unwrap();
    let mut command = Command::new(cli);
    command.env_clear();
    command.envs(sdk.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.env("HOME", &home).current_dir(&home).arg(here("tests/deepagents/drive.py")).args(words);
    let done = world.output(command).await;
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success(), "{said}{}", String::from_utf8_lossy(&done.stderr));
    Some(said)
}

/// Every sandbox that the CLI made is gone.
async fn nothing_runs(world: &World) {
    until("the CLI's sandbox is deleted", async || {
        let left = world.admin().get("/v1/sandboxes").await.ok();
        left["items"].as_array().unwrap().is_empty().then_some(())
    })
    .await;
    let all = world.admin().get("/v1/sandboxes?all=1").await.ok();
    // The other one is that with which every world begins.
    assert_eq!(all["items"].as_array().unwrap().len(), 2, "it had one: {all}");
}

#[test]
fn a_task_of_the_real_coding_cli_runs_in_a_sandbox_that_ends_with_it() {
    run_with(Options::debian(), async |world: &World| {
        let Some(said) = drive(world, &[]).await else { return };
        // The model's last words have the output of the command; the host name is that of the sandbox.
        let all = world.admin().get("/v1/sandboxes?all=1").await.ok();
        let id = all["items"][0]["id"].as_str().unwrap();
        assert!(said.contains("IT SAID from-the-sandbox") && said.contains(id), "{said}");
        nothing_runs(world).await;
    });
}

#[test]
fn a_killed_coding_cli_leaves_no_sandbox() {
    run_with(Options::debian(), async |world: &World| {
        let Some(said) = drive(world, &["killed"]).await else { return };
        assert!(said.contains("asked 1"), "{said}");
        nothing_runs(world).await;
    });
}
