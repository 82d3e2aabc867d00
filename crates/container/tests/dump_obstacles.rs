//! Processes that are hard or impossible to dump, on a real kernel: the first are dumped, the second are reported by
//! name.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{World, chain, in_world, instance_id, target};
use atoll_model::MemoryLocation;
use atoll_provider::support::*;
use atoll_provider::{Booted, InstanceSpec, Provider, ProviderError};

/// A sandbox in which `caught` runs with this argument; `None` without CRIU.
async fn running(world: &World, how: &str) -> Option<(InstanceSpec, Booted)> {
    if !world.engine.capabilities().checkpoints {
        assert!(std::env::var_os("CI").is_none(), "CI has a CRIU");
        eprintln!("not run: no CRIU");
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("caught");
    let source =
        Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("tests/caught.c");
    assert!(Command::new("cc").args(["-static", "-o"]).arg(&program).arg(source).status().unwrap().success());
    let spec = world.spec();
    let booted = world.create(&spec).await;
    let agent = world.agent(&spec, &booted);
    agent.write_bytes("/caught", Some("root"), Some(0o755), std::fs::read(program).unwrap()).await.unwrap();
    world.sh(&spec, &booted, "mkdir /root/deep; echo > /root/deep/watched").await;
    let line = format!(
        "setsid /caught {how} </dev/null >/dev/null 2>&1 & for i in $(seq 2000); do [ -e /tmp/caught ] && break; usleep 10000; done; usleep 200000; pidof caught"
    );
    let (code, said) = world.sh(&spec, &booted, &line).await;
    assert_eq!(code, 0, "{said}");
    Some((spec, booted))
}

/// The process can't be dumped, the caller gets the reason at once, and the process continues.
fn is_refused(how: &'static str, why: &'static str) {
    in_world(
        |_| {},
        move |world| async move {
            let Some((spec, booted)) = running(&world, how).await else { return world };
            assert_eq!(world.engine.pause(&target(&spec)).await.unwrap(), MemoryLocation::Live);
            let begun = Instant::now();
            let refused = world.engine.checkpoint(&target(&spec)).await;
            assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
            match refused {
                Err(ProviderError::Unsupported { hint, .. }) => assert!(hint.contains(why), "{hint}"),
                other => panic!("{other:?}"),
            }
            assert_eq!(world.engine.pause(&target(&spec)).await.unwrap(), MemoryLocation::Live);
            world.engine.resume(&target(&spec)).await.unwrap();
            assert_eq!(
                world.sh(&spec, &booted, "pidof caught >/dev/null && echo on").await,
                (0, "on".into())
            );
            world.destroy(&spec).await;
            world
        },
    );
}

#[test]
fn one_that_waits_in_vfork_for_ever_is_named() {
    is_refused("stuck", "process caught waits in vfork");
}

#[test]
fn one_that_is_traced_is_named() {
    is_refused("traced", "process caught is traced");
}

#[test]
fn one_that_maps_more_than_can_be_restored_is_named() {
    is_refused("wide", "process caught has mapped");
}

#[test]
fn one_that_watches_a_file_goes_on_watching() {
    in_world(
        |_| {},
        |world| async {
            let Some((mut spec, booted)) = running(&world, "watch").await else { return world };
            world.engine.pause(&target(&spec)).await.unwrap();
            let done = world.engine.checkpoint(&target(&spec)).await;
            done.unwrap_or_else(|error| panic!("checkpoint: {error:?}"));
            spec.instance = instance_id();
            let restored = world.engine.restore(&spec).await.unwrap();
            let booted = Booted { agent_token: booted.agent_token, ..restored };
            let line =
                "[ ! -e /tmp/seen ] && echo more >> /root/deep/watched && usleep 200000 && [ -e /tmp/seen ]";
            assert_eq!(world.sh(&spec, &booted, line).await, (0, String::new()));
            world.destroy(&spec).await;
            world
        },
    );
}

#[test]
fn one_that_is_often_in_vfork_is_caught_between() {
    in_world(
        |_| {},
        |world| async {
            let Some((mut spec, mut booted)) = running(&world, "busy").await else { return world };
            for _ in 0..4 {
                world.engine.pause(&target(&spec)).await.unwrap();
                let done = world.engine.checkpoint(&target(&spec)).await;
                done.unwrap_or_else(|error| panic!("checkpoint: {}", chain(&error)));
                spec.instance = instance_id();
                let restored = world.engine.restore(&spec).await.unwrap();
                booted = Booted { agent_token: booted.agent_token, ..restored };
                let on = world.sh(&spec, &booted, "pidof caught >/dev/null && echo on").await;
                assert_eq!(on, (0, "on".into()));
            }
            world.destroy(&spec).await;
            world
        },
    );
}
