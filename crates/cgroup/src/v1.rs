//! cgroup v1 and hybrid: one folder per controller and instance.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use atoll_model::Limits;

use super::{
    CgroupEntry, CgroupPlacement, Cgroups, DeviceAccess, Figures, MIB, add_nested, all_memory, all_pids,
    folders_in, is_removed, limit_where_known, make_folder, quota_us, read_keyed, read_number, read_pids,
    remove_folder, wait_until_frozen,
};
use atoll_storage::mountinfo::MountEntry;

const MEMORY: &str = "memory";
const CPU: &str = "cpu";
const PIDS: &str = "pids";
const FREEZER: &str = "freezer";
const DEVICES: &str = "devices";
const CPUACCT: &str = "cpuacct";
/// A freeze takes well under a millisecond; after this time it is requested again.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(20);
const WANTED: [&str; 6] = [MEMORY, CPU, PIDS, FREEZER, DEVICES, CPUACCT];

/// null, zero, full, random, urandom, tty, ptmx and terminals. A sandbox cannot make device nodes; this list is a
/// second line of defence.
const ALLOWED_DEVICES: [&str; 8] = [
    "c 1:3 rwm",
    "c 1:5 rwm",
    "c 1:7 rwm",
    "c 1:8 rwm",
    "c 1:9 rwm",
    "c 5:0 rwm",
    "c 5:2 rwm",
    "c 136:* rwm",
];

/// LIMIT: kernel memory of a sandbox's sockets. v1 counts it separately from other memory, and only if it is limited.
/// The limit is a quarter of the memory, within these bounds.
const SOCKETS_LEAST: u64 = 4 * MIB;
const SOCKETS_MOST: u64 = 64 * MIB;
const SOCKETS_FILE: &str = "memory.kmem.tcp.limit_in_bytes";

/// The folders of this server, one per hierarchy.
#[derive(Debug)]
pub(crate) struct V1 {
    /// Controller, and the folder of this server in its hierarchy. `cpu` and `cpuacct` often share one.
    parents: Vec<(&'static str, PathBuf)>,
}

impl V1 {
    /// `None` when memory, cpu, pids or freezer is not mounted as v1.
    pub(crate) fn find(
        mounts: &[MountEntry],
        parent: &str,
        devices: DeviceAccess,
    ) -> io::Result<Option<Self>> {
        let point = |controller: &str| {
            let has = |mount: &&MountEntry| {
                mount.kind == "cgroup" && mount.options.split(',').any(|option| option == controller)
            };
            mounts.iter().find(has).map(|mount| mount.point.as_path())
        };
        let wanted = WANTED.iter().filter(|name| **name != DEVICES || devices == DeviceAccess::Sandbox);
        let found: Vec<(&str, &Path)> = wanted.filter_map(|name| point(name).map(|at| (*name, at))).collect();
        let has = |name| found.iter().any(|(found, _)| *found == name);
        if !(has(MEMORY) && has(CPU) && has(PIDS) && has(FREEZER)) {
            return Ok(None);
        }
        let at = Self { parents: found.iter().map(|(name, at)| (*name, at.join(parent))).collect() };
        at.prepare()?;
        Ok(Some(at))
    }

    #[cfg(test)]
    fn at(root: &Path) -> Self {
        Self { parents: WANTED.iter().map(|name| (*name, root.join(name))).collect() }
    }

    fn prepare(&self) -> io::Result<()> {
        for (controller, parent) in &self.parents {
            make_folder(parent)?;
            if *controller == MEMORY {
                limit_where_known(&parent.join("memory.limit_in_bytes"), all_memory())?;
                limit_where_known(&parent.join(SOCKETS_FILE), all_sockets())?;
            }
            if *controller == PIDS {
                limit_where_known(&parent.join("pids.max"), all_pids()?)?;
            }
            if *controller != DEVICES {
                continue;
            }
            // A new child inherits the device list, so it is set once here, before the first child exists.
            if fs::read_to_string(parent.join("devices.list"))?.starts_with("a ") {
                fs::write(parent.join("devices.deny"), "a")?;
                for rule in ALLOWED_DEVICES {
                    fs::write(parent.join("devices.allow"), rule)?;
                }
            }
        }
        Ok(())
    }

    fn folder(&self, controller: &str, name: &str) -> io::Result<PathBuf> {
        let parent = self.parents.iter().find(|(found, _)| *found == controller).map(|(_, parent)| parent);
        parent.map(|parent| parent.join(name)).ok_or_else(|| io::ErrorKind::Unsupported.into())
    }

    /// Every hierarchy once, even if it has two controllers.
    fn folders(&self, name: &str) -> Vec<PathBuf> {
        let mut folders: Vec<PathBuf> = self.parents.iter().map(|(_, parent)| parent.join(name)).collect();
        folders.sort();
        folders.dedup();
        folders
    }
}

/// LIMIT: for all sandboxes together. By default TCP may use a tenth of the machine's memory; the host keeps half of
/// that. (The kernel shows the exact value, `tcp_mem`, only in the first network namespace.)
fn all_sockets() -> u64 {
    let machine = rustix::system::sysinfo();
    machine.totalram.saturating_mul(u64::from(machine.mem_unit)) / 22
}

impl Cgroups for V1 {
    fn create(&self, name: &str, limits: &Limits) -> io::Result<CgroupPlacement> {
        let folders = self.folders(name);
        let make = || -> io::Result<Vec<OwnedFd>> {
            folders.iter().try_for_each(fs::create_dir)?;
            self.set_limits(name, limits)?;
            folders
                .iter()
                .map(|folder| OpenOptions::new().write(true).open(folder.join("tasks")).map(OwnedFd::from))
                .collect()
        };
        match make() {
            Ok(descriptors) => Ok(CgroupPlacement { how: CgroupEntry::Tasks, descriptors }),
            Err(cause) => {
                let _ = self.remove(name);
                Err(cause)
            }
        }
    }

    fn set_limits(&self, name: &str, limits: &Limits) -> io::Result<()> {
        let memory = self.folder(MEMORY, name)?;
        let bytes = (u64::from(limits.memory_mib) * MIB).to_string();
        // The limit of memory with swap may never be below the limit of memory, so the order of the writes depends on
        // the direction. The file is missing where swap is not accounted.
        let with_swap = memory.join("memory.memsw.limit_in_bytes");
        let swap_first = with_swap.exists() && fs::write(&with_swap, &bytes).is_ok();
        fs::write(memory.join("memory.limit_in_bytes"), &bytes)?;
        if with_swap.exists() && !swap_first {
            fs::write(&with_swap, &bytes)?;
        }
        let sockets = u64::from(limits.memory_mib) * MIB / 4;
        limit_where_known(&memory.join(SOCKETS_FILE), sockets.clamp(SOCKETS_LEAST, SOCKETS_MOST))?;
        fs::write(self.folder(PIDS, name)?.join("pids.max"), limits.pids.to_string())?;
        fs::write(self.folder(CPU, name)?.join("cpu.cfs_quota_us"), quota_us(limits).to_string())
    }

    fn freeze(&self, name: &str) -> io::Result<()> {
        let state = self.folder(FREEZER, name)?.join("freezer.state");
        fs::write(&state, "FROZEN")?;
        let mut asked = (Instant::now(), 0u32);
        let is_frozen = || {
            if fs::read_to_string(&state)?.trim() == "FROZEN" {
                return Ok(true);
            }
            // A process that forks during the freeze can leave a child that does not freeze. So the freeze is requested
            // again, and every fourth time all processes are thawed first.
            if asked.0.elapsed() > ASK_AGAIN_AFTER {
                asked = (Instant::now(), asked.1 + 1);
                if asked.1.is_multiple_of(4) {
                    fs::write(&state, "THAWED")?;
                }
                fs::write(&state, "FROZEN")?;
            }
            Ok(false)
        };
        let quota = self.folder(CPU, name)?.join("cpu.cfs_quota_us");
        wait_until_frozen(is_frozen, &quota, "-1")
    }

    fn thaw(&self, name: &str) -> io::Result<()> {
        fs::write(self.folder(FREEZER, name)?.join("freezer.state"), "THAWED")
    }

    fn is_frozen(&self, name: &str) -> io::Result<bool> {
        let state = fs::read_to_string(self.folder(FREEZER, name)?.join("freezer.state"))?;
        Ok(matches!(state.trim(), "FROZEN" | "FREEZING"))
    }

    fn freezer(&self, name: &str) -> io::Result<PathBuf> {
        self.folder(FREEZER, name)
    }

    fn entry_files(&self, name: &str) -> Vec<PathBuf> {
        self.folders(name).iter().map(|folder| folder.join("cgroup.procs")).collect()
    }

    fn homes(&self, name: &str) -> Vec<(String, String)> {
        let of = |(controller, parent): &(&str, PathBuf)| {
            let ours = parent.file_name().unwrap_or_default().to_string_lossy();
            ((*controller).to_owned(), format!("/{ours}/{name}"))
        };
        self.parents.iter().map(of).collect()
    }

    fn figures(&self, name: &str) -> io::Result<Figures> {
        let memory = self.folder(MEMORY, name)?;
        let cpu_ns = match self.folder(CPUACCT, name) {
            Ok(folder) => read_number(&folder.join("cpuacct.usage"))?,
            Err(_) => 0,
        };
        let pids = read_number(&self.folder(PIDS, name)?.join("pids.current"))?;
        Ok(Figures {
            cpu_us: cpu_ns / 1_000,
            memory_bytes: read_number(&memory.join("memory.usage_in_bytes"))?,
            cache_bytes: read_keyed(
                &memory.join("memory.stat"),
                &["total_active_file", "total_inactive_file"],
            )?,
            pids: u32::try_from(pids).unwrap_or(u32::MAX),
        })
    }

    fn oom_kills(&self, name: &str) -> io::Result<u64> {
        read_keyed(&self.folder(MEMORY, name)?.join("memory.oom_control"), &["oom_kill"])
    }

    fn processes(&self, name: &str) -> io::Result<Vec<i32>> {
        let mut all = Vec::new();
        for folder in self.folders(name) {
            match read_pids(&folder.join("cgroup.procs")) {
                Ok(pids) => all.extend(pids),
                Err(error) if is_removed(&error) => {}
                Err(error) => return Err(error),
            }
        }
        all.sort_unstable();
        all.dedup();
        Ok(all)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.folders(name).iter().try_for_each(|folder| remove_folder(folder))
    }

    fn nested(&self, name: &str) -> io::Result<Vec<String>> {
        let mut found = Vec::new();
        for (_, parent) in &self.parents {
            add_nested(parent, name, 0, &mut found)?;
        }
        // A deeper path is never a parent of another one.
        found.sort_by_cached_key(|name| (std::cmp::Reverse(name.matches('/').count()), name.clone()));
        found.dedup();
        Ok(found)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for (_, parent) in &self.parents {
            names.extend(folders_in(parent)?);
        }
        names.sort();
        names.dedup();
        Ok(names)
    }

    fn remove_parent(&self) -> io::Result<()> {
        self.parents.iter().try_for_each(|(_, parent)| remove_folder(parent))
    }

    fn layout(&self) -> &'static str {
        "v1"
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn limits_are_written_where_the_kernel_wants_them() {
        let root = tempfile::tempdir().unwrap();
        let v1 = V1::at(root.path());
        for folder in v1.folders("x") {
            fs::create_dir_all(folder).unwrap();
        }
        let limits = Limits { cpu_milli: 250, memory_mib: 64, disk_mib: 1, pids: 7 };
        v1.set_limits("x", &limits).unwrap();
        let read = |path: &str| fs::read_to_string(root.path().join(path)).unwrap();
        assert_eq!(read("memory/x/memory.limit_in_bytes"), "67108864");
        assert_eq!(read("pids/x/pids.max"), "7");
        assert_eq!(read("cpu/x/cpu.cfs_quota_us"), "25000");
        assert_eq!(v1.list().unwrap(), ["x"]);
    }
}
