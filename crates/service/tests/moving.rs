//! Moves between providers: what is carried, what is refused, and that whatever fails, one whole sandbox is left.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

use std::sync::Arc;
use std::time::Duration;

use crate::world::{Options, World, breathe};
use atoll_model::{
    Code, CreateSandbox, EventKind, Lease, LeftBehindKind, MountAsk, MoveCarried, OnTimeout, Phase, Quota,
    SandboxId, Storage, UpdateSandbox,
};
use atoll_provider::fake::{FakeFiles, FakeProvider, ProviderCall, Script, TreeFault};
use atoll_service::{MoveRequest, NewSnapshot, NewVolume, Pause, ServiceError};

/// How the files travel between the two fakes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    Layer,
    Folders,
}

pub(crate) fn second(by: By) -> Arc<FakeProvider> {
    let second = FakeProvider::named("second");
    if by == By::Folders {
        second.set_capabilities(|able| able.layers = false);
    }
    second
}

pub(crate) fn with(second: &Arc<FakeProvider>) -> Options {
    Options { second: Some(Arc::clone(second)), ..Options::default() }
}

async fn two(by: By) -> (World, Arc<FakeProvider>) {
    let second = second(by);
    (World::with(with(&second)).await, second)
}

pub(crate) fn to(provider: &str) -> MoveRequest {
    MoveRequest { provider: provider.to_owned(), template: None }
}

pub(crate) async fn moved(world: &World, lease: &Lease) -> Result<Lease, ServiceError> {
    world.service.sandboxes().move_to(&world.admin, lease.id.as_str(), to("second"), true).await
}

/// A file in the home, one with an odd name, and one outside.
const FILES: &[(&str, &[u8])] =
    &[("/home/user/app/a.txt", b"one"), ("/home/user/odd \n name", b"two"), ("/etc/changed", b"three")];

pub(crate) fn write_files(fake: &FakeProvider, id: &SandboxId) {
    for (path, content) in FILES {
        fake.files(id, |files| files.insert((*path).to_owned(), content.to_vec())).unwrap();
    }
}

pub(crate) fn files_of(fake: &FakeProvider, id: &SandboxId) -> FakeFiles {
    fake.files(id, |files| files.clone()).unwrap_or_default()
}

fn in_home(files: &FakeFiles) -> FakeFiles {
    let home = files.iter().filter(|(path, _)| path.starts_with("/home/user/"));
    home.map(|(path, content)| (path.clone(), content.clone())).collect()
}

pub(crate) fn full() -> CreateSandbox {
    CreateSandbox {
        name: Some("box".to_owned()),
        labels: [("team".to_owned(), "a".to_owned())].into(),
        env: [("OWN".to_owned(), "1".to_owned()), ("HIDDEN".to_owned(), "2".to_owned())].into(),
        private_env: ["HIDDEN".to_owned()].into(),
        thread: Some("talk".to_owned()),
        timeout_s: Some(3_600),
        on_timeout: OnTimeout::Stop,
        annotations: [("e2b.made".to_owned(), "x".to_owned())].into(),
        ..CreateSandbox::default()
    }
}

/// Waits until nothing of the move is left to do.
pub(crate) async fn settled(world: &World, id: &SandboxId) -> Lease {
    for _ in 0..2_000 {
        let lease = world.get(id).await;
        if lease.moving.is_none() && matches!(lease.phase, Phase::Running | Phase::Stopped) {
            return lease;
        }
        breathe().await;
    }
    panic!("the move does not end: {:?}", world.get(id).await);
}

#[tokio::test(start_paused = true)]
async fn a_move_carries_the_sandbox_with_everything_that_belongs_to_it() {
    for by in [By::Layer, By::Folders] {
        let (world, second) = two(by).await;
        let before = world.try_create(full()).await.unwrap();
        write_files(&world.fake, &before.id);
        let after = moved(&world, &before).await.unwrap();
        assert_eq!((after.provider.as_str(), after.phase), ("second", Phase::Running), "{by:?}");
        let same = |lease: &Lease| {
            let Lease { id, name, labels, env, private_env, thread, timeout_s, annotations, .. } =
                lease.clone();
            (id, name, labels, env, private_env, thread, timeout_s, annotations)
        };
        assert_eq!(same(&after), same(&before));
        assert_eq!((after.user, after.workdir), (before.user, before.workdir));
        assert_eq!(second.env(&before.id).unwrap()["HIDDEN"], "2", "commands have the environment");
        let (there, report) = (files_of(&second, &before.id), after.last_move.unwrap());
        assert_eq!((report.from.as_str(), report.to.as_str(), report.failure), ("fake", "second", None));
        let kinds: Vec<_> = report.left_behind.iter().map(|left| left.kind).collect();
        match by {
            By::Layer => {
                assert_eq!((there.len(), report.carried), (3, MoveCarried::Layer));
                assert_eq!(kinds, [LeftBehindKind::Processes]);
            }
            By::Folders => {
                assert_eq!((there.len(), report.carried), (2, MoveCarried::Folders));
                assert_eq!((report.entries, report.bytes), (2, 6));
                assert_eq!(kinds, [LeftBehindKind::Processes, LeftBehindKind::Files]);
                assert_eq!(report.left_behind[1].names, ["/etc/changed"]);
            }
        }
        let lease = settled(&world, &before.id).await;
        assert_eq!((world.fake.holds().len(), second.holds().len()), (0, 1), "nothing is left at the source");
        assert_eq!(second.holds()[0].1, lease.instance);
        let thread = world.service.sandboxes().thread(&world.admin, "talk").await.unwrap();
        assert_eq!((thread.provider.as_str(), thread.sandbox.unwrap().0), ("second", before.id.clone()));
        let events = world.service.events(&world.admin, None, None, 0).await.unwrap();
        let told = events.iter().any(|event| matches!(&event.what, EventKind::Moved { failure: None, .. }));
        assert!(told, "{events:?}");
        world.service.sandboxes().delete(&world.admin, "box", true).await.unwrap();
        assert_eq!(second.holds(), []);
    }
}

#[tokio::test(start_paused = true)]
async fn changes_that_the_provider_cannot_tell_are_said_to_stay_behind() {
    let (world, _second) = two(By::Folders).await;
    let before = world.try_create(full()).await.unwrap();
    write_files(&world.fake, &before.id);
    world.fake.script(ProviderCall::Capture, Script::Fail);
    let report = moved(&world, &before).await.unwrap().last_move.unwrap();
    let files = report.left_behind.iter().find(|left| left.kind == LeftBehindKind::Files).unwrap();
    assert!(files.names[0].contains("everything outside /home/user"), "{files:?}");
    assert!(files.names[0].contains("not known for template"), "{files:?}");
}

#[tokio::test(start_paused = true)]
async fn a_stopped_sandbox_stays_stopped_and_a_paused_one_is_stopped() {
    let (world, second) = two(By::Folders).await;
    for phase in [Phase::Stopped, Phase::Paused] {
        let before = world.create().await;
        write_files(&world.fake, &before.id);
        let (sandboxes, id) = (world.service.sandboxes(), before.id.as_str());
        match phase {
            Phase::Stopped => sandboxes.stop(&world.admin, id, true).await.unwrap(),
            _ => sandboxes.pause(&world.admin, id, Pause::default(), true).await.unwrap(),
        };
        let after = moved(&world, &before).await.unwrap();
        assert_eq!((after.phase, after.provider.as_str()), (Phase::Stopped, "second"));
        let processes =
            after.last_move.unwrap().left_behind.iter().any(|left| left.kind == LeftBehindKind::Processes);
        assert_eq!(processes, phase == Phase::Paused);
        assert_eq!(in_home(&files_of(&second, &before.id)).len(), 2);
        settled(&world, &before.id).await;
        let back = sandboxes.move_to(&world.admin, id, to("fake"), true).await.unwrap();
        assert_eq!((back.phase, back.provider.as_str()), (Phase::Stopped, "fake"), "and back");
        settled(&world, &before.id).await;
        assert_eq!((in_home(&files_of(&world.fake, &before.id)).len(), second.holds().len()), (2, 0));
        assert_eq!(sandboxes.start(&world.admin, id, true).await.unwrap().phase, Phase::Running);
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_moved_is_refused_before_anything_changes() {
    let (world, second) = two(By::Folders).await;
    let lease = world.create().await;
    let sandboxes = world.service.sandboxes();
    let refused = async |request: MoveRequest| {
        sandboxes.move_to(&world.admin, lease.id.as_str(), request, true).await.unwrap_err()
    };
    assert_eq!(refused(to("nowhere")).await.code, Code::ProviderNotFound);
    let same = refused(to("fake")).await;
    assert_eq!((same.code, same.field.unwrap().name), (Code::InvalidRequest, "provider".to_owned()));
    let unknown = MoveRequest { template: Some("nothing".to_owned()), ..to("second") };
    assert_eq!(refused(unknown).await.code, Code::TemplateNotFound);
    second.set_capabilities(|able| able.keeps_files = false);
    let missing = refused(to("second")).await;
    assert!(missing.code == Code::Unsupported && missing.message.contains("keep_files"), "{missing}");
    second.set_capabilities(|able| (able.keeps_files, able.pauses) = (true, false));
    let timer = UpdateSandbox {
        timers: atoll_model::TimersAsk { auto_pause_s: Some(60), ..Default::default() },
        ..UpdateSandbox::default()
    };
    sandboxes.update(&world.admin, lease.id.as_str(), timer).await.unwrap();
    let paused = refused(to("second")).await;
    assert!(paused.code == Code::Unsupported && paused.message.contains("pause"), "{paused}");
    second.set_capabilities(|able| able.pauses = true);
    second.set_node(|node| node.memory_total_mib = 1);
    assert_ne!(refused(to("second")).await.code, Code::Internal, "no room");
    second.set_node(|node| node.memory_total_mib = 1 << 20);
    assert_eq!(world.get(&lease.id).await.phase, Phase::Running);
    assert_eq!((world.fake.calls(ProviderCall::Halt, &lease.id), second.holds().len()), (0, 0));

    let in_memory = CreateSandbox { storage: Storage::Memory, ..CreateSandbox::default() };
    let in_memory = world.try_create(in_memory).await.unwrap();
    assert_eq!(moved(&world, &in_memory).await.unwrap_err().code, Code::Unsupported);
}

#[tokio::test(start_paused = true)]
async fn a_network_policy_that_the_target_cannot_enforce_is_refused() {
    let (world, second) = two(By::Folders).await;
    second.set_capabilities(|able| able.network = false);
    let network = atoll_model::NetworkPolicy {
        mode: atoll_model::NetworkMode::Custom,
        allow_domains: vec!["pypi.org".parse().unwrap()],
        ..atoll_model::NetworkPolicy::default()
    };
    let lease =
        world.try_create(CreateSandbox { network: Some(network), ..Default::default() }).await.unwrap();
    let refused = moved(&world, &lease).await.unwrap_err();
    assert!(refused.code == Code::Unsupported && refused.message.contains("egress"), "{refused}");
    assert_eq!((world.get(&lease.id).await.phase, second.holds().len()), (Phase::Running, 0));
}

#[tokio::test(start_paused = true)]
async fn a_tenant_moves_its_own_sandboxes_to_its_own_providers_within_its_quota() {
    let (world, _second) = two(By::Folders).await;
    let (mine, stranger) = (world.tenant("mine", Quota::default()).await, world.stranger().await);
    let sandboxes = world.service.sandboxes();
    // The isolation of the fakes is none: they have to be allowed by name.
    let (access, service) = (world.service.access(), &world.service);
    service.set_tenant_providers(&world.admin, "mine", Some(vec!["fake".to_owned()])).await.unwrap();
    let (lease, _) = sandboxes.create(&mine, CreateSandbox::default(), true).await.unwrap();
    let id = lease.id.as_str();
    let unseen = sandboxes.move_to(&stranger, id, to("second"), true).await.unwrap_err();
    assert_eq!(unseen.code, Code::SandboxNotFound);
    for who in [&mine, &world.admin] {
        let refused = sandboxes.move_to(who, id, to("second"), true).await.unwrap_err();
        assert_eq!(refused.code, Code::ProviderNotAllowed, "the list is the tenant's, whoever asks");
    }
    let both = Some(vec!["fake".to_owned(), "second".to_owned()]);
    service.set_tenant_providers(&world.admin, "mine", both).await.unwrap();
    sandboxes.stop(&mine, id, true).await.unwrap();
    let quota = Quota { memory_mib: Some(u64::from(lease.limits.memory_mib)), ..Quota::default() };
    access.set_quota(&world.admin, "mine", quota).await.unwrap();
    let (other, _) = sandboxes.create(&mine, CreateSandbox::default(), true).await.unwrap();
    let refused = sandboxes.move_to(&mine, id, to("second"), true).await.unwrap_err();
    assert_eq!(refused.code, Code::QuotaExceeded, "a copy needs an instance");
    sandboxes.delete(&mine, other.id.as_str(), true).await.unwrap();
    let after = sandboxes.move_to(&mine, id, to("second"), true).await.unwrap();
    assert_eq!((after.provider.as_str(), after.tenant), ("second", mine.tenant));
}

#[tokio::test(start_paused = true)]
async fn mounts_and_snapshots_stay_behind_and_are_listed() {
    let (world, second) = two(By::Folders).await;
    let (sandboxes, volumes) = (world.service.sandboxes(), world.service.volumes());
    volumes
        .create(&world.admin, NewVolume { name: "data".to_owned(), ..NewVolume::default() })
        .await
        .unwrap();
    let mount = MountAsk {
        volume: "data".to_owned(),
        path: "/home/user/data".to_owned(),
        sub_path: None,
        read_only: false,
    };
    let lease = world.try_create(CreateSandbox { mounts: vec![mount], ..Default::default() }).await.unwrap();
    write_files(&world.fake, &lease.id);
    let snapshot = NewSnapshot { name: Some("kept".to_owned()), memory: false, ..Default::default() };
    sandboxes.snapshot(&world.admin, lease.id.as_str(), snapshot).await.unwrap();
    let after = moved(&world, &lease).await.unwrap();
    let left = after.last_move.unwrap().left_behind;
    let of = |kind| left.iter().find(|left| left.kind == kind).unwrap().names.clone();
    assert!(of(LeftBehindKind::Mounts)[0].ends_with("at /home/user/data"));
    assert_eq!(of(LeftBehindKind::Snapshots), ["kept"]);
    assert_eq!((after.mounts.len(), second.mounts(&lease.id).unwrap().len()), (0, 0));
    settled(&world, &lease.id).await;
    let refused = sandboxes.rollback(&world.admin, lease.id.as_str(), "kept", true).await.unwrap_err();
    assert!(refused.message.contains("provider fake"), "{refused}");
    volumes.remove(&world.admin, "data").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_second_move_and_changes_are_refused_while_the_first_is_under_way() {
    let (world, second) = two(By::Folders).await;
    let lease = world.create().await;
    write_files(&world.fake, &lease.id);
    second.script(ProviderCall::Create, Script::Hold);
    let sandboxes = world.service.sandboxes().clone();
    let recorded = sandboxes.move_to(&world.admin, lease.id.as_str(), to("second"), false).await.unwrap();
    assert!(recorded.is_being_copied());
    world.until(&lease.id, Phase::Restoring).await;
    let again = moved(&world, &lease).await.unwrap_err();
    assert_eq!(again.code, Code::PhaseConflict);
    let fork =
        sandboxes.fork(&world.admin, lease.id.as_str(), atoll_service::Fork::default()).await.unwrap_err();
    assert_eq!(fork.code, Code::PhaseConflict);
    let labels = Some([("changed".to_owned(), "meanwhile".to_owned())].into());
    sandboxes
        .update(&world.admin, lease.id.as_str(), UpdateSandbox { labels, ..UpdateSandbox::default() })
        .await
        .unwrap();
    while second.calls(ProviderCall::Create, &lease.id) == 0 {
        breathe().await;
    }
    second.release();
    let after = settled(&world, &lease.id).await;
    assert_eq!((after.provider.as_str(), after.phase), ("second", Phase::Running));
    assert_eq!(after.labels["changed"], "meanwhile", "what was changed meanwhile is kept");
}

/// Every fault of a vendor or a disk before the commit: the sandbox runs on where it was, and nothing is at the target.
#[tokio::test(start_paused = true)]
async fn a_move_that_fails_leaves_the_sandbox_where_it_was() {
    type Fault = (&'static str, By, fn(&FakeProvider, &FakeProvider));
    let faults: &[Fault] = &[
        ("create", By::Folders, |_, second| second.script(ProviderCall::Create, Script::Fail)),
        ("create is lost", By::Folders, |_, second| second.script(ProviderCall::Create, Script::FailAfter)),
        ("create panics", By::Folders, |_, second| second.script(ProviderCall::Create, Script::Panic)),
        ("wrong token", By::Folders, |_, second| second.script(ProviderCall::Create, Script::WrongToken)),
        ("boot", By::Folders, |first, _| first.script(ProviderCall::Boot, Script::Fail)),
        ("full disk", By::Folders, |_, second| second.fail_unpack(TreeFault::Full)),
        ("damaged copy", By::Folders, |_, second| second.fail_unpack(TreeFault::Damage)),
        ("halt of the target", By::Folders, |_, second| second.script(ProviderCall::Halt, Script::Fail)),
        ("pack", By::Layer, |first, _| first.script(ProviderCall::Pack, Script::Fail)),
        ("pack is cut", By::Layer, |first, _| first.script(ProviderCall::Pack, Script::Cut)),
        ("unpack", By::Layer, |_, second| second.script(ProviderCall::Unpack, Script::Fail)),
        ("reading back", By::Layer, |_, second| second.script(ProviderCall::Pack, Script::Fail)),
        ("reading back is cut", By::Layer, |_, second| second.script(ProviderCall::Pack, Script::Cut)),
    ];
    for (what, by, fault) in faults {
        let (world, second) = two(*by).await;
        let lease = world.try_create(full()).await.unwrap();
        write_files(&world.fake, &lease.id);
        fault(&world.fake, &second);
        let failure = moved(&world, &lease).await.expect_err(what);
        assert_ne!(failure.message, "", "{what}");
        let after = settled(&world, &lease.id).await;
        assert_eq!((after.provider.as_str(), after.phase), ("fake", Phase::Running), "{what}: {failure}");
        assert_eq!(after.last_move.unwrap().failure.as_ref(), Some(&failure.message), "{what}");
        assert_eq!((files_of(&world.fake, &lease.id).len(), second.holds().len()), (3, 0), "{what}");
        let thread = world.service.sandboxes().thread(&world.admin, "talk").await.unwrap();
        assert_eq!(thread.provider, "fake", "{what}");
        world.assert_no_leaks().await;
        let again = moved(&world, &lease).await.unwrap_or_else(|error| panic!("{what}: again: {error}"));
        assert_eq!((again.provider.as_str(), again.phase), ("second", Phase::Running), "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_source_that_cannot_be_removed_is_removed_later_and_delays_nothing() {
    let (world, second) = two(By::Folders).await;
    let lease = world.create().await;
    write_files(&world.fake, &lease.id);
    for _ in 0..3 {
        world.fake.script(ProviderCall::Destroy, Script::Fail);
    }
    let after = moved(&world, &lease).await.unwrap();
    assert_eq!((after.provider.as_str(), after.phase), ("second", Phase::Running));
    let again = world.service.sandboxes().move_to(&world.admin, lease.id.as_str(), to("fake"), true).await;
    assert_eq!(again.unwrap_err().code, Code::PhaseConflict, "the old copy is in the way");
    for _ in 0..20 {
        world.advance(Duration::from_secs(5)).await;
    }
    settled(&world, &lease.id).await;
    assert_eq!((world.fake.holds().len(), second.holds().len()), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_is_deleted_while_it_is_moved_leaves_nothing_at_either_provider() {
    for call in [ProviderCall::Create, ProviderCall::Halt] {
        let (world, second) = two(By::Folders).await;
        let lease = world.create().await;
        write_files(&world.fake, &lease.id);
        second.script(call, Script::HoldAfter);
        let (sandboxes, admin, id) =
            (world.service.sandboxes().clone(), world.admin.clone(), lease.id.clone());
        let moving =
            tokio::spawn(async move { sandboxes.move_to(&admin, id.as_str(), to("second"), true).await });
        while second.calls(call, &lease.id) == 0 {
            breathe().await;
        }
        let deleting =
            world.service.sandboxes().delete(&world.admin, lease.id.as_str(), false).await.unwrap();
        assert!(deleting.phase.is_gone());
        for _ in 0..10 {
            world.advance(Duration::from_secs(2)).await;
        }
        assert!(moving.await.unwrap().is_err());
        assert_eq!(world.get(&lease.id).await.phase, Phase::Deleted);
        assert_eq!((world.fake.holds().len(), second.holds().len()), (0, 0), "{call:?}");
    }
}

/// As from a container to a vendor whose user has another number: its `tar` takes the owners of the archive.
#[tokio::test(start_paused = true)]
async fn the_files_of_the_user_belong_to_the_user_of_the_target_and_other_owners_stay() {
    let (world, second) = two(By::Folders).await;
    world.fake.set_user(1_000, 1_000);
    second.set_user(1_001, 1_002);
    second.unpack_by_tar();
    let lease = world.create().await;
    write_files(&world.fake, &lease.id);
    world.fake.set_owner("/home/user/app/a.txt", (0, 1_000));
    let after = moved(&world, &lease).await.unwrap();
    assert_eq!((after.provider.as_str(), after.phase), ("second", Phase::Running));
    assert_eq!(second.owner("/home/user/odd \n name"), (1_001, 1_002));
    assert_eq!(second.owner("/home/user/app/a.txt"), (0, 1_002), "another user, and the group of this one");
    let left = after.last_move.unwrap().left_behind;
    assert!(left.iter().all(|left| left.kind != LeftBehindKind::Owners), "{left:?}");
    settled(&world, &lease.id).await;
    let back = world.service.sandboxes().move_to(&world.admin, lease.id.as_str(), to("fake"), true).await;
    assert_eq!(back.unwrap().provider, "fake");
    assert_eq!(world.fake.owner("/home/user/odd \n name"), (1_000, 1_000));
    assert_eq!(world.fake.owner("/home/user/app/a.txt"), (0, 1_000));
}

/// As from this machine, where all files belong to the user of the server.
#[tokio::test(start_paused = true)]
async fn the_files_of_a_source_with_one_user_belong_to_the_user_of_the_target() {
    let (world, second) = two(By::Folders).await;
    world.fake.set_capabilities(|able| able.users = false);
    second.set_user(1_001, 1_002);
    second.unpack_by_tar();
    let lease = world.create().await;
    write_files(&world.fake, &lease.id);
    world.fake.set_owner("/home/user/app/a.txt", (0, 0));
    assert_eq!(moved(&world, &lease).await.unwrap().provider, "second");
    for path in ["/home/user/app/a.txt", "/home/user/odd \n name"] {
        assert_eq!(second.owner(path), (1_001, 1_002), "{path}");
    }
}

/// As from this machine back to containers, where the first attempt fails.
#[tokio::test(start_paused = true)]
async fn a_move_back_that_failed_once_gives_the_files_to_their_former_owners() {
    let (world, second) = two(By::Folders).await;
    second.set_capabilities(|able| able.users = false);
    world.fake.set_user(1_000, 1_000);
    world.fake.unpack_by_tar();
    let root = CreateSandbox { user: Some("root".to_owned()), ..CreateSandbox::default() };
    let lease = world.try_create(root).await.unwrap();
    world.fake.files(&lease.id, |files| files.insert("/root/a.txt".to_owned(), b"one".to_vec())).unwrap();
    let there = moved(&world, &lease).await.unwrap();
    assert_eq!(there.last_move.unwrap().former_user.as_deref(), Some("root"));
    settled(&world, &lease.id).await;
    let (sandboxes, id) = (world.service.sandboxes(), lease.id.as_str());
    for _ in 0..2 {
        world.fake.script(ProviderCall::Create, Script::Fail);
        sandboxes.move_to(&world.admin, id, to("fake"), true).await.unwrap_err();
        let report = settled(&world, &lease.id).await.last_move.unwrap();
        assert!(report.failure.is_some() && report.former_user.as_deref() == Some("root"), "{report:?}");
    }
    let back = sandboxes.move_to(&world.admin, id, to("fake"), true).await.unwrap();
    assert_eq!((back.provider.as_str(), back.user.as_str()), ("fake", "root"));
    let report = back.last_move.unwrap();
    assert_eq!((report.failure, report.former_user), (None, None));
}

/// As at a vendor without Atoll's agent, where the numbers of a user that is in no list are asked of a program of the sandbox.
#[tokio::test(start_paused = true)]
async fn a_shell_that_never_ends_delays_a_move_by_seconds_only() {
    let (world, second) = two(By::Folders).await;
    world.fake.set_capabilities(|able| able.session = true);
    let lease = world.create().await;
    write_files(&world.fake, &lease.id);
    let (sandboxes, id) = (world.service.sandboxes(), lease.id.as_str());
    sandboxes.move_to(&world.admin, id, to("second"), false).await.unwrap();
    while !world.fake.asked(&lease.id).iter().any(|asked| asked.ends_with("/Start")) {
        breathe().await;
    }
    for _ in 0..10 {
        assert!(world.get(&lease.id).await.is_being_copied());
        world.advance(Duration::from_secs(1)).await;
    }
    let after = settled(&world, &lease.id).await;
    assert_eq!((after.provider.as_str(), files_of(&second, &lease.id).len()), ("second", 2));
}

#[tokio::test(start_paused = true)]
async fn a_move_starts_no_program_where_atolls_agent_runs() {
    let (world, second) = two(By::Folders).await;
    let lease = world.create().await;
    write_files(&world.fake, &lease.id);
    second.script(ProviderCall::Create, Script::Hold);
    world.service.sandboxes().move_to(&world.admin, lease.id.as_str(), to("second"), false).await.unwrap();
    while second.calls(ProviderCall::Create, &lease.id) == 0 {
        breathe().await;
    }
    let asked = world.fake.asked(&lease.id);
    assert!(!asked.is_empty() && asked.iter().all(|asked| !asked.ends_with("/Start")), "{asked:?}");
    second.release();
    assert_eq!(settled(&world, &lease.id).await.provider, "second");
}
