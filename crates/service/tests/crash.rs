//! The server may die at any moment: every operation ends in the old or the new state, and nothing leaks.
#![allow(clippy::disallowed_methods, reason = "tests own their tasks and read the wall clock")]
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use crate::world::{Options, World};
use atoll_model::lifecycle::phase_deadline_ms;
use atoll_model::{
    CreateSandbox, Intent, MemoryLocation, Origin, Phase, Principal, Reason, SandboxId, SnapshotState,
};
use atoll_provider::fake::{FakeProvider, ProviderCall, Script};
use atoll_service::{FailPoint, Fork, NewSnapshot, Pause, Service};
use futures::future::BoxFuture;
use tokio::sync::Notify;

/// Where a server dies.
#[derive(Debug, Clone, Copy)]
enum At {
    /// The nth time that any place is reached. Concurrent work makes it another place in each run.
    Nth(usize),
    /// The first time that this place is reached.
    Place(&'static str),
}

/// Stops there, together with everything that reaches any place afterwards, and never continues.
struct Stopper {
    at: At,
    reached: AtomicUsize,
    place: Mutex<Option<&'static str>>,
    stopped: Notify,
}

impl Stopper {
    fn new(at: At) -> Arc<Self> {
        Arc::new(Self { at, reached: 0.into(), place: Mutex::default(), stopped: Notify::new() })
    }

    fn failpoint(self: &Arc<Self>) -> FailPoint {
        let own = Arc::clone(self);
        FailPoint::new(move |place| {
            let own = Arc::clone(&own);
            Box::pin(async move {
                let nth = own.reached.fetch_add(1, Ordering::SeqCst) + 1;
                let is_there = match own.at {
                    At::Nth(at) => nth >= at,
                    At::Place(wanted) => place == wanted || own.place.lock().unwrap().is_some(),
                };
                if is_there {
                    own.place.lock().unwrap().get_or_insert(place);
                    own.stopped.notify_one();
                    std::future::pending::<()>().await;
                }
            })
        })
    }
}

/// Ends the tests with a message if one of them hangs: on a clock that only the test moves no deadline would.
struct Watchdog(#[expect(dead_code, reason = "it bites when this is not dropped in time")] mpsc::Sender<()>);

impl Watchdog {
    fn new(what: String) -> Self {
        let (alive, ended) = mpsc::channel::<()>();
        std::thread::spawn(move || {
            if ended.recv_timeout(Duration::from_secs(240)) == Err(mpsc::RecvTimeoutError::Timeout) {
                eprintln!("{what}: nothing comes of it");
                std::process::abort();
            }
        });
        Self(alive)
    }
}

fn keyed() -> CreateSandbox {
    CreateSandbox { name: Some("x".to_owned()), idempotency_key: Some("k".to_owned()), ..Default::default() }
}

/// Part of a life, against a server that may die at any place of it.
type Part = fn(Service, Principal, Arc<FakeProvider>) -> BoxFuture<'static, ()>;

/// The operations of a part, and the places that it passes beyond those of every part.
const PARTS: &[(&str, Part, &[&str])] = &[
    ("starts and stops", starts_and_stops, EVERYWHERE),
    (
        "pauses",
        pauses,
        &[
            "pause.before",
            "pause.frozen",
            "checkpoint.before",
            "checkpoint.after",
            "resume.before",
            "resume.after",
            "restore.before",
            "restore.made",
        ],
    ),
    (
        "snapshots",
        snapshots,
        &[
            "snapshot.row",
            "snapshot.made",
            "snapshot.ready",
            "snapshot.deleting",
            "snapshot.removed",
            "rollback.before",
            "rollback.after",
        ],
    ),
    ("forks", forks, &["fork.snapshot", "fork.child", "fork.made", "fork.done"]),
    (
        "archives",
        archives,
        &[
            "archive.before",
            "archive.packed",
            "archive.uploaded",
            "archive.written",
            "archive.local_removed",
            "restore.fetch",
            "restore.unpacked",
            "restore.objects_removed",
        ],
    ),
];

const EVERYWHERE: &[&str] = &[
    "insert.before",
    "insert.after",
    "effect.before",
    "effect.made",
    "effect.after",
    "advance.before",
    "advance.after",
];

fn starts_and_stops(service: Service, who: Principal, _: Arc<FakeProvider>) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        service.sandboxes().create(&who, keyed(), true).await.unwrap();
        service.sandboxes().stop(&who, "x", true).await.unwrap();
        service.sandboxes().start(&who, "x", true).await.unwrap();
        service.sandboxes().restart(&who, "x", true).await.unwrap();
        service.sandboxes().delete(&who, "x", true).await.unwrap();
    })
}

/// Creates the sandbox, with content in its files and in its memory.
async fn begin(service: &Service, who: &Principal, fake: &FakeProvider) -> SandboxId {
    let (lease, _) = service.sandboxes().create(who, keyed(), true).await.unwrap();
    fake.files(&lease.id, |files| files.insert("/kept".to_owned(), b"1".to_vec())).unwrap();
    fake.memory(&lease.id, |bytes| *bytes = b"known".to_vec()).unwrap();
    lease.id
}

fn pauses(service: Service, who: Principal, fake: Arc<FakeProvider>) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        begin(&service, &who, &fake).await;
        let disk = Pause { memory: Some(MemoryLocation::Disk) };
        for ask in [Pause::default(), disk] {
            service.sandboxes().pause(&who, "x", ask, true).await.unwrap();
            service.sandboxes().resume(&who, "x", true).await.unwrap();
        }
        service.sandboxes().pause(&who, "x", Pause::default(), true).await.unwrap();
        service.sandboxes().pause(&who, "x", disk, true).await.unwrap();
        service.sandboxes().resume(&who, "x", true).await.unwrap();
    })
}

fn snapshots(service: Service, who: Principal, fake: Arc<FakeProvider>) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        let id = begin(&service, &who, &fake).await;
        for (name, memory) in [("files", false), ("all", true)] {
            let ask = NewSnapshot { name: Some(name.to_owned()), memory, ..Default::default() };
            service.sandboxes().snapshot(&who, "x", ask).await.unwrap();
            fake.files(&id, |files| files.insert("/kept".to_owned(), b"2".to_vec())).unwrap();
            service.sandboxes().rollback(&who, "x", name, true).await.unwrap();
            assert_eq!(fake.files(&id, |files| files["/kept"].clone()).unwrap(), b"1");
            if !memory {
                // Its processes were started again.
                fake.memory(&id, |bytes| *bytes = b"known".to_vec()).unwrap();
            }
            let from = Origin::Snapshot { snapshot: name.to_owned(), memory };
            let clone = CreateSandbox { from, ..Default::default() };
            let (clone, _) = service.sandboxes().create(&who, clone, true).await.unwrap();
            service.sandboxes().delete(&who, clone.id.as_str(), true).await.unwrap();
            service.sandboxes().delete_snapshot(&who, name).await.unwrap();
        }
    })
}

fn forks(service: Service, who: Principal, fake: Arc<FakeProvider>) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        begin(&service, &who, &fake).await;
        for memory in [false, true] {
            let forked = service
                .sandboxes()
                .fork(&who, "x", Fork { count: 2, memory, ..Default::default() })
                .await
                .unwrap();
            assert_eq!(forked.memory, memory);
        }
    })
}

fn archives(service: Service, who: Principal, fake: Arc<FakeProvider>) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        begin(&service, &who, &fake).await;
        service.sandboxes().archive(&who, "x", true).await.unwrap();
        service.sandboxes().restore(&who, "x", true).await.unwrap();
        service.sandboxes().archive(&who, "x", true).await.unwrap();
        service.sandboxes().start(&who, "x", true).await.unwrap();
        while service.sandboxes().get(&who, "x").await.unwrap().archive.is_some() {
            tokio::task::yield_now().await;
        }
    })
}

/// Runs a part of a life in a server that dies at the nth place; returns the place, or `None` if it completed.
async fn die_at((of, part, _): (&str, Part, &[&str]), at: At) -> Option<&'static str> {
    let _watchdog = Watchdog::new(format!("{of}: died at {at:?}"));
    let stopper = Stopper::new(at);
    let mut world = World::with(Options { failpoint: Some(stopper.failpoint()), ..Default::default() }).await;
    let mut life = tokio::spawn(part(world.service.clone(), world.admin.clone(), world.fake.clone()));
    let through = tokio::select! {
        () = stopper.stopped.notified() => false,
        lived = &mut life => { lived.unwrap(); true }
    };
    life.abort();
    let dir = world.crash().await;
    let world = World::reopen(dir, world.fake.clone(), world.clock.clone()).await;
    settle(&world).await;
    world.assert_no_leaks().await;
    if !through {
        converge(&world, of).await;
    }
    for (lease, _) in world.store.live().await.unwrap() {
        world.service.sandboxes().delete(&world.admin, lease.id.as_str(), true).await.unwrap();
    }
    settle(&world).await;
    assert_eq!(world.fake.holds(), []);
    world.assert_no_leaks().await;
    *stopper.place.lock().unwrap()
}

/// After a restart no passing phase lasts forever.
async fn settle(world: &World) {
    for _ in 0..200 {
        let live = world.store.live().await.unwrap();
        let passing = live.iter().any(|(lease, _)| {
            phase_deadline_ms(lease.phase).is_some()
                || matches!(
                    (lease.phase, lease.intent),
                    (Phase::Stopped, Intent::Run | Intent::Archive)
                        | (Phase::Paused, Intent::Run)
                        | (Phase::Archived, Intent::Run | Intent::Stop)
                )
                || (lease.archive.is_some() && lease.phase != Phase::Archived)
        });
        let unfinished = world.store.all_snapshots().await.unwrap();
        let unfinished =
            unfinished.iter().any(|snapshot| snapshot.transient || snapshot.state != SnapshotState::Ready);
        if !passing && !unfinished {
            return;
        }
        world.quiet().await;
    }
    panic!(
        "it does not settle: {:?} {:?}",
        world.store.live().await.unwrap(),
        world.store.all_snapshots().await.unwrap()
    );
}

/// A client that repeats its create with the same key gets one sandbox, or the record of the deleted one. Its content
/// exists, whatever operation was interrupted, and it can be used.
async fn converge(world: &World, of: &str) {
    let (lease, _) = world.service.sandboxes().create(&world.admin, keyed(), true).await.unwrap();
    let resting = [Phase::Running, Phase::Paused, Phase::Stopped, Phase::Archived, Phase::Deleted];
    assert!(resting.contains(&lease.phase), "{lease:?}");
    if lease.phase == Phase::Deleted {
        return;
    }
    let others = world.store.live().await.unwrap().len() - 1;
    // A clone that was acknowledged, or both children of an acknowledged fork: never one of two.
    assert!(matches!(others, 0 | 2 | 4) || (others == 1 && of == "snapshots"), "{others} others");
    let kept_memory = matches!(lease.phase, Phase::Running | Phase::Paused);
    world.service.sandboxes().start(&world.admin, "x", true).await.unwrap();
    let exec = atoll_service::Exec { argv: vec!["echo".to_owned(), "here".to_owned()], ..Default::default() };
    let out = world.service.sandboxes().exec(&world.admin, "x", exec).await.unwrap();
    assert_eq!(out.stdout.to_vec(), b"here\n");
    let files = world.fake.files(&lease.id, |files| files.get("/kept").cloned()).unwrap();
    assert!(files.is_none() || files.as_deref() == Some(b"1") || files.as_deref() == Some(b"2"));
    if of == "pauses" && files.is_some() && kept_memory {
        let memory = world.fake.memory(&lease.id, |bytes| bytes.clone()).unwrap();
        assert_eq!(memory, b"known", "a pause never loses a byte");
    }
    if of == "archives" && lease.phase == Phase::Archived {
        assert_eq!(files.as_deref(), Some(&b"1"[..]), "an archive never loses a byte");
    }
}

async fn every_place(part: usize) {
    let (name, _, expected) = PARTS[part];
    let mut places = std::collections::BTreeSet::new();
    let mut at = 1;
    while let Some(place) = die_at(PARTS[part], At::Nth(at)).await {
        places.insert(place);
        at += 1;
    }
    for place in EVERYWHERE.iter().chain(expected) {
        if !places.contains(place) {
            places.extend(die_at(PARTS[part], At::Place(place)).await);
        }
        assert!(places.contains(place), "{name}: {place} was not died at, of {places:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_dies_at_any_place_leaves_the_old_or_the_new_state() {
    every_place(0).await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_dies_while_it_pauses_or_resumes_loses_no_byte_of_memory() {
    every_place(1).await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_dies_over_a_snapshot_or_a_rollback_leaves_the_old_or_the_new_state() {
    every_place(2).await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_dies_over_a_fork_leaves_all_children_or_none() {
    every_place(3).await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_dies_over_an_archive_leaves_all_files_here_or_there() {
    every_place(4).await;
}

/// Panics at the nth time that any place is reached, once.
fn panic_at(at: usize) -> (FailPoint, Arc<AtomicUsize>) {
    let reached = Arc::new(AtomicUsize::new(0));
    let own = Arc::clone(&reached);
    let hook = FailPoint::new(move |place| {
        // After the last code of an effect nothing can panic; a result that is lost there ends with the phase's
        // deadline.
        let is_time = place != "effect.after" && own.fetch_add(1, Ordering::SeqCst) + 1 == at;
        Box::pin(async move { assert!(!is_time, "a test asked for a panic at {place}") })
    });
    (hook, reached)
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_panics_at_any_place_of_a_pause_loses_no_byte_of_memory() {
    let disk = Pause { memory: Some(MemoryLocation::Disk) };
    // The places of a create come first and are tested elsewhere.
    for at in 8.. {
        let (failpoint, reached) = panic_at(at);
        let world = World::with(Options { failpoint: Some(failpoint), ..Default::default() }).await;
        let id = begin(&world.service, &world.admin, &world.fake).await;
        for ask in [Pause::default(), disk] {
            // Either may fail because of the panic; nothing of it may be lost.
            let _ = world.service.sandboxes().pause(&world.admin, "x", ask, true).await;
            let _ = world.service.sandboxes().resume(&world.admin, "x", true).await;
        }
        settle(&world).await;
        world.service.sandboxes().start(&world.admin, "x", true).await.unwrap();
        for _ in 0..3 {
            world.quiet().await;
        }
        assert!(!world.fake.is_frozen(&id), "it runs, as its lease says");
        let memory = world.fake.memory(&id, |bytes| bytes.clone());
        assert_eq!(memory.as_deref(), Some(&b"known"[..]), "panicked at {at}");
        world.assert_no_leaks().await;
        if reached.load(Ordering::SeqCst) < at {
            break;
        }
    }
}

#[test]
fn every_named_place_belongs_to_a_part_of_a_life() {
    let all: std::collections::BTreeSet<_> = FailPoint::PLACES.iter().copied().collect();
    let passed: std::collections::BTreeSet<_> =
        PARTS.iter().flat_map(|(_, _, places)| places.iter().copied()).collect();
    assert_eq!(passed, all);
}

#[tokio::test(start_paused = true)]
async fn what_ran_is_adopted_with_its_agent() {
    let world = World::new().await;
    let lease = world.create().await;
    let world = world.crash_and_reopen().await;
    assert_eq!(world.get(&lease.id).await, lease);
    let exec =
        atoll_service::Exec { argv: vec!["echo".to_owned(), "still".to_owned()], ..Default::default() };
    let out = world.service.sandboxes().exec(&world.admin, lease.id.as_str(), exec).await.unwrap();
    assert_eq!(out.stdout.to_vec(), b"still\n");
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
    let running = world.service.sandboxes().start(&world.admin, lease.id.as_str(), true).await.unwrap();
    assert_eq!(running.phase, Phase::Running);
}

/// Each passing phase, with a living and a dead instance, over a crash.
#[tokio::test(start_paused = true)]
async fn every_passing_phase_is_finished_after_a_restart() {
    for (call, verb, end) in [
        (ProviderCall::Create, "create", Phase::Running),
        (ProviderCall::Halt, "stop", Phase::Stopped),
        (ProviderCall::Boot, "start", Phase::Running),
        (ProviderCall::Destroy, "delete", Phase::Deleted),
    ] {
        for dies in [false, true] {
            let mut world = World::new().await;
            if call != ProviderCall::Create {
                world.service.sandboxes().create(&world.admin, keyed(), true).await.unwrap();
            }
            if call == ProviderCall::Boot {
                world.service.sandboxes().stop(&world.admin, "x", true).await.unwrap();
            }
            world.fake.script(call, Script::Hold);
            match verb {
                "create" => {
                    drop(world.service.sandboxes().create(&world.admin, keyed(), false).await.unwrap())
                }
                "stop" => drop(world.service.sandboxes().stop(&world.admin, "x", false).await.unwrap()),
                "start" => drop(world.service.sandboxes().start(&world.admin, "x", false).await.unwrap()),
                _ => drop(world.service.sandboxes().delete(&world.admin, "x", false).await.unwrap()),
            }
            let id = world.service.sandboxes().get(&world.admin, "x").await.unwrap().id;
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
    world.service.sandboxes().stop(&world.admin, "x", true).await.unwrap();
    let dir = world.crash().await;
    // Another boot: only wall time can be used.
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
    world.fake.script(ProviderCall::Create, Script::Hold);
    let (lease, _) = world.service.sandboxes().create(&world.admin, keyed(), false).await.unwrap();
    world.quiet().await;
    let service = world.service.clone();
    let ending = tokio::spawn(async move { service.shutdown(std::time::Duration::from_secs(30)).await });
    tokio::task::yield_now().await;
    world.fake.release();
    ending.await.unwrap();
    assert_eq!(world.fake.holds(), [(lease.id, lease.instance)]);
    assert!(world.service.sandboxes().create(&world.admin, CreateSandbox::default(), true).await.is_err());
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
        let error = world.service.access().authenticate(wrong).await.unwrap_err();
        assert_eq!(error.to_string(), "the request has no valid key");
    }
}
