//! Every route over a real service: authentication, refusals, and that each exchange is as documented.
#![allow(clippy::unwrap_used)]

use crate::support;
use crate::support::World;
use axum::body::Body;
use axum::http::{Request, header};
use serde_json::{Value, json};

const NOBODY: &str = "abcdefghijklmnopqrst";
const WRONG: &str = "atl_0000000000000000000000000000000000000000";

/// A path with its parameters filled in, and its required query.
fn fill(template: &str, ident: &str) -> String {
    let path = template
        .replace("{ident}", ident)
        .replace("{pid}", "7")
        .replace("{tid}", "t")
        .replace("{snapshot}", NOBODY)
        .replace("{preview}", NOBODY)
        .replace("{thread}", "t")
        .replace("{context}", NOBODY)
        .replace("{session}", "s")
        .replace("{command}", "c")
        .replace("{branch}", "b")
        .replace("{build}", NOBODY)
        .replace("{volume}", NOBODY)
        .replace("{code}", "BCDF-GHJK")
        .replace("{id}", NOBODY);
    let path = path.replace("{name}", "host");
    if template.ends_with("/tags") {
        return path + "?tags=x";
    }
    if template.contains("/files") && !template.ends_with("/mkdir") && !template.ends_with("/move") {
        return path + "?path=/x";
    }
    path
}

/// A valid body for the route.
fn body(method: &str, template: &str) -> Option<Value> {
    let last = template.rsplit('/').next().unwrap_or_default();
    if method == "POST" && ["/code", "/git/", "/lsp/", "/sessions"].iter().any(|part| template.contains(part))
    {
        return tool_body(template, last);
    }
    match (method, last) {
        ("POST", "search" | "grep") => Some(json!({ "pattern": "x" })),
        ("POST", "edit") => Some(json!({ "path": "/x", "edits": [{ "find": "a", "replace": "b" }] })),
        ("POST", "exec" | "stream") => Some(json!({ "argv": ["true"] })),
        ("POST", "signal") => Some(json!({ "signal": "TERM" })),
        ("POST", "terminals") => Some(json!({ "thread": "t" })),
        ("POST", "mkdir") => Some(json!({ "path": "/x" })),
        ("POST", "move") if template.ends_with("{ident}/move") => Some(json!({ "provider": "fake" })),
        ("POST", "move") => Some(json!({ "from": "/x", "to": "/y" })),
        ("POST", "sandboxes" | "keys") => Some(json!({})),
        ("POST", "logins") => Some(json!({ "name": "anna@laptop" })),
        ("POST", "approve") => Some(json!({})),
        ("POST", "tenants") => Some(json!({ "name": "other" })),
        ("POST", "rollback") => Some(json!({ "snapshot": "none" })),
        ("POST", "previews") => Some(json!({ "port": 8080 })),
        ("POST", "hold") => Some(json!({ "for_s": 60 })),
        ("POST", "extend") => Some(json!({ "seconds": 60 })),
        ("POST", "secrets") => Some(json!({ "name": "KEY", "value": "hush" })),
        ("PUT", "{name}") => Some(json!({ "value": "hush" })),
        ("PUT", "network") => Some(json!({ "mode": "deny-all" })),
        ("PATCH", "{ident}") => Some(json!({ "labels": {} })),
        ("PATCH", "{name}") if template.contains("/tenants/") => Some(json!({ "quota": {} })),
        ("PATCH", "{name}" | "{volume}" | "entries") => Some(json!({})),
        ("POST", "pull" | "push") => Some(json!({ "image": "x" })),
        ("POST", "tags") => Some(json!({ "tags": ["x"] })),
        ("POST", "builds") => Some(json!({ "template": "x", "dockerfile": "FROM scratch" })),
        ("POST", "volumes" | "copy") => Some(json!({ "name": "x" })),
        ("POST", "folders") => Some(json!({ "path": "/x" })),
        _ => None,
    }
}

fn tool_body(template: &str, last: &str) -> Option<Value> {
    let server = json!({ "language": "python", "project": "/x" });
    Some(match last {
        "code" | "stream" => json!({ "code": "1" }),
        "contexts" | "reset" | "push" | "pull" => json!({}),
        "clone" => json!({ "url": "/x", "path": "/y" }),
        "init" => json!({ "path": "/x" }),
        "branches" => json!({ "name": "x" }),
        "checkout" => json!({ "target": "x" }),
        "add" | "restore" => json!({ "files": ["x"] }),
        "commit" => json!({ "message": "x" }),
        "remotes" => json!({ "name": "x", "url": "/x" }),
        "sessions" => json!({ "name": "x" }),
        "exec" => json!({ "command": "x" }),
        "start" | "stop" => server,
        "open" | "close" => with(server, json!({ "path": "/x" })),
        "symbols" => with(server, json!({ "query": "x" })),
        "completions" => with(server, json!({ "path": "/x", "line": 0, "character": 0 })),
        "restart" | "interrupt" | "stdin" => return None,
        _ => panic!("no body for {template}"),
    })
}

fn with(mut object: Value, more: Value) -> Value {
    object.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    object
}

#[tokio::test]
async fn every_route_but_the_public_ones_needs_a_key() {
    let world = World::new().await;
    let mut public = Vec::new();
    for route in world.contract.routes() {
        let path = fill(&route.path, NOBODY);
        if route.is_public {
            public.push(route.path.clone());
            let answer = world.ask(&route.method, &path, None, body(&route.method, &route.path)).await;
            assert!((200..300).contains(&answer.status), "{route:?}: {}", answer.text());
            continue;
        }
        for key in [None, Some(WRONG), Some("nonsense")] {
            // Whether the body is valid, invalid or absent: the key is checked before anything else of a request.
            for sent in [body(&route.method, &route.path), Some(json!([1])), None] {
                let answer = world.ask(&route.method, &path, key, sent).await;
                assert_eq!(answer.refusal(), (401, "unauthenticated".to_owned()), "{route:?}");
            }
        }
    }
    assert_eq!(public, ["/docs", "/health", "/v1/logins", "/v1/openapi.json", "/v1/version"]);
}

#[tokio::test]
async fn another_tenants_sandbox_looks_like_none_on_every_route() {
    let world = World::new().await;
    let (red, blue) = (world.tenant("red").await, world.tenant("blue").await);
    let made = world.ask("POST", "/v1/sandboxes", Some(&red), Some(json!({ "name": "mine" }))).await;
    assert_eq!(made.status, 201, "{}", made.text());
    let id = made.json()["id"].as_str().unwrap().to_owned();
    let mut tried = 0;
    for route in world.contract.routes().iter().filter(|route| route.path.contains("{ident}")) {
        for ident in [id.as_str(), "mine", &id[..6]] {
            let (method, sent) = (&route.method, body(&route.method, &route.path));
            let theirs = world.ask(method, &fill(&route.path, ident), Some(&blue), sent.clone()).await;
            let none = world.ask(method, &fill(&route.path, NOBODY), Some(&blue), sent).await;
            assert_eq!(theirs.refusal(), (404, "sandbox_not_found".to_owned()), "{route:?} {ident}");
            let told = |answer: &support::Answer, ident: &str| {
                answer.json()["message"].to_string().replace(ident, "X")
            };
            assert_eq!(told(&theirs, ident), told(&none, NOBODY), "{route:?}");
        }
        tried += 1;
    }
    assert!(tried >= 40, "only {tried} routes");
    assert_eq!(world.ask("GET", "/v1/sandboxes", Some(&blue), None).await.json()["items"], json!([]));
    let theirs = format!("/v1/events?sandbox={id}");
    assert_eq!(world.ask("GET", &theirs, Some(&blue), None).await.status, 404);
    assert_eq!(
        world.ask("GET", &format!("/v1/sandboxes/{id}"), Some(&red), None).await.json()["phase"],
        "running"
    );
}

#[tokio::test]
async fn what_concerns_the_server_needs_an_admin_key() {
    let world = World::new().await;
    let user = world.tenant("acme").await;
    for (method, path, sent) in [
        ("GET", "/metrics", None),
        ("POST", "/v1/tenants", Some(json!({ "name": "x" }))),
        ("PATCH", "/v1/tenants/acme", Some(json!({ "quota": {} }))),
        ("PUT", "/v1/tenants/acme/network", Some(json!({ "mode": "allow-all" }))),
        ("DELETE", "/v1/tenants/acme/network", None),
        ("POST", "/v1/keys", Some(json!({ "scope": "admin" }))),
        ("POST", "/v1/templates/host/make", None),
        ("DELETE", "/v1/templates/host", None),
    ] {
        let answer = world.ask(method, path, Some(&user), sent).await;
        assert_eq!(answer.refusal(), (403, "forbidden".to_owned()), "{method} {path}");
    }
}

#[tokio::test]
async fn a_sandbox_lives_through_the_api() {
    let world = World::new().await;
    let key = world.tenant("acme").await;
    let ask =
        async |method: &str, path: &str, sent: Option<Value>| world.ask(method, path, Some(&key), sent).await;
    let wish = json!({ "name": "box", "labels": { "a": "b" }, "env": { "SECRET": "hush" }, "cpu": 0.5, "timeout_s": 60, "wake": "explicit" });
    let made = ask("POST", "/v1/sandboxes", Some(wish)).await;
    assert_eq!(made.status, 201, "{}", made.text());
    let sandbox = made.json();
    assert_eq!((&sandbox["phase"], &sandbox["cpu"]), (&json!("running"), &json!(0.5)), "{sandbox}");
    assert_eq!(sandbox["env_names"], json!(["SECRET"]));
    assert!(!made.text().contains("hush"), "values of the environment are never shown");
    assert_eq!(made.headers[header::LOCATION], format!("/v1/sandboxes/{}", sandbox["id"].as_str().unwrap()));

    let page = ask("GET", "/v1/sandboxes?label=a%3Db&phase=running&limit=1", None).await.json();
    assert_eq!(page["items"].as_array().unwrap().len(), 1, "{page}");
    let changed =
        ask("PATCH", "/v1/sandboxes/box", Some(json!({ "timeout_s": null, "memory_mib": 256 }))).await;
    let changed = changed.json();
    assert_eq!((&changed["timeout_at"], &changed["memory_mib"]), (&Value::Null, &json!(256)), "{changed}");
    assert_eq!(ask("GET", "/v1/sandboxes/box/metrics", None).await.status, 200);
    assert_eq!(ask("GET", "/v1/sandboxes/box/metrics/history", None).await.status, 200);
    assert_eq!(ask("GET", "/v1/sandboxes/box/terminals", None).await.json()["items"], json!([]));
    assert_eq!(ask("POST", "/v1/sandboxes/box/stop", None).await.json()["phase"], "stopped");
    let refused = ask("POST", "/v1/sandboxes/box/exec", Some(json!({ "argv": ["true"] }))).await;
    assert_eq!(refused.refusal(), (409, "asleep".to_owned()), "only start and resume wake it");
    assert_eq!(ask("POST", "/v1/sandboxes/box/start", None).await.json()["phase"], "running");
    assert_eq!(ask("POST", "/v1/sandboxes/box/restart", None).await.json()["phase"], "running");
    let id = sandbox["id"].as_str().unwrap();
    let path = format!("/v1/sandboxes/{id}");
    assert_eq!(ask("DELETE", &path, None).await.json()["phase"], "deleted");
    assert_eq!(ask("DELETE", &path, None).await.json()["phase"], "deleted", "repeating is fine");
    let events = ask("GET", &format!("/v1/events?sandbox={id}&after=0"), None).await.json();
    let told: Vec<_> = events["items"].as_array().unwrap().iter().filter_map(|e| e["to"].as_str()).collect();
    assert_eq!((told.first(), told.last()), (Some(&"creating"), Some(&"deleted")), "{events}");
}

#[tokio::test]
async fn a_create_is_replayed_by_its_idempotency_key() {
    let world = World::new().await;
    let create = async |wait: &str| {
        let request = Request::post(format!("/v1/sandboxes?wait={wait}"))
            .header("x-api-key", &world.admin)
            .header("idempotency-key", format!("again-{wait}"));
        world.send(request.body(Body::empty()).unwrap()).await
    };
    for (wait, first) in [("1", 201), ("0", 202)] {
        let (one, two) = (create(wait).await, create(wait).await);
        assert_eq!((one.status, two.status), (first, 200), "{}", one.text());
        assert_eq!(one.json()["id"], two.json()["id"]);
    }
}

#[tokio::test]
async fn a_file_comes_whole_in_part_or_not_at_all() {
    let world = World::new().await;
    let key = world.admin.clone();
    world.ask("POST", "/v1/sandboxes", Some(&key), Some(json!({ "name": "box" }))).await;
    let read = async |range: Option<&str>| {
        let mut request = Request::get("/v1/sandboxes/box/files?path=/tmp/digits").header("x-api-key", &key);
        if let Some(range) = range {
            request = request.header(header::RANGE, range);
        }
        world.send(request.body(Body::empty()).unwrap()).await
    };
    let whole = read(None).await;
    assert_eq!((whole.status, whole.text().as_str()), (200, support::CONTENT), "{}", whole.text());
    assert_eq!(whole.headers[header::CONTENT_LENGTH], "10");
    assert_eq!(whole.headers[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
    assert!(whole.headers[header::CONTENT_DISPOSITION].to_str().unwrap().starts_with("attachment"));
    for (range, text, told) in [
        ("bytes=2-4", "234", "bytes 2-4/10"),
        ("bytes=7-", "789", "bytes 7-9/10"),
        ("bytes=-3", "789", "bytes 7-9/10"),
    ] {
        let part = read(Some(range)).await;
        assert_eq!((part.status, part.text().as_str()), (206, text), "{range}");
        assert_eq!(part.headers[header::CONTENT_RANGE], told);
    }
    let none = read(Some("bytes=10-")).await;
    assert_eq!(none.status, 416, "{}", none.text());
    assert_eq!(none.headers[header::CONTENT_RANGE], "bytes */10");
}

#[tokio::test]
async fn requests_that_make_no_sense_are_refused_in_the_envelope() {
    let world = World::new().await;
    let send = async |method: &str, path: &str, kind: &str, body: Vec<u8>| {
        let request = Request::builder().method(method).uri(path).header("x-api-key", &world.admin);
        world.send(request.header(header::CONTENT_TYPE, kind).body(Body::from(body)).unwrap()).await
    };
    let json_type = "application/json";
    for (path, body, named) in [
        ("/v1/sandboxes", "{\"colour\":1}", "colour"),
        ("/v1/sandboxes", "{\"labels\":{\"a\":1}}", "labels.a"),
        ("/v1/sandboxes", "{\"cpu\":-1}", "cpu"),
        ("/v1/sandboxes", "{", "EOF"),
        ("/v1/sandboxes", "[]", "object"),
        ("/v1/sandboxes", "", "object"),
        ("/v1/sandboxes?wait=maybe", "{}", "maybe"),
        ("/v1/sandboxes?colour=red", "{}", "colour"),
        ("/v1/tenants", "{\"name\":\"x\",\"quota\":{\"cpu\":-1}}", "cpu"),
    ] {
        let answer = send("POST", path, json_type, body.into()).await;
        assert_eq!(answer.refusal(), (400, "invalid_request".to_owned()), "{path} {body}");
        assert!(answer.json()["message"].as_str().unwrap().contains(named), "{}", answer.text());
    }
    let wrong_type = send("POST", "/v1/sandboxes", "text/plain", b"{}".to_vec()).await;
    assert_eq!(wrong_type.refusal(), (415, "invalid_request".to_owned()));
    let large = format!("{{\"name\":\"{}\"}}", "x".repeat(1 << 20));
    let large = send("POST", "/v1/sandboxes", json_type, large.into()).await;
    assert_eq!(large.refusal(), (413, "payload_too_large".to_owned()));
    assert_eq!(
        send("GET", "/v1/nothing", json_type, vec![]).await.refusal(),
        (404, "route_not_found".to_owned())
    );
    let method = send("PUT", "/v1/sandboxes", json_type, vec![]).await;
    assert_eq!(method.refusal(), (405, "method_not_allowed".to_owned()));
    assert!(method.headers.contains_key(header::ALLOW));
    for path in ["/v1/sandboxes/%FF", "/v1/sandboxes/x/processes/notanumber/attach", "/v1/events?after=-1"] {
        assert_eq!(
            send("GET", path, json_type, vec![]).await.refusal(),
            (400, "invalid_request".to_owned()),
            "{path}"
        );
    }
    let no_socket = send("GET", "/v1/sandboxes/none/terminals/t/ws", json_type, vec![]).await;
    assert_eq!(no_socket.refusal(), (404, "sandbox_not_found".to_owned()));
}

#[tokio::test]
async fn a_page_of_another_origin_gets_no_terminal() {
    let world = World::new().await;
    let knock = async |headers: &[(&str, &str)]| {
        let mut request = Request::get("/v1/sandboxes/none/terminals/t/ws").header("host", "127.0.0.1:7070");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        world.send(request.body(Body::empty()).unwrap()).await.status
    };
    let in_protocol = format!("atoll, atoll.key.{}", world.admin);
    assert_eq!(knock(&[("origin", "https://evil.test"), ("x-api-key", &world.admin)]).await, 403);
    assert_eq!(knock(&[("origin", "https://evil.test"), ("cookie", "key=1")]).await, 403);
    assert_eq!(knock(&[("sec-websocket-protocol", &in_protocol)]).await, 403);
    assert_eq!(knock(&[("cookie", "key=1")]).await, 401);
    assert_eq!(
        knock(&[("origin", "http://127.0.0.1:7070"), ("sec-websocket-protocol", &in_protocol)]).await,
        404
    );
}

#[tokio::test]
async fn figures_name_routes_and_never_ids_or_keys() {
    let world = World::new().await;
    let key = world.tenant("acme").await;
    let made = world.ask("POST", "/v1/sandboxes", Some(&key), Some(json!({}))).await.json();
    let id = made["id"].as_str().unwrap().to_owned();
    world.ask("GET", &format!("/v1/sandboxes/{id}"), Some(&key), None).await;
    let page = world.ask("GET", "/metrics", Some(&world.admin), None).await.text();
    for expected in [
        "route=\"/v1/sandboxes/{ident}\"",
        "atoll_http_request_seconds_bucket",
        "atoll_sandboxes{phase=\"running\"} 1",
    ] {
        assert!(page.contains(expected), "{expected} is not in\n{page}");
    }
    for secret in [&id, &key, &world.admin] {
        assert!(!page.contains(secret.as_str()));
    }
}

#[tokio::test]
async fn a_template_is_made_with_its_steps_told() {
    let world = World::new().await;
    let answer = world.ask("POST", "/v1/templates/host/make", Some(&world.admin), None).await;
    let names: Vec<_> =
        answer.text().lines().filter_map(|l| l.strip_prefix("event: ").map(str::to_owned)).collect();
    assert_eq!(names, ["step", "done"], "{}", answer.text());
    let answer = world.ask("POST", "/v1/templates/nope/make", Some(&world.admin), None).await;
    // A status if it is refused at once, an event if a step was sent before.
    assert!([200, 404].contains(&answer.status), "{}", answer.text());
    assert!(answer.text().contains("template_not_found"), "{}", answer.text());
}

#[tokio::test]
async fn followed_events_replay_then_end_with_the_server() {
    let world = World::new().await;
    world.ask("POST", "/v1/sandboxes", Some(&world.admin), Some(json!({}))).await;
    let shutdown = world.shutdown.clone();
    let closing = async {
        // Long enough for a busy machine to begin to answer.
        tokio::time::sleep(std::time::Duration::from_millis(1_500)).await;
        shutdown.begin();
    };
    let follow = world.ask("GET", "/v1/events?follow=1&after=0", Some(&world.admin), None);
    let (answer, ()) = tokio::join!(follow, closing);
    let text = answer.text();
    assert!(
        text.contains("event: phase") && text.contains("id: ") && text.contains("\"to\":\"running\""),
        "{text}"
    );
}

#[tokio::test]
async fn the_page_is_locked_down() {
    let world = World::new().await;
    let page = world.ask("GET", "/docs", None, None).await;
    let policy = page.headers[header::CONTENT_SECURITY_POLICY].to_str().unwrap();
    assert!(policy.contains("default-src 'none'") && policy.contains("sha256-"), "{policy}");
    assert_eq!(page.headers[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
    assert_eq!(page.headers[header::X_FRAME_OPTIONS], "DENY");
    assert!(!page.headers.contains_key(header::ACCESS_CONTROL_ALLOW_ORIGIN));
}

#[tokio::test]
async fn the_machine_and_the_settings_of_the_server_are_for_admin_keys() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let ask = async |key: Option<&str>| world.ask("GET", "/v1/server", key, None).await;
    assert_eq!(ask(None).await.status, 401);
    assert_eq!(ask(Some(&tenant)).await.refusal(), (403, "forbidden".to_owned()));
    let report = ask(Some(&world.admin)).await;
    assert_eq!(report.status, 200, "{}", report.text());
    assert_eq!(report.json()["version"], env!("CARGO_PKG_VERSION"));
}
