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

#[tokio::test]
async fn settings_are_read_and_changed_with_an_admin_key_and_secrets_are_never_shown() {
    let world = World::new().await;
    let (tenant, admin) = (world.tenant("acme").await, world.admin.clone());
    let ask = async |method: &str, path: &str, key: &str, body: Option<serde_json::Value>| {
        world.ask(method, path, Some(key), body).await
    };
    let path = "/v1/providers/cloud/settings";
    let body = json!({"provider": "daytona", "daytona": {"api_key": "key-1", "target": "eu"}});
    assert_eq!(ask("PUT", path, &tenant, Some(body.clone())).await.refusal().0, 403);
    let set = ask("PUT", path, &admin, Some(body)).await;
    assert_eq!(set.status, 200, "{}", set.text());
    for answer in [set, ask("GET", path, &admin, None).await] {
        assert!(!answer.text().contains("key-1"));
        assert_eq!(answer.json()["settings"]["daytona"], json!({"target": "eu"}));
        assert_eq!(answer.json()["sources"], json!({"api_key": "file", "target": "file"}));
        assert_eq!(answer.json()["problem"], "no daytona here");
    }
    let listed = ask("GET", "/v1/providers", &admin, None).await.json();
    let cloud = &listed["items"][0];
    assert_eq!(
        (&cloud["name"], &cloud["isolation"], &cloud["health"]),
        (&json!("cloud"), &json!("vendor"), &json!("degraded"))
    );
    let tested = ask("POST", "/v1/providers/cloud/test", &admin, None).await;
    assert_eq!(tested.refusal(), (501, "unsupported".to_owned()));
    let fine = ask("POST", "/v1/providers/pretend/test", &admin, None).await;
    assert_eq!((fine.status, fine.json()), (200, json!({"ok": true})), "it needs no settings");
    let bad = ask("PUT", path, &admin, Some(json!({"provider": "daytona", "colour": 1}))).await;
    assert_eq!((bad.status, &bad.json()["field"]), (400, &json!("colour")), "{}", bad.text());
    assert_eq!(ask("DELETE", path, &admin, None).await.status, 204);
    assert_eq!(ask("GET", path, &admin, None).await.refusal().0, 404);
}

#[tokio::test]
async fn a_tenant_has_a_list_of_providers() {
    let world = World::new().await;
    let key = world.tenant("acme").await;
    let path = "/v1/tenants/acme/providers";
    let create = async || world.ask("POST", "/v1/sandboxes", Some(&key), Some(json!({}))).await;
    let made = create().await;
    assert_eq!((made.status, &made.json()["isolation"]), (201, &json!("none")));
    let set = world.ask("PUT", path, Some(&world.admin), Some(json!({"providers": ["local"]}))).await;
    assert_eq!((set.status, &set.json()["providers"]), (200, &json!(["local"])));
    let unknown = world.ask("PUT", path, Some(&world.admin), Some(json!({"providers": ["lokal"]}))).await;
    assert_eq!(unknown.refusal(), (404, "provider_not_found".to_owned()));
    assert_eq!(create().await.refusal(), (403, "provider_not_allowed".to_owned()));
    let cleared = world.ask("DELETE", path, Some(&world.admin), None).await;
    assert_eq!((cleared.status, &cleared.json()["providers"]), (200, &json!(null)));
    assert_eq!(create().await.status, 201);
}
