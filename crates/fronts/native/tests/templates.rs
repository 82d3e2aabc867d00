//! Templates and builds over the API, without a sandbox: archives in and out, tags, settings, visibility, forms of
//! builds, and refusals with their status. Each exchange is checked against the document.
#![allow(clippy::unwrap_used)]

use crate::support::{Answer, World};
use axum::body::Body;
use axum::http::{Request, header};
use serde_json::{Value, json};

/// The tar of a small root file system.
fn rootfs() -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (path, content) in [("etc/passwd", "root:x:0:0::/:/bin/sh\n"), ("hello", "hi\n")] {
        let mut header = tar::Header::new_ustar();
        header.set_mode(0o644);
        header.set_size(content.len() as u64);
        tar.append_data(&mut header, path, content.as_bytes()).unwrap();
    }
    tar.into_inner().unwrap()
}

async fn import(world: &World, key: &str, query: &str, body: Vec<u8>) -> Answer {
    let request = Request::post(format!("/v1/templates/import?{query}"))
        .header("x-api-key", key)
        .header(header::CONTENT_TYPE, "application/x-tar");
    world.send(request.body(Body::from(body)).unwrap()).await
}

#[tokio::test]
async fn an_archive_becomes_a_template_and_an_archive_again() {
    let world = World::new().await;
    let (red, blue) = (world.tenant("red").await, world.tenant("blue").await);
    let made = import(&world, &red, "name=team%2Ftiny:v1", rootfs()).await;
    assert_eq!(made.status, 201, "{}", made.text());
    let made = made.json();
    assert_eq!((&made["name"], &made["tag"]), (&json!("team/tiny"), &json!("v1")), "{made}");
    assert_eq!((&made["made_from"], &made["public"]), (&json!("import"), &json!(false)), "{made}");

    let ask =
        async |method: &str, path: &str, sent: Option<Value>| world.ask(method, path, Some(&red), sent).await;
    let path = "/v1/templates/team%2Ftiny%3Av1";
    assert_eq!(ask("GET", path, None).await.json()["version"], made["version"]);
    let tagged = ask("POST", &format!("{path}/tags"), Some(json!({ "tags": ["stable"] }))).await;
    assert_eq!(tagged.json()["tags"], json!(["stable", "v1"]), "{}", tagged.text());
    assert_eq!(ask("GET", "/v1/templates/team%2Ftiny%3Astable", None).await.status, 200);
    assert_eq!(ask("DELETE", "/v1/templates/team%2Ftiny/tags?tags=stable", None).await.status, 204);
    assert_eq!(
        ask("GET", "/v1/templates/team%2Ftiny%3Astable", None).await.refusal(),
        (404, "template_not_found".to_owned())
    );
    let change = json!({ "memory_mib": 256, "env": { "A": "1" }, "port": 80, "command": ["serve"],
        "ready": { "kind": "url", "port": 80 }, "aliases": ["tiny"] });
    let changed = ask("PATCH", path, Some(change)).await.json();
    assert_eq!((&changed["memory_mib"], &changed["port"]), (&json!(256), &json!(80)), "{changed}");
    assert_eq!(changed["ready"], json!({ "kind": "url", "port": 80, "path": "/", "status": 200 }));
    assert_eq!(changed["env"]["A"], "1", "{changed}");
    let archive = ask("GET", &format!("{path}/export?format=oci"), None).await;
    assert_eq!(archive.status, 200, "{}", archive.text());
    assert_eq!(archive.headers[header::CONTENT_TYPE], "application/x-tar");
    let back = import(&world, &red, "name=back&format=oci", archive.body).await;
    assert_eq!(back.status, 201, "{}", back.text());

    for other in [path, "/v1/templates/tiny", "/v1/templates/back"] {
        let theirs = world.ask("GET", other, Some(&blue), None).await;
        assert_eq!(theirs.refusal(), (404, "template_not_found".to_owned()), "{other}");
    }
    let listed = world.ask("GET", "/v1/templates", Some(&blue), None).await.text();
    assert!(listed.contains("host") && !listed.contains("tiny"), "{listed}");
    assert_eq!(ask("DELETE", "/v1/templates/back", None).await.status, 204);
    assert_eq!(world.ask("POST", "/v1/templates/gc", Some(&red), None).await.refusal().0, 403);
    let collected = world.ask("POST", "/v1/templates/gc", Some(&world.admin), None).await;
    assert_eq!(collected.status, 200, "{}", collected.text());
}

#[tokio::test]
async fn archives_that_are_none_are_refused_and_leave_nothing() {
    let world = World::new().await;
    let key = world.admin.clone();
    let refused = async |query: &str, body: &[u8]| import(&world, &key, query, body.to_vec()).await.refusal();
    assert!(
        (400..500).contains(&refused("name=x", b"this is no tar, though it is longer than nothing").await.0)
    );
    assert_eq!(refused("name=A%20b", &rootfs()).await, (400, "invalid_request".to_owned()));
    assert_eq!(refused("name=x&format=zip", &rootfs()).await, (400, "invalid_request".to_owned()));
    assert_eq!(refused("", &rootfs()).await, (400, "invalid_request".to_owned()));
    assert_eq!(world.ask("GET", "/v1/templates/x", Some(&key), None).await.status, 404);
}

#[tokio::test]
async fn what_is_wrong_with_a_pull_is_a_status_and_not_an_event() {
    let world = World::new().await;
    let ask = async |path: &str, sent: Value| world.ask("POST", path, Some(&world.admin), Some(sent)).await;
    for (sent, named) in [
        (json!({ "image": "http://a/b" }), "image"),
        (json!({ "image": "a", "auth": { "username": "u" } }), "auth"),
        (json!({ "image": "a", "colour": 1 }), "colour"),
    ] {
        let refused = ask("/v1/templates/pull", sent).await;
        assert_eq!(refused.refusal(), (400, "invalid_request".to_owned()), "{}", refused.text());
        assert!(refused.text().contains(named), "{}", refused.text());
    }
    let gone = ask("/v1/templates/nope/push", json!({ "image": "registry.test/a:b" })).await;
    assert_eq!(gone.refusal(), (404, "template_not_found".to_owned()), "{}", gone.text());
    let hidden = ask("/v1/templates/pull", json!({ "image": "a", "auth": { "token": "hush-hush" } })).await;
    assert!(!hidden.text().contains("hush-hush"));
}

#[tokio::test]
async fn a_build_is_a_form_or_an_object() {
    let world = World::new().await;
    let (red, blue) = (world.tenant("red").await, world.tenant("blue").await);
    let spec = json!({ "template": "app", "dockerfile": "FROM scratch\nLABEL a=b\n" });
    let form = format!(
        "--x\r\nContent-Disposition: form-data; name=\"spec\"\r\nContent-Type: application/json\r\n\r\n{spec}\r\n--x--\r\n"
    );
    let request = Request::post("/v1/builds")
        .header("x-api-key", &red)
        .header(header::CONTENT_TYPE, "multipart/form-data; boundary=x");
    let started = world.send(request.body(Body::from(form)).unwrap()).await;
    assert_eq!(started.status, 202, "{}", started.text());
    let id = started.json()["id"].as_str().unwrap().to_owned();
    assert_eq!(started.headers[header::LOCATION], format!("/v1/builds/{id}"));
    let path = format!("/v1/builds/{id}");
    let log = world.ask("GET", &format!("{path}/logs?follow=1"), Some(&red), None).await.text();
    assert!(log.trim_end().ends_with('}') && log.contains("event: end"), "{log}");
    let build = world.ask("GET", &path, Some(&red), None).await.json();
    assert!(["ready", "failed"].contains(&build["status"].as_str().unwrap()), "{build}");
    let lines = world.ask("GET", &format!("{path}/logs"), Some(&red), None).await.json();
    assert_eq!(lines["next_from"], Value::Null, "{lines}");
    let listed = world.ask("GET", "/v1/builds?limit=1", Some(&red), None).await.json();
    assert_eq!(listed["items"][0]["id"], id.as_str());
    let ended = world.ask("DELETE", &path, Some(&red), None).await.json();
    assert_eq!(ended["status"], build["status"], "what has ended is left as it is");

    for (method, path) in [("GET", path.clone()), ("DELETE", path.clone()), ("GET", format!("{path}/logs"))] {
        let theirs = world.ask(method, &path, Some(&blue), None).await;
        assert_eq!(theirs.refusal(), (404, "build_not_found".to_owned()), "{method} {path}");
    }
    assert_eq!(world.ask("GET", "/v1/builds", Some(&blue), None).await.json()["items"], json!([]));

    let alone = world.ask("POST", "/v1/builds", Some(&red), Some(spec)).await;
    assert_eq!(alone.status, 202, "{}", alone.text());
    for bad in [
        json!({ "template": "app" }),
        json!({ "template": "app@sha256:12", "dockerfile": "FROM scratch" }),
        json!({ "template": "app", "dockerfile": "FROM scratch", "timeout_s": 0 }),
        json!({ "template": "app", "dockerfile": "FROM scratch", "memory_mib": 1 }),
    ] {
        let refused = world.ask("POST", "/v1/builds", Some(&red), Some(bad)).await;
        assert_eq!(refused.status, 400, "{}", refused.text());
    }
}
