//! The leak audit: what a world holds on the machine, counted before and after.
//!
//! Processes are found by descent: the test process is a subreaper, so that what outlives its server still descends from it.
//! Everything else is found by the world's own marks: its state folder, its cgroup, its namespaces. Ready instances of the
//! pool come and go under new names, so counts are compared, not names; a difference is reported with the names.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::proc;

/// What is there, by kind; each kind a list of names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Holdings(pub BTreeMap<&'static str, Vec<String>>);

/// Where to look.
#[derive(Debug, Clone)]
pub struct Marks {
    /// The world's state folder.
    pub data: PathBuf,
    /// Cgroup folders that hold this world's sandboxes, one per hierarchy.
    pub cgroups: BTreeSet<PathBuf>,
    /// The server.
    pub server: Option<i32>,
}

impl Holdings {
    /// Counts everything now.
    pub fn take(marks: &Marks) -> Self {
        let mut kinds = BTreeMap::new();
        kinds.insert("processes", processes());
        kinds.insert("cgroups", cgroups(&marks.cgroups));
        kinds.insert("mounts", mounts());
        kinds.insert("loop devices", loop_devices(&marks.data));
        kinds.insert("host links", lines("ip", &["-o", "link"], None));
        kinds.insert("host rules", rules(None));
        for pin in pinned_namespaces() {
            kinds.insert("router links", lines("ip", &["-o", "link"], Some(&pin)));
            let mut routes = lines("ip", &["route", "show", "table", "all"], Some(&pin));
            // The uplink carries IPv6 from the first sandbox on that has it, and not for that one alone.
            routes.retain(|route| !(route.contains("dev uplink") && route.contains("::")));
            kinds.insert("router routes", routes);
            kinds.insert("router rules", rules(Some(&pin)));
        }
        kinds.insert("files", files(&marks.data));
        if let Some(server) = marks.server {
            kinds.insert("descriptors", server_descriptors(server));
        }
        Self(kinds)
    }

    /// What is there now and was not before, one line per kind.
    pub fn leaked_since(&self, before: &Holdings) -> Vec<String> {
        let nothing = Vec::new();
        let grown = |(kind, now): (&&'static str, &Vec<String>)| {
            let was = before.0.get(kind).unwrap_or(&nothing);
            let new: Vec<&String> = now.iter().filter(|name| !was.contains(name)).take(12).collect();
            (now.len() > was.len())
                .then(|| format!("{kind}: {} became {}; new: {new:?}", was.len(), now.len()))
        };
        self.0.iter().filter_map(grown).collect()
    }

    /// How many there are of a kind.
    pub fn count(&self, kind: &str) -> usize {
        self.0.get(kind).map_or(0, Vec::len)
    }
}

fn processes() -> Vec<String> {
    let own = proc::own_pid();
    proc::descendants(own).iter().map(|p| format!("{} {} ({})", p.pid, p.name, p.state)).collect()
}

fn cgroups(roots: &BTreeSet<PathBuf>) -> Vec<String> {
    let mut found = Vec::new();
    let mut next: Vec<PathBuf> = roots.iter().cloned().collect();
    while let Some(folder) = next.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                found.push(entry.path().display().to_string());
                next.push(entry.path());
            }
        }
    }
    found
}

/// Mounts of this thread's mount namespace; the harness' own are there from the beginning.
pub fn mounts() -> Vec<String> {
    let text = std::fs::read_to_string("/proc/thread-self/mountinfo").expect("mountinfo");
    text.lines().map(str::to_owned).collect()
}

/// Network namespaces that are kept by a mount in this world.
pub fn pinned_namespaces() -> Vec<PathBuf> {
    let of = |line: &String| {
        let fields: Vec<&str> = line.split(' ').collect();
        let (root, target) = (fields.get(3)?, fields.get(4)?);
        root.starts_with("net:[").then(|| PathBuf::from(target))
    };
    mounts().iter().filter_map(of).collect()
}

fn loop_devices(data: &Path) -> Vec<String> {
    let entries = std::fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let backing = |entry: std::fs::DirEntry| {
        let text = std::fs::read_to_string(entry.path().join("loop/backing_file")).ok()?;
        text.starts_with(data.to_str()?)
            .then(|| format!("{} {}", entry.file_name().display(), text.trim_end()))
    };
    entries.filter_map(backing).collect()
}

/// Every rule, set and element, one per line, counters left out.
fn rules(pin: Option<&Path>) -> Vec<String> {
    let text = lines("nft", &["-j", "list", "ruleset"], pin).concat();
    let Ok(document) = serde_json::from_str::<serde_json::Value>(&text) else { return Vec::new() };
    let mut found = Vec::new();
    for item in document["nftables"].as_array().into_iter().flatten() {
        found.push(item.as_object().and_then(|o| o.keys().next()).cloned().unwrap_or_default());
        for element in item["set"]["elem"].as_array().into_iter().flatten() {
            // Counted flows are the kernel's own: it forgets them with their connections, up to two minutes later.
            // So is what the first sandbox with IPv6 makes the machine ready with.
            let of_machine = item["set"]["name"] == "host6" || item["set"]["name"] == "opened6";
            if element["elem"]["ct count"].is_null() && !of_machine {
                found.push(format!("{} {element}", item["set"]["name"]));
            }
        }
    }
    found
}

/// Files of the state folder, without what a template or the content of a live layer holds.
fn files(data: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut next = vec![(data.to_path_buf(), 0)];
    while let Some((folder, depth)) = next.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let name = entry.path().strip_prefix(data).expect("below").display().to_string();
            // A commit may leave or remove the journal beside the database at any time.
            let of_journal = name.ends_with("-wal") || name.ends_with("-shm") || name.ends_with("-journal");
            // Images, uploads and logs of builds outlive sandboxes on purpose; what is staged or half removed does not.
            let kept = ["templates", "images", "builds", "uploads"];
            let is_kept = kept.iter().any(|kept| name.starts_with(kept));
            let is_half_sent = name.starts_with("uploads") && name.ends_with(".part");
            let is_staged = name.contains(".build-") || name.contains(".trash-") || is_half_sent;
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_folder && depth < 3 && !name.starts_with("templates") {
                next.push((entry.path(), depth + 1));
            }
            if of_journal || (is_kept && !is_staged) {
                continue;
            }
            found.push(name);
        }
    }
    found
}

/// Descriptors of the server, without connections, which end in their own time, without the database's, of which there are as
/// many as were ever needed at once, and without the lock of a Unix socket, which is held until the server ends.
fn server_descriptors(server: i32) -> Vec<String> {
    let passing = |target: &String| target.starts_with("socket:") || target.contains("/sandbox.db");
    let settled = |target: &String| !passing(target) && !target.ends_with("/atoll.sock.lock");
    proc::descriptors(server).into_iter().filter(settled).collect()
}

fn lines(program: &str, arguments: &[&str], pin: Option<&Path>) -> Vec<String> {
    let mut command = match pin {
        None => Command::new(program),
        Some(pin) => {
            let mut command = Command::new("nsenter");
            command.arg(format!("--net={}", pin.display())).arg(program);
            command
        }
    };
    let output = command.args(arguments).output().unwrap_or_else(|cause| panic!("{program}: {cause}"));
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

/// Lets frozen processes below a cgroup run again: a frozen one does not die of a kill.
pub fn thaw_below(root: &Path) {
    for folder in cgroups(&BTreeSet::from([root.to_path_buf()])) {
        let _ = std::fs::write(Path::new(&folder).join("freezer.state"), "THAWED");
    }
}

/// Removes the cgroups below one, innermost first.
pub fn remove_below(root: &Path) {
    let mut folders = cgroups(&BTreeSet::from([root.to_path_buf()]));
    folders.sort_by_key(|folder| std::cmp::Reverse(folder.len()));
    for folder in folders {
        let _ = std::fs::remove_dir(folder);
    }
}

/// Lets go of the mounts below a folder, in this mount namespace, so that the folder can be removed.
pub fn unmount_below(folder: &Path) {
    for line in mounts().iter().rev() {
        let Some(target) = line.split(' ').nth(4).map(Path::new) else { continue };
        if target.starts_with(folder) {
            let _ = nix::mount::umount2(target, nix::mount::MntFlags::MNT_DETACH);
        }
    }
}
