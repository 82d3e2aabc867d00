//! Drives the example front over a real service and a real store. Only the provider of sandboxes is a fake.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use atoll_example_front::Toy;
use atoll_front_kit::Dispatch;
use atoll_provider::fake::{FakeProvider, TEMPLATE};
use atoll_service::{
    MakeProgress, ProviderRegistry, Service, ServiceConfig, ServiceError, SystemClock, TemplateRecord,
    TemplateSource,
};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use serde_json::{Value, json};
use tower::ServiceExt;

struct OneTemplate;

impl TemplateSource for OneTemplate {
    fn resolve(&self, _: &str) -> Result<TemplateRecord, ServiceError> {
        Ok(TemplateRecord {
            name: TEMPLATE.to_owned(),
            version: "1".to_owned(),
            user: "user".to_owned(),
            ..TemplateRecord::default()
        })
    }

    fn pinned(&self, name: &str, _: &str) -> Result<TemplateRecord, ServiceError> {
        self.resolve(name)
    }

    fn list(&self) -> Result<Vec<TemplateRecord>, ServiceError> {
        self.resolve(TEMPLATE).map(|template| vec![template])
    }

    fn make(&self, name: &str, _: MakeProgress) -> Result<TemplateRecord, ServiceError> {
        self.resolve(name)
    }

    fn remove(&self, _: &str) -> Result<(), ServiceError> {
        Ok(())
    }
}

struct Server {
    router: Router,
    key: String,
    _data: tempfile::TempDir,
}

impl Server {
    async fn start() -> Self {
        let data = tempfile::tempdir().unwrap();
        let store = Arc::new(atoll_store::SqliteStore::open(data.path()).unwrap());
        let (provider, clock) = (FakeProvider::new(), SystemClock::open().unwrap());
        let config = ServiceConfig::new(data.path());
        let service =
            Service::open(config, store, ProviderRegistry::new(provider), Arc::new(OneTemplate), clock)
                .await
                .unwrap();
        let key = std::fs::read_to_string(data.path().join("admin.key")).unwrap().trim().to_owned();
        let table = Dispatch::default().front(Toy(service));
        assert_eq!(table.key_fields(), ["toy-key"], "the proxy hands it to no app");
        Self { router: table.into_router(), key, _data: data }
    }

    async fn send(&self, method: &str, path: &str, key: Option<&str>, body: &str) -> (u16, Value) {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(key) = key {
            request = request.header("toy-key", key);
        }
        let request = request.body(Body::from(body.to_owned())).unwrap();
        let response = self.router.clone().oneshot(request).await.unwrap();
        assert!(response.headers().contains_key("x-request-id"));
        let status = response.status().as_u16();
        let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
    }
}

#[tokio::test]
async fn a_box_is_created_listed_and_deleted() {
    let server = Server::start().await;
    let key = Some(server.key.as_str());
    let (status, made) = server.send("POST", "/toy/boxes", key, r#"{"name":"first","minutes":5}"#).await;
    assert_eq!((status, &made["name"], &made["running"]), (201, &json!("first"), &json!(true)), "{made}");
    let (status, all) = server.send("GET", "/toy/boxes", key, "").await;
    assert_eq!((status, &all), (200, &json!([made])));
    let path = format!("/toy/boxes/{}", made["id"].as_str().unwrap());
    assert_eq!(server.send("DELETE", &path, key, "").await, (204, Value::Null));
    assert_eq!(server.send("GET", "/toy/boxes", key, "").await, (200, json!([])));
}

#[tokio::test]
async fn errors_have_the_fronts_form_and_its_names_of_fields() {
    let server = Server::start().await;
    let key = Some(server.key.as_str());
    let error = async |method: &str, path: &str, key: Option<&str>, body: &str| {
        let (status, body) = server.send(method, path, key, body).await;
        assert!(body["request"].is_string(), "{body}");
        (status, body["error"].as_str().unwrap().to_owned())
    };
    let (status, text) = error("POST", "/toy/boxes", None, "{}").await;
    assert_eq!((status, text.as_str()), (401, "this request needs a key (send the header Toy-Key)"));
    let (status, text) = error("POST", "/toy/boxes", key, r#"{"minutes":"five"}"#).await;
    assert!(status == 400 && text.starts_with("minutes: "), "{status} {text}");
    // The core calls this field timeout_s.
    let (status, text) = error("POST", "/toy/boxes", key, r#"{"minutes":0}"#).await;
    assert_eq!((status, text.as_str()), (400, "minutes: must be at least 1"));
    assert_eq!(error("DELETE", "/toy/boxes/none", key, "").await.0, 404);
    assert_eq!(error("GET", "/toy/none", key, "").await.0, 404);
}
