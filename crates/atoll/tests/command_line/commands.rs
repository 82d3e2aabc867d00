//! Commands and files in a sandbox: streams, statuses, stdin, copies.

use std::{
    io::{Read, Write},
    process::Stdio,
};

use serde_json::{Value, json};

use super::{ID, Server, ok, refused, sandbox, text, with_events};

#[test]
fn run_passes_streams_and_status_through_and_deletes() {
    let server = with_events(
        "event: start\ndata: {\"pid\":7}\n\nevent: stdout\ndata: {\"data\":\"42\\n\"}\n\n\
         event: stderr\ndata: {\"data_base64\":\"/w==\"}\n\nevent: exit\ndata: {\"exit_code\":3}\n\n",
    );
    let output = server.run(&["run", "--memory", "64m", "--", "python3", "-c", "print(6*7)"]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(3), "42\n"));
    assert_eq!(output.stderr, b"\xff");
    let created = &server.seen("POST /v1/sandboxes?wait=1")[0];
    assert_eq!(created.json()["memory_mib"], 64);
    assert_eq!(created.key.as_deref(), Some("Bearer atl_secret"));
    let ran = &server.seen(&format!("POST /v1/sandboxes/{ID}/exec/stream"))[0];
    assert_eq!(ran.json(), json!({"argv": ["python3", "-c", "print(6*7)"]}));
    assert_eq!(server.seen("DELETE").len(), 1);
}

#[test]
fn timeouts_and_signals_have_the_status_of_a_shell() {
    for (exit, want) in
        [("{\"exit_code\":124,\"timed_out\":true}", 124), ("{\"exit_code\":137,\"signal\":9}", 137)]
    {
        let events = format!("event: start\ndata: {{\"pid\":7}}\n\nevent: exit\ndata: {exit}\n\n");
        let server = with_events(events.leak());
        assert_eq!(server.run(&["run", "--timeout", "1s", "sleep", "9"]).status.code(), Some(want));
    }
}

#[test]
fn our_own_failures_are_125_and_say_what_to_try() {
    let server = Server::start(|request| match request.line.as_str() {
        "GET /health" => ok(json!({})),
        _ => refused(503, "no_capacity", "this node has no capacity"),
    });
    let output = server.run(&["run", "true"]);
    assert_eq!(output.status.code(), Some(125));
    assert_eq!(text(&output.stderr), "error: this node has no capacity\n   id: req-1 (no_capacity)\n");
    assert_eq!(server.run(&["run", "--memory", "lots", "true"]).status.code(), Some(125));
    assert_eq!(server.run(&["--json", "run", "--memory", "lots", "true"]).status.code(), Some(125));
}

#[test]
fn a_missing_command_is_127_and_one_that_cannot_start_126() {
    let server = Server::start(|_| refused(400, "invalid_argument", "command not found: 'nope'"));
    assert_eq!(server.run(&["exec", "box", "nope"]).status.code(), Some(127));
    let server = Server::start(|_| refused(400, "invalid_argument", "'/etc': permission denied"));
    assert_eq!(server.run(&["exec", "box", "/etc"]).status.code(), Some(126));
}

#[test]
fn a_line_for_a_shell_and_an_image_get_a_hint() {
    let server = Server::start(|request| match request.line.as_str() {
        line if line.contains("/exec") => refused(400, "invalid_argument", "command not found: 'x'"),
        _ => ok(sandbox()),
    });
    for (words, hint) in [
        (&["exec", "box", "ls -la"][..], "to run it in a shell: atoll exec box -- sh -c 'ls -la'"),
        (&["run", "echo hi"], "to run it in a shell: atoll run -- sh -c 'echo hi'"),
        (&["run", "ubuntu:22.04", "bash"], "to run in an image: atoll run --image ubuntu:22.04 -- bash"),
    ] {
        let output = server.run(words);
        assert_eq!(output.status.code(), Some(127), "{words:?}");
        assert!(text(&output.stderr).contains(hint), "{words:?}: {output:?}");
    }
}

#[test]
fn piped_input_is_sent_and_ended() {
    let server = with_events(
        "event: start\ndata: {\"pid\":7}\n\n: a while passes\n\nevent: exit\ndata: {\"exit_code\":0}\n\n",
    );
    let mut file = tempfile::tempfile().expect("temporary file");
    file.write_all(b"hello").expect("writable");
    std::io::Seek::rewind(&mut file).expect("seekable");
    let output = server.command(&["exec", "-i", "box", "cat"]).stdin(file).output().expect("runs");
    assert!(output.status.success());
    let ran = &server.seen("POST /v1/sandboxes/box/exec/stream")[0];
    assert_eq!(ran.json(), json!({"argv": ["cat"], "stdin": "hello"}));
}

#[test]
fn exec_without_i_leaves_stdin_to_the_loop_around_it() {
    let server = with_events("event: start\ndata: {\"pid\":7}\n\nevent: exit\ndata: {\"exit_code\":0}\n\n");
    let mut file = tempfile::tempfile().expect("temporary file");
    file.write_all(b"one\ntwo\n").expect("writable");
    std::io::Seek::rewind(&mut file).expect("seekable");
    let shared = file.try_clone().expect("a second handle with the same position");
    let output = server.command(&["exec", "box", "cat"]).stdin(shared).output().expect("runs");
    assert!(output.status.success());
    assert_eq!(server.seen("POST /v1/sandboxes/box/exec/stream")[0].json(), json!({"argv": ["cat"]}));
    let mut left = String::new();
    file.read_to_string(&mut left).expect("readable");
    assert_eq!(left, "one\ntwo\n", "exec without -i must not read stdin");
}

#[test]
fn code_prints_where_things_belong_and_ends_with_its_status() {
    let server = with_events(
        "event: start\ndata: {\"context\":\"c\",\"execution_count\":1}\n\n\
         event: stdout\ndata: {\"data\":\"out\\n\"}\n\nevent: stderr\ndata: {\"data\":\"err\\n\"}\n\n\
         event: result\ndata: {\"is_main\":true,\"text\":\"42\",\"png\":\"iVBOR\"}\n\n\
         event: exception\ndata: {\"name\":\"E\",\"value\":\"v\",\"traceback\":\"\"}\n\n\
         event: end\ndata: {\"timed_out\":false}\n\n",
    );
    let done = server.run(&["code", "box", "-l", "js", "-e", "A=1", "--timeout", "5s", "--", "6*7"]);
    assert_eq!(
        (done.status.code(), text(&done.stdout), text(&done.stderr)),
        (Some(1), "out\n42\n", "err\nE: v\n")
    );
    let sent = server.seen("POST /v1/sandboxes/box/code/stream")[0].json();
    let body = json!({"code": "6*7", "language": "javascript", "env": {"A": "1"}, "timeout_s": 5.0});
    assert_eq!(sent, body);
    server.run(&["code", "box", "--context", "c", "x"]);
    let sent = server.seen("POST /v1/sandboxes/box/code/stream")[1].json();
    assert_eq!(sent, json!({"code": "x", "context": "c"}));

    let cut = with_events("event: stdout\ndata: {\"data\":\"half\"}\n\n").run(&["code", "box", "x"]);
    assert_eq!((cut.status.code(), text(&cut.stdout)), (Some(125), "half"));
    let lost = "event: error\ndata: {\"code\":\"sandbox_unavailable\",\"message\":\"gone\"}\n\n";
    let lost = with_events(lost).run(&["code", "box", "x"]);
    assert!(lost.status.code() == Some(125) && text(&lost.stderr).contains("gone"), "{lost:?}");
}

#[test]
fn with_json_a_command_is_one_object() {
    let result = json!({"exit_code": 4, "signal": null, "timed_out": false, "stdout": "x", "stderr": "",
        "truncated": false, "pid": 7, "duration_ms": 1, "of a newer server": true});
    let answer = result.clone();
    let server = Server::start(move |_| ok(answer.clone()));
    let output = server.run(&["--json", "exec", "box", "--", "sh", "-c", "exit 4"]);
    assert_eq!(output.status.code(), Some(4));
    assert_eq!(serde_json::from_slice::<Value>(&output.stdout).expect("JSON"), result);
}

#[test]
fn a_terminal_without_one_is_our_failure() {
    let server = with_events("");
    assert_eq!(server.run(&["exec", "-t", "box", "sh"]).status.code(), Some(125));
    assert_eq!(server.run(&["sh", "box"]).status.code(), Some(2));
}

#[test]
fn a_mistyped_option_starts_nothing() {
    let server = with_events("");
    assert_eq!(server.run(&["run", "--memry", "64m", "true"]).status.code(), Some(125));
    assert_eq!(server.run(&["create", "--nam", "box"]).status.code(), Some(2));
    assert!(server.seen("").is_empty());
}

#[test]
fn files_go_in_and_come_out() {
    let server = Server::start(|request| {
        let line = request.line.as_str();
        if line.contains("/files/stat?path=%2Ftmp%2Fx") {
            ok(json!({"name": "x", "path": "/tmp/x", "kind": "file", "size": 2, "mode": "4750"}))
        } else if line.contains("/files/stat") {
            refused(404, "file_not_found", "no such file")
        } else if line.starts_with("GET") && line.contains("/files?path=") {
            (200, "application/octet-stream", "hi".to_owned())
        } else {
            ok(sandbox())
        }
    });
    let here = tempfile::tempdir().expect("temporary folder");
    let (source, target) = (here.path().join("in"), here.path().join("out"));
    std::fs::write(&source, "data").expect("writable");
    let source = source.to_str().expect("text");
    assert!(server.run(&["cp", source, "box:/tmp/new"]).status.success());
    let sent = &server.seen("PUT")[0];
    assert!(sent.line.contains("path=%2Ftmp%2Fnew") && sent.line.contains("mode=644"), "{}", sent.line);
    assert_eq!(sent.body, b"data");
    assert!(server.run(&["cp", "box:/tmp/x", target.to_str().expect("text")]).status.success());
    assert_eq!(std::fs::read(&target).expect("written"), b"hi");
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&target).expect("there").permissions());
    assert_eq!(mode & 0o7777, 0o750);
    assert_eq!(text(&server.run(&["cp", "box:/tmp/x", "-"]).stdout), "hi");
    assert_eq!(server.run(&["cp", source, "elsewhere"]).status.code(), Some(2));
}

#[test]
fn names_reach_a_terminal_as_text_and_a_pipe_as_they_are() {
    const NAME: &str = "a\u{1b}[2J\u{1b}]0;owned\u{7}\rb";
    const SHOWN: &str = r"a\u{1b}[2J\u{1b}]0;owned\u{7}\rb";
    let server = Server::start(|request| match request.line.as_str() {
        line if line.contains("/grep") => {
            ok(json!({"items": [{"path": NAME, "line": 3, "text": NAME}], "truncated": false}))
        }
        line if line.starts_with("GET /v1/events") => {
            let event = json!({"seq": 1, "sandbox": ID, "at": "2026-01-01T00:00:00Z", "kind": "updated", "fields": [NAME]});
            ok(json!({"items": [event]}))
        }
        line if line.starts_with("DELETE") => {
            refused(404, "sandbox_not_found", &format!("no sandbox {NAME}"))
        }
        line if line.starts_with("GET /v1/sandboxes") => {
            let mut named = sandbox();
            named["name"] = json!(NAME);
            ok(json!({"items": [named]}))
        }
        _ => ok(json!({"items": []})),
    });
    for words in ["grep box a", "events", "ls", "rm box"] {
        let line = format!("'{}' {words}", env!("CARGO_BIN_EXE_atoll"));
        let mut command = std::process::Command::new("script");
        command.args(["-qec", &line, "/dev/null"]).env_clear().stdin(Stdio::null());
        command.env("PATH", "/usr/bin:/bin").env("SHELL", "/bin/sh").env("NO_COLOR", "1");
        command.env("ATOLL_URL", &server.url).env("ATOLL_DATA", server.data.path());
        let output = command.output().expect("`script` of the package bsdutils");
        let seen = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(seen.contains(SHOWN), "{words}: {seen:?}");
        assert!(!seen.contains("\u{1b}[2J") && !seen.contains("\u{1b}]0;"), "{words}: {seen:?}");
    }
    let piped = server.run(&["grep", "box", "a"]);
    assert_eq!(text(&piped.stdout), format!("{NAME}:3:{NAME}\n"));
}
