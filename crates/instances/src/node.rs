//! The capacity of this machine, for providers whose instances run on it.

use std::io;
use std::path::Path;

use atoll_model::policy::placement::Node;

const MIB: u64 = 1 << 20;

/// Space for the files of instances, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskSpace {
    /// For files.
    pub free: u64,
    /// For memory and snapshots, which keep more in reserve.
    pub free_for_copies: u64,
    /// Used or not.
    pub total: u64,
}

impl DiskSpace {
    /// The space on the file system of a folder.
    pub fn of(folder: &Path) -> io::Result<Self> {
        let disk = rustix::fs::statvfs(folder)?;
        let free = disk.f_bavail * disk.f_frsize;
        Ok(Self { free, free_for_copies: free, total: disk.f_blocks * disk.f_frsize })
    }
}

/// Memory and CPU of this machine, with space that the caller measured.
pub fn node_of_machine(disk: DiskSpace) -> io::Result<Node> {
    let memory = std::fs::read_to_string("/proc/meminfo")?;
    let mib = |key: &str| {
        let line = memory.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
        line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) / 1_024
    };
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Ok(Node {
        memory_free_mib: mib("MemAvailable:"),
        memory_total_mib: mib("MemTotal:"),
        cpu_total_milli: cores as u64 * 1_000,
        disk_free_mib: disk.free / MIB,
        disk_copy_mib: disk.free_for_copies / MIB,
        disk_total_mib: disk.total / MIB,
        limits_disk: false,
        disk_limits_mib: 0,
        disk_overcommit: 0.0,
        disk_share: None,
        live: 0,
        memory_limits_mib: 0,
        live_max: 0,
        overcommit: 0.0,
    })
}
