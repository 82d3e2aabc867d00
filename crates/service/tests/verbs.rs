//! Every operation from every phase: its result and the phase it leads to; concurrent operations; pauses, snapshots,
//! forks, rollbacks.
#![allow(clippy::disallowed_methods, reason = "tests own their tasks and read the wall clock")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use crate::world::World;
use atoll_model::{Code, CreateSandbox, Intent, MemoryLocation, Origin, Phase, Reason, SandboxId};
use atoll_provider::fake::{ProviderCall, Script};
use atoll_service::{Exec, Fork, NewSnapshot, Pause, ServiceError, SnapshotFilter};

const DISK: Pause = Pause { memory: Some(MemoryLocation::Disk) };
const LIVE: Pause = Pause { memory: None };

/// Brings a new sandbox to a phase; a held call keeps it in a passing one.
async fn at(world: &World, phase: Phase) -> SandboxId {
    let spec = CreateSandbox { name: Some("x".to_owned()), ..Default::default() };
    if phase == Phase::Creating {
        world.fake.script(ProviderCall::Create, Script::Hold);
        return world.service.sandboxes().create(&world.admin, spec, false).await.unwrap().0.id;
    }
    let id = world.try_create(spec).await.unwrap().id;
    let snapshot =
        NewSnapshot { name: Some("first".to_owned()), memory: false, replace: false, expect: None };
    world.service.sandboxes().snapshot(&world.admin, "x", snapshot).await.unwrap();
    let (service, who) = (&world.service, &world.admin);
    let hold = |call| world.fake.script(call, Script::Hold);
    match phase {
        Phase::Creating | Phase::Running => {}
        Phase::Pausing => {
            hold(ProviderCall::Pause);
            service.sandboxes().pause(who, "x", LIVE, false).await.unwrap();
        }
        Phase::Paused => drop(service.sandboxes().pause(who, "x", LIVE, true).await.unwrap()),
        Phase::Resuming => {
            service.sandboxes().pause(who, "x", LIVE, true).await.unwrap();
            hold(ProviderCall::Resume);
            service.sandboxes().resume(who, "x", false).await.unwrap();
        }
        Phase::Stopping => {
            hold(ProviderCall::Halt);
            service.sandboxes().stop(who, "x", false).await.unwrap();
        }
        Phase::Stopped => drop(service.sandboxes().stop(who, "x", true).await.unwrap()),
        Phase::Starting => {
            service.sandboxes().stop(who, "x", true).await.unwrap();
            hold(ProviderCall::Boot);
            service.sandboxes().start(who, "x", false).await.unwrap();
        }
        Phase::Archiving => {
            service.sandboxes().stop(who, "x", true).await.unwrap();
            hold(ProviderCall::Pack);
            service.sandboxes().archive(who, "x", false).await.unwrap();
        }
        Phase::Archived => drop(service.sandboxes().archive(who, "x", true).await.unwrap()),
        Phase::Restoring => {
            service.sandboxes().archive(who, "x", true).await.unwrap();
            hold(ProviderCall::Unpack);
            service.sandboxes().restore(who, "x", false).await.unwrap();
        }
        Phase::Failed => world.fake.kill(&id, true),
        Phase::Deleting => {
            hold(ProviderCall::Destroy);
            service.sandboxes().delete(who, "x", false).await.unwrap();
        }
        Phase::Deleted => drop(service.sandboxes().delete(who, "x", true).await.unwrap()),
    }
    world.until(&id, phase).await;
    id
}

async fn tell(world: &World, id: &SandboxId, verb: &str) -> Result<(), ServiceError> {
    let (service, who, id) = (&world.service, &world.admin, id.as_str());
    match verb {
        "start" => service.sandboxes().start(who, id, false).await.map(drop),
        "stop" => service.sandboxes().stop(who, id, false).await.map(drop),
        "restart" => service.sandboxes().restart(who, id, false).await.map(drop),
        "pause" => service.sandboxes().pause(who, id, LIVE, false).await.map(drop),
        "archive" => service.sandboxes().archive(who, id, false).await.map(drop),
        "restore" => service.sandboxes().restore(who, id, false).await.map(drop),
        "rollback" => service.sandboxes().rollback(who, id, "first", false).await.map(drop),
        "snapshot" => service.sandboxes().snapshot(who, id, NewSnapshot::default()).await.map(drop),
        "delete" => service.sandboxes().delete(who, id, false).await.map(drop),
        _ => unreachable!(),
    }
}

/// The phases in which an operation is accepted; all others answer `phase_conflict`, and a deleted one is not found.
const TAKES: &[(&str, &[Phase])] = {
    use Phase as P;
    &[
        (
            "start",
            &[
                P::Running,
                P::Pausing,
                P::Paused,
                P::Resuming,
                P::Stopped,
                P::Starting,
                P::Archiving,
                P::Archived,
                P::Restoring,
                P::Failed,
            ],
        ),
        (
            "stop",
            &[
                P::Running,
                P::Pausing,
                P::Paused,
                P::Resuming,
                P::Stopping,
                P::Stopped,
                P::Archiving,
                P::Restoring,
                P::Failed,
            ],
        ),
        (
            "restart",
            &[
                P::Running,
                P::Pausing,
                P::Paused,
                P::Resuming,
                P::Stopping,
                P::Stopped,
                P::Archiving,
                P::Archived,
                P::Restoring,
                P::Failed,
            ],
        ),
        ("pause", &[P::Running, P::Pausing, P::Paused]),
        (
            "archive",
            &[
                P::Running,
                P::Pausing,
                P::Paused,
                P::Resuming,
                P::Stopping,
                P::Stopped,
                P::Archiving,
                P::Archived,
            ],
        ),
        ("restore", &[P::Stopped, P::Archived, P::Restoring]),
        ("rollback", &[P::Running, P::Paused, P::Stopped, P::Failed]),
        ("snapshot", &[P::Running, P::Paused, P::Stopped]),
        ("delete", &Phase::ALL),
    ]
};

#[tokio::test(start_paused = true)]
async fn every_verb_from_every_phase_is_taken_or_refused_as_the_table_says() {
    for (verb, takes) in TAKES {
        for phase in Phase::ALL {
            // The first snapshot exists only if there was time to take one.
            if *verb == "rollback" && phase == Phase::Creating {
                continue;
            }
            let world = World::new().await;
            let id = at(&world, phase).await;
            match tell(&world, &id, verb).await {
                Ok(()) => assert!(takes.contains(&phase), "{verb} was taken by {phase:?}"),
                Err(error) => {
                    assert!(!takes.contains(&phase), "{verb} was refused by {phase:?}: {error}");
                    let gone = phase == Phase::Deleted;
                    let code = if gone { Code::SandboxNotFound } else { Code::PhaseConflict };
                    assert_eq!(error.code, code, "{verb} {phase:?}: {error}");
                    assert_eq!(world.get(&id).await.phase, phase, "a refusal changes nothing");
                }
            }
            for _ in 0..4 {
                world.fake.release();
                world.quiet().await;
            }
            world.service.sandboxes().delete(&world.admin, id.as_str(), false).await.unwrap();
            world.fake.release();
            world.until(&id, Phase::Deleted).await;
            world.service.sandboxes().delete_snapshot(&world.admin, "first").await.ok();
            world.assert_no_leaks().await;
        }
    }
}

async fn echo(world: &World, id: &SandboxId) {
    let exec = Exec { argv: vec!["echo".to_owned(), "hi".to_owned()], ..Default::default() };
    let out = world.service.sandboxes().exec(&world.admin, id.as_str(), exec).await.unwrap();
    assert_eq!(out.stdout.to_vec(), b"hi\n");
}

#[tokio::test(start_paused = true)]
async fn a_pause_keeps_memory_and_says_where() {
    let world = World::new().await;
    let (service, who) = (&world.service, &world.admin);
    let born = world.create().await;
    let id = born.id.as_str();
    world.fake.memory(&born.id, |bytes| *bytes = b"known".to_vec());
    let paused = service.sandboxes().pause(who, id, LIVE, true).await.unwrap();
    assert_eq!(
        (paused.phase, paused.held, paused.intent),
        (Phase::Paused, Some(MemoryLocation::Live), Intent::Pause)
    );
    assert_eq!(paused.reason, Reason::Requested);
    assert!(world.fake.is_frozen(&born.id));
    let running = service.sandboxes().resume(who, id, true).await.unwrap();
    assert_eq!((running.phase, running.held), (Phase::Running, None));
    assert_eq!(running.instance, born.instance, "a thaw makes no new instance");
    echo(&world, &born.id).await;

    let paused = service.sandboxes().pause(who, id, DISK, true).await.unwrap();
    assert_eq!((paused.phase, paused.held), (Phase::Paused, Some(MemoryLocation::Disk)));
    assert!(world.fake.is_checkpointed(&born.id));
    let running = service.sandboxes().resume(who, id, true).await.unwrap();
    assert_ne!(running.instance, born.instance, "a restore does");
    assert_eq!(world.fake.memory(&born.id, |bytes| bytes.clone()).unwrap(), b"known");
    echo(&world, &born.id).await;
    // Its token is another one now; the store has it too.
    let world = world.crash_and_reopen().await;
    echo(&world, &born.id).await;

    world.service.sandboxes().pause(&world.admin, id, LIVE, true).await.unwrap();
    let deeper = world.service.sandboxes().pause(&world.admin, id, DISK, true).await.unwrap();
    assert_eq!(deeper.held, Some(MemoryLocation::Disk));
    let stopped = world.service.sandboxes().stop(&world.admin, id, true).await.unwrap();
    assert_eq!((stopped.phase, stopped.held), (Phase::Stopped, None));
    assert!(!world.fake.is_checkpointed(&born.id), "a stop lets go of memory");
}

#[tokio::test(start_paused = true)]
async fn a_paused_sandbox_survives_a_crash_of_the_server_in_memory_and_on_disk() {
    for ask in [LIVE, DISK] {
        let world = World::new().await;
        let born = world.create().await;
        world.fake.memory(&born.id, |bytes| *bytes = b"known".to_vec());
        world.service.sandboxes().pause(&world.admin, born.id.as_str(), ask, true).await.unwrap();
        let world = world.crash_and_reopen().await;
        assert_eq!(world.get(&born.id).await.phase, Phase::Paused);
        let running = world.service.sandboxes().resume(&world.admin, born.id.as_str(), true).await.unwrap();
        assert_eq!(running.phase, Phase::Running);
        assert_eq!(world.fake.memory(&born.id, |bytes| bytes.clone()).unwrap(), b"known");
        echo(&world, &born.id).await;
    }
}

#[tokio::test(start_paused = true)]
async fn memory_that_cannot_go_to_disk_is_an_error_and_never_a_silent_downgrade() {
    let world = World::new().await;
    let id = world.create().await.id;
    world.fake.script(ProviderCall::Checkpoint, Script::Fail);
    let error = world.service.sandboxes().pause(&world.admin, id.as_str(), DISK, true).await.unwrap_err();
    assert_eq!(error.code, Code::Internal);
    assert_eq!(world.until(&id, Phase::Running).await.intent, Intent::Run);
    echo(&world, &id).await;
    // From a pause it stays paused as it was.
    world.service.sandboxes().pause(&world.admin, id.as_str(), LIVE, true).await.unwrap();
    world.fake.script(ProviderCall::Checkpoint, Script::Fail);
    world.service.sandboxes().pause(&world.admin, id.as_str(), DISK, true).await.unwrap_err();
    let paused = world.get(&id).await;
    assert_eq!((paused.phase, paused.held), (Phase::Paused, Some(MemoryLocation::Live)));
    world.service.sandboxes().pause(&world.admin, id.as_str(), DISK, true).await.unwrap();
    // Where there is no CRIU it is refused before anything is done.
    world.service.sandboxes().resume(&world.admin, id.as_str(), true).await.unwrap();
    world.fake.set_capabilities(|able| able.checkpoints = false);
    let error = world.service.sandboxes().pause(&world.admin, id.as_str(), DISK, true).await.unwrap_err();
    assert_eq!(error.code, Code::Unsupported);
    assert_eq!(world.get(&id).await.phase, Phase::Running);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_resumed_stands_still_as_before() {
    let world = World::new().await;
    let id = world.create().await.id;
    world.fake.memory(&id, |bytes| *bytes = b"known".to_vec());
    for (ask, call) in [(LIVE, ProviderCall::Resume), (DISK, ProviderCall::Restore)] {
        world.service.sandboxes().pause(&world.admin, id.as_str(), ask, true).await.unwrap();
        world.fake.script(call, Script::Fail);
        world.service.sandboxes().resume(&world.admin, id.as_str(), true).await.unwrap_err();
        world.quiet().await;
        let paused = world.get(&id).await;
        assert_eq!((paused.phase, paused.intent), (Phase::Paused, Intent::Pause));
        assert_eq!(paused.held, Some(ask.memory.unwrap_or(MemoryLocation::Live)));
        world.service.sandboxes().resume(&world.admin, id.as_str(), true).await.unwrap();
        assert_eq!(world.fake.memory(&id, |bytes| bytes.clone()).unwrap(), b"known");
        echo(&world, &id).await;
    }
    // Its processes run, but nobody can talk to its agent: it is frozen, and later tried again with every token.
    world.service.sandboxes().pause(&world.admin, id.as_str(), DISK, true).await.unwrap();
    world.fake.script(ProviderCall::Restore, Script::WrongToken);
    world.fake.script(ProviderCall::Pause, Script::Hold);
    world.service.sandboxes().resume(&world.admin, id.as_str(), true).await.unwrap_err();
    // Even before it is frozen: a resume at this time must not search for the checkpoint, which was used up.
    assert_eq!(world.get(&id).await.held, Some(MemoryLocation::Live));
    world.fake.release();
    world.quiet().await;
    let paused = world.get(&id).await;
    assert_eq!((paused.phase, paused.held), (Phase::Paused, Some(MemoryLocation::Live)));
    assert!(world.fake.is_frozen(&id));
}

#[tokio::test(start_paused = true)]
async fn a_start_during_a_pause_resumes_at_its_end() {
    let world = World::new().await;
    let id = world.create().await.id;
    world.fake.script(ProviderCall::Pause, Script::Hold);
    world.service.sandboxes().pause(&world.admin, id.as_str(), LIVE, false).await.unwrap();
    world.service.sandboxes().start(&world.admin, id.as_str(), false).await.unwrap();
    world.quiet().await;
    world.fake.release();
    world.until(&id, Phase::Running).await;
    assert_eq!(world.fake.calls(ProviderCall::Resume, &id), 1);
    assert!(!world.fake.is_frozen(&id));
}

#[tokio::test(start_paused = true)]
async fn a_delete_does_not_wait_for_a_checkpoint_an_upload_or_a_snapshot() {
    for call in [ProviderCall::Checkpoint, ProviderCall::Pack, ProviderCall::Snapshot] {
        let world = World::new().await;
        let id = world.create().await.id;
        world.fake.script(call, Script::Hold);
        let (service, who, ident) = (world.service.clone(), world.admin.clone(), id.to_string());
        let asked = tokio::spawn(async move {
            match call {
                ProviderCall::Checkpoint => {
                    service.sandboxes().pause(&who, &ident, DISK, true).await.map(drop)
                }
                ProviderCall::Pack => service.sandboxes().archive(&who, &ident, true).await.map(drop),
                _ => service.sandboxes().snapshot(&who, &ident, NewSnapshot::default()).await.map(drop),
            }
        });
        world.quiet().await;
        world.service.sandboxes().delete(&world.admin, id.as_str(), false).await.unwrap();
        world.advance(Duration::from_millis(200)).await;
        world.until(&id, Phase::Deleted).await;
        asked.await.unwrap().unwrap_err();
        world.assert_no_leaks().await;
        assert_eq!(world.fake.snapshots(), []);
    }
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_is_named_listed_checked_used_and_removed() {
    let world = World::new().await;
    let (service, who) = (&world.service, &world.admin);
    let born =
        world.try_create(CreateSandbox { name: Some("x".to_owned()), ..Default::default() }).await.unwrap();
    world.fake.files(&born.id, |files| files.insert("/a".to_owned(), b"1".to_vec()));
    let named =
        |name: &str| NewSnapshot { name: Some(name.to_owned()), memory: false, replace: false, expect: None };
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
async fn a_snapshot_that_is_being_used_is_not_removed() {
    let world = World::new().await;
    let (service, who) = (&world.service, &world.admin);
    let id = world.create().await.id;
    let ask = NewSnapshot { name: Some("first".to_owned()), memory: false, replace: false, expect: None };
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
    let memory = NewSnapshot { name: None, memory: true, replace: false, expect: None };
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
            .snapshot(
                who,
                "x",
                NewSnapshot { name: Some(name.to_owned()), memory, replace: false, expect: None },
            )
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
        let ask = NewSnapshot { name: Some(name.to_owned()), memory, replace: false, expect: None };
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
    let memory = || NewSnapshot { name: None, memory: true, replace: false, expect: None };
    let error = service.sandboxes().snapshot(who, "x", memory()).await.unwrap_err();
    assert_eq!((error.code, error.hint.is_some()), (Code::InvalidRequest, true));
    assert_eq!(world.fake.calls(ProviderCall::Snapshot, &id), calls, "nobody was asked");
    service.sandboxes().start(who, "x", true).await.unwrap();
    service.sandboxes().pause(who, "x", DISK, true).await.unwrap();
    assert!(service.sandboxes().snapshot(who, "x", memory()).await.unwrap().memory);
    assert_eq!(world.get(&id).await.held, Some(MemoryLocation::Disk));
}

#[tokio::test(start_paused = true)]
async fn verbs_that_race_end_in_one_resting_phase_and_leak_nothing() {
    for seed in 0..6_usize {
        let world = World::new().await;
        let id = at(&world, Phase::Running).await;
        let verbs =
            ["pause", "start", "stop", "pause", "restart", "archive", "start", "rollback", "snapshot"];
        let all = (0..40).map(|n| tell(&world, &id, verbs[(n * (seed + 3) + seed) % verbs.len()]));
        futures::future::join_all(all).await;
        for _ in 0..50 {
            world.quiet().await;
            let lease = world.get(&id).await;
            if atoll_model::lifecycle::phase_deadline_ms(lease.phase).is_none() {
                break;
            }
        }
        let lease = world.get(&id).await;
        assert!(atoll_model::lifecycle::phase_deadline_ms(lease.phase).is_none(), "{lease:?}");
        assert_ne!(lease.phase, Phase::Failed, "{lease:?}");
        world.service.sandboxes().start(&world.admin, "x", true).await.unwrap();
        echo(&world, &id).await;
        world.service.sandboxes().delete(&world.admin, "x", true).await.unwrap();
        world.quiet().await;
        world.assert_no_leaks().await;
        assert_eq!(world.fake.holds(), []);
    }
}
