//! What inside a frozen sandbox keeps its memory from going to disk. It only looks.

use std::collections::HashSet;
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt as _;

/// A process that CRIU can't catch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Obstacle {
    name: String,
    kind: ObstacleKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ObstacleKind {
    /// Between vfork and the exec of its child it hears no signal, and a child that stands still never gets there.
    Vfork,
    /// A process has one tracer.
    Traced,
    /// CRIU reserves all of it a second time to bring it back.
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

/// LIMIT: half of the addresses that a process has are 64 TiB, less what CRIU needs itself. Sanitisers map some 20.
const MAPPED_MOST: u64 = 48 << 40;

/// One that waits for its child in vfork. Mostly that passes within microseconds.
pub(crate) fn in_vfork(processes: &[i32]) -> Option<Obstacle> {
    // The second is what the first is mostly built into.
    let waits = |thread: &str| {
        fs::read_to_string(format!("{thread}/wchan"))
            .is_ok_and(|at| matches!(at.trim_end(), "wait_for_vfork_done" | "kernel_clone"))
    };
    processes.iter().find_map(|pid| {
        // One that is gone is no obstacle.
        let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let found = threads.map(|thread| thread.path().display().to_string()).find(|thread| waits(thread));
        found.map(|thread| Obstacle::new(&thread, ObstacleKind::Vfork))
    })
}

/// One that can't be caught, or not be brought back, as long as it lives.
pub(crate) fn lasting(processes: &[i32]) -> Option<Obstacle> {
    processes.iter().find_map(|pid| {
        let at = format!("/proc/{pid}");
        let status = fs::read_to_string(format!("{at}/status")).unwrap_or_default();
        let value = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key));
            line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
        };
        // Only first threads are looked at: whoever traces others traces those too.
        let kind = match () {
            () if value("TracerPid:") != 0 => ObstacleKind::Traced,
            () if value("VmSize:") > MAPPED_MOST >> 10 => ObstacleKind::Wide,
            () => return None,
        };
        Some(Obstacle::new(&at, kind))
    })
}

/// Bytes on disk of files that are open and have no name: they go into the images.
pub(crate) fn nameless_bytes(processes: &[i32]) -> u64 {
    let mut seen = HashSet::new();
    let open = |pid: &i32| fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let files = processes.iter().flat_map(open).filter_map(|entry| fs::metadata(entry.path()).ok());
    let nameless = files.filter(|about| about.is_file() && about.nlink() == 0);
    nameless.filter(|about| seen.insert((about.dev(), about.ino()))).map(|about| about.blocks() * 512).sum()
}
