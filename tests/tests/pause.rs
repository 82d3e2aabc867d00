//! Pause and resume: frozen in memory and written to disk. What lives inside goes on as if nothing had been.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::{Duration, Instant};

use atoll_tests::internet::PUBLIC;
use atoll_tests::soak::calls::Shared;
use atoll_tests::soak::kept::Kept;
use atoll_tests::sse::text_of;
use atoll_tests::state_model::Dice;
use atoll_tests::terminal::Screen;
use atoll_tests::{Client, Options, Value, criu, json, run, run_with, until};
use nix::sys::signal::Signal;
use reqwest::Method;

async fn pause(client: &Client, id: &str, memory: &str) -> Value {
    let paused = client.post(&format!("/v1/sandboxes/{id}/pause"), json!({ "memory": memory })).await.ok();
    assert_eq!((&paused["phase"], &paused["held"]), (&json!("paused"), &json!(memory)), "{paused}");
    assert_eq!(paused["intent"], "pause", "{paused}");
    paused
}

async fn resume(client: &Client, id: &str) -> Value {
    let running = client.act(id, "resume").await.ok();
    assert_eq!((&running["phase"], &running["held"]), (&json!("running"), &Value::Null), "{running}");
    running
}

/// Starts a connection to the echo server outside; what is written to `ctl` comes back in `out`.
async fn talk_outside(client: &Client, id: &str) {
    let line = format!("mkfifo ctl; (while :; do cat ctl; done) | nc {PUBLIC} 7 > out; echo over > ended");
    client.try_exec(id, json!({ "argv": ["/bin/sh", "-c", line], "detach": true })).await.ok();
    until("the connection answers", async || {
        client
            .sh(id, "test -p ctl && echo hello > ctl; sleep 0.05; cat out")
            .await
            .stdout
            .contains("hello")
            .then_some(())
    })
    .await;
}

#[test]
fn a_frozen_sandbox_keeps_everything_and_costs_no_cpu() {
    run(async |w| {
        let shared = Shared::quiet(w, w.tenant("acme").await);
        let client = &shared.client;
        let mut kept = Kept::create(&shared, json!({ "network": "allow-all" }), 1).await;
        let before = client.sandbox(&kept.id).await;
        talk_outside(client, &kept.id).await;
        let agent = w.agent_pid(&kept.id);
        for round in 0..3 {
            pause(client, &kept.id, "live").await;
            assert_eq!(w.agent_pid(&kept.id), agent, "its processes stay");
            kept.is_intact(&shared, "paused").await;
            // Twice is as good as once, and neither a look nor a list wakes it.
            pause(client, &kept.id, "live").await;
            client.get("/v1/sandboxes").await.ok();
            assert_eq!(client.sandbox(&kept.id).await["phase"], "paused");
            if round == 1 {
                w.crash_server().await;
                kept.is_intact(&shared, "paused").await;
            }
            let running = resume(client, &kept.id).await;
            assert_eq!(running["instance"], before["instance"], "a thaw makes no new instance");
            kept.is_intact(&shared, "running").await;
            kept.change(&shared, &mut Dice::new(round)).await;
        }
        client.sh(&kept.id, "echo after > ctl").await.text();
        until("the connection to the outside lives", async || {
            client.sh(&kept.id, "cat out").await.stdout.contains("after").then_some(())
        })
        .await;
        assert_eq!(client.sh(&kept.id, "test -e ended && echo ended || echo open").await.text(), "open");
    });
}

#[test]
fn streams_and_terminals_go_on_after_a_freeze_without_a_gap() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let path = format!("/v1/sandboxes/{id}/exec/stream");
        let line = "i=0; while [ $i -lt 60 ]; do i=$((i+1)); echo line-$i; sleep 0.02; done";
        let body = json!({ "argv": ["/bin/sh", "-c", line] });
        let mut stream = client.events(Method::POST, &path, Some(&body)).await;
        let opened = client
            .post(&format!("/v1/sandboxes/{id}/terminals"), json!({ "thread": "t", "cols": 80, "rows": 24 }))
            .await
            .ok();
        let mut screen = Screen::attach(&client, &id, opened["id"].as_str().unwrap()).await;
        screen.input("cd /tmp; MARK=kept; echo re''ady\n").await;
        screen.wait_for("ready").await;
        pause(&client, &id, "live").await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        resume(&client, &id).await;
        screen.input("echo at=$(pwd) mark=$MARK\n").await;
        screen.wait_for("at=/tmp mark=kept").await;
        let mut text = String::new();
        while let Some(event) = stream.next().await {
            if event.name == "stdout" {
                text.push_str(&text_of(&event.data));
            }
            if event.name == "exit" {
                assert_eq!(event.data["exit_code"], 0, "{event:?}");
                break;
            }
        }
        let wanted: String = (1..=60).map(|n| format!("line-{n}\n")).collect();
        assert_eq!(text, wanted, "every line once, in order");
    });
}

#[test]
fn a_command_by_daytona_goes_on_after_a_pause_to_disk() {
    if criu::at_hand().is_none() {
        return;
    }
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let path = format!("/daytona/toolbox/{id}/process/execute");
        // It stands still in the middle until it was paused and resumed.
        let line = "i=0; while [ $i -lt 60 ]; do i=$((i+1)); echo line-$i; \
                    if [ $i = 30 ]; then touch /tmp/half; until [ -e /tmp/go ]; do sleep 0.05; done; fi; done";
        let command = client.raw(Method::POST, &path).json(&json!({ "command": line })).send();
        let pauses = async {
            until("the command is in the middle", async || {
                (client.sh(&id, "test -e /tmp/half").await.code == 0).then_some(())
            })
            .await;
            pause(&client, &id, "disk").await;
            assert_eq!(w.find_agent(&id), None, "its memory is free");
            let running = resume(&client, &id).await;
            client.sh(&id, "touch /tmp/go").await.text();
            running
        };
        let (answer, running) = tokio::join!(command, pauses);
        let answer: Value = answer.unwrap().json().await.unwrap();
        let wanted: String = (1..=60).map(|n| format!("line-{n}\n")).collect();
        assert_eq!((&answer["exitCode"], &answer["result"]), (&json!(0), &json!(wanted)));
        assert_eq!(running["phase"], "running");
    });
}

#[test]
fn memory_on_disk_comes_back_whole() {
    if criu::at_hand().is_none() {
        return;
    }
    run(async |w| {
        let shared = Shared::quiet(w, w.tenant("acme").await);
        let client = &shared.client;
        let mut kept = Kept::create(&shared, json!({ "network": "allow-all" }), 2).await;
        talk_outside(client, &kept.id).await;
        client.sh(&kept.id, "echo kept > /home/user/note; sleep 1000 > /dev/null 2>&1 &").await.text();
        let before = client.sandbox(&kept.id).await;
        let agent = w.agent_pid(&kept.id);
        pause(client, &kept.id, "disk").await;
        assert_eq!(w.find_agent(&kept.id), None, "its memory is free");
        assert!(!std::path::Path::new(&format!("/proc/{agent}")).exists());
        kept.is_intact(&shared, "paused").await;
        w.crash_server().await;
        kept.is_intact(&shared, "paused").await;
        let running = resume(client, &kept.id).await;
        assert_ne!(running["instance"], before["instance"], "a restore makes a new instance");
        kept.is_intact(&shared, "running").await;
        assert_eq!(
            client.sh(&kept.id, "cat /home/user/note; ps | grep -c '[s]leep 1000'").await.text(),
            "kept\n1"
        );
        // A connection to the outside was closed, and the program is told so.
        until("the connection to the outside ends cleanly", async || {
            (client.sh(&kept.id, "pidof nc || echo ended").await.stdout.trim() == "ended").then_some(())
        })
        .await;
        // The network is there as before.
        let line = format!("printf 'x\\n' | nc -w 20 {PUBLIC} 7");
        assert_eq!(client.sh(&kept.id, &line).await.stdout.trim(), "x");
        for round in 0..3 {
            kept.change(&shared, &mut Dice::new(round)).await;
            pause(client, &kept.id, "live").await;
            // From frozen to disk, as the timer would do it.
            pause(client, &kept.id, "disk").await;
            assert_eq!(w.find_agent(&kept.id), None);
            resume(client, &kept.id).await;
            kept.is_intact(&shared, "running").await;
        }
    });
}

#[test]
fn a_terminal_with_a_job_survives_memory_on_disk() {
    if criu::at_hand().is_none() {
        return;
    }
    run_with(Options::debian(), async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let opened = client
            .post(&format!("/v1/sandboxes/{id}/terminals"), json!({ "thread": "t", "cols": 90, "rows": 30 }))
            .await
            .ok();
        let terminal = opened["id"].as_str().unwrap().to_owned();
        let mut screen = Screen::attach(&client, &id, &terminal).await;
        screen.input("cd /tmp; MARK=kept; sleep 1000 & echo re''ady\n").await;
        screen.wait_for("ready").await;
        pause(&client, &id, "disk").await;
        resume(&client, &id).await;
        drop(screen);
        let mut screen = Screen::attach(&client, &id, &terminal).await;
        screen.input("echo at=$(pwd) mark=$MARK; jobs; stty size\n").await;
        screen.wait_for("at=/tmp mark=kept").await;
        screen.wait_for("Running").await;
        screen.wait_for("30 90").await;
        screen.input("kill %1; fg; exit 3\n").await;
        let exit = screen.wait_control("exit").await;
        assert_eq!(exit["exit_code"], 3, "{exit}");
    });
}

#[test]
fn stop_and_delete_work_from_every_kind_of_pause() {
    if criu::at_hand().is_none() {
        return;
    }
    run(async |w| {
        let client = w.tenant("acme").await;
        for memory in ["live", "disk"] {
            let id = client.create(json!({})).await;
            client.sh(&id, "echo kept > note; sleep 1000 > /dev/null 2>&1 &").await.text();
            pause(&client, &id, memory).await;
            let stopped = client.act(&id, "stop").await.ok();
            assert_eq!((&stopped["phase"], &stopped["held"]), (&json!("stopped"), &Value::Null), "{stopped}");
            client.act(&id, "start").await.ok();
            assert_eq!(client.sh(&id, "cat note; ps | grep '[s]leep' || true").await.text(), "kept");
            pause(&client, &id, memory).await;
            let started = Instant::now();
            client.remove(&id).await;
            assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
        }
        w.leak_check().await;
    });
}

#[test]
fn limits_of_a_paused_one_change_and_hold_when_it_runs_again() {
    if criu::at_hand().is_none() {
        return;
    }
    run(async |w| {
        let shared = Shared::quiet(w, w.tenant("acme").await);
        let client = &shared.client;
        let mut kept = Kept::create(&shared, json!({ "memory_mib": 128 }), 4).await;
        for (memory, mib) in [("live", 160), ("disk", 192)] {
            pause(client, &kept.id, memory).await;
            client.patch(&kept.path(""), json!({ "memory_mib": mib })).await.ok();
            resume(client, &kept.id).await;
            kept.is_intact(&shared, "running").await;
            let groups = atoll_tests::proc::cgroups(w.agent_pid(&kept.id));
            let limit = std::fs::read_to_string(groups["memory"].join("memory.limit_in_bytes")).unwrap();
            assert_eq!(limit.trim(), (mib << 20).to_string(), "after {memory}");
        }
    });
}

#[test]
fn without_criu_memory_on_disk_is_unsupported_and_freezing_works() {
    run_with(Options::default().env("ATOLL_CRIU", "/nonexistent"), async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let path = format!("/v1/sandboxes/{id}");
        let refused = client.post(&format!("{path}/pause"), json!({ "memory": "disk" })).await;
        let refused = refused.refused(501, "unsupported");
        assert!(refused["hint"].as_str().is_some_and(|hint| !hint.is_empty()), "{refused}");
        assert_eq!(client.sandbox(&id).await["phase"], "running", "nothing was done");
        client
            .post(&format!("{path}/snapshots"), json!({ "memory": true }))
            .await
            .refused(501, "unsupported");
        let forked = client.post(&format!("{path}/fork"), json!({ "count": 1, "memory": true })).await.ok();
        assert_eq!(forked["memory"], false, "{forked}");
        assert!(forked["memory_refused"].as_str().is_some_and(|why| !why.is_empty()), "{forked}");
        pause(&client, &id, "live").await;
        client.post(&format!("{path}/pause"), json!({ "memory": "disk" })).await.refused(501, "unsupported");
        assert_eq!(client.sandbox(&id).await["held"], "live");
        resume(&client, &id).await;
        let mut doctor = w.command();
        doctor.arg("doctor");
        let said = w.output(doctor).await;
        let said = String::from_utf8_lossy(&said.stdout).to_lowercase();
        assert!(said.contains("criu"), "doctor names what is missing: {said}");
        w.stop_server(Signal::SIGTERM).await;
        w.start_server().await;
    });
}
