//! Network policies as people use them: from the command line to the wire and back, on a whole server.
//! What holds against an adversary is in the suites `egress_*`.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::Write;
use std::process::{Output, Stdio};

use atoll_tests::connection_probes::{fetch, logged};
use atoll_tests::internet::{EVIL, GOOD, GREETING, Say};
use atoll_tests::{Client, Options, Value, World, json, run, run_with, until};
use reqwest::Method;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const CANARY: &str = "canary-71c0ffee";

/// Runs `atoll` with these words and this input.
async fn atoll(w: &World, words: &[&str], input: &str) -> Output {
    let mut command = w.command();
    command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let input = input.to_owned();
    let ran = tokio::task::spawn_blocking(move || {
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    });
    ran.await.unwrap()
}

/// As [`atoll`], fails unless it succeeded; what it printed.
async fn ok(w: &World, words: &[&str]) -> String {
    let done = atoll(w, words, "").await;
    assert!(done.status.success(), "atoll {words:?}: {} {}", done.status, text(&done.stderr));
    text(&done.stdout)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A world whose internet knows a good name and an evil one.
fn with_names(body: impl AsyncFnOnce(&World, &Client) + Send) {
    run_with(Options::debian(), async |w| {
        w.internet.says("good.test", Say::a([GOOD]));
        w.internet.says("api.good.test", Say::a([GOOD]));
        w.internet.says("evil.test", Say::a([EVIL]));
        body(w, &w.admin()).await;
    });
}

#[test]
fn a_policy_is_made_shown_changed_and_logged_from_the_command_line() {
    with_names(async |w, client| {
        let id =
            ok(w, &["create", "--name", "box", "--allow-domain", "good.test", "--connections", "50"]).await;
        let id = id.trim();
        assert_eq!(fetch(client, id, "http://good.test/").await.as_deref(), Ok(GREETING));
        assert!(fetch(client, id, "http://evil.test/").await.is_err());
        let page = ok(w, &["inspect", "box"]).await;
        for told in ["custom: only listed destinations", "names     good.test", "50 connections"] {
            assert!(page.contains(told), "{told}: {page}");
        }
        logged(client, id, json!({ "what": "http", "verdict": "allowed", "name": "good.test" })).await;
        logged(client, id, json!({ "what": "dns", "verdict": "refused", "name": "evil.test" })).await;
        let table = ok(w, &["egress", "box"]).await;
        let line =
            |word: &str, name: &str| table.lines().any(|line| line.contains(word) && line.contains(name));
        assert!(
            table.starts_with("TIME") && line("allowed", "good.test:80") && line("refused", "evil.test"),
            "{table}"
        );
        let refused = ok(w, &["egress", "box", "--verdict", "refused", "--since", "10m", "--json"]).await;
        let refused: Value = serde_json::from_str(&refused).unwrap();
        assert!(refused.as_array().unwrap().iter().all(|record| record["verdict"] == "refused"), "{refused}");
        // One more name, without a restart; then nothing.
        ok(w, &["update", "box", "--allow-domain", "evil.test"]).await;
        assert_eq!(fetch(client, id, "http://evil.test/").await.as_deref(), Ok(GREETING));
        assert_eq!(fetch(client, id, "http://good.test/").await.as_deref(), Ok(GREETING));
        ok(w, &["update", "box", "--network", "deny-all"]).await;
        assert!(fetch(client, id, "http://good.test/").await.is_err());
        assert_eq!(client.sandbox(id).await["network"], "deny-all");
    });
}

#[test]
fn what_is_wrong_is_said_by_its_field_and_nothing_has_changed() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let policy =
            json!({ "mode": "custom", "allow_domains": ["good.test"], "limits": { "connections": 5 } });
        let id = client.create(json!({ "network": policy })).await;
        let path = format!("/v1/sandboxes/{id}");
        let transform = |value: Value| json!({ "mode": "custom", "transforms": [value] });
        for (network, field) in [
            (json!("open"), "network"),
            (json!({ "allow_domains": [] }), "mode"),
            (
                json!({ "mode": "custom", "allow_domains": ["good.test", "*.*.test"] }),
                "network.allow_domains[1]",
            ),
            (json!({ "mode": "custom", "allow_cidrs": ["0x7f000001"] }), "network.allow_cidrs[0]"),
            (json!({ "mode": "custom", "allow_cidrs": ["100.64.0.0/10"] }), "network.allow_cidrs"),
            (json!({ "mode": "deny-all", "allow_cidrs": ["203.0.113.0/24"] }), "network.mode"),
            (
                transform(json!({ "domain": "a.test", "inject_headers": { "Host": "b.test" } })),
                "network.transforms",
            ),
            (transform(json!({ "domain": "a.test", "inject_headers": { "X": "{secret:NONE}" } })), "NONE"),
            (transform(json!({ "domain": "a.test", "inject_headers": { "X": "…" } })), "network.transforms"),
            (json!({ "mode": "allow-all", "limits": { "down_bytes_per_s": 10 } }), "network.limits"),
        ] {
            let answer = client.patch(&path, json!({ "network": network, "pids": 77 })).await;
            let refused = answer.refused(400, "invalid_request");
            assert!(refused["message"].as_str().unwrap().contains(field), "{network}: {refused}");
        }
        let now = client.sandbox(&id).await;
        assert!(now["network"] == policy && now["pids"] != 77, "{now}");
        let key = ["--api-key", client.key()];
        let bad = atoll(w, &[&key[..], &["create", "--allow-cidr", "10.0.0.0/8"]].concat(), "").await;
        let said = text(&bad.stderr);
        assert!(
            bad.status.code() == Some(1) && said.contains("private") && said.contains("--egress-private"),
            "{said}"
        );
    });
}

#[test]
fn what_a_sandbox_needed_is_learned_and_then_holds() {
    with_names(async |w, client| {
        let id = ok(w, &["create", "--name", "box", "--learn"]).await;
        let id = id.trim();
        assert_eq!(fetch(client, id, "http://good.test/").await.as_deref(), Ok(GREETING));
        let learned = until("the policy names what was reached", async || {
            let policy = ok(w, &["egress", "box", "--policy"]).await;
            policy.contains("good.test").then_some(policy)
        })
        .await;
        let policy: Value = serde_json::from_str(&learned).unwrap();
        assert_eq!(
            (&policy["mode"], &policy["allow_domains"]),
            (&json!("custom"), &json!(["good.test"])),
            "{policy}"
        );
        let file = w.data().join("../policy.json");
        std::fs::write(&file, &learned).unwrap();
        ok(w, &["update", "box", "--network", file.to_str().unwrap()]).await;
        assert_eq!(client.sandbox(id).await["network"], policy);
        assert_eq!(fetch(client, id, "http://good.test/").await.as_deref(), Ok(GREETING));
        assert!(fetch(client, id, "http://evil.test/").await.is_err());
        // From a pipe too.
        let piped = atoll(w, &["create", "--network", "-"], &learned).await;
        assert!(piped.status.success(), "{}", text(&piped.stderr));
    });
}

#[test]
fn a_secret_goes_from_a_pipe_into_requests_and_nowhere_else() {
    with_names(async |w, client| {
        let kept = atoll(w, &["secret", "create", "KEY"], &format!("{CANARY}\n")).await;
        assert_eq!(text(&kept.stdout), "KEY\n", "{}", text(&kept.stderr));
        let inject = "api.good.test:Authorization=Bearer {secret:KEY}";
        let id = ok(w, &["create", "--name", "box", "--network", "custom", "--inject", inject]).await;
        let id = id.trim();
        let code =
            "import urllib.request as u; print(u.urlopen('https://api.good.test/path').read().decode())";
        let ran = client.exec(id, json!({ "argv": ["python3", "-c", code] })).await;
        assert_eq!(ran.text(), GREETING, "{ran:?}");
        let seen = w.internet.requests_to(GOOD);
        let sent = seen.last().unwrap().header("authorization");
        assert_eq!(sent.as_deref(), Some(&*format!("Bearer {CANARY}")));
        logged(client, id, json!({ "verdict": "allowed", "name": "api.good.test" })).await;
        for words in [
            &["inspect", "box"][..],
            &["inspect", "box", "--json"],
            &["egress", "box", "--json"],
            &["secret", "ls", "--json"],
            &["events", "box", "--json"],
            &["exec", "box", "--", "env"],
        ] {
            let shown = ok(w, words).await;
            assert!(!shown.contains(CANARY), "{words:?}: {shown}");
        }
        assert!(ok(w, &["secret", "ls"]).await.contains("1 sandbox"));
        let used = atoll(w, &["secret", "rm", "KEY"], "").await;
        assert!(used.status.code() == Some(1) && text(&used.stderr).contains(id), "{}", text(&used.stderr));
        assert!(!w.log().contains(CANARY), "the server's log holds the value");
        let rotated = atoll(w, &["secret", "rotate", "KEY"], "canary-two").await;
        assert!(rotated.status.success(), "{}", text(&rotated.stderr));
        client.exec(id, json!({ "argv": ["python3", "-c", code] })).await.text();
        let sent = w.internet.requests_to(GOOD).last().unwrap().header("authorization");
        assert_eq!(sent.as_deref(), Some("Bearer canary-two"));
    });
}

#[test]
fn the_log_is_followed_as_it_happens_and_outlives_a_crash() {
    with_names(async |w, client| {
        let id =
            client.create(json!({ "network": { "mode": "custom", "allow_domains": ["good.test"] } })).await;
        let path = format!("/v1/sandboxes/{id}/egress");
        assert!(fetch(client, &id, "http://evil.test/").await.is_err());
        logged(client, &id, json!({ "verdict": "refused", "name": "evil.test" })).await;
        let mut events = client.events(Method::GET, &format!("{path}?follow=1"), None).await;
        let first = events.next().await.unwrap();
        assert_eq!((first.name.as_str(), &first.data["name"]), ("dns", &json!("evil.test")));
        assert_eq!(fetch(client, &id, "http://good.test/").await.as_deref(), Ok(GREETING));
        let live = events.find("http").await;
        assert_eq!(
            (&live.data["name"], &live.data["verdict"]),
            (&json!("good.test"), &json!("allowed")),
            "{live:?}"
        );
        drop(events);
        w.crash_server().await;
        logged(client, &id, json!({ "verdict": "refused", "name": "evil.test" })).await;
        logged(client, &id, json!({ "what": "http", "verdict": "allowed", "name": "good.test" })).await;
        // A client that returns continues at its last record.
        let last = client.get(&format!("{path}?limit=1")).await.ok()["items"][0]["at"].clone();
        let later = client.get(&format!("{path}?since={}", last.as_str().unwrap())).await.ok();
        assert_eq!(later["items"], json!([]));
    });
}

#[test]
fn the_layer_of_a_tenant_is_set_and_taken_away_from_the_command_line() {
    with_names(async |w, _| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({ "network": "allow-all" })).await;
        assert_eq!(fetch(&client, &id, "http://evil.test/").await.as_deref(), Ok(GREETING));
        let shown = ok(w, &["tenant", "network", "acme", "--allow-domain", "good.test"]).await;
        assert!(shown.contains("good.test"), "{shown}");
        assert!(fetch(&client, &id, "http://evil.test/").await.is_err());
        assert_eq!(fetch(&client, &id, "http://good.test/").await.as_deref(), Ok(GREETING));
        assert_eq!(client.sandbox(&id).await["network"], "allow-all", "what it asked for");
        assert!(ok(w, &["tenant", "network", "acme"]).await.contains("custom"));
        ok(w, &["tenant", "network", "acme", "--none"]).await;
        assert_eq!(fetch(&client, &id, "http://evil.test/").await.as_deref(), Ok(GREETING));
    });
}

/// A client that sends everything, with pauses, before it looks for an answer.
async fn upload(key: &str, bytes: usize) -> std::io::Result<String> {
    let mut stream = tokio::net::TcpStream::connect("127.0.0.1:7070").await?;
    let head = format!(
        "POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n\
         Content-Type: application/json\r\nContent-Length: {bytes}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await?;
    let piece = vec![b' '; 64 << 10];
    for sent in 0..bytes / piece.len() {
        stream.write_all(&piece).await?;
        if sent % 16 == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }
    let mut answer = vec![0; 4_096];
    let read = stream.read(&mut answer).await?;
    Ok(text(&answer[..read]))
}

#[test]
fn a_refusal_reaches_a_client_that_is_still_sending() {
    run(async |w| {
        let client = w.tenant("acme").await;
        for round in 0..20 {
            let ten = futures::future::join_all((0..10).map(|_| upload(client.key(), 4 << 20))).await;
            for answer in ten {
                let answer =
                    answer.unwrap_or_else(|error| panic!("round {round}: the answer is lost: {error}"));
                assert!(
                    answer.starts_with("HTTP/1.1 413") && answer.contains("payload_too_large"),
                    "{answer}"
                );
            }
        }
    });
}
