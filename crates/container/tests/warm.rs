//! Prepared instances: claimed with their processes, discarded when broken, and never blocking other pools.
#![allow(clippy::unwrap_used)]

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{World, in_world};
use atoll_agentapi::{AgentClient, ProcessEvent, StartProcess};
use atoll_container::EngineConfig;
use atoll_provider::{Prepare, Provider};

/// What the preparation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    /// Starts a shell that prints its pid and waits.
    Waits,
    /// Fails.
    Fails,
    /// Never ends.
    Hangs,
}

#[async_trait::async_trait]
impl Prepare for What {
    fn wants(&self, template: &str) -> bool {
        template == "busybox"
    }

    async fn prepare(&self, _template: &str, agent: AgentClient) -> Result<(), Box<dyn Error + Send + Sync>> {
        match self {
            Self::Waits => {
                let line =
                    "head -c 8 /dev/urandom | md5sum > /tmp/mark; echo ready; while :; do sleep 1000; done";
                let start = StartProcess {
                    cmd: "/bin/sh".into(),
                    args: vec!["-c".into(), line.into()],
                    tag: "warm".into(),
                    ..StartProcess::default()
                };
                let (_, mut stream) = agent.start(start).await?;
                match stream.next().await {
                    Some(Ok(ProcessEvent::Stdout(_))) => Ok(()),
                    other => Err(format!("{other:?}").into()),
                }
            }
            Self::Fails => Err("it can't be".into()),
            Self::Hangs => std::future::pending().await,
        }
    }
}

fn prepared(what: What) -> impl FnOnce(&mut EngineConfig) + Send + 'static {
    move |config| {
        config.pool = [("busybox".to_owned(), 1)].into();
        config.prepare = Some(Arc::new(what));
    }
}

async fn is_ready(world: &World) {
    let begun = Instant::now();
    while world.engine.pool_stats()[0].ready != 1 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", world.engine.pool_stats());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[test]
fn a_claimed_instance_has_what_was_started_in_it_and_nobody_elses() {
    in_world(prepared(What::Waits), |world| async {
        assert!(world.engine.capabilities().prepares);
        let mut marks = Vec::new();
        for _ in 0..2 {
            is_ready(&world).await;
            let spec = world.spec();
            let booted = world.create(&spec).await;
            assert!(booted.from_pool);
            let agent = world.agent(&spec, &booted);
            let running = agent.list().await.unwrap();
            assert_eq!(running.iter().map(|process| process.tag.as_str()).collect::<Vec<_>>(), ["warm"]);
            let mark = world.sh(&spec, &booted, "cat /tmp/mark; hostname").await.1;
            assert!(mark.contains("box"), "{mark}");
            marks.push(mark);
            world.destroy(&spec).await;
        }
        assert_ne!(marks[0], marks[1]);
        world
    });
}

#[test]
fn it_is_the_same_on_an_old_kernel() {
    let adjust = |config: &mut EngineConfig| {
        prepared(What::Waits)(config);
        config.legacy = Some(true);
    };
    in_world(adjust, |world| async {
        is_ready(&world).await;
        let spec = world.spec();
        let booted = world.create(&spec).await;
        assert!(booted.from_pool);
        assert_eq!(world.agent(&spec, &booted).list().await.unwrap().len(), 1);
        world.destroy(&spec).await;
        world
    });
}

#[test]
fn after_a_crash_those_of_before_are_swept_and_new_ones_made() {
    for what in [What::Waits, What::Hangs] {
        in_world(prepared(what), move |world| async move {
            match what {
                What::Waits => is_ready(&world).await,
                _ => tokio::time::sleep(Duration::from_millis(300)).await,
            }
            let world = world.reopen().await;
            world.engine.adopt(Vec::new(), Vec::new()).await.unwrap();
            if what == What::Waits {
                is_ready(&world).await;
                let spec = world.spec();
                assert!(world.create(&spec).await.from_pool);
                world.destroy(&spec).await;
            }
            world
        });
    }
}

#[test]
fn a_sandbox_with_little_memory_gets_one_in_which_nothing_runs() {
    in_world(prepared(What::Waits), |world| async {
        is_ready(&world).await;
        let mut spec = world.spec();
        spec.limits.memory_mib = 64;
        let booted = world.create(&spec).await;
        assert!(!booted.from_pool);
        assert!(world.agent(&spec, &booted).list().await.unwrap().is_empty());
        world.destroy(&spec).await;
        assert_eq!(world.engine.pool_stats()[0].ready, 1, "it still waits for another");
        world
    });
}

#[test]
fn what_can_not_be_prepared_is_thrown_away_and_creates_go_on() {
    in_world(prepared(What::Fails), |world| async {
        let spec = world.spec();
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(world.engine.pool_stats()[0].ready, 0);
        assert!(!world.create(&spec).await.from_pool);
        world.destroy(&spec).await;
        world
    });
}

#[test]
fn an_engine_that_closes_does_not_wait_for_what_hangs() {
    in_world(prepared(What::Hangs), |world| async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let spec = world.spec();
        assert!(!world.create(&spec).await.from_pool, "creates do not wait for it either");
        world.destroy(&spec).await;
        let begun = Instant::now();
        world.engine.close().await;
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
        world
    });
}

#[test]
fn one_whose_process_died_while_it_waited_is_not_given_to_anybody() {
    in_world(prepared(What::Waits), |world| async {
        is_ready(&world).await;
        if world.engine.cgroup_layout() != "v1" {
            return world; // The rest of the test knows the files of v1 only.
        }
        let parent = format!("/sys/fs/cgroup/freezer/atoll-{}", world.engine.block());
        let groups = std::fs::read_dir(parent).unwrap().map(|entry| entry.unwrap().path());
        let tasks = |group: &std::path::Path| -> Vec<String> {
            let all = std::fs::read_to_string(group.join("tasks")).unwrap_or_default();
            all.lines().map(str::to_owned).collect()
        };
        let waits = |pid: &String| {
            let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.contains("urandom") || line.contains("sleep")
        };
        let found = groups.filter(|path| path.is_dir()).find_map(|group| {
            let victims: Vec<String> = tasks(&group).into_iter().filter(waits).collect();
            (!victims.is_empty()).then_some((group, victims))
        });
        let (group, victims) = found.expect("the shell that waits");
        for pid in &victims {
            let pid = rustix::process::Pid::from_raw(pid.parse().unwrap()).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        }
        std::fs::write(group.join("freezer.state"), "THAWED").unwrap();
        let begun = Instant::now();
        // Processes count in the group until they are reaped.
        while victims.iter().any(|pid| std::path::Path::new("/proc").join(pid).exists()) {
            assert!(begun.elapsed() < Duration::from_secs(60));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        std::fs::write(group.join("freezer.state"), "FROZEN").unwrap();
        let spec = world.spec();
        assert!(!world.create(&spec).await.from_pool);
        world.destroy(&spec).await;
        world
    });
}
