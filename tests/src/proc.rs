//! Looking at processes from the host, through `/proc`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

/// One process as the host sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its id on the host.
    pub pid: i32,
    /// Its parent's id.
    pub parent: i32,
    /// Its short name.
    pub name: String,
    /// `R`, `S`, `Z`, …
    pub state: char,
    /// Its process group.
    pub group: i32,
    /// The process group that has its terminal; -1 without a terminal.
    pub foreground_group: i32,
    /// Clock ticks after boot at which it started.
    pub started: u64,
}

impl Process {
    /// Reads one process; `None` when it is gone.
    pub fn read(pid: i32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name may hold anything, so the fields are counted from its last bracket.
        let (head, tail) = stat.rsplit_once(')')?;
        let name = head.split_once('(')?.1.to_owned();
        let fields: Vec<&str> = tail.split_whitespace().collect();
        let state = fields.first()?.chars().next()?;
        Some(Self {
            pid,
            parent: fields.get(1)?.parse().ok()?,
            name,
            state,
            group: fields.get(2)?.parse().ok()?,
            foreground_group: fields.get(5)?.parse().ok()?,
            started: fields.get(19)?.parse().ok()?,
        })
    }

    /// Whether the keys of the terminal of its parent, a shell, send signals to it. The parent is asked, because a restored
    /// process gets those signals and shows no terminal of its own.
    pub fn in_foreground(&self) -> bool {
        Self::read(self.parent).is_some_and(|shell| shell.foreground_group == self.group)
    }
}

/// All processes of the machine.
pub fn all() -> Vec<Process> {
    let entries = std::fs::read_dir("/proc").expect("/proc");
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(Process::read).collect()
}

/// Everything that descends from `ancestor`, itself left out.
pub fn descendants(ancestor: i32) -> Vec<Process> {
    let mut by_parent: BTreeMap<i32, Vec<Process>> = BTreeMap::new();
    for process in all() {
        by_parent.entry(process.parent).or_default().push(process);
    }
    let (mut found, mut next) = (Vec::new(), vec![ancestor]);
    while let Some(pid) = next.pop() {
        for child in by_parent.remove(&pid).unwrap_or_default() {
            next.push(child.pid);
            found.push(child);
        }
    }
    found
}

/// The test's own process id.
pub fn own_pid() -> i32 {
    nix::unistd::getpid().as_raw()
}

/// Waits for zombies that were handed to us, as the machine's init would; those in `kept` have an owner.
pub fn reap_orphans(kept: &BTreeSet<i32>) {
    for process in all() {
        if process.parent == own_pid() && process.state == 'Z' && !kept.contains(&process.pid) {
            let _ = waitpid(Pid::from_raw(process.pid), Some(WaitPidFlag::WNOHANG));
        }
    }
}

/// How many descriptors a process holds.
pub fn descriptors(pid: i32) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    let target =
        |entry: std::fs::DirEntry| std::fs::read_link(entry.path()).ok()?.to_str().map(str::to_owned);
    entries.flatten().filter_map(target).collect()
}

/// A figure of `/proc/PID/status` in KiB or as it stands, `VmRSS` or `Threads` for example.
pub fn status(pid: i32, field: &str) -> Option<u64> {
    status_text(pid, field)?.split_whitespace().next()?.parse().ok()
}

/// A line of `/proc/PID/status` without its name.
pub fn status_text(pid: i32, field: &str) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find(|line| line.split(':').next() == Some(field))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Where a process sits, per cgroup hierarchy, as folders of the host.
pub fn cgroups(pid: i32) -> BTreeMap<String, PathBuf> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let mut found = BTreeMap::new();
    for line in text.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let path = path.trim_start_matches('/');
        for controller in controllers.split(',') {
            let root = Path::new("/sys/fs/cgroup");
            // cgroup v2 is mounted below `unified` beside v1, and at the root where it is alone.
            let homes = if controller.is_empty() { ["unified", ""] } else { [controller, controller] };
            let mut folders = homes.into_iter().map(|home| root.join(home).join(path));
            if let Some(folder) = folders.find(|folder| folder.is_dir()) {
                found.insert(controller.to_owned(), folder);
            }
        }
    }
    found
}

/// The same namespace as another process?
pub fn namespace(pid: i32, kind: &str) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok()
}

/// Whether everything in the groups below a folder stands still; true of folders that can't tell.
pub fn stand_still(parent: &Path) -> bool {
    let groups = std::fs::read_dir(parent).into_iter().flatten().flatten().map(|entry| entry.path());
    groups.filter(|group| group.is_dir()).all(|group| {
        let v1 = std::fs::read_to_string(group.join("freezer.state")).map(|state| state.trim() == "FROZEN");
        let v2 =
            || std::fs::read_to_string(group.join("cgroup.events")).map(|events| events.contains("frozen 1"));
        v1.or_else(|_| v2()).unwrap_or(true)
    })
}
