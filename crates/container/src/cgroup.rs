//! Control groups of sandboxes: limits, freezing, figures. Each server has one folder, with one folder per instance in
//! it.
//!
//! Two layouts implement one trait: [`V1`] for v1 and hybrid machines, [`V2`] for the rest. This module moves no
//! process: a first process starts in its cgroup (v2) or enters it itself through descriptors that are opened here
//! (v1).

mod v1;
mod v2;

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use atoll_model::Limits;

pub(crate) use v1::V1;
pub(crate) use v2::V2;

use crate::launcher::protocol::CgroupEntry;

/// LIMIT: all sandboxes together leave a tenth of the machine's memory and a fifth of its process ids to the host, so
/// that the host can always end them.
fn all_memory() -> u64 {
    let machine = rustix::system::sysinfo();
    machine.totalram.saturating_mul(u64::from(machine.mem_unit)) / 10 * 9
}

fn all_pids() -> io::Result<u64> {
    let most: u64 =
        std::fs::read_to_string("/proc/sys/kernel/pid_max")?.trim().parse().map_err(io::Error::other)?;
    Ok(most / 5 * 4)
}

/// Writes a limit if this kernel has a file for it.
fn limit_where_known(file: &Path, most: u64) -> io::Result<()> {
    if file.exists() { std::fs::write(file, most.to_string()) } else { Ok(()) }
}

/// How a first process enters its cgroups.
#[derive(Debug)]
pub(crate) struct CgroupPlacement {
    pub(crate) how: CgroupEntry,
    pub(crate) descriptors: Vec<OwnedFd>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    pub(crate) cpu_us: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) cache_bytes: u64,
    pub(crate) pids: u32,
}

/// The operations on control groups that the engine uses. `name` is an instance id.
pub(crate) trait Cgroups: Send + Sync + std::fmt::Debug {
    /// Makes the folders and sets the limits.
    fn create(&self, name: &str, limits: &Limits) -> io::Result<CgroupPlacement>;
    fn set_limits(&self, name: &str, limits: &Limits) -> io::Result<()>;
    /// Freezes every process; returns when all of them are frozen.
    fn freeze(&self, name: &str) -> io::Result<()>;
    /// Lets the processes run again. On v1 a frozen process does not die, so a thaw comes before a kill.
    fn thaw(&self, name: &str) -> io::Result<()>;
    /// Whether the processes are frozen or being frozen.
    fn is_frozen(&self, name: &str) -> io::Result<bool>;
    /// The folder with the files that freeze the instance.
    fn freezer(&self, name: &str) -> io::Result<PathBuf>;
    /// The cgroup in each hierarchy: the controller that names the hierarchy (empty on v2), and the path below its
    /// root.
    fn homes(&self, name: &str) -> Vec<(String, String)>;
    fn figures(&self, name: &str) -> io::Result<Figures>;
    /// How many processes the OOM killer has ended.
    fn oom_kills(&self, name: &str) -> io::Result<u64>;
    /// Processes in the cgroup.
    fn processes(&self, name: &str) -> io::Result<Vec<i32>>;
    /// Removes the folders; an error while a process is in them.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// The names of all instances that have a cgroup.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Removes the folder of this server if it is empty.
    fn remove_parent(&self) -> io::Result<()>;
    /// The name of the layout, for log lines and `atoll doctor`.
    fn layout(&self) -> &'static str;
}

/// Detects the machine's layout and makes the folder `parent` of this server in it.
pub(crate) fn open(parent: &str) -> io::Result<Arc<dyn Cgroups>> {
    let mounts = atoll_storage::mountinfo::read()?;
    if let Some(v1) = V1::find(&mounts, parent)? {
        return Ok(Arc::new(v1));
    }
    if let Some(v2) = V2::find(&mounts, parent)? {
        return Ok(Arc::new(v2));
    }
    Err(io::Error::new(io::ErrorKind::Unsupported, "no memory, cpu and pids controllers are mounted"))
}

/// LIMIT: freezing one process takes 0.04 ms; a hundred busy processes take somewhat longer.
const FREEZE_WITHIN: Duration = Duration::from_secs(2);
/// If the processes are not frozen after this time, the CPU limit delays them.
const UNTHROTTLE_AFTER: Duration = Duration::from_micros(300);

/// Waits until all processes are frozen. A process freezes only while it runs, and a process that has used up the CPU
/// time of this period does not run before the next period, up to 100 ms later. So the limit in `quota` is lifted for
/// the rest of the wait.
fn wait_until_frozen(
    mut is_frozen: impl FnMut() -> io::Result<bool>,
    quota: &Path,
    unlimited: &str,
) -> io::Result<()> {
    let begun = Instant::now();
    let mut lifted = None;
    let outcome = loop {
        match is_frozen() {
            Ok(true) => break Ok(()),
            Ok(false) if begun.elapsed() > FREEZE_WITHIN => break Err(io::ErrorKind::TimedOut.into()),
            Ok(false) => {}
            Err(cause) => break Err(cause),
        }
        if lifted.is_none() && begun.elapsed() > UNTHROTTLE_AFTER {
            let before = std::fs::read_to_string(quota)?;
            std::fs::write(quota, unlimited)?;
            lifted = Some(before);
        }
        std::thread::sleep(Duration::from_micros(50));
    };
    match lifted {
        Some(before) => std::fs::write(quota, before.trim()).and(outcome),
        None => outcome,
    }
}

fn read_number(path: &Path) -> io::Result<u64> {
    let text = std::fs::read_to_string(path)?;
    text.trim().parse().map_err(|_| {
        io::Error::new(io::ErrorKind::InvalidData, format!("{} is not a number", path.display()))
    })
}

/// The sum of the values of `keys` in a file of `key value` lines.
fn read_keyed(path: &Path, keys: &[&str]) -> io::Result<u64> {
    let text = std::fs::read_to_string(path)?;
    let value = |line: &str| {
        line.split_once(' ').filter(|(key, _)| keys.contains(key)).and_then(|(_, v)| v.parse::<u64>().ok())
    };
    Ok(text.lines().filter_map(value).sum())
}

fn read_pids(path: &Path) -> io::Result<Vec<i32>> {
    Ok(std::fs::read_to_string(path)?.lines().filter_map(|line| line.parse().ok()).collect())
}

fn make_folder(path: &Path) -> io::Result<()> {
    match std::fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

fn remove_folder(path: &Path) -> io::Result<()> {
    match std::fs::remove_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn folders_in(path: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            names.extend(entry.file_name().into_string().ok());
        }
    }
    Ok(names)
}

/// Bandwidth for `cpu_milli` thousandths of a core: microseconds per period.
const PERIOD_US: u64 = 100_000;
fn quota_us(limits: &Limits) -> u64 {
    // LIMIT: the kernel accepts no less than a millisecond.
    (u64::from(limits.cpu_milli) * PERIOD_US / 1_000).max(1_000)
}

const MIB: u64 = 1 << 20;
