//! Sandboxes that a Daytona create builds first, over plain HTTP against a real server: they are ordinary sandboxes from the first
//! moment, in one list with one name space, and survive a kill of the server.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use atoll_tests::image;
use atoll_tests::{Client, Options, World, json, run_with};
use reqwest::Method;
use serde_json::Value;

const SLOW: &str = "FROM ground\nRUN touch /began; sleep 60\n";

async fn ask(client: &Client, method: Method, path: &str, body: Option<Value>) -> (u16, Value) {
    let mut request = client.raw(method, &format!("/daytona/api{path}"));
    if let Some(body) = body {
        request = request.json(&body);
    }
    let answer = request.send().await.unwrap();
    let status = answer.status().as_u16();
    (status, answer.json().await.unwrap_or_default())
}

async fn create(client: &Client, name: &str, dockerfile: &str) -> (u16, Value) {
    let build = json!({ "dockerfileContent": dockerfile });
    let body = json!({ "name": name, "buildInfo": build, "cpu": 1, "memory": 1, "disk": 1 });
    ask(client, Method::POST, "/sandbox", Some(body)).await
}

async fn until_state(client: &Client, id: &str, state: &str) -> Value {
    atoll_tests::until(&format!("{id} is {state}"), async || {
        let (status, found) = ask(client, Method::GET, &format!("/sandbox/{id}"), None).await;
        assert_eq!(status, 200, "{found}");
        (found["state"] == state).then_some(found)
    })
    .await
}

async fn listed(client: &Client, query: &str) -> Vec<String> {
    let (status, page) = ask(client, Method::GET, &format!("/sandbox{query}"), None).await;
    assert_eq!(status, 200, "{page}");
    page["items"].as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect()
}

async fn with_ground(w: &World, name: &str, quota: Value) -> Client {
    let client = w.tenant_with(name, quota).await;
    client.import("ground", image::busybox().docker_archive("x")).await.ok();
    client
}

#[test]
fn a_kill_in_the_middle_of_a_create_with_a_build_leaves_the_same_sandbox() {
    run_with(Options::default(), async |w: &World| {
        let client = with_ground(w, "acme", json!({})).await;
        let (status, made) = create(&client, "app", SLOW).await;
        assert_eq!(status, 200, "{made}");
        assert!(["pending_build", "building_snapshot"].contains(&made["state"].as_str().unwrap()), "{made}");
        let id = made["id"].as_str().unwrap().to_owned();
        until_state(&client, &id, "building_snapshot").await;
        w.crash_server().await;
        let client = w.client(client.key());
        for ident in [id.as_str(), "app"] {
            let (status, found) = ask(&client, Method::GET, &format!("/sandbox/{ident}"), None).await;
            assert_eq!((status, found["id"].as_str()), (200, Some(id.as_str())), "{found}");
            let state = found["state"].as_str().unwrap();
            assert!(["building_snapshot", "build_failed"].contains(&state), "{found}");
        }
        let failed = until_state(&client, &id, "build_failed").await;
        let reason = failed["errorReason"].as_str().unwrap();
        assert!(reason.contains("the server ended while this was built"), "{reason}");
        assert_eq!(client.sandbox(&id).await["reason"]["code"], "image_unavailable");
        assert_eq!(listed(&client, "?states=build_failed").await, [id.as_str()]);
        assert_eq!(listed(&client, "?states=error").await, [] as [&str; 0]);
        let logs = client.raw(Method::GET, &format!("/daytona/api/sandbox/{id}/build-logs")).send().await;
        assert_eq!(logs.unwrap().status().as_u16(), 200);
        // The name is its until it is deleted.
        let quick = "FROM ground\nRUN echo quick > /quick\n";
        assert_eq!(create(&client, "app", quick).await.0, 409);
        let (status, start) = ask(&client, Method::POST, &format!("/sandbox/{id}/start"), None).await;
        assert_eq!(status, 400, "{start}");
        assert_eq!(ask(&client, Method::DELETE, &format!("/sandbox/{id}"), None).await.0, 200);
        let (status, made) = create(&client, "app", quick).await;
        assert_eq!(status, 200, "{made}");
        let id = made["id"].as_str().unwrap();
        until_state(&client, id, "started").await;
        assert_eq!(client.sh(id, "cat /quick").await.text(), "quick");
        client.remove(id).await;
    });
}

#[test]
fn a_sandbox_that_is_built_takes_its_place_and_its_delete_ends_the_build() {
    run_with(Options::default(), async |w: &World| {
        let client = with_ground(w, "acme", json!({ "sandboxes": 1 })).await;
        let (status, made) = create(&client, "app", SLOW).await;
        assert_eq!(status, 200, "{made}");
        let id = made["id"].as_str().unwrap().to_owned();
        until_state(&client, &id, "building_snapshot").await;
        // One list, in every front and under every filter.
        assert_eq!(listed(&client, "").await, [id.as_str()]);
        assert_eq!(listed(&client, "?states=building_snapshot&name=app").await, [id.as_str()]);
        assert_eq!(listed(&client, "?states=creating&states=started").await, [] as [&str; 0]);
        let native = client.sandbox(&id).await;
        assert_eq!((&native["phase"], &native["stage"]), (&json!("creating"), &json!("building")));
        // One quota, and one name space.
        client.post("/v1/sandboxes", json!({ "template": "ground" })).await.refused(429, "quota_exceeded");
        client
            .post("/v1/sandboxes", json!({ "template": "ground", "name": "app" }))
            .await
            .refused(429, "quota_exceeded");
        // Labels can be changed, what needs an instance cannot.
        let (status, labels) = ask(
            &client,
            Method::PUT,
            &format!("/sandbox/{id}/labels"),
            Some(json!({ "labels": { "a": "b" } })),
        )
        .await;
        assert_eq!((status, &labels["labels"]["a"]), (200, &json!("b")), "{labels}");
        assert_eq!(ask(&client, Method::POST, &format!("/sandbox/{id}/stop"), None).await.0, 409);
        client.try_exec(&id, json!({ "command": "true" })).await.refused(409, "phase_conflict");
        let (status, gone) = ask(&client, Method::DELETE, &format!("/sandbox/{id}"), None).await;
        assert_eq!((status, &gone["state"]), (200, &json!("destroyed")), "{gone}");
        let build = atoll_tests::until("the build is cancelled", async || {
            let builds = client.get("/v1/builds").await.ok();
            let build = builds["items"][0].clone();
            (build["status"] == "cancelled").then_some(build)
        });
        tokio::time::timeout(Duration::from_secs(20), build).await.expect("long before its step would end");
        let again = client.create(json!({ "template": "ground", "name": "app" })).await;
        client.remove(&again).await;
    });
}
