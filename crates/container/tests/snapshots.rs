//! Snapshots, forks and rollback of files on a real kernel.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use crate::common;
use std::path::Path;
use std::time::Duration;

use crate::common::snapshot_helpers::{
    files, folders, in_pool, is_damaged, legacy, plain, snapshot_id, writable_mib,
};
use crate::common::{World, chain, in_world, target};
use atoll_container::EngineConfig;
use atoll_model::{Limits, SnapshotId, Storage};
use atoll_provider::support::*;
use atoll_provider::{Booted, FilesOrigin, InstanceSpec, KnownSandbox, Provider, ProviderError, RolledBack};

/// Checks that the lines are consecutive numbers; returns the last one.
fn last_number(path: &Path) -> u64 {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    assert!(text.is_empty() || text.ends_with('\n'), "torn: {:?}", &text[text.len().saturating_sub(20)..]);
    for (line, number) in text.lines().zip(1u64..) {
        assert_eq!(line.parse::<u64>().unwrap(), number);
    }
    text.lines().count() as u64
}

fn moment(adjust: fn(&mut EngineConfig), count: u32) {
    in_world(adjust, move |world| async move {
        let spec = world.spec();
        let booted = world.create(&spec).await;
        let writer = "(i=0; while :; do i=$((i+1)); echo $i >> /root/a; echo $i >> /root/b; done) >/dev/null 2>&1 & \
             (while :; do dd if=/dev/zero of=/root/noise bs=64k count=64 2>/dev/null; done) >/dev/null 2>&1 & echo on";
        world.said(&spec, &booted, writer).await;
        let mut before = 0;
        for _ in 0..count {
            tokio::time::sleep(Duration::from_millis(30)).await;
            let (id, made) = world.snap(&spec).await;
            let at = world.snapshot_files(&id);
            let (a, b) = (last_number(&at.join("root/a")), last_number(&at.join("root/b")));
            eprintln!("stood still for {:?} at {a}, {b}", made.stood_still);
            assert!(a == b || a == b + 1, "b without its a: {a}, {b}");
            assert!(a >= before);
            before = a;
            world.engine.verify_snapshot(&id, &made.seal).await.unwrap();
            world.engine.remove_snapshot(&id).await.unwrap();
            world.engine.remove_snapshot(&id).await.unwrap();
        }
        let now: u64 = world.said(&spec, &booted, "tail -n 1 /root/a").await.parse().unwrap();
        assert!(now > before, "it does not run on: {now} {before}");
        world.destroy(&spec).await;
        assert!(in_pool(&world, "snapshots").is_empty());
        world
    });
}

#[test]
fn a_snapshot_of_a_sandbox_at_work_is_one_moment_of_it() {
    moment(plain, 12);
}

#[test]
fn a_snapshot_on_plain_folders_is_one_moment_too() {
    moment(folders, 4);
}

#[test]
fn a_frozen_sandbox_stays_frozen_over_a_snapshot_and_a_stopped_one_can_be_kept() {
    in_world(plain, |world| async {
        let spec = world.spec();
        let booted = world.create(&spec).await;
        world.said(&spec, &booted, "echo 1 > /root/x").await;
        world.engine.pause(&target(&spec)).await.unwrap();
        let (_, made) = world.snap(&spec).await;
        assert_eq!(made.stood_still, Duration::ZERO);
        let home = format!("atoll-{}/{}", world.engine.block(), booted.facts["cgroup"].as_str().unwrap());
        let (state, frozen) = match world.engine.cgroup_layout() {
            "v1" => (format!("/sys/fs/cgroup/freezer/{home}/freezer.state"), "FROZEN"),
            _ => (format!("/sys/fs/cgroup/{home}/cgroup.events"), "frozen 1"),
        };
        let state = std::fs::read_to_string(state).unwrap();
        assert!(state.lines().any(|line| line == frozen), "{state}");
        world.engine.resume(&target(&spec)).await.unwrap();
        world.engine.halt(&target(&spec)).await.unwrap();
        let id = snapshot_id();
        world.engine.snapshot(&files(&spec), &id, false).await.unwrap();
        assert_eq!(std::fs::read_to_string(world.snapshot_files(&id).join("root/x")).unwrap(), "1\n");
        world.destroy(&spec).await;
        world.engine.settle(Duration::from_secs(10)).await.unwrap();
        let gone = world.engine.snapshot(&files(&spec), &snapshot_id(), false).await;
        assert!(matches!(gone, Err(ProviderError::Gone { .. })), "{gone:?}");
        let mut spec = world.spec();
        spec.storage = Storage::Memory;
        world.create(&spec).await;
        let id = snapshot_id();
        let refused = world.engine.snapshot(&target(&spec), &id, false).await;
        assert!(matches!(refused, Err(ProviderError::Unsupported { .. })), "{refused:?}");
        world.destroy(&spec).await;
        world.engine.adopt(Vec::new(), Vec::new()).await.unwrap();
        world.engine.settle(Duration::from_secs(10)).await.unwrap();
        assert!(in_pool(&world, "snapshots").is_empty());
        world
    });
}

fn forks(adjust: fn(&mut EngineConfig)) {
    in_world(adjust, |world| async {
        let spec = world.spec();
        let booted = world.create(&spec).await;
        world
            .said(
                &spec,
                &booted,
                "echo base > /root/f; rm -r /home; mkdir /home; chown 7:8 /root/f; ln /root/f /root/g; mkfifo /root/p; \
                 echo same > /etc/machine-id; (exec 3> /root/unnamed; rm /root/unnamed; touch /root/ready; sleep 1000 >&3) >/dev/null 2>&1 & \
                 while [ ! -e /root/ready ]; do sleep 0.01; done",
            )
            .await;
        let made = world.snap(&spec).await;
        world.said(&spec, &booted, "echo later > /root/f").await;
        let (mut one, mut two) = (world.fork_of(&spec, &made), world.fork_of(&spec, &made));
        (one.hostname, two.hostname) = ("one".into(), "two".into());
        let (first, second) = tokio::join!(world.create(&one), world.create(&two));
        assert!(first.agent_token.is_some() && first.agent_token != second.agent_token);
        for (fork, booted) in [(&one, &first), (&two, &second)] {
            let seen = "cat /root/f; stat -c '%u:%g %h' /root/f; ls -A /home | wc -l; ls /root/unnamed 2>&1 | grep -c No; hostname";
            let seen = world.said(fork, booted, seen).await;
            assert_eq!(seen, format!("base\n7:8 2\n0\n1\n{}", fork.hostname));
            world.said(fork, booted, &format!("echo {} > /root/f", fork.hostname)).await;
        }
        let mut ids = Vec::new();
        for (fork, booted) in [(&one, &first), (&two, &second), (&spec, &booted)] {
            ids.push(world.said(fork, booted, "cat /etc/machine-id; ip -4 addr show eth0 | grep inet").await);
        }
        assert!(
            ids[0] != ids[1] && ids[1] != ids[2] && ids[2].starts_with("same") && !ids[0].contains("same"),
            "{ids:?}"
        );
        // All four are independent.
        assert_eq!(world.said(&spec, &booted, "cat /root/f").await, "later");
        assert_eq!(world.said(&one, &first, "cat /root/g").await, "one");
        assert_eq!(std::fs::read_to_string(world.snapshot_files(&made.0).join("root/f")).unwrap(), "base\n");
        // A fork outlives its source.
        world.destroy(&spec).await;
        world.engine.remove_snapshot(&made.0).await.unwrap();
        world.engine.settle(Duration::from_secs(10)).await.unwrap();
        assert_eq!(world.said(&two, &second, "cat /root/g").await, "two");
        world.destroy(&one).await;
        world.destroy(&two).await;
        world
    });
}

#[test]
fn forks_are_apart_from_each_other_and_from_where_they_came_from() {
    forks(plain);
}

#[test]
fn forks_are_apart_on_plain_folders() {
    forks(folders);
}

#[test]
fn forks_are_apart_on_old_kernels() {
    forks(legacy);
}

fn limits_in_forks(adjust: fn(&mut EngineConfig)) {
    in_world(adjust, |world| async {
        let mut spec = world.spec();
        spec.limits = Limits { disk_mib: 64, ..Limits::default() };
        let booted = world.create(&spec).await;
        world.said(&spec, &booted, "dd if=/dev/urandom of=/root/base bs=1M count=40 2>/dev/null; sync").await;
        let made = world.snap(&spec).await;
        assert!((40..44).contains(&(made.1.bytes >> 20)), "{:?}", made.1);
        let fork = world.fork_of(&spec, &made);
        let forked = world.create(&fork).await;
        let used = world.engine.usage(&target(&fork)).await.unwrap().disk_bytes.unwrap() >> 20;
        assert!((40..44).contains(&used), "{used}");
        let more = writable_mib(&world, &fork, &forked, "/root/more").await;
        assert!((18..=24).contains(&more), "a fork wrote {more} MiB");
        let own = writable_mib(&world, &spec, &booted, "/root/more").await;
        assert!((18..=24).contains(&own), "the source wrote {own} MiB");
        // The content of the snapshot does not fit.
        let mut small = world.fork_of(&spec, &made);
        small.limits.disk_mib = 32;
        let refused = world.engine.create(&small).await;
        assert!(
            matches!(
                refused,
                Err(ProviderError::BelowUse { what: "disk_mib", wanted_mib: 32, used_mib: 40..44 })
            ),
            "{refused:?}"
        );
        // After a rollback the limit covers the whole content too.
        let again = world.rolled_back(&mut spec, &made).await;
        let more = writable_mib(&world, &spec, &again, "/root/more").await;
        assert!((18..=24).contains(&more), "after a rollback {more} MiB");
        // Even a long series of snapshots and rollbacks holds no more than the limit.
        world
            .said(
                &spec,
                &again,
                "rm /root/more; dd if=/dev/urandom of=/root/base bs=1M count=10 2>/dev/null; sync",
            )
            .await;
        let second = world.snap(&spec).await;
        let again = world.rolled_back(&mut spec, &second).await;
        let more = writable_mib(&world, &spec, &again, "/root/more").await;
        eprintln!("10 MiB held, 64 allowed: {more} MiB could be written");
        assert!((40..=54).contains(&more), "after two rollbacks {more} MiB");
        world.destroy(&spec).await;
        world.destroy(&fork).await;
        world.engine.remove_snapshot(&made.0).await.unwrap();
        world.engine.remove_snapshot(&second.0).await.unwrap();
        world
    });
}

#[test]
fn a_fork_holds_no_more_than_its_limit_and_what_it_began_with_counts() {
    limits_in_forks(plain);
}

#[test]
fn a_fork_holds_no_more_than_its_limit_with_full_quota_groups() {
    limits_in_forks(legacy);
}

/// Attack A17.
#[test]
fn a_snapshot_that_was_touched_is_refused_and_nothing_is_lost_by_that() {
    in_world(plain, |world| async {
        let spec = world.spec();
        let booted = world.create(&spec).await;
        world.said(&spec, &booted, "echo base > /root/f; sync").await;
        let tampered = world.snap(&spec).await;
        let missing = world.snap(&spec).await;
        let swapped = world.snap(&spec).await;
        let files =
            |id: &SnapshotId| world.config.data.join("pool/snapshots").join(id.as_str()).join("files");
        let set = |path: &Path, value: &str| {
            let done = std::process::Command::new("btrfs")
                .args(["property", "set", "-f", "-ts"])
                .arg(path)
                .args(["ro", value])
                .status()
                .unwrap();
            assert!(done.success());
        };
        set(&files(&tampered.0), "false");
        std::fs::write(world.snapshot_files(&tampered.0).join("root/f"), "forged").unwrap();
        set(&files(&tampered.0), "true");
        std::fs::remove_dir_all(files(&missing.0)).unwrap_err();
        set(&files(&missing.0), "false");
        std::fs::remove_dir_all(files(&missing.0)).unwrap();
        set(&files(&swapped.0), "false");
        std::fs::rename(files(&swapped.0), world.config.data.join("pool/swapped")).unwrap();
        std::fs::create_dir_all(world.snapshot_files(&swapped.0)).unwrap();
        for made in [&tampered, &missing, &swapped] {
            let fork = world.fork_of(&spec, made);
            let refused = world.engine.create(&fork).await;
            assert!(is_damaged(&refused), "{refused:?}");
            let refused = world.engine.verify_snapshot(&made.0, &made.1.seal).await;
            assert!(is_damaged(&refused), "{refused:?}");
            let refused = world.engine.rollback(&target(&spec), &made.0, &made.1.seal, &spec.limits).await;
            assert!(is_damaged(&refused), "{refused:?}");
        }
        let refused = world.engine.verify_snapshot(&tampered.0, "no seal").await;
        assert!(is_damaged(&refused), "{refused:?}");
        // The instance still runs, and no leftovers exist.
        assert_eq!(world.said(&spec, &booted, "cat /root/f").await, "base");
        world.engine.settle(Duration::from_secs(10)).await.unwrap();
        assert_eq!(in_pool(&world, "layers"), [spec.sandbox.as_str()]);
        world.destroy(&spec).await;
        for made in [&tampered, &missing, &swapped] {
            world.engine.remove_snapshot(&made.0).await.unwrap();
        }
        std::fs::remove_dir_all(world.config.data.join("pool/swapped")).unwrap();
        world
    });
}

#[test]
fn a_snapshot_on_plain_folders_that_was_touched_is_refused() {
    in_world(folders, |world| async {
        let spec = world.spec();
        let booted = world.create(&spec).await;
        world.said(&spec, &booted, "echo base > /root/f").await;
        let made = world.snap(&spec).await;
        std::fs::write(world.snapshot_files(&made.0).join("root/f"), "bASE\n").unwrap();
        let refused = world.engine.create(&world.fork_of(&spec, &made)).await;
        assert!(is_damaged(&refused), "{refused:?}");
        world.destroy(&spec).await;
        world.engine.remove_snapshot(&made.0).await.unwrap();
        assert!(in_pool(&world, "snapshots").is_empty());
        world
    });
}

#[test]
fn a_bit_that_rots_on_disk_is_found_by_a_whole_look() {
    in_world(plain, |world| async {
        let spec = world.spec();
        let booted = world.create(&spec).await;
        let marker = "rot-".repeat(32);
        let write = format!("for i in $(seq 2000); do printf {marker}; done > /root/f; sync");
        world.said(&spec, &booted, &write).await;
        let made = world.snap(&spec).await;
        world.engine.verify_snapshot(&made.0, &made.1.seal).await.unwrap();
        let backing = world.config.data.join("pool.btrfs");
        if !backing.exists() {
            eprintln!("the data folder is on btrfs: no file of ours to damage");
        } else {
            damage(&backing, marker.as_bytes());
            let refused = world.engine.verify_snapshot(&made.0, &made.1.seal).await;
            assert!(is_damaged(&refused), "{refused:?}");
        }
        world.destroy(&spec).await;
        world.engine.remove_snapshot(&made.0).await.unwrap();
        world
    });
}

/// Changes a byte at the first place in a file where `marker` is found.
fn damage(file: &Path, marker: &[u8]) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::OpenOptions::new().read(true).write(true).open(file).unwrap();
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    loop {
        let read = file.read_at(&mut buffer, at).unwrap();
        assert!(read > 0, "the marker is not on the disk");
        // The marker is at the start of a block, so it is never split between two buffers.
        let found =
            buffer[..read].chunks(4_096).position(|block| block.windows(marker.len()).next() == Some(marker));
        if let Some(block) = found {
            file.write_all_at(b"R", at + block as u64 * 4_096 + 2_000).unwrap();
            file.sync_all().unwrap();
            return;
        }
        at += read as u64;
    }
}

fn rollback(adjust: fn(&mut EngineConfig)) {
    in_world(adjust, |world| async {
        let mut spec = world.spec();
        let booted = world.create(&spec).await;
        world.said(&spec, &booted, "echo one > /root/f; mkdir /root/d; echo x > /root/d/x").await;
        let made = world.snap(&spec).await;
        world.said(&spec, &booted, "echo two > /root/f; rm -r /root/d; echo new > /root/new").await;
        let seen = "cat /root/f; cat /root/d/x; ls /root/new 2>&1 | grep -c No";
        for _ in 0..2 {
            let booted = world.rolled_back(&mut spec, &made).await;
            assert_eq!(world.said(&spec, &booted, seen).await, "one\nx\n1");
            world.said(&spec, &booted, "echo three > /root/f; rm -r /root/d; echo new > /root/new").await;
        }
        world.engine.halt(&target(&spec)).await.unwrap();
        let booted = world.rolled_back(&mut spec, &made).await;
        assert_eq!(world.said(&spec, &booted, seen).await, "one\nx\n1");
        world.engine.settle(Duration::from_secs(10)).await.unwrap();
        assert_eq!(in_pool(&world, "layers"), [spec.sandbox.as_str()]);
        world.destroy(&spec).await;
        world.engine.remove_snapshot(&made.0).await.unwrap();
        world
    });
}

#[test]
fn a_rollback_brings_files_back_again_and_again() {
    rollback(plain);
}

#[test]
fn a_rollback_works_on_plain_folders() {
    rollback(folders);
}

#[test]
fn a_rollback_works_on_old_kernels() {
    rollback(legacy);
}

#[test]
fn the_books_of_what_is_gone_do_not_pile_up() {
    in_world(plain, |world| async {
        let groups = |world: &World| {
            let uuid = std::process::Command::new("findmnt")
                .args(["-no", "UUID"])
                .arg(world.config.data.join("pool"))
                .output()
                .unwrap();
            let uuid = String::from_utf8(uuid.stdout).unwrap();
            let folder = Path::new("/sys/fs/btrfs").join(uuid.trim()).join("qgroups");
            // The groups of subvolumes: the one group above them stays.
            let of_subvolumes =
                |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().starts_with("0_");
            std::fs::read_dir(folder).unwrap().flatten().filter(of_subvolumes).count()
        };
        let spec = world.spec();
        let booted = world.create(&spec).await;
        world
            .said(
                &spec,
                &booted,
                "echo base > /root/f; dd if=/dev/urandom of=/root/g bs=1M count=1 2>/dev/null",
            )
            .await;
        let made = world.snap(&spec).await;
        let fork = world.fork_of(&spec, &made);
        world.create(&fork).await;
        // The writer of the bytes is removed first.
        world.destroy(&spec).await;
        world.engine.remove_snapshot(&made.0).await.unwrap();
        world.destroy(&fork).await;
        world.engine.settle(Duration::from_secs(10)).await.unwrap();
        // The first run starts the kernel's cleaner, the second waits for it.
        let pool = world.config.data.join("pool");
        let run =
            |words: [&str; 2]| std::process::Command::new("btrfs").args(words).arg(&pool).output().unwrap();
        run(["filesystem", "sync"]);
        let done = run(["subvolume", "sync"]);
        assert!(done.status.success());
        let world = world.reopen().await;
        world.engine.adopt(Vec::new(), Vec::new()).await.unwrap();
        assert!(groups(&world) <= 1, "{}", groups(&world));
        world
    });
}

#[test]
fn a_rollback_that_was_cut_short_leaves_the_old_files_or_the_new_and_unwanted_snapshots_go() {
    in_world(plain, |world| async {
        let mut spec = world.spec();
        let booted = world.create(&spec).await;
        world.said(&spec, &booted, "echo old > /root/f").await;
        let (kept, unwanted) = (world.snap(&spec).await, world.snap(&spec).await);
        world.engine.halt(&target(&spec)).await.unwrap();
        let known = || {
            vec![KnownSandbox {
                sandbox: spec.sandbox.clone(),
                instance: None,
                storage: Storage::Disk,
                limits: spec.limits,
                network: std::sync::Arc::clone(&spec.network),
                paused: false,
            }]
        };
        let layer = world.layer(&spec);
        // A copy that a rollback never swapped in.
        let next = layer.with_file_name(format!(".new-{}", spec.sandbox));
        let copied = std::process::Command::new("btrfs")
            .args(["subvolume", "snapshot"])
            .args([&layer, &next])
            .output()
            .unwrap();
        assert!(copied.status.success());
        std::fs::write(next.join("upper/root/f"), "new\n").unwrap();
        // A partial snapshot, and a partly unpacked layer.
        std::fs::create_dir_all(world.config.data.join("pool/snapshots").join(snapshot_id().as_str()))
            .unwrap();
        let made = std::process::Command::new("btrfs")
            .args(["subvolume", "create"])
            .arg(layer.with_file_name(".unpack-x-tmp"))
            .output()
            .unwrap();
        assert!(made.status.success());
        let world = world.reopen().await;
        world.engine.adopt(known(), vec![kept.0.clone()]).await.unwrap();
        world.engine.settle(Duration::from_secs(10)).await.unwrap();
        assert_eq!(std::fs::read_to_string(layer.join("upper/root/f")).unwrap(), "old\n");
        assert_eq!(in_pool(&world, "layers"), [spec.sandbox.as_str()]);
        assert_eq!(in_pool(&world, "snapshots"), [kept.0.as_str()]);
        // A repeated rollback completes.
        let booted = world.rolled_back(&mut spec, &kept).await;
        assert_eq!(world.said(&spec, &booted, "cat /root/f").await, "old");
        world.destroy(&spec).await;
        world.engine.remove_snapshot(&kept.0).await.unwrap();
        drop(unwanted);
        world
    });
}

/// Waits until the counter inside counts on; what it was at first.
async fn runs_on(world: &World, spec: &InstanceSpec, booted: &Booted) -> u64 {
    let begun = std::time::Instant::now();
    let count = async || world.said(spec, booted, "cat /root/f").await.parse::<u64>().unwrap();
    let first = count().await;
    while count().await == first {
        assert!(begun.elapsed() < Duration::from_secs(60), "it does not run on from {first}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    first
}

#[test]
fn processes_come_along_into_a_fork_and_back_by_a_rollback() {
    in_world(plain, |world| async {
        if !world.engine.capabilities().checkpoints {
            eprintln!("skipped: no CRIU here");
            return world;
        }
        let mut spec = world.spec();
        let booted = world.create(&spec).await;
        // With a rename: a file that is written in place is empty for a moment.
        let counter = "echo 0 > /root/f; (i=0; while :; do i=$((i+1)); echo $i > /root/n; mv /root/n /root/f; sleep 0.01; done) >/dev/null 2>&1 & sleep 0.2";
        world.said(&spec, &booted, counter).await;
        let id = snapshot_id();
        let made = world.engine.snapshot(&target(&spec), &id, true).await;
        let made = (id, made.unwrap_or_else(|error| panic!("snapshot: {}", chain(&error))));
        assert!(made.1.memory);
        eprintln!("with memory: stood still for {:?}, {} MiB", made.1.stood_still, made.1.bytes >> 20);
        let token = booted.agent_token.clone();
        let number = |text: &str| text.parse::<u64>().unwrap();
        runs_on(&world, &spec, &booted).await;
        world.engine.verify_snapshot(&made.0, &made.1.seal).await.unwrap();
        let kept =
            number(std::fs::read_to_string(world.snapshot_files(&made.0).join("root/f")).unwrap().trim());
        for _ in 0..2 {
            let mut fork = world.fork_of(&spec, &made);
            fork.origin =
                FilesOrigin::Snapshot { snapshot: made.0.clone(), seal: made.1.seal.clone(), memory: true };
            let mut forked = world.create(&fork).await;
            assert!(forked.agent_token.is_none());
            forked.agent_token.clone_from(&token);
            let (first, host) = (runs_on(&world, &fork, &forked).await, fork.hostname.clone());
            assert!(kept <= first, "{kept} {first}");
            assert_eq!(world.said(&fork, &forked, "hostname").await, host);
            world.destroy(&fork).await;
        }
        // What went on since then is gone: it counts on from the snapshot.
        let ran_on = number(&world.said(&spec, &booted, "cat /root/f").await);
        let back = world.engine.rollback(&target(&spec), &made.0, &made.1.seal, &spec.limits).await.unwrap();
        assert_eq!(back, RolledBack::Memory);
        spec.instance = common::instance_id();
        let mut again =
            world.engine.restore(&spec).await.unwrap_or_else(|error| panic!("restore: {}", chain(&error)));
        again.agent_token.clone_from(&token);
        let first = number(&world.said(&spec, &again, "cat /root/f").await);
        assert!((kept..ran_on).contains(&first), "{kept} {first} {ran_on}");
        world.destroy(&spec).await;
        world.engine.remove_snapshot(&made.0).await.unwrap();
        world
    });
}

#[test]
fn a_snapshot_whose_caller_went_away_leaves_nothing_however_early_it_is_removed() {
    in_world(plain, |world| async {
        let spec = world.spec();
        let booted = world.create(&spec).await;
        for round in 0..40u64 {
            let id = snapshot_id();
            let place = target(&spec);
            let taking = world.engine.snapshot(&place, &id, round % 4 == 3);
            // As the service does when the name is taken: the call is dropped and the snapshot removed, possibly before
            // it exists.
            let late = tokio::time::timeout(Duration::from_micros(round * 50), taking).await;
            world.engine.remove_snapshot(&id).await.unwrap();
            drop(late);
        }
        // The next operation waits until all of them have ended.
        world.engine.pause(&target(&spec)).await.unwrap();
        world.engine.resume(&target(&spec)).await.unwrap();
        world.engine.settle(Duration::from_secs(20)).await.unwrap();
        let begun = std::time::Instant::now();
        while !in_pool(&world, "snapshots").is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", in_pool(&world, "snapshots"));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(world.said(&spec, &booted, "echo runs").await, "runs");
        world.destroy(&spec).await;
        world
    });
}
