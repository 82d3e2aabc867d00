//! API keys and secrets: their sources, and what is never printed.

use std::{io::Write, process::Stdio};

use serde_json::json;

use super::{Server, ok, refused, text, with_events};

#[test]
fn without_a_key_the_hint_says_where_one_was_looked_for() {
    let server = Server::start(|_| {
        let body = json!({"code": "unauthenticated", "message": "this request needs a key", "hint": "send a header"});
        (401, "application/json", body.to_string())
    });
    std::fs::remove_file(server.data.path().join("admin.key")).expect("it was there");
    let output = server.run(&["ls"]);
    let said = text(&output.stderr);
    assert!(
        said.contains("ATOLL_API_KEY") && said.contains(&*server.data.path().to_string_lossy()),
        "{said}"
    );
}

#[test]
fn the_admin_key_is_not_shown_to_another_machine() {
    let server = with_events("");
    // The address leads to this machine, but does not say so.
    let url = server.url.replace("127.0.0.1", "0.0.0.0");
    let output = server.command(&["--url", &url, "inspect", "box"]).output().expect("runs");
    let seen = server.seen("GET");
    assert!(!seen.is_empty() && seen.iter().all(|request| request.key.is_none()), "{seen:?} {output:?}");
}

#[test]
fn a_secret_comes_from_stdin_a_file_or_a_variable_and_is_never_printed() {
    let server = Server::start(|request| match request.line.as_str() {
        "POST /v1/secrets" => (201, "application/json", json!({"name": "A", "used_by": 0}).to_string()),
        "DELETE /v1/secrets/used" => refused(409, "secret_in_use", "sandbox x uses the secret used"),
        line if line.starts_with("DELETE") => (204, "", String::new()),
        _ => ok(json!({"name": "A", "used_by": 1})),
    });
    let mut child = server
        .command(&["secret", "create", "A"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    child.stdin.take().expect("piped").write_all(b"canary\n").expect("written");
    let piped = child.wait_with_output().expect("it ends");
    assert_eq!((piped.status.code(), text(&piped.stdout)), (Some(0), "A\n"));
    let file = server.data.path().join("value");
    std::fs::write(&file, "canary").expect("writable");
    let from_file = server.run(&["secret", "rotate", "A", "--from-file", file.to_str().expect("text")]);
    let from_env = server
        .command(&["secret", "rotate", "A", "--from-env", "V"])
        .env("V", "canary")
        .output()
        .expect("runs");
    for output in [&piped, &from_file, &from_env] {
        assert!(output.status.success() && !text(&output.stdout).contains("canary"), "{output:?}");
    }
    assert_eq!(server.seen("POST /v1/secrets")[0].json(), json!({"name": "A", "value": "canary"}));
    let rotated = server.seen("PUT /v1/secrets/A");
    assert!(rotated.len() == 2 && rotated.iter().all(|r| r.json() == json!({"value": "canary"})));
    for words in [
        &["secret", "create", "A"][..],
        &["secret", "create", "A", "--from-env", "NOT_SET_AT_ALL"],
        &["secret", "create", "A", "--from-file", "/nowhere/at/all"],
    ] {
        assert_eq!(server.run(words).status.code(), Some(2), "{words:?}");
    }
    let removed = server.run(&["secret", "rm", "used", "B"]);
    assert_eq!((removed.status.code(), text(&removed.stdout)), (Some(1), "B\n"));
    assert!(text(&removed.stderr).contains("uses the secret"), "{}", text(&removed.stderr));
}

#[test]
fn a_key_for_an_sdk_is_a_new_one_and_the_admins_only_where_that_was_said() {
    let server = Server::start(|request| match request.line.as_str() {
        "POST /v1/keys" => {
            ok(json!({"id": "k1", "tenant": "default", "scope": "user", "secret": "atl_fresh"}))
        }
        _ => ok(json!({})),
    });
    let output = server.run(&["env", "leap0", "--with-key", "--proxy", "never"]);
    assert!(text(&output.stdout).contains("LEAP0_API_KEY='atl_fresh'"), "{}", text(&output.stdout));
    assert!(text(&output.stderr).contains("tenant default"), "{}", text(&output.stderr));
    assert_eq!(server.seen("POST /v1/keys")[0].json(), json!({"name": "env-leap0", "scope": "user"}));
    let output = server.run(&["env", "leap0", "--with-key", "--admin", "--proxy", "never"]);
    assert!(text(&output.stdout).contains("LEAP0_API_KEY='atl_secret'"));
    assert_eq!(server.seen("POST /v1/keys").len(), 1);
    assert!(!server.run(&["env", "leap0", "--admin"]).status.success());

    let of_tenant = Server::start(|_| refused(403, "forbidden", "only an admin makes keys"));
    let output = of_tenant.run(&["env", "e2b", "--with-key", "--proxy", "never"]);
    let shown = text(&output.stdout);
    assert!(shown.contains("E2B_API_KEY='e2b_secret'"), "{shown}");
    assert!(text(&output.stderr).contains("the key that you use") && output.status.success());

    let stranger = Server::start(|_| refused(401, "unauthenticated", "the API key is not known"));
    let output = stranger.run(&["env", "e2b", "--with-key"]);
    let said = text(&output.stderr);
    assert!(said.contains("is not a key of") && text(&output.stdout) == "false\n", "{said}");
}
