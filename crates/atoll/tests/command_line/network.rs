//! Network options, the egress log, and learned policies.

use serde_json::{Value, json};

use super::{Server, ok, sandbox, text};

/// A server with one sandbox and this policy, which returns the requests that it received.
fn with_network(network: Value) -> Server {
    let held = sandbox();
    Server::start(move |request| {
        let mut shown = held.clone();
        shown["network"] = network.clone();
        match request.line.as_str() {
            line if line.starts_with("POST /v1/sandboxes?") => (201, "application/json", shown.to_string()),
            _ => ok(shown),
        }
    })
}

#[test]
fn network_options_are_one_policy() {
    let server = with_network(json!("allow-all"));
    let policy = server.data.path().join("policy.json");
    std::fs::write(&policy, r#"{"mode": "custom", "allow_domains": ["a.com"]}"#).expect("writable");
    let file = policy.to_str().expect("text");
    let words =
        ["create", "--network", file, "--allow-domain", "b.com", "--inject", "c.com:X=1", "--up", "1m"];
    assert!(server.run(&words).status.success());
    assert_eq!(
        server.seen("POST /v1/sandboxes?")[0].json()["network"],
        json!({"mode": "custom", "allow_domains": ["a.com", "b.com"],
            "transforms": [{"domain": "c.com", "inject_headers": {"X": "1"}}], "limits": {"up_bytes_per_s": 1_048_576}})
    );
    let refused = server.run(&["create", "--network", "alow-all"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("alow-all"), "{}", text(&refused.stderr));
    let refused = server.run(&["run", "--network", "alow-all", "--", "true"]);
    assert_eq!(refused.status.code(), Some(125));
    assert_eq!(server.seen("POST").len(), 1, "no further request was sent");
}

#[test]
fn an_update_adds_to_what_a_sandbox_has_and_network_begins_anew() {
    let server = with_network(json!({"mode": "custom", "allow_domains": ["a.com"],
        "transforms": [{"domain": "a.com", "inject_headers": {"X": "…"}}]}));
    assert!(server.run(&["update", "box", "--allow-domain", "b.com"]).status.success());
    assert!(server.run(&["update", "box", "--network", "deny-all"]).status.success());
    assert!(
        server.run(&["update", "box", "--network", "custom", "--allow-domain", "b.com"]).status.success()
    );
    let sent: Vec<Value> =
        server.seen("PATCH /v1/sandboxes/box").iter().map(|r| r.json()["network"].clone()).collect();
    assert_eq!(
        sent,
        [
            json!({"mode": "custom", "allow_domains": ["a.com", "b.com"],
                "transforms": [{"domain": "a.com", "inject_headers": {"X": "…"}}]}),
            json!("deny-all"),
            json!({"mode": "custom", "allow_domains": ["b.com"]}),
        ]
    );
}

#[test]
fn the_egress_log_is_a_table_or_json_and_its_policy_a_file() {
    let server = Server::start(|request| match request.line.as_str() {
        "GET /v1/sandboxes/box/egress/policy" => ok(json!({"mode": "custom", "allow_domains": ["a.com"]})),
        line if line.contains("follow=1") => {
            let record = json!({"at": "2026-01-01T00:00:00Z", "what": "dns", "verdict": "refused", "name": "evil.com",
                "rule": "not in allow_domains", "sent": 0, "received": 0});
            let lost = json!({"at": "2026-01-01T00:00:00Z", "what": "lost", "verdict": "failed",
                "rule": "3 records were lost", "sent": 0, "received": 0});
            let events = format!("event: dns\ndata: {record}\n\nevent: lost\ndata: {lost}\n\n");
            (200, "text/event-stream", events)
        }
        _ => ok(
            json!({"items": [{"at": "2026-01-01T00:00:00Z", "what": "tls", "verdict": "allowed", "name": "a.com",
            "address": "203.0.113.7", "port": 443, "sent": 10, "received": 2048, "rule": "allow_domains: a.com"}]}),
        ),
    });
    let listed = server.run(&["egress", "box", "-n", "5", "--verdict", "allowed"]);
    let lines: Vec<&str> = text(&listed.stdout).lines().collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[1].contains("a.com:443 (203.0.113.7)") && lines[1].contains("2 KiB"), "{lines:?}");
    assert_eq!(server.seen("GET /v1/sandboxes/box/egress?limit=5&verdict=allowed").len(), 1);
    let json_out = server.run(&["--json", "egress", "box"]);
    assert!(serde_json::from_slice::<Value>(&json_out.stdout).expect("JSON").is_array());
    let policy = server.run(&["egress", "box", "--policy"]);
    assert_eq!(
        serde_json::from_slice::<Value>(&policy.stdout).expect("JSON"),
        json!({"mode": "custom", "allow_domains": ["a.com"]})
    );
    let followed = server.run(&["egress", "box", "-f"]);
    assert!(text(&followed.stdout).contains("refused  dns   evil.com"), "{}", text(&followed.stdout));
    assert!(text(&followed.stderr).contains("3 records were lost"), "{}", text(&followed.stderr));
}

#[test]
fn a_run_that_learns_prints_the_policy_before_its_sandbox_goes() {
    let server = Server::start(|request| match request.line.as_str() {
        "GET /health" => ok(json!({"status": "ok"})),
        line if line.ends_with("/egress/policy") => {
            ok(json!({"allow_domains": ["pypi.org"], "mode": "custom"}))
        }
        line if line.contains("/egress?") => ok(json!({"items": [
            {"name": "evil.example", "rule": "tenant: not in allow_domains", "verdict": "refused"}]})),
        line if line.ends_with("/exec/stream") => (
            200,
            "text/event-stream",
            "event: start\ndata: {\"pid\":7}\n\nevent: exit\ndata: {\"exit_code\":3}\n\n".to_owned(),
        ),
        line if line.ends_with("/exec") => ok(json!({"exit_code": 3, "stdout": "", "stderr": ""})),
        _ => ok(sandbox()),
    });
    let output = server.run(&["run", "--learn", "--", "job"]);
    let said = text(&output.stderr);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(3), ""));
    assert!(said.contains("{\n  \"mode\": \"custom\",\n  \"allow_domains\": [\n    \"pypi.org\""), "{said}");
    assert!(said.contains("--network FILE"), "{said}");
    assert!(said.contains("evil.example (tenant: not in allow_domains)"), "{said}");
    let order: Vec<String> = server.seen("").into_iter().map(|request| request.line).collect();
    let at = |end: &str| order.iter().position(|line| line.contains(end)).expect("was asked");
    assert!(at("/egress/policy") < at("DELETE"), "{order:?}");

    let file = server.data.path().join("policy.json");
    let name = file.to_str().expect("text");
    let output = server.run(&["run", "--json", "--learn", "--policy-out", name, "--", "job"]);
    let result: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(result["learned"], json!({"allow_domains": ["pypi.org"], "mode": "custom"}));
    let written: Value = serde_json::from_str(&std::fs::read_to_string(&file).expect("there")).expect("JSON");
    assert_eq!((written, output.status.code()), (result["learned"].clone(), Some(3)));
}
