//! `GET /metrics`: the resource use of the sandbox, as far as it is visible from inside.
//!
//! `/proc/meminfo` and `/proc/stat` show the whole machine, and statfs the whole pool, so use is summed over the
//! processes of this pid namespace (without a sandbox: over those that descend from the agent) and totals come from `POST /init`. The host's own figures (cgroups) are exact.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use atoll_agentapi::{AgentLimits, Metrics};
use tokio::time::Instant;

use crate::process::now_ms;

/// LIMIT: processes that are read; a fork bomb must not be measured one by one.
const PROCESSES_MAX: usize = 10_000;

#[derive(Debug, Default)]
pub(crate) struct Meter {
    last: Mutex<Option<(Instant, u64)>>,
}

impl Meter {
    /// Without a sandbox (`is_host`) the disk is that of the machine, whatever the limit is.
    pub(crate) fn read(&self, limits: AgentLimits, is_host: bool) -> Metrics {
        let limits = if is_host { AgentLimits { disk_bytes: 0, ..limits } } else { limits };
        let used = if is_host { sum(&descendants(processes())) } else { sum(&processes()) };
        let machine = machine_memory();
        let (disk_total, disk_used) = disk();
        let or = |known: u64, seen: u64| if known == 0 { seen } else { known };
        let mem_total = or(limits.memory_bytes, machine);
        let cpus = std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(1));
        Metrics {
            ts: i64::try_from(now_ms() / 1000).unwrap_or(0),
            cpu_count: if limits.cpu_count == 0 { cpus } else { limits.cpu_count },
            cpu_used_pct: self.cpu(used.ticks),
            mem_total,
            mem_used: used.memory.min(mem_total),
            mem_cache: 0,
            mem_total_mib: mem_total >> 20,
            mem_used_mib: used.memory.min(mem_total) >> 20,
            disk_used: or(limits.disk_used_bytes, disk_used),
            disk_total: or(limits.disk_bytes, disk_total),
        }
    }

    /// CPU use since the previous call, where one CPU = 100.
    fn cpu(&self, ticks: u64) -> f32 {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let previous = last.replace((now, ticks));
        let Some((at, before)) = previous else { return 0.0 };
        let seconds = now.duration_since(at).as_secs_f32();
        if seconds < 0.01 {
            0.0
        } else {
            ticks.saturating_sub(before) as f32 / TICKS_PER_SECOND / seconds * 100.0
        }
    }
}

/// The kernel's USER_HZ, the same on every supported architecture.
const TICKS_PER_SECOND: f32 = 100.0;

#[derive(Default)]
struct Used {
    ticks: u64,
    memory: u64,
}

struct ProcessStat {
    pid: u32,
    parent: u32,
    ticks: u64,
    memory: u64,
}

fn processes() -> Vec<ProcessStat> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    // A process that ended meanwhile does not count.
    let read = |pid: u32| parse_stat(pid, &std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?);
    pids.take(PROCESSES_MAX).filter_map(read).collect()
}

/// The agent and every process that it or one of its children started. Orphans become children of the agent.
fn descendants(all: Vec<ProcessStat>) -> Vec<ProcessStat> {
    let mut known = HashSet::from([std::process::id()]);
    loop {
        let before = known.len();
        known.extend(
            all.iter().filter(|one| known.contains(&one.parent)).map(|one| one.pid).collect::<Vec<_>>(),
        );
        if known.len() == before {
            return all.into_iter().filter(|one| known.contains(&one.pid)).collect();
        }
    }
}

fn sum(processes: &[ProcessStat]) -> Used {
    processes.iter().fold(Used::default(), |used, one| Used {
        ticks: used.ticks.saturating_add(one.ticks),
        memory: used.memory.saturating_add(one.memory),
    })
}

/// Ticks of the process and of its reaped children, and resident bytes. The name may contain any character, also `)`.
fn parse_stat(pid: u32, stat: &str) -> Option<ProcessStat> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |n: usize| fields.get(n).and_then(|field| field.parse::<u64>().ok());
    let children = number(13).unwrap_or(0).saturating_add(number(14).unwrap_or(0));
    let ticks = number(11)?.saturating_add(number(12)?).saturating_add(children);
    let memory = number(21)?.saturating_mul(rustix::param::page_size() as u64);
    Some(ProcessStat { pid, parent: u32::try_from(number(1)?).ok()?, ticks, memory })
}

fn machine_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

fn disk() -> (u64, u64) {
    let Ok(fs) = rustix::fs::statfs("/") else { return (0, 0) };
    let block = u64::try_from(fs.f_bsize).unwrap_or(0);
    (fs.f_blocks * block, fs.f_blocks.saturating_sub(fs.f_bfree) * block)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_process_name_does_not_shift_the_fields() {
        let stat = "7 (a ) 99 b) S 1 7 7 0 -1 0 0 0 0 0 10 20 3 4 20 0 1 0 0 0 5 0 0";
        let read = parse_stat(7, stat).expect("valid");
        assert_eq!((read.parent, read.ticks, read.memory), (1, 37, 5 * rustix::param::page_size() as u64));
        assert!(parse_stat(7, "garbage").is_none());
    }

    #[test]
    fn only_the_own_tree_counts_without_a_sandbox() {
        let own = std::process::id();
        let one = |pid, parent| ProcessStat { pid, parent, ticks: 1, memory: 10 };
        let all = vec![one(3, 2), one(own, 1), one(2, own), one(4, 1)];
        let used = sum(&descendants(all));
        assert_eq!((used.ticks, used.memory), (3, 30));
    }

    #[test]
    fn any_line_of_a_process_is_read_or_passed_over() {
        atoll_robustness::check("proc_stat", |bytes| {
            let _ = parse_stat(7, &String::from_utf8_lossy(bytes));
        });
    }
}
