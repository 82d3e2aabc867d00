//! Snapshots, forks and rollbacks over the fake provider: what they copy, what they refuse, and what a failure leaves.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests own their tasks")]

use std::time::Duration;

use crate::verbs::{DISK, LIVE, at, echo};
use crate::world::World;
use atoll_model::{Code, CreateSandbox, Intent, MemoryLocation, Origin, Phase, Reason};
use atoll_provider::fake::{ProviderCall, Script};
use atoll_service::{Fork, NewSnapshot, SnapshotFilter};

#[tokio::test(start_paused = true)]
async fn a_snapshot_is_named_listed_checked_used_and_removed() {
    let world = World::new().await;
    let (service, who) = (&world.service, &world.admin);
    let born =
        world.try_create(CreateSandbox { name: Some("x".to_owned()), ..Default::default() }).await.unwrap();
    world.fake.files(&born.id, |files| files.insert("/a".to_owned(), b"1".to_vec()));
    let named = |name: &str| NewSnapshot { name: Some(name.to_owned()), memory: false, ..Default::default() };
    let snapshot = service.sandboxes().snapshot(who, "x", named("first")).await.unwrap();
    assert_eq!(service.sandboxes().get(who, "x").await.unwrap().phase, Phase::Running);
    assert_eq!(
        service.sandboxes().snapshot(who, "x", named("first")).await.unwrap_err().code,
        Code::NameTaken
    );
    assert_eq!(world.fake.snapshots(), std::slice::from_ref(&snapshot.id), "the one without a name is gone");
    assert_eq!(service.sandboxes().get_snapshot(who, "first").await.unwrap(), snapshot);
    let filter = SnapshotFilter { sandbox: Some("x".to_owned()), ..Default::default() };
    assert_eq!(
        service.sandboxes().snapshots(who, filter).await.unwrap().items,
        std::slice::from_ref(&snapshot)
    );
    service.sandboxes().verify_snapshot(who, "first").await.unwrap();

    let from = Origin::Snapshot { snapshot: "first".to_owned(), memory: false };
    let clone = world.try_create(CreateSandbox { from: from.clone(), ..Default::default() }).await.unwrap();
    assert_eq!(world.fake.files(&clone.id, |files| files["/a"].clone()).unwrap(), b"1");
    assert_eq!(clone.parent.as_ref(), Some(&born.id));
    let lineage = service.sandboxes().lineage(who, clone.id.as_str()).await.unwrap();
    assert_eq!((lineage.parent, lineage.snapshot), (Some(born.id.clone()), Some(snapshot.id.clone())));
    assert_eq!(service.sandboxes().lineage(who, "x").await.unwrap().children, [clone.id]);
    let memory = Origin::Snapshot { snapshot: "first".to_owned(), memory: true };
    let error = world.try_create(CreateSandbox { from: memory, ..Default::default() }).await.unwrap_err();
    assert_eq!(error.code, Code::InvalidRequest);

    // It outlives its sandbox, and is refused when it is damaged.
    service.sandboxes().delete(who, "x", true).await.unwrap();
    world.fake.damage(&snapshot.id);
    assert_eq!(service.sandboxes().verify_snapshot(who, "first").await.unwrap_err().code, Code::Damaged);
    let error = world.try_create(CreateSandbox { from, ..Default::default() }).await.unwrap_err();
    assert_eq!(error.code, Code::Damaged);
    service.sandboxes().delete_snapshot(who, "first").await.unwrap();
    assert_eq!(
        service.sandboxes().get_snapshot(who, "first").await.unwrap_err().code,
        Code::SnapshotNotFound
    );
    assert_eq!(world.fake.snapshots(), []);
}

#[tokio::test(start_paused = true)]
async fn the_name_of_a_snapshot_belongs_to_its_sandbox() {
    let world = World::new().await;
    let (service, who) = (&world.service, &world.admin);
    let sandboxes = service.sandboxes();
    let clean =
        |tenant_wide| NewSnapshot { name: Some("clean".to_owned()), tenant_wide, ..NewSnapshot::default() };
    let named = |name: &str| CreateSandbox { name: Some(name.to_owned()), ..Default::default() };
    let from = |snapshot: &str| {
        let from = Origin::Snapshot { snapshot: snapshot.to_owned(), memory: false };
        CreateSandbox { from, ..Default::default() }
    };
    // What the tour does, twice.
    let mut made = Vec::new();
    for _ in 0..2 {
        let lease = world.try_create(named("box")).await.unwrap();
        let taken = sandboxes.snapshot(who, "box", clean(false)).await.unwrap();
        assert_eq!((taken.tenant_wide, taken.sandbox_name.as_deref()), (false, Some("box")));
        let again = sandboxes.snapshot(who, "box", clean(false)).await.unwrap_err();
        assert_eq!(again.code, Code::NameTaken);
        let fork = sandboxes.fork(who, "box", Fork { count: 1, ..Fork::default() }).await.unwrap();
        sandboxes.rollback(who, "box", "clean", true).await.unwrap();
        assert_eq!(sandboxes.get_snapshot(who, "box:clean").await.unwrap().id, taken.id);
        sandboxes.delete(who, "box", true).await.unwrap();
        world.try_create(from(taken.id.as_str())).await.unwrap();
        assert_eq!(world.get(&fork.sandboxes[0].id).await.phase, Phase::Running);
        made.push((lease.id, taken.id));
    }
    // Both sandboxes are gone: their names say no longer which is meant.
    for word in ["clean", "box:clean"] {
        let unclear = world.try_create(from(word)).await.unwrap_err();
        assert_eq!(unclear.code, Code::Ambiguous, "{word}");
        let hint = unclear.hint.unwrap();
        assert!(made.iter().all(|(sandbox, _)| hint.contains(&format!("{sandbox}:clean"))), "{hint}");
    }
    for (sandbox, snapshot) in &made {
        let exact = sandboxes.get_snapshot(who, &format!("{sandbox}:clean")).await.unwrap();
        assert_eq!(exact.id, *snapshot);
    }
    // A tenant-wide name is found first, and is unique in the tenant.
    let other = world.try_create(named("other")).await.unwrap();
    let wide = sandboxes.snapshot(who, "other", clean(true)).await.unwrap();
    assert_eq!(sandboxes.get_snapshot(who, "clean").await.unwrap().id, wide.id);
    world.try_create(named("third")).await.unwrap();
    assert_eq!(sandboxes.snapshot(who, "third", clean(true)).await.unwrap_err().code, Code::NameTaken);
    let stranger = world.stranger().await;
    let hidden = sandboxes.get_snapshot(&stranger, &format!("{}:clean", other.id)).await.unwrap_err();
    assert_eq!(hidden.code, Code::SnapshotNotFound);
    // With its snapshots, also when it is deleted already.
    sandboxes.delete_with_snapshots(who, "other", true).await.unwrap();
    assert_eq!(sandboxes.get_snapshot(who, wide.id.as_str()).await.unwrap_err().code, Code::SnapshotNotFound);
    for (sandbox, snapshot) in &made {
        sandboxes.delete_with_snapshots(who, sandbox.as_str(), true).await.unwrap();
        let gone = sandboxes.get_snapshot(who, snapshot.as_str()).await.unwrap_err();
        assert_eq!(gone.code, Code::SnapshotNotFound);
    }
    world.assert_no_leaks().await;
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_that_is_being_used_is_not_removed() {
    let world = World::new().await;
    let (service, who) = (&world.service, &world.admin);
    let id = world.create().await.id;
    let ask = NewSnapshot { name: Some("first".to_owned()), memory: false, ..Default::default() };
    service.sandboxes().snapshot(who, id.as_str(), ask).await.unwrap();
    let from = Origin::Snapshot { snapshot: "first".to_owned(), memory: false };
    world.fake.script(ProviderCall::Create, Script::Hold);
    let (clone, _) =
        service.sandboxes().create(who, CreateSandbox { from, ..Default::default() }, false).await.unwrap();
    world.quiet().await;
    assert_eq!(
        service.sandboxes().delete_snapshot(who, "first").await.unwrap_err().code,
        Code::SnapshotInUse
    );
    world.fake.release();
    world.until(&clone.id, Phase::Running).await;
    world.fake.script(ProviderCall::Rollback, Script::Hold);
    service.sandboxes().rollback(who, id.as_str(), "first", false).await.unwrap();
    world.quiet().await;
    assert_eq!(
        service.sandboxes().delete_snapshot(who, "first").await.unwrap_err().code,
        Code::SnapshotInUse
    );
    world.fake.release();
    world.until(&id, Phase::Running).await;
    service.sandboxes().delete_snapshot(who, "first").await.unwrap();
    world.assert_no_leaks().await;
}

#[tokio::test(start_paused = true)]
async fn snapshots_count_against_the_disk_of_their_tenant_and_leave_room_for_all() {
    let world = World::new().await;
    let service = &world.service;
    let quota = atoll_model::Quota { disk_mib: Some(2_048 + 3), ..Default::default() };
    let who = world.tenant("small", quota).await;
    let spec = CreateSandbox { name: Some("x".to_owned()), ..Default::default() };
    let (lease, _) = service.sandboxes().create(&who, spec, true).await.unwrap();
    world.fake.files(&lease.id, |files| files.insert("/a".to_owned(), vec![0; 3 << 19]));
    let first = service.sandboxes().snapshot(&who, "x", NewSnapshot::default()).await.unwrap();
    assert_eq!(service.access().tenant_usage(&world.admin, "small").await.unwrap().0.disk_mib, 2_048 + 2);
    let error = service.sandboxes().snapshot(&who, "x", NewSnapshot::default()).await.unwrap_err();
    assert_eq!(error.code, Code::QuotaExceeded, "{error}");
    world.quiet().await;
    assert_eq!(world.fake.snapshots(), std::slice::from_ref(&first.id), "what was refused is gone");
    // It stays when its sandbox goes, and is counted until it goes too.
    service.sandboxes().delete(&who, "x", true).await.unwrap();
    assert_eq!(
        service.sandboxes().create(&who, grown(2_050), true).await.unwrap_err().code,
        Code::QuotaExceeded
    );
    service.sandboxes().delete_snapshot(&who, first.id.as_str()).await.unwrap();
    service.sandboxes().create(&who, grown(2_050), true).await.unwrap();
    // Copies must not take the last of the disk.
    let id = world.create().await.id;
    world.fake.set_node(|node| node.disk_copy_mib = 60);
    world.advance(Duration::from_secs(2)).await;
    let error =
        service.sandboxes().snapshot(&world.admin, id.as_str(), NewSnapshot::default()).await.unwrap_err();
    assert_eq!((error.code, error.retry_after_s.is_some()), (Code::NoCapacity, true));
    world.assert_no_leaks().await;
}

fn grown(disk_mib: i64) -> CreateSandbox {
    let limits = atoll_model::LimitsAsk { disk_mib: Some(disk_mib), ..Default::default() };
    CreateSandbox { limits, ..Default::default() }
}

#[tokio::test(start_paused = true)]
async fn private_environment_is_not_inherited() {
    let world = World::new().await;
    let (service, who) = (&world.service, &world.admin);
    let env = [("TOKEN".to_owned(), "s3cret".to_owned()), ("MODE".to_owned(), "x".to_owned())];
    let spec = CreateSandbox {
        name: Some("x".to_owned()),
        env: env.into(),
        private_env: ["TOKEN".to_owned()].into(),
        ..Default::default()
    };
    world.try_create(spec).await.unwrap();
    let memory = NewSnapshot { name: None, memory: true, ..Default::default() };
    assert_eq!(service.sandboxes().snapshot(who, "x", memory).await.unwrap_err().code, Code::InvalidRequest);
    let snapshot = service.sandboxes().snapshot(who, "x", NewSnapshot::default()).await.unwrap();
    assert!(!snapshot.env.contains_key("TOKEN") && snapshot.env.contains_key("MODE"));
    let forked =
        service.sandboxes().fork(who, "x", Fork { memory: true, ..Default::default() }).await.unwrap();
    assert!(!forked.memory);
    assert!(forked.memory_refused.unwrap().contains("private_env"));
    let child = &forked.sandboxes[0];
    assert!(!child.env.contains_key("TOKEN") && child.private_env.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_fork_makes_children_of_their_own() {
    let world = World::new().await;
    let (service, who) = (&world.service, &world.admin);
    let spec = CreateSandbox {
        name: Some("x".to_owned()),
        labels: [("a".to_owned(), "b".to_owned())].into(),
        ..Default::default()
    };
    let born = world.try_create(spec).await.unwrap();
    world.fake.files(&born.id, |files| files.insert("/a".to_owned(), b"1".to_vec()));
    world.fake.memory(&born.id, |bytes| *bytes = b"known".to_vec());
    for memory in [false, true] {
        let forked = service
            .sandboxes()
            .fork(who, "x", Fork { count: 3, memory, ..Default::default() })
            .await
            .unwrap();
        assert_eq!((forked.memory, forked.memory_refused), (memory, None));
        assert_eq!(forked.sandboxes.len(), 3);
        for child in &forked.sandboxes {
            assert_eq!((child.phase, child.name.as_deref()), (Phase::Running, None));
            assert_eq!((&child.labels, child.parent.as_ref()), (&born.labels, Some(&born.id)));
            assert_eq!(world.fake.files(&child.id, |files| files["/a"].clone()).unwrap(), b"1");
            let known = world.fake.memory(&child.id, |bytes| bytes.clone()).unwrap();
            assert_eq!(known, if memory { b"known".to_vec() } else { vec![] });
            echo(&world, &child.id).await;
        }
    }
    world.quiet().await;
    assert_eq!(world.fake.snapshots(), [], "what it was made from is gone");
    let lineage = service.sandboxes().lineage(who, "x").await.unwrap();
    assert_eq!(lineage.children.len(), 6);
    let child = service.sandboxes().lineage(who, lineage.children[0].as_str()).await.unwrap();
    assert_eq!((child.parent.as_ref(), child.snapshot), (Some(&born.id), None));
    for count in [0, 101] {
        let error =
            service.sandboxes().fork(who, "x", Fork { count, ..Default::default() }).await.unwrap_err();
        assert_eq!(error.code, Code::InvalidRequest);
    }
    // A stopped one has no processes to copy.
    service.sandboxes().stop(who, "x", true).await.unwrap();
    let forked =
        service.sandboxes().fork(who, "x", Fork { memory: true, ..Default::default() }).await.unwrap();
    assert!(!forked.memory && forked.memory_refused.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_fork_makes_all_children_or_none() {
    let world = World::new().await;
    let id = world.create().await.id;
    world.fake.script(ProviderCall::Create, Script::Delay(Duration::from_micros(1)));
    world.fake.script(ProviderCall::Create, Script::Fail);
    let fork = Fork { count: 3, ..Default::default() };
    let (service, who, ident) = (world.service.clone(), world.admin.clone(), id.to_string());
    let forking = tokio::spawn(async move { service.sandboxes().fork(&who, &ident, fork).await });
    world.quiet().await;
    world.advance(Duration::from_millis(5)).await;
    assert_eq!(forking.await.unwrap().unwrap_err().code, Code::Internal);
    world.quiet().await;
    assert_eq!(world.store.live().await.unwrap().len(), 1);
    assert_eq!(world.fake.holds().len(), 1);
    assert_eq!(world.fake.snapshots(), []);
}

#[tokio::test(start_paused = true)]
async fn a_rollback_puts_files_and_processes_back_and_ends_as_it_began() {
    let world = World::new().await;
    let (service, who) = (&world.service, &world.admin);
    let born =
        world.try_create(CreateSandbox { name: Some("x".to_owned()), ..Default::default() }).await.unwrap();
    let set = |file: &[u8], memory: &[u8]| {
        world.fake.files(&born.id, |files| files.insert("/a".to_owned(), file.to_vec()));
        world.fake.memory(&born.id, |bytes| *bytes = memory.to_vec());
    };
    let file = || world.fake.files(&born.id, |files| files["/a"].clone()).unwrap();
    set(b"1", b"then");
    for (name, memory) in [("files", false), ("all", true)] {
        service
            .sandboxes()
            .snapshot(who, "x", NewSnapshot { name: Some(name.to_owned()), memory, ..Default::default() })
            .await
            .unwrap();
    }
    for from in [Phase::Running, Phase::Paused] {
        for (name, memory) in [("files", &b""[..]), ("all", &b"then"[..])] {
            set(b"2", b"now");
            if from == Phase::Paused {
                service.sandboxes().pause(who, "x", LIVE, true).await.unwrap();
            }
            let back = service.sandboxes().rollback(who, "x", name, true).await.unwrap();
            assert_eq!((back.phase, back.rollback_to), (Phase::Running, None));
            assert_eq!(file(), b"1");
            assert_eq!(world.fake.memory(&born.id, |bytes| bytes.clone()).unwrap(), memory);
            echo(&world, &born.id).await;
        }
    }
    for name in ["files", "all"] {
        service.sandboxes().stop(who, "x", true).await.unwrap();
        world.fake.files(&born.id, |files| files.insert("/a".to_owned(), b"2".to_vec()));
        let back = service.sandboxes().rollback(who, "x", name, true).await.unwrap();
        assert_eq!((back.phase, file()), (Phase::Stopped, b"1".to_vec()));
        assert!(!world.fake.is_checkpointed(&born.id));
        service.sandboxes().start(who, "x", true).await.unwrap();
    }
    let other = world.create().await;
    let error = service.sandboxes().rollback(who, other.id.as_str(), "files", true).await.unwrap_err();
    assert_eq!(error.code, Code::InvalidRequest);
    world.quiet().await;
    world.assert_no_leaks().await;
}

#[tokio::test(start_paused = true)]
async fn a_rollback_that_is_refused_leaves_it_as_it_was() {
    let world = World::new().await;
    let (service, who) = (&world.service, &world.admin);
    let born =
        world.try_create(CreateSandbox { name: Some("x".to_owned()), ..Default::default() }).await.unwrap();
    for (name, memory) in [("files", false), ("all", true)] {
        let ask = NewSnapshot { name: Some(name.to_owned()), memory, ..Default::default() };
        let snapshot = service.sandboxes().snapshot(who, "x", ask).await.unwrap();
        world.fake.damage(&snapshot.id);
    }
    world.fake.files(&born.id, |files| files.insert("/a".to_owned(), b"3".to_vec()));
    world.fake.memory(&born.id, |bytes| *bytes = b"now".to_vec());
    for name in ["files", "all"] {
        let error = service.sandboxes().rollback(who, "x", name, true).await.unwrap_err();
        assert_eq!(error.code, Code::Damaged);
        let still = world.get(&born.id).await;
        assert_eq!((still.phase, still.intent, still.rollback_to), (Phase::Running, Intent::Run, None));
        assert_eq!((still.instance, still.stopped_at), (born.instance.clone(), None));
        assert!(matches!(still.reason, Reason::Provider { .. }));
        echo(&world, &born.id).await;
        assert_eq!(world.fake.memory(&born.id, |bytes| bytes.clone()).unwrap(), b"now");
    }
    for ask in [LIVE, DISK] {
        service.sandboxes().pause(who, "x", ask, true).await.unwrap();
        assert_eq!(
            service.sandboxes().rollback(who, "x", "all", true).await.unwrap_err().code,
            Code::Damaged
        );
        let still = world.get(&born.id).await;
        assert_eq!((still.phase, still.intent), (Phase::Paused, Intent::Pause));
        assert_eq!(still.held, Some(ask.memory.unwrap_or(MemoryLocation::Live)));
        world.quiet().await;
        assert_eq!(world.get(&born.id).await.phase, Phase::Paused);
        service.sandboxes().resume(who, "x", true).await.unwrap();
        assert_eq!(world.fake.memory(&born.id, |bytes| bytes.clone()).unwrap(), b"now");
        echo(&world, &born.id).await;
    }
    service.sandboxes().stop(who, "x", true).await.unwrap();
    assert_eq!(service.sandboxes().rollback(who, "x", "files", true).await.unwrap_err().code, Code::Damaged);
    let still = world.get(&born.id).await;
    assert_eq!((still.phase, still.intent), (Phase::Stopped, Intent::Stop));
    assert_eq!(world.fake.files(&born.id, |files| files["/a"].clone()).unwrap(), b"3");
    world.quiet().await;
    world.assert_no_leaks().await;
}

#[tokio::test(start_paused = true)]
async fn a_rollback_that_fails_half_way_leaves_files_and_nothing_that_runs() {
    let world = World::new().await;
    let (service, who) = (&world.service, &world.admin);
    let id = at(&world, Phase::Running).await;
    // The answer was lost: the processes ended.
    world.fake.script(ProviderCall::Rollback, Script::FailAfter);
    service.sandboxes().rollback(who, "x", "first", true).await.unwrap_err();
    let stopped = world.get(&id).await;
    assert_eq!((stopped.phase, stopped.intent, stopped.instance), (Phase::Stopped, Intent::Stop, None));
    service.sandboxes().start(who, "x", true).await.unwrap();
    // It died meanwhile, or a stop was requested meanwhile: in both cases nothing runs while the lease says stopped.
    for dies in [true, false] {
        world.fake.script(ProviderCall::Rollback, Script::Hold);
        service.sandboxes().rollback(who, "x", "first", false).await.unwrap();
        world.quiet().await;
        world.fake.damage(&service.sandboxes().get_snapshot(who, "first").await.unwrap().id);
        if dies {
            world.fake.kill(&id, true);
        } else {
            service.sandboxes().stop(who, "x", false).await.unwrap();
        }
        world.quiet().await;
        world.fake.release();
        world.until(&id, Phase::Stopped).await;
        world.assert_no_leaks().await;
        service.sandboxes().start(who, "x", true).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn the_memory_of_a_stopped_one_is_refused_and_that_of_one_on_disk_is_copied() {
    let world = World::new().await;
    let (service, who) = (&world.service, &world.admin);
    let id = at(&world, Phase::Stopped).await;
    let calls = world.fake.calls(ProviderCall::Snapshot, &id);
    let memory = || NewSnapshot { name: None, memory: true, ..Default::default() };
    let error = service.sandboxes().snapshot(who, "x", memory()).await.unwrap_err();
    assert_eq!((error.code, error.hint.is_some()), (Code::InvalidRequest, true));
    assert_eq!(world.fake.calls(ProviderCall::Snapshot, &id), calls, "nobody was asked");
    service.sandboxes().start(who, "x", true).await.unwrap();
    service.sandboxes().pause(who, "x", DISK, true).await.unwrap();
    assert!(service.sandboxes().snapshot(who, "x", memory()).await.unwrap().memory);
    assert_eq!(world.get(&id).await.held, Some(MemoryLocation::Disk));
}
