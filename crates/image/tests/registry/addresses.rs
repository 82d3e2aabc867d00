//! The addresses to which a registry may redirect, and those that are refused.

use atoll_image::oci::{Auth, RegistryError};
use atoll_model::Code;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use std::sync::{Arc, Mutex};

use crate::registry::fake::Fake;
use crate::registry::image::{Found, Layer, World, noise, publish};

fn to(location: &str) -> Response {
    (StatusCode::TEMPORARY_REDIRECT, [("location", location.to_owned())]).into_response()
}

#[tokio::test]
async fn a_registry_on_this_machine_is_reached_only_when_the_operator_named_it() {
    let fake = Fake::start().await;
    publish(&fake, "latest", &[], |_, _| ());
    let world = World::reaching(&[]);
    let port = fake.host().rsplit_once(':').unwrap().1.to_owned();
    for host in [fake.host(), format!("localhost:{port}"), "10.1.2.3:5000".into(), "169.254.169.254".into()] {
        let error = world.pull(&format!("{host}/app")).await.unwrap_err();
        assert!(matches!(error, RegistryError::ForbiddenAddress { .. }), "{host}: {error:?}");
        assert_eq!(error.code(), Code::InvalidRequest);
        assert!(error.hint().unwrap().contains("--registry-insecure"));
    }
    assert_eq!(fake.asked(), Vec::<String>::new());
}

#[tokio::test]
async fn a_layer_may_be_elsewhere_and_elsewhere_sees_no_token() {
    let (fake, storage) = (Fake::start().await, Fake::start().await);
    let layer = Layer::gzip(&[("file", &noise(2, 200_000))]);
    publish(&fake, "latest", std::slice::from_ref(&layer), |_, _| ());
    storage.put_blob(layer.blob.clone());
    let (there, path) = (storage.host(), format!("blobs/{}", layer.digest()));
    fake.fault(move |parts, _, _| {
        if parts.headers.get("authorization").is_none() {
            let text = r#"Basic realm="x""#;
            return Some((StatusCode::UNAUTHORIZED, [("www-authenticate", text)]).into_response());
        }
        parts.uri.path().ends_with(&path).then(|| to(&format!("http://{there}/any/{path}?signature=1")))
    });
    let seen: Arc<Mutex<Vec<bool>>> = Arc::default();
    let log = Arc::clone(&seen);
    storage.fault(move |parts, _, _| {
        if parts.uri.path().contains("/blobs/") {
            log.lock().unwrap().push(parts.headers.contains_key("authorization"));
        }
        None
    });
    let world = World::reaching(&[&fake, &storage]);
    let auth = Auth::Basic { username: "me".into(), password: "secret".into() };
    world.pull_as(&format!("{}/app", fake.host()), auth).await.unwrap();
    assert_eq!(world.read(&layer, "file"), noise(2, 200_000));
    assert_eq!(*seen.lock().unwrap(), [false]);
}

#[tokio::test]
async fn a_redirect_to_where_nobody_may_go_is_refused_and_nothing_is_asked_there() {
    let (fake, inside) = (Fake::start().await, Fake::start().await);
    let layer = Layer::gzip(&[("file", b"x")]);
    publish(&fake, "latest", std::slice::from_ref(&layer), |_, _| ());
    inside.put_blob(layer.blob.clone());
    let world = World::reaching(&[&fake]);
    let port = inside.host().rsplit_once(':').unwrap().1.to_owned();
    for target in [
        "http://169.254.169.254/latest/meta-data/".to_owned(),
        "https://169.254.169.254/latest/meta-data/".to_owned(),
        format!("http://{}/v2/app/blobs/{}", inside.host(), layer.digest()),
        format!("https://localhost:{port}/"),
        format!("https://[::ffff:127.0.0.1]:{port}/"),
        format!("https://0x7f000001:{port}/"),
        "file:///etc/passwd".to_owned(),
        "//10.0.0.1/x".to_owned(),
    ] {
        let (goes, path) = (target.clone(), format!("blobs/{}", layer.digest()));
        fake.fault(move |parts, _, _| parts.uri.path().ends_with(&path).then(|| to(&goes)));
        let error = world.pull(&format!("{}/app", fake.host())).await.unwrap_err();
        let refused =
            matches!(error, RegistryError::Forbidden { .. } | RegistryError::ForbiddenAddress { .. });
        assert!(refused, "{target}: {error:?}");
        let found = world.found();
        assert_eq!((found.layers, found.blobs), (Found::default().layers, Found::default().blobs));
    }
    assert_eq!(inside.asked(), Vec::<String>::new());
}

#[tokio::test]
async fn redirects_in_a_circle_end() {
    let fake = Fake::start().await;
    let world = World::reaching(&[&fake]);
    fake.fault(|parts, _, _| Some(to(parts.uri.path())));
    let error = world.pull(&format!("{}/app", fake.host())).await.unwrap_err();
    assert!(matches!(error, RegistryError::Forbidden { .. }), "{error:?}");
    assert!(fake.asked().len() < 10);
}
