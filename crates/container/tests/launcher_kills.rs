//! The launcher is killed in the middle of every operation that needs it. Another one does the operation, and no caller
//! notices.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::snapshot_helpers::snapshot_id;
use crate::common::{World, chain, in_world, instance_id, target};
use atoll_container::{EngineConfig, FailPoint};
use atoll_provider::support::*;
use atoll_provider::{Booted, FilesOrigin, InstanceSpec, Provider};
use rustix::process::{Pid, Signal, kill_process};

/// A place, and the launcher that is killed when it is reached.
type Trap = Arc<Mutex<Option<(&'static str, u32)>>>;

fn with_trap(trap: &Trap) -> impl FnOnce(&mut EngineConfig) + Send + 'static {
    let trap = Arc::clone(trap);
    move |config| {
        config.failpoint = FailPoint::new(move |place| {
            let sprung = trap.lock().unwrap().take_if(|(wanted, _)| *wanted == place);
            if let Some((_, pid)) = sprung {
                signal(pid, Signal::KILL);
            }
        });
    }
}

/// Sends a signal to this test's own launcher.
fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), signal).unwrap();
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Create,
    Boot,
    Checkpoint,
    Restore,
    /// A sandbox with the memory of a snapshot.
    Fork,
}

impl Operation {
    /// The named places at which the launcher is killed.
    fn places(self) -> &'static [&'static str] {
        match self {
            Self::Create | Self::Boot => &["start.prepared", "start.spawned", "start.connected"],
            Self::Checkpoint => &["dump.begin", "dump.started", "dump.written"],
            Self::Restore => &["restore.prepared", "restore.started", "restore.connected", "restore.frozen"],
            Self::Fork => &["restore.prepared", "restore.started"],
        }
    }
}

const ALL: [Operation; 5] =
    [Operation::Create, Operation::Boot, Operation::Checkpoint, Operation::Restore, Operation::Fork];

/// A sandbox in the state that an operation begins with.
struct Subject {
    spec: InstanceSpec,
    booted: Booted,
}

async fn prepared(world: &World, operation: Operation) -> Subject {
    let mut spec = world.spec();
    if operation == Operation::Create {
        return Subject {
            spec,
            booted: Booted { facts: serde_json::Value::Null, agent_token: None, from_pool: false },
        };
    }
    let booted = world.create(&spec).await;
    let (code, said) =
        world.sh(&spec, &booted, "echo kept >/kept; setsid sleep 1000 >/dev/null 2>&1 &").await;
    assert_eq!(code, 0, "{said}");
    match operation {
        Operation::Create | Operation::Checkpoint => {
            world.engine.pause(&target(&spec)).await.unwrap();
        }
        Operation::Boot => {
            world.engine.halt(&target(&spec)).await.unwrap();
            spec.instance = instance_id();
        }
        Operation::Restore => {
            world.engine.pause(&target(&spec)).await.unwrap();
            world.engine.checkpoint(&target(&spec)).await.unwrap();
            spec.instance = instance_id();
        }
        Operation::Fork => {}
    }
    Subject { spec, booted }
}

/// Does the operation, and says what went wrong.
async fn done(world: &World, operation: Operation, subject: &mut Subject) -> Result<(), String> {
    let spec = &subject.spec;
    let booted = match operation {
        Operation::Create => world.engine.create(spec).await,
        Operation::Boot => world.engine.boot(spec).await,
        Operation::Restore => world.engine.restore(spec).await,
        Operation::Checkpoint => {
            return world.engine.checkpoint(&target(spec)).await.map_err(|error| chain(&error));
        }
        Operation::Fork => {
            let snapshot = snapshot_id();
            let made = world.engine.snapshot(&target(spec), &snapshot, true).await;
            let made = made.map_err(|error| chain(&error))?;
            let origin =
                FilesOrigin::Snapshot { snapshot: snapshot.clone(), seal: made.seal.clone(), memory: true };
            let fork = InstanceSpec { origin, ..world.spec() };
            let forked = world.engine.create(&fork).await.map_err(|error| chain(&error));
            let ended = world.engine.destroy(&target(&fork)).await;
            world.engine.remove_snapshot(&snapshot).await.unwrap();
            ended.unwrap();
            return forked.map(drop);
        }
    };
    let booted = booted.map_err(|error| chain(&error))?;
    let agent_token = booted.agent_token.clone().or(subject.booted.agent_token.clone());
    subject.booted = Booted { agent_token, ..booted };
    Ok(())
}

/// Checks that the sandbox works, and removes it.
async fn check(world: &World, operation: Operation, subject: &mut Subject) {
    if operation == Operation::Checkpoint {
        subject.spec.instance = instance_id();
        done(world, Operation::Restore, subject).await.unwrap();
    }
    let line = if operation == Operation::Create { "echo kept" } else { "cat /kept" };
    assert_eq!(world.sh(&subject.spec, &subject.booted, line).await, (0, "kept".to_owned()), "{operation:?}");
    world.destroy(&subject.spec).await;
}

async fn launcher(world: &World) -> u32 {
    loop {
        if let Some(pid) = world.engine.launcher_pid().await {
            return pid;
        }
        // Whatever needs it starts one; a create is the quickest.
        let spec = world.spec();
        world.create(&spec).await;
        world.destroy(&spec).await;
    }
}

fn operations(world: &World) -> Vec<Operation> {
    let needs_memory = |one: &Operation| !matches!(one, Operation::Create | Operation::Boot);
    ALL.into_iter().filter(|one| world.engine.capabilities().checkpoints || !needs_memory(one)).collect()
}

#[test]
fn an_operation_whose_launcher_dies_at_a_step_is_done_by_another() {
    let trap = Trap::default();
    in_world(with_trap(&trap), move |world| async move {
        for operation in operations(&world) {
            for place in operation.places() {
                let mut subject = prepared(&world, operation).await;
                let pid = launcher(&world).await;
                *trap.lock().unwrap() = Some((place, pid));
                let outcome = done(&world, operation, &mut subject).await;
                assert_eq!(outcome, Ok(()), "{operation:?} at {place}");
                assert_eq!(*trap.lock().unwrap(), None, "{operation:?} comes to {place}");
                check(&world, operation, &mut subject).await;
            }
            // The launcher has the request and has done nothing of it.
            let mut subject = prepared(&world, operation).await;
            let pid = launcher(&world).await;
            signal(pid, Signal::STOP);
            let killed = async {
                tokio::time::sleep(Duration::from_millis(100)).await;
                signal(pid, Signal::KILL);
            };
            let (outcome, ()) = tokio::join!(done(&world, operation, &mut subject), killed);
            assert_eq!(outcome, Ok(()), "{operation:?} when it was asked");
            check(&world, operation, &mut subject).await;
        }
        world
    });
}

/// The keepers of a launcher of this test: children that run the same program. Its other children are sandboxes.
fn keepers(launcher: u32) -> Vec<u32> {
    let program = |pid: u32| std::fs::read_link(format!("/proc/{pid}/exe")).ok();
    let children = std::fs::read_to_string(format!("/proc/{launcher}/task/{launcher}/children")).unwrap();
    let children = children.split_whitespace().map(|pid| pid.parse().unwrap());
    children.filter(|child| program(*child).is_some() && program(*child) == program(launcher)).collect()
}

#[test]
fn a_dump_whose_launcher_and_keeper_die_is_done_again() {
    let trap: Trap = Trap::default();
    let adjust = {
        let trap = Arc::clone(&trap);
        move |config: &mut EngineConfig| {
            config.failpoint = FailPoint::new(move |place| {
                let sprung = trap.lock().unwrap().take_if(|(wanted, _)| *wanted == place);
                let Some((_, launcher)) = sprung else { return };
                let keepers = keepers(launcher);
                assert_eq!(keepers.len(), 1);
                signal(launcher, Signal::KILL);
                signal(keepers[0], Signal::KILL);
            });
        }
    };
    in_world(adjust, move |world| async move {
        for operation in [Operation::Checkpoint, Operation::Fork] {
            if !world.engine.capabilities().checkpoints {
                break;
            }
            let mut subject = prepared(&world, operation).await;
            let pid = launcher(&world).await;
            *trap.lock().unwrap() = Some(("dump.started", pid));
            let outcome = done(&world, operation, &mut subject).await;
            assert_eq!(outcome, Ok(()), "{operation:?}");
            assert_eq!(*trap.lock().unwrap(), None, "{operation:?} comes to the place");
            check(&world, operation, &mut subject).await;
        }
        world
    });
}

#[test]
fn no_operation_fails_when_launchers_are_killed_at_any_moment() {
    kill_launchers(30);
}

#[test]
#[ignore = "takes minutes; `scripts/nightly long` runs it"]
fn nightly_no_operation_fails_in_three_hundred_kills() {
    kill_launchers(300);
}

fn kill_launchers(kills: u32) {
    in_world(
        |_| {},
        move |world| async move {
            let operations = operations(&world);
            let mut failures = Vec::new();
            for round in 0..kills {
                let operation = operations[round as usize % operations.len()];
                let mut subject = prepared(&world, operation).await;
                let pid = launcher(&world).await;
                // A start takes some milliseconds, and work with memory a hundred.
                let longest =
                    if matches!(operation, Operation::Create | Operation::Boot) { 8_000 } else { 160_000 };
                let after = Duration::from_micros(u64::from(round) * 7_919 % longest);
                let killed = async {
                    tokio::time::sleep(after).await;
                    signal(pid, Signal::KILL);
                };
                let (outcome, ()) = tokio::join!(done(&world, operation, &mut subject), killed);
                match outcome {
                    Ok(()) => check(&world, operation, &mut subject).await,
                    Err(error) => {
                        failures.push(format!("{operation:?} after {after:?}: {error}"));
                        world.destroy(&subject.spec).await;
                    }
                }
            }
            eprintln!("{} of {kills} failed", failures.len());
            assert_eq!(failures, Vec::<String>::new());
            world
        },
    );
}
