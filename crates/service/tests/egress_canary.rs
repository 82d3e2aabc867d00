//! A canary: the value of a secret is stored, reaches the provider, and must not be anywhere else. It is the only test
//! of its binary: it collects the log of every thread.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::Write;
use std::sync::{Arc, Mutex};

use crate::world::World;
use atoll_model::{CreateSandbox, HeaderText, Lease, NetworkPolicy, Transform, UpdateSandbox};
use atoll_provider::fake::{ProviderCall, Script};
use atoll_service::{NewSecret, NewSnapshot, SecretAbout, ServiceError};

const CANARY: &str = "canary-5d41402abc4b2a76";

fn with_headers(headers: &[(&str, &str)]) -> NetworkPolicy {
    let inject =
        headers.iter().map(|(name, value)| ((*name).to_owned(), HeaderText::Plain((*value).to_owned())));
    let transform = Transform {
        domain: "api.example.com".parse().unwrap(),
        inject_headers: inject.collect(),
        strip_headers: vec![],
        plain_http: false,
    };
    NetworkPolicy { transforms: vec![transform], ..NetworkPolicy::allow_all() }
}

async fn update(world: &World, lease: &Lease, network: NetworkPolicy) -> Result<Lease, ServiceError> {
    world
        .service
        .sandboxes()
        .update(
            &world.admin,
            lease.id.as_str(),
            UpdateSandbox { network: Some(network), ..Default::default() },
        )
        .await
}

/// Collects everything that is logged.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<Vec<u8>>>);

impl Write for Said {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_value_reaches_the_provider_and_is_shown_nowhere() {
    let said = Said::default();
    let writer = said.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let world = World::new().await;
    let (service, who) = (&world.service, &world.admin);
    let about = SecretAbout { hosts: vec!["api.example.org".to_owned()], ..Default::default() };
    let new = NewSecret { name: "KEY".to_owned(), value: CANARY.to_owned(), about };
    service.access().create_secret(who, new).await.unwrap();
    let literal = format!("{CANARY}-literal");
    let policy = with_headers(&[("Authorization", "Bearer {secret:KEY}"), ("X-Key", &literal)]);
    let lease = world
        .try_create(CreateSandbox {
            network: Some(policy.clone()),
            secrets: [("API_KEY".to_owned(), "KEY".to_owned())].into(),
            ..Default::default()
        })
        .await
        .unwrap();
    let id = lease.id.as_str();
    let in_force = world.fake.in_force(&lease.id).unwrap().1;
    let injected: Vec<_> = in_force.changes[0].inject.iter().map(|header| header.value.as_str()).collect();
    assert_eq!(injected, [format!("Bearer {CANARY}"), literal.clone()]);
    assert_eq!(in_force.replacements[0].value, CANARY);
    // Everything that a caller may see, including failures.
    let mut shown = Vec::new();
    shown.push(format!("{lease:?} {policy:?} {:?}", in_force));
    shown.push(serde_json::to_string(&service.sandboxes().get(who, id).await.unwrap()).unwrap());
    shown.push(format!("{:?}", service.access().list_secrets(who).await.unwrap()));
    shown.push(format!(
        "{:?}",
        NewSecret { name: "KEY".to_owned(), value: CANARY.to_owned(), about: Default::default() }
    ));
    let again = NewSecret { name: "KEY".to_owned(), value: CANARY.to_owned(), about: Default::default() };
    shown.push(format!("{:?}", service.access().create_secret(who, again).await.unwrap_err()));
    shown.push(format!(
        "{:?}",
        service.access().rotate_secret(who, "NONE", CANARY.to_owned()).await.unwrap_err()
    ));
    let torn = service.access().rotate_secret(who, "KEY", format!("{CANARY}\n")).await.unwrap_err();
    shown.push(format!("{torn:?}"));
    world.fake.script(ProviderCall::SetNetwork, Script::Fail);
    let more = with_headers(&[("Authorization", &format!("{CANARY}-more"))]);
    shown.push(format!("{:?}", update(&world, &lease, more.clone()).await.unwrap_err()));
    update(&world, &lease, more).await.unwrap();
    update(&world, &lease, with_headers(&[("Authorization", "Bearer {secret:KEY}"), ("X-Key", &literal)]))
        .await
        .unwrap();
    let bad = with_headers(&[("Authorization", &format!("{CANARY}{{secret:NONE}}"))]);
    shown.push(format!("{:?}", update(&world, &lease, bad).await.unwrap_err()));
    let snapshot = service
        .sandboxes()
        .snapshot(who, id, NewSnapshot { name: None, memory: false, ..Default::default() })
        .await
        .unwrap();
    shown.push(serde_json::to_string(&snapshot).unwrap());
    let events = service.events(who, None, None, 0).await.unwrap();
    shown.push(serde_json::to_string(&events).unwrap());
    shown.push(format!("{:?}", world.fake.env(&lease.id)));
    shown.push(format!("{:?}", world.fake.files(&lease.id, |files| files.clone())));
    service.sandboxes().delete(who, id, true).await.unwrap();
    shown.push(String::from_utf8_lossy(&said.0.lock().unwrap()).into_owned());
    for text in &shown {
        assert!(!text.contains(CANARY), "{text}");
    }
    assert!(shown.last().unwrap().contains("a sandbox was requested"), "the log was collected");
    // Nor is it in any file of the server.
    for entry in std::fs::read_dir(world.data()).unwrap().flatten().filter(|entry| entry.path().is_file()) {
        let content = std::fs::read(entry.path()).unwrap();
        let found = content.windows(CANARY.len()).any(|window| window == CANARY.as_bytes());
        assert!(!found, "{}", entry.path().display());
    }
    // The record of a deleted sandbox needs no secrets.
    assert_eq!(world.get(&lease.id).await.network.transforms, []);
}
