//! Providers over the API: the list, the choice in a create, and the refusal of an unknown one. Each exchange is checked against
//! the document.
#![allow(clippy::unwrap_used)]

use crate::support::World;
use serde_json::json;

#[tokio::test]
async fn a_create_names_a_provider_of_the_list() {
    let world = World::new().await;
    let key = world.tenant("acme").await;
    let listed = world.ask("GET", "/v1/providers", Some(&key), None).await;
    assert_eq!(listed.status, 200, "{}", listed.text());
    let listed = listed.json();
    let one = &listed["items"][0];
    assert_eq!(
        (&one["name"], &one["isolation"], &one["health"]),
        (&json!("pretend"), &json!("none"), &json!("ok"))
    );
    assert_eq!((&one["default"], &one["best_for"]), (&json!(true), &json!("tests")));
    assert!(one["capabilities"].as_array().unwrap().contains(&json!("snapshot")));
    assert_eq!(world.ask("GET", "/v1/providers", None, None).await.status, 401);
    let create = async |provider: &str| {
        world.ask("POST", "/v1/sandboxes", Some(&key), Some(json!({ "provider": provider }))).await
    };
    let made = create("pretend").await;
    assert_eq!((made.status, &made.json()["provider"]), (201, &json!("pretend")));
    let refused = create("other").await;
    assert_eq!(refused.refusal(), (404, "provider_not_found".to_owned()));
    assert_eq!(refused.json()["hint"], "its providers: pretend");
}
