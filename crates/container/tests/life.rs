//! The life of instances on a real kernel.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod common;

use std::time::Instant;

use atoll_provider::Provider;
use common::{in_world, target};

#[test]
fn a_sandbox_is_made_answers_and_leaves_nothing() {
    in_world(|_| {}, |world| async {
        let spec = world.spec();
        let booted = world.create(&spec).await;
        assert!(!booted.from_pool);
        eprintln!("{:#?}", world.engine.timings());
        let stream = world.engine.dial(&target(&spec), 49_983).await;
        assert!(stream.is_ok());
        world.destroy(&spec).await;
        assert!(world.engine.dial(&target(&spec), 49_983).await.is_err());
        world
    });
}

#[test]
fn cold_starts_are_fast() {
    in_world(|_| {}, |world| async {
        let mut creates = Vec::new();
        let mut ends = Vec::new();
        for _ in 0..40 {
            let spec = world.spec();
            let begun = Instant::now();
            world.create(&spec).await;
            creates.push(begun.elapsed());
            let begun = Instant::now();
            world.destroy(&spec).await;
            ends.push(begun.elapsed());
            tokio::time::sleep(std::time::Duration::from_millis(30)).await;
        }
        creates.sort();
        ends.sort();
        eprintln!("create p50 {:?} p95 {:?}; destroy p50 {:?}", creates[20], creates[38], ends[20]);
        eprintln!("{:?}", world.engine.timings());
        world
    });
}
