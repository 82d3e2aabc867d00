//! What inside a frozen sandbox keeps its memory from going to disk. It only looks.

use std::fmt;
use std::fs;

/// A process that CRIU can't catch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Obstacle {
    name: String,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Between vfork and the exec of its child it hears no signal, and a child that stands still never gets there.
    Vfork,
    /// A process has one tracer.
    Traced,
}

impl Obstacle {
    fn new(at: &str, kind: Kind) -> Self {
        let name = fs::read_to_string(format!("{at}/comm")).unwrap_or_default();
        Self { name: name.trim_end().to_owned(), kind }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name.escape_debug();
        match self.kind {
            Kind::Vfork => {
                write!(f, "process {name} waits in vfork for a child that runs no program of its own")
            }
            Kind::Traced => write!(f, "process {name} is traced by another one, as by a debugger"),
        }
    }
}

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
        found.map(|thread| Obstacle::new(&thread, Kind::Vfork))
    })
}

/// One that is traced. Only first threads are looked at: whoever traces others traces those too.
pub(crate) fn traced(processes: &[i32]) -> Option<Obstacle> {
    let is_traced = |pid: &&i32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"));
        tracer.is_some_and(|tracer| tracer.trim() != "0")
    };
    processes.iter().find(is_traced).map(|pid| Obstacle::new(&format!("/proc/{pid}"), Kind::Traced))
}
