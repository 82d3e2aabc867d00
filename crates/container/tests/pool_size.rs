//! The size of the pool's file: it shrinks when it is mostly free, and a full disk of the host is never an I/O error inside.
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::MetadataExt;

use crate::common::small_disk::{Filler, SmallDisk, eventually, run};
use crate::common::{World, in_world_below, instance_id, target};
use atoll_model::Limits;
use atoll_provider::support::*;
use atoll_provider::{InstanceSpec, Provider};
use atoll_storage::Reserve;

const GIB: u64 = 1 << 30;

fn file_size(world: &World) -> u64 {
    std::fs::metadata(world.config.data.join("pool.btrfs")).unwrap().len()
}

/// What btrfs uses of the file.
fn pool_size(world: &World) -> u64 {
    let disk = rustix::fs::statvfs(world.config.data.join("pool")).unwrap();
    disk.f_blocks * disk.f_frsize
}

fn limited(world: &World, disk_mib: u32) -> InstanceSpec {
    InstanceSpec { limits: Limits { disk_mib, ..Limits::default() }, ..world.spec() }
}

fn assert_no_device_errors(world: &World) {
    let stats = run("btrfs", &["device", "stats", "--check"], &world.config.data.join("pool"));
    assert!(stats.lines().all(|line| line.ends_with(" 0")), "{stats}");
}

#[test]
fn a_pool_that_is_mostly_free_shrinks_and_a_full_host_is_no_error_inside() {
    let disk = SmallDisk::new(10 << 10);
    let at = disk.at();
    let adjust = |config: &mut atoll_container::EngineConfig| config.disk = Reserve::new(256 << 20);
    in_world_below(&disk.at(), adjust, |world| async move {
        let kept = limited(&world, 1_000);
        let booted = world.create(&kept).await;
        let write = "dd if=/dev/urandom of=/root/kept bs=1M count=40 2>/dev/null; sync; md5sum < /root/kept";
        let sum = world.said(&kept, &booted, write).await;
        // A sandbox that may write much makes the pool grow ahead of it.
        let large = limited(&world, 7_000);
        let large_booted = world.create(&large).await;
        eventually("the pool grows", || file_size(&world) >= 7 * GIB).await;
        world
            .said(&large, &large_booted, "dd if=/dev/urandom of=/root/f bs=1M count=300 2>/dev/null; sync")
            .await;
        // So that what is kept lies behind it.
        world.said(&kept, &booted, "cp /root/kept /root/copy; sync").await;
        world.destroy(&large).await;
        eventually("the pool shrinks", || file_size(&world) <= 7 * GIB / 2).await;
        let filler = Filler::new(&at);
        assert_eq!(file_size(&world), pool_size(&world));
        let file = std::fs::metadata(world.config.data.join("pool.btrfs")).unwrap();
        assert!(file.blocks() * 512 >= file.len(), "every byte of the file is allocated: {file:?}");
        // Everything that the pool has is written to, with no room on the host.
        let more = Limits { disk_mib: 4_000, ..kept.limits };
        world.engine.resize(&target(&kept), &more).await.unwrap();
        let full = "dd if=/dev/zero of=/root/full bs=1M 2>&1; sync; ls /root; md5sum < /root/kept; md5sum < /root/copy";
        let said = world.sh(&kept, &booted, full).await.1;
        assert!(said.contains("quota exceeded") || said.contains("No space left"), "{said}");
        assert!(!said.contains("Input/output") && said.matches(sum.as_str()).count() == 2, "{said}");
        assert_no_device_errors(&world);
        world.said(&kept, &booted, "rm /root/full; sync; echo more > /root/more").await;
        // With room on the host it grows again.
        let before = file_size(&world);
        drop(filler);
        eventually("the pool grows again", || file_size(&world) > before).await;
        world.destroy(&kept).await;
        // A server that dies between two steps leaves a file that is too long.
        let file =
            std::fs::OpenOptions::new().write(true).open(world.config.data.join("pool.btrfs")).unwrap();
        let flags = rustix::fs::FallocateFlags::empty();
        rustix::fs::fallocate(&file, flags, file_size(&world), 512 << 20).unwrap();
        let world = world.reopen().await;
        world.engine.adopt(Vec::new(), Vec::new()).await.unwrap();
        let is_right = || file_size(&world) == pool_size(&world) && file_size(&world) <= 7 * GIB / 2;
        eventually("the file has the size of the pool", is_right).await;
        let again = InstanceSpec { instance: instance_id(), ..limited(&world, 500) };
        let booted = world.create(&again).await;
        world.said(&again, &booted, "dd if=/dev/zero of=/root/f bs=1M count=400 2>/dev/null && sync").await;
        assert_no_device_errors(&world);
        world.destroy(&again).await;
        world
    });
}
