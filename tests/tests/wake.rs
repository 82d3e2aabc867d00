//! Waking: a request for a sandbox that sleeps wakes it, once, if its lease lets it, and only for who may use it.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::{Duration, Instant};

use atoll_tests::soak::calls::Shared;
use atoll_tests::soak::kept::Kept;
use atoll_tests::{Client, Value, criu, json, run, until};
use futures::future::join_all;

/// Brings a sandbox to sleep in one of four ways.
async fn sleep_as(client: &Client, id: &str, how: &str) {
    let path = format!("/v1/sandboxes/{id}");
    let (tail, body, phase) = match how {
        "live" | "disk" => ("pause", json!({ "memory": how }), "paused"),
        "stopped" => ("stop", Value::Null, "stopped"),
        _ => ("archive", Value::Null, "archived"),
    };
    let body = Some(&body).filter(|body| !body.is_null());
    let asleep = client.send(reqwest::Method::POST, &format!("{path}/{tail}"), body).await.ok();
    assert_eq!(asleep["phase"], phase, "{asleep}");
}

/// How often it has become running, as its events tell.
async fn wakes(client: &Client, id: &str) -> usize {
    let events = client.get(&format!("/v1/events?sandbox={id}&limit=500")).await.ok();
    let events = events["items"].as_array().unwrap().clone();
    events.iter().filter(|event| event["kind"] == "phase" && event["to"] == "running").count()
}

#[test]
fn a_hundred_requests_wake_a_sandbox_once() {
    if criu::at_hand().is_none() {
        return;
    }
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        client.sh(&id, "echo kept > note").await.text();
        for how in ["live", "disk", "stopped", "archived"] {
            sleep_as(&client, &id, how).await;
            let before = wakes(&client, &id).await;
            let answers =
                join_all((0..100).map(|_| client.try_exec(&id, json!({ "argv": ["cat", "note"] })))).await;
            let done = answers.iter().filter(|a| a.status == 200 && a.json()["stdout"] == "kept\n").count();
            assert_eq!(done, 100, "{how}: all are served");
            assert_eq!(wakes(&client, &id).await, before + 1, "{how}: woken once");
            let reason = client.sandbox(&id).await["reason"]["code"].clone();
            assert!(reason == "woken" || reason == "completed" || reason == "requested", "{how}: {reason}");
        }
    });
}

#[test]
fn every_kind_of_request_wakes_and_looking_does_not() {
    if criu::at_hand().is_none() {
        return;
    }
    run(async |w| {
        let shared = Shared::quiet(w, w.tenant("acme").await);
        let client = &shared.client;
        let mut kept = Kept::create(&shared, json!({ "name": "sleeper" }), 5).await;
        let path = kept.path("");
        let woken = async || client.sandbox("sleeper").await["phase"] == "running";
        for how in ["live", "disk"] {
            sleep_as(client, &kept.id, how).await;
            for look in ["", "/awake", "/lineage", "/metrics"] {
                let seen = client.get(&format!("{path}{look}")).await;
                assert!(seen.status == 200 || seen.code() == "phase_conflict", "{seen}");
                assert!(!woken().await, "GET {look} woke it ({how})");
            }
            client.get("/v1/sandboxes").await.ok();
            client.get(&format!("/v1/events?sandbox={}", kept.id)).await.ok();
            client.get(&format!("/v1/snapshots?sandbox={}", kept.id)).await.ok();
            client.patch(&path, json!({ "labels": { "a": how } })).await.ok();
            client.post(&format!("{path}/hold"), json!({ "for_s": 60 })).await.ok();
            client.post(&format!("{path}/extend"), json!({ "seconds": 60 })).await.ok();
            assert!(!woken().await, "looking woke it ({how})");
            assert_eq!(client.read_file(&kept.id, "/etc/passwd").await.status, 200);
            assert!(woken().await, "reading a file wakes ({how})");
            sleep_as(client, &kept.id, how).await;
            client.write_file(&kept.id, "/tmp/x", "x").await.ok();
            sleep_as(client, &kept.id, how).await;
            client.get(&format!("{path}/processes")).await.ok();
            sleep_as(client, &kept.id, how).await;
            client
                .post(&format!("{path}/terminals"), json!({ "thread": how, "cols": 80, "rows": 24 }))
                .await
                .ok();
            assert!(woken().await);
            kept.is_intact(&shared, "running").await;
        }
    });
}

#[test]
fn explicit_sandboxes_sleep_until_they_are_started() {
    if criu::at_hand().is_none() {
        return;
    }
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({ "wake": "explicit" })).await;
        for how in ["live", "disk", "stopped", "archived"] {
            sleep_as(&client, &id, how).await;
            let refused = client.try_exec(&id, json!({ "argv": ["true"] })).await.refused(409, "asleep");
            assert!(
                refused["hint"].as_str().is_some_and(|h| h.contains("resume") || h.contains("start")),
                "{refused}"
            );
            client.read_file(&id, "/etc/passwd").await.refused(409, "asleep");
            client.act(&id, "resume").await.ok();
            client.sh(&id, "true").await.text();
        }
        client.patch(&format!("/v1/sandboxes/{id}"), json!({ "wake": "any" })).await.ok();
        sleep_as(&client, &id, "live").await;
        client.sh(&id, "true").await.text();
    });
}

#[test]
fn strangers_wake_nobody() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let other = w.tenant("other").await;
        let id = client.create(json!({ "name": "mine" })).await;
        sleep_as(&client, &id, "live").await;
        for name in [id.as_str(), "mine", &id[..6]] {
            other.try_exec(name, json!({ "argv": ["true"] })).await.refused(404, "sandbox_not_found");
            other.read_file(name, "/etc/passwd").await.refused(404, "sandbox_not_found");
            for verb in ["resume", "start", "pause", "stop", "archive", "restore"] {
                other.act(name, verb).await.refused(404, "sandbox_not_found");
            }
        }
        w.client("atl_0000000000000000000000000000000000000000")
            .try_exec(&id, json!({ "argv": ["true"] }))
            .await
            .refused(401, "unauthenticated");
        assert_eq!(client.sandbox(&id).await["phase"], "paused");
    });
}

#[test]
fn waking_a_frozen_sandbox_is_quick_and_one_that_cannot_be_woken_says_why() {
    if criu::at_hand().is_none() {
        return;
    }
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        // A command in one that was awake, and one in one that slept, in turn: what is left is the wake.
        let (mut awake, mut woken) = (Vec::new(), Vec::new());
        for _ in 0..20 {
            for (sleeps, took) in [(false, &mut awake), (true, &mut woken)] {
                if sleeps {
                    sleep_as(&client, &id, "live").await;
                }
                let started = Instant::now();
                client.sh(&id, "true").await.text();
                took.push(started.elapsed());
            }
        }
        awake.sort_unstable();
        woken.sort_unstable();
        let (plain, median) = (awake[10], woken[10]);
        assert!(
            median < plain * 3 + Duration::from_millis(100),
            "the median command with a wake took {median:?}, without one {plain:?}"
        );
        // A sandbox whose memory on disk was lost cannot be woken, and no request waits forever.
        sleep_as(&client, &id, "disk").await;
        w.stop_server(nix::sys::signal::Signal::SIGKILL).await;
        let images = w.data().join("pool/checkpoints").join(&id);
        if images.is_dir() {
            damage_below(&images);
            w.start_server().await;
            let answer = client.try_exec(&id, json!({ "argv": ["true"] })).await;
            assert!(answer.status >= 400, "{answer}");
            assert!(matches!(answer.code().as_str(), "wake_failed" | "damaged"), "{answer}");
            until("it rests", async || {
                let phase = client.sandbox(&id).await["phase"].clone();
                (phase == "paused" || phase == "failed").then_some(())
            })
            .await;
            // Its files are still there for who gives the memory up.
            client.act(&id, "stop").await.ok();
            client.act(&id, "start").await.ok();
            client.sh(&id, "true").await.text();
        } else {
            w.start_server().await;
        }
    });
}

/// Turns a byte over in every file below.
fn damage_below(folder: &std::path::Path) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            damage_below(&path);
        } else if let Ok(mut bytes) = std::fs::read(&path)
            && path.extension().is_some_and(|ending| ending == "img")
            && !bytes.is_empty()
        {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 0xff;
            std::fs::write(&path, bytes).unwrap();
        }
    }
}
