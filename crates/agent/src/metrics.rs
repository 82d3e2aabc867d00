//! `GET /metrics`: the resource use of the sandbox, as far as it is visible from inside.
//!
//! `/proc/meminfo` and `/proc/stat` show the whole machine, and statfs the whole pool, so use is summed over the
//! processes of this pid namespace and totals come from `POST /init`. The host's own figures (cgroups) are exact.

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
    pub(crate) fn read(&self, limits: AgentLimits) -> Metrics {
        let used = sum_processes();
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

fn sum_processes() -> Used {
    let mut used = Used::default();
    let Ok(entries) = std::fs::read_dir("/proc") else { return used };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    for pid in pids.take(PROCESSES_MAX) {
        // A process that ended meanwhile does not count.
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        let Some((ticks, memory)) = parse_stat(&stat) else { continue };
        used.ticks = used.ticks.saturating_add(ticks);
        used.memory = used.memory.saturating_add(memory);
    }
    used
}

/// Ticks of the process and of its reaped children, and resident bytes. The name may contain any character, also `)`.
fn parse_stat(stat: &str) -> Option<(u64, u64)> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |n: usize| fields.get(n).and_then(|field| field.parse::<u64>().ok());
    let children = number(13).unwrap_or(0).saturating_add(number(14).unwrap_or(0));
    let ticks = number(11)?.saturating_add(number(12)?).saturating_add(children);
    Some((ticks, number(21)?.saturating_mul(rustix::param::page_size() as u64)))
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
        assert_eq!(parse_stat(stat), Some((37, 5 * rustix::param::page_size() as u64)));
        assert_eq!(parse_stat("garbage"), None);
    }

    #[test]
    fn any_line_of_a_process_is_read_or_passed_over() {
        atoll_robustness::check("proc_stat", |bytes| {
            let _ = parse_stat(&String::from_utf8_lossy(bytes));
        });
    }
}
