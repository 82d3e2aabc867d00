//! A full disk: a create is refused, and the instance that the provider began meanwhile is removed; the end of a move is recorded
//! later. Each test needs a process of its own, since its limit applies to the whole process.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::world::{Options, World};
use atoll_model::{Code, CreateSandbox};
use atoll_service::FailPoint;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// No file of this process may grow beyond `bytes`.
fn limit_files(bytes: Option<u64>) {
    setrlimit(Resource::Fsize, Rlimit { current: bytes, ..getrlimit(Resource::Fsize) }).unwrap();
}

/// Runs a test in which files cannot grow at times.
fn run(test: impl Future<Output = ()>) {
    // A write beyond the limit also sends a signal; it is blocked here and so in every thread, so that only the error
    // remains.
    let mut signals = nix::sys::signal::SigSet::empty();
    signals.add(nix::sys::signal::Signal::SIGXFSZ);
    signals.thread_block().unwrap();
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(test);
}

#[test]
fn a_create_that_the_disk_does_not_take_leaves_nothing() {
    run(async {
        let world = World::new().await;
        world.create().await;
        let held = world.fake.holds().len();
        limit_files(Some(4_096));
        let refused = world.try_create(CreateSandbox::default()).await;
        limit_files(None);
        assert_eq!(refused.unwrap_err().code, Code::NoCapacity);
        assert_eq!(world.fake.holds().len(), held, "an instance that nobody knows is left");
        world.create().await;
        assert_eq!(world.fake.holds().len(), held + 1);
    });
}

/// The disk is full when the source is removed, and has room again when the driver writes for the second time.
#[test]
fn the_end_of_a_move_that_the_disk_does_not_take_is_recorded_later() {
    run(async {
        let writes = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&writes);
        let failpoint = FailPoint::new(move |place| {
            if place == "move.removed" {
                counted.store(1, Ordering::SeqCst);
                limit_files(Some(4_096));
            }
            let is_armed = counted.load(Ordering::SeqCst) > 0;
            if is_armed && place == "advance.before" && counted.fetch_add(1, Ordering::SeqCst) > 1 {
                limit_files(None);
            }
            Box::pin(std::future::ready(()))
        });
        let second = crate::moving::second(crate::moving::By::Folders);
        let options = Options { failpoint: Some(failpoint), ..crate::moving::with(&second) };
        let world = World::with(options).await;
        let lease = world.create().await;
        // A stopped sandbox is not started at the target: the end of the move is the only write.
        world.service.sandboxes().stop(&world.admin, lease.id.as_str(), true).await.unwrap();
        crate::moving::moved(&world, &lease).await.unwrap();
        let begun = Instant::now();
        while world.get(&lease.id).await.moving.is_some() {
            assert!(begun.elapsed() < Duration::from_secs(30), "the sandbox moves for ever");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(writes.load(Ordering::SeqCst) > 2, "the first write failed");
    });
}
