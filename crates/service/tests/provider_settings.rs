//! Settings files of providers: how they are changed, noticed, tested and refused; and which tenants may use which provider.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::world::{Options, World};
use async_trait::async_trait;
use atoll_model::{Code, CreateSandbox, Isolation, OnExit, Phase, ProviderKind, Quota, UpdateSandbox};
use atoll_provider::Provider;
use atoll_provider::fake::{FakeProvider, ProviderCall, Script};
use atoll_service::{BuildProvider, NewVolume, ProviderRequest, ServiceError};
use serde_json::{Value, json};

/// Opens one fake for every provider of kind docker, as a daemon that outlives its clients.
struct Daemon {
    fake: Arc<FakeProvider>,
    opened: AtomicUsize,
    is_down: AtomicBool,
}

#[async_trait]
impl BuildProvider for Daemon {
    async fn build(&self, request: ProviderRequest) -> Result<Arc<dyn Provider>, ServiceError> {
        let section = &request.settings.section;
        if request.kind != ProviderKind::Docker {
            return Err(ServiceError::new(Code::Unsupported, "this version cannot drive it yet"));
        }
        let is_nowhere = section.get("host").is_some_and(|host| host == "unix:///nowhere");
        if is_nowhere || self.is_down.load(Ordering::Relaxed) {
            return Err(ServiceError::new(
                Code::ProviderNotConfigured,
                "no daemon answers at unix:///nowhere",
            ));
        }
        self.opened.fetch_add(1, Ordering::Relaxed);
        Ok(self.fake.clone())
    }
}

async fn world() -> (World, Arc<Daemon>) {
    let daemon = Daemon {
        fake: FakeProvider::named("boxes"),
        opened: AtomicUsize::new(0),
        is_down: AtomicBool::new(false),
    };
    let daemon = Arc::new(daemon);
    (World::with(with(&daemon)).await, daemon)
}

fn with(daemon: &Arc<Daemon>) -> Options {
    Options { builder: Some(daemon.clone()), ..Options::default() }
}

fn at(provider: &str) -> CreateSandbox {
    CreateSandbox { provider: Some(provider.to_owned()), ..CreateSandbox::default() }
}

async fn set(world: &World, name: &str, document: Value) -> Result<Value, ServiceError> {
    world.service.set_provider_settings(&world.admin, name, &document).await.map(|record| record.settings)
}

async fn problem(world: &World, name: &str) -> Option<String> {
    let listed = world.service.providers(&world.admin).await;
    listed.into_iter().find(|one| one.name == name).unwrap_or_else(|| panic!("{name} is not listed")).problem
}

#[tokio::test(start_paused = true)]
async fn a_file_adds_changes_and_removes_a_provider_while_the_server_runs() {
    let (world, daemon) = world().await;
    assert_eq!(world.try_create(at("boxes")).await.unwrap_err().code, Code::ProviderNotFound);
    let folder = world.data().join("sandboxes");
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("boxes.json");
    let write = |text: &str| std::fs::write(&file, text).unwrap();
    write(r#"{"provider": "docker", "docker": {"image": "a"}}"#);
    world.advance(Duration::from_secs(3)).await;
    until("the new file is noticed", async || world.service.providers(&world.admin).await.len() == 2).await;
    let lease = world.try_create(at("boxes")).await.unwrap();
    assert_eq!((lease.provider.as_str(), lease.isolation), ("boxes", Isolation::None));
    assert_eq!(daemon.opened.load(Ordering::Relaxed), 1, "an unchanged file is not opened again");

    write(r#"{"provider": "docker", "on_exit": "keep", "docker": {"image": "b"}}"#);
    world.advance(Duration::from_secs(3)).await;
    until("the changed file is noticed", async || daemon.opened.load(Ordering::Relaxed) == 2).await;
    assert_eq!(world.get(&lease.id).await.phase, Phase::Running);

    // Neither a broken file nor a missing one loses anything.
    write("{");
    world.advance(Duration::from_secs(3)).await;
    until("the wrong file is noticed", async || {
        problem(&world, "boxes").await.is_some_and(|why| why.contains("is not JSON"))
    })
    .await;
    assert_eq!(world.try_create(at("boxes")).await.unwrap_err().code, Code::ProviderNotConfigured);
    std::fs::remove_file(&file).unwrap();
    world.advance(Duration::from_secs(3)).await;
    until("the removed file is noticed", async || {
        problem(&world, "boxes").await.is_some_and(|why| why.contains("no settings any more"))
    })
    .await;
    assert_eq!(world.try_create(at("boxes")).await.unwrap_err().code, Code::ProviderNotConfigured);
    assert_eq!(world.get(&lease.id).await.phase, Phase::Running);
    world.service.sandboxes().stop(&world.admin, lease.id.as_str(), true).await.unwrap();
    world.service.sandboxes().start(&world.admin, lease.id.as_str(), true).await.unwrap();
    world.service.sandboxes().delete(&world.admin, lease.id.as_str(), true).await.unwrap();
    assert!(daemon.fake.holds().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_was_down_is_opened_when_it_answers() {
    let (world, daemon) = world().await;
    daemon.is_down.store(true, Ordering::Relaxed);
    set(&world, "boxes", json!({"provider": "docker"})).await.unwrap();
    assert_eq!(world.try_create(at("boxes")).await.unwrap_err().code, Code::ProviderNotConfigured);
    daemon.is_down.store(false, Ordering::Relaxed);
    world.advance(Duration::from_secs(7)).await;
    until("the provider is opened", async || problem(&world, "boxes").await.is_none()).await;
    world.try_create(at("boxes")).await.unwrap();
    world.advance(Duration::from_secs(30)).await;
    assert_eq!(daemon.opened.load(Ordering::Relaxed), 1, "an open provider is not opened again");
}

/// Waits for work on other threads, which a paused clock does not wait for, and for the next look at the files.
async fn until(what: &str, check: impl AsyncFn() -> bool) {
    for _ in 0..1_000 {
        if check().await {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
        tokio::time::advance(Duration::from_millis(10)).await;
    }
    panic!("it did not happen: {what}");
}

#[tokio::test(start_paused = true)]
async fn rows_of_a_provider_without_settings_wait_for_it() {
    let (mut world, daemon) = world().await;
    set(&world, "boxes", json!({"provider": "docker"})).await.unwrap();
    let lease = world.try_create(at("boxes")).await.unwrap();
    let clock = world.clock.clone();
    let (fake, dir) = (world.fake.clone(), world.crash().await);
    let file = dir.path().join("sandboxes/boxes.json");
    std::fs::write(&file, r#"{"provider": "docker", "docker": {"host": "unix:///nowhere"}}"#).unwrap();
    let world = World::open(dir, fake, clock, with(&daemon)).await;
    assert_eq!(problem(&world, "boxes").await.as_deref(), Some("no daemon answers at unix:///nowhere"));
    let refused = world.service.sandboxes().delete(&world.admin, lease.id.as_str(), true).await.unwrap_err();
    assert_eq!(refused.code, Code::ProviderNotConfigured);
    assert_eq!(refused.hint.as_deref(), Some("no daemon answers at unix:///nowhere"));
    assert_eq!(daemon.fake.holds().len(), 1);
    // With good settings it is adopted as after a restart.
    set(&world, "boxes", json!({"provider": "docker"})).await.unwrap();
    world.until(&lease.id, Phase::Running).await;
    world.service.sandboxes().delete(&world.admin, lease.id.as_str(), true).await.unwrap();
    assert!(daemon.fake.holds().is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_address_of_a_provider_stays_while_it_has_sandboxes_or_volumes() {
    let (mut world, daemon) = world().await;
    let at_host = |host: &str| json!({"provider": "docker", "docker": {"host": host}});
    set(&world, "boxes", json!({"provider": "docker"})).await.unwrap();
    let lease = world.try_create(at("boxes")).await.unwrap();
    for elsewhere in [at_host("tcp://127.0.0.1:1"), json!({"provider": "e2b", "e2b": {"api_key": "k"}})] {
        let refused = set(&world, "boxes", elsewhere).await.unwrap_err();
        assert_eq!(refused.code, Code::ProviderInUse);
    }
    set(&world, "boxes", at_host("unix:///var/run/docker.sock")).await.expect("that is the default");

    // A file that was changed by hand, while the server runs and while it does not.
    let file = world.data().join("sandboxes/boxes.json");
    std::fs::write(&file, at_host("tcp://127.0.0.1:1").to_string()).unwrap();
    world.advance(Duration::from_secs(3)).await;
    let is_refused = async |world: &World| {
        problem(world, "boxes").await.is_some_and(|why| why.contains("1 sandboxes and 0 volumes"))
    };
    until("the changed address is refused", async || is_refused(&world).await).await;
    assert_eq!(world.get(&lease.id).await.phase, Phase::Running);
    let clock = world.clock.clone();
    let (fake, dir) = (world.fake.clone(), world.crash().await);
    let world = World::open(dir, fake, clock, with(&daemon)).await;
    assert!(is_refused(&world).await);
    let refused = world.service.sandboxes().delete(&world.admin, lease.id.as_str(), true).await.unwrap_err();
    assert_eq!(refused.code, Code::ProviderNotConfigured);
    assert_eq!(daemon.fake.holds().len(), 1, "nothing was taken for lost");

    set(&world, "boxes", json!({"provider": "docker"})).await.unwrap();
    world.until(&lease.id, Phase::Running).await;
    world.service.sandboxes().delete(&world.admin, lease.id.as_str(), true).await.unwrap();
    let (name, provider) = ("data".to_owned(), Some("boxes".to_owned()));
    let volume = NewVolume { name, provider, ..NewVolume::default() };
    world.service.volumes().create(&world.admin, volume).await.unwrap();
    let refused = set(&world, "boxes", at_host("tcp://127.0.0.1:1")).await.unwrap_err();
    assert_eq!(refused.code, Code::ProviderInUse, "it has a volume");
    world.service.volumes().remove_own().await.unwrap();
    assert_eq!(world.service.volumes().list(&world.admin).await.unwrap(), []);
    set(&world, "boxes", at_host("tcp://127.0.0.1:1")).await.expect("it has nothing any more");
}

#[tokio::test(start_paused = true)]
async fn a_server_starts_without_a_provider_that_cannot_list_its_instances() {
    let (mut world, daemon) = world().await;
    set(&world, "boxes", json!({"provider": "docker"})).await.unwrap();
    let lease = world.try_create(at("boxes")).await.unwrap();
    let clock = world.clock.clone();
    let (fake, dir) = (world.fake.clone(), world.crash().await);
    daemon.fake.script(ProviderCall::Adopt, Script::Fail);
    let world = World::open(dir, fake, clock, with(&daemon)).await;
    assert!(problem(&world, "boxes").await.unwrap().contains("cannot list its instances"));
    world.try_create(at("fake")).await.expect("other providers are used");
    world.advance(Duration::from_secs(7)).await;
    until("the provider is adopted", async || problem(&world, "boxes").await.is_none()).await;
    assert_eq!(world.until(&lease.id, Phase::Running).await.instance, lease.instance, "it was adopted");
}

#[tokio::test(start_paused = true)]
async fn secrets_are_written_with_care_and_never_shown() {
    let (world, _) = world().await;
    let e2b = json!({"provider": "e2b", "e2b": {"api_key": "key-1", "template": "base"}});
    let shown = set(&world, "cloud", e2b).await.unwrap();
    assert_eq!(shown, json!({"provider": "e2b", "on_exit": "pause", "e2b": {"template": "base"}}));
    let path = world.data().join("sandboxes/cloud.json");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    set(&world, "cloud", json!({"provider": "e2b", "e2b": {"template": "next"}})).await.unwrap();
    assert!(std::fs::read_to_string(&path).unwrap().contains("key-1"), "a secret that is left out is kept");
    let record = world.service.provider_settings(&world.admin, "cloud").await.unwrap();
    assert_eq!(record.sources["api_key"], "file");
    assert!(!format!("{record:?}").contains("key-1"));
    // The kind is known, and this version cannot drive it.
    let tested = world.service.test_provider(&world.admin, "cloud").await.unwrap_err();
    assert_eq!(tested.code, Code::Unsupported);
    assert_eq!(world.try_create(at("cloud")).await.unwrap_err().code, Code::Unsupported);
    set(&world, "cloud", json!({"provider": "e2b", "e2b": {"api_key": ""}})).await.unwrap();
    let tested = world.service.test_provider(&world.admin, "cloud").await.unwrap();
    assert!(tested.problem.unwrap().contains("E2B_API_KEY"));
    std::fs::write(world.data().join("config.env"), "E2B_API_KEY=key-2\n").unwrap();
    let record = world.service.provider_settings(&world.admin, "cloud").await.unwrap();
    assert_eq!(record.sources["api_key"], "config.env (E2B_API_KEY)");
    world.service.remove_provider_settings(&world.admin, "cloud").await.unwrap();
    assert_eq!(world.try_create(at("cloud")).await.unwrap_err().code, Code::ProviderNotFound);
}

#[tokio::test(start_paused = true)]
async fn a_test_says_what_is_wrong_and_wrong_settings_are_not_written() {
    let (world, _) = world().await;
    let docker = |host: &str| json!({"provider": "docker", "docker": {"host": host}});
    set(&world, "boxes", docker("unix:///nowhere")).await.unwrap();
    let test = async || world.service.test_provider(&world.admin, "boxes").await.unwrap().problem;
    assert_eq!(test().await.as_deref(), Some("no daemon answers at unix:///nowhere"));
    set(&world, "boxes", docker("unix:///run/docker.sock")).await.unwrap();
    assert_eq!(test().await, None);
    set(&world, "boxes", json!({"provider": "docker", "enabled": false})).await.unwrap();
    assert_eq!(test().await.as_deref(), Some("provider boxes is disabled"));
    assert_eq!(world.try_create(at("boxes")).await.unwrap_err().code, Code::ProviderNotAllowed);
    for (name, document, field) in [
        ("boxes", json!({"provider": "docker", "docker": {"imgae": "a"}}), "docker.imgae"),
        ("container", json!({"provider": "docker"}), "provider"),
        ("other", json!({"provider": "container"}), "provider"),
        ("a/b", json!({"provider": "docker"}), "name"),
    ] {
        let refused = set(&world, name, document).await.unwrap_err();
        assert_eq!((refused.code, refused.field.unwrap().name.as_str()), (Code::InvalidRequest, field));
    }
    let missing = world.service.test_provider(&world.admin, "nothing").await.unwrap_err();
    assert_eq!(missing.code, Code::ProviderNotFound);
    let tenant = world.tenant("other", Quota::default()).await;
    assert_eq!(world.service.provider_settings(&tenant, "boxes").await.unwrap_err().code, Code::Forbidden);
    assert_eq!(world.service.test_provider(&tenant, "boxes").await.unwrap_err().code, Code::Forbidden);
}

#[tokio::test(start_paused = true)]
async fn settings_and_their_problem_belong_together_right_after_a_file_changed() {
    let (world, _) = world().await;
    set(&world, "boxes", json!({"provider": "e2b"})).await.unwrap();
    let show = async || world.service.provider_settings(&world.admin, "boxes").await.unwrap();
    let before = show().await;
    assert!(before.problem.is_some_and(|why| why.contains("api_key")) && before.sources.is_empty());
    let config = world.data().join("config.env");
    std::fs::write(&config, "E2B_API_KEY=k\n").unwrap();
    let with_key = show().await;
    assert!(with_key.sources["api_key"].contains("config.env"), "{with_key:?}");
    // The opener of this test drives Docker only: that is the state of the new settings.
    assert!(with_key.problem.is_some_and(|why| !why.contains("api_key")));
    std::fs::remove_file(&config).unwrap();
    let without = show().await;
    assert!(without.problem.is_some_and(|why| why.contains("api_key")) && without.sources.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_tenant_uses_the_providers_that_it_may() {
    let (world, _) = world().await;
    set(&world, "boxes", json!({"provider": "docker", "on_exit": "destroy"})).await.unwrap();
    let tenant = world.tenant("other", Quota::default()).await;
    let create = async |provider: &str| world.service.sandboxes().create(&tenant, at(provider), true).await;
    let names = async || -> Vec<String> {
        world.service.providers(&tenant).await.into_iter().map(|one| one.name).collect()
    };
    // Both isolate nothing: the default is open to everyone, the other one only by name.
    assert_eq!(create("boxes").await.unwrap_err().code, Code::ProviderNotAllowed);
    create("fake").await.unwrap();
    assert_eq!(names().await, ["fake"]);
    let allow = async |list: Option<&[&str]>| {
        let list = list.map(|list| list.iter().map(|name| (*name).to_owned()).collect());
        world.service.set_tenant_providers(&world.admin, "other", list).await.unwrap()
    };
    assert_eq!(allow(Some(&["boxes"])).await.providers, Some(vec!["boxes".to_owned()]));
    create("boxes").await.unwrap();
    assert_eq!(create("fake").await.unwrap_err().code, Code::ProviderNotAllowed);
    let volume = NewVolume { name: "data".into(), provider: Some("fake".into()), ..NewVolume::default() };
    let refused = world.service.volumes().create(&tenant, volume).await.unwrap_err();
    assert_eq!(refused.code, Code::ProviderNotAllowed);
    assert_eq!(names().await, ["boxes"]);
    allow(None).await;
    create("fake").await.unwrap();
    world.try_create(at("boxes")).await.expect("the first tenant may use everything that is enabled");
    let refused = world.service.set_tenant_providers(&tenant, "other", None).await.unwrap_err();
    assert_eq!(refused.code, Code::Forbidden);
    let of_thread = async |provider: &str| {
        let spec = CreateSandbox { thread: Some(format!("thread-{provider}")), ..at(provider) };
        world.try_create(spec).await.unwrap().on_exit
    };
    assert_eq!(of_thread("boxes").await, OnExit::Destroy);
    assert_eq!(of_thread("fake").await, OnExit::Pause);
}

#[tokio::test(start_paused = true)]
async fn a_changed_on_exit_reaches_existing_threads_whose_requests_named_none() {
    let (mut world, daemon) = world().await;
    let exits = |on_exit: &str| json!({"provider": "docker", "on_exit": on_exit});
    set(&world, "boxes", exits("keep")).await.unwrap();
    let bound = |thread: &str| CreateSandbox { thread: Some(thread.to_owned()), ..at("boxes") };
    let follows = world.try_create(bound("follows")).await.unwrap().id;
    let chosen = CreateSandbox { on_exit: Some(OnExit::Keep), ..bound("chosen") };
    let chosen = world.try_create(chosen).await.unwrap().id;
    let unbound = world.try_create(at("boxes")).await.unwrap().id;
    set(&world, "boxes", exits("destroy")).await.unwrap();
    let on_exit = async |world: &World, id| world.get(id).await.on_exit;
    assert_eq!(on_exit(&world, &follows).await, OnExit::Destroy);
    assert_eq!(on_exit(&world, &chosen).await, OnExit::Keep);
    assert_eq!(on_exit(&world, &unbound).await, OnExit::Keep);

    // A file that was changed while no server ran is noticed by the next one.
    let clock = world.clock.clone();
    let (fake, dir) = (world.fake.clone(), world.crash().await);
    std::fs::write(dir.path().join("sandboxes/boxes.json"), exits("pause").to_string()).unwrap();
    let world = World::open(dir, fake, clock, with(&daemon)).await;
    world.advance(Duration::from_secs(3)).await;
    until("the next server gives it to the sandbox", async || {
        on_exit(&world, &follows).await == OnExit::Pause
    })
    .await;

    // A choice by request stays, whatever the provider says later.
    let change = UpdateSandbox { on_exit: Some(OnExit::Pause), ..UpdateSandbox::default() };
    world.service.sandboxes().update(&world.admin, follows.as_str(), change).await.unwrap();
    set(&world, "boxes", exits("destroy")).await.unwrap();
    assert_eq!(on_exit(&world, &follows).await, OnExit::Pause);
}

/// Opens the fake of the account that a key belongs to.
struct TwoAccounts([(&'static str, Arc<FakeProvider>); 2]);

#[async_trait]
impl BuildProvider for TwoAccounts {
    async fn build(&self, request: ProviderRequest) -> Result<Arc<dyn Provider>, ServiceError> {
        let key = &request.settings.section["api_key"];
        Ok(self.0.iter().find(|(name, _)| key == name).unwrap().1.clone())
    }
}

#[tokio::test(start_paused = true)]
async fn the_key_of_another_account_is_not_used_while_there_are_sandboxes() {
    let accounts = Arc::new(TwoAccounts(["a", "b"].map(|key| (key, FakeProvider::named("cloud")))));
    let options = || Options { builder: Some(accounts.clone()), ..Options::default() };
    let mut world = World::with(options()).await;
    let key = |key: &str| json!({"provider": "e2b", "e2b": {"api_key": key}});
    set(&world, "cloud", key("a")).await.unwrap();
    let lease = world.try_create(at("cloud")).await.unwrap();
    set(&world, "cloud", key("b")).await.unwrap();
    let is_refused =
        async |world: &World| problem(world, "cloud").await.is_some_and(|why| why.contains("none of them"));
    assert!(is_refused(&world).await);
    assert_eq!(world.get(&lease.id).await.phase, Phase::Running);
    // A service that does not answer says nothing about the account of a key.
    accounts.0[1].1.script(ProviderCall::Owned, Script::Fail);
    set(&world, "cloud", key("a")).await.unwrap();
    set(&world, "cloud", key("b")).await.unwrap();
    assert!(problem(&world, "cloud").await.unwrap().contains("did not tell whether"));
    world.get(&lease.id).await;
    let clock = world.clock.clone();
    let (fake, dir) = (world.fake.clone(), world.crash().await);
    let world = World::open(dir, fake, clock, options()).await;
    assert!(is_refused(&world).await, "also after a restart");
    set(&world, "cloud", key("a")).await.unwrap();
    world.until(&lease.id, Phase::Running).await;
    world.service.sandboxes().delete(&world.admin, lease.id.as_str(), true).await.unwrap();
    assert!(accounts.0[0].1.holds().is_empty());
    set(&world, "cloud", key("b")).await.unwrap();
    world.try_create(at("cloud")).await.expect("it has no sandboxes any more");
}

/// Opens the same fake each time.
struct OneLocal(Arc<FakeProvider>);

#[async_trait]
impl BuildProvider for OneLocal {
    async fn build(&self, request: ProviderRequest) -> Result<Arc<dyn Provider>, ServiceError> {
        assert_eq!((request.kind, request.name), (ProviderKind::Local, "local"));
        Ok(self.0.clone())
    }
}

async fn with_local(allows_local: bool) -> World {
    let builder: Arc<dyn BuildProvider> = Arc::new(OneLocal(FakeProvider::named("local")));
    World::with(Options { builder: Some(builder), allows_local, ..Options::default() }).await
}

#[tokio::test(start_paused = true)]
async fn local_needs_the_operator_or_a_file_that_enables_it() {
    let world = with_local(false).await;
    let refused = world.try_create(at("local")).await.unwrap_err();
    assert_eq!(refused.code, Code::ProviderNotAllowed);
    assert!(refused.hint.unwrap().contains("--allow-local"));
    let shown = world.service.provider_settings(&world.admin, "local").await.unwrap_err();
    assert_eq!(shown.code, Code::ProviderNotAllowed);
    set(&world, "local", json!({"provider": "local"})).await.unwrap();
    assert_eq!(world.try_create(at("local")).await.unwrap_err().code, Code::ProviderNotAllowed);
    set(&world, "local", json!({"provider": "local", "enabled": true})).await.unwrap();
    assert_eq!(world.try_create(at("local")).await.unwrap().isolation, Isolation::None);
}

#[tokio::test(start_paused = true)]
async fn the_operator_allows_local_without_a_file_and_a_file_can_forbid_it() {
    let world = with_local(true).await;
    world.try_create(at("local")).await.unwrap();
    let shown = world.service.provider_settings(&world.admin, "local").await.unwrap();
    assert_eq!((&shown.settings["provider"], shown.problem), (&json!("local"), None));
    set(&world, "local", json!({"provider": "local", "on_exit": "keep"})).await.unwrap();
    world.try_create(at("local")).await.unwrap();
    set(&world, "local", json!({"provider": "local", "enabled": false})).await.unwrap();
    assert_eq!(world.try_create(at("local")).await.unwrap_err().code, Code::ProviderNotAllowed);
    world.service.remove_provider_settings(&world.admin, "local").await.unwrap();
    world.try_create(at("local")).await.unwrap();
}
