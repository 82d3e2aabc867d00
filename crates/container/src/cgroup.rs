//! Control groups of sandboxes: limits, freezing, figures. One folder per instance below one of ours per server.
//!
//! Two layouts behind one trait: [`V1`] for v1 and hybrid machines, [`V2`] for the rest. Nothing here moves a process: a first
//! process is born in its cgroup (v2) or enters by itself through descriptors opened here (v1).

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

/// LIMIT: what all sandboxes together may take, so that the host keeps enough to end them: a tenth of its memory and a
/// fifth of its process numbers.
fn all_memory() -> u64 {
    let machine = rustix::system::sysinfo();
    machine.totalram.saturating_mul(u64::from(machine.mem_unit)) / 10 * 9
}

fn all_pids() -> io::Result<u64> {
    let most: u64 =
        std::fs::read_to_string("/proc/sys/kernel/pid_max")?.trim().parse().map_err(io::Error::other)?;
    Ok(most / 5 * 4)
}

/// Writes a limit where this kernel has a file for it.
fn limit_where_known(file: &Path, most: u64) -> io::Result<()> {
    if file.exists() { std::fs::write(file, most.to_string()) } else { Ok(()) }
}

/// The way of a first process into its cgroups.
#[derive(Debug)]
pub(crate) struct CgroupPlacement {
    pub(crate) how: CgroupEntry,
    pub(crate) descriptors: Vec<OwnedFd>,
}

/// Figures of one instance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    pub(crate) cpu_us: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) cache_bytes: u64,
    pub(crate) pids: u32,
}

/// What the engine needs of control groups. `name` is an instance id.
pub(crate) trait Cgroups: Send + Sync + std::fmt::Debug {
    /// Makes the folders and sets the limits.
    fn create(&self, name: &str, limits: &Limits) -> io::Result<CgroupPlacement>;
    /// Changes limits.
    fn set_limits(&self, name: &str, limits: &Limits) -> io::Result<()>;
    /// Stops every process, and answers when they stand still.
    fn freeze(&self, name: &str) -> io::Result<()>;
    /// Lets them run again. A frozen process of v1 does not even die, so this comes before a kill.
    fn thaw(&self, name: &str) -> io::Result<()>;
    /// Whether they are stopped, or about to be.
    fn is_frozen(&self, name: &str) -> io::Result<bool>;
    /// The folder whose files freeze it.
    fn freezer(&self, name: &str) -> io::Result<PathBuf>;
    /// Its place in each hierarchy: the controller that names the hierarchy (none on v2), and the path below its root.
    fn homes(&self, name: &str) -> Vec<(String, String)>;
    /// Current figures.
    fn figures(&self, name: &str) -> io::Result<Figures>;
    /// How many processes were ended for want of memory.
    fn oom_kills(&self, name: &str) -> io::Result<u64>;
    /// Processes that are still in it.
    fn processes(&self, name: &str) -> io::Result<Vec<i32>>;
    /// Removes the folders; an error while somebody is in them.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Every name there is.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Removes our own folder, when it is empty.
    fn remove_parent(&self) -> io::Result<()>;
    /// Which layout, for people.
    fn layout(&self) -> &'static str;
}

/// Finds the machine's layout and makes our folder `parent` in it.
pub(crate) fn open(parent: &str) -> io::Result<Arc<dyn Cgroups>> {
    let mounts = crate::mountinfo::read()?;
    if let Some(v1) = V1::find(&mounts, parent)? {
        return Ok(Arc::new(v1));
    }
    if let Some(v2) = V2::find(&mounts, parent)? {
        return Ok(Arc::new(v2));
    }
    Err(io::Error::new(io::ErrorKind::Unsupported, "no memory, cpu and pids controllers are mounted"))
}

/// LIMIT: freezing one process takes 0.04 ms; a hundred busy ones some more.
const FREEZE_WITHIN: Duration = Duration::from_secs(2);
/// After this long without standing still, its CPU limit is in the way.
const UNTHROTTLE_AFTER: Duration = Duration::from_micros(300);

/// Waits until all stand still. A process freezes only when it runs, and one that has used up its CPU time of this period does
/// not run before the next, up to 100 ms later. So the limit in `quota` is lifted for the rest of the wait.
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

/// The value behind `key` in a file of `key value` lines.
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
    // LIMIT: the kernel takes no less than a millisecond.
    (u64::from(limits.cpu_milli) * PERIOD_US / 1_000).max(1_000)
}

const MIB: u64 = 1 << 20;
