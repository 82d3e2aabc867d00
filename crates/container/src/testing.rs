//! Leak check for tests of this and other crates: compares the state of the machine before and after.
//!
//! It checks everything that a server with a given data folder can leave: processes that hold its files, control
//! groups, mounts, loop devices, and network links and rules in the calling thread's namespace. Other servers on the
//! machine do not affect it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// LIMIT: the kernel frees namespaces and loop devices with a delay.
const GRACE: Duration = Duration::from_secs(60);

/// The state before a test.
#[derive(Debug)]
pub struct LeakCheck {
    data: PathBuf,
    before: BTreeSet<String>,
}

/// A server left something behind.
#[derive(Debug, thiserror::Error)]
#[error("left behind: {}", items.join("; "))]
pub struct Leak {
    /// One line per item.
    pub items: Vec<String>,
}

impl LeakCheck {
    /// Records the current state.
    #[must_use]
    pub fn before(data: &Path) -> Self {
        Self { data: data.to_owned(), before: observe(data) }
    }

    /// Waits a little for the kernel, then reports everything that was not there before.
    pub fn after(&self) -> Result<(), Leak> {
        let begun = Instant::now();
        loop {
            let left: Vec<String> = observe(&self.data).difference(&self.before).cloned().collect();
            if left.is_empty() {
                return Ok(());
            }
            if begun.elapsed() > GRACE {
                return Err(Leak { items: left });
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Everything that a server with this data folder can leave, as lines.
fn observe(data: &Path) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    let strangers = processes(data, &mut seen);
    mounts(data, &mut seen);
    if !strangers {
        loops(data, &mut seen);
    }
    cgroups(data, &mut seen);
    layers(data, &mut seen);
    links_and_tables(&mut seen);
    seen
}

/// Processes that still see the data folder's mounts. Returns whether processes of other programs do: a program that
/// has copied the machine's mounts into its own namespace keeps the loop device in use, and that is no leak.
fn processes(data: &Path, seen: &mut BTreeSet<String>) -> bool {
    let text = data.display().to_string();
    let mut strangers = false;
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let read = |name: &str| std::fs::read_to_string(entry.path().join(name)).unwrap_or_default();
        let same_view = || {
            std::fs::read_link(entry.path().join("ns/mnt")).ok()
                == std::fs::read_link("/proc/self/ns/mnt").ok()
        };
        if !read("mountinfo").contains(&text) || same_view() {
            continue;
        }
        let name = read("comm").trim().to_owned();
        let is_ours =
            name.starts_with("atoll-") || read("cmdline").split('\0').any(|word| word == "launcher");
        if is_ours && is_below(pid, std::process::id()) {
            seen.insert(format!("process {pid} {name}"));
        } else {
            strangers = true;
        }
    }
    strangers
}

fn is_below(pid: u32, ancestor: u32) -> bool {
    let mut at = pid;
    while at > 1 && at != ancestor {
        let stat = std::fs::read_to_string(format!("/proc/{at}/stat")).unwrap_or_default();
        let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
        at = parent.unwrap_or(0);
    }
    at == ancestor
}

fn mounts(data: &Path, seen: &mut BTreeSet<String>) {
    for mount in atoll_storage::mountinfo::read().unwrap_or_default() {
        if mount.point.starts_with(data) {
            seen.insert(format!("mount {} ({})", mount.point.display(), mount.kind));
        }
    }
}

fn loops(data: &Path, seen: &mut BTreeSet<String>) {
    let Ok(entries) = std::fs::read_dir("/sys/block") else { return };
    for entry in entries.flatten() {
        let backing = std::fs::read_to_string(entry.path().join("loop/backing_file")).unwrap_or_default();
        if Path::new(backing.trim()).starts_with(data) {
            seen.insert(format!("loop device {}", entry.file_name().to_string_lossy()));
        }
    }
}

/// The cgroup folders of the server's block, if it has one.
fn cgroups(data: &Path, seen: &mut BTreeSet<String>) {
    let Some(block) = atoll_instances::block_of(Path::new("/run/atoll"), data) else { return };
    let parent = format!("atoll-{block}");
    for mount in atoll_storage::mountinfo::read().unwrap_or_default() {
        if !mount.kind.starts_with("cgroup") {
            continue;
        }
        for entry in std::fs::read_dir(mount.point.join(&parent)).into_iter().flatten().flatten() {
            if entry.path().is_dir() {
                seen.insert(format!("cgroup {}", entry.path().display()));
            }
        }
    }
}

fn layers(data: &Path, seen: &mut BTreeSet<String>) {
    for kind in ["layers", "snapshots", "checkpoints", "volumes"] {
        for entry in std::fs::read_dir(data.join("pool").join(kind)).into_iter().flatten().flatten() {
            seen.insert(format!("{kind}: {}", entry.path().display()));
        }
    }
}

/// Links and tables of the server in the network namespace of the calling thread.
fn links_and_tables(seen: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir("/sys/class/net").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("atl") {
            seen.insert(format!("link {name}"));
        }
    }
    let listed = Command::new("/usr/sbin/nft").args(["list", "tables"]).output();
    let text = listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    seen.extend(text.lines().filter(|line| line.contains("atoll_")).map(|line| format!("rules {line}")));
}

/// The host's user id of the owner of a process's user namespace.
pub fn owner_of_users(pid: i32) -> std::io::Result<u32> {
    const NS_GET_OWNER_UID: u64 = 0xb704;
    let users = std::fs::File::open(format!("/proc/{pid}/ns/user"))?;
    let mut owner: u32 = 0;
    // SAFETY: the request fills one number of this size.
    unsafe { atoll_storage::ioctl::ioctl(&users, NS_GET_OWNER_UID, &mut owner) }?;
    Ok(owner)
}

/// Removes by force what a server with this data folder left; for a test that failed half way.
pub fn scrub(data: &Path) {
    if let Some(block) = atoll_instances::block_of(Path::new("/run/atoll"), data)
        && let Ok(cgroups) =
            atoll_cgroup::open(&format!("atoll-{block}"), atoll_cgroup::DeviceAccess::Sandbox)
    {
        let begun = Instant::now();
        while begun.elapsed() < GRACE {
            let names = cgroups.list().unwrap_or_default();
            for name in &names {
                let _ = cgroups.thaw(name);
                for pid in cgroups.processes(name).unwrap_or_default() {
                    if let Some(pid) = rustix::process::Pid::from_raw(pid) {
                        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                    }
                }
                let _ = cgroups.remove(name);
            }
            if names.is_empty() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = cgroups.remove_parent();
    }
    for mount in atoll_storage::mountinfo::read().unwrap_or_default().iter().rev() {
        if mount.point.starts_with(data) {
            let _ = rustix::mount::unmount(&mount.point, rustix::mount::UnmountFlags::DETACH);
        }
    }
}
