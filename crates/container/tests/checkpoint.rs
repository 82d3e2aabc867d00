//! Pause, checkpoint and restore, on a real kernel with a real CRIU.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{World, chain, in_world, in_world_with, instance_id, target};
use atoll_agentapi::{AgentClient, ProcessEvent, StartProcess, TerminalSize};
use atoll_container::EngineConfig;
use atoll_model::{InstanceId, MemoryLocation};
use atoll_provider::support::*;
use atoll_provider::{AdoptionOutcome, Booted, InstanceSpec, KnownSandbox, Provider, ProviderError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Whether CRIU is installed; CI requires it.
fn has_criu(world: &World) -> bool {
    let has = world.engine.capabilities().checkpoints;
    assert!(has || std::env::var_os("CI").is_none(), "CI has a CRIU");
    if !has {
        eprintln!("not run: no CRIU");
    }
    has
}

fn built(folder: &Path, name: &str) -> Vec<u8> {
    let program = folder.join(name);
    let source = Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"))
        .join(format!("tests/{name}.c"));
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-static", "-pthread", "-o"]).arg(&program).arg(source).arg("-lutil");
    assert!(cc.status().unwrap().success());
    std::fs::read(program).unwrap()
}

/// A sandbox in which the program `held` runs.
async fn holding(world: &World) -> (InstanceSpec, Booted) {
    let spec = world.spec();
    let booted = world.create(&spec).await;
    let folder = tempfile::tempdir().unwrap();
    let agent = world.agent(&spec, &booted);
    agent.write_bytes("/held", Some("root"), Some(0o755), built(folder.path(), "held")).await.unwrap();
    let address = booted.facts["link"]["address"].as_str().unwrap();
    let line = format!(
        "setsid /held {address} </dev/null >/tmp/out 2>&1 & for i in $(seq 2000); do [ -e /tmp/holding ] && exit 0; usleep 10000; done; cat /tmp/out; exit 1"
    );
    let (code, said) = world.sh(&spec, &booted, &line).await;
    assert_eq!(code, 0, "{said}");
    (spec, booted)
}

/// The report of `held` about the resources that it holds.
async fn report(world: &World, spec: &InstanceSpec, booted: &Booted) -> String {
    let line = "rm -f /tmp/report; printf c > /tmp/ask; for i in $(seq 2000); do [ -e /tmp/report ] && break; usleep 10000; done; cat /tmp/report";
    world.sh(spec, booted, line).await.1
}

/// The next instance of the same sandbox, from its checkpoint.
async fn restore(world: &World, spec: &mut InstanceSpec, before: &Booted) -> Booted {
    spec.instance = instance_id();
    let restored = world.engine.restore(spec).await;
    let mut restored = restored.unwrap_or_else(|error| panic!("restore: {}", chain(&error)));
    assert_eq!(restored.agent_token, None);
    restored.agent_token.clone_from(&before.agent_token);
    restored
}

async fn checkpoint(world: &World, spec: &InstanceSpec) {
    assert_eq!(world.engine.pause(&target(spec)).await.unwrap(), MemoryLocation::Live);
    let done = world.engine.checkpoint(&target(spec)).await;
    done.unwrap_or_else(|error| panic!("checkpoint: {}", chain(&error)));
    assert_eq!(world.engine.pause(&target(spec)).await.unwrap(), MemoryLocation::Disk);
}

fn mounts(pid: i32) -> Vec<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap();
    let of = |line: &str| {
        let (head, tail) = line.split_once(" - ").unwrap();
        let fields: Vec<&str> = head.split(' ').collect();
        let mut options: Vec<&str> = fields[5].split(',').collect();
        options.sort_unstable();
        format!("{} {} {}", fields[4], options.join(","), tail.split(' ').next().unwrap())
    };
    let mut all: Vec<String> = text.lines().map(of).collect();
    all.sort();
    all
}

/// Properties of a sandbox that a restore must not change: its privileges, its view of files, its cgroups and
/// namespaces.
fn identity(booted: &Booted) -> Vec<String> {
    let pid = World::pid(booted);
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let fields = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp:", "NStgid"];
    let last_pid = |line: &str| line.split_whitespace().last().unwrap_or_default().to_owned();
    let mut all: Vec<String> = status
        .lines()
        .filter(|line| fields.iter().any(|field| line.starts_with(field)))
        .map(|line| if line.starts_with("NStgid") { last_pid(line) } else { line.to_owned() })
        .collect();
    let first: u32 = booted.facts["first_id"].as_u64().unwrap().try_into().unwrap();
    let ids = std::fs::read_to_string(format!("/proc/{pid}/uid_map")).unwrap();
    all.push(format!("mapped {}", ids.split_whitespace().nth(1) == Some(&first.to_string())));
    all.push(format!("owned {}", atoll_container::testing::owner_of_users(pid).unwrap() == first));
    let cgroup = booted.facts["cgroup"].as_str().unwrap();
    let cgroups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    all.push(format!("in {} cgroups", cgroups.lines().filter(|line| line.ends_with(cgroup)).count()));
    all.push(format!("limits {}", std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap()));
    all.extend(mounts(pid));
    all
}

#[test]
fn a_frozen_sandbox_stands_still_and_runs_on() {
    in_world(
        |_| {},
        |world| async {
            let spec = world.spec();
            let booted = world.create(&spec).await;
            let line =
                "i=0; while :; do i=$((i+1)); echo $i > /tmp/n; done </dev/null >/dev/null 2>&1 & echo $!";
            world.sh(&spec, &booted, line).await;
            let cpu = async || world.engine.usage(&target(&spec)).await.unwrap().cpu_us;
            let mut took = Vec::new();
            for _ in 0..20 {
                let begun = Instant::now();
                assert_eq!(world.engine.pause(&target(&spec)).await.unwrap(), MemoryLocation::Live);
                let frozen = begun.elapsed();
                let before = cpu().await;
                tokio::time::sleep(Duration::from_millis(10)).await;
                assert_eq!(cpu().await, before, "it stands still");
                assert_eq!(
                    world.engine.pause(&target(&spec)).await.unwrap(),
                    MemoryLocation::Live,
                    "again is fine"
                );
                let begun = Instant::now();
                world.engine.resume(&target(&spec)).await.unwrap();
                took.push((frozen, begun.elapsed()));
                world.engine.resume(&target(&spec)).await.unwrap();
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            took.sort();
            eprintln!("freeze and thaw, sorted by freeze: {took:?}");
            let (code, _) = world.sh(&spec, &booted, "true").await;
            assert_eq!(code, 0);
            world.engine.pause(&target(&spec)).await.unwrap();
            world.engine.halt(&target(&spec)).await.unwrap();
            assert!(matches!(world.engine.pause(&target(&spec)).await, Err(ProviderError::Gone { .. })));
            world.destroy(&spec).await;
            world
        },
    );
}

/// A process that has used up its CPU time must not delay the freeze until the next period.
#[test]
fn a_sandbox_at_its_cpu_limit_freezes_as_quickly() {
    in_world(
        |_| {},
        |world| async {
            let mut spec = world.spec();
            spec.limits.cpu_milli = 100;
            let booted = world.create(&spec).await;
            let line = "for i in 1 2 3; do (while :; do :; done) </dev/null >/dev/null 2>&1 & done; true";
            world.sh(&spec, &booted, line).await;
            let mut took = Vec::new();
            for _ in 0..15 {
                tokio::time::sleep(Duration::from_millis(37)).await;
                let begun = Instant::now();
                world.engine.pause(&target(&spec)).await.unwrap();
                took.push(begun.elapsed());
                world.engine.resume(&target(&spec)).await.unwrap();
            }
            took.sort();
            eprintln!("freeze of a throttled one: {took:?}");
            // Half of a period: one that waited for the next one would often wait longer.
            assert!(took[7] < Duration::from_millis(20), "{took:?}");
            let quota = "cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us 2>/dev/null || echo 10000";
            assert_eq!(world.sh(&spec, &booted, quota).await.1, "10000", "its limit is in force again");
            world.destroy(&spec).await;
            world
        },
    );
}

#[test]
fn a_fork_with_memory_holds_everything_beside_the_one_it_came_from() {
    in_world(
        |_| {},
        |world| async {
            if !has_criu(&world) {
                return world;
            }
            let (spec, booted) = holding(&world).await;
            let snapshot = atoll_model::SnapshotId::from_entropy([5; 20]);
            let made = world.engine.snapshot(&target(&spec), &snapshot, true).await;
            let made = made.unwrap_or_else(|error| panic!("snapshot: {}", chain(&error)));
            assert!(made.memory);
            assert!(report(&world, &spec, &booted).await.starts_with("ok "), "it goes on");
            let mut forks = Vec::new();
            for n in 0..2 {
                let mut fork = world.spec();
                fork.hostname = format!("fork-{n}");
                fork.origin = atoll_provider::FilesOrigin::Snapshot {
                    snapshot: snapshot.clone(),
                    seal: made.seal.clone(),
                    memory: true,
                };
                let mut forked = world.create(&fork).await;
                forked.agent_token.clone_from(&booted.agent_token);
                forks.push((fork, forked));
            }
            let mut seen = vec![(booted.facts["first_id"].clone(), booted.facts["link"]["address"].clone())];
            for (fork, forked) in &forks {
                let said = report(&world, fork, forked).await;
                assert!(said.starts_with("ok "), "{said}");
                assert_eq!(world.sh(fork, forked, "hostname").await.1, fork.hostname);
                let own = (forked.facts["first_id"].clone(), forked.facts["link"]["address"].clone());
                assert!(!seen.contains(&own) && seen.iter().all(|(id, at)| *id != own.0 && *at != own.1));
                seen.push(own);
                assert_eq!(identity(forked), identity(&booted));
            }
            // A fork can be written to disk and restored too, and still has the address that its sockets use.
            let (mut fork, forked) = forks.remove(0);
            checkpoint(&world, &fork).await;
            let again = restore(&world, &mut fork, &forked).await;
            let said = report(&world, &fork, &again).await;
            assert!(said.starts_with("ok "), "{said}");
            assert!(report(&world, &spec, &booted).await.starts_with("ok "));
            for one in [&spec, &fork, &forks[0].0] {
                world.destroy(one).await;
            }
            world.engine.remove_snapshot(&snapshot).await.unwrap();
            world
        },
    );
}

#[test]
fn everything_that_a_process_holds_comes_back_from_disk() {
    comes_back(|_| {});
}

#[test]
fn everything_comes_back_by_the_paths_for_old_kernels() {
    comes_back(|config| config.legacy = Some(true));
}

fn comes_back(adjust: impl FnOnce(&mut EngineConfig) + Send + 'static) {
    in_world(adjust, |world| async {
        if !has_criu(&world) {
            return world;
        }
        let (mut spec, mut booted) = holding(&world).await;
        assert!(report(&world, &spec, &booted).await.starts_with("ok "));
        // A connection whose other end is on the host.
        world.sh(&spec, &booted, "printf o > /tmp/ask").await;
        let mut outside = world.engine.dial(&target(&spec), 7_000).await.unwrap();
        outside.write_all(b"").await.unwrap();
        // The holder has taken the connection when it says so.
        assert!(report(&world, &spec, &booted).await.contains(" outside "));
        let before = identity(&booted);
        let boot_id = "cat /proc/sys/kernel/random/boot_id";
        let booted_as = world.sh(&spec, &booted, boot_id).await.1;
        let machines = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        assert!(booted_as.len() == 36 && booted_as != machines.trim(), "{booted_as}");
        for round in 0..3 {
            let begun = Instant::now();
            checkpoint(&world, &spec).await;
            let dumped = begun.elapsed();
            let status = format!("/proc/{}/statm", World::pid(&booted));
            let memory = std::fs::read_to_string(status).unwrap_or_default();
            assert!(memory.is_empty() || memory.starts_with("0 "), "its memory is free: {memory}");
            let usage = world.engine.usage(&target(&spec)).await;
            assert!(matches!(usage, Err(ProviderError::Gone { .. })));
            let steps = world.engine.memory_timings();
            let begun = Instant::now();
            booted = restore(&world, &mut spec, &booted).await;
            eprintln!(
                "round {round}: checkpoint {dumped:?} {steps:?}, restore {:?} {:?}",
                begun.elapsed(),
                world.engine.memory_timings()
            );
            let said = report(&world, &spec, &booted).await;
            // The reader does not wait: it gets an error once, and the end of the stream from then on.
            let told = if round == 0 { " outside ECONN" } else { " outside end" };
            assert!(said.starts_with("ok ") && said.contains(told), "{said}");
            assert_eq!(identity(&booted), before);
            let (_, hostname) = world.sh(&spec, &booted, "hostname").await;
            assert_eq!(hostname, "box");
            assert_eq!(world.sh(&spec, &booted, boot_id).await.1, booted_as);
        }
        // The host's end was closed too.
        let heard = tokio::time::timeout(Duration::from_secs(60), outside.read(&mut [0; 8])).await.unwrap();
        assert!(!matches!(heard, Ok(1..)), "{heard:?}");
        world.engine.halt(&target(&spec)).await.unwrap();
        world.destroy(&spec).await;
        world
    });
}

fn known(spec: &InstanceSpec, instance: &InstanceId, facts: serde_json::Value, paused: bool) -> KnownSandbox {
    KnownSandbox {
        sandbox: spec.sandbox.clone(),
        instance: Some((instance.clone(), facts)),
        storage: spec.storage,
        limits: spec.limits,
        network: std::sync::Arc::clone(&spec.network),
        paused,
    }
}

#[test]
fn a_frozen_and_a_checkpointed_sandbox_are_adopted_as_what_they_are() {
    in_world(
        |_| {},
        |world| async {
            if !has_criu(&world) {
                return world;
            }
            let (mut disk, was_disk) = holding(&world).await;
            let live = world.spec();
            let was_live = world.create(&live).await;
            checkpoint(&world, &disk).await;
            world.engine.pause(&target(&live)).await.unwrap();
            let world = world.reopen().await;
            let fates = world.engine.adopt(
                vec![
                    known(&disk, &disk.instance, was_disk.facts.clone(), true),
                    known(&live, &live.instance, was_live.facts.clone(), true),
                ],
                Vec::new(),
            );
            let fates: Vec<AdoptionOutcome> = fates.await.unwrap().iter().map(|one| one.fate).collect();
            assert_eq!(fates, [AdoptionOutcome::Checkpointed, AdoptionOutcome::Frozen]);
            let frozen = world.engine.usage(&target(&live)).await.unwrap().cpu_us;
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert_eq!(world.engine.usage(&target(&live)).await.unwrap().cpu_us, frozen);
            world.engine.resume(&target(&live)).await.unwrap();
            assert_eq!(world.sh(&live, &was_live, "echo on").await, (0, "on".into()));
            // As after a reboot: its pids are invalid, its memory is still on disk.
            let mut elsewhere = was_disk.facts.clone();
            elsewhere["boot_id"] = "another".into();
            let again = vec![
                known(&disk, &disk.instance, elsewhere, true),
                known(&live, &live.instance, was_live.facts.clone(), false),
            ];
            let fates: Vec<AdoptionOutcome> =
                world.engine.adopt(again, Vec::new()).await.unwrap().iter().map(|one| one.fate).collect();
            assert_eq!(fates, [AdoptionOutcome::Checkpointed, AdoptionOutcome::Alive]);
            let restored = restore(&world, &mut disk, &was_disk).await;
            assert!(report(&world, &disk, &restored).await.starts_with("ok "));
            // A checkpoint that is not wanted any more is removed.
            checkpoint(&world, &disk).await;
            let unwanted = vec![
                known(&disk, &disk.instance, restored.facts.clone(), false),
                known(&live, &live.instance, was_live.facts.clone(), false),
            ];
            let fates: Vec<AdoptionOutcome> =
                world.engine.adopt(unwanted, Vec::new()).await.unwrap().iter().map(|one| one.fate).collect();
            assert_eq!(fates, [AdoptionOutcome::Gone, AdoptionOutcome::Alive]);
            let left: Vec<_> =
                std::fs::read_dir(world.config.data.join("pool/checkpoints")).unwrap().flatten().collect();
            assert!(left.is_empty(), "{left:?}");
            world.destroy(&disk).await;
            world.destroy(&live).await;
            world
        },
    );
}

#[test]
fn a_restore_that_nobody_wrote_down_is_found_and_one_that_did_not_end_leaves_the_checkpoint() {
    in_world(
        |_| {},
        |world| async {
            if !has_criu(&world) {
                return world;
            }
            let (mut spec, booted) = holding(&world).await;
            checkpoint(&world, &spec).await;
            // The instance has an id and no facts: its restore had not finished.
            let next = instance_id();
            let world = world.reopen().await;
            let half = vec![known(&spec, &next, serde_json::Value::Null, true)];
            let fates = world.engine.adopt(half, Vec::new()).await.unwrap();
            assert_eq!((fates[0].fate, &fates[0].facts), (AdoptionOutcome::Checkpointed, &None));
            let restored = restore(&world, &mut spec, &booted).await;
            let world = world.reopen().await;
            let unwritten = vec![known(&spec, &spec.instance, serde_json::Value::Null, true)];
            let fates = world.engine.adopt(unwritten, Vec::new()).await.unwrap();
            assert_eq!(
                (fates[0].fate, fates[0].facts.as_ref()),
                (AdoptionOutcome::Alive, Some(&restored.facts))
            );
            assert!(report(&world, &spec, &restored).await.starts_with("ok "));
            world.destroy(&spec).await;
            world
        },
    );
}

/// Attack A17.
#[test]
fn a_damaged_checkpoint_is_refused_and_stays_what_it_is() {
    in_world(
        |_| {},
        |world| async {
            if !has_criu(&world) {
                return world;
            }
            let (mut spec, booted) = holding(&world).await;
            checkpoint(&world, &spec).await;
            let images =
                world.config.data.join("pool/checkpoints").join(spec.sandbox.as_str()).join("images");
            let pages = std::fs::read_dir(&images).unwrap().flatten().map(|entry| entry.path());
            let pages = pages.max_by_key(|path| path.metadata().unwrap().len()).unwrap();
            let whole = std::fs::read(&pages).unwrap();
            let mut damaged = whole.clone();
            damaged[whole.len() / 2] ^= 1;
            std::fs::write(&pages, damaged).unwrap();
            let before = spec.instance.clone();
            spec.instance = instance_id();
            let refused = world.engine.restore(&spec).await;
            assert!(matches!(refused, Err(ProviderError::Damaged { .. })), "{refused:?}");
            std::fs::write(&pages, whole).unwrap();
            spec.instance = before;
            let restored = restore(&world, &mut spec, &booted).await;
            assert!(report(&world, &spec, &restored).await.starts_with("ok "));
            // The checkpoint is spent: it cannot be restored twice.
            world.engine.halt(&target(&spec)).await.unwrap();
            spec.instance = instance_id();
            assert!(matches!(world.engine.restore(&spec).await, Err(ProviderError::Gone { .. })));
            world.destroy(&spec).await;
            world
        },
    );
}

#[test]
fn what_cannot_be_dumped_stays_frozen_and_runs_on() {
    in_world(
        |_| {},
        |world| async {
            if !has_criu(&world) {
                return world;
            }
            let mut spec = world.spec();
            spec.storage = atoll_model::Storage::Memory;
            let booted = world.create(&spec).await;
            world.engine.pause(&target(&spec)).await.unwrap();
            let refused = world.engine.checkpoint(&target(&spec)).await;
            assert!(matches!(refused, Err(ProviderError::Unsupported { .. })), "{refused:?}");
            assert_eq!(world.engine.pause(&target(&spec)).await.unwrap(), MemoryLocation::Live);
            world.engine.resume(&target(&spec)).await.unwrap();
            assert_eq!(world.sh(&spec, &booted, "echo on").await, (0, "on".into()));
            world.destroy(&spec).await;
            world
        },
    );
}

#[test]
fn a_restored_sandbox_is_shut_in_as_a_fresh_one() {
    in_world(
        |_| {},
        |world| async {
            if !has_criu(&world) {
                return world;
            }
            let mut spec = world.spec();
            let booted = world.create(&spec).await;
            let folder = tempfile::tempdir().unwrap();
            let probe = built(folder.path(), "probe");
            world
                .agent(&spec, &booted)
                .write_bytes("/probe", Some("root"), Some(0o755), probe)
                .await
                .unwrap();
            // Ways out of the sandbox, and what it sees of the machine.
            let look = "/probe; cat /proc/self/cgroup /proc/self/uid_map /proc/self/limits; stat -c '%n %a %u %g %t %T' / /* /.atoll/* /dev/*; ls /sys/class/net; cat /proc/mounts | sort; for f in mem maps environ; do cat /proc/1/$f >/dev/null 2>&1; echo $f $?; done; id";
            let before = world.sh(&spec, &booted, look).await;
            checkpoint(&world, &spec).await;
            let restored = restore(&world, &mut spec, &booted).await;
            let after = world.sh(&spec, &restored, look).await;
            // The host ids differ, and only the overlay of a new layer has `uuid=on`.
            let lines = |said: &str, booted: &Booted| -> Vec<String> {
                let first = booted.facts["first_id"].as_u64().unwrap();
                let said = said.replace(&first.to_string(), "ID").replace(&(first + 5).to_string(), "ID+5");
                said.replace(",uuid=on", "").lines().map(str::to_owned).collect()
            };
            let (was, is) = (lines(&before.1, &booted), lines(&after.1, &restored));
            let lost: Vec<_> = was.iter().filter(|line| !is.contains(line)).collect();
            let new: Vec<_> = is.iter().filter(|line| !was.contains(line)).collect();
            assert!(lost.is_empty() && new.is_empty(), "lost {lost:#?}, new {new:#?}");
            world.destroy(&spec).await;
            world
        },
    );
}

/// Types a line and waits until the screen shows what is expected.
async fn typed(agent: &AgentClient, terminal: u32, line: &str, expected: &str) {
    let mut screen = agent.attach(terminal, false).await.unwrap();
    agent.send_stdin(terminal, format!("{line}\n")).await.unwrap();
    let mut seen = String::new();
    let shown = async {
        while !seen.contains(expected) {
            if let Some(Ok(ProcessEvent::Pty(bytes))) = screen.next().await {
                seen.push_str(&String::from_utf8_lossy(&bytes));
            }
        }
    };
    let in_time = tokio::time::timeout(Duration::from_secs(60), shown).await.is_ok();
    assert!(in_time, "{line:?} shows {seen:?}");
}

#[test]
fn a_shell_with_job_control_goes_on_with_its_jobs() {
    in_world(
        |_| {},
        |world| async {
            if !has_criu(&world) {
                return world;
            }
            let mut spec = world.spec();
            let mut booted = world.create(&spec).await;
            let agent = world.agent(&spec, &booted);
            let shell = StartProcess {
                cmd: "/bin/sh".into(),
                args: vec!["-i".into()],
                pty: Some(TerminalSize { cols: 90, rows: 30 }),
                ..StartProcess::default()
            };
            let (terminal, screen) = agent.start(shell).await.unwrap();
            drop(screen);
            typed(
                &agent,
                terminal.pid,
                "cd /tmp; MARK=kept; sleep 1000 & echo started=$((1+1))",
                "started=2",
            )
            .await;
            for _ in 0..2 {
                checkpoint(&world, &spec).await;
                booted = restore(&world, &mut spec, &booted).await;
                let agent = world.agent(&spec, &booted);
                let line = "echo at=$(pwd) mark=$MARK size=$(stty size)";
                typed(&agent, terminal.pid, line, "at=/tmp mark=kept size=30 90").await;
                typed(&agent, terminal.pid, "jobs", "sleep 1000").await;
            }
            let agent = world.agent(&spec, &booted);
            typed(&agent, terminal.pid, "kill %1; wait; echo over=$((2+2))", "over=4").await;
            world.destroy(&spec).await;
            world
        },
    );
}

/// A crash between the rename and the end of the processes leaves both.
#[test]
fn where_a_frozen_tree_and_its_checkpoint_are_both_there_the_checkpoint_is_kept() {
    in_world(
        |_| {},
        |world| async {
            if !has_criu(&world) {
                return world;
            }
            let (mut spec, booted) = holding(&world).await;
            checkpoint(&world, &spec).await;
            let whole = world.config.data.join("pool/checkpoints").join(spec.sandbox.as_str());
            let aside = world.config.data.join("aside");
            let copy = |from: &Path, to: &Path| {
                assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
            };
            copy(&whole, &aside);
            let restored = restore(&world, &mut spec, &booted).await;
            world.engine.pause(&target(&spec)).await.unwrap();
            copy(&aside, &whole);
            // Also half of a dump that no process writes any more.
            copy(&aside, &whole.with_extension("tmp"));
            let world = world.reopen().await;
            let paused = vec![known(&spec, &spec.instance, restored.facts.clone(), true)];
            let fates = world.engine.adopt(paused, Vec::new()).await.unwrap();
            // Some of the processes may have been killed already; the checkpoint has all of them.
            assert_eq!(fates[0].fate, AdoptionOutcome::Checkpointed);
            assert!(whole.exists() && !whole.with_extension("tmp").exists());
            let again = restore(&world, &mut spec, &restored).await;
            assert!(report(&world, &spec, &again).await.starts_with("ok "));
            world.destroy(&spec).await;
            world
        },
    );
}

#[test]
fn a_launcher_that_dies_half_way_costs_nothing() {
    in_world(
        |_| {},
        |world| async {
            if !has_criu(&world) {
                return world;
            }
            let (mut spec, mut booted) = holding(&world).await;
            let kill = async |after: u64| {
                tokio::time::sleep(Duration::from_millis(after)).await;
                if let Some(pid) = world.engine.launcher_pid().await {
                    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
                }
            };
            for after in [0, 15, 22, 30, 40, 80] {
                world.engine.pause(&target(&spec)).await.unwrap();
                let place = target(&spec);
                let (done, ()) = tokio::join!(world.engine.checkpoint(&place), kill(after));
                match done {
                    Ok(()) => assert_eq!(world.engine.pause(&place).await.unwrap(), MemoryLocation::Disk),
                    Err(error) => {
                        eprintln!("killed after {after} ms: {}", chain(&error));
                        assert_eq!(world.engine.pause(&place).await.unwrap(), MemoryLocation::Live);
                        checkpoint(&world, &spec).await;
                    }
                }
                let before = spec.instance.clone();
                spec.instance = instance_id();
                let (done, ()) = tokio::join!(world.engine.restore(&spec), kill(after));
                booted = match done {
                    Ok(restored) => Booted { agent_token: booted.agent_token.clone(), ..restored },
                    Err(error) => {
                        eprintln!("killed after {after} ms: {}", chain(&error));
                        spec.instance = before;
                        restore(&world, &mut spec, &booted).await
                    }
                };
                let said = report(&world, &spec, &booted).await;
                assert!(said.starts_with("ok "), "{said}");
            }
            world.destroy(&spec).await;
            world
        },
    );
}

/// A shell at a terminal with job control, a Python interpreter that holds memory, and the duration of each step.
#[test]
#[ignore = "prints figures; needs the Debian template named by ATOLL_TEST_TEMPLATES; run alone with --release"]
fn figures_of_a_python_process_that_holds_50_mb() {
    let templates = std::env::var_os("ATOLL_TEST_TEMPLATES").expect("a folder of templates is named");
    in_world_with(
        Some(templates.into()),
        |_| {},
        |world| async {
            let template = std::env::var("ATOLL_TEST_TEMPLATE").unwrap_or_else(|_| "debian".into());
            let mut spec = world.spec_of(&template);
            let mut booted = world.create(&spec).await;
            let program = "import os,time,hashlib\nm=os.urandom(50<<20)\nh=lambda: hashlib.sha256(m).hexdigest()\nopen('/tmp/first','w').write(h())\nwhile True:\n  time.sleep(0.01)\n  if os.path.exists('/tmp/ask'): os.remove('/tmp/ask'); open('/tmp/again','w').write(h())\n";
            let agent = world.agent(&spec, &booted);
            agent.write_bytes("/tmp/p.py", Some("root"), None, program).await.unwrap();
            let start = "setsid python3 /tmp/p.py </dev/null >/tmp/out 2>&1 & while [ ! -s /tmp/first ]; do sleep 0.02; done";
            assert_eq!(world.sh(&spec, &booted, start).await, (0, String::new()));
            for round in 0..7 {
                let begun = Instant::now();
                world.engine.pause(&target(&spec)).await.unwrap();
                let frozen = begun.elapsed();
                let begun = Instant::now();
                checkpoint(&world, &spec).await;
                let (took, steps) = (begun.elapsed(), world.engine.memory_timings());
                eprintln!("{round}: freeze {frozen:?}, checkpoint {took:?} {steps:?}");
                let begun = Instant::now();
                booted = restore(&world, &mut spec, &booted).await;
                eprintln!("{round}: restore {:?} {:?}", begun.elapsed(), world.engine.memory_timings());
                let ask = "rm -f /tmp/again; touch /tmp/ask; while [ ! -s /tmp/again ]; do sleep 0.01; done; sleep 0.1; cmp /tmp/first /tmp/again";
                assert_eq!(world.sh(&spec, &booted, ask).await, (0, String::new()));
            }
            world.destroy(&spec).await;
            world
        },
    );
}
