//! Finds processes in a frozen sandbox that prevent a dump of its memory. It changes nothing.

use std::collections::HashSet;
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt as _;

/// A process that CRIU can't dump.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Obstacle {
    name: String,
    kind: ObstacleKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ObstacleKind {
    /// Between vfork and the exec of its child the process handles no signal, and a frozen child never reaches its
    /// exec.
    Vfork,
    /// A process can have only one tracer, and this process already has one.
    Traced,
    /// The process maps too many addresses: a restore reserves all of them a second time.
    Wide,
}

impl Obstacle {
    fn new(at: &str, kind: ObstacleKind) -> Self {
        let name = fs::read_to_string(format!("{at}/comm")).unwrap_or_default();
        Self { name: name.trim_end().to_owned(), kind }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name.escape_debug();
        match self.kind {
            ObstacleKind::Vfork => {
                write!(f, "process {name} waits in vfork for a child that has not called exec")
            }
            ObstacleKind::Wide => {
                write!(f, "process {name} has mapped more than {} TiB of addresses", MAPPED_MOST >> 40)
            }
            ObstacleKind::Traced => write!(f, "process {name} is traced by another process (a debugger)"),
        }
    }
}

/// LIMIT: half of a process's address space is 64 TiB, and CRIU needs some of it. Sanitisers map about 20 TiB.
const MAPPED_MOST: u64 = 48 << 40;

/// A process that waits for its child in vfork. Usually the wait lasts microseconds.
pub(crate) fn in_vfork(processes: &[i32]) -> Option<Obstacle> {
    // Compilers usually inline the first function into the second.
    let waits = |thread: &str| {
        fs::read_to_string(format!("{thread}/wchan"))
            .is_ok_and(|at| matches!(at.trim_end(), "wait_for_vfork_done" | "kernel_clone"))
    };
    processes.iter().find_map(|pid| {
        // A process that has ended is no obstacle.
        let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let found = threads.map(|thread| thread.path().display().to_string()).find(|thread| waits(thread));
        found.map(|thread| Obstacle::new(&thread, ObstacleKind::Vfork))
    })
}

/// A process that can't be dumped or restored for as long as it lives.
pub(crate) fn lasting(processes: &[i32]) -> Option<Obstacle> {
    processes.iter().find_map(|pid| {
        let at = format!("/proc/{pid}");
        let status = fs::read_to_string(format!("{at}/status")).unwrap_or_default();
        let value = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key));
            line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
        };
        // Only main threads are checked: a tracer of other threads traces the main thread too.
        let kind = match () {
            () if value("TracerPid:") != 0 => ObstacleKind::Traced,
            () if value("VmSize:") > MAPPED_MOST >> 10 => ObstacleKind::Wide,
            () => return None,
        };
        Some(Obstacle::new(&at, kind))
    })
}

/// Bytes on disk of files that are open and have no name: they are saved in the images.
pub(crate) fn nameless_bytes(processes: &[i32]) -> u64 {
    let mut seen = HashSet::new();
    let open = |pid: &i32| fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let files = processes.iter().flat_map(open).filter_map(|entry| fs::metadata(entry.path()).ok());
    let nameless = files.filter(|about| about.is_file() && about.nlink() == 0);
    nameless.filter(|about| seen.insert((about.dev(), about.ino()))).map(|about| about.blocks() * 512).sum()
}
