//! Packing files, changing limits, and the duration of both, on a real kernel.
#![allow(clippy::disallowed_methods, reason = "tests own their tasks and read the wall clock")]
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use crate::common;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::snapshot_helpers::{collected, files, folders, in_pool, is_damaged, plain, writable_mib};
use crate::common::{World, in_world, target};
use atoll_container::EngineConfig;
use atoll_model::Limits;
use atoll_provider::support::*;
use atoll_provider::{InstanceSpec, Packed, Provider, ProviderError};

fn packs(adjust: fn(&mut EngineConfig)) {
    in_world(adjust, |world| async {
        let mut spec = world.spec();
        let booted = world.create(&spec).await;
        world
            .said(
                &spec,
                &booted,
                "echo kept > /root/f; chown 1000:1000 /root/f; ln /root/f /root/g; rm -r /home; mkdir /home; rm -f /etc/passwd; \
                 mkdir -p /root/deep/er; dd if=/dev/urandom of=/root/deep/er/big bs=1M count=20 2>/dev/null; \
                 dd if=/dev/zero of=/root/sparse bs=1 count=1 seek=100000000 2>/dev/null",
            )
            .await;
        let live = world.engine.pack(&target(&spec)).await;
        assert!(matches!(live.err(), Some(ProviderError::Unsupported { .. })));
        let look = "cat /root/f; stat -c '%u:%g %h' /root/f; ls -A /home | wc -l; ls /etc/passwd 2>&1 | grep -c No; \
             md5sum /root/deep/er/big; stat -c %s /root/sparse";
        let before = world.said(&spec, &booted, look).await;
        world.engine.halt(&target(&spec)).await.unwrap();
        let stream = collected(world.engine.pack(&files(&spec)).await.unwrap()).await;
        assert!((20 << 20..25 << 20).contains(&stream.len()), "{}", stream.len());
        let there = world.engine.unpack(&files(&spec), &spec.limits, Box::new(&[][..])).await;
        assert!(matches!(there, Err(ProviderError::Unsupported { .. })), "{there:?}");
        world.destroy(&spec).await;
        world.engine.settle(Duration::from_secs(10)).await.unwrap();
        refuse_bad_packs(&world, &spec, &stream).await;
        let whole: Packed = Box::new(std::io::Cursor::new(stream.clone()));
        world.engine.unpack(&files(&spec), &spec.limits, whole).await.unwrap();
        assert_eq!(in_pool(&world, "layers"), [spec.sandbox.as_str()]);
        let again = collected(world.engine.pack(&files(&spec)).await.unwrap()).await;
        assert!(again == stream, "{} {}", again.len(), stream.len());
        spec.instance = common::instance_id();
        let booted = world.engine.boot(&spec).await.unwrap();
        assert_eq!(world.said(&spec, &booted, look).await, before);
        world.destroy(&spec).await;
        world
    });
}

async fn refuse_bad_packs(world: &World, spec: &InstanceSpec, stream: &[u8]) {
    let cut: Packed = Box::new(std::io::Cursor::new(stream[..stream.len() / 2].to_vec()));
    let refused = world.engine.unpack(&files(spec), &spec.limits, cut).await;
    assert!(is_damaged(&refused), "{refused:?}");
    assert!(in_pool(world, "layers").is_empty());
    if world.engine.capabilities().limits_disk {
        let small = Limits { disk_mib: 8, ..spec.limits };
        let whole: Packed = Box::new(std::io::Cursor::new(stream.to_vec()));
        let refused = world.engine.unpack(&files(spec), &small, whole).await;
        assert!(matches!(refused, Err(ProviderError::Exhausted { .. })), "{refused:?}");
        assert!(in_pool(world, "layers").is_empty());
    }
    // Dropped before its end.
    let (slow, mut other) = tokio::io::duplex(1 << 20);
    let (engine, at, limits) = (Arc::clone(&world.engine), files(spec), spec.limits);
    let task = tokio::spawn(async move { engine.unpack(&at, &limits, Box::new(slow)).await });
    tokio::io::AsyncWriteExt::write_all(&mut other, &stream[..100_000]).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    task.abort();
    let _ = task.await;
    let begun = Instant::now();
    while !in_pool(world, "layers").is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", in_pool(world, "layers"));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[test]
fn files_come_back_from_a_pack_and_a_bad_one_leaves_nothing() {
    packs(plain);
}

#[test]
fn files_come_back_from_a_pack_on_plain_folders() {
    packs(folders);
}

/// Copies `from` within a halted layer as `cp` does inside, where the blocks are shared.
fn share(layer: &std::path::Path, from: &str, to: &str) {
    let (from, to) = (layer.join("upper/root").join(from), layer.join("upper/root").join(to));
    let copied = std::process::Command::new("cp").arg("--reflink=always").arg(from).arg(to).status();
    assert!(copied.unwrap().success());
}

#[test]
fn what_may_be_packed_can_be_unpacked_and_the_rest_is_refused_before() {
    in_world(plain, |world| async {
        let mut spec = world.spec();
        spec.limits = Limits { disk_mib: 64, ..Limits::default() };
        let booted = world.create(&spec).await;
        world.said(&spec, &booted, "dd if=/dev/urandom of=/root/0 bs=1M count=25 2>/dev/null").await;
        let check = async |limits: &Limits| world.engine.check_pack(&files(&spec), limits).await;
        check(&spec.limits).await.unwrap();
        for name in ["1", "2", "3"] {
            share(&world.layer(&spec), "0", name);
        }
        let too_large = |refused: Result<(), ProviderError>| {
            matches!(refused, Err(ProviderError::TooLargeToPack { needed_mib: 75.., limit_mib: 64 }))
        };
        assert!(too_large(check(&spec.limits).await), "also while it runs");
        world.engine.halt(&target(&spec)).await.unwrap();
        assert!(too_large(check(&spec.limits).await));
        let larger = Limits { disk_mib: 90, ..spec.limits };
        check(&larger).await.unwrap();
        come_back(&world, &spec, &larger).await;
        world.destroy(&spec).await;

        // More holes than a stream has room for: the small ones are written out.
        let spec = InstanceSpec { limits: Limits { disk_mib: 320, ..spec.limits }, ..world.spec() };
        world.create(&spec).await;
        world.engine.halt(&target(&spec)).await.unwrap();
        let file = std::fs::File::create(world.layer(&spec).join("upper/holes")).unwrap();
        for at in 0..66_000 {
            std::os::unix::fs::FileExt::write_all_at(&file, b"x", at * 8_192).unwrap();
        }
        let refused = world.engine.check_pack(&files(&spec), &spec.limits).await;
        assert!(matches!(refused, Err(ProviderError::TooLargeToPack { .. })), "{refused:?}");
        world.destroy(&spec).await;
        world
    });
}

/// Packs the files of a halted sandbox, removes them, and unpacks them again.
async fn come_back(world: &World, spec: &InstanceSpec, limits: &Limits) {
    let stream = collected(world.engine.pack(&files(spec)).await.unwrap()).await;
    world.destroy(spec).await;
    world.engine.settle(Duration::from_secs(10)).await.unwrap();
    let stream: Packed = Box::new(std::io::Cursor::new(stream));
    world.engine.unpack(&files(spec), limits, stream).await.unwrap();
}

#[test]
fn a_layer_full_of_names_may_be_packed_and_comes_back() {
    in_world(plain, |world| async {
        for (content, long) in [("", false), ("some text", true)] {
            let spec = InstanceSpec { limits: Limits { disk_mib: 12, ..Limits::default() }, ..world.spec() };
            let booted = world.create(&spec).await;
            let name = if long { "a-rather-long-name-of-a-file-in-a-folder-of-many-" } else { "" };
            let fill = format!(
                "mkdir /root/d; cd /root/d; i=0; while printf '{content}' 2>/dev/null >{name}$i; do i=$((i+1)); done; echo $i"
            );
            let made: u32 = world.said(&spec, &booted, &fill).await.trim().parse().unwrap();
            assert!(made > 2_000, "{made}");
            world.engine.halt(&target(&spec)).await.unwrap();
            world.engine.check_pack(&files(&spec), &spec.limits).await.unwrap();
            come_back(&world, &spec, &spec.limits).await;
            world.destroy(&spec).await;
        }
        world
    });
}

#[test]
fn limits_grow_live_and_do_not_shrink_below_what_is_used() {
    in_world(plain, |world| async {
        let mut spec = world.spec();
        spec.limits = Limits { disk_mib: 64, memory_mib: 256, ..Limits::default() };
        let booted = world.create(&spec).await;
        world.said(&spec, &booted, "dd if=/dev/urandom of=/root/f bs=1M count=40 2>/dev/null").await;
        world.said(&spec, &booted, "dd if=/dev/zero of=/dev/shm/f bs=1M count=60 2>/dev/null").await;
        let resize = |disk_mib, memory_mib| {
            let limits = Limits { disk_mib, memory_mib, ..spec.limits };
            let (engine, target) = (Arc::clone(&world.engine), target(&spec));
            async move { engine.resize(&target, &limits).await }
        };
        let refused = resize(30, 256).await;
        assert!(
            matches!(
                refused,
                Err(ProviderError::BelowUse { what: "disk_mib", wanted_mib: 30, used_mib: 40..44 })
            ),
            "{refused:?}"
        );
        let refused = resize(64, 40).await;
        assert!(
            matches!(
                refused,
                Err(ProviderError::BelowUse { what: "memory_mib", wanted_mib: 40, used_mib: 60.. })
            ),
            "{refused:?}"
        );
        // The refused change had no effect.
        let more = writable_mib(&world, &spec, &booted, "/root/more").await;
        assert!((18..=24).contains(&more), "{more}");
        resize(100, 300).await.unwrap();
        let more = writable_mib(&world, &spec, &booted, "/root/more").await;
        assert!((50..=60).contains(&more), "{more}");
        world.said(&spec, &booted, "rm /root/more /dev/shm/f").await;
        resize(50, 100).await.unwrap();
        world.engine.halt(&target(&spec)).await.unwrap();
        let small = Limits { disk_mib: 20, ..spec.limits };
        let refused = world.engine.resize(&files(&spec), &small).await;
        assert!(matches!(refused, Err(ProviderError::BelowUse { .. })), "{refused:?}");
        world.destroy(&spec).await;
        world
    });
}

/// Median and worst of some times, in milliseconds.
fn figures(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let (least, median, most) = (times[0], times[times.len() / 2], times[times.len() - 1]);
    eprintln!(
        "{what}: min {:.2} med {:.2} max {:.2} ms (n={})",
        ms(least),
        ms(median),
        ms(most),
        times.len()
    );
}

#[test]
#[ignore = "prints figures; run alone with --release --ignored --nocapture"]
fn figures_of_a_sandbox_that_holds_500_mb() {
    in_world(plain, |world| async {
        let mut spec = world.spec();
        let booted = world.create(&spec).await;
        world.said(&spec, &booted, "dd if=/dev/urandom of=/root/big bs=1M count=500 2>/dev/null; sync").await;
        let (mut totals, mut still) = (Vec::new(), Vec::new());
        for _ in 0..30 {
            let begun = Instant::now();
            let (id, made) = world.snap(&spec).await;
            totals.push(begun.elapsed());
            still.push(made.stood_still);
            world.engine.remove_snapshot(&id).await.unwrap();
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
        figures("snapshot, 500 MB synced, call", totals);
        figures("snapshot, 500 MB synced, stood still", still);
        let made = world.snap(&spec).await;
        let (mut creates, mut firsts) = (Vec::new(), Vec::new());
        for _ in 0..20 {
            let fork = world.fork_of(&spec, &made);
            let begun = Instant::now();
            let booted = world.create(&fork).await;
            creates.push(begun.elapsed());
            world.said(&fork, &booted, "echo").await;
            firsts.push(begun.elapsed());
            world.destroy(&fork).await;
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
        eprintln!("{:?}", world.engine.timings());
        figures("create from a snapshot", creates);
        figures("create from a snapshot, first output", firsts);
        for _ in 0..5 {
            let forks: Vec<_> = (0..20).map(|_| world.fork_of(&spec, &made)).collect();
            let begun = Instant::now();
            let mut all = tokio::task::JoinSet::new();
            for fork in forks.clone() {
                let engine = Arc::clone(&world.engine);
                all.spawn(async move { engine.create(&fork).await.map(drop) });
            }
            assert!(all.join_all().await.iter().all(Result::is_ok));
            eprintln!("20 forks at once: {:?}", begun.elapsed());
            for fork in &forks {
                world.destroy(fork).await;
            }
            world.engine.settle(Duration::from_secs(20)).await.unwrap();
        }
        let (mut backs, mut boots) = (Vec::new(), Vec::new());
        for _ in 0..20 {
            let begun = Instant::now();
            world.engine.rollback(&target(&spec), &made.0, &made.1.seal, &spec.limits).await.unwrap();
            backs.push(begun.elapsed());
            spec.instance = common::instance_id();
            world.engine.boot(&spec).await.unwrap();
            boots.push(begun.elapsed());
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
        figures("rollback", backs);
        figures("rollback and boot", boots);
        world.engine.remove_snapshot(&made.0).await.unwrap();
        let begun = Instant::now();
        world.engine.halt(&target(&spec)).await.unwrap();
        eprintln!("halt: {:?}", begun.elapsed());
        pack_figures(&world, &spec).await;
        world.destroy(&spec).await;
        let spec = world.spec();
        let booted = world.create(&spec).await;
        for _ in 0..3 {
            world
                .said(
                    &spec,
                    &booted,
                    "rm -f /root/big; sync; dd if=/dev/urandom of=/root/big bs=1M count=500 2>/dev/null",
                )
                .await;
            let begun = Instant::now();
            let (id, made) = world.snap(&spec).await;
            eprintln!("500 MB dirty: call {:?}, stood still {:?}", begun.elapsed(), made.stood_still);
            world.engine.remove_snapshot(&id).await.unwrap();
        }
        world.destroy(&spec).await;
        world
    });
}

async fn pack_figures(world: &World, spec: &InstanceSpec) {
    for round in 0..3 {
        let begun = Instant::now();
        let mut stream = world.engine.pack(&files(spec)).await.unwrap();
        let bytes = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await.unwrap();
        let rate = bytes as f64 / begun.elapsed().as_secs_f64() / 1e6;
        eprintln!("pack {round}: {} MB at {rate:.0} MB/s", bytes / 1_000_000);
    }
    let stream = collected(world.engine.pack(&files(spec)).await.unwrap()).await;
    for _ in 0..2 {
        let other = world.spec();
        let (bytes, whole): (usize, Packed) = (stream.len(), Box::new(std::io::Cursor::new(stream.clone())));
        let begun = Instant::now();
        world.engine.unpack(&files(&other), &spec.limits, whole).await.unwrap();
        eprintln!("unpack: {:.0} MB/s, on disk", bytes as f64 / begun.elapsed().as_secs_f64() / 1e6);
        world.destroy(&other).await;
    }
}
