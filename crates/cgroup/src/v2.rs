//! cgroup v2: one folder per instance. The first process starts in it (CLONE_INTO_CGROUP).
//!
//! v2 needs no device list: a sandbox cannot make device nodes (no CAP_MKNOD, and every writable mount is `nodev`), so
//! only the nodes of the `/dev` that the engine provides exist.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use atoll_model::Limits;

use super::{
    CgroupEntry, CgroupPlacement, Cgroups, Figures, MIB, PERIOD_US, add_nested, all_memory, all_pids,
    folders_in, is_removed, limit_where_known, make_folder, quota_us, read_keyed, read_number, read_pids,
    remove_folder, wait_until_frozen,
};
use atoll_storage::mountinfo::MountEntry;

const WANTED: [&str; 3] = ["memory", "cpu", "pids"];

/// The folder of this server in the single hierarchy.
#[derive(Debug)]
pub(crate) struct V2 {
    parent: PathBuf,
}

impl V2 {
    /// `None` when there is no v2 hierarchy with all controllers.
    pub(crate) fn find(mounts: &[MountEntry], parent: &str) -> io::Result<Option<Self>> {
        for mount in mounts.iter().filter(|mount| mount.kind == "cgroup2") {
            if let Some(found) = Self::at(&mount.point, parent)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn at(root: &Path, parent: &str) -> io::Result<Option<Self>> {
        let offered = fs::read_to_string(root.join("cgroup.controllers"))?;
        if !WANTED.iter().all(|name| offered.split_whitespace().any(|found| found == *name)) {
            return Ok(None);
        }
        let found = Self { parent: root.join(parent) };
        make_folder(&found.parent)?;
        for folder in [root, &found.parent] {
            fs::write(
                folder.join("cgroup.subtree_control"),
                WANTED.map(|name| format!("+{name}")).join(" "),
            )?;
        }
        limit_where_known(&found.parent.join("memory.max"), all_memory())?;
        limit_where_known(&found.parent.join("pids.max"), all_pids()?)?;
        Ok(Some(found))
    }

    fn file(&self, name: &str, file: &str) -> PathBuf {
        self.parent.join(name).join(file)
    }
}

impl Cgroups for V2 {
    fn create(&self, name: &str, limits: &Limits) -> io::Result<CgroupPlacement> {
        let folder = self.parent.join(name);
        let make = || -> io::Result<OwnedFd> {
            fs::create_dir(&folder)?;
            self.set_limits(name, limits)?;
            File::open(&folder).map(OwnedFd::from)
        };
        match make() {
            Ok(descriptor) => Ok(CgroupPlacement { how: CgroupEntry::Born, descriptors: vec![descriptor] }),
            Err(cause) => {
                let _ = self.remove(name);
                Err(cause)
            }
        }
    }

    fn set_limits(&self, name: &str, limits: &Limits) -> io::Result<()> {
        fs::write(self.file(name, "memory.max"), (u64::from(limits.memory_mib) * MIB).to_string())?;
        let swap = self.file(name, "memory.swap.max");
        if swap.exists() {
            fs::write(swap, "0")?;
        }
        fs::write(self.file(name, "pids.max"), limits.pids.to_string())?;
        fs::write(self.file(name, "cpu.max"), format!("{} {PERIOD_US}", quota_us(limits)))
    }

    fn freeze(&self, name: &str) -> io::Result<()> {
        fs::write(self.file(name, "cgroup.freeze"), "1")?;
        let events = self.file(name, "cgroup.events");
        wait_until_frozen(|| Ok(read_keyed(&events, &["frozen"])? == 1), &self.file(name, "cpu.max"), "max")
    }

    fn thaw(&self, name: &str) -> io::Result<()> {
        fs::write(self.file(name, "cgroup.freeze"), "0")
    }

    fn is_frozen(&self, name: &str) -> io::Result<bool> {
        Ok(read_number(&self.file(name, "cgroup.freeze"))? == 1)
    }

    fn freezer(&self, name: &str) -> io::Result<PathBuf> {
        Ok(self.parent.join(name))
    }

    fn entry_files(&self, name: &str) -> Vec<PathBuf> {
        vec![self.file(name, "cgroup.procs")]
    }

    fn homes(&self, name: &str) -> Vec<(String, String)> {
        let ours = self.parent.file_name().unwrap_or_default().to_string_lossy();
        vec![(String::new(), format!("/{ours}/{name}"))]
    }

    fn figures(&self, name: &str) -> io::Result<Figures> {
        let pids = read_number(&self.file(name, "pids.current"))?;
        Ok(Figures {
            cpu_us: read_keyed(&self.file(name, "cpu.stat"), &["usage_usec"])?,
            memory_bytes: read_number(&self.file(name, "memory.current"))?,
            cache_bytes: read_keyed(&self.file(name, "memory.stat"), &["active_file", "inactive_file"])?,
            pids: u32::try_from(pids).unwrap_or(u32::MAX),
        })
    }

    fn oom_kills(&self, name: &str) -> io::Result<u64> {
        read_keyed(&self.file(name, "memory.events"), &["oom_kill"])
    }

    fn processes(&self, name: &str) -> io::Result<Vec<i32>> {
        match read_pids(&self.file(name, "cgroup.procs")) {
            Err(error) if is_removed(&error) => Ok(Vec::new()),
            other => other,
        }
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        remove_folder(&self.parent.join(name))
    }

    fn nested(&self, name: &str) -> io::Result<Vec<String>> {
        let mut found = Vec::new();
        add_nested(&self.parent, name, 0, &mut found)?;
        Ok(found)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        folders_in(&self.parent)
    }

    fn remove_parent(&self) -> io::Result<()> {
        remove_folder(&self.parent)
    }

    fn layout(&self) -> &'static str {
        "v2"
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn tree(controllers: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("cgroup.controllers"), controllers).unwrap();
        root
    }

    #[test]
    fn a_hierarchy_without_our_controllers_is_not_taken() {
        let root = tree("hugetlb\n");
        assert!(V2::at(root.path(), "atoll-0").unwrap().is_none());
    }

    #[test]
    fn controllers_are_handed_down_and_limits_written() {
        let root = tree("cpuset cpu io memory pids\n");
        let v2 = V2::at(root.path(), "atoll-0").unwrap().unwrap();
        let read = |path: &str| fs::read_to_string(root.path().join(path)).unwrap();
        assert_eq!(read("cgroup.subtree_control"), "+memory +cpu +pids");
        assert_eq!(read("atoll-0/cgroup.subtree_control"), "+memory +cpu +pids");
        let limits = Limits { cpu_milli: 1_500, memory_mib: 32, disk_mib: 1, pids: 9 };
        let entry = v2.create("x", &limits).unwrap();
        assert!(matches!(entry.how, CgroupEntry::Born) && entry.descriptors.len() == 1);
        assert_eq!(read("atoll-0/x/memory.max"), "33554432");
        assert_eq!(read("atoll-0/x/pids.max"), "9");
        assert_eq!(read("atoll-0/x/cpu.max"), "150000 100000");
        assert_eq!(v2.list().unwrap(), ["x"]);
    }

    #[test]
    fn figures_and_deaths_are_read() {
        let root = tree("cpu memory pids\n");
        let v2 = V2::at(root.path(), "p").unwrap().unwrap();
        let folder = root.path().join("p/x");
        fs::create_dir(&folder).unwrap();
        for (file, text) in [
            ("cpu.stat", "usage_usec 1234\nuser_usec 1\n"),
            ("memory.current", "4096\n"),
            ("memory.stat", "anon 1\nactive_file 10\ninactive_file 20\n"),
            ("memory.events", "low 0\noom 2\noom_kill 3\n"),
            ("pids.current", "5\n"),
            ("cgroup.procs", "11\n12\n"),
        ] {
            fs::write(folder.join(file), text).unwrap();
        }
        let expected = Figures { cpu_us: 1_234, memory_bytes: 4_096, cache_bytes: 30, pids: 5 };
        assert_eq!(v2.figures("x").unwrap(), expected);
        assert_eq!((v2.oom_kills("x").unwrap(), v2.processes("x").unwrap()), (3, vec![11, 12]));
        assert!(v2.processes("gone").unwrap().is_empty());
    }
}
