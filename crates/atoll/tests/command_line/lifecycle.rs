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

/// A server whose sandboxes have a start command that is no program.
fn with_failed_command() -> Server {
    Server::start(|request| {
        let mut made = sandbox();
        made["command"] = json!(["w2"]);
        made["command_failure"] =
            json!({"exit_code": 127, "message": "command not found: 'w2'", "at": "2026-01-01T00:00:01Z"});
        match request.line.as_str() {
            line if line.contains("/logs") => (200, "text/event-stream", String::new()),
            line if line.split('?').next() == Some("GET /v1/sandboxes") => {
                ok(json!({"items": [made], "next_cursor": null}))
            }
            _ => ok(made),
        }
    })
}

#[test]
fn a_word_that_is_no_program_makes_no_sandbox() {
    let server = with_failed_command();
    let output = server.run(&["create", "w2"]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), ""));
    let told = text(&output.stderr);
    assert!(told.contains("command not found: 'w2'") && told.contains("atoll create --name w2"), "{told}");
    assert_eq!(server.seen("DELETE").len(), 1, "the sandbox is deleted");
    // The sandbox of a thread may be older, and several words are a command.
    for words in [&["create", "--thread", "t", "w2"][..], &["create", "--", "w2", "x"]] {
        let output = server.run(words);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), format!("{ID}\n").as_str()));
        assert!(text(&output.stderr).contains("warning: the start command of sandbox"), "{output:?}");
    }
    assert_eq!(server.seen("DELETE").len(), 1, "no other sandbox is deleted");
}

#[test]
fn a_start_command_that_failed_is_shown() {
    let server = with_failed_command();
    let listed = server.run(&["ls"]);
    let listed = text(&listed.stdout);
    assert!(listed.contains("COMMAND") && listed.contains("failed (127)"), "{listed}");
    let shown = server.run(&["inspect", "box"]);
    assert!(text(&shown.stdout).contains("(status 127): command not found: 'w2'"), "{shown:?}");
    let logged = server.run(&["logs", "box"]);
    assert_eq!(
        text(&logged.stderr),
        "atoll: the start command failed at 2026-01-01T00:00:01Z: command not found: 'w2'\n"
    );
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
fn events_are_the_newest_or_all_after_a_number() {
    let server = Server::start(|request| {
        let (first, last) = match request.line.as_str() {
            line if line.contains("after=0&") => (1, 500),
            line if line.contains("after=500") => (501, 502),
            line if line.contains("after=") => (1, 0),
            _ => (501, 502),
        };
        let page: Vec<Value> = (first..=last)
            .map(|seq| json!({"seq": seq, "sandbox": ID, "at": "2026-01-01T00:00:00Z", "kind": "out_of_memory"}))
            .collect();
        ok(json!({ "items": page }))
    });
    let lines = |words: &[&str]| text(&server.run(words).stdout).lines().count();
    assert_eq!(lines(&["events"]), 2);
    assert_eq!(server.seen("GET /v1/events")[0].line, "GET /v1/events?limit=100");
    assert_eq!(lines(&["events", "-n", "7"]), 2);
    assert_eq!(server.seen("GET /v1/events")[1].line, "GET /v1/events?limit=7");
    assert_eq!(lines(&["events", "--after", "0"]), 502, "every page");
}

/// A server with two sandboxes of the key's tenant and one of another.
fn two_tenants() -> Server {
    let sandbox_of = |id: &str, tenant: &str| {
        let mut one = sandbox();
        (one["id"], one["tenant"]) = (json!(id), json!(tenant));
        one
    };
    let (a, b, c) = (sandbox_of("a1", "t1"), sandbox_of("a2", "t1"), sandbox_of("b1", "t2"));
    Server::start(move |request| match request.line.as_str() {
        "GET /v1/keys/current" => {
            ok(json!({"id": "k", "tenant": "t1", "tenant_name": "acme", "scope": "admin"}))
        }
        "GET /v1/tenants" => {
            let of = |id: &str, name: &str| json!({"id": id, "name": name, "quota": {}, "created_at": "2026-01-01T00:00:00Z"});
            ok(json!({"items": [of("t1", "acme"), of("t2", "blue")]}))
        }
        line if line.starts_with("GET /v1/sandboxes") && line.contains("tenant=t1") => {
            ok(json!({"items": [a, b]}))
        }
        line if line.starts_with("GET /v1/sandboxes?") || line == "GET /v1/sandboxes" => {
            ok(json!({"items": [a, b, c]}))
        }
        _ => ok(a.clone()),
    })
}

#[test]
fn rm_all_deletes_what_the_tenant_of_the_key_has_and_no_more() {
    let server = two_tenants();
    let asked = server.run(&["rm", "--all"]);
    let said = text(&asked.stderr);
    assert!(asked.status.code() == Some(2) && said.contains("2 sandboxes of acme"), "{said}");
    assert!(server.seen("DELETE").is_empty(), "nobody agreed");
    assert!(server.run(&["rm", "--all", "--force"]).status.success());
    let deleted = |server: &Server| -> Vec<String> {
        let path = |line: String| line.split(['/', '?']).nth(3).unwrap_or_default().to_owned();
        server.seen("DELETE").into_iter().map(|request| path(request.line)).collect()
    };
    assert_eq!(deleted(&server), ["a1", "a2"]);

    let server = two_tenants();
    let asked = server.run(&["rm", "--all-tenants"]);
    let said = text(&asked.stderr);
    assert!(said.contains("3 sandboxes of 2 tenants (2 of acme, 1 of blue)"), "{said}");
    assert!(asked.status.code() == Some(2) && server.seen("DELETE").is_empty());
    assert!(server.run(&["rm", "--all-tenants", "--force"]).status.success());
    assert_eq!(deleted(&server), ["a1", "a2", "b1"]);
}

#[test]
fn ls_names_the_tenants_where_it_shows_several() {
    let server = two_tenants();
    let all = server.run(&["ls"]);
    let lines: Vec<&str> = text(&all.stdout).lines().collect();
    assert!(lines[0].contains("TENANT"), "{lines:?}");
    assert!(lines[1].contains("acme") && lines[3].contains("blue"), "{lines:?}");
    let own = server.run(&["ls", "--tenant", "t1"]);
    assert!(!text(&own.stdout).contains("TENANT"), "{}", text(&own.stdout));
}

#[test]
fn rm_goes_on_past_a_failure_and_says_so_in_its_status() {
    let server = Server::start(|request| {
        if request.line.contains("gone") {
            return refused(404, "sandbox_not_found", "gone");
        }
        if request.line.contains("/keys/current") {
            return ok(json!({"id": "k", "tenant": "t", "tenant_name": "acme", "scope": "user"}));
        }
        ok(sandbox())
    });
    let output = server.run(&["rm", "gone", "box"]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), "box\n"));
    assert_eq!(server.run(&["rm", "-f", "gone", "box"]).status.code(), Some(0));
    assert_eq!(server.run(&["rm", "--all"]).status.code(), Some(0), "no confirmation is needed");
}

#[test]
fn rm_names_the_snapshots_that_it_keeps() {
    let server = Server::start(|request| {
        if request.line.starts_with("GET /v1/snapshots?") {
            let one = json!({"id": "sbcdefghijklmnopqrst", "name": "clean", "tenant": "t", "tenant_wide": false, "sandbox": ID,
                "sandbox_name": "box", "provider": "container", "state": "ready", "template": "host", "template_version": "v",
                "env_names": [], "user": "user", "workdir": "/", "command": null, "cpu": 1.0, "memory_mib": 512,
                "disk_mib": 2048, "pids": 256, "network": "allow-all", "memory": false, "bytes": 1, "stood_still_us": 0,
                "created_at": "2026-01-01T00:00:00Z"});
            return ok(json!({"items": [one], "next_cursor": null}));
        }
        ok(sandbox())
    });
    let output = server.run(&["rm", "box"]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), "box\n"));
    assert_eq!(
        text(&output.stderr),
        format!("atoll: kept the snapshots of box: clean; `atoll rm --snapshots {ID}` removes them\n")
    );
    let output = server.run(&["rm", "--snapshots", "box"]);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
    assert_eq!(server.seen("DELETE")[1].line, "DELETE /v1/sandboxes/box?snapshots=1");
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
