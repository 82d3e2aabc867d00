//! Volumes over the API: create, mount, write, copy, remove, and isolation between tenants. Each exchange is checked
//! against the document.
#![allow(clippy::unwrap_used)]

use crate::support::{Answer, World};
use axum::body::Body;
use axum::http::{Request, header};
use serde_json::{Value, json};

async fn put(world: &World, key: &str, path: &str, body: &'static str) -> Answer {
    let request = Request::put(path).header("x-api-key", key);
    world
        .send(
            request.header(header::CONTENT_TYPE, "application/octet-stream").body(Body::from(body)).unwrap(),
        )
        .await
}

#[tokio::test]
async fn a_volume_is_made_mounted_copied_and_removed() {
    let world = World::new().await;
    let key = world.tenant("acme").await;
    let ask =
        async |method: &str, path: &str, sent: Option<Value>| world.ask(method, path, Some(&key), sent).await;
    let made = ask("POST", "/v1/volumes", Some(json!({ "name": "data", "size_mib": 64 }))).await;
    assert_eq!(made.status, 201, "{}", made.text());
    let id = made.json()["id"].as_str().unwrap().to_owned();
    assert_eq!(made.headers[header::LOCATION], format!("/v1/volumes/{id}"));
    let again = ask("POST", "/v1/volumes", Some(json!({ "name": "data" }))).await;
    assert_eq!(again.status, 409, "{}", again.text());
    for by in ["data", &id, &id[..8]] {
        assert_eq!(ask("GET", &format!("/v1/volumes/{by}"), None).await.json()["name"], "data", "{by}");
    }
    let wish = json!({ "name": "box", "mounts": [{ "volume": "data", "path": "/data", "read_only": true }] });
    let sandbox = ask("POST", "/v1/sandboxes", Some(wish)).await;
    assert_eq!(sandbox.status, 201, "{}", sandbox.text());
    let mounts = json!([{ "volume": id, "path": "/data", "sub_path": null, "read_only": true }]);
    assert_eq!(sandbox.json()["mounts"], mounts);
    assert_eq!(ask("GET", "/v1/volumes/data", None).await.json()["mounted_by"], 1);
    assert_eq!(ask("DELETE", "/v1/volumes/data", None).await.refusal(), (409, "volume_in_use".to_owned()));
    for (mount, code) in [
        (json!({ "volume": "none", "path": "/d" }), (404, "volume_not_found".to_owned())),
        (json!({ "volume": "data", "path": "/proc" }), (400, "invalid_request".to_owned())),
        (json!({ "volume": "data", "path": "/d", "colour": 1 }), (400, "invalid_request".to_owned())),
    ] {
        let refused = ask("POST", "/v1/sandboxes", Some(json!({ "mounts": [mount] }))).await;
        assert_eq!(refused.refusal(), code, "{}", refused.text());
    }
    let grown = ask("PATCH", "/v1/volumes/data", Some(json!({ "size_mib": 128 }))).await;
    assert_eq!(grown.json()["size_mib"], 128, "{}", grown.text());
    let copy = ask("POST", "/v1/volumes/data/copy", Some(json!({ "name": "copy" }))).await;
    assert_eq!((copy.status, copy.json()["parent"].as_str()), (201, Some(id.as_str())), "{}", copy.text());
    let listed = ask("GET", "/v1/volumes", None).await.json();
    let names: Vec<_> = listed["items"].as_array().unwrap().iter().map(|v| v["name"].clone()).collect();
    assert_eq!(names, ["copy", "data"]);
    let usage = world.ask("GET", "/v1/tenants/acme/usage", Some(&key), None).await.json();
    assert_eq!(usage["usage"]["volumes"], 2, "{usage}");
    ask("DELETE", "/v1/sandboxes/box", None).await;
    for name in ["data", "copy"] {
        assert_eq!(ask("DELETE", &format!("/v1/volumes/{name}"), None).await.status, 204, "{name}");
    }
    assert_eq!(ask("GET", "/v1/volumes/data", None).await.refusal(), (404, "volume_not_found".to_owned()));
    let host = ask("POST", "/v1/volumes", Some(json!({ "name": "etc", "folder": "/etc" }))).await;
    assert!((400..500).contains(&host.status), "{}", host.text());
}

#[tokio::test]
async fn files_of_a_volume_need_no_sandbox() {
    let world = World::new().await;
    let key = world.tenant("acme").await;
    let ask =
        async |method: &str, path: &str, sent: Option<Value>| world.ask(method, path, Some(&key), sent).await;
    ask("POST", "/v1/volumes", Some(json!({ "name": "data" }))).await;
    let at = "/v1/volumes/data";
    let written = put(&world, &key, &format!("{at}/files?path=/a/b&mode=600&uid=7"), "hello").await;
    assert_eq!(written.status, 200, "{}", written.text());
    let entry = written.json();
    // The provider in memory keeps no owners; the whole-server tests check real ones.
    assert_eq!((&entry["name"], &entry["path"]), (&json!("b"), &json!("/a/b")));
    let read = ask("GET", &format!("{at}/files?path=/a/b"), None).await;
    assert_eq!((read.status, read.text().as_str()), (200, "hello"));
    assert_eq!(read.headers[header::CONTENT_LENGTH], "5");
    let folder = ask("POST", &format!("{at}/folders"), Some(json!({ "path": "/c/d", "uid": 9 }))).await;
    assert_eq!(folder.status, 201, "{}", folder.text());
    let moved = ask("POST", &format!("{at}/move"), Some(json!({ "from": "/a/b", "to": "/c/e" }))).await;
    assert_eq!(moved.json()["path"], "/c/e", "{}", moved.text());
    let changed = ask("PATCH", &format!("{at}/entries?path=/c/e"), Some(json!({ "mode": "644" }))).await;
    assert_eq!(changed.status, 200, "{}", changed.text());
    let listed = ask("GET", &format!("{at}/entries?path=/&depth=3"), None).await.json();
    let paths: Vec<_> = listed["items"].as_array().unwrap().iter().map(|e| e["path"].clone()).collect();
    assert_eq!(paths, ["/a", "/c", "/c/d", "/c/e"], "{listed}");
    let one = ask("GET", &format!("{at}/entries?path=/c/e&depth=0"), None).await.json();
    assert_eq!(one["items"][0]["kind"], "file", "{one}");
    assert_eq!(ask("DELETE", &format!("{at}/files?path=/c"), None).await.status, 204);
    let gone = ask("GET", &format!("{at}/files?path=/c/e"), None).await;
    assert_eq!(gone.refusal(), (404, "file_not_found".to_owned()));
    assert_eq!(put(&world, &key, &format!("{at}/files?path=/x&mode=9"), "x").await.status, 400);
    assert_eq!(put(&world, &key, &format!("{at}/files"), "x").await.status, 400);
}

#[tokio::test]
async fn another_tenants_volume_looks_like_none_on_every_route() {
    let world = World::new().await;
    let (red, blue) = (world.tenant("red").await, world.tenant("blue").await);
    let made = world.ask("POST", "/v1/volumes", Some(&red), Some(json!({ "name": "mine" }))).await.json();
    let id = made["id"].as_str().unwrap();
    let sent = |method: &str, last: &str| match (method, last) {
        ("POST", "copy") => Some(json!({ "name": "x" })),
        ("POST", "folders") => Some(json!({ "path": "/x" })),
        ("POST", "move") => Some(json!({ "from": "/x", "to": "/y" })),
        ("PATCH", _) => Some(json!({})),
        _ => None,
    };
    let mut tried = 0;
    for route in world.contract.routes().iter().filter(|route| route.path.contains("{volume}")) {
        let last = route.path.rsplit('/').next().unwrap();
        for ident in [id, "mine"] {
            let path = route.path.replace("{volume}", ident);
            let path = if ["files", "entries"].contains(&last) { path + "?path=/x" } else { path };
            let theirs = world.ask(&route.method, &path, Some(&blue), sent(&route.method, last)).await;
            assert_eq!(theirs.refusal(), (404, "volume_not_found".to_owned()), "{route:?}");
        }
        tried += 1;
    }
    assert!(tried >= 10, "only {tried} routes");
    let wish = json!({ "mounts": [{ "volume": id, "path": "/d" }] });
    let refused = world.ask("POST", "/v1/sandboxes", Some(&blue), Some(wish)).await;
    assert_eq!(refused.refusal(), (404, "volume_not_found".to_owned()));
}
