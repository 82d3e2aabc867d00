//! Network policies through the API: policies in requests and responses, refusals that name their field and change
//! nothing, the log and the learned policy, secrets that no response contains, the policy of a tenant.
#![allow(clippy::unwrap_used)]

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use crate::support::{Answer, World};
use atoll_model::policy::egress::NameVerdict;
use atoll_model::{EgressRecord, EgressVerdict, EgressWhat, SandboxId};
use axum::body::Body;
use axum::http::Request;
use futures::StreamExt;
use serde_json::{Value, json};
use tower::ServiceExt;

const BOX: &str = "/v1/sandboxes/box";

struct Ours {
    world: World,
    key: String,
    id: SandboxId,
}

impl Ours {
    async fn ask(&self, method: &str, path: &str, body: Option<Value>) -> Answer {
        self.world.ask(method, path, Some(&self.key), body).await
    }

    /// Whether the sandbox may reach the host now.
    fn judged(&self, name: &str) -> bool {
        let (_, egress) = self.world.fake.in_force(&self.id).unwrap();
        !matches!(egress.judge(name), NameVerdict::Refused { .. })
    }
}

/// A tenant with a sandbox named `box` of this policy.
async fn ours(network: Value) -> Ours {
    let world = World::new().await;
    let key = world.tenant("acme").await;
    world.ask("POST", "/v1/secrets", Some(&key), Some(json!({ "name": "KEY", "value": "canary-1" }))).await;
    let made = world
        .ask("POST", "/v1/sandboxes", Some(&key), Some(json!({ "name": "box", "network": network })))
        .await;
    assert_eq!(made.status, 201, "{}", made.text());
    let id = made.json()["id"].as_str().unwrap().parse().unwrap();
    Ours { world, key, id }
}

fn whole() -> Value {
    json!({
        "mode": "custom",
        "allow_domains": ["example.com", "*.example.org"],
        "allow_cidrs": ["203.0.113.0/24"],
        "deny_cidrs": ["203.0.113.7/32"],
        "transforms": [{ "domain": "api.example.com",
            "inject_headers": { "Authorization": "Bearer {secret:KEY}" }, "strip_headers": ["Cookie"] }],
        "limits": { "up_bytes_per_s": 100_000, "connections": 50 },
    })
}

fn shown() -> Value {
    let mut policy = whole();
    policy["transforms"][0]["inject_headers"]["Authorization"] = json!("…");
    policy
}

#[tokio::test]
async fn a_policy_is_shown_as_it_was_asked_for_without_its_values() {
    let ours = ours(whole()).await;
    for path in [BOX, "/v1/sandboxes"] {
        let answer = ours.ask("GET", path, None).await;
        assert!(!answer.text().contains("KEY") && !answer.text().contains("canary"), "{}", answer.text());
    }
    assert_eq!(ours.ask("GET", BOX, None).await.json()["network"], shown());
    assert!(ours.judged("api.example.com") && ours.judged("x.example.org") && !ours.judged("evil.com"));
    // A shown policy can be sent back: a hidden value stays.
    let mut more = shown();
    more["allow_domains"] = json!(["example.com", "*.example.org", "more.example.net"]);
    let changed = ours.ask("PATCH", BOX, Some(json!({ "network": more }))).await;
    assert_eq!(changed.json()["network"], more, "{}", changed.text());
    assert!(ours.judged("more.example.net"));
    let (_, egress) = ours.world.fake.in_force(&ours.id).unwrap();
    assert_eq!(egress.changes[0].inject[0].value, "Bearer canary-1");
    for plain in ["deny-all", "allow-all"] {
        let changed = ours.ask("PATCH", BOX, Some(json!({ "network": plain }))).await;
        assert_eq!(changed.json()["network"], plain, "{}", changed.text());
    }
}

#[tokio::test]
async fn what_is_wrong_names_its_field_and_changes_nothing() {
    let ours = ours(whole()).await;
    let listed = |field: &str, entries: Value| json!({ "mode": "custom", field: entries });
    let header = |name: &str, value: &str| json!({ "mode": "custom", "transforms": [{ "domain": "a.com", "inject_headers": { name: value } }] });
    let many: Vec<String> = (0..101).map(|n| format!("h{n}.example.com")).collect();
    for (network, field) in [
        (json!("sometimes"), "network"),
        (json!({ "mode": "allow-all", "allow_domains": ["a.com"] }), "network.mode"),
        (json!({ "mode": "deny-all", "deny_cidrs": ["203.0.113.0/24"] }), "network.mode"),
        (listed("allow_domains", json!(["https://a.com"])), "network.allow_domains[0]"),
        (listed("allow_domains", json!(many)), "network.allow_domains"),
        (listed("allow_cidrs", json!(["203.0.113.0/33"])), "network.allow_cidrs[0]"),
        (listed("allow_cidrs", json!(["169.254.169.254"])), "network.allow_cidrs"),
        (listed("allow_cidrs", json!(["127.0.0.0/8"])), "network.allow_cidrs"),
        (listed("allow_cidrs", json!(["10.0.0.0/8"])), "network.allow_cidrs"),
        (header("Host", "evil.com"), "network.transforms"),
        (header("X Y", "1"), "network.transforms"),
        (header("X", "a\r\nb"), "network.transforms"),
        (header("X", "{secret:NOPE}"), "network.transforms"),
        (json!({ "mode": "allow-all", "limits": { "connections": 0 } }), "network.limits"),
        (json!({ "mode": "allow-all", "limits": { "up_bytes_per_s": 1 } }), "network.limits"),
    ] {
        let change =
            ours.ask("PATCH", BOX, Some(json!({ "network": network, "labels": { "a": "b" } }))).await;
        let create = ours.ask("POST", "/v1/sandboxes", Some(json!({ "network": network }))).await;
        for answer in [change, create] {
            assert_eq!(answer.refusal(), (400, "invalid_request".to_owned()), "{network}");
            let message = answer.json()["message"].as_str().unwrap().to_owned();
            assert!(message.contains(field), "{network}: {message}");
        }
    }
    let private =
        ours.ask("PATCH", BOX, Some(json!({ "network": listed("allow_cidrs", json!(["10.0.0.0/8"])) })));
    assert!(private.await.json()["hint"].as_str().unwrap().contains("--egress-private"));
    let now = ours.ask("GET", BOX, None).await.json();
    assert_eq!((&now["network"], &now["labels"]), (&shown(), &json!({})));
    assert_eq!(ours.ask("GET", "/v1/sandboxes", None).await.json()["items"].as_array().unwrap().len(), 1);
}

fn record(at_ms: i64, name: &str, verdict: EgressVerdict) -> EgressRecord {
    EgressRecord {
        at_ms,
        what: EgressWhat::Tls,
        verdict,
        rule: "allow_domains: example.com".to_owned(),
        name: Some(name.to_owned()),
        address: Some(IpAddr::V4(Ipv4Addr::new(203, 0, 113, 7))),
        port: Some(443),
        protocol: None,
        sent: 10,
        received: 20,
    }
}

/// The log, once it has this many records.
async fn log(ours: &Ours, query: &str, count: usize) -> Vec<Value> {
    for _ in 0..3_000 {
        let answer = ours.ask("GET", &format!("{BOX}/egress{query}"), None).await.json();
        let items = answer["items"].as_array().unwrap_or_else(|| panic!("{answer}")).clone();
        if items.len() >= count {
            return items;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the log never held {count}");
}

#[tokio::test]
async fn the_log_is_read_filtered_and_followed_and_turned_into_a_policy() {
    let ours = ours(json!({ "mode": "allow-all", "learn": true })).await;
    let start = 1_780_000_000_000;
    for (n, verdict) in [(0, EgressVerdict::Allowed), (1, EgressVerdict::Refused), (2, EgressVerdict::Failed)]
    {
        ours.world.fake.egressed(&ours.id, record(start + n, &format!("h{n}.example.com"), verdict));
    }
    let names = |items: &[Value]| {
        items.iter().map(|item| item["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let all = log(&ours, "", 3).await;
    assert_eq!(names(&all), ["h0.example.com", "h1.example.com", "h2.example.com"], "newest last");
    assert_eq!(
        all[0],
        json!({ "at": "2026-05-28T20:26:40.000Z", "what": "tls", "verdict": "allowed",
            "rule": "allow_domains: example.com", "name": "h0.example.com", "address": "203.0.113.7", "port": 443,
            "protocol": null, "sent": 10, "received": 20 })
    );
    assert_eq!(names(&log(&ours, "?limit=1", 1).await), ["h2.example.com"]);
    assert_eq!(names(&log(&ours, "?verdict=refused", 1).await), ["h1.example.com"]);
    let since = format!("?since={}", all[0]["at"].as_str().unwrap());
    assert_eq!(names(&log(&ours, &since, 2).await), ["h1.example.com", "h2.example.com"], "only later ones");
    for bad in ["?limit=0", "?limit=x", "?since=now", "?verdict=maybe", "?follow=perhaps", "?colour=red"] {
        let answer = ours.ask("GET", &format!("{BOX}/egress{bad}"), None).await;
        assert_eq!(answer.refusal(), (400, "invalid_request".to_owned()), "{bad}");
    }
    let learned = ours.ask("GET", &format!("{BOX}/egress/policy"), None).await.json();
    assert_eq!(learned["mode"], "custom", "{learned}");
    assert!(learned["allow_domains"].to_string().contains("h0.example.com"), "{learned}");
    let held = ours.ask("PATCH", BOX, Some(json!({ "network": learned }))).await;
    assert_eq!(held.json()["network"], learned, "what is learned is taken back");
    assert!(ours.judged("h0.example.com") && !ours.judged("elsewhere.example.com"));
}

#[tokio::test]
async fn a_follower_sees_what_is_there_and_what_comes_once() {
    let ours = ours(json!("allow-all")).await;
    ours.world
        .fake
        .egressed(&ours.id, record(1_780_000_000_000, "first.example.com", EgressVerdict::Allowed));
    log(&ours, "", 1).await;
    let request = Request::get(format!("{BOX}/egress?follow=1")).header("x-api-key", &ours.key);
    let response = ours.world.router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut body = response.into_body().into_data_stream();
    let mut seen = String::new();
    let mut until = async |word: &str| {
        let wait = async {
            while !seen.contains(word) {
                seen.push_str(std::str::from_utf8(&body.next().await.unwrap().unwrap()).unwrap());
            }
        };
        tokio::time::timeout(Duration::from_secs(60), wait).await.expect("in time");
        seen.clone()
    };
    until("first.example.com").await;
    ours.world
        .fake
        .egressed(&ours.id, record(1_780_000_000_001, "second.example.com", EgressVerdict::Refused));
    let text = until("second.example.com").await;
    assert_eq!(text.matches("first.example.com").count(), 1, "{text}");
    assert!(text.contains("event: tls\n"), "{text}");
}

#[tokio::test]
async fn secrets_are_written_and_used_and_never_read() {
    let ours = ours(whole()).await;
    let injected = || ours.world.fake.in_force(&ours.id).unwrap().1.changes[0].inject[0].value.clone();
    let listed = ours.ask("GET", "/v1/secrets", None).await;
    assert!(!listed.text().contains("canary"), "{}", listed.text());
    let items = listed.json()["items"].clone();
    assert_eq!(
        (&items[0]["name"], &items[0]["used_by"], &items[0]["rotated_at"]),
        (&json!("KEY"), &json!(1), &Value::Null)
    );
    let again = ours.ask("POST", "/v1/secrets", Some(json!({ "name": "KEY", "value": "x" }))).await;
    assert_eq!(again.status, 409, "{}", again.text());
    let rotated = ours.ask("PUT", "/v1/secrets/KEY", Some(json!({ "value": "canary-2" }))).await;
    assert!(rotated.status == 200 && rotated.json()["rotated_at"].is_string(), "{}", rotated.text());
    assert!(!rotated.text().contains("canary"));
    for _ in 0..3_000 {
        if injected() == "Bearer canary-2" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(injected(), "Bearer canary-2", "a running sandbox has the new value");
    let used = ours.ask("DELETE", "/v1/secrets/KEY", None).await;
    assert_eq!(used.refusal(), (409, "secret_in_use".to_owned()));
    for (name, value) in [("", "x"), ("1x", "x"), ("a b", "x"), ("OK", "line\nbreak"), ("OK", "")] {
        let refused = ours.ask("POST", "/v1/secrets", Some(json!({ "name": name, "value": value }))).await;
        assert_eq!(refused.refusal(), (400, "invalid_request".to_owned()), "{name:?} {value:?}");
        assert!(!refused.text().contains("break"), "{}", refused.text());
    }
    // Another tenant has secrets of its own.
    let other = ours.world.tenant("other").await;
    let none = ours.world.ask("GET", "/v1/secrets", Some(&other), None).await;
    assert_eq!(none.json()["items"], json!([]));
    let theirs = ours.world.ask("PUT", "/v1/secrets/KEY", Some(&other), Some(json!({ "value": "x" }))).await;
    assert_eq!(theirs.refusal(), (404, "secret_not_found".to_owned()));
    ours.ask("PATCH", BOX, Some(json!({ "network": "deny-all" }))).await;
    assert_eq!(ours.ask("DELETE", "/v1/secrets/KEY", None).await.status, 204);
    assert_eq!(ours.ask("DELETE", "/v1/secrets/KEY", None).await.status, 404);
}

#[tokio::test]
async fn the_layer_of_a_tenant_narrows_its_sandboxes() {
    let ours = ours(whole()).await;
    let admin = |method: &'static str, body: Option<Value>| {
        let world = &ours.world;
        async move { world.ask(method, "/v1/tenants/acme/network", Some(&world.admin), body).await }
    };
    let policy = json!({ "mode": "custom", "allow_domains": ["example.com"] });
    let set = admin("PUT", Some(policy.clone())).await;
    assert_eq!((set.status, &set.json()["network"]), (200, &policy), "{}", set.text());
    let narrowed = || !ours.judged("x.example.org");
    for _ in 0..3_000 {
        if narrowed() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(narrowed() && ours.judged("example.com"));
    let seen = ours.ask("GET", BOX, None).await.json();
    assert_eq!(seen["network"], shown(), "what it asked for is still shown");
    assert_eq!(seen["network_narrowed_by"], json!(["tenant"]));
    for bad in [json!({ "mode": "custom", "learn": true }), whole(), json!({ "mode": "odd" }), json!({})] {
        let refused = admin("PUT", Some(bad.clone())).await;
        assert_eq!(refused.refusal(), (400, "invalid_request".to_owned()), "{bad}");
    }
    let cleared = admin("DELETE", None).await;
    assert_eq!((cleared.status, &cleared.json()["network"]), (200, &Value::Null), "{}", cleared.text());
    assert_eq!(ours.ask("GET", BOX, None).await.json()["network_narrowed_by"], Value::Null);
    let none =
        ours.world.ask("PUT", "/v1/tenants/nobody/network", Some(&ours.world.admin), Some(policy)).await;
    assert_eq!(none.refusal(), (404, "tenant_not_found".to_owned()));
}
