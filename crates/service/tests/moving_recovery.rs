//! Moves whose driver panics or whose server dies: one whole sandbox is left.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use crate::moving::{By, files_of, full, second, settled, to, with, write_files};
use crate::world::{Options, World, breathe};
use atoll_model::{Code, Lease, MoveStage, Phase, SandboxId, SandboxMove, UpdateSandbox};
use atoll_provider::fake::{ProviderCall, Script, TreeFault};
use atoll_service::FailPoint;
use atoll_store::{Admit, Advance, InstanceChange, Store};
use tokio::sync::Notify;

/// The driver panics once at its next write after a place; an empty place means any.
fn panic_after(place: &'static str, armed: &Arc<AtomicBool>) -> FailPoint {
    let (armed, passed) = (Arc::clone(armed), Arc::new(AtomicBool::new(place.is_empty())));
    FailPoint::new(move |reached| {
        let (armed, passed) = (Arc::clone(&armed), Arc::clone(&passed));
        Box::pin(async move {
            passed.fetch_or(reached == place, Ordering::SeqCst);
            let is_due = reached == "advance.before" && passed.load(Ordering::SeqCst);
            if is_due && armed.swap(false, Ordering::SeqCst) {
                panic!("a test panics here");
            }
        })
    })
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_panics_during_a_copy_ends_the_copy_at_once() {
    let (second, armed) = (second(By::Folders), Arc::new(AtomicBool::new(false)));
    let options = Options { failpoint: Some(panic_after("", &armed)), ..with(&second) };
    let world = World::with(options).await;
    let lease = world.create().await;
    write_files(&world.fake, &lease.id);
    second.script(ProviderCall::Create, Script::Hold);
    let (sandboxes, id) = (world.service.sandboxes(), lease.id.as_str());
    sandboxes.move_to(&world.admin, id, to("second"), false).await.unwrap();
    while second.calls(ProviderCall::Create, &lease.id) == 0 {
        breathe().await;
    }
    armed.store(true, Ordering::SeqCst);
    let labels = Some([("changed".to_owned(), "meanwhile".to_owned())].into());
    let change = UpdateSandbox { labels, ..UpdateSandbox::default() };
    sandboxes.update(&world.admin, id, change).await.unwrap_err();
    // The clock stands still: nothing here waits for a time limit.
    let after = settled(&world, &lease.id).await;
    assert_eq!((after.provider.as_str(), after.phase), ("fake", Phase::Running));
    assert!(after.last_move.unwrap().failure.is_some());
    assert_eq!((world.fake.holds().len(), second.holds().len()), (1, 0));
    let again = sandboxes.move_to(&world.admin, id, to("second"), true).await.unwrap();
    assert_eq!((again.provider.as_str(), again.phase), ("second", Phase::Running));
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_panics_after_the_commit_starts_the_sandbox_at_its_target() {
    let (second, armed) = (second(By::Folders), Arc::new(AtomicBool::new(true)));
    let options = Options { failpoint: Some(panic_after("move.committed", &armed)), ..with(&second) };
    let world = World::with(options).await;
    let lease = world.create().await;
    write_files(&world.fake, &lease.id);
    let moved = world.service.sandboxes().move_to(&world.admin, lease.id.as_str(), to("second"), true).await;
    assert!(!armed.load(Ordering::SeqCst), "the driver panicked");
    assert_eq!(moved.unwrap().provider, "second");
    let after = settled(&world, &lease.id).await;
    assert_eq!((after.provider.as_str(), after.phase), ("second", Phase::Running));
    assert_eq!((world.fake.holds().len(), second.holds().len()), (0, 1));
}

/// Records the end of a failed move in place of the driver, whose own write is refused then: as a write that was reported as failed
/// and succeeded.
fn record_first(store: &Arc<OnceLock<Arc<dyn Store>>>, id: &Arc<OnceLock<SandboxId>>) -> FailPoint {
    let (store, id) = (Arc::clone(store), Arc::clone(id));
    FailPoint::new(move |reached| {
        let (store, id) = (Arc::clone(&store), Arc::clone(&id));
        Box::pin(async move {
            let (Some(store), Some(id)) = (store.get(), id.get()) else { return };
            if reached != "advance.before" {
                return;
            }
            let lease = store.lease(id).await.unwrap().unwrap();
            if lease.phase != Phase::Restoring || !lease.is_being_copied() {
                return;
            }
            let moving =
                lease.moving.clone().map(|moving| SandboxMove { stage: MoveStage::Removing, ..moving });
            let generation = lease.generation + 1;
            let lease = Lease { phase: Phase::Stopped, moving, generation, instance: None, ..lease };
            let (instance, admit) = (InstanceChange::Drop, Admit::Nothing);
            store.advance(Advance { lease, instance, admit, events: Vec::new() }).await.unwrap();
        })
    })
}

#[tokio::test(start_paused = true)]
async fn a_failed_move_whose_record_was_reported_as_failed_comes_to_its_end() {
    let (second, store, id) = (second(By::Folders), Arc::default(), Arc::default());
    let world = World::with(Options { failpoint: Some(record_first(&store, &id)), ..with(&second) }).await;
    let lease = world.create().await;
    write_files(&world.fake, &lease.id);
    assert!(store.set(Arc::clone(&world.store)).is_ok() && id.set(lease.id.clone()).is_ok());
    second.fail_unpack(TreeFault::Damage);
    let sandboxes = world.service.sandboxes();
    let failure = sandboxes.move_to(&world.admin, lease.id.as_str(), to("second"), true).await.unwrap_err();
    assert_eq!(failure.code, Code::Damaged, "{failure}");
    let after = settled(&world, &lease.id).await;
    assert_eq!((after.provider.as_str(), after.phase), ("fake", Phase::Running));
    assert_eq!((world.fake.holds().len(), second.holds().len()), (1, 0));
}

/// Where a server dies.
#[derive(Debug, Clone, Copy)]
enum At {
    /// The nth place that is reached. Concurrent work makes it another place in each run.
    Nth(usize),
    /// The first time that this place is reached.
    Place(&'static str),
}

/// Stops there after it was armed, together with everything that reaches any place afterwards.
#[derive(Default)]
struct Stopper {
    /// `None`: not armed.
    at: Mutex<Option<At>>,
    reached: AtomicUsize,
    place: Mutex<Option<&'static str>>,
    stopped: Notify,
}

impl Stopper {
    fn failpoint(self: &Arc<Self>) -> FailPoint {
        let own = Arc::clone(self);
        FailPoint::new(move |place| {
            let own = Arc::clone(&own);
            Box::pin(async move {
                let at = *own.at.lock().unwrap();
                let is_here = match at {
                    None => false,
                    Some(At::Nth(nth)) => own.reached.fetch_add(1, Ordering::SeqCst) + 1 >= nth,
                    Some(At::Place(wanted)) => place == wanted,
                };
                if is_here || own.place.lock().unwrap().is_some() {
                    own.place.lock().unwrap().get_or_insert(place);
                    own.stopped.notify_one();
                    std::future::pending::<()>().await;
                }
            })
        })
    }
}

/// Kills the server at a place of a move, which may be one that fails; returns the place, or `None` if it came to its end.
async fn die_at(by: By, fault: Option<TreeFault>, at: At) -> Option<&'static str> {
    let (second, stopper) = (second(by), Arc::new(Stopper::default()));
    let options = Options { failpoint: Some(stopper.failpoint()), ..with(&second) };
    let mut world = World::with(options).await;
    let lease = world.try_create(full()).await.unwrap();
    write_files(&world.fake, &lease.id);
    if let Some(fault) = fault {
        second.fail_unpack(fault);
    }
    *stopper.at.lock().unwrap() = Some(at);
    let (service, admin, id) = (world.service.clone(), world.admin.clone(), lease.id.clone());
    let mut life = tokio::spawn(async move {
        let ended = service.sandboxes().move_to(&admin, id.as_str(), to("second"), true).await;
        assert_eq!(ended.is_err(), fault.is_some(), "{ended:?}");
        while service.sandboxes().get(&admin, id.as_str()).await.unwrap().moving.is_some() {
            tokio::task::yield_now().await;
        }
    });
    tokio::select! {
        () = stopper.stopped.notified() => {}
        lived = &mut life => lived.unwrap(),
    }
    life.abort();
    let place = *stopper.place.lock().unwrap();
    let dir = world.crash().await;
    let world = World::open(dir, world.fake.clone(), world.clock.clone(), with(&second)).await;
    let after = settled(&world, &lease.id).await;
    let (here, gone) = match after.provider.as_str() {
        "fake" => (&world.fake, &second),
        _ => (&second, &world.fake),
    };
    assert_eq!(after.phase, Phase::Running, "{place:?}: {after:?}");
    assert!(fault.is_none() || after.provider == "fake", "{place:?}: a move that fails goes back");
    assert_eq!(here.holds(), [(lease.id.clone(), after.instance.clone())], "{place:?}");
    assert_eq!(gone.holds(), [], "{place:?}: nothing is left at the other one");
    let expected = if after.provider == "fake" || by == By::Layer { 3 } else { 2 };
    assert_eq!(files_of(here, &lease.id).len(), expected, "{place:?}: it is whole");
    let thread = world.service.sandboxes().thread(&world.admin, "talk").await.unwrap();
    assert_eq!(thread.provider, after.provider, "{place:?}");
    assert_eq!(
        (after.name.as_deref(), after.labels.len(), after.env.get("OWN")),
        (Some("box"), 1, lease.env.get("OWN"))
    );
    // It can be used, moved and deleted.
    let there = if after.provider == "fake" { "second" } else { "fake" };
    let mut again = world.service.sandboxes().move_to(&world.admin, "box", to(there), true).await;
    if again.is_err() && fault.is_some() {
        // The server died before the fault.
        settled(&world, &lease.id).await;
        again = world.service.sandboxes().move_to(&world.admin, "box", to(there), true).await;
    }
    assert_eq!(again.unwrap().provider, there, "{place:?}");
    settled(&world, &lease.id).await;
    world.service.sandboxes().delete(&world.admin, "box", true).await.unwrap();
    assert_eq!((world.fake.holds().len(), second.holds().len()), (0, 0), "{place:?}");
    place
}

async fn every_place(by: By, fault: Option<TreeFault>, without: &[&str]) {
    let mut nth = 1;
    while die_at(by, fault, At::Nth(nth)).await.is_some() {
        nth += 1;
    }
    for place in FailPoint::MOVES.iter().filter(|place| !without.contains(place)) {
        assert_eq!(die_at(by, fault, At::Place(place)).await, Some(*place), "it is never reached");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_dies_anywhere_while_folders_are_moved_leaves_one_whole_sandbox() {
    every_place(By::Folders, None, &["move.aborted"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_dies_anywhere_while_a_layer_is_moved_leaves_one_whole_sandbox() {
    let without = ["move.aborted", "move.source_booted", "move.target_made", "move.halted"];
    every_place(By::Layer, None, &without).await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_dies_anywhere_while_a_move_goes_back_leaves_one_whole_sandbox() {
    let without = ["move.compared", "move.halted", "move.committed"];
    every_place(By::Folders, Some(TreeFault::Damage), &without).await;
}
