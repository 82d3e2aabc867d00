//! Creating, listing, changing and deleting sandboxes.

use serde_json::{Value, json};

use super::{ID, Request, Server, ok, refused, sandbox, text, with_events};

#[test]
fn create_prints_one_object_or_only_the_id() {
    let server = with_events("");
    let output = server.run(&["create", "--name", "box", "--label", "a=b", "--json"]);
    let made: Value = serde_json::from_slice(&output.stdout).expect("one object");
    assert_eq!(made["id"], ID);
    let output = server.run(&["create", "--timeout", "1h", "--", "python3", "-m", "http.server"]);
    assert_eq!(text(&output.stdout), format!("{ID}\n"));
    let sent = server.seen("POST /v1/sandboxes");
    assert_eq!(sent[0].json(), json!({"name": "box", "labels": {"a": "b"}}));
    assert_eq!(sent[1].json(), json!({"timeout_s": 3600, "command": ["python3", "-m", "http.server"]}));
}

#[test]
fn lists_follow_every_page() {
    let server = Server::start(|request| {
        let next = if request.line.contains("cursor=") { Value::Null } else { json!("more") };
        ok(json!({"items": [sandbox()], "next_cursor": next}))
    });
    let output = server.run(&["ls", "-q"]);
    assert_eq!(text(&output.stdout), format!("{ID}\n{ID}\n"));
}

#[test]
fn events_follow_every_page() {
    let server = Server::start(|request| {
        let first = if request.line.contains("after=1000") { 1_001 } else { 1 };
        let last = if first == 1 { 1_000 } else { 1_002 };
        let page: Vec<Value> = (first..=last)
            .map(|seq| json!({"seq": seq, "sandbox": ID, "at": "2026-01-01T00:00:00Z", "kind": "out_of_memory"}))
            .collect();
        ok(json!({ "items": page }))
    });
    let output = server.run(&["events"]);
    assert_eq!(text(&output.stdout).lines().count(), 1_002);
}

#[test]
fn rm_goes_on_past_a_failure_and_says_so_in_its_status() {
    let server = Server::start(|request| {
        if request.line.contains("gone") { refused(404, "sandbox_not_found", "gone") } else { ok(sandbox()) }
    });
    let output = server.run(&["rm", "gone", "box"]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), "box\n"));
    assert_eq!(server.run(&["rm", "-f", "gone", "box"]).status.code(), Some(0));
    assert_eq!(server.run(&["rm", "--all"]).status.code(), Some(0), "no confirmation is needed");
}

#[test]
fn verbs_of_life_send_what_was_said() {
    let server = Server::start(|request| {
        if request.line.contains("/fork") {
            return ok(json!({"sandboxes": [sandbox()], "memory": false, "memory_refused": "no CRIU here"}));
        }
        ok(sandbox())
    });
    for (words, line, body) in [
        (&["pause", "box"][..], "POST /v1/sandboxes/box/pause", Value::Null),
        (&["pause", "--memory", "disk", "a"], "POST /v1/sandboxes/a/pause", json!({"memory": "disk"})),
        (&["resume", "box"], "POST /v1/sandboxes/box/resume", Value::Null),
        (&["resize", "box", "--memory", "1g"], "PATCH /v1/sandboxes/box", json!({"memory_mib": 1_024})),
        (&["snapshot", "box"], "POST /v1/sandboxes/box/snapshots", json!({})),
        (
            &["snapshot", "create", "c", "--name", "n", "--memory"],
            "POST /v1/sandboxes/c/snapshots",
            json!({"name": "n", "memory": true}),
        ),
        (&["snapshot", "verify", "n"], "POST /v1/snapshots/n/verify", Value::Null),
        (&["snapshot", "rm", "n"], "DELETE /v1/snapshots/n", Value::Null),
        (&["rollback", "box", "n"], "POST /v1/sandboxes/box/rollback", json!({"snapshot": "n"})),
        (&["fork", "box", "-n", "2"], "POST /v1/sandboxes/box/fork", json!({"count": 2})),
        (&["archive", "box"], "POST /v1/sandboxes/box/archive", Value::Null),
        (&["restore", "box"], "POST /v1/sandboxes/box/restore", Value::Null),
        (&["restore", "--from", "k"], "POST /v1/sandboxes?wait=1", json!({"archive": "k"})),
        (
            &["hold", "box", "90m", "--reason", "r"],
            "POST /v1/sandboxes/box/hold",
            json!({"for_s": 5_400, "reason": "r"}),
        ),
        (&["hold", "box", "--release"], "DELETE /v1/sandboxes/box/hold", Value::Null),
        (&["extend", "box", "1h"], "POST /v1/sandboxes/box/extend", json!({"seconds": 3_600})),
        (&["thread", "ls"], "GET /v1/threads?limit=100", Value::Null),
        (&["thread", "show", "t/1"], "GET /v1/threads/t%2F1", Value::Null),
        (&["thread", "end", "t/1"], "DELETE /v1/threads/t%2F1", Value::Null),
    ] {
        let output = server.run(words);
        assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
        let seen = server.seen(line);
        assert_eq!(seen.first().map(Request::json), Some(body), "{words:?}");
    }
    let output = server.run(&["fork", "box", "--memory"]);
    assert_eq!(text(&output.stdout), format!("{ID}\n"));
    assert!(text(&output.stderr).contains("no CRIU here"), "{}", text(&output.stderr));
    assert_eq!(server.run(&["resize", "box"]).status.code(), Some(2), "nothing to change");
}

#[test]
fn work_that_outlasts_the_servers_patience_is_waited_for() {
    let looks = std::sync::atomic::AtomicU32::new(0);
    let server = Server::start(move |request| {
        if request.line.starts_with("POST") {
            return refused(504, "deadline_exceeded", "it takes long; the work goes on");
        }
        let first = looks.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0;
        let mut shown = sandbox();
        shown["phase"] = json!(if first { "archiving" } else { "archived" });
        ok(shown)
    });
    let output = server.run(&["archive", "box"]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), "box\n"), "{}", text(&output.stderr));
    assert!(server.seen("GET").len() >= 2);
}

#[test]
fn several_are_gone_through_past_a_failure() {
    let server = Server::start(|request| {
        if request.line.contains("/b/") { refused(409, "asleep", "no") } else { ok(sandbox()) }
    });
    let output = server.run(&["pause", "a", "b", "c"]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), "a\nc\n"));
}
