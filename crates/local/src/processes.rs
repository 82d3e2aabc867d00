//! The processes of an instance, and how all of them are ended.
//!
//! With control groups, the kernel knows every process of an instance, whatever it forks and whichever session it joins. Without
//! them, orphans become children of the agent (it is their subreaper), so the tree below the agent is complete while the
//! agent lives; when it is dead, its processes are found by a variable in the environment that they inherited.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use atoll_cgroup::Cgroups;
use atoll_model::InstanceId;
use atoll_provider::InstanceUsage;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::folder::InstanceRecord;

/// Names the instance in the environment of each of its processes.
pub(crate) const INSTANCE_VARIABLE: &str = "ATOLL_INSTANCE";

/// LIMIT: killed processes end within milliseconds, unless a device keeps them.
const ENDS_WITHIN: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(1);
/// LIMIT: how often new processes are looked for before all are killed.
const STOP_ROUNDS: u32 = 20;
/// The kernel's USER_HZ, the same on every supported architecture.
const TICK_US: u64 = 10_000;

/// Finds and ends the processes of instances.
#[derive(Debug, Clone)]
pub(crate) struct InstanceProcesses {
    /// `None`: this machine gives the server no control groups.
    pub(crate) cgroups: Option<Arc<dyn Cgroups>>,
}

/// A process, as `/proc/PID/stat` describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ProcessStat {
    parent: i32,
    started: u64,
    is_dead: bool,
    ticks: u64,
    pages: u64,
}

impl InstanceProcesses {
    /// Ends every process of an instance. When this returns, none is left.
    pub(crate) fn end(&self, record: &InstanceRecord) -> io::Result<()> {
        if record.boot_id != boot_id()? {
            return Ok(());
        }
        match self.cgroups_of(record) {
            Some(cgroups) => {
                // A new agent may not have entered its group yet.
                signal(record.pid, record.started, Signal::KILL)?;
                kill_cgroup(cgroups, record.instance.as_str())?;
                until_gone(|| Ok(start_time(record.pid) != Some(record.started)))
            }
            None => end_tree(record),
        }
    }

    /// Ends every process of an instance, and removes its control groups.
    pub(crate) fn clear(&self, record: &InstanceRecord) -> io::Result<()> {
        self.end(record)?;
        match self.cgroups_of(record) {
            Some(cgroups) => clear_cgroup(cgroups, record.instance.as_str()),
            None => Ok(()),
        }
    }

    fn cgroups_of(&self, record: &InstanceRecord) -> Option<&dyn Cgroups> {
        self.cgroups.as_deref().filter(|_| record.has_cgroup)
    }

    pub(crate) fn usage(&self, record: &InstanceRecord) -> io::Result<InstanceUsage> {
        if let Some(cgroups) = self.cgroups_of(record) {
            let figures = cgroups.figures(record.instance.as_str())?;
            return Ok(InstanceUsage {
                cpu_us: figures.cpu_us,
                memory_bytes: figures.memory_bytes,
                cache_bytes: figures.cache_bytes,
                pids: figures.pids,
                ..InstanceUsage::default()
            });
        }
        let page = rustix::param::page_size() as u64;
        let members = members(record)?;
        Ok(members.values().fold(InstanceUsage::default(), |all, one| InstanceUsage {
            cpu_us: all.cpu_us + one.ticks * TICK_US,
            memory_bytes: all.memory_bytes + one.pages * page,
            pids: all.pids + 1,
            ..all
        }))
    }
}

/// The control groups of an instance: those that its programs made, the deepest first, and its own.
fn groups_of(cgroups: &dyn Cgroups, name: &str) -> io::Result<Vec<String>> {
    let mut groups = cgroups.nested(name)?;
    groups.push(name.to_owned());
    Ok(groups)
}

fn kill_cgroup(cgroups: &dyn Cgroups, name: &str) -> io::Result<()> {
    let mut processes = Vec::new();
    for group in groups_of(cgroups, name)? {
        processes.extend(cgroups.processes(&group)?);
    }
    if processes.is_empty() {
        return Ok(());
    }
    // Frozen processes do not fork, so the list of them is complete. Without it the loop takes longer.
    let _ = cgroups.freeze(name);
    until_gone(|| {
        let mut had_any = false;
        for group in groups_of(cgroups, name)? {
            had_any |= atoll_cgroup::kill_all(cgroups, &group, || ())?;
        }
        // A process of a nested group dies only when the group above is thawed.
        let _ = cgroups.thaw(name);
        Ok(!had_any)
    })
}

/// Ends all processes in the control groups of an instance, and removes the groups.
pub(crate) fn clear_cgroup(cgroups: &dyn Cgroups, name: &str) -> io::Result<()> {
    kill_cgroup(cgroups, name)?;
    // A killed process leaves its group a moment after it left the list.
    until_gone(|| {
        let removed = groups_of(cgroups, name)?.iter().try_for_each(|group| cgroups.remove(group));
        match removed {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Ok(false),
            Err(error) => Err(error),
        }
    })
}

fn until_gone(mut is_gone: impl FnMut() -> io::Result<bool>) -> io::Result<()> {
    let begun = Instant::now();
    while !is_gone()? {
        if begun.elapsed() > ENDS_WITHIN {
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}

/// Ends the tree below the agent, and the agent last: it takes up the orphans.
fn end_tree(record: &InstanceRecord) -> io::Result<()> {
    until_gone(|| {
        let mut all = members(record)?;
        if all.is_empty() {
            return Ok(true);
        }
        let agent = all.remove(&record.pid);
        if let (true, Some(agent)) = (all.is_empty(), agent) {
            signal(record.pid, agent.started, Signal::KILL)?;
            return Ok(false);
        }
        stop_all(record, &mut all)?;
        for (pid, process) in &all {
            signal(*pid, process.started, Signal::KILL)?;
        }
        Ok(false)
    })
}

/// Stops processes until no new ones are found: a stopped process does not fork.
fn stop_all(record: &InstanceRecord, all: &mut HashMap<i32, ProcessStat>) -> io::Result<()> {
    let mut stopped = HashSet::new();
    for _ in 0..STOP_ROUNDS {
        let is_new = |(pid, process): &(&i32, &ProcessStat)| !stopped.contains(&(**pid, process.started));
        let new: Vec<(i32, u64)> =
            all.iter().filter(is_new).map(|(pid, process)| (*pid, process.started)).collect();
        if new.is_empty() {
            return Ok(());
        }
        for (pid, started) in new {
            signal(pid, started, Signal::STOP)?;
            stopped.insert((pid, started));
        }
        *all = members(record)?;
        all.remove(&record.pid);
    }
    Ok(())
}

/// Signals a process unless its id belongs to another one by now.
fn signal(pid: i32, started: u64, signal: Signal) -> io::Result<()> {
    let Some(number) = Pid::from_raw(pid) else { return Ok(()) };
    let Ok(process) = pidfd_open(number, PidfdFlags::empty()) else { return Ok(()) };
    // While the descriptor is open the id is not used again.
    if read_stat(pid).is_none_or(|stat| stat.started != started) {
        return Ok(());
    }
    match pidfd_send_signal(&process, signal) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The agent, everything below it, and everything that inherited the name of the instance.
fn members(record: &InstanceRecord) -> io::Result<HashMap<i32, ProcessStat>> {
    let mut all = HashMap::new();
    for entry in fs::read_dir("/proc")? {
        let pid = entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok());
        all.extend(pid.and_then(|pid| Some((pid, read_stat(pid)?))));
    }
    let is_agent = all.get(&record.pid).is_some_and(|agent| agent.started == record.started);
    let mut known: HashSet<i32> = is_agent.then_some(record.pid).into_iter().collect();
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    known.extend(all.keys().filter(|pid| **pid != own && is_marked(**pid, &record.instance)));
    loop {
        let below: Vec<i32> =
            all.iter().filter(|(_, stat)| known.contains(&stat.parent)).map(|(pid, _)| *pid).collect();
        let before = known.len();
        known.extend(below);
        if known.len() == before {
            break;
        }
    }
    all.retain(|pid, stat| known.contains(pid) && !stat.is_dead);
    Ok(all)
}

fn is_marked(pid: i32, instance: &InstanceId) -> bool {
    let wanted = format!("{INSTANCE_VARIABLE}={instance}");
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
}

fn read_stat(pid: i32) -> Option<ProcessStat> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The second field is a name in parentheses that may contain any character.
fn parse_stat(stat: &str) -> Option<ProcessStat> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |n: usize| fields.get(n).and_then(|field| field.parse::<u64>().ok());
    Some(ProcessStat {
        parent: fields.get(1)?.parse().ok()?,
        started: number(19)?,
        is_dead: matches!(*fields.first()?, "Z" | "X"),
        ticks: number(11)?.saturating_add(number(12)?),
        pages: number(21)?,
    })
}

/// When a living process started; `None` where there is none.
pub(crate) fn start_time(pid: i32) -> Option<u64> {
    read_stat(pid).filter(|stat| !stat.is_dead).map(|stat| stat.started)
}

/// The id of this boot of the kernel.
pub(crate) fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn record(pid: i32, started: u64) -> InstanceRecord {
        let instance = InstanceId::from_entropy([7; 20]);
        InstanceRecord { instance, boot_id: boot_id().unwrap(), pid, started, has_cgroup: false }
    }

    #[test]
    fn a_reused_pid_is_never_killed() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let started = start_time(pid).unwrap();
        let processes = InstanceProcesses { cgroups: None };
        processes.end(&record(pid, started + 1)).unwrap();
        let rebooted = InstanceRecord { boot_id: "another".into(), ..record(pid, started) };
        processes.end(&rebooted).unwrap();
        assert!(child.try_wait().unwrap().is_none(), "the process of somebody else lives");
        // Waits meanwhile: a child that is not waited for stays in the table of processes.
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| child.wait().unwrap());
            processes.end(&record(pid, started)).unwrap();
            assert!(!waiting.join().unwrap().success());
        });
    }

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let line = "7 (a ) 99 b) Z 1 7 7 0 -1 0 0 0 0 0 10 20 3 4 20 0 1 0 4321 0 5 0 0";
        let stat = parse_stat(line).unwrap();
        assert_eq!((stat.parent, stat.started, stat.is_dead, stat.ticks, stat.pages), (1, 4321, true, 30, 5));
        assert_eq!(parse_stat("garbage"), None);
    }
}
