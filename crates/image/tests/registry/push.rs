//! Pushing templates to a registry.

use std::sync::{Arc, Mutex};

use atoll_image::oci::Auth;
use atoll_model::Code;
use axum::http::{Method, StatusCode};
use axum::response::IntoResponse;

use crate::registry::fake::Fake;
use crate::registry::image::{Layer, World, noise, publish};

/// A store with one version that was pulled from another registry.
async fn with_version(hosts: &[&Fake]) -> (World, String, [Layer; 2]) {
    let source = Fake::start().await;
    let layers = [Layer::gzip(&[("etc/one", b"1")]), Layer::gzip(&[("srv/two", &noise(2, 500_000))])];
    publish(&source, "v1", &layers, |_, _| ());
    let world = World::reaching(&[&[&source], hosts].concat());
    let pulled = world.pull(&format!("{}/app:v1", source.host())).await.unwrap();
    (world, pulled.version, layers)
}

#[tokio::test]
async fn what_was_pushed_is_pulled_the_same() {
    let fake = Fake::start().await;
    let (world, version, layers) = with_version(&[&fake]).await;
    let image = format!("{}/team/copy:v2", fake.host()).parse().unwrap();
    let pushed = world
        .registry
        .push(&world.images, &version, &image, Auth::Anonymous, world.progress())
        .await
        .unwrap();
    let asked = fake.asked();
    assert_eq!(asked.last().unwrap(), "PUT /v2/team/copy/manifests/v2", "the manifest goes last: {asked:?}");
    assert_eq!(fake.blobs(), 3);
    let other = World::reaching(&[&fake]);
    let pulled = other.pull(&image.to_string()).await.unwrap();
    assert_eq!((pulled.version, pulled.manifest_digest), (version.clone(), pushed.manifest_digest.clone()));
    assert_eq!(other.read(&layers[1], "srv/two"), noise(2, 500_000));
    // Once more: everything exists, and only the manifest is sent.
    fake.forget();
    let again = world
        .registry
        .push(&world.images, &version, &image, Auth::Anonymous, world.progress())
        .await
        .unwrap();
    assert_eq!(again, pushed);
    assert_eq!((fake.count("POST"), fake.count("PUT")), (0, 1), "{:?}", fake.asked());
}

#[tokio::test]
async fn a_blob_that_the_registry_finds_elsewhere_is_not_sent() {
    let fake = Fake::start().await;
    let (world, version, layers) = with_version(&[&fake]).await;
    fake.fault(|parts, _, _| {
        let mounts =
            parts.method == Method::POST && parts.uri.query().is_some_and(|query| query.contains("mount="));
        mounts.then(|| StatusCode::CREATED.into_response())
    });
    let image = format!("{}/copy", fake.host()).parse().unwrap();
    world.registry.push(&world.images, &version, &image, Auth::Anonymous, world.progress()).await.unwrap();
    assert_eq!(fake.count("PUT /v2/copy/blobs"), 0);
    assert_eq!(fake.count("POST"), layers.len() + 1);
}

#[tokio::test]
async fn an_upload_that_fails_is_made_again() {
    let fake = Fake::start().await;
    let (world, version, _) = with_version(&[&fake]).await;
    fake.fault(|parts, _, before| {
        (parts.method == Method::PUT && before == 0).then(|| StatusCode::BAD_GATEWAY.into_response())
    });
    let image = format!("{}/copy", fake.host()).parse().unwrap();
    world.registry.push(&world.images, &version, &image, Auth::Anonymous, world.progress()).await.unwrap();
    let other = World::reaching(&[&fake]);
    assert_eq!(other.pull(&image.to_string()).await.unwrap().version, version);
}

#[tokio::test]
async fn a_push_asks_for_a_token_that_may_push() {
    let fake = Fake::start().await;
    let (world, version, _) = with_version(&[&fake]).await;
    let (host, scopes): (String, Arc<Mutex<Vec<String>>>) = (fake.host(), Arc::default());
    let log = Arc::clone(&scopes);
    fake.fault(move |parts, _, _| {
        if parts.uri.path() == "/token" {
            log.lock().unwrap().push(parts.uri.query().unwrap_or("").to_owned());
            return Some(r#"{"access_token":"yes"}"#.into_response());
        }
        let shown = parts.headers.get("authorization").and_then(|value| value.to_str().ok());
        let text = format!(r#"Bearer realm="http://{host}/token",service="s",scope="repository:copy:pull""#);
        (shown != Some("Bearer yes"))
            .then(|| (StatusCode::UNAUTHORIZED, [("www-authenticate", text)]).into_response())
    });
    let image = format!("{}/copy", fake.host()).parse().unwrap();
    world.registry.push(&world.images, &version, &image, Auth::Anonymous, world.progress()).await.unwrap();
    let scopes = scopes.lock().unwrap();
    assert_eq!(scopes.len(), 1, "{scopes:?}");
    assert!(scopes[0].contains("repository%3Acopy%3Apull%2Cpush"), "{scopes:?}");
}

#[tokio::test]
async fn an_upload_is_not_sent_where_nobody_may_go() {
    let fake = Fake::start().await;
    let (world, version, _) = with_version(&[&fake]).await;
    fake.fault(|parts, _, _| {
        (parts.method == Method::POST)
            .then(|| (StatusCode::ACCEPTED, [("location", "http://169.254.169.254/upload")]).into_response())
    });
    let image = format!("{}/copy", fake.host()).parse().unwrap();
    let error = world
        .registry
        .push(&world.images, &version, &image, Auth::Anonymous, world.progress())
        .await
        .unwrap_err();
    assert_eq!(error.code(), Code::InvalidRequest, "{error}");
}

#[tokio::test]
async fn who_may_not_push_is_told_so() {
    let fake = Fake::start().await;
    let (world, version, _) = with_version(&[&fake]).await;
    fake.fault(|parts, _, _| (parts.method == Method::POST).then(|| StatusCode::FORBIDDEN.into_response()));
    let image = format!("{}/copy", fake.host()).parse().unwrap();
    let push = |version: String, image| {
        let world = &world;
        async move {
            world.registry.push(&world.images, &version, &image, Auth::Anonymous, world.progress()).await
        }
    };
    let error = push(version.clone(), image).await.unwrap_err();
    assert_eq!(error.code(), Code::ImageNotFound, "{error}");
    let by_digest = format!("{}/copy@sha256:{}", fake.host(), "a".repeat(64)).parse().unwrap();
    assert_eq!(push(version, by_digest).await.unwrap_err().code(), Code::InvalidRequest);
    let image = format!("{}/copy", fake.host()).parse().unwrap();
    let missing = push(format!("sha256:{}", "b".repeat(64)), image).await.unwrap_err();
    assert_eq!(missing.code(), Code::TemplateNotFound, "{missing}");
}
