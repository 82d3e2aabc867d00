//! E2B's control API where calls cross each other: what is going away is not there.

#![allow(clippy::unwrap_used, reason = "tests")]

use atoll_tests::{Client, Options, World, json, run_with};
use reqwest::Method;
use serde_json::Value;

/// Often enough that some of the calls meet a sandbox that is just being removed.
const ROUNDS: usize = 6;

async fn call(client: &Client, method: Method, path: &str, body: Value) -> (u16, String) {
    let asked = client.raw(method, path).header("x-api-key", client.key()).json(&body);
    let answer = asked.send().await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

#[test]
fn a_sandbox_that_is_being_removed_is_not_there_and_no_conflict() {
    run_with(Options::debian(), async |world: &World| {
        let client = &world.tenant("e2b").await;
        for _ in 0..ROUNDS {
            let (status, made) =
                call(client, Method::POST, "/e2b/v2/sandboxes", json!({ "templateID": "base" })).await;
            assert_eq!(status, 201, "{made}");
            let made: Value = serde_json::from_str(&made).unwrap();
            let id = made["sandboxID"].as_str().unwrap();
            let to = |verb: &str, body: Value| {
                let (path, client) = (format!("/e2b/sandboxes/{id}/{verb}"), client.clone());
                async move { (path.clone(), call(&client, Method::POST, &path, body).await) }
            };
            let path = format!("/e2b/sandboxes/{id}");
            let (killed, connected, paused, lengthened) = tokio::join!(
                call(client, Method::DELETE, &path, json!({})),
                to("connect", json!({ "timeout": 60 })),
                to("pause", json!({})),
                to("timeout", json!({ "timeout": 60 })),
            );
            assert_eq!(killed.0, 204, "{}", killed.1);
            for (path, (status, said)) in [connected, paused, lengthened] {
                assert!(matches!(status, 200..=204 | 404), "{path}: {status} {said}");
            }
        }
    });
}
