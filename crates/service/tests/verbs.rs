//! Every operation from every phase: its result and the phase it leads to; concurrent operations; pauses.
#![allow(clippy::disallowed_methods, reason = "tests own their tasks and read the wall clock")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use crate::world::World;
use atoll_model::{Code, CreateSandbox, Intent, MemoryLocation, Phase, Reason, SandboxId};
use atoll_provider::fake::{ProviderCall, Script};
use atoll_service::{Exec, NewSnapshot, Pause, ServiceError};

pub(crate) const DISK: Pause = Pause { memory: Some(MemoryLocation::Disk) };
pub(crate) const LIVE: Pause = Pause { memory: None };

/// Brings a new sandbox to a phase; a held call keeps it in a passing one.
pub(crate) async fn at(world: &World, phase: Phase) -> SandboxId {
    let spec = CreateSandbox { name: Some("x".to_owned()), ..Default::default() };
    if phase == Phase::Creating {
        world.fake.script(ProviderCall::Create, Script::Hold);
        return world.service.sandboxes().create(&world.admin, spec, false).await.unwrap().0.id;
    }
    let id = world.try_create(spec).await.unwrap().id;
    let snapshot = NewSnapshot { name: Some("first".to_owned()), memory: false, ..Default::default() };
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

pub(crate) async fn echo(world: &World, id: &SandboxId) {
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
