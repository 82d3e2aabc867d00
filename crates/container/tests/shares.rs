//! Quota groups of tenants: one tenant stops at its share, everything of a sandbox counts for its tenant, and the groups are
//! right again after a server died between any two steps.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::small_disk::{SmallDisk, eventually, run};
use crate::common::snapshot_helpers::{collected, files, legacy, plain};
use crate::common::{World, in_world_below, target};
use atoll_container::EngineConfig;
use atoll_model::{Limits, VolumeId};
use atoll_provider::support::*;
use atoll_provider::{Booted, InstanceSpec, Provider};
use atoll_storage::{Reserve, TenantNumber, TenantShares};

const MIB: u64 = 1 << 20;
/// The pool of these tests can grow to about so much.
const POOL_MIB: u64 = 2_048;
/// A share of about so much.
const SHARE_MIB: u64 = 160;
/// How far a limit and what counts for it may be off.
const OFF_MIB: u64 = 24;
const RESERVE: u64 = 256 * MIB;

/// Runs a test with shares of about [`SHARE_MIB`].
fn with_shares<F: Future<Output = World>>(
    adjust: fn(&mut EngineConfig),
    test: impl FnOnce(World) -> F + Send + 'static,
) {
    let disk = SmallDisk::new(POOL_MIB + 640);
    let adjust = move |config: &mut EngineConfig| {
        config.disk = reserve();
        adjust(config);
    };
    in_world_below(&disk.at(), adjust, test);
}

fn reserve() -> std::sync::Arc<Reserve> {
    Reserve::with_shares(RESERVE, TenantShares::new(1_000 * SHARE_MIB / POOL_MIB))
}

fn shares(world: &World) -> &TenantShares {
    world.config.disk.shares()
}

/// Bytes and limits of the groups above subvolumes, by their names in sysfs.
fn groups(world: &World) -> BTreeMap<String, (u64, u64)> {
    let pool = world.config.data.join("pool");
    run("btrfs", &["filesystem", "sync"], &pool);
    let folder = Path::new("/sys/fs/btrfs").join(run("findmnt", &["-no", "UUID"], &pool)).join("qgroups");
    let figure = |group: &Path, name: &str| -> u64 {
        std::fs::read_to_string(group.join(name)).unwrap().trim().parse().unwrap()
    };
    let entries = std::fs::read_dir(folder).unwrap().flatten().filter(|entry| entry.path().is_dir());
    let above = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().unwrap();
        let is_above = name.starts_with("1_") || name.starts_with("2_");
        let path = entry.path();
        is_above.then(|| (name, (figure(&path, "referenced"), figure(&path, "max_referenced"))))
    });
    above.collect()
}

fn group_of(tenant: &str) -> String {
    format!("1_{}", TenantNumber::of(tenant).value())
}

fn held_mib(world: &World, tenant: &str) -> u64 {
    groups(world)[&group_of(tenant)].0 / MIB
}

/// The group above all counts what those below it count, each byte once.
async fn assert_sums(world: &World) {
    // Blocks may be freed between two reads.
    eventually("the sums are right", || {
        let groups = groups(world);
        let below = groups.iter().filter(|(name, _)| name.starts_with("1_"));
        groups["2_1"].0 == below.map(|(_, (bytes, _))| *bytes).sum::<u64>()
    })
    .await;
}

/// MiB that can be written to `file`; also where not even the file can be made.
async fn written_mib(world: &World, spec: &InstanceSpec, booted: &Booted, file: &str) -> u64 {
    let line = format!(
        "(dd if=/dev/urandom of={file} bs=1M count=200; sync {file}) 2>/dev/null; stat -c %s {file} 2>/dev/null || echo 0"
    );
    world.sh(spec, booted, &line).await.1.lines().last().unwrap().parse::<u64>().unwrap() >> 20
}

fn owned(world: &World, tenant: &str, disk_mib: u32) -> InstanceSpec {
    let limits = Limits { disk_mib, ..Limits::default() };
    let spec = InstanceSpec { limits, ..world.spec() };
    shares(world).assign(spec.sandbox.as_str(), tenant);
    spec
}

#[test]
fn a_tenant_stops_at_its_share_and_leaves_the_rest_to_others() {
    with_shares(plain, |world| async {
        shares(&world).set_tenants(["greedy", "modest"]);
        let modest = owned(&world, "modest", 120);
        let modest_booted = world.create(&modest).await;
        let (first, second) = (owned(&world, "greedy", 1_000), owned(&world, "greedy", 1_000));
        let (booted, second_booted) = (world.create(&first).await, world.create(&second).await);
        let written = written_mib(&world, &first, &booted, "/root/big").await;
        let more = written_mib(&world, &second, &second_booted, "/root/big").await;
        let both = written + more;
        assert!((SHARE_MIB - OFF_MIB..=SHARE_MIB + OFF_MIB).contains(&both), "{both} MiB were written");
        // A sandbox, a fork and a volume of a full tenant are refused in words; what is there stops and starts.
        let third = owned(&world, "greedy", 64);
        let refused = world.engine_create(&third).await.unwrap_err();
        assert!(refused.contains("share of this tenant"), "{refused}");
        let volume = VolumeId::from_entropy([7; 20]);
        shares(&world).assign(volume.as_str(), "greedy");
        assert!(world.engine.create_volume(&volume, Some(64)).await.is_err());
        world.engine.halt(&target(&first)).await.unwrap();
        let again = InstanceSpec { instance: crate::common::instance_id(), ..first.clone() };
        let booted = world.engine.boot(&again).await.unwrap();
        world.said(&again, &booted, "test -s /root/big").await;
        // The other writes all that it was promised.
        let own = written_mib(&world, &modest, &modest_booted, "/root/own").await;
        assert!(own >= 110, "only {own} of 120 MiB");
        // What the first removes, it may write again.
        world.said(&again, &booted, "rm /root/big; sync").await;
        eventually("the removed bytes are free", || held_mib(&world, "greedy") < SHARE_MIB / 2 + OFF_MIB)
            .await;
        assert!(written_mib(&world, &again, &booted, "/root/again").await >= written.min(40));
        assert_sums(&world).await;
        for spec in [&modest, &again, &second] {
            world.destroy(spec).await;
        }
        world
    });
}

#[test]
fn a_create_waits_for_the_space_of_removed_sandboxes() {
    with_shares(plain, |world| async {
        shares(&world).set_tenants(["greedy", "modest"]);
        let first = owned(&world, "greedy", 1_000);
        let booted = world.create(&first).await;
        written_mib(&world, &first, &booted, "/root/big").await;
        let next = owned(&world, "greedy", 64);
        assert!(world.engine_create(&next).await.unwrap_err().contains("share of this tenant"));
        // The kernel would free its blocks within half a minute.
        for _ in 0..2 {
            world.destroy(&first).await;
            let next = owned(&world, "greedy", 64);
            world.create(&next).await;
            world.destroy(&next).await;
            let booted = world.create(&first).await;
            written_mib(&world, &first, &booted, "/root/big").await;
        }
        // What a snapshot holds does not become free, and is not waited for.
        let snapshot = world.snap(&first).await;
        world.destroy(&first).await;
        let begun = std::time::Instant::now();
        let refused = world.engine_create(&owned(&world, "greedy", 64)).await.unwrap_err();
        assert!(refused.contains("share of this tenant") && !refused.contains("being freed"), "{refused}");
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        world.engine.remove_snapshot(&snapshot.0).await.unwrap();
        world
    });
}

#[test]
fn everything_of_a_sandbox_counts_for_its_tenant_until_it_is_gone() {
    with_shares(plain, |world| async {
        let tenants = ["one", "two"];
        shares(&world).set_tenants(tenants);
        let mut spec = owned(&world, "one", 100);
        let booted = world.create(&spec).await;
        world.said(&spec, &booted, "dd if=/dev/urandom of=/root/f bs=1M count=20 2>/dev/null; sync").await;
        let near = |found: u64, wanted: u64| found.abs_diff(wanted) <= 2;
        assert!(near(held_mib(&world, "one"), 20), "{:?}", groups(&world));
        // A snapshot and a fork hold the same bytes.
        let snapshot = world.snap(&spec).await;
        let fork = world.fork_of(&spec, &snapshot);
        shares(&world).assign(fork.sandbox.as_str(), "one");
        let fork_booted = world.create(&fork).await;
        world
            .said(&fork, &fork_booted, "dd if=/dev/urandom of=/root/g bs=1M count=10 2>/dev/null; sync")
            .await;
        assert!(near(held_mib(&world, "one"), 30), "{:?}", groups(&world));
        // A rollback exchanges the files.
        world.rolled_back(&mut spec, &snapshot).await;
        // So does a move: packed, removed, unpacked.
        world.engine.halt(&target(&spec)).await.unwrap();
        let stream = collected(world.engine.pack(&files(&spec)).await.unwrap()).await;
        world.destroy(&spec).await;
        world.engine.settle(Duration::from_secs(10)).await.unwrap();
        // The snapshot holds the bytes of the sandbox that is gone.
        assert!(near(held_mib(&world, "one"), 30), "{:?}", groups(&world));
        let packed: atoll_provider::Packed = Box::new(std::io::Cursor::new(stream));
        world.engine.unpack(&files(&spec), &spec.limits, packed).await.unwrap();
        assert!(near(held_mib(&world, "one"), 50), "{:?}", groups(&world));
        // A volume.
        let volume = VolumeId::from_entropy([9; 20]);
        shares(&world).assign(volume.as_str(), "two");
        world.engine.create_volume(&volume, Some(50)).await.unwrap();
        let data = world.config.data.join("pool/volumes").join(volume.as_str()).join("files/data");
        std::fs::write(&data, noise(8)).unwrap();
        assert!(near(held_mib(&world, "two"), 8), "{:?}", groups(&world));
        assert_sums(&world).await;
        // When all of a tenant is gone, so is its group.
        world.engine.remove_snapshot(&snapshot.0).await.unwrap();
        for spec in [&spec, &fork] {
            world.destroy(spec).await;
        }
        world.engine.remove_volume(&volume).await.unwrap();
        world.engine.settle(Duration::from_secs(10)).await.unwrap();
        shares(&world).set_tenants(["three"]);
        eventually("the groups of removed tenants are gone", || {
            let groups = groups(&world);
            !tenants.iter().any(|tenant| groups.contains_key(&group_of(tenant)))
        })
        .await;
        world
    });
}

#[test]
fn memory_on_disk_takes_its_part_of_the_share() {
    with_shares(plain, |world| async {
        shares(&world).set_tenants(["one", "two"]);
        let spec = owned(&world, "one", 1_000);
        let booted = world.create(&spec).await;
        let limit = |world: &World| groups(world)[&group_of("one")].1 / MIB;
        let before = limit(&world);
        let pool = world.config.data.join("pool");
        let (checkpoint, snapshot) = (pool.join("checkpoints/one-of-another"), pool.join("snapshots/kept"));
        for (id, folder) in [("one-of-another", checkpoint.clone()), ("kept", snapshot.join("memory"))] {
            shares(&world).assign(id, "one");
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("pages"), noise(30)).unwrap();
        }
        eventually("the limit falls", || limit(&world).abs_diff(before - 60) <= 4).await;
        let written = written_mib(&world, &spec, &booted, "/root/a").await;
        assert!(written.abs_diff(before - 60) <= OFF_MIB, "{written} MiB beside 60 of {before}");
        for folder in [checkpoint, snapshot] {
            std::fs::remove_dir_all(folder).unwrap();
        }
        eventually("the limit is as before", || limit(&world).abs_diff(before) <= 4).await;
        world.destroy(&spec).await;
        world
    });
}

fn noise(mib: usize) -> Vec<u8> {
    use std::io::Read;
    let mut bytes = vec![0; mib << 20];
    std::fs::File::open("/dev/urandom").unwrap().read_exact(&mut bytes).unwrap();
    bytes
}

#[test]
fn the_only_tenant_has_no_limit_until_a_second_one_comes() {
    with_shares(plain, |world| async {
        shares(&world).set_tenants(["only"]);
        let spec = owned(&world, "only", 1_000);
        let booted = world.create(&spec).await;
        assert_eq!(written_mib(&world, &spec, &booted, "/root/a").await, 200, "the whole pool is its own");
        assert_eq!(groups(&world)[&group_of("only")].1, 0, "no limit");
        // Its files are counted already, and it is over its share at once.
        shares(&world).add_tenant("second");
        eventually("the limit is set", || groups(&world)[&group_of("only")].1 > 0).await;
        assert_eq!(written_mib(&world, &spec, &booted, "/root/b").await, 0);
        let other = owned(&world, "second", 100);
        let other_booted = world.create(&other).await;
        assert!(written_mib(&world, &other, &other_booted, "/root/c").await >= 90);
        // Alone again.
        world.destroy(&other).await;
        shares(&world).set_tenants(["only"]);
        eventually("the limit is lifted", || groups(&world)[&group_of("only")].1 == 0).await;
        assert_eq!(written_mib(&world, &spec, &booted, "/root/b").await, 200);
        world.destroy(&spec).await;
        world
    });
}

/// Takes quota groups apart.
mod kernel {
    use std::path::Path;

    use crate::common::small_disk::run;

    pub(super) fn assign(pool: &Path, member: u64, group: &str) {
        run("btrfs", &["qgroup", "assign", "--no-rescan", &format!("0/{member}"), group], pool);
    }

    pub(super) fn remove(pool: &Path, member: &str, group: &str) {
        run("btrfs", &["qgroup", "remove", "--no-rescan", member, group], pool);
    }

    pub(super) fn create(pool: &Path, group: &str) {
        run("btrfs", &["qgroup", "create", group], pool);
    }

    pub(super) fn limit(pool: &Path, group: &str, limit: &str) {
        run("btrfs", &["qgroup", "limit", limit, group], pool);
    }

    pub(super) fn subvolume(at: &Path) -> u64 {
        run("btrfs", &["inspect-internal", "rootid"], at).parse().unwrap()
    }
}

const ALL: &str = "2/1";
const NO_TENANT: &str = "1/1";

fn group_named(tenant: &str) -> String {
    format!("1/{}", TenantNumber::of(tenant).value())
}

#[test]
fn groups_are_right_again_after_a_server_died_between_any_two_steps() {
    with_shares(plain, |world| async {
        shares(&world).set_tenants(["one", "two"]);
        let spec = owned(&world, "one", 100);
        let booted = world.create(&spec).await;
        world.said(&spec, &booted, "dd if=/dev/urandom of=/root/f bs=1M count=20 2>/dev/null; sync").await;
        world.engine.halt(&target(&spec)).await.unwrap();
        let layer: PathBuf = world.layer(&spec);
        let member = kernel::subvolume(&layer);
        let group = group_named("one");
        type Step = (&'static str, fn(&Path, u64, &str));
        let deaths: [Step; 6] = [
            ("the layer had left the group of no tenant", |pool, member, group| {
                kernel::remove(pool, &format!("0/{member}"), group);
            }),
            ("the layer was in the group of no tenant still", |pool, member, group| {
                kernel::remove(pool, &format!("0/{member}"), group);
                kernel::assign(pool, member, NO_TENANT);
            }),
            ("the group was not below the one above all yet", |pool, _, group| {
                kernel::remove(pool, group, ALL);
            }),
            ("the group had no limit yet", |pool, _, group| kernel::limit(pool, group, "none")),
            ("the group of another tenant was just made", |pool, _, _| {
                kernel::create(pool, &group_named("two"))
            }),
            ("an older server counted the layer for no tenant", |pool, member, group| {
                kernel::remove(pool, &format!("0/{member}"), group);
                kernel::assign(pool, member, NO_TENANT);
                kernel::limit(pool, NO_TENANT, "1M");
            }),
        ];
        let mut world = world;
        for (what, undo) in deaths {
            let pool = world.config.data.join("pool");
            undo(&pool, member, &group);
            // The table of owners was in the memory of the server that died.
            world.config.disk = reserve();
            world = world.reopen().await;
            shares(&world).set_tenants(["one", "two"]);
            shares(&world).assign(spec.sandbox.as_str(), "one");
            world.engine.adopt(vec![known(&spec)], Vec::new()).await.unwrap();
            let is_right = |groups: &BTreeMap<String, (u64, u64)>| {
                let (bytes, limit) = groups[&group_of("one")];
                bytes / MIB == 20 && limit.abs_diff(SHARE_MIB * MIB) < OFF_MIB * MIB
            };
            eventually(what, || is_right(&groups(&world))).await;
            assert_sums(&world).await;
            assert_eq!(groups(&world)["1_1"].1, 0, "{what}: the group of no tenant has no limit");
        }
        world.destroy(&spec).await;
        world
    });
}

fn known(spec: &InstanceSpec) -> atoll_provider::KnownSandbox {
    atoll_provider::KnownSandbox {
        sandbox: spec.sandbox.clone(),
        instance: None,
        storage: spec.storage,
        limits: spec.limits,
        network: std::sync::Arc::clone(&spec.network),
        paused: false,
    }
}

#[test]
fn without_simple_quotas_the_share_is_for_admission_to_hold() {
    with_shares(legacy, |world| async {
        shares(&world).set_tenants(["one", "two"]);
        let share = world.engine.node().await.unwrap().disk_share.unwrap();
        assert!(!share.is_enforced);
        assert!(share.mib.abs_diff(SHARE_MIB) < OFF_MIB, "{share:?}");
        let spec = owned(&world, "one", 50);
        let booted = world.create(&spec).await;
        assert!(written_mib(&world, &spec, &booted, "/root/a").await < 50, "its own limit holds");
        assert_eq!(groups(&world), BTreeMap::new());
        world.destroy(&spec).await;
        world
    });
}
