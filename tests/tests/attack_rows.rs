//! Rows of the attack catalogue that no other suite covers; each test names its row.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::{Duration, Instant};

use atoll_tests::{Options, json, run, run_with, until};
use futures::future::join_all;
use reqwest::Method;

/// Attack A19: the limit is one byte, soft and hard. With a pipe as core_pattern the kernel starts the host's helper for a
/// limit of zero, and refuses for a limit of one; a file of one byte is never written.
#[test]
fn a_crash_inside_leaves_no_core_and_starts_no_helper() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let limits = client.sh(&id, "grep 'Max core file size' /proc/self/limits").await;
        let words: Vec<&str> = limits.stdout.split_whitespace().collect();
        assert_eq!(&words[4..6], ["1", "1"], "{}", limits.stdout);
        let crashed =
            client.sh(&id, "cd /tmp; sh -c 'kill -SEGV $$'; ls /tmp/core* 2>/dev/null | wc -l").await;
        assert_eq!(crashed.stdout.trim().lines().last(), Some("0"), "{crashed:?}");
        let raised = client.sh_root(&id, "ulimit -c unlimited && echo raised").await;
        assert!(!raised.stdout.contains("raised"), "{raised:?}");
    });
}

/// Attack B10: a storm of events while nobody reads the watch, and the end of what is watched.
#[test]
fn a_storm_of_file_events_is_cut_and_told() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({ "memory_mib": 256 })).await;
        let deep = format!("/tmp/watched/{}", "d".repeat(200));
        client.sh(&id, &format!("mkdir -p {deep}")).await;
        let path = format!("/v1/sandboxes/{id}/files/watch?path=/tmp/watched&recursive=1");
        let mut events = client.events(Method::GET, &path, None).await;
        let before = memory_kib(w.server_pid());
        // Long names, so that what is not read fits into no buffer on the way.
        let storm = format!(
            "i=0; while [ $i -lt 60000 ]; do : > {deep}/{}$((i % 500)); i=$((i+1)); done; rm -rf /tmp/watched",
            "x".repeat(200)
        );
        let done = client.exec(&id, json!({ "argv": ["sh", "-c", storm], "timeout_s": 110 })).await;
        assert_eq!(done.code, 0, "{done:?}");
        let grown = memory_kib(w.server_pid()).saturating_sub(before);
        assert!(grown < 64 << 10, "the server holds {grown} KiB more for a watch that nobody reads");
        let mut overflow = false;
        let end = Instant::now() + Duration::from_secs(120);
        // Less than the reader's own patience, so that a silence is told as what it is.
        let pause = Duration::from_secs(30);
        while let Ok(Some(event)) = tokio::time::timeout(pause, events.next()).await {
            assert!(Instant::now() < end, "the watch goes on and on without an overflow");
            overflow |= event.name == "overflow" || event.data["kind"] == "overflow";
            if overflow {
                break;
            }
        }
        assert!(overflow, "lost events are told");
        assert_eq!(client.sh(&id, "echo alive").await.stdout, "alive\n");
    });
}

/// Attack C14: far more creates at once than the node takes; every one is answered, refusals say when to come back.
#[test]
fn a_thousand_creates_at_once_are_all_answered_and_leave_nothing() {
    run_with(Options::default().env("ATOLL_LIVE_MAX", "40"), async |w| {
        let client = w.tenant("acme").await;
        let answers = join_all((0..1_000).map(|_| client.post("/v1/sandboxes", json!({})))).await;
        let made = answers.iter().filter(|answer| answer.status == 201).count();
        assert_eq!(made, 40, "exactly as many as there is room for");
        for refused in answers.iter().filter(|answer| answer.status != 201) {
            assert!(matches!(refused.status, 429 | 503), "{refused}");
            assert!(refused.headers.contains_key("retry-after"), "{refused}");
        }
        let witness = client.get("/v1/sandboxes?limit=100").await.ok();
        assert_eq!(witness["items"].as_array().unwrap().len(), 40);
        w.delete_all().await;
        until("room is there again", async || {
            (client.post("/v1/sandboxes", json!({})).await.status == 201).then_some(())
        })
        .await;
    });
}

/// Attack F07: a second server over the same folder is refused with the reason, and the first one goes on.
#[test]
fn a_second_server_over_the_same_folder_is_refused() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({})).await;
        let mut second = w.command();
        second.args(["serve", "--listen", "127.0.0.1:7999", "--tls-port", "0"]);
        let done = w.output(second).await;
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(!done.status.success(), "{said}");
        assert!(said.contains("another") || said.contains("in use") || said.contains("lock"), "{said}");
        assert_eq!(client.sh(&id, "echo mine").await.stdout, "mine\n");
    });
}

/// Attack F07: a copy has the identity of the server that it was taken from. Started beside it, it would take its sandboxes
/// over and end those that it does not know.
#[test]
fn a_copied_folder_is_refused_while_the_original_is_served() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let before = client.create(json!({})).await;
        let copy = w.folder().join("copy");
        std::fs::create_dir(&copy).unwrap();
        for name in ["server.id", "sandbox.db", "sandbox.db-wal", "secret.key", "admin.key"] {
            std::fs::copy(w.data().join(name), copy.join(name)).unwrap();
        }
        let after = client.create(json!({})).await;
        let mut second = w.command();
        second.env("ATOLL_DATA", &copy).args(["serve", "--listen", "127.0.0.1:7999", "--tls-port", "0"]);
        let done = w.output(second).await;
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(!done.status.success(), "{said}");
        assert!(said.contains("is a copy of") && said.contains("server.id"), "{said}");
        for id in [before, after] {
            assert_eq!(client.sh(&id, "echo mine").await.stdout, "mine\n");
        }
    });
}

/// Attack N25: what is no filter, cursor, order or name is refused or found nowhere; nothing becomes part of a statement.
#[test]
fn filters_cursors_and_names_are_data() {
    run(async |w| {
        let (red, blue) = (w.tenant("red").await, w.tenant("blue").await);
        let id = red.create(json!({ "name": "mine", "labels": { "team": "red" } })).await;
        let hostile = [
            "' OR '1'='1",
            "'; DROP TABLE sandbox_leases; --",
            "%",
            "_",
            "mine' UNION SELECT * FROM api_keys --",
            "\u{0}",
            "(a+)+$",
            "../../etc/passwd",
            "\u{202e}mine",
        ];
        for text in hostile {
            let coded: String = text.bytes().map(|byte| format!("%{byte:02X}")).collect();
            for query in [
                format!("/v1/sandboxes?label=team={coded}"),
                format!("/v1/sandboxes?template={coded}"),
                format!("/v1/sandboxes?cursor={coded}"),
                format!("/v1/sandboxes?phase={coded}"),
                format!("/v1/sandboxes?order={coded}"),
                format!("/v1/events?sandbox={coded}"),
                format!("/v1/sandboxes/{coded}"),
                format!("/v1/snapshots?cursor={coded}"),
                format!("/v1/volumes/{coded}"),
                format!("/v1/templates/{coded}"),
            ] {
                for client in [&red, &blue] {
                    let answer = client.raw(Method::GET, &query).send().await.unwrap();
                    let status = answer.status().as_u16();
                    let body = answer.text().await.unwrap();
                    assert!(matches!(status, 200 | 400 | 404), "{query}: {status} {body}");
                    assert!(status != 200 || !body.contains(&id), "{query} found what it must not: {body}");
                }
            }
            let named = red.post("/v1/sandboxes", json!({ "name": text })).await;
            assert_eq!(named.status, 400, "{text:?} is no name: {named}");
        }
        assert_eq!(red.get("/v1/sandboxes?label=team=red").await.ok()["items"][0]["id"], id);
        assert_eq!(red.sandbox(&id).await["phase"], "running");
    });
}

fn memory_kib(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
