//! Registries that require authentication.

use std::sync::{Arc, Mutex};

use atoll_image::oci::{Auth, RegistryError, RegistrySettings};
use atoll_model::Code;
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;

use crate::registry::fake::Fake;
use crate::registry::image::{Layer, World, noise, publish};

fn header<'a>(parts: &'a Parts, name: &str) -> &'a str {
    parts.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("")
}

fn basic(text: &str) -> String {
    format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(text))
}

fn challenge(host: &str) -> Response {
    let text =
        format!(r#"Bearer realm="http://{host}/token",service="fake",scope="repository:team/app:pull""#);
    (StatusCode::UNAUTHORIZED, [("www-authenticate", text)]).into_response()
}

/// A registry with a token server. Tokens are `t0`, `t1`, …; `takes` says which ones the registry accepts.
async fn guarded(
    gives: impl Fn(&Parts, &str) -> bool + Send + Sync + 'static,
    takes: impl Fn(&str) -> bool + Send + Sync + 'static,
) -> (Fake, Arc<Mutex<Vec<String>>>) {
    let fake = Fake::start().await;
    publish(&fake, "latest", &[Layer::gzip(&[("file", &noise(1, 10_000))])], |_, _| ());
    let host = fake.host();
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let log = Arc::clone(&seen);
    fake.fault(move |parts, body, before| {
        if parts.uri.path() == "/token" {
            let body = String::from_utf8_lossy(body).into_owned();
            log.lock().unwrap().push(format!("{} {} {body}", parts.method, parts.uri.query().unwrap_or("")));
            return Some(match gives(parts, &body) {
                true => format!(r#"{{"token":"t{before}","expires_in":60}}"#).into_response(),
                false => StatusCode::UNAUTHORIZED.into_response(),
            });
        }
        let token = header(parts, "authorization").strip_prefix("Bearer ").unwrap_or("");
        (!takes(token)).then(|| challenge(&host))
    });
    (fake, seen)
}

#[tokio::test]
async fn anybody_may_have_a_token_for_a_public_image() {
    let (fake, tokens) =
        guarded(|parts, _| header(parts, "authorization").is_empty(), |token| token == "t0").await;
    let world = World::reaching(&[&fake]);
    world.pull(&format!("{}/team/app", fake.host())).await.unwrap();
    let tokens = tokens.lock().unwrap();
    assert_eq!(tokens.len(), 1, "one token serves a whole pull: {tokens:?}");
    assert!(
        tokens[0].contains("service=fake") && tokens[0].contains("repository%3Ateam%2Fapp%3Apull"),
        "{tokens:?}"
    );
}

#[tokio::test]
async fn a_token_for_a_private_image_is_asked_for_with_credentials() {
    let wanted = basic("me:secret");
    let (fake, _) =
        guarded(move |parts, _| header(parts, "authorization") == wanted, |token| token == "t1").await;
    let world = World::reaching(&[&fake]);
    let name = format!("{}/team/app", fake.host());
    let error = world.pull(&name).await.unwrap_err();
    assert!(matches!(error, RegistryError::CredentialsNeeded { .. }), "{error}");
    assert_eq!(error.code(), Code::ImageNotFound);
    let as_me = |word: &str| Auth::Basic { username: "me".into(), password: word.into() };
    world.pull_as(&name, as_me("secret")).await.unwrap();
    let error = world.pull_as(&name, as_me("wrong")).await.unwrap_err();
    assert!(matches!(error, RegistryError::Refused { .. }), "{error}");
    assert!(!format!("{error:?}").contains("wrong"), "{error:?}");
}

#[tokio::test]
async fn a_token_that_ran_out_is_asked_for_again() {
    let used = Mutex::new(0);
    let takes = move |token: &str| {
        let mut used = used.lock().unwrap();
        *used += u32::from(token == "t0");
        token == "t1" || (token == "t0" && *used < 2)
    };
    let (fake, tokens) = guarded(|_, _| true, takes).await;
    let world = World::reaching(&[&fake]);
    world.pull(&format!("{}/team/app", fake.host())).await.unwrap();
    assert_eq!(tokens.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn an_identity_token_is_changed_for_a_short_one() {
    let gives = |parts: &Parts, body: &str| {
        parts.method == Method::POST
            && body.contains("grant_type=refresh_token")
            && body.contains("refresh_token=long%2Bone")
            && body.contains("scope=repository")
    };
    let (fake, _) = guarded(gives, |token| token == "t0").await;
    let world = World::reaching(&[&fake]);
    world.pull_as(&format!("{}/team/app", fake.host()), Auth::Identity("long+one".into())).await.unwrap();
}

#[tokio::test]
async fn a_token_of_the_registry_itself_is_shown_as_it_is() {
    let (fake, tokens) = guarded(|_, _| false, |token| token == "mine").await;
    let world = World::reaching(&[&fake]);
    let name = format!("{}/team/app", fake.host());
    world.pull_as(&name, Auth::Bearer("mine".into())).await.unwrap();
    let error = world.pull_as(&name, Auth::Bearer("other".into())).await.unwrap_err();
    assert!(matches!(error, RegistryError::Refused { .. }), "{error}");
    assert!(tokens.lock().unwrap().is_empty());
}

async fn behind_basic() -> Fake {
    let fake = Fake::start().await;
    publish(&fake, "latest", &[Layer::gzip(&[("file", b"x")])], |_, _| ());
    let wanted = basic("me:secret");
    fake.fault(move |parts, _, _| {
        (header(parts, "authorization") != wanted).then(|| {
            (StatusCode::UNAUTHORIZED, [("www-authenticate", r#"Basic realm="fake""#)]).into_response()
        })
    });
    fake
}

#[tokio::test]
async fn a_registry_with_passwords_is_given_one() {
    let fake = behind_basic().await;
    let world = World::reaching(&[&fake]);
    let name = format!("{}/app", fake.host());
    let as_me = |word: &str| Auth::Basic { username: "me".into(), password: word.into() };
    world.pull_as(&name, as_me("secret")).await.unwrap();
    assert!(matches!(world.pull_as(&name, as_me("no")).await.unwrap_err(), RegistryError::Refused { .. }));
    assert!(matches!(world.pull(&name).await.unwrap_err(), RegistryError::CredentialsNeeded { .. }));
}

#[tokio::test]
async fn only_who_acts_as_the_operator_uses_the_operators_credentials() {
    let fake = behind_basic().await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.json");
    let auth = base64::engine::general_purpose::STANDARD.encode("me:secret");
    std::fs::write(&path, serde_json::json!({"auths": {fake.host(): {"auth": auth}}}).to_string()).unwrap();
    let settings = RegistrySettings {
        insecure: vec![fake.host()],
        docker_config: Some(path),
        ..RegistrySettings::default()
    };
    let world = World::with(settings);
    let name = format!("{}/app", fake.host());
    assert!(world.pull(&name).await.is_err());
    world.pull_as(&name, Auth::Operator).await.unwrap();
}

#[tokio::test]
async fn a_token_server_at_a_forbidden_address_gets_no_credentials() {
    let fake = Fake::start().await;
    publish(&fake, "latest", &[], |_, _| ());
    let world = World::reaching(&[&fake]);
    for realm in
        ["http://169.254.169.254/token", "https://127.0.0.1:1/token", "file:///etc/passwd", "nonsense"]
    {
        let text = format!(r#"Bearer realm="{realm}",service="fake""#);
        fake.fault(move |_, _, _| {
            Some((StatusCode::UNAUTHORIZED, [("www-authenticate", text.clone())]).into_response())
        });
        let auth = Auth::Basic { username: "me".into(), password: "secret".into() };
        let error = world.pull_as(&format!("{}/app", fake.host()), auth).await.unwrap_err();
        let refused = matches!(
            error,
            RegistryError::Forbidden { .. }
                | RegistryError::ForbiddenAddress { .. }
                | RegistryError::Damaged { .. }
        );
        assert!(refused, "{realm}: {error}");
    }
}
