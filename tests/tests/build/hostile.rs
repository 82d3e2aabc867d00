//! Steps that mean harm.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use atoll_tests::world::{self, Options, World};
use serde_json::json;

use crate::build::ask::{Ask, ended, lines, log};
use crate::moving::{disk_is_free, free_bytes};

/// Attack A18.
#[test]
fn a_step_sees_nothing_of_the_host_and_of_others() {
    let options = Options::default().env("ATOLL_TEST_CANARY", "canary-of-the-host");
    world::run_with(options, async |world| {
        let (me, other) = (world.tenant("builder").await, world.tenant("other").await);
        Ask::new("secret-of-other", "FROM busybox\nRUN echo canary-of-other > /canary\n").build(&other).await;
        let dockerfile = "FROM busybox\n\
            RUN env; cat /proc/1/environ /proc/self/environ | tr '\\0' '\\n'; true\n\
            RUN cat /proc/mounts; ls -la / /run /var/run /dev 2>&1; true\n\
            RUN find / -xdev -name '*canary*' 2>/dev/null; ls /root/.docker /root/.atoll 2>&1; true\n\
            RUN cat /proc/1/cmdline | tr '\\0' ' '; id; cat /proc/self/status | grep Cap; true\n";
        let build = Ask::new("nosy", dockerfile).build(&me).await;
        let said = log(&me, build["id"].as_str().unwrap()).await.join("\n");
        assert!(!said.contains("canary-of"), "{said}");
        assert!(!said.contains("ATOLL_"), "{said}");
        assert!(!said.contains(world.data().to_str().unwrap()), "{said}");
        for forbidden in
            ["FROM secret-of-other\n", "FROM busybox\nCOPY --from=secret-of-other /canary /canary\n"]
        {
            let build = Ask::new("nosy", forbidden).fail(&me).await;
            let code = build["failure"]["code"].as_str().unwrap();
            assert!(
                ["template_not_found", "image_not_found", "registry_unavailable"].contains(&code),
                "{build:#}"
            );
        }
    });
}

#[test]
fn what_a_step_writes_is_bounded_and_obeyed_by_nobody() {
    world::run(async |world| {
        let me = world.tenant("builder").await;
        let dockerfile = "FROM busybox\n\
            RUN printf '\\033[2J\\033]0;title\\007 done\\r\\n'\n\
            RUN yes 0123456789 | head -c 20000000\n\
            RUN head -c 10000000 /dev/zero\n";
        let build = Ask::new("noisy", dockerfile).build(&me).await;
        let lines = lines(&me, build["id"].as_str().unwrap()).await;
        let text = |step: u64| {
            let of = lines.iter().filter(|line| line["step"] == step);
            of.map(|line| line["text"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert!(lines.iter().all(|line| !line["text"].as_str().unwrap().contains('\u{1b}')));
        assert!(
            text(1).iter().any(|line| line.contains("\\u{1b}[2J") && line.ends_with("done")),
            "{:?}",
            text(1)
        );
        let kept: usize = text(2).iter().map(String::len).sum();
        assert!((1_000_000..3_000_000).contains(&kept), "{kept}");
        assert!(text(2).iter().any(|line| line.contains("more bytes")), "no note");
        // What follows is small again: one step does not take the room of the next.
        let zeros: usize = text(3).iter().map(String::len).sum();
        assert!(zeros < 20_000_000, "{zeros}");
    });
}

#[test]
fn limits_and_the_network_policy_hold_for_steps() {
    world::run(async |world| {
        let me = world.tenant("builder").await;
        let full = "FROM busybox\nRUN dd if=/dev/zero of=/big bs=1M count=64\n";
        let build = Ask::new("full", full).with("disk_mib", json!(16)).fail(&me).await;
        assert!(build["failure"]["exit_code"].as_i64().is_some_and(|code| code != 0), "{build:#}");
        let poor = world.tenant_with("poor", json!({ "memory_mib": 64 })).await;
        let build = Ask::new("poor", "FROM busybox\nRUN true\n").fail(&poor).await;
        assert_eq!(build["failure"]["code"], "quota_exceeded", "{build:#}");
        Ask::new("poor", "FROM busybox\nRUN true\n").with("memory_mib", json!(32)).build(&poor).await;
        let nowhere =
            "FROM busybox\nRUN ip route 2>&1; wget -T 2 -q -O- http://198.51.100.1/ && exit 9; true\n";
        Ask::new("offline", nowhere).with("network", json!("deny-all")).build(&me).await;
    });
}

#[test]
fn a_context_that_is_no_tar_and_one_that_slips_are_refused() {
    world::run(async |world| {
        let me = world.tenant("builder").await;
        let dockerfile = "FROM busybox\nCOPY . /all\n";
        let mut bad = tar::Header::new_gnu();
        bad.set_size(1);
        bad.set_mode(0o644);
        let name = b"../../etc/cron.d/evil";
        bad.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name);
        bad.set_cksum();
        let mut slip = bad.as_bytes().to_vec();
        slip.extend([b'x'; 512]);
        slip.extend([0; 1_024]);
        for context in [b"this is no tar at all".repeat(100), slip] {
            let build = crate::build::ask::with_context(&me, "slips", dockerfile, context).await;
            assert_eq!(build["status"], "failed", "{build:#}");
            assert_eq!(build["failure"]["code"], "invalid_request", "{build:#}");
        }
    });
}

/// Bytes of zeros behind a small archive.
fn gzip_bomb(mib: u64) -> Vec<u8> {
    let mut archive =
        tar::Builder::new(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best()));
    let mut header = tar::Header::new_gnu();
    header.set_size(mib << 20);
    header.set_mode(0o644);
    archive.append_data(&mut header, "zeros", std::io::Read::take(std::io::repeat(0), mib << 20)).unwrap();
    archive.into_inner().unwrap().finish().unwrap()
}

/// Builds what means harm beside a witness, in bounded time and space.
async fn bounded(world: &World, what: &str, ask: Ask) -> serde_json::Value {
    static BUILDS: AtomicU32 = AtomicU32::new(0);
    let number = BUILDS.fetch_add(1, Ordering::Relaxed);
    let me = world.tenant(&format!("builder-{number}")).await;
    let witness = world.tenant(&format!("witness-{number}")).await;
    let id = witness.create(json!({})).await;
    let (free, begun) = (free_bytes(world), Instant::now());
    let answer = ask.send(&me).await;
    let build = match answer.status {
        200..300 => {
            let building = answer.json()["id"].as_str().unwrap().to_owned();
            let watching = async {
                let mut slowest = Duration::ZERO;
                loop {
                    let asked = Instant::now();
                    assert_eq!(witness.sh(&id, "echo alive").await.text(), "alive", "{what}");
                    slowest = slowest.max(asked.elapsed());
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    let build = crate::build::ask::get(&me, &building).await;
                    if !matches!(build["status"].as_str(), Some("waiting" | "building")) {
                        return slowest;
                    }
                }
            };
            let slowest = watching.await;
            assert!(slowest < Duration::from_secs(5), "{what}: the witness waited {slowest:?}");
            ended(&me, &building).await
        }
        _ => answer.json(),
    };
    assert!(begun.elapsed() < Duration::from_secs(100), "{what}: {:?}", begun.elapsed());
    disk_is_free(world, free, what);
    assert_eq!(
        build.pointer("/failure/code").and_then(|code| code.as_str()).filter(|code| *code == "internal"),
        None,
        "{build:#}"
    );
    witness.remove(&id).await;
    build
}

/// Attack C15: what is small when it is sent, and large when it is unpacked.
#[test]
fn bombs_in_archives_and_copies_of_a_build_are_stopped_at_the_disk_limit() {
    // A quarter of this disk, which a bomb may not take, is more than one step of 2 GiB by which the pool grows.
    let options = Options { disk_mib: Some(10_000), ..Options::default() }.env("ATOLL_DISK_RESERVE", "128m");
    world::run_with(options, async |world| {
        let small = |dockerfile: &str| Ask::new("bomb", dockerfile).with("disk_mib", json!(64));
        let bomb = gzip_bomb(1_024);
        assert!(bomb.len() < 2 << 20);
        let build = bounded(
            world,
            "a bomb in ADD",
            small("FROM busybox\nADD bomb.tar.gz /\n").file("bomb.tar.gz", bomb),
        )
        .await;
        assert_eq!(build["status"], "failed", "{build:#}");
        // More in one step than the limit of a step. The steps of a build together are bounded by the disk reserve alone.
        let noise = atoll_tests::state_model::make(3, 4 << 20);
        let many = (0..24).fold(small("FROM busybox\nCOPY . /noise\n"), |ask, number| {
            ask.file(&format!("noise{number}"), &noise)
        });
        let build = bounded(world, "a large copy", many).await;
        assert_eq!(build["status"], "failed", "{build:#}");
        // A hole of a terabyte in a step, and copied to another stage.
        let hole =
            "FROM busybox AS one\nRUN truncate -s 1024G /hole\nFROM busybox\nCOPY --from=one /hole /hole\n";
        let build = bounded(world, "a hole", small(hole)).await;
        assert_eq!(build["status"], "failed", "{build:#}");
    });
}

/// Attack C15: more instructions, stages and words than any build needs.
#[test]
fn bombs_in_a_dockerfile_are_refused_before_a_step_runs() {
    world::run(async |world| {
        let steps = format!("FROM busybox\n{}", "RUN true\n".repeat(50_000));
        let stages = "FROM busybox\n".repeat(5_000);
        let words: String =
            (0..64).map(|number| format!("ENV A{}=$A{number}$A{number}\n", number + 1)).collect();
        let long = format!("FROM busybox\nRUN echo {}\n", "x".repeat(2 << 20));
        let links = format!("FROM busybox\n{}", "COPY --from=0 / /\n".repeat(2_000));
        for (what, dockerfile) in [
            ("steps", steps),
            ("stages", stages),
            ("words", format!("FROM busybox\nENV A0=xxxxxxxx\n{words}")),
            ("a long line", long),
            ("copies", links),
        ] {
            let refused = bounded(world, what, Ask::new("bomb", &dockerfile)).await;
            let is_refused = refused["code"] == "invalid_request" || refused["code"] == "payload_too_large";
            assert!(is_refused || refused["failure"]["code"] == "invalid_request", "{what}: {refused:#}");
        }
    });
}

/// Attack C15: processes without end, in a step that ends and in one that does not.
#[test]
fn a_fork_bomb_in_a_step_ends_with_the_step() {
    world::run(async |world| {
        let bomb = "f() { f | f & }; f";
        let stays = format!("FROM busybox\nRUN {bomb}; sleep 2; exit 7\n");
        let build = bounded(world, "a fork bomb", Ask::new("forks", &stays)).await;
        assert_eq!(build["status"], "failed", "{build:#}");
        let hangs = format!("FROM busybox\nRUN {bomb}; sleep 1000\n");
        let build =
            bounded(world, "a fork bomb that stays", Ask::new("forks", &hangs).with("timeout_s", json!(10)))
                .await;
        assert_eq!(build["status"], "failed", "{build:#}");
        Ask::new("after", "FROM busybox\nRUN echo after\n").build(&world.tenant("after").await).await;
    });
}
