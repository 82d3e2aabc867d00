//! The server may die at any moment: whatever it was doing ends in the old or the new state, and nothing leaks.
#![allow(clippy::unwrap_used, reason = "tests")]

mod world;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use atoll_model::{CreateSandbox, Intent, Phase, Reason, SandboxId};
use atoll_provider::fake::{Call, Script};
use atoll_service::FailPoint;
use tokio::sync::Notify;
use world::{Options, World};

/// Stops at the nth time that any place is reached, and never goes on.
struct Stopper {
    at: usize,
    reached: AtomicUsize,
    place: Mutex<Option<&'static str>>,
    stopped: Notify,
}

impl Stopper {
    fn new(at: usize) -> Arc<Self> {
        Arc::new(Self { at, reached: 0.into(), place: Mutex::default(), stopped: Notify::new() })
    }

    fn failpoint(self: &Arc<Self>) -> FailPoint {
        let own = Arc::clone(self);
        FailPoint::new(move |place| {
            let own = Arc::clone(&own);
            Box::pin(async move {
                if own.reached.fetch_add(1, Ordering::SeqCst) + 1 >= own.at {
                    own.place.lock().unwrap().get_or_insert(place);
                    own.stopped.notify_one();
                    std::future::pending::<()>().await;
                }
            })
        })
    }
}

fn keyed() -> CreateSandbox {
    CreateSandbox { name: Some("x".to_owned()), idempotency_key: Some("k".to_owned()), ..Default::default() }
}

/// Runs a whole life in a server that dies at the nth place; says where, or `None` when it got through.
async fn die_at(at: usize) -> Option<&'static str> {
    let stopper = Stopper::new(at);
    let mut world = World::with(Options { failpoint: Some(stopper.failpoint()), ..Default::default() }).await;
    let service = world.service.clone();
    let who = world.admin.clone();
    let life = tokio::spawn(async move {
        service.create(&who, keyed(), true).await.unwrap();
        service.stop(&who, "x", true).await.unwrap();
        service.start(&who, "x", true).await.unwrap();
        service.restart(&who, "x", true).await.unwrap();
        service.delete(&who, "x", true).await.unwrap();
    });
    let through = tokio::select! {
        () = stopper.stopped.notified() => false,
        lived = life => { lived.unwrap(); true }
    };
    let dir = world.crash().await;
    let world = World::reopen(dir, world.fake.clone(), world.clock.clone()).await;
    settle(&world).await;
    world.assert_no_leaks().await;
    if !through {
        converge(&world).await;
    }
    let gone = world.service.delete(&world.admin, "x", true).await;
    assert!(gone.is_ok() || through || world.fake.holds().is_empty());
    assert_eq!(world.fake.holds(), []);
    *stopper.place.lock().unwrap()
}

/// After a restart nothing passes for ever.
async fn settle(world: &World) {
    for _ in 0..200 {
        let live = world.store.live().await.unwrap();
        let passing = live.iter().any(|(lease, _)| {
            matches!(lease.phase, Phase::Creating | Phase::Starting | Phase::Stopping | Phase::Deleting)
                || (lease.phase == Phase::Stopped && lease.intent == Intent::Run)
        });
        if !passing {
            return;
        }
        world.quiet().await;
    }
    panic!("it does not settle: {:?}", world.store.live().await.unwrap());
}

/// A client that repeats its create with the same key gets one running sandbox, or the record of the deleted one.
async fn converge(world: &World) {
    let (lease, _) = world.service.create(&world.admin, keyed(), true).await.unwrap();
    assert!(matches!(lease.phase, Phase::Running | Phase::Stopped | Phase::Deleted), "{lease:?}");
    let held: Vec<SandboxId> = world.fake.holds().into_iter().map(|(id, _)| id).collect();
    assert!(held.iter().all(|id| *id == lease.id), "one sandbox at most: {held:?}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_dies_at_any_place_leaves_the_old_or_the_new_state() {
    let mut places = std::collections::BTreeSet::new();
    let mut at = 1;
    while let Some(place) = die_at(at).await {
        places.insert(place);
        at += 1;
    }
    assert!(at > 20, "a life has many places: {at}");
    let all: std::collections::BTreeSet<_> = FailPoint::PLACES.iter().copied().collect();
    assert_eq!(places, all, "every named place was died at");
}

#[tokio::test(start_paused = true)]
async fn what_ran_is_adopted_with_its_agent() {
    let world = World::new().await;
    let lease = world.create().await;
    let world = world.crash_and_reopen().await;
    assert_eq!(world.get(&lease.id).await, lease);
    let exec =
        atoll_service::Exec { argv: vec!["echo".to_owned(), "still".to_owned()], ..Default::default() };
    let out = world.service.exec(&world.admin, lease.id.as_str(), exec).await.unwrap();
    assert_eq!(&out.stdout[..], b"still\n");
}

#[tokio::test(start_paused = true)]
async fn what_died_while_the_server_was_down_is_failed() {
    let mut world = World::new().await;
    let lease = world.create().await;
    let dir = world.crash().await;
    world.fake.kill(&lease.id, false);
    let world = World::reopen(dir, world.fake.clone(), world.clock.clone()).await;
    let failed = world.until(&lease.id, Phase::Failed).await;
    assert_eq!(failed.reason, Reason::LostWhileDown);
    let running = world.service.start(&world.admin, lease.id.as_str(), true).await.unwrap();
    assert_eq!(running.phase, Phase::Running);
}

/// Each passing phase, alive and gone, over a crash.
#[tokio::test(start_paused = true)]
async fn every_passing_phase_is_finished_after_a_restart() {
    for (call, verb, end) in [
        (Call::Create, "create", Phase::Running),
        (Call::Halt, "stop", Phase::Stopped),
        (Call::Boot, "start", Phase::Running),
        (Call::Destroy, "delete", Phase::Deleted),
    ] {
        for dies in [false, true] {
            let mut world = World::new().await;
            if call != Call::Create {
                world.service.create(&world.admin, keyed(), true).await.unwrap();
            }
            if call == Call::Boot {
                world.service.stop(&world.admin, "x", true).await.unwrap();
            }
            world.fake.script(call, Script::Hold);
            match verb {
                "create" => drop(world.service.create(&world.admin, keyed(), false).await.unwrap()),
                "stop" => drop(world.service.stop(&world.admin, "x", false).await.unwrap()),
                "start" => drop(world.service.start(&world.admin, "x", false).await.unwrap()),
                _ => drop(world.service.delete(&world.admin, "x", false).await.unwrap()),
            }
            let id = world.service.get(&world.admin, "x").await.unwrap().id;
            world.quiet().await;
            let dir = world.crash().await;
            if dies {
                world.fake.kill(&id, false);
            }
            let world = World::reopen(dir, world.fake.clone(), world.clock.clone()).await;
            world.until(&id, end).await;
            world.assert_no_leaks().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn resting_phases_and_lifetimes_survive_a_restart_and_a_reboot() {
    let mut world = World::new().await;
    let spec = CreateSandbox { timeout_s: Some(600), ..keyed() };
    let lease = world.try_create(spec).await.unwrap();
    world.service.stop(&world.admin, "x", true).await.unwrap();
    let dir = world.crash().await;
    // Another boot: only wall time is left to decide.
    let clock = atoll_service::TestClock::new("boot-2");
    let world = World::reopen(dir, world.fake.clone(), clock).await;
    assert_eq!(world.get(&lease.id).await.phase, Phase::Stopped);
    world.advance(std::time::Duration::from_secs(590)).await;
    assert_eq!(world.get(&lease.id).await.phase, Phase::Stopped);
    world.advance(std::time::Duration::from_secs(15)).await;
    world.until(&lease.id, Phase::Deleted).await;
}

#[tokio::test(start_paused = true)]
async fn a_clean_end_waits_for_what_is_under_way() {
    let world = World::new().await;
    world.fake.script(Call::Create, Script::Hold);
    let (lease, _) = world.service.create(&world.admin, keyed(), false).await.unwrap();
    world.quiet().await;
    let service = world.service.clone();
    let ending = tokio::spawn(async move { service.shutdown(std::time::Duration::from_secs(30)).await });
    tokio::task::yield_now().await;
    world.fake.release();
    ending.await.unwrap();
    assert_eq!(world.fake.holds(), [(lease.id, lease.instance)]);
    assert!(world.service.create(&world.admin, CreateSandbox::default(), true).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn the_admin_key_is_written_once_and_kept() {
    use std::os::unix::fs::PermissionsExt;
    let world = World::new().await;
    let path = world.data().join("admin.key");
    let first = std::fs::read_to_string(&path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(first.starts_with("atl_") && first.trim().len() == 44);
    let world = world.crash_and_reopen().await;
    assert_eq!(std::fs::read_to_string(world.data().join("admin.key")).unwrap(), first);
    for wrong in ["", "atl_", "nope", &"0".repeat(40), "atl_0000000000000000000000000000000000000000"] {
        let error = world.service.authenticate(wrong).await.unwrap_err();
        assert_eq!(error.to_string(), "no valid key was shown");
    }
}
