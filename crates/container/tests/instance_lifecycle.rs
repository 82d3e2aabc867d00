//! The lifecycle of instances on a real kernel.
#![allow(clippy::disallowed_methods, reason = "tests own their tasks and read the wall clock")]
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use crate::common;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{World, in_world, sandbox_id, target};
use atoll_container::{Engine, StorageChoice};
use atoll_model::{Limits, Storage};
use atoll_provider::support::*;
use atoll_provider::{AdoptionOutcome, KnownSandbox, NoticeKind, PoolWish, Provider, ProviderError, Target};

#[test]
fn a_sandbox_is_made_answers_and_leaves_nothing() {
    in_world(
        |_| {},
        |world| async {
            let spec = world.spec();
            let booted = world.create(&spec).await;
            assert!(!booted.from_pool);
            let (code, said) =
                world.sh(&spec, &booted, "hostname; id -u; echo hi > /root/x; cat /root/x; echo $$").await;
            assert_eq!(
                (code, said.lines().take(3).collect::<Vec<_>>()),
                (0, vec!["box", "0", "hi"]),
                "{said}"
            );
            let usage = world.engine.usage(&target(&spec)).await.unwrap();
            assert!(usage.memory_bytes > 0 && usage.pids >= 1, "{usage:?}");
            let port = world.engine.dial(&target(&spec), 81).await;
            assert!(matches!(port.err(), Some(ProviderError::PortClosed { port: 81 })));
            world.destroy(&spec).await;
            world.destroy(&spec).await;
            let gone = world.engine.dial(&target(&spec), 49_983).await;
            assert!(matches!(gone.err(), Some(ProviderError::Gone { .. })));
            world
        },
    );
}

#[test]
fn files_outlive_a_halt_and_the_next_instance_has_other_ids() {
    in_world(
        |_| {},
        |world| async {
            let mut spec = world.spec();
            let booted = world.create(&spec).await;
            world
                .sh(
                    &spec,
                    &booted,
                    "echo kept > /root/file; chown 1000:1000 /root/file; rm -r /home; mkdir /home",
                )
                .await;
            world.engine.halt(&target(&spec)).await.unwrap();
            world.engine.halt(&target(&spec)).await.unwrap();
            spec.instance = common::instance_id();
            let again = world.engine.boot(&spec).await.unwrap();
            assert_ne!(booted.facts["first_id"], again.facts["first_id"]);
            assert_ne!(booted.agent_token, again.agent_token);
            let (_, said) =
                world.sh(&spec, &again, "cat /root/file; stat -c %u:%g /root/file; ls /home | wc -l").await;
            assert_eq!(said, "kept\n1000:1000\n0");
            world.destroy(&spec).await;
            world.engine.settle(Duration::from_secs(10)).await.unwrap();
            spec.instance = common::instance_id();
            assert!(world.engine.boot(&spec).await.is_err(), "files are gone");
            world.destroy(&spec).await;
            world
        },
    );
}

#[test]
fn instances_live_on_without_a_server_and_are_adopted() {
    in_world(
        |config| config.pool = [("busybox".to_owned(), 2)].into(),
        |world| async {
            wait_for_pool(&world, 2).await;
            let (kept, unknown) = (world.spec(), world.spec());
            let booted = world.create(&kept).await;
            let lost = world.create(&unknown).await;
            world.sh(&kept, &booted, "echo here > /root/file").await;
            let world = world.reopen().await;
            let refused = world.engine.create(&world.spec()).await;
            assert!(matches!(refused.err(), Some(ProviderError::Unsupported { .. })), "not before adoption");
            let mut forged = booted.facts.clone();
            forged["started"] = 1.into();
            let ghost = common::instance_id();
            let known = |instance, facts, sandbox: &atoll_model::SandboxId| KnownSandbox {
                sandbox: sandbox.clone(),
                instance: Some((instance, facts)),
                storage: Storage::Disk,
                limits: kept.limits,
                network: std::sync::Arc::clone(&kept.network),
                paused: false,
            };
            let claimed = vec![
                known(kept.instance.clone(), booted.facts.clone(), &kept.sandbox),
                known(ghost.clone(), forged, &sandbox_id()),
            ];
            let fates = world.engine.adopt(claimed, Vec::new()).await.unwrap();
            let fates: Vec<_> = fates.into_iter().map(|one| (one.instance, one.fate)).collect();
            assert_eq!(
                fates,
                [(kept.instance.clone(), AdoptionOutcome::Alive), (ghost, AdoptionOutcome::Gone)]
            );
            let (_, said) = world.sh(&kept, &booted, "cat /root/file").await;
            assert_eq!(said, "here");
            assert!(
                !std::path::Path::new(&format!("/proc/{}/ns", World::pid(&lost))).exists(),
                "the unknown one is dead"
            );
            // And it is watched again.
            let mut notices = world.engine.notices();
            kill(World::pid(&booted));
            let notice =
                tokio::time::timeout(Duration::from_secs(60), notices.recv()).await.unwrap().unwrap();
            assert_eq!((notice.instance, notice.what), (kept.instance.clone(), NoticeKind::Died));
            world.destroy(&kept).await;
            world
        },
    );
}

/// The owner label of the engine is its data folder with its block of names on this machine.
#[test]
fn instances_without_the_owner_label_of_this_server_are_never_touched() {
    in_world(
        |_| {},
        |world| async {
            let spec = world.spec();
            let booted = world.create(&spec).await;
            let folder = tempfile::Builder::new().prefix("atoll-engine-").tempdir_in("/var/tmp").unwrap();
            let config = common::config(folder.path());
            let other = Engine::open(config, Arc::clone(&world.catalog)).await.unwrap();
            assert_eq!(other.adopt(Vec::new(), Vec::new()).await.unwrap(), []);
            assert_eq!(other.owned().await.unwrap(), []);
            let target = Target { sandbox: spec.sandbox.clone(), instance: Some(spec.instance.clone()) };
            let _ = other.destroy(&target).await;
            other.close().await;
            other.settle(Duration::from_secs(20)).await.unwrap();
            other.uninstall().await.unwrap();
            let (_, said) = world.sh(&spec, &booted, "echo alive").await;
            assert_eq!(said, "alive", "the other server ended an instance that is not its own");
            world.destroy(&spec).await;
            world
        },
    );
}

fn kill(pid: i32) {
    let status = std::process::Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap();
    assert!(status.success());
}

async fn wait_for_pool(world: &World, ready: usize) {
    let begun = Instant::now();
    while world.engine.pool_stats()[0].ready < ready {
        assert!(begun.elapsed() < Duration::from_secs(60), "the pool fills");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn a_killed_launcher_is_replaced_and_sandboxes_do_not_notice() {
    in_world(
        |_| {},
        |world| async {
            let first = world.spec();
            let booted = world.create(&first).await;
            let pid = world.engine.launcher_pid().await.unwrap();
            // Some creates are under way when the launcher dies: each succeeds or fails, none hangs.
            let mut under_way = tokio::task::JoinSet::new();
            for _ in 0..10 {
                let (engine, spec) = (Arc::clone(&world.engine), world.spec());
                under_way.spawn(async move {
                    let outcome = engine.create(&spec).await.map(drop);
                    engine.destroy(&target(&spec)).await.unwrap();
                    outcome
                });
            }
            tokio::time::sleep(Duration::from_millis(3)).await;
            kill(i32::try_from(pid).unwrap());
            let outcomes = under_way.join_all().await;
            eprintln!(
                "{} of 10 were made although the launcher died",
                outcomes.iter().filter(|one| one.is_ok()).count()
            );
            let (code, _) = world.sh(&first, &booted, "true").await;
            assert_eq!(code, 0);
            let second = world.spec();
            world.create(&second).await;
            assert_ne!(world.engine.launcher_pid().await, Some(pid));
            world.destroy(&first).await;
            world.destroy(&second).await;
            world
        },
    );
}

#[test]
fn a_ready_instance_is_claimed_once_with_the_limits_and_name_of_its_sandbox() {
    in_world(
        |config| config.pool = [("busybox".to_owned(), 3)].into(),
        |world| async {
            wait_for_pool(&world, 3).await;
            let mut spec = world.spec();
            spec.hostname = "claimed".into();
            spec.limits.pids = 77;
            let booted = world.create(&spec).await;
            assert!(booted.from_pool);
            let (_, said) = world
                .sh(
                    &spec,
                    &booted,
                    "hostname; ip addr show eth0 | grep -c 'inet 100\\.'; ip route | grep -c default",
                )
                .await;
            assert_eq!(said, "claimed\n1\n1");
            let pids = format!(
                "/sys/fs/cgroup/pids/atoll-{}/{}/pids.max",
                world.engine.block(),
                booted.facts["cgroup"].as_str().unwrap()
            );
            if world.engine.cgroup_layout() == "v1" {
                assert_eq!(std::fs::read_to_string(pids).unwrap().trim(), "77");
            }
            let mut times = Vec::new();
            for _ in 0..20 {
                wait_for_pool(&world, 3).await;
                let spec = world.spec();
                let begun = Instant::now();
                let booted = world.create(&spec).await;
                times.push(begun.elapsed());
                assert!(booted.from_pool);
                world.destroy(&spec).await;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            times.sort();
            eprintln!("claim p50 {:?} p95 {:?}", times[10], times[18]);
            world.destroy(&spec).await;
            world
        },
    );
}

#[test]
fn a_hundred_creates_at_once_all_succeed() {
    in_world(
        |_| {},
        |world| async {
            let specs: Vec<_> = (0..100).map(|_| world.spec()).collect();
            let begun = Instant::now();
            let mut creates = tokio::task::JoinSet::new();
            for spec in specs.clone() {
                let engine = Arc::clone(&world.engine);
                creates.spawn(async move {
                    engine.create(&spec).await.map(drop).map_err(|error| common::chain(&error))
                });
            }
            let outcomes = creates.join_all().await;
            let took = begun.elapsed();
            assert_eq!(outcomes.iter().find(|outcome| outcome.is_err()), None);
            let begun = Instant::now();
            let mut ends = tokio::task::JoinSet::new();
            for spec in specs {
                let engine = Arc::clone(&world.engine);
                ends.spawn(async move { engine.destroy(&target(&spec)).await.unwrap() });
            }
            ends.join_all().await;
            eprintln!("100 creates at once: {took:?}; 100 destroys at once: {:?}", begun.elapsed());
            world
        },
    );
}

#[test]
fn a_create_that_is_destroyed_half_way_leaves_nothing() {
    in_world(
        |_| {},
        |world| async {
            for wait_us in (0..40).map(|step| step * 150) {
                let spec = world.spec();
                let (engine, asked) = (Arc::clone(&world.engine), spec.clone());
                let create = tokio::spawn(async move { engine.create(&asked).await.map(drop) });
                tokio::time::sleep(Duration::from_micros(wait_us)).await;
                world.destroy(&spec).await;
                let _ = create.await.unwrap();
                world.destroy(&spec).await;
            }
            world
        },
    );
}

#[test]
fn deaths_and_memory_are_told_once() {
    in_world(
        |_| {},
        |world| async {
            let mut notices = world.engine.notices();
            let mut spec = world.spec();
            spec.limits.memory_mib = 48;
            let booted = world.create(&spec).await;
            // A child that uses too much memory is killed, not the agent.
            let (code, _) = world.sh(&spec, &booted, "awk 'BEGIN { s = \"x\"; while (1) s = s s }'").await;
            assert_ne!(code, 0);
            let mut next = async || tokio::time::timeout(Duration::from_secs(60), notices.recv()).await;
            assert_eq!(next().await.unwrap().unwrap().what, NoticeKind::OutOfMemory);
            let (code, _) = world.sh(&spec, &booted, "true").await;
            assert_eq!(code, 0, "the agent survived");
            kill(World::pid(&booted));
            assert_eq!(next().await.unwrap().unwrap().what, NoticeKind::Died);
            world.destroy(&spec).await;
            let other = world.spec();
            world.create(&other).await;
            world.destroy(&other).await;
            tokio::time::sleep(Duration::from_millis(300)).await;
            assert!(notices.try_recv().is_err(), "a requested end causes no notice");
            world
        },
    );
}

#[test]
fn a_sandbox_in_memory_and_one_on_a_plain_folder_work() {
    in_world(
        |config| config.storage = StorageChoice::Folders,
        |world| async {
            assert!(!world.engine.capabilities().limits_disk);
            let mut limited = world.spec();
            limited.limits.disk_mib = 10;
            assert!(matches!(
                world.engine.create(&limited).await.err(),
                Some(ProviderError::Unsupported { .. })
            ));
            let plain = world.spec();
            let booted = world.create(&plain).await;
            assert_eq!(world.sh(&plain, &booted, "echo x > /etc/new && cat /etc/new").await.1, "x");
            let here = target(&plain);
            let more_memory = Limits { memory_mib: 96, ..plain.limits };
            world.engine.resize(&here, &more_memory).await.unwrap();
            assert!(matches!(
                world.engine.resize(&here, &limited.limits).await.err(),
                Some(ProviderError::Unsupported { .. })
            ));
            let mut memory = world.spec();
            memory.storage = Storage::Memory;
            memory.limits.disk_mib = 8;
            let booted = world.create(&memory).await;
            let (_, said) = world
                .sh(
                    &memory,
                    &booted,
                    "head -c 20m /dev/zero > /root/big; stat -c %s /root/big; echo a > /etc/y",
                )
                .await;
            let size: u64 = said.lines().filter_map(|line| line.parse().ok()).next().unwrap();
            assert!(size < 9 << 20, "{said}");
            world.destroy(&plain).await;
            world.destroy(&memory).await;
            world
        },
    );
}

#[test]
fn the_paths_for_old_kernels_work() {
    in_world(
        |config| config.legacy = Some(true),
        |world| async {
            let mut spec = world.spec();
            spec.limits.disk_mib = 16;
            let booted = world.create(&spec).await;
            let line = "head -c 40m /dev/zero > /root/big; sync; stat -c %s /root/big; rm /etc/passwd; ls /etc/passwd";
            let (_, said) = world.sh(&spec, &booted, line).await;
            let size: u64 = said.lines().filter_map(|line| line.parse().ok()).next().unwrap();
            assert!(size <= 17 << 20, "{said}");
            world.destroy(&spec).await;
            world
        },
    );
}

#[test]
fn cold_starts_are_fast() {
    in_world(
        |_| {},
        |world| async {
            let (mut creates, mut ends) = (Vec::new(), Vec::new());
            for _ in 0..40 {
                let spec = world.spec();
                let begun = Instant::now();
                world.create(&spec).await;
                creates.push(begun.elapsed());
                let begun = Instant::now();
                world.destroy(&spec).await;
                ends.push(begun.elapsed());
                tokio::time::sleep(Duration::from_millis(30)).await;
            }
            creates.sort();
            ends.sort();
            eprintln!("create p50 {:?} p95 {:?}; destroy p50 {:?}", creates[20], creates[38], ends[20]);
            eprintln!("{:?}", world.engine.timings());
            // A loose bound: the benchmark checks the real ones, on a quiet machine.
            assert!(creates[20] < Duration::from_millis(100));
            world
        },
    );
}

#[test]
fn an_unknown_template_is_named() {
    in_world(
        |_| {},
        |world| async {
            let mut spec = world.spec();
            spec.template = "nothing".into();
            assert!(matches!(world.engine.create(&spec).await.err(), Some(ProviderError::NoTemplate { .. })));
            let mut spec = world.spec();
            spec.template_version = "other".into();
            assert!(matches!(world.engine.create(&spec).await.err(), Some(ProviderError::NoTemplate { .. })));
            let nobody = Target { sandbox: sandbox_id(), instance: None };
            world.engine.halt(&nobody).await.unwrap();
            world.engine.destroy(&nobody).await.unwrap();
            assert!(matches!(world.engine.usage(&nobody).await.err(), Some(ProviderError::Gone { .. })));
            world
        },
    );
}

async fn pools_are(world: &World, wanted: &[(&str, Option<&str>, usize)]) {
    let wanted: Vec<(String, Option<String>, usize)> = wanted
        .iter()
        .map(|(name, version, ready)| ((*name).to_owned(), version.map(str::to_owned), *ready))
        .collect();
    let begun = std::time::Instant::now();
    loop {
        let stats = world.engine.pool_stats();
        let seen: Vec<_> = stats.into_iter().map(|pool| (pool.template, pool.version, pool.ready)).collect();
        if seen == wanted {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{seen:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[test]
fn pools_that_are_wished_for_are_filled_and_shrink_when_the_wish_goes() {
    in_world(
        |config| config.pool = [("busybox".to_owned(), 1)].into(),
        |world| async {
            let spec = world.spec();
            let version = spec.template_version.as_str();
            let wish = |version: &str, size| PoolWish {
                template: "busybox".into(),
                template_version: version.into(),
                size,
            };
            // A pool that can't be filled does not delay the others.
            world.engine.wish_pool(vec![wish("0", 1), wish(version, 2)]).await;
            pools_are(
                &world,
                &[("busybox", None, 1), ("busybox", Some("0"), 0), ("busybox", Some(version), 2)],
            )
            .await;
            assert!(world.create(&spec).await.from_pool);
            world.destroy(&spec).await;
            world.engine.wish_pool(vec![wish(version, 1)]).await;
            pools_are(&world, &[("busybox", None, 1), ("busybox", Some(version), 1)]).await;
            world.engine.wish_pool(Vec::new()).await;
            pools_are(&world, &[("busybox", None, 1)]).await;
            world.engine.settle(Duration::from_secs(10)).await.unwrap();
            // An instance may just have been made for the earlier request.
            let layers = || std::fs::read_dir(world.config.data.join("pool/layers")).unwrap().count();
            let begun = Instant::now();
            while layers() != 1 {
                assert!(begun.elapsed() < Duration::from_secs(60), "unwanted instances are gone");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            world.engine.wish_pool(vec![wish(version, 1_000)]).await;
            assert_eq!(world.engine.pool_stats()[1].wanted, 64, "there is a bound");
            world.engine.wish_pool(Vec::new()).await;
            world
        },
    );
}
