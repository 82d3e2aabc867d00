//! Network policies: checked, encrypted and enforced; secrets; the certificate authority.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use crate::world::{Options, World};
use atoll_model::policy::egress::{DirectMode, Dns, Egress, OperatorFloors, PrivateRanges};
use atoll_model::{
    Code, CreateSandbox, HeaderText, Lease, NetworkMode, NetworkPolicy, Origin, Phase, Principal, Quota,
    SandboxId, Transform, UpdateSandbox,
};
use atoll_provider::fake::{ProviderCall, Script};
use atoll_service::{Fork, NewSecret, NewSnapshot, Pause, SecretAbout, SecretChange, ServiceError};

const OWN: &str = "/usr/local/share/ca-certificates/atoll-egress.crt";
const BUNDLE: &str = "/etc/ssl/certs/ca-certificates.crt";
const CANARY: &str = "canary-5d41402abc4b2a76";

fn with_header(value: &str) -> NetworkPolicy {
    with_headers(&[("Authorization", value)])
}

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

fn networks(texts: &[&str]) -> NetworkPolicy {
    let allow_cidrs = texts.iter().map(|text| text.parse().unwrap()).collect();
    NetworkPolicy { mode: NetworkMode::Custom, allow_cidrs, ..NetworkPolicy::default() }
}

fn asking(network: NetworkPolicy) -> CreateSandbox {
    CreateSandbox { network: Some(network), ..Default::default() }
}

fn changing(network: NetworkPolicy) -> UpdateSandbox {
    UpdateSandbox { network: Some(network), ..Default::default() }
}

async fn secret(world: &World, who: &Principal, name: &str, value: &str) {
    let new = NewSecret { name: name.to_owned(), value: value.to_owned(), about: Default::default() };
    world.service.access().create_secret(who, new).await.unwrap();
}

fn in_force(world: &World, id: &SandboxId) -> Arc<Egress> {
    world.fake.in_force(id).unwrap().1
}

/// The injected headers of the only transform.
fn injected(world: &World, id: &SandboxId) -> Vec<String> {
    in_force(world, id)
        .changes
        .iter()
        .flat_map(|change| &change.inject)
        .map(|header| header.value.clone())
        .collect()
}

fn file(world: &World, id: &SandboxId, path: &str) -> Option<String> {
    let content = world.fake.files(id, |files| files.get(path).cloned()).unwrap();
    content.map(|content| String::from_utf8(content).unwrap())
}

async fn update(world: &World, lease: &Lease, network: NetworkPolicy) -> Result<Lease, ServiceError> {
    world.service.sandboxes().update(&world.admin, lease.id.as_str(), changing(network)).await
}

#[tokio::test(start_paused = true)]
async fn a_secret_that_is_not_there_is_refused_and_nothing_is_made() {
    let world = World::new().await;
    let stranger = world.stranger().await;
    secret(&world, &stranger, "THEIRS", CANARY).await;
    for (value, part) in [
        ("{secret:NONE}", "there is no secret NONE"),
        ("{secret:THEIRS}", "there is no secret THEIRS"),
        ("{secret:}", "closing brace"),
        ("{secret:A", "closing brace"),
        (HeaderText::SHOWN, "stands for a hidden value"),
    ] {
        let refused = world.try_create(asking(with_header(value))).await.unwrap_err();
        assert_eq!(refused.code, Code::InvalidRequest, "{value}");
        assert!(refused.message.contains(part), "{refused}");
    }
    assert_eq!(world.fake.holds(), []);
    let sealed = world.store.seal_text(&stranger.tenant, CANARY).unwrap();
    let mut theirs = with_header("x");
    theirs.transforms[0].inject_headers.insert("Authorization".to_owned(), HeaderText::Sealed(sealed));
    assert_eq!(world.try_create(asking(theirs)).await.unwrap_err().code, Code::InvalidRequest);
}

#[tokio::test(start_paused = true)]
async fn secrets_are_created_listed_rotated_and_deleted_by_their_tenant_alone() {
    let world = World::new().await;
    let (service, who) = (&world.service, &world.admin);
    let stranger = world.stranger().await;
    for (name, value, code) in [
        ("1A", "v", Code::InvalidRequest),
        ("A", "", Code::InvalidRequest),
        ("A", "a\nb", Code::InvalidRequest),
        ("A", "v", Code::AlreadyExists),
    ] {
        if code == Code::AlreadyExists {
            secret(&world, who, "A", "first").await;
        }
        let new = NewSecret { name: name.to_owned(), value: value.to_owned(), about: Default::default() };
        assert_eq!(service.access().create_secret(who, new).await.unwrap_err().code, code, "{name}");
    }
    secret(&world, &stranger, "A", "theirs").await;
    assert_eq!(
        service.access().rotate_secret(&stranger, "B", "x".to_owned()).await.unwrap_err().code,
        Code::SecretNotFound
    );
    let lease = world.try_create(asking(with_header("{secret:A}"))).await.unwrap();
    let listed = service.access().list_secrets(who).await.unwrap();
    assert_eq!((listed.len(), listed[0].name.as_str(), listed[0].used_by), (1, "A", 1));
    assert_eq!(service.access().list_secrets(&stranger).await.unwrap()[0].used_by, 0);
    let refused = service.access().delete_secret(who, "A").await.unwrap_err();
    assert_eq!(refused.code, Code::SecretInUse);
    assert!(refused.message.contains(lease.id.as_str()));
    service.access().delete_secret(&stranger, "A").await.unwrap();
    assert_eq!(service.access().delete_secret(&stranger, "A").await.unwrap_err().code, Code::SecretNotFound);
    assert_eq!(injected(&world, &lease.id), ["first"]);
    service.sandboxes().delete(who, lease.id.as_str(), true).await.unwrap();
    service.access().delete_secret(who, "A").await.unwrap();
    assert_eq!(service.access().list_secrets(who).await.unwrap(), []);
    for n in 0..100 {
        secret(&world, who, &format!("S{n}"), "v").await;
    }
    let new = NewSecret { name: "S100".to_owned(), value: "v".to_owned(), about: Default::default() };
    assert_eq!(service.access().create_secret(who, new).await.unwrap_err().code, Code::QuotaExceeded);
}

#[tokio::test(start_paused = true)]
async fn a_rotated_secret_reaches_what_runs_what_sleeps_and_what_is_being_made() {
    let world = World::new().await;
    let (service, who) = (&world.service, &world.admin);
    secret(&world, who, "A", "one").await;
    let spec = || asking(with_header("Bearer {secret:A}"));
    let running = world.try_create(spec()).await.unwrap();
    let other = world.create().await;
    let stopped = world.try_create(spec()).await.unwrap();
    service.sandboxes().stop(who, stopped.id.as_str(), true).await.unwrap();
    let paused = world.try_create(spec()).await.unwrap();
    service.sandboxes().pause(who, paused.id.as_str(), Pause { memory: None }, true).await.unwrap();
    world.fake.script(ProviderCall::Create, Script::Hold);
    let making = service.sandboxes().create(who, spec(), false).await.unwrap().0;
    world.quiet().await;
    let record = service.access().rotate_secret(who, "A", "two".to_owned()).await.unwrap();
    assert_eq!((record.used_by, record.rotated_at_ms.is_some()), (4, true));
    assert_eq!(injected(&world, &running.id), ["Bearer two"]);
    assert_eq!(injected(&world, &paused.id), ["Bearer two"]);
    assert_eq!(world.fake.calls(ProviderCall::SetNetwork, &other.id), 0);
    world.fake.release();
    world.until(&making.id, Phase::Running).await;
    world.quiet().await;
    assert_eq!(injected(&world, &making.id), ["Bearer two"]);
    service.sandboxes().start(who, stopped.id.as_str(), true).await.unwrap();
    assert_eq!(injected(&world, &stopped.id), ["Bearer two"]);
}

#[tokio::test(start_paused = true)]
async fn a_rotation_that_the_provider_refuses_is_tried_again() {
    let world = World::new().await;
    secret(&world, &world.admin, "A", "one").await;
    let lease = world.try_create(asking(with_header("{secret:A}"))).await.unwrap();
    world.fake.script(ProviderCall::SetNetwork, Script::Fail);
    world.service.access().rotate_secret(&world.admin, "A", "two".to_owned()).await.unwrap();
    assert_eq!(injected(&world, &lease.id), ["one"]);
    world.advance(std::time::Duration::from_secs(6)).await;
    assert_eq!(injected(&world, &lease.id), ["two"]);
}

#[tokio::test(start_paused = true)]
async fn the_same_value_again_changes_nothing_and_the_shown_one_keeps_it() {
    let world = World::new().await;
    let lease = world.try_create(asking(with_header(CANARY))).await.unwrap();
    let same = update(&world, &lease, with_header(CANARY)).await.unwrap();
    assert_eq!((same.generation, &same.network), (lease.generation, &lease.network));
    let mut more = with_header(HeaderText::SHOWN);
    more.transforms[0].strip_headers.push("Cookie".to_owned());
    let changed = update(&world, &lease, more).await.unwrap();
    assert_ne!(changed.network, lease.network);
    assert_eq!(injected(&world, &lease.id), [CANARY]);
    update(&world, &lease, with_header("another")).await.unwrap();
    assert_eq!(injected(&world, &lease.id), ["another"]);
}

#[tokio::test(start_paused = true)]
async fn a_repeated_create_with_another_value_is_not_the_same_request() {
    let world = World::new().await;
    let spec = |value| CreateSandbox { idempotency_key: Some("k".to_owned()), ..asking(with_header(value)) };
    let first = world.try_create(spec("a")).await.unwrap();
    assert_eq!(world.try_create(spec("a")).await.unwrap().id, first.id);
    assert_eq!(world.try_create(spec("b")).await.unwrap_err().code, Code::IdempotencyMismatch);
}

fn private(who: PrivateRanges) -> Options {
    let floors = OperatorFloors::new(who, None);
    Options { config: Some(Box::new(move |config| config.egress = floors)), ..Default::default() }
}

#[tokio::test(start_paused = true)]
async fn a_named_private_range_is_the_first_tenants_unless_the_operator_says_otherwise() {
    for (setting, first, others) in [
        (PrivateRanges::Never, false, false),
        (PrivateRanges::FirstTenant, true, false),
        (PrivateRanges::AllTenants, true, true),
    ] {
        let world = World::with(private(setting)).await;
        let other = world.tenant("other", Quota::default()).await;
        for (who, allowed) in [(&world.admin, first), (&other, others)] {
            for policy in [
                networks(&["10.0.0.0/8", "172.16.0.0/12"]),
                NetworkPolicy { mode: NetworkMode::AllowAll, ..networks(&["10.0.0.0/8"]) },
            ] {
                match world.service.sandboxes().create(who, asking(policy), true).await {
                    Ok((lease, _)) => {
                        assert!(allowed, "{setting:?}");
                        assert!(in_force(&world, &lease.id).direct.contains(0x0a01_0203));
                        assert!(!in_force(&world, &lease.id).direct.contains(0xc0a8_0001), "not named");
                    }
                    Err(refused) => {
                        assert!(!allowed, "{setting:?}: {refused}");
                        assert_eq!(refused.code, Code::InvalidRequest);
                        assert!(refused.hint.unwrap().contains("--egress-private named"));
                    }
                }
            }
        }
        // An admin's word about another tenant's sandbox is judged by whose it is.
        let (lease, _) =
            world.service.sandboxes().create(&other, CreateSandbox::default(), true).await.unwrap();
        let changed = update(&world, &lease, networks(&["10.0.0.0/8"])).await;
        assert_eq!(changed.is_ok(), others, "{setting:?}");
        let layer = world
            .service
            .access()
            .set_tenant_network(&world.admin, "other", Some(networks(&["10.0.0.0/8"])))
            .await;
        assert_eq!(layer.is_ok(), others, "{setting:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_operator_forbids_is_refused_at_every_door() {
    let world = World::new().await;
    let other = world.tenant("other", Quota::default()).await;
    let create = async |world: &World, spec| {
        world.service.sandboxes().create(&other, spec, true).await.map(|made| made.0)
    };
    let refused = create(&world, asking(networks(&["10.0.0.0/8"]))).await.unwrap_err();
    assert_eq!(refused.code, Code::InvalidRequest);
    assert!(refused.message.starts_with("network.allow_cidrs"), "{refused}");
    assert!(refused.hint.unwrap().contains("--egress-private named"));
    let lease = create(&world, CreateSandbox::default()).await.unwrap();
    assert_eq!(
        update(&world, &lease, networks(&["10.0.0.0/8"])).await.unwrap_err().code,
        Code::InvalidRequest
    );
    assert_eq!(in_force(&world, &lease.id).direct_mode, DirectMode::Open);

    let mut world = World::with(private(PrivateRanges::AllTenants)).await;
    let who = &world.tenant("other", Quota::default()).await;
    let create = async |world: &World, spec| {
        world.service.sandboxes().create(who, spec, true).await.map(|made| made.0)
    };
    let lease = create(&world, asking(networks(&["10.0.0.0/8"]))).await.unwrap();
    assert!(in_force(&world, &lease.id).direct.contains(0x0a01_0203));
    let (service, id) = (&world.service, lease.id.as_str());
    let taken = NewSnapshot { name: Some("s".to_owned()), memory: false, ..Default::default() };
    service.sandboxes().snapshot(who, id, taken).await.unwrap();
    // The next server lets only the first tenant reach private addresses, and narrows nothing silently.
    let (fake, clock) = (world.fake.clone(), world.clock.clone());
    let dir = world.crash().await;
    let world = World::reopen(dir, fake, clock).await;
    let service = &world.service;
    assert!(!in_force(&world, &lease.id).direct.contains(0x0a01_0203));
    let from = Origin::Snapshot { snapshot: "s".to_owned(), memory: false };
    let spec = CreateSandbox { from, ..Default::default() };
    assert_eq!(create(&world, spec.clone()).await.unwrap_err().code, Code::InvalidRequest);
    assert_eq!(
        service.sandboxes().fork(who, id, Fork::default()).await.unwrap_err().code,
        Code::InvalidRequest
    );
    service.sandboxes().stop(who, id, true).await.unwrap();
    let refused = service.sandboxes().start(who, id, true).await.unwrap_err();
    assert_eq!(refused.code, Code::InvalidRequest, "{refused:?}");
    assert!(refused.hint.unwrap().contains("another network policy"));
    update(&world, &lease, NetworkPolicy::deny_all()).await.unwrap();
    service.sandboxes().start(who, id, true).await.unwrap();
    assert_eq!(in_force(&world, &lease.id).direct_mode, DirectMode::Closed);
    let other = CreateSandbox { network: Some(NetworkPolicy::deny_all()), ..spec };
    create(&world, other).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_brings_its_policy_unless_another_is_asked_for() {
    let world = World::new().await;
    let (service, who) = (&world.service, &world.admin);
    secret(&world, who, "A", "one").await;
    let lease = world.try_create(asking(with_header("{secret:A}"))).await.unwrap();
    service
        .sandboxes()
        .snapshot(
            who,
            lease.id.as_str(),
            NewSnapshot { name: Some("s".to_owned()), memory: false, ..Default::default() },
        )
        .await
        .unwrap();
    let from = || Origin::Snapshot { snapshot: "s".to_owned(), memory: false };
    let heir = world.try_create(CreateSandbox { from: from(), ..Default::default() }).await.unwrap();
    assert_eq!(injected(&world, &heir.id), ["one"]);
    let spec = CreateSandbox { from: from(), ..asking(NetworkPolicy::deny_all()) };
    let other = world.try_create(spec).await.unwrap();
    assert_eq!(in_force(&world, &other.id).dns, Dns::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_tenants_policy_narrows_what_lives_and_what_comes() {
    let world = World::new().await;
    let (service, admin) = (&world.service, &world.admin);
    let who = world.tenant("narrow", Quota::default()).await;
    let (lease, _) = service.sandboxes().create(&who, CreateSandbox::default(), true).await.unwrap();
    let other = world.create().await;
    let deny = Some(NetworkPolicy::deny_all());
    assert_eq!(
        service.access().set_tenant_network(&who, "narrow", deny.clone()).await.unwrap_err().code,
        Code::Forbidden
    );
    let bad = Some(with_header("x"));
    assert_eq!(
        service.access().set_tenant_network(admin, "narrow", bad).await.unwrap_err().code,
        Code::InvalidRequest
    );
    let record = service.access().set_tenant_network(admin, "narrow", deny.clone()).await.unwrap();
    assert_eq!(record.network, deny);
    assert_eq!(in_force(&world, &lease.id).direct_mode, DirectMode::Closed);
    assert_eq!(in_force(&world, &other.id).direct_mode, DirectMode::Open);
    assert_eq!(
        service
            .access()
            .list_tenants(admin)
            .await
            .unwrap()
            .iter()
            .find(|t| t.name == "narrow")
            .unwrap()
            .network,
        deny
    );
    let (next, _) = service.sandboxes().create(&who, CreateSandbox::default(), true).await.unwrap();
    assert_eq!(in_force(&world, &next.id).direct_mode, DirectMode::Closed);
    let world = world.crash_and_reopen().await;
    assert_eq!(in_force(&world, &lease.id).direct_mode, DirectMode::Closed);
    let (later, _) = world.service.sandboxes().create(&who, CreateSandbox::default(), true).await.unwrap();
    assert_eq!(in_force(&world, &later.id).direct_mode, DirectMode::Closed);
    world.service.access().set_tenant_network(&world.admin, "narrow", None).await.unwrap();
    for id in [&lease.id, &next.id, &later.id] {
        assert_eq!(in_force(&world, id).direct_mode, DirectMode::Open);
    }
}

#[tokio::test(start_paused = true)]
async fn a_crash_leaves_the_same_policy_in_force() {
    let world = World::new().await;
    secret(&world, &world.admin, "A", "one").await;
    let lease = world.try_create(asking(with_header("Bearer {secret:A}"))).await.unwrap();
    let before = in_force(&world, &lease.id);
    assert!(before.seed.is_some());
    let world = world.crash_and_reopen().await;
    world.quiet().await;
    assert_eq!(in_force(&world, &lease.id), before);
    assert_eq!(world.get(&lease.id).await.phase, Phase::Running);
    world.service.access().rotate_secret(&world.admin, "A", "two".to_owned()).await.unwrap();
    assert_eq!(injected(&world, &lease.id), ["Bearer two"]);
}

#[tokio::test(start_paused = true)]
async fn what_it_must_trust_is_inside_before_its_command_runs() {
    let world = World::new().await;
    let plain = world.create().await;
    assert_eq!(file(&world, &plain.id, OWN), None);
    assert!(!world.fake.env(&plain.id).unwrap().contains_key("SSL_CERT_FILE"));
    let spec = CreateSandbox {
        command: Some(vec!["echo".to_owned(), "hi".to_owned()]),
        env: [("CURL_CA_BUNDLE".to_owned(), "/mine".to_owned())].into(),
        ..asking(with_header("x"))
    };
    let lease = world.try_create(spec).await.unwrap();
    let own = file(&world, &lease.id, OWN).unwrap();
    assert!(own.starts_with("fake authority"), "{own}");
    assert_eq!(file(&world, &lease.id, BUNDLE).unwrap().trim_end(), own);
    let asked = world.fake.asked(&lease.id);
    let at = |part: &str| asked.iter().position(|asked| asked.contains(part)).unwrap();
    assert!(at("POST /files?path=/usr/local") < at("Agent/Start"), "{asked:?}");
    let env = world.fake.env(&lease.id).unwrap();
    assert_eq!((env["SSL_CERT_FILE"].as_str(), env["CURL_CA_BUNDLE"].as_str()), (BUNDLE, "/mine"));
    assert_eq!(env["NODE_EXTRA_CA_CERTS"], OWN);
    // Nothing of it is in the lease.
    assert!(!world.get(&lease.id).await.env.contains_key("SSL_CERT_FILE"));
    // Without transforms commands have no such variables.
    update(&world, &lease, NetworkPolicy::allow_all()).await.unwrap();
    assert!(!world.fake.env(&lease.id).unwrap().contains_key("SSL_CERT_FILE"));
}

#[tokio::test(start_paused = true)]
async fn what_it_must_trust_follows_updates_pauses_and_forks() {
    let world = World::new().await;
    let (service, who) = (&world.service, &world.admin);
    let lease = world.create().await;
    let id = lease.id.as_str();
    world.fake.files(&lease.id, |files| files.insert(BUNDLE.to_owned(), b"PUBLIC\n".to_vec()));
    update(&world, &lease, with_header("x")).await.unwrap();
    let own = file(&world, &lease.id, OWN).unwrap();
    assert_eq!(file(&world, &lease.id, BUNDLE).unwrap(), format!("PUBLIC\n{own}\n"));
    assert!(world.fake.env(&lease.id).unwrap().contains_key("SSL_CERT_FILE"));
    // A fork has an authority of its own, and not that of its parent.
    let child = service.sandboxes().fork(who, id, Fork::default()).await.unwrap().sandboxes.remove(0);
    let its = file(&world, &child.id, OWN).unwrap();
    assert_ne!(its, own);
    assert_eq!(file(&world, &child.id, BUNDLE).unwrap(), format!("PUBLIC\n{its}\n"));
    assert_eq!(injected(&world, &child.id), ["x"]);
    let copied = service.sandboxes().fork(who, id, Fork { memory: true, ..Fork::default() }).await.unwrap();
    assert!(copied.memory);
    assert_ne!(file(&world, &copied.sandboxes[0].id, OWN).unwrap(), own);
    // A paused sandbox gets it when it is resumed.
    let sleeper = world.create().await;
    service.sandboxes().pause(who, sleeper.id.as_str(), Pause { memory: None }, true).await.unwrap();
    update(&world, &sleeper, with_header("x")).await.unwrap();
    assert_eq!(file(&world, &sleeper.id, OWN), None);
    service.sandboxes().resume(who, sleeper.id.as_str(), true).await.unwrap();
    assert!(file(&world, &sleeper.id, OWN).is_some());
    // Once installed, it is not written again.
    let writes =
        || world.fake.asked(&sleeper.id).iter().filter(|asked| asked.starts_with("POST /files")).count();
    assert_eq!(writes(), 2);
    service.sandboxes().pause(who, sleeper.id.as_str(), Pause { memory: None }, true).await.unwrap();
    service.sandboxes().resume(who, sleeper.id.as_str(), true).await.unwrap();
    assert_eq!(writes(), 2);
}

async fn secret_for(world: &World, name: &str, value: &str, hosts: &[&str]) {
    let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
    let about = SecretAbout { hosts, ..Default::default() };
    let new = NewSecret { name: name.to_owned(), value: value.to_owned(), about };
    world.service.access().create_secret(&world.admin, new).await.unwrap();
}

fn attaching(pairs: &[(&str, &str)]) -> std::collections::BTreeMap<String, String> {
    pairs.iter().map(|(variable, name)| ((*variable).to_owned(), (*name).to_owned())).collect()
}

/// The values and hosts of the replacements.
fn replaced(world: &World, id: &SandboxId) -> Vec<(String, Vec<String>)> {
    let hosts = |hosts: &[atoll_model::DomainPattern]| hosts.iter().map(ToString::to_string).collect();
    in_force(world, id).replacements.iter().map(|one| (one.value.clone(), hosts(&one.hosts))).collect()
}

#[tokio::test(start_paused = true)]
async fn a_secret_is_a_placeholder_inside_and_a_value_at_the_gate() {
    let world = World::new().await;
    let (service, who) = (&world.service, &world.admin);
    secret_for(&world, "A", CANARY, &["api.example.com"]).await;
    secret_for(&world, "B", "beta", &["*.example.org"]).await;
    let secrets = attaching(&[("KEY", "A"), ("SAME", "A")]);
    let lease = world.try_create(CreateSandbox { secrets, ..Default::default() }).await.unwrap();
    let a = service.access().placeholder_of(&service.access().get_secret(who, "A").await.unwrap().id);
    let env = |name: &str| world.fake.env(&lease.id).unwrap().get(name).cloned();
    assert_eq!((env("KEY"), env("SAME")), (Some(a.clone()), Some(a.clone())));
    let at_example = |value: &str| vec![(value.to_owned(), vec!["api.example.com".to_owned()])];
    assert_eq!(replaced(&world, &lease.id), at_example(CANARY));
    let egress = in_force(&world, &lease.id);
    assert!(egress.seed.is_some() && egress.needs_gate() && egress.dns == Dns::Free);
    assert!(file(&world, &lease.id, OWN).is_some(), "what it must trust is inside");
    // A new value and other hosts are in force at once.
    service.access().rotate_secret(who, "A", "rotated".to_owned()).await.unwrap();
    assert_eq!(replaced(&world, &lease.id), at_example("rotated"));
    let about = SecretAbout { hosts: vec!["good.test".to_owned()], ..Default::default() };
    service.access().update_secret(who, "A", SecretChange { value: None, about: Some(about) }).await.unwrap();
    assert_eq!(replaced(&world, &lease.id), [("rotated".to_owned(), vec!["good.test".to_owned()])]);
    assert_eq!(service.access().delete_secret(who, "A").await.unwrap_err().code, Code::SecretInUse);
    // A fork has the secrets of its parent; another set replaces all of them.
    let ask = Fork { count: 1, ..Default::default() };
    let forked = service.sandboxes().fork(who, lease.id.as_str(), ask).await.unwrap();
    assert_eq!(replaced(&world, &forked.sandboxes[0].id), replaced(&world, &lease.id));
    service.sandboxes().delete(who, forked.sandboxes[0].id.as_str(), true).await.unwrap();
    let change =
        |pairs: &[(&str, &str)]| UpdateSandbox { secrets: Some(attaching(pairs)), ..Default::default() };
    service.sandboxes().update(who, lease.id.as_str(), change(&[("OTHER", "B")])).await.unwrap();
    assert_eq!(replaced(&world, &lease.id), [("beta".to_owned(), vec!["*.example.org".to_owned()])]);
    assert_eq!((env("KEY"), env("OTHER").is_some_and(|b| b != a)), (None, true));
    service.access().delete_secret(who, "A").await.unwrap();
    service.sandboxes().pause(who, lease.id.as_str(), Pause::default(), true).await.unwrap();
    let refused = service.sandboxes().update(who, lease.id.as_str(), change(&[])).await.unwrap_err();
    assert_eq!(refused.code, Code::PhaseConflict);
    service.sandboxes().start(who, lease.id.as_str(), true).await.unwrap();
    service.sandboxes().update(who, lease.id.as_str(), change(&[])).await.unwrap();
    assert_eq!((replaced(&world, &lease.id), env("OTHER")), (vec![], None));
    assert!(!in_force(&world, &lease.id).needs_gate());
}

#[tokio::test(start_paused = true)]
async fn a_secret_that_could_go_anywhere_is_not_attached() {
    let world = World::new().await;
    let stranger = world.stranger().await;
    secret(&world, &stranger, "THEIRS", CANARY).await;
    secret_for(&world, "NOWHERE", CANARY, &[]).await;
    secret_for(&world, "ANYWHERE", CANARY, &["api.example.com", "*"]).await;
    secret_for(&world, "ADDRESS", CANARY, &["203.0.113.7"]).await;
    for name in ["NONE", "THEIRS", "NOWHERE", "ANYWHERE", "ADDRESS", "1"] {
        let secrets = attaching(&[("KEY", name)]);
        let refused = world.try_create(CreateSandbox { secrets, ..Default::default() }).await.unwrap_err();
        assert_eq!(refused.code, Code::InvalidRequest, "{name}");
        assert!(refused.message.starts_with("secrets"), "{refused}");
    }
    assert_eq!(world.fake.holds(), []);
    // A secret permits no connection, and without permitted hosts nothing is replaced.
    secret_for(&world, "A", CANARY, &["api.example.com"]).await;
    for network in [NetworkPolicy::deny_all(), networks(&["203.0.113.0/24"])] {
        let denied = network.mode == NetworkMode::DenyAll;
        let spec = CreateSandbox { secrets: attaching(&[("KEY", "A")]), ..asking(network) };
        let lease = world.try_create(spec).await.unwrap();
        let egress = in_force(&world, &lease.id);
        assert_eq!((egress.dns, egress.replacements.is_empty()), (Dns::Closed, denied));
    }
}

#[tokio::test(start_paused = true)]
async fn a_provider_without_the_capability_takes_no_rules() {
    let world = World::new().await;
    world.fake.set_capabilities(|able| able.network = false);
    let limited = NetworkPolicy { learn: true, ..NetworkPolicy::allow_all() };
    for policy in [networks(&["192.0.2.0/24"]), with_header("x"), limited.clone()] {
        let refused = world.try_create(asking(policy)).await.unwrap_err();
        assert_eq!(refused.code, Code::Unsupported, "{refused}");
        assert!(refused.message.contains("lacks the capability egress"), "{refused}");
    }
    assert_eq!(world.fake.holds(), []);
    // An instance may have no network at all, so the provider decides about a bare deny-all.
    world.try_create(asking(NetworkPolicy::deny_all())).await.unwrap();
    let lease = world.try_create(asking(NetworkPolicy::allow_all())).await.unwrap();
    let refused = update(&world, &lease, limited).await.unwrap_err();
    assert_eq!(refused.code, Code::Unsupported, "{refused}");
}

#[tokio::test(start_paused = true)]
async fn a_tenants_policy_waits_for_sandboxes_that_would_not_obey_it() {
    let world = World::new().await;
    world.fake.set_capabilities(|able| able.network = false);
    let closed = world.try_create(asking(NetworkPolicy::deny_all())).await.unwrap();
    let open = world.try_create(asking(NetworkPolicy::allow_all())).await.unwrap();
    let set = async |policy: Option<NetworkPolicy>| {
        world.service.access().set_tenant_network(&world.admin, "default", policy).await
    };
    let refused = set(Some(networks(&["192.0.2.0/24"]))).await.unwrap_err();
    assert_eq!(refused.code, Code::ProviderInUse);
    assert!(refused.message.contains(open.id.as_str()), "{refused}");
    assert_eq!(set(Some(NetworkPolicy::deny_all())).await.unwrap_err().code, Code::ProviderInUse);
    world.service.sandboxes().delete(&world.admin, open.id.as_str(), true).await.unwrap();
    set(Some(networks(&["192.0.2.0/24"]))).await.expect("a sandbox without a network obeys every policy");
    assert_eq!(world.get(&closed.id).await.phase, Phase::Running);

    // A create that the provider cannot make leaves neither a sandbox nor its name.
    let named = || CreateSandbox { name: Some("box".to_owned()), ..asking(NetworkPolicy::allow_all()) };
    let refused = world.try_create(named()).await.unwrap_err();
    assert!(refused.message.contains("lacks the capability egress"), "{refused}");
    set(None).await.unwrap();
    world.try_create(named()).await.expect("the name is free");
}
