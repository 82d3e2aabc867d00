//! Control groups of instances: limits, freezing, figures, and the end of all processes in one.
//!
//! Each provider of a server has one folder, with one folder per instance in it. Nothing outside that folder is touched.
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

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use v1::V1;
use v2::V2;

/// How the first process enters its cgroups.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub enum CgroupEntry {
    /// It writes itself into the `tasks` files that are passed as descriptors.
    Tasks,
    /// It starts there; the folder is passed as a descriptor.
    Born,
}

/// The device nodes that processes may open, where the layout can restrict them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceAccess {
    /// Those of a sandbox: null, random numbers, terminals.
    Sandbox,
    /// All; the file permissions of the host decide.
    Host,
}

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
pub struct CgroupPlacement {
    /// What the descriptors are.
    pub how: CgroupEntry,
    /// For the first process.
    pub descriptors: Vec<OwnedFd>,
}

/// What an instance uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// CPU time since its start.
    pub cpu_us: u64,
    /// Memory with page cache.
    pub memory_bytes: u64,
    /// Of that, page cache that can be dropped.
    pub cache_bytes: u64,
    /// Processes and threads.
    pub pids: u32,
}

/// The operations on control groups that providers use. `name` is an instance id.
pub trait Cgroups: Send + Sync + std::fmt::Debug {
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
    /// The files by which a process enters all cgroups of the instance: it writes `0` into each.
    fn entry_files(&self, name: &str) -> Vec<PathBuf>;
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
    /// The cgroups that a program made below that of an instance, the deepest first. Each name can be used like that of an instance.
    fn nested(&self, name: &str) -> io::Result<Vec<String>>;
    /// The names of all instances that have a cgroup.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Removes the folder of this server if it is empty.
    fn remove_parent(&self) -> io::Result<()>;
    /// The name of the layout, for log lines and `atoll doctor`.
    fn layout(&self) -> &'static str;
}

/// Detects the machine's layout and makes the folder `parent` of this server in it.
pub fn open(parent: &str, devices: DeviceAccess) -> io::Result<Arc<dyn Cgroups>> {
    let mounts = atoll_storage::mountinfo::read()?;
    if let Some(v1) = V1::find(&mounts, parent, devices)? {
        return Ok(Arc::new(v1));
    }
    if let Some(v2) = V2::find(&mounts, parent)? {
        return Ok(Arc::new(v2));
    }
    Err(io::Error::new(io::ErrorKind::Unsupported, "no memory, cpu and pids controllers are mounted"))
}

/// Sends SIGKILL to all processes in a cgroup, then thaws it; returns whether there were any. Call it again until there are
/// none: a process that forked meanwhile leaves a child. Frozen processes run no more code of their own.
///
/// `killed` is called between the two steps.
pub fn kill_all(cgroups: &dyn Cgroups, name: &str, killed: impl FnOnce()) -> io::Result<bool> {
    let processes = cgroups.processes(name)?;
    let had_any = !processes.is_empty();
    for pid in processes.into_iter().filter_map(Pid::from_raw) {
        let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
        // The pid may have been reused meanwhile; now that the process is held by descriptor, its cgroup is checked
        // again.
        if cgroups.processes(name)?.contains(&pid.as_raw_nonzero().get()) {
            match pidfd_send_signal(&pidfd, Signal::KILL) {
                Ok(()) | Err(rustix::io::Errno::SRCH) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    if had_any {
        killed();
        // A frozen process does not die. Each has a pending SIGKILL now, so none runs any other code.
        let _ = cgroups.thaw(name);
    }
    Ok(had_any)
}

/// Room above the memory that can't be reclaimed, so that the instance does not run out of memory at once.
const MEMORY_ROOM: u64 = 2 * MIB;

/// Changes the limits of running processes, or returns how many bytes of memory are in the way.
pub fn set_limits_above_use(cgroups: &dyn Cgroups, name: &str, limits: &Limits) -> io::Result<Option<u64>> {
    let wanted = u64::from(limits.memory_mib) * MIB;
    let must_stay = |figures: Figures| figures.memory_bytes.saturating_sub(figures.cache_bytes);
    if cgroups.layout() == "v2" {
        // v2 would end processes to get below a new limit, so the limit is set only if the memory that can't be
        // reclaimed fits.
        let used = must_stay(cgroups.figures(name)?) + MEMORY_ROOM;
        if used > wanted {
            return Ok(Some(used));
        }
    }
    match cgroups.set_limits(name, limits) {
        // v1's error for memory that is in use and can't be reclaimed.
        Err(cause) if cause.kind() == io::ErrorKind::ResourceBusy => {
            Ok(Some(must_stay(cgroups.figures(name)?).max(wanted + 1)))
        }
        other => other.map(|()| None),
    }
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
        Err(error) if is_removed(&error) => Ok(()),
        other => other,
    }
}

/// Whether an error says that the cgroup is removed, possibly between opening one of its files and reading it (`ENODEV`).
fn is_removed(error: &io::Error) -> bool {
    let removed_while_open = rustix::io::Errno::NODEV.raw_os_error();
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(removed_while_open)
}

/// LIMIT: levels of nested cgroups that are looked for.
const DEPTH_MAX: usize = 32;

/// Adds the cgroups below `name` in one hierarchy to `found`, children before their parents.
fn add_nested(parent: &Path, name: &str, depth: usize, found: &mut Vec<String>) -> io::Result<()> {
    let children = match folders_in(&parent.join(name)) {
        Err(error) if is_removed(&error) => return Ok(()),
        children => children?,
    };
    if depth < DEPTH_MAX {
        for child in children {
            let child = format!("{name}/{child}");
            add_nested(parent, &child, depth + 1, found)?;
            found.push(child);
        }
    }
    Ok(())
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
