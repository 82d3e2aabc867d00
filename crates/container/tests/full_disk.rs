//! A sandbox whose disk is full can be started and cleaned up, however it was made.
#![allow(clippy::unwrap_used)]

use crate::common;
use std::time::Duration;

use crate::common::snapshot_helpers::{collected, files, legacy, plain};
use crate::common::{World, in_world, target};
use atoll_container::EngineConfig;
use atoll_model::Limits;
use atoll_provider::support::*;
use atoll_provider::{Booted, InstanceSpec, Packed, Provider};

/// A sandbox with changes in folders of its template whose disk was filled with large and small writes.
async fn full(world: &World) -> (InstanceSpec, Booted) {
    let mut spec = world.spec();
    spec.limits = Limits { disk_mib: 32, ..Limits::default() };
    let booted = world.create(&spec).await;
    world
        .said(
            &spec,
            &booted,
            "mkdir -p /home/user/a/b /etc/own /usr/local/own; for d in /home/user/a/b /etc /etc/own /usr/local/own /bin /tmp; \
             do echo kept > $d/kept; done",
        )
        .await;
    let fill = "dd if=/dev/urandom of=/root/big bs=64k count=1000 2>/dev/null; sync /root/big; mkdir /root/small; \
         i=0; while [ $i -lt 3000 ] && head -c 1500 /dev/urandom > /root/small/$i; do i=$((i+1)); done 2>/dev/null; sync; \
         ! head -c 300000 /dev/urandom > /root/more; sync; rm -f /root/more";
    world.sh(&spec, &booted, fill).await;
    assert_ne!(
        world.sh(&spec, &booted, "head -c 2000000 /dev/urandom > /root/more; sync /root/more").await.0,
        0
    );
    (spec, booted)
}

/// Every changed folder can be entered, its files can be read and removed, and then there is free space.
async fn tidy_up(world: &World, spec: &InstanceSpec, booted: &Booted) {
    let look = "for d in /home/user/a/b /etc /etc/own /usr/local/own /bin /tmp; do cd $d && cat kept && ls -la >/dev/null || exit 1; done";
    assert_eq!(world.said(spec, booted, look).await, ["kept"; 6].join("\n"));
    world.said(spec, booted, "rm -r /root/big /root/small /root/more /home/user/a; sync").await;
    let again = "i=0; until dd if=/dev/urandom of=/etc/own/again bs=1M count=3 2>/dev/null && sync /etc/own/again; do \
         [ $i -lt 50 ] || exit 1; i=$((i+1)); sleep 0.1; done";
    world.said(spec, booted, again).await;
}

fn comes_back_from_a_pack(adjust: fn(&mut EngineConfig)) {
    in_world(adjust, |world| async {
        let (mut spec, _) = full(&world).await;
        world.engine.halt(&target(&spec)).await.unwrap();
        for _ in 0..3 {
            let stream = collected(world.engine.pack(&files(&spec)).await.unwrap()).await;
            world.destroy(&spec).await;
            world.engine.settle(Duration::from_secs(10)).await.unwrap();
            let whole: Packed = Box::new(std::io::Cursor::new(stream));
            world.engine.unpack(&files(&spec), &spec.limits, whole).await.unwrap();
            spec.instance = common::instance_id();
            let booted = world.engine.boot(&spec).await.unwrap();
            world.sh(&spec, &booted, "head -c 9000000 /dev/urandom > /root/more; sync").await;
            world.engine.halt(&target(&spec)).await.unwrap();
        }
        spec.instance = common::instance_id();
        let booted = world.engine.boot(&spec).await.unwrap();
        tidy_up(&world, &spec, &booted).await;
        world.destroy(&spec).await;
        world
    });
}

#[test]
fn a_full_sandbox_comes_back_from_a_pack_and_can_be_tidied_up() {
    comes_back_from_a_pack(plain);
}

#[test]
fn a_full_sandbox_comes_back_from_a_pack_with_full_quota_groups() {
    comes_back_from_a_pack(legacy);
}

fn copies(adjust: fn(&mut EngineConfig)) {
    in_world(adjust, |world| async {
        let (mut spec, _) = full(&world).await;
        let made = world.snap(&spec).await;
        let fork = world.fork_of(&spec, &made);
        let forked = world.create(&fork).await;
        tidy_up(&world, &fork, &forked).await;
        let back = world.rolled_back(&mut spec, &made).await;
        tidy_up(&world, &spec, &back).await;
        world.destroy(&fork).await;
        world.destroy(&spec).await;
        world.engine.remove_snapshot(&made.0).await.unwrap();
        world
    });
}

#[test]
fn a_copy_of_a_full_sandbox_can_be_tidied_up() {
    copies(plain);
}

#[test]
fn a_copy_of_a_full_sandbox_can_be_tidied_up_with_full_quota_groups() {
    copies(legacy);
}
