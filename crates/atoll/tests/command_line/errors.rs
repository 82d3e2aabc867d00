//! Wrong usage, refusals and their hints, in text and in JSON.

use std::{
    io::Write,
    process::{Command, Stdio},
};

use serde_json::{Value, json};

use super::{Server, ok, refused, sandbox, text};

#[test]
fn wrong_usage_is_json_where_json_was_asked_for() {
    let server = Server::start(|_| ok(Value::Null));
    for words in [&["--json", "create", "--no-such-option"][..], &["cp", "--json", "one"]] {
        let output = server.run(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        let said: Value = serde_json::from_slice(&output.stderr).expect("JSON");
        assert_eq!(said["code"], "usage", "{said}");
        assert!(
            said["message"].as_str().is_some_and(|text| !text.is_empty() && !text.contains("error:")),
            "{said}"
        );
    }
}

#[test]
fn help_is_a_command_too() {
    let server = Server::start(|_| ok(Value::Null));
    for words in [&["help"][..], &["help", "cp"], &["help", "template", "make"]] {
        let output = server.run(words);
        assert!(output.status.success() && text(&output.stdout).contains("Usage:"), "{words:?}");
    }
}

#[test]
fn a_built_in_template_that_is_not_made_is_made_and_not_pulled() {
    let server = Server::start(|request| match request.line.as_str() {
        "GET /v1/templates" => ok(json!({"items": [{"name": "host"}]})),
        _ => refused(404, "template_not_found", "there is no template code-interpreter"),
    });
    let output = server.run(&["create", "-T", "code-interpreter"]);
    let said = text(&output.stderr);
    assert!(said.contains("atoll template make code-interpreter") && !said.contains("pull"), "{said}");
}

#[test]
fn errors_are_json_where_json_was_asked_for() {
    let server = Server::start(|_| refused(409, "phase_conflict", "it is stopped"));
    let output = server.run(&["inspect", "box", "--json"]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), ""));
    let said: Value = serde_json::from_slice(&output.stderr).expect("JSON");
    assert_eq!((&said["code"], &said["request_id"]), (&json!("phase_conflict"), &json!("req-1")));
}

#[test]
fn an_unknown_name_gets_the_nearest_one() {
    let server = Server::start(|request| match request.line.as_str() {
        "GET /v1/sandboxes?limit=200" => ok(json!({"items": [sandbox()]})),
        _ => refused(404, "sandbox_not_found", "there is no sandbox bix"),
    });
    let output = server.run(&["inspect", "bix"]);
    assert!(text(&output.stderr).contains("did you mean box?"), "{}", text(&output.stderr));
}

#[test]
fn a_reader_that_leaves_ends_the_command_quietly() {
    let server = Server::start(|_| {
        let many: Vec<Value> = std::iter::repeat_with(sandbox).take(5_000).collect();
        ok(json!({"items": many, "next_cursor": null}))
    });
    let mut child = server
        .command(&["ls"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(141), ""));
}

#[test]
fn no_server_is_said_with_the_way_to_start_one() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_atoll"));
    let output = command.env_clear().args(["--url", "http://127.0.0.1:1", "ls"]).output().expect("runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("atoll serve"), "{}", text(&output.stderr));
}

#[test]
fn a_slip_is_answered_with_what_was_meant() {
    let server = Server::start(|request| match request.line.as_str() {
        "POST /v1/secrets" => refused(409, "already_exists", "there is a secret A"),
        "PUT /v1/secrets/B" => refused(404, "secret_not_found", "there is no secret B"),
        "POST /v1/sandboxes/box/previews" => {
            refused(400, "invalid_request", "expires_s must be between 1 and 2592000 seconds")
        }
        line if line.starts_with("DELETE") => refused(404, "preview_not_found", "box has no preview x"),
        line if line.starts_with("GET /v1/tenants") => ok(json!({"items": []})),
        _ => refused(400, "invalid_request", "network.allow_domains[0] is not valid: no at line 1 column 58"),
    });
    let piped = |words: &[&str]| {
        let mut file = tempfile::tempfile().expect("temporary file");
        file.write_all(b"s3cret").expect("writable");
        std::io::Seek::rewind(&mut file).expect("seekable");
        server.command(words).stdin(file).output().expect("runs")
    };
    for (output, hint) in [
        (piped(&["secret", "create", "A"]), "atoll secret rotate A"),
        (piped(&["secret", "rotate", "B"]), "atoll secret create B"),
        (server.run(&["secret", "create", "A", "hunter2-value"]), "--from-env"),
        (server.run(&["preview", "box", "80", "--expires", "60d"]), "30d"),
        (server.run(&["preview", "rm", "box", "x"]), "atoll preview ls box"),
        (server.run(&["tenant", "network", "acme"]), "atoll tenant ls"),
        (server.run(&["create", "--allow-domain", "203.0.113.7"]), "--allow-cidr"),
        (server.run(&["update", "box", "--allow-cidr", "a.com"]), "--allow-domain"),
    ] {
        let said = text(&output.stderr);
        assert!(!output.status.success() && said.contains(" hint:") && said.contains(hint), "{said}");
        assert!(!said.contains("hunter2"), "{said}");
    }
    let output = server.run(&["create", "--allow-domain", "http://x"]);
    let said = text(&output.stderr);
    assert!(said.contains("not valid: no\n") && !said.contains("line 1"), "{said}");
}
