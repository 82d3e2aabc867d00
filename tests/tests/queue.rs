//! The queue of a full server: places, turns of tenants, cancelling, timeouts, and a server that is killed meanwhile.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::process::{Child, Stdio};

use atoll_tests::{Client, Options, Value, World, json, run_with, until};
use reqwest::Method;

/// A server with so many places.
fn places(count: u32) -> Options {
    Options::default().env("ATOLL_LIVE_MAX", count.to_string())
}

async fn becomes(client: &Client, id: &str, phase: &str) -> Value {
    until(&format!("{id} becomes {phase}"), async || {
        let now = client.sandbox(id).await;
        (now["phase"] == phase).then_some(now)
    })
    .await
}

/// Queues a create and returns its id.
async fn enqueue(client: &Client, body: Value) -> String {
    let answer = client.post("/v1/sandboxes?wait=0", body).await;
    assert_eq!(answer.status, 202, "{answer}");
    let lease = answer.ok();
    assert_eq!((&lease["phase"], &lease["stage"]), (&json!("creating"), &json!("queued")));
    lease["id"].as_str().unwrap().to_owned()
}

async fn place(client: &Client, id: &str) -> Value {
    client.sandbox(id).await["queue"].clone()
}

#[test]
fn creates_wait_for_a_place_in_turn_and_survive_a_kill() {
    run_with(places(1), async |w| {
        let (acme, other) = (w.tenant("acme").await, w.tenant("other").await);
        let running = acme.create(json!({})).await;
        acme.post("/v1/sandboxes", json!({})).await.refused(503, "no_capacity");
        let queue = json!({ "queue": true });
        let first = enqueue(&acme, json!({ "queue": true, "name": "first" })).await;
        let second = enqueue(&acme, queue.clone()).await;
        let cancelled = enqueue(&acme, queue.clone()).await;
        let theirs = enqueue(&other, queue).await;
        assert_eq!(place(&acme, &second).await, json!({ "position": 2, "ahead": 2 }));
        assert_eq!(place(&other, &theirs).await, json!({ "position": 1, "ahead": 1 }));
        other.get(&format!("/v1/sandboxes/{first}")).await.refused(404, "sandbox_not_found");

        w.crash_server().await;
        assert_eq!(place(&acme, &first).await, json!({ "position": 1, "ahead": 0 }));
        assert_eq!(place(&acme, &cancelled).await, json!({ "position": 3, "ahead": 3 }));
        acme.remove(&cancelled).await;
        let listed = acme.get("/v1/sandboxes?phase=creating").await.ok();
        assert_eq!(listed["items"].as_array().unwrap().len(), 2);
        assert_eq!(listed["items"][1]["queue"], json!({ "position": 1, "ahead": 0 }));

        for (client, ended, next) in
            [(&acme, &running, &first), (&acme, &first, &theirs), (&other, &theirs, &second)]
        {
            client.remove(ended).await;
            let of = if next == &theirs { &other } else { &acme };
            let runs = becomes(of, next, "running").await;
            assert!(runs.get("queue").is_none(), "{runs}");
            assert_eq!(of.sh(next, "echo here").await.stdout, "here\n");
        }
        let events = acme.get(&format!("/v1/events?sandbox={first}&after=0")).await.ok();
        let kinds: Vec<_> = events["items"].as_array().unwrap().iter().map(|event| &event["kind"]).collect();
        assert!(kinds.contains(&&json!("queued")) && kinds.contains(&&json!("stage")), "{kinds:?}");
    });
}

#[test]
fn a_caller_waits_for_its_place_or_is_told_that_there_was_none() {
    run_with(places(1), async |w| {
        let acme = w.tenant("acme").await;
        let running = acme.create(json!({})).await;
        let in_vain = json!({ "queue": true, "queue_timeout_s": 1, "name": "box" });
        let refused = acme.post("/v1/sandboxes", in_vain).await.refused(504, "queue_timed_out");
        assert!(refused["hint"].as_str().unwrap().contains("queue_timeout_s"), "{refused}");
        until("it is deleted", async || (acme.get("/v1/sandboxes/box").await.status == 404).then_some(()))
            .await;
        let wrong = json!({ "queue": true, "queue_timeout_s": 100_000 });
        acme.post("/v1/sandboxes", wrong).await.refused(400, "invalid_request");
        acme.post("/v1/sandboxes", json!({ "queue_timeout_s": 5 })).await.refused(400, "invalid_request");

        let patient = acme.clone();
        let waits =
            tokio::spawn(async move { patient.post("/v1/sandboxes", json!({ "queue": true })).await });
        until("the create is queued", async || {
            let listed = acme.get("/v1/sandboxes?phase=creating").await.ok();
            (listed["items"].as_array().unwrap().len() == 1).then_some(())
        })
        .await;
        // A create that does not wait may not take the place of one that does.
        acme.post("/v1/sandboxes", json!({})).await.refused(503, "no_capacity");
        acme.remove(&running).await;
        let made = waits.await.unwrap();
        assert_eq!((made.status, &made.ok()["phase"]), (201, &json!("running")));
    });
}

fn atoll(w: &World, key: &str, words: &[&str]) -> Child {
    let mut command = w.command();
    command.env("ATOLL_API_KEY", key).args(words).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

async fn ended(child: Child) -> (bool, String, String) {
    let output = tokio::task::spawn_blocking(move || child.wait_with_output()).await.unwrap().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

#[test]
fn the_command_line_shows_the_place_and_cancels() {
    run_with(places(1), async |w| {
        let acme = w.tenant("acme").await;
        let running = acme.create(json!({})).await;
        let queued = atoll(w, acme.key(), &["create", "--queue", "--queue-timeout", "5m", "--name", "box"]);
        until("it is queued", async || {
            let found = acme.send(Method::GET, "/v1/sandboxes/box", None).await;
            (found.status == 200 && found.json()["queue"]["position"] == 1).then_some(())
        })
        .await;
        let (_, listed, _) = ended(atoll(w, acme.key(), &["ls"])).await;
        assert!(listed.contains("creating (queued, 0 ahead)"), "{listed}");
        acme.remove(&running).await;
        let (succeeded, id, said) = ended(queued).await;
        assert!(succeeded && said.contains("queued: next"), "{id} {said}");
        becomes(&acme, id.trim(), "running").await;

        let cancelled = atoll(w, acme.key(), &["create", "--queue", "--name", "next"]);
        until("it is queued", async || {
            let found = acme.send(Method::GET, "/v1/sandboxes/next", None).await;
            (found.status == 200).then_some(())
        })
        .await;
        let pid = nix::unistd::Pid::from_raw(cancelled.id().cast_signed());
        // Until its handler is there, the signal would end it without cancelling.
        until("it waits", async || {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap().trim();
            (u64::from_str_radix(caught, 16).unwrap() & 2 != 0).then_some(())
        })
        .await;
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
        let (succeeded, _, said) = ended(cancelled).await;
        assert!(!succeeded && said.contains("cancelled"), "{said}");
        until("it is deleted", async || (acme.get("/v1/sandboxes/next").await.status == 404).then_some(()))
            .await;

        let late = ["create", "--queue", "--queue-timeout", "1s"];
        let (succeeded, _, said) = ended(atoll(w, acme.key(), &late)).await;
        assert!(!succeeded && said.contains("--queue-timeout"), "{said}");
    });
}

#[test]
fn daytonas_queue_timeout_is_this_queue() {
    run_with(places(1), async |w| {
        let acme = w.tenant("acme").await;
        let running = acme.create(json!({})).await;
        let base = format!("{}/daytona/api/sandbox", acme.base());
        let http = reqwest::Client::new();
        let post = async |minutes: u32| {
            let body = json!({ "queueTimeout": minutes, "cpu": 1, "memory": 1, "disk": 1 });
            let answer = http.post(&base).bearer_auth(acme.key()).json(&body).send().await.unwrap();
            assert_eq!(answer.status(), 200);
            answer.json::<Value>().await.unwrap()
        };
        let get = async |id: &str| {
            let answer = http.get(format!("{base}/{id}")).bearer_auth(acme.key()).send().await.unwrap();
            (answer.status().as_u16(), answer.json::<Value>().await.unwrap())
        };
        let (first, second) = (post(5).await, post(1).await);
        assert_eq!((&first["state"], &first["queueTimeout"]), (&json!("creating"), &json!(5)));
        let id = |answer: &Value| answer["id"].as_str().unwrap().to_owned();
        acme.remove(&running).await;
        becomes(&acme, &id(&first), "running").await;
        assert_eq!(get(&id(&first)).await.1["state"], "started");
        // The minute passes as fast as the database can be told so.
        let second = id(&second);
        let late = "UPDATE sandbox_leases SET lease = json_set(lease, '$.queue.until.wall_ms', 1,
             '$.queue.until.boot_id', 'an earlier boot'), due_at = 1 WHERE id = ?1";
        // An orderly end: after a crash the server insists on the write-ahead log, which this connection removes.
        w.stop_server(nix::sys::signal::Signal::SIGTERM).await;
        rusqlite::Connection::open(w.data().join("sandbox.db")).unwrap().execute(late, [&second]).unwrap();
        w.start_server().await;
        let destroyed = until("the queue timeout passes", async || {
            let (status, found) = get(&second).await;
            (status == 200 && found["state"] == "destroyed").then_some(found)
        })
        .await;
        assert!(destroyed["queueTimedOutAt"].is_string(), "{destroyed}");
    });
}
