//! Holds: a program in the sandbox keeps it awake, with the command and with the route.

#![allow(clippy::unwrap_used)]

use crate::common;
use std::time::Duration;

use crate::common::{PATIENCE, TestAgent};

/// The command beside the agent, where the engine puts it, and how to call it in a script.
fn command(agent: &TestAgent) -> String {
    let path = agent.path("atoll-hold");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_atoll-agent"), &path).unwrap();
    format!("ATOLL_AGENT_PORT={} {path}", agent.address.port())
}

async fn held_until(agent: &TestAgent, is: impl Fn(u64) -> bool) {
    let begun = std::time::Instant::now();
    loop {
        let held = agent.client.held().await.unwrap();
        if is(held) {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "held for {held} s");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_hold_by_time_is_seen_extended_and_released() {
    let agent = TestAgent::start();
    let hold = command(&agent);
    assert_eq!(agent.client.held().await.unwrap(), 0);
    assert_eq!(agent.sh(&hold).await.stdout, b"not held\n");
    assert_eq!(agent.sh(&format!("{hold} 10m")).await.stdout, b"held for 600 s\n");
    agent.sh(&format!("{hold} 5s")).await;
    held_until(&agent, |held| (590..=600).contains(&held)).await;
    assert_eq!(agent.sh(&format!("{hold} --release")).await.stdout, b"not held\n");
    assert_eq!(agent.client.held().await.unwrap(), 0);
    for (words, code) in [("25h", 1), ("0", 1), ("soon", 2), ("1m 2m", 2), ("--what", 2), ("--", 2)] {
        let said = agent.sh(&format!("{hold} {words}")).await;
        assert_eq!((said.status.code, said.stderr.is_empty()), (Some(code), false), "{words}");
    }
    assert_eq!(agent.client.held().await.unwrap(), 0);
}

#[tokio::test]
async fn a_command_holds_while_it_runs_and_is_itself() {
    let agent = TestAgent::start();
    let hold = command(&agent);
    // The command has its own output and exit code, it gets no extra child, and no process keeps the pipe open.
    let script = format!(
        "{hold} -- sh -c 'echo in; test -z \"$(cat /proc/$$/task/$$/children)\"; exit 7' | cat; echo out"
    );
    assert_eq!(agent.sh(&script).await.stdout, b"in\nout\n");
    assert_eq!(agent.sh(&format!("{hold} -- sh -c 'exit 7'")).await.status.code, Some(7));
    assert_eq!(agent.sh(&format!("{hold} -- no-such-program")).await.status.code, Some(127));
    held_until(&agent, |held| held == 0).await;
    let (one, mut stream) =
        agent.client.start(common::sh(&format!("exec env {hold} -- sleep 600"))).await.unwrap();
    held_until(&agent, |held| held > 30).await;
    // It does not affect a timed hold.
    agent.sh(&format!("{hold} 20s; {hold} --release")).await;
    held_until(&agent, |held| held > 30).await;
    agent.client.signal(one.pid, 9).await.unwrap();
    while stream.next().await.is_some() {}
    held_until(&agent, |held| held == 0).await;
}

#[tokio::test]
async fn a_command_runs_where_no_agent_answers() {
    let agent = TestAgent::start();
    let path = agent.path("atoll-hold");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_atoll-agent"), &path).unwrap();
    let said = agent.sh(&format!("ATOLL_AGENT_PORT=1 {path} -- echo ran")).await;
    assert_eq!((said.stdout.as_slice(), said.stderr.is_empty()), (&b"ran\n"[..], false));
}

#[tokio::test]
async fn nonsense_on_the_route_is_refused_and_many_holds_are_bounded() {
    let agent = TestAgent::start();
    let ask = async |line: &str| {
        agent.raw(format!("{line} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").as_bytes()).await.0
    };
    for bad in ["POST /hold", "POST /hold?seconds=-1", "POST /hold?seconds=1e3", "POST /hold?seconds=999999"]
    {
        assert_eq!(ask(bad).await, 400, "{bad}");
    }
    assert_eq!(ask("PUT /hold").await, 405);
    for n in 0..200 {
        assert_eq!(ask(&format!("POST /hold?seconds=60&name=n{n}")).await, 200);
    }
    assert!((55..=60).contains(&agent.client.held().await.unwrap()));
}
