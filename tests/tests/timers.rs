//! Timers and idleness: work keeps a sandbox awake, silence does not, and nothing fires early.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::print_stderr, reason = "what was measured is part of the result")]

use std::time::{Duration, Instant};

use atoll_tests::internet::PUBLIC;
use atoll_tests::terminal::Screen;
use atoll_tests::{Client, Value, criu, json, run, until};
use futures::future::join_all;
use nix::sys::signal::Signal;
use reqwest::Method;

async fn phase(client: &Client, id: &str) -> String {
    client.sandbox(id).await["phase"].as_str().unwrap().to_owned()
}

async fn becomes(client: &Client, id: &str, wanted: &str) -> Value {
    until(&format!("{id} is {wanted}"), async || {
        let now = client.sandbox(id).await;
        (now["phase"] == wanted).then_some(now)
    })
    .await
}

fn because(sandbox: &Value) -> Vec<String> {
    let reasons = sandbox["awake"]["because"].as_array().unwrap();
    reasons.iter().map(|why| why.as_str().unwrap().to_owned()).collect()
}

#[test]
fn work_of_every_kind_keeps_a_sandbox_awake_and_silence_does_not() {
    run(async |w| {
        let client = w.tenant("acme").await;
        // Each gets its work at once, long before it would be idle.
        let idle = json!({ "auto_pause_s": 3, "network": "allow-all" });
        let make = async || client.create(idle.clone()).await;
        let quiet = make().await;
        let detach = async |id: &str, line: &str| {
            client.try_exec(id, json!({ "argv": ["/bin/sh", "-c", line], "detach": true })).await.ok();
        };
        let cpu = make().await;
        detach(&cpu, "while :; do i=$((i+1)); done").await;
        let flow = make().await;
        detach(
            &flow,
            &format!("while :; do printf '%04000d' 1; sleep 0.3; done | nc {PUBLIC} 7 > /dev/null"),
        )
        .await;
        let terminal = make().await;
        let opened = client
            .post(
                &format!("/v1/sandboxes/{terminal}/terminals"),
                json!({ "thread": "t", "cols": 80, "rows": 24 }),
            )
            .await
            .ok();
        let screen = Screen::attach(&client, &terminal, opened["id"].as_str().unwrap()).await;
        let held = make().await;
        client
            .post(&format!("/v1/sandboxes/{held}/hold"), json!({ "for_s": 600, "reason": "a test" }))
            .await
            .ok();
        let command = make().await;
        let stream_path = format!("/v1/sandboxes/{command}/exec/stream");
        let stream =
            client.events(Method::POST, &stream_path, Some(&json!({ "argv": ["sleep", "600"] }))).await;
        let paused = becomes(&client, &quiet, "paused").await;
        assert_eq!(
            (&paused["reason"]["code"], &paused["held"]),
            (&json!("idle"), &json!("live")),
            "{paused}"
        );
        tokio::time::sleep(Duration::from_secs(5)).await;
        for (id, why) in [
            (&cpu, "cpu"),
            (&flow, "network"),
            (&terminal, "terminal"),
            (&held, "hold"),
            (&command, "command"),
        ] {
            let now = client.sandbox(id).await;
            assert_eq!(now["phase"], "running", "{why}: {now}");
            assert!(because(&now).contains(&why.to_owned()), "{why} is not among {:?}", because(&now));
        }
        // A look is no work.
        for _ in 0..5 {
            client.get(&format!("/v1/sandboxes/{quiet}/awake")).await.ok();
        }
        assert_eq!(phase(&client, &quiet).await, "paused");
        // The work ends, and so does the day.
        drop((screen, stream));
        client.delete(&format!("/v1/sandboxes/{held}/hold")).await.ok();
        for id in [&cpu, &flow, &command] {
            client.try_exec(id, json!({ "argv": ["/bin/sh", "-c", "kill -9 -1"], "user": "user" })).await;
        }
        for id in [&cpu, &flow, &terminal, &held, &command] {
            becomes(&client, id, "paused").await;
        }
    });
}

/// Attack C13.
#[test]
fn a_restart_of_the_server_fires_nothing_early() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let idle = client.create(json!({ "auto_pause_s": 6 })).await;
        let timed = client.create(json!({ "timeout_s": 6, "on_timeout": "stop" })).await;
        let due = client.sandbox(&timed).await["timeout_at"].clone();
        tokio::time::sleep(Duration::from_millis(2_500)).await;
        w.crash_server().await;
        let restarted = Instant::now();
        // Nobody knows what happened while it was away, so idle time begins anew: by the old clock it would be over by now.
        while restarted.elapsed() < Duration::from_millis(5_200) {
            assert_eq!(phase(&client, &idle).await, "running", "after {:?}", restarted.elapsed());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        becomes(&client, &idle, "paused").await;
        let stopped = becomes(&client, &timed, "stopped").await;
        assert_eq!(stopped["timeout_at"], due, "a timeout is absolute: {stopped}");
        assert!(stopped["phase_at"].as_str() >= due.as_str(), "not before its time: {stopped}");
        // What was due while the server was down happens at once.
        let late = client.create(json!({ "timeout_s": 600, "on_timeout": "pause" })).await;
        client.patch(&format!("/v1/sandboxes/{late}"), json!({ "timeout_s": 1 })).await.ok();
        w.stop_server(Signal::SIGKILL).await;
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        w.start_server().await;
        becomes(&client, &late, "paused").await;
    });
}

#[test]
fn timers_lead_from_pause_to_disk_from_stop_to_archive_and_to_the_end() {
    if criu::at_hand().is_none() {
        return;
    }
    run(async |w| {
        let client = w.tenant("acme").await;
        let written = client.create(json!({ "auto_pause_s": 1, "checkpoint_after_s": 1 })).await;
        let stops = client.create(json!({ "auto_stop_s": 1, "auto_archive_s": 1 })).await;
        let goes = client.create(json!({ "auto_delete_s": 0 })).await;
        let never = client.create(json!({ "auto_delete_s": -1, "auto_archive_s": -1 })).await;
        client.sh(&stops, "echo kept > note").await.text();
        client.act(&goes, "stop").await;
        client.act(&never, "stop").await.ok();
        becomes(&client, &goes, "deleted").await;
        until("its memory goes to disk", async || {
            (client.sandbox(&written).await["held"] == "disk").then_some(())
        })
        .await;
        let archived = becomes(&client, &stops, "archived").await;
        assert_eq!(archived["reason"]["code"], "aged", "{archived}");
        client.patch(&format!("/v1/sandboxes/{stops}"), json!({ "auto_stop_s": -1 })).await.ok();
        assert_eq!(client.sh(&stops, "cat note").await.text(), "kept");
        assert_eq!(phase(&client, &never).await, "stopped");
        client.patch(&format!("/v1/sandboxes/{never}"), json!({ "auto_delete_s": 1 })).await.ok();
        becomes(&client, &never, "deleted").await;
    });
}

#[test]
fn a_lifetime_is_extended_and_never_shortened_by_it() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({ "timeout_s": 100 })).await;
        let path = format!("/v1/sandboxes/{id}");
        let before = client.sandbox(&id).await["timeout_at"].as_str().unwrap().to_owned();
        let same = client.post(&format!("{path}/extend"), json!({ "seconds": 5 })).await.ok();
        assert_eq!(same["timeout_at"], before.as_str(), "never earlier");
        let later = client.post(&format!("{path}/extend"), json!({ "seconds": 500 })).await.ok();
        assert!(later["timeout_at"].as_str().unwrap() > before.as_str(), "{later}");
        // Commands do not move it; an update may shorten it.
        client.sh(&id, "true").await.text();
        assert_eq!(client.sandbox(&id).await["timeout_at"], later["timeout_at"]);
        let shorter = client.patch(&path, json!({ "timeout_s": 1, "on_timeout": "pause" })).await.ok();
        assert!(shorter["timeout_at"].as_str().unwrap() < before.as_str(), "{shorter}");
        becomes(&client, &id, "paused").await;
    });
}

#[test]
fn the_end_of_a_server_or_thread_does_what_on_exit_says() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let make = async |on_exit: &str, thread: Option<&str>| {
            client.create(json!({ "on_exit": on_exit, "thread": thread })).await
        };
        let pauses = make("pause", Some("one")).await;
        // Further sandboxes of a thread are forks.
        let forked = client.post(&format!("/v1/sandboxes/{pauses}/fork"), json!({ "count": 2 })).await.ok();
        let child = |at: usize| forked["sandboxes"][at]["id"].as_str().unwrap().to_owned();
        let (keeps, goes) = (child(0), child(1));
        for (id, on_exit) in [(&keeps, "keep"), (&goes, "destroy")] {
            client.patch(&format!("/v1/sandboxes/{id}"), json!({ "on_exit": on_exit })).await.ok();
        }
        let stranger = make("destroy", Some("two")).await;
        let ended = client.delete("/v1/threads/one").await.ok();
        assert_eq!(ended["items"].as_array().unwrap().len(), 3, "{ended}");
        becomes(&client, &pauses, "paused").await;
        becomes(&client, &goes, "deleted").await;
        assert_eq!(
            (phase(&client, &keeps).await, phase(&client, &stranger).await),
            ("running".into(), "running".into())
        );
        w.tenant("other").await.delete("/v1/threads/two").await.ok();
        assert_eq!(phase(&client, &stranger).await, "running", "threads of others are not mine");
        client.act(&pauses, "resume").await.ok();
        // A crash is no end.
        w.crash_server().await;
        assert_eq!(phase(&client, &pauses).await, "running");
        w.stop_server(Signal::SIGTERM).await;
        w.start_server().await;
        becomes(&client, &pauses, "paused").await;
        becomes(&client, &stranger, "deleted").await;
        assert_eq!(phase(&client, &keeps).await, "running");
    });
}

/// Attack F14.
#[test]
fn a_hundred_timers_in_one_second_are_in_time_and_the_api_answers() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let spec = json!({ "memory_mib": 32, "pids": 16, "network": "deny-all", "on_timeout": "pause", "timeout_s": 600 });
        let mut ids = Vec::new();
        for _ in 0..10 {
            ids.extend(join_all((0..10).map(|_| client.create(spec.clone()))).await);
        }
        let moved = ids.iter().map(async |id| {
            client.patch(&format!("/v1/sandboxes/{id}"), json!({ "timeout_s": 3 })).await.ok();
        });
        join_all(moved).await;
        let (mut took, started) = (Vec::new(), Instant::now());
        while started.elapsed() < Duration::from_secs(6) {
            let asked = Instant::now();
            client.get("/v1/sandboxes?limit=1").await.ok();
            took.push(asked.elapsed());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        took.sort_unstable();
        let p99 = took[took.len() * 99 / 100];
        let page = until("all of them fired", async || {
            let page = client.get("/v1/sandboxes?limit=100").await.ok();
            page["items"].as_array().unwrap().iter().all(|one| one["phase"] == "paused").then_some(page)
        })
        .await;
        let mut latest = 0.0_f64;
        for one in page["items"].as_array().unwrap() {
            latest = latest.max(seconds(&one["phase_at"]) - seconds(&one["timeout_at"]));
        }
        eprintln!("timers: the latest by {latest:.3} s, p99 of the API {p99:?} in {} requests", took.len());
        assert!(latest <= 5.0, "a timer was late by {latest} s");
        // LIMIT: the bench holds the bar of 50 ms with a release build; this one has debug code and company.
        assert!(p99 < Duration::from_secs(2), "the API took {p99:?}");
    });
}

/// Seconds of the day in a time of the API; tests do not run over midnight often enough to matter.
fn seconds(time: &Value) -> f64 {
    let clock = time.as_str().unwrap().split('T').nth(1).unwrap().trim_end_matches('Z');
    let parts: Vec<f64> = clock.split(':').map(|part| part.parse().unwrap()).collect();
    parts[0] * 3_600.0 + parts[1] * 60.0 + parts[2]
}
