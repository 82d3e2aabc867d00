//! A full disk: the create is refused, and the instance that the provider began meanwhile is removed. The test has a
//! file of its own, since its limit applies to the whole process.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::world::World;
use atoll_model::{Code, CreateSandbox};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// No file of this process may grow beyond `bytes`.
fn limit_files(bytes: Option<u64>) {
    setrlimit(Resource::Fsize, Rlimit { current: bytes, ..getrlimit(Resource::Fsize) }).unwrap();
}

#[test]
fn a_create_that_the_disk_does_not_take_leaves_nothing() {
    // A write beyond the limit also sends a signal; it is blocked here and so in every thread, so that only the error
    // remains.
    let mut signals = nix::sys::signal::SigSet::empty();
    signals.add(nix::sys::signal::Signal::SIGXFSZ);
    signals.thread_block().unwrap();
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(
        async {
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
        },
    );
}
