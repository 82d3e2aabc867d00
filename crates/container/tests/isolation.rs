//! What a sandbox can see and do, and that its limits are enforced.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use crate::common;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{World, in_world, target};
use atoll_provider::support::*;
use atoll_provider::{Booted, InstanceSpec};

/// The probe, built once per test run as a static program.
fn probe(folder: &Path) -> Vec<u8> {
    build(folder, "probe")
}

fn build(folder: &Path, name: &str) -> Vec<u8> {
    let program = folder.join(name);
    let source = Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"))
        .join(format!("tests/{name}.c"));
    let status =
        Command::new("cc").args(["-O1", "-static", "-o"]).arg(&program).arg(source).status().unwrap();
    assert!(status.success(), "a C compiler with a static libc is there, as Rust needs one too");
    std::fs::read(program).unwrap()
}

async fn put_probe(world: &World, spec: &InstanceSpec, booted: &Booted, bytes: Vec<u8>) {
    world.agent(spec, booted).write_bytes("/probe", Some("root"), Some(0o755), bytes).await.unwrap();
}

fn parse(text: &str) -> BTreeMap<String, i32> {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(name, errno)| (name.to_owned(), errno.parse().unwrap()))
        .collect()
}

#[test]
fn nothing_that_leads_out_works_as_root_inside_and_runc_allows_no_less() {
    in_world(
        |_| {},
        |world| async {
            let spec = world.spec();
            let booted = world.create(&spec).await;
            let folder = tempfile::tempdir().unwrap();
            let bytes = probe(folder.path());
            put_probe(&world, &spec, &booted, bytes.clone()).await;
            let (code, said) = world.sh(&spec, &booted, "/probe").await;
            assert_eq!(code, 0, "{said}");
            let ours = parse(&said);
            assert!(ours.len() > 60, "{said}");
            let worked: Vec<&String> =
                ours.iter().filter(|(_, errno)| **errno == 0).map(|(name, _)| name).collect();
            assert!(worked.is_empty(), "these worked inside: {worked:?}");
            match under_runc(folder.path(), &world.catalog.get("busybox").unwrap().layers[0], &bytes) {
                Some(theirs) => {
                    let more: Vec<&String> = theirs
                        .iter()
                        .filter(|(name, errno)| **errno != 0 && ours.get(*name) == Some(&0))
                        .map(|(name, _)| name)
                        .collect();
                    assert!(more.is_empty(), "ours allows what runc does not: {more:?}");
                    eprintln!(
                        "runc allows {} of {} probes, ours none",
                        theirs.values().filter(|errno| **errno == 0).count(),
                        theirs.len()
                    );
                }
                None => eprintln!("runc is not installed: no oracle"),
            }
            world.destroy(&spec).await;
            world
        },
    );
}

/// The same probe in a runc container with Docker's default capabilities.
fn under_runc(folder: &Path, rootfs: &Path, probe: &[u8]) -> Option<BTreeMap<String, i32>> {
    let bundle = folder.join("bundle");
    std::fs::create_dir_all(&bundle).unwrap();
    let copied = Command::new("cp").arg("-a").arg(rootfs).arg(bundle.join("rootfs")).status().unwrap();
    assert!(copied.success());
    std::fs::write(bundle.join("rootfs/probe"), probe).unwrap();
    std::fs::set_permissions(
        bundle.join("rootfs/probe"),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    if !Command::new("runc").arg("spec").current_dir(&bundle).status().is_ok_and(|status| status.success()) {
        return None;
    }
    let text = std::fs::read(bundle.join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_slice(&text).unwrap();
    config["process"]["terminal"] = false.into();
    config["process"]["args"] = serde_json::json!(["/probe"]);
    config["process"]["rlimits"] = serde_json::json!([]);
    config["root"]["readonly"] = false.into();
    let docker = [
        "CAP_CHOWN",
        "CAP_DAC_OVERRIDE",
        "CAP_FSETID",
        "CAP_FOWNER",
        "CAP_MKNOD",
        "CAP_NET_RAW",
        "CAP_SETGID",
        "CAP_SETUID",
        "CAP_SETFCAP",
        "CAP_SETPCAP",
        "CAP_NET_BIND_SERVICE",
        "CAP_SYS_CHROOT",
        "CAP_KILL",
        "CAP_AUDIT_WRITE",
    ];
    for set in ["bounding", "effective", "permitted"] {
        config["process"]["capabilities"][set] = serde_json::json!(docker);
    }
    std::fs::write(bundle.join("config.json"), serde_json::to_vec(&config).unwrap()).unwrap();
    let name = format!("atoll-oracle-{}", std::process::id());
    let state = folder.join("state");
    let output = Command::new("runc")
        .arg("--root")
        .arg(&state)
        .args(["run", &name])
        .current_dir(&bundle)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    Some(parse(&text))
}

#[test]
fn what_the_kernel_counts_per_user_or_per_machine_no_sandbox_takes_from_others() {
    in_world(
        |_| {},
        |world| async {
            let folder = tempfile::tempdir().unwrap();
            let bytes = build(folder.path(), "hoard");
            let (greedy, neighbour) = (world.spec(), world.spec());
            let (one, other) = (world.create(&greedy).await, world.create(&neighbour).await);
            put_probe(&world, &greedy, &one, bytes.clone()).await;
            put_probe(&world, &neighbour, &other, bytes).await;
            let line =
                "/probe all >/tmp/had 2>&1 & while ! grep -q took /tmp/had; do sleep 0.1; done; cat /tmp/had";
            let (code, said) = world.sh(&greedy, &one, line).await;
            assert_eq!(code, 0, "{said}");
            let took: Vec<i64> = said
                .lines()
                .find_map(|line| line.strip_prefix("took "))
                .unwrap_or_default()
                .split(' ')
                .map(|number| number.parse().unwrap())
                .collect();
            let [terminals, events, sockets_mib] = took[..] else { panic!("{said}") };
            // v2 counts socket buffers as memory, so the sandbox's memory limit covers them; v1 has a separate limit.
            let sockets_most =
                if world.engine.cgroup_layout() == "v2" { i64::from(greedy.limits.memory_mib) } else { 128 };
            assert!(
                (1..=128).contains(&terminals) && events == 0 && (1..=sockets_most).contains(&sockets_mib),
                "{said}"
            );
            let (code, said) = world.sh(&neighbour, &other, "/probe one").await;
            assert_eq!((code, said.as_str()), (0, "had 1 1 1\ntook 1 0 0"), "a neighbour has its own");
            let host = Command::new(folder.path().join("hoard")).arg("one").output().unwrap();
            let host = String::from_utf8_lossy(&host.stdout).into_owned();
            assert!(host.starts_with("had 1 1 1\ntook 1 1000 "), "and so has the host: {host}");
            world.destroy(&greedy).await;
            world.destroy(&neighbour).await;
            world
        },
    );
}

#[test]
fn credentials_mounts_and_devices_are_exactly_as_documented() {
    in_world(
        |_| {},
        |world| async {
            let spec = world.spec();
            let booted = world.create(&spec).await;
            let (_, status) = world.sh(&spec, &booted, "cat /proc/self/status").await;
            let field = |name: &str| {
                status
                    .lines()
                    .find_map(|line| line.strip_prefix(name))
                    .map(|value| value.trim().to_owned())
                    .unwrap()
            };
            assert_eq!(field("CapBnd:"), "00000000800405fb");
            assert_eq!(field("CapEff:"), "00000000800405fb");
            assert_eq!((field("CapInh:"), field("CapAmb:")), ("0".repeat(16), "0".repeat(16)));
            assert_eq!((field("Seccomp:"), field("NoNewPrivs:")), ("2".into(), "1".into()));
            let (_, maps) = world.sh(&spec, &booted, "cat /proc/self/uid_map /proc/self/gid_map").await;
            let first = booted.facts["first_id"].as_u64().unwrap();
            assert!(first >= 1 << 28);
            for line in maps.lines() {
                assert_eq!(line.split_whitespace().collect::<Vec<_>>(), ["0", &first.to_string(), "65536"]);
            }
            let (_, cgroups) = world
                .sh(&spec, &booted, "cut -d: -f3 /proc/self/cgroup | sort -u; ls /sys/fs/cgroup | wc -l")
                .await;
            assert!(cgroups.lines().next().unwrap() == "/" && !cgroups.contains("atoll-"), "{cgroups}");
            let (_, dev) = world
                .sh(
                    &spec,
                    &booted,
                    "ls /dev; touch /dev/x; stat -c %u:%g /dev/null / /.atoll /.atoll/atoll-agent",
                )
                .await;
            assert!(
                dev.starts_with(
                    "fd\nfull\nnull\nptmx\npts\nrandom\nshm\nstderr\nstdin\nstdout\ntty\nurandom\nzero"
                ),
                "{dev}"
            );
            assert!(dev.contains("Read-only file system") && dev.matches("0:0").count() == 4, "{dev}");
            let (_, mounts) = world.sh(&spec, &booted, "cat /proc/self/mountinfo").await;
            assert!(mounts.lines().count() < 30, "{mounts}");
            // Nothing reveals the path of the server's folder: neither the root of a mount nor the backing file of the
            // pool's loop device.
            assert!(!mounts.contains("/var/tmp") && !mounts.contains("atoll-engine-"), "{mounts}");
            let look = "cat /sys/block/*/loop/backing_file /sys/class/block/*/loop/backing_file /sys/dev/block/*/loop/backing_file; \
                        find /sys/devices/virtual/block -mindepth 1";
            let (_, backing) = world.sh(&spec, &booted, look).await;
            assert!(!backing.contains("/var/tmp") && !backing.contains("pool."), "{backing}");
            let root = mounts.lines().find(|line| line.contains(" / / ")).unwrap();
            assert!(root.contains("nodev") && root.contains("nosuid") && root.contains("overlay"), "{root}");
            let (code, said) = world
                .sh(&spec, &booted, "echo x > /.atoll/atoll-agent || mv /.atoll /x || rmdir /.atoll")
                .await;
            assert_ne!(code, 0, "{said}");
            let (_, limits) = world.sh(&spec, &booted, "ulimit -c; ulimit -n").await;
            assert_eq!(limits.lines().next(), Some("0"));
            world.destroy(&spec).await;
            world
        },
    );
}

#[test]
fn a_template_with_links_in_place_of_our_folders_is_refused() {
    in_world(
        |_| {},
        |world| async {
            for (name, target_of_link) in
                [("proc", "/etc"), ("dev", "/tmp"), (".atoll", "/bin"), ("sys", "tmp")]
            {
                let rootfs = world.catalog.get("busybox").unwrap().layers[0].clone();
                let victim = rootfs.join(name);
                let had = victim.exists();
                let _ = std::fs::remove_dir_all(&victim);
                std::os::unix::fs::symlink(target_of_link, &victim).unwrap();
                let spec = world.spec();
                let refused = world.engine_create(&spec).await.expect_err("a link is no folder");
                assert!(refused.contains(&format!("/{name}")), "{refused}");
                std::fs::remove_file(&victim).unwrap();
                if had {
                    std::fs::create_dir(&victim).unwrap();
                }
            }
            world
        },
    );
}

#[test]
fn memory_pids_disk_and_cpu_limits_hold() {
    in_world(
        |_| {},
        |world| async {
            let mut spec = world.spec();
            spec.limits.pids = 24;
            spec.limits.disk_mib = 32;
            spec.limits.cpu_milli = 250;
            spec.limits.memory_mib = 128;
            let booted = world.create(&spec).await;
            let (_, said) = world.sh(&spec, &booted, "dd if=/dev/zero of=/root/big bs=1M count=100; sync; stat -c %s /root/big; rm /root/big && echo removed").await;
            let size: u64 = said.lines().find_map(|line| line.parse().ok()).unwrap();
            assert!(size <= 33 << 20 && said.contains("removed"), "{said}");
            // A fork bomb reaches its limit, and the sandbox still ends quickly.
            let bomb = "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26; do sleep 60 & done 2>&1; echo over";
            let (_, said) = world.sh(&spec, &booted, bomb).await;
            assert!(said.contains("fork"), "{said}");
            let parent =
                format!("atoll-{}/{}", world.engine.block(), booted.facts["cgroup"].as_str().unwrap());
            let read = |file: &str| {
                std::fs::read_to_string(Path::new("/sys/fs/cgroup").join(file)).unwrap().trim().to_owned()
            };
            let (cpu, memory) = match world.engine.cgroup_layout() {
                "v1" => (
                    read(&format!("cpu/{parent}/cpu.cfs_quota_us")),
                    read(&format!("memory/{parent}/memory.limit_in_bytes")),
                ),
                _ => (read(&format!("{parent}/cpu.max")), read(&format!("{parent}/memory.max"))),
            };
            assert_eq!(cpu.split(' ').next(), Some("25000"));
            assert_eq!(memory, (128u64 << 20).to_string());
            let begun = Instant::now();
            world.destroy(&spec).await;
            assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
            world
        },
    );
}

#[test]
fn usage_and_limits_follow_a_resize() {
    use atoll_provider::Provider;
    in_world(
        |_| {},
        |world| async {
            let spec = world.spec();
            let booted = world.create(&spec).await;
            world.sh(&spec, &booted, "head -c 8m /dev/urandom > /root/eight; sync").await;
            let usage = world.engine.usage(&target(&spec)).await.unwrap();
            assert!((8 << 20..10 << 20).contains(&usage.disk_bytes.unwrap()), "{usage:?}");
            assert!(usage.cpu_us > 0);
            let mut limits = spec.limits;
            limits.disk_mib = 12;
            world.engine.resize(&target(&spec), &limits).await.unwrap();
            let (_, said) = world
                .sh(&spec, &booted, "head -c 8m /dev/urandom > /root/more; sync; stat -c %s /root/more")
                .await;
            let size: u64 = said.lines().find_map(|line| line.parse().ok()).unwrap();
            assert!(size < 5 << 20, "{said}");
            world.destroy(&spec).await;
            world
        },
    );
}

#[test]
fn a_full_disk_can_be_enlarged_and_a_sandbox_with_one_starts_again() {
    use atoll_provider::Provider;
    in_world(
        |_| {},
        |world| async {
            const FILL: &str = "head -c 40m /dev/urandom > /root/fill; sync; echo x > /root/one-more";
            let mut spec = world.spec();
            spec.limits.disk_mib = 16;
            let booted = world.create(&spec).await;
            let (code, said) = world.sh(&spec, &booted, FILL).await;
            assert_ne!(code, 0, "{said}");
            world.engine.halt(&target(&spec)).await.unwrap();
            spec.instance = common::instance_id();
            let booted = world.engine.boot(&spec).await.unwrap_or_else(|e| panic!("{}", common::chain(&e)));
            let (code, said) =
                world.sh(&spec, &booted, "sync; head -c 1m /dev/urandom > /root/more && sync").await;
            assert_ne!(code, 0, "it is as full as before: {said}");
            spec.limits.disk_mib = 32;
            world.engine.resize(&target(&spec), &spec.limits).await.unwrap();
            let (code, said) = world.sh(&spec, &booted, "head -c 1m /dev/urandom > /root/more && sync").await;
            assert_eq!(code, 0, "{said}");
            // Changes made while the sandbox was stopped apply from its start.
            world.engine.halt(&target(&spec)).await.unwrap();
            (spec.instance, spec.limits.disk_mib) = (common::instance_id(), 20);
            let booted = world.engine.boot(&spec).await.unwrap_or_else(|e| panic!("{}", common::chain(&e)));
            let (code, said) = world.sh(&spec, &booted, FILL).await;
            assert_ne!(code, 0, "{said}");
            let usage = world.engine.usage(&target(&spec)).await.unwrap();
            assert!(usage.disk_bytes.unwrap() < 21 << 20, "{usage:?}");
            world.destroy(&spec).await;
            world
        },
    );
}

#[test]
fn a_memory_limit_below_what_is_used_is_refused_by_name() {
    use atoll_provider::ProviderError;
    in_world(
        |_| {},
        |world| async {
            let mut spec = world.spec();
            spec.limits.memory_mib = 128;
            let booted = world.create(&spec).await;
            let (code, said) = world.sh(&spec, &booted, "head -c 64m /dev/zero > /dev/shm/held").await;
            assert_eq!(code, 0, "{said}");
            let less = atoll_model::Limits { memory_mib: 32, ..spec.limits };
            match world.engine.resize(&target(&spec), &less).await {
                Err(ProviderError::BelowUse { what: "memory_mib", .. }) => {}
                // v2 frees memory by killing processes.
                Ok(()) => assert!(!Path::new("/sys/fs/cgroup/memory").exists()),
                Err(other) => panic!("{}", common::chain(&other)),
            }
            world.destroy(&spec).await;
            world
        },
    );
}

#[test]
fn the_host_template_shows_usr_and_nothing_else_of_the_host() {
    in_world(
        |_| {},
        |world| async {
            let canary = tempfile::Builder::new().prefix("atoll-canary").tempfile_in("/tmp").unwrap();
            let spec = world.spec_of("host");
            let booted = world.create(&spec).await;
            let line = "ls /usr/bin/env && touch /usr/bin/mine && ls /usr/bin/mine; ls /tmp /root /home; cat /etc/shadow | head -2; ls /etc/ssh 2>&1";
            let (_, said) = world.sh(&spec, &booted, line).await;
            assert!(said.starts_with("/usr/bin/env\n/usr/bin/mine"), "{said}");
            assert!(!said.contains("atoll-canary") && !said.contains("$y$"), "{said}");
            assert!(!Path::new("/usr/bin/mine").exists());
            world.destroy(&spec).await;
            drop(canary);
            world
        },
    );
}

#[test]
fn setuid_programs_work_in_sudo_templates_only_and_within_the_same_bounds() {
    in_world(
        |_| {},
        |world| async {
            let folder = tempfile::tempdir().unwrap();
            let source = folder.path().join("who.c");
            std::fs::write(
                &source,
                "#include <stdio.h>\n#include <unistd.h>\nint main(void) { printf(\"%d\\n\", geteuid()); }\n",
            )
            .unwrap();
            let program = folder.path().join("who");
            assert!(
                Command::new("cc")
                    .args(["-static", "-o"])
                    .args([&program, &source])
                    .status()
                    .unwrap()
                    .success()
            );
            let bytes = std::fs::read(&program).unwrap();
            let manifest = world.config.data.join("templates/busybox/manifest.json");
            for sudo in [false, true] {
                let mut record: serde_json::Value =
                    serde_json::from_slice(&std::fs::read(&manifest).unwrap()).unwrap();
                record["sudo"] = sudo.into();
                std::fs::write(&manifest, serde_json::to_vec(&record).unwrap()).unwrap();
                let spec = world.spec();
                let booted = world.create(&spec).await;
                put_probe(&world, &spec, &booted, bytes.clone()).await;
                let line = "grep -E 'NoNewPrivs|Seccomp:|CapBnd' /proc/self/status; chmod 4755 /probe";
                let (_, said) = world.sh(&spec, &booted, line).await;
                for expected in [
                    &format!("NoNewPrivs:\t{}", i32::from(!sudo)),
                    "Seccomp:\t2",
                    "CapBnd:\t00000000800405fb",
                ] {
                    assert!(said.contains(expected), "{said}");
                }
                let (_, said) = world
                    .sh_as(&spec, &booted, "user", "/probe; mount -t tmpfs none /tmp; unshare -U true")
                    .await;
                assert_eq!(said.starts_with("0\n"), sudo, "{said}");
                assert!(
                    said.contains("mount: permission denied") && said.contains("Operation not permitted"),
                    "{said}"
                );
                world.destroy(&spec).await;
            }
            world
        },
    );
}

#[test]
fn the_pool_grows_before_a_sandbox_meets_its_end() {
    in_world(
        |_| {},
        |world| async {
            let mut spec = world.spec();
            spec.limits.disk_mib = 5_000;
            let booted = world.create(&spec).await;
            let pool = world.config.data.join("pool");
            let begun = Instant::now();
            while rustix::fs::statvfs(&pool).map(|fs| fs.f_bavail * fs.f_frsize).unwrap() < 5_000 << 20 {
                assert!(begun.elapsed() < Duration::from_secs(60), "the pool does not grow");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let (code, said) =
                world.sh(&spec, &booted, "fallocate -l 4g /root/large && stat -c %s /root/large").await;
            assert_eq!((code, said.as_str()), (0, "4294967296"));
            world.destroy(&spec).await;
            world
        },
    );
}
