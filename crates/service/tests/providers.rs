//! Several providers in one server: each sandbox, snapshot and volume belongs to one of them, and no other is asked about it.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

use std::sync::Arc;

use crate::world::{Options, World};
use atoll_model::{Code, CreateSandbox, Lease, MountAsk, Origin, Phase, Snapshot};
use atoll_provider::conformance;
use atoll_provider::fake::{FakeProvider, TEMPLATE};
use atoll_provider::{Capability, Provider};
use atoll_service::{Exec, Fork, NewSnapshot, NewVolume, Pause, ProviderRegistry, ServiceError};

async fn two() -> (World, Arc<FakeProvider>) {
    let second = FakeProvider::named("second");
    (World::with(with(&second)).await, second)
}

fn with(second: &Arc<FakeProvider>) -> Options {
    Options { second: Some(Arc::clone(second)), ..Options::default() }
}

fn at(provider: &str) -> CreateSandbox {
    CreateSandbox { provider: Some(provider.to_owned()), ..CreateSandbox::default() }
}

fn echo() -> Exec {
    Exec { argv: vec!["echo".to_owned(), "hi".to_owned()], ..Exec::default() }
}

/// The sandboxes that a provider has.
fn held(fake: &FakeProvider) -> Vec<String> {
    fake.holds().into_iter().map(|(id, _)| id.to_string()).collect()
}

async fn snapshot(world: &World, lease: &Lease) -> Snapshot {
    let new = NewSnapshot { name: None, memory: false, ..Default::default() };
    world.service.sandboxes().snapshot(&world.admin, lease.id.as_str(), new).await.unwrap()
}

fn mounting(volume: &str, provider: &str) -> CreateSandbox {
    let path = "/data".to_owned();
    let mount = MountAsk { volume: volume.to_owned(), path, sub_path: None, read_only: false };
    CreateSandbox { mounts: vec![mount], ..at(provider) }
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_is_made_at_the_provider_that_the_request_names() {
    let (world, second) = two().await;
    let (first, other) = (world.create().await, world.try_create(at("second")).await.unwrap());
    assert_eq!((first.provider.as_str(), other.provider.as_str()), ("fake", "second"));
    assert_eq!((held(&world.fake), held(&second)), (vec![first.id.to_string()], vec![other.id.to_string()]));
    let ran = world.service.sandboxes().exec(&world.admin, other.id.as_str(), echo()).await;
    assert!(ran.is_ok(), "commands go through the provider of the sandbox: {ran:?}");
    world.service.sandboxes().pause(&world.admin, other.id.as_str(), Pause::default(), true).await.unwrap();
    assert!(second.is_frozen(&other.id));
    world.service.sandboxes().delete(&world.admin, other.id.as_str(), true).await.unwrap();
    assert_eq!((held(&world.fake).len(), held(&second).len()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn an_unknown_provider_is_refused_with_the_names_that_there_are() {
    let (world, _) = two().await;
    let refused = world.try_create(at("thrid")).await.unwrap_err();
    assert_eq!(refused.code, Code::ProviderNotFound);
    assert_eq!(refused.hint.as_deref(), Some("its providers: fake, second"));
    let new = NewVolume { name: "data".into(), provider: Some("thrid".into()), ..NewVolume::default() };
    let refused = world.service.volumes().create(&world.admin, new).await.unwrap_err();
    assert_eq!(refused.code, Code::ProviderNotFound);
}

#[tokio::test(start_paused = true)]
async fn providers_are_listed_with_their_health_and_capabilities() {
    let (world, second) = two().await;
    second.set_capabilities(|able| able.volumes = false);
    let listed = world.service.providers(&world.admin).await;
    let names: Vec<_> =
        listed.iter().map(|one| (one.name.as_str(), one.kind.as_str(), one.is_default)).collect();
    assert_eq!(names, [("fake", "fake", true), ("second", "fake", false)]);
    assert!(listed.iter().all(|one| one.problem.is_none()));
    assert!(listed[0].capabilities.contains(&Capability::Volume));
    assert!(!listed[1].capabilities.contains(&Capability::Volume));
}

#[tokio::test(start_paused = true)]
async fn a_restart_adopts_the_sandboxes_of_each_provider_and_removes_only_its_own_strays() {
    let (mut world, second) = two().await;
    let (first, other) = (world.create().await, world.try_create(at("second")).await.unwrap());
    let lost = world.try_create(at("second")).await.unwrap();
    let kept = snapshot(&world, &other).await;
    let dir = world.crash().await;
    second.kill(&lost.id, false);
    // Only the first provider has an instance that the store does not know.
    let stray = world.fake.fixture(world.fake.clone()).spec();
    world.fake.create(&stray).await.unwrap();
    let world = World::open(dir, world.fake.clone(), world.clock.clone(), with(&second)).await;
    assert_eq!(world.until(&first.id, Phase::Running).await.provider, "fake");
    assert_eq!(world.until(&other.id, Phase::Running).await.provider, "second");
    world.until(&lost.id, Phase::Failed).await;
    assert_eq!(held(&world.fake), [first.id.to_string()], "the stray is gone");
    assert_eq!(held(&second).len(), 2);
    assert_eq!(second.snapshots(), [kept.id], "a snapshot is wanted at its own provider");
}

#[tokio::test(start_paused = true)]
async fn what_belongs_to_an_unconfigured_provider_is_kept_unchanged() {
    let (mut world, second) = two().await;
    let expiring = CreateSandbox { timeout_s: Some(60), ..at("second") };
    let lease = world.try_create(expiring).await.unwrap();
    let kept = snapshot(&world, &lease).await;
    let volume = NewVolume { name: "data".into(), provider: Some("second".into()), ..NewVolume::default() };
    let volume = world.service.volumes().create(&world.admin, volume).await.unwrap().volume;
    let before = (second.holds(), second.snapshots(), second.volumes());
    let (dir, fake, clock) = (world.crash().await, world.fake.clone(), world.clock.clone());

    let mut world = World::reopen(dir, fake.clone(), clock.clone()).await;
    world.advance(std::time::Duration::from_secs(600)).await;
    assert_eq!(world.get(&lease.id).await.phase, Phase::Running, "its record can be read, and no timer acts");
    let (sandboxes, who, id) = (world.service.sandboxes(), &world.admin, lease.id.as_str());
    let refusals: [Result<(), ServiceError>; 8] = [
        sandboxes.exec(who, id, echo()).await.map(drop),
        sandboxes.stop(who, id, true).await.map(drop),
        sandboxes.delete(who, id, true).await.map(drop),
        sandboxes.fork(who, id, Fork::default()).await.map(drop),
        sandboxes.delete_snapshot(who, kept.id.as_str()).await,
        sandboxes.verify_snapshot(who, kept.id.as_str()).await.map(drop),
        world.service.volumes().remove(who, volume.id.as_str()).await,
        world.service.volumes().open(who, volume.id.as_str()).await.map(drop),
    ];
    for refused in refusals {
        let refused = refused.unwrap_err();
        assert_eq!(refused.code, Code::ProviderNotConfigured, "{refused}");
        assert!(refused.message.contains("provider second"), "{refused}");
    }
    let from = CreateSandbox {
        from: Origin::Snapshot { snapshot: kept.id.to_string(), memory: false },
        ..CreateSandbox::default()
    };
    assert_eq!(world.try_create(from).await.unwrap_err().code, Code::ProviderNotConfigured);
    assert_eq!((second.holds(), second.snapshots(), second.volumes()), before);

    let dir = world.crash().await;
    let world = World::open(dir, fake, clock, with(&second)).await;
    world.until(&lease.id, Phase::Deleted).await;
    assert_eq!(held(&second), Vec::<String>::new(), "with its provider back, its timeout is due");
    assert_eq!((second.snapshots(), second.volumes()), (before.1, before.2));
}

#[tokio::test(start_paused = true)]
async fn snapshots_and_forks_stay_at_their_provider() {
    let (world, second) = two().await;
    let lease = world.try_create(at("second")).await.unwrap();
    let kept = snapshot(&world, &lease).await;
    assert_eq!((kept.provider.as_str(), second.snapshots().len()), ("second", 1));
    let from = |provider: Option<&str>| CreateSandbox {
        from: Origin::Snapshot { snapshot: kept.id.to_string(), memory: false },
        provider: provider.map(str::to_owned),
        ..CreateSandbox::default()
    };
    let refused = world.try_create(from(Some("fake"))).await.unwrap_err();
    assert_eq!(refused.field.unwrap().name, "provider");
    assert_eq!(world.try_create(from(None)).await.unwrap().provider, "second");
    let ask = Fork { count: 1, ..Fork::default() };
    let forked = world.service.sandboxes().fork(&world.admin, lease.id.as_str(), ask).await.unwrap();
    assert_eq!(forked.sandboxes[0].provider, "second");
    let rolled = world.service.sandboxes();
    rolled.rollback(&world.admin, lease.id.as_str(), kept.id.as_str(), true).await.unwrap();
    assert_eq!((held(&world.fake).len(), held(&second).len()), (0, 3));
    world.service.sandboxes().delete_snapshot(&world.admin, kept.id.as_str()).await.unwrap();
    world.quiet().await;
    assert_eq!((second.snapshots(), world.fake.snapshots()), (vec![], vec![]));
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_mounted_by_sandboxes_of_its_provider_only() {
    let (world, second) = two().await;
    let new = NewVolume { name: "data".into(), provider: Some("second".into()), ..NewVolume::default() };
    world.service.volumes().create(&world.admin, new).await.unwrap();
    assert_eq!((world.fake.volumes().len(), second.volumes().len()), (0, 1));
    let copied = world.service.volumes().copy(&world.admin, "data", "copy").await.unwrap();
    assert_eq!((copied.volume.provider.as_str(), second.volumes().len()), ("second", 2));
    world.try_create(mounting("data", "second")).await.unwrap();
    let refused = world.try_create(mounting("data", "fake")).await.unwrap_err();
    assert_eq!((refused.code, refused.field.unwrap().name.as_str()), (Code::InvalidRequest, "mounts"));
    second.set_capabilities(|able| able.volumes = false);
    let refused = world.try_create(mounting("data", "second")).await.unwrap_err();
    assert_eq!(refused.code, Code::Unsupported);
    assert!(refused.message.contains("provider second lacks the capability volume"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn deaths_and_capacity_are_those_of_the_provider() {
    let (world, second) = two().await;
    let (first, other) = (world.create().await, world.try_create(at("second")).await.unwrap());
    second.kill(&other.id, true);
    world.until(&other.id, Phase::Failed).await;
    assert_eq!(world.get(&first.id).await.phase, Phase::Running);
    second.set_node(|node| node.memory_free_mib = 0);
    world.advance(std::time::Duration::from_secs(2)).await;
    assert_eq!(world.try_create(at("second")).await.unwrap_err().code, Code::NoCapacity);
    world.create().await;
}

#[tokio::test(start_paused = true)]
async fn a_template_without_a_copy_is_refused_by_a_provider_that_cannot_use_layers() {
    let (world, second) = two().await;
    second.set_capabilities(|able| able.layers = false);
    let of = |template: &str| CreateSandbox { template: Some(template.to_owned()), ..at("second") };
    world.try_create(of(TEMPLATE)).await.unwrap();
    let refused = world.try_create(of("host")).await.unwrap_err();
    assert_eq!(refused.code, Code::TemplateNotFound);
    assert_eq!(refused.message, "template host has no copy for provider second");
}

#[tokio::test]
async fn the_fake_conforms_through_the_registry() {
    let (first, second) = (FakeProvider::new(), FakeProvider::named("second"));
    let registry = ProviderRegistry::new(first.clone()).with(second.clone());
    for case in conformance::all() {
        case.run(second.fixture(registry.named("second").unwrap())).await;
        assert_eq!((second.holds(), second.snapshots(), second.volumes()), (vec![], vec![], vec![]));
        assert_eq!(first.holds(), [], "{} reached the other provider", case.name);
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_names_the_capability_that_the_provider_lacks() {
    let world = World::new().await;
    let lease = world.try_create(CreateSandbox::default()).await.unwrap();
    world.fake.set_capabilities(|able| {
        (able.snapshots, able.volumes, able.packs, able.users) = (false, false, false, false);
    });
    let (sandboxes, id) = (world.service.sandboxes(), lease.id.as_str());
    let snapshot = sandboxes.snapshot(&world.admin, id, NewSnapshot::default()).await.map(drop);
    let fork = sandboxes.fork(&world.admin, id, Fork::default()).await.map(drop);
    let archive = sandboxes.archive(&world.admin, id, true).await.map(drop);
    let volume = NewVolume { name: "data".into(), ..NewVolume::default() };
    let volume = world.service.volumes().create(&world.admin, volume).await.map(drop);
    let user = CreateSandbox { user: Some("nobody".to_owned()), ..CreateSandbox::default() };
    let user = world.try_create(user).await.map(drop);
    let refused = [
        ("snapshot", snapshot),
        ("snapshot", fork),
        ("archive", archive),
        ("volume", volume),
        ("user", user),
    ];
    for (capability, refused) in refused {
        let refused = refused.unwrap_err();
        assert_eq!(refused.code, Code::Unsupported, "{refused}");
        let named = format!("provider fake lacks the capability {capability}");
        assert!(refused.message.ends_with(&named), "{refused}");
    }
}
