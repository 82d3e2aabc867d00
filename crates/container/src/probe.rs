//! Checks of `atoll doctor`: one line each, with a way to fix a failure. The checks change nothing permanently.

use std::path::Path;
use std::process::Command;

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// What was checked.
    pub name: &'static str,
    /// Whether the check passed.
    pub ok: bool,
    /// What was found.
    pub detail: String,
    /// How to fix it; empty when nothing has to be done.
    pub fix: String,
}

impl Probe {
    fn new(name: &'static str, found: Result<String, String>, fix: &str) -> Self {
        match found {
            Ok(detail) => Self { name, ok: true, detail, fix: String::new() },
            Err(detail) => Self { name, ok: false, detail, fix: fix.to_owned() },
        }
    }
}

/// Checks everything that the engine needs, and the optional features that it can use.
#[must_use]
pub fn probes(data: &Path) -> Vec<Probe> {
    vec![
        Probe::new("root", root(), "run the server as root"),
        Probe::new("kernel", kernel(), "use a kernel of 6.1 or newer"),
        Probe::new(
            "control groups",
            control_groups(),
            "mount memory, cpu and pids controllers (v1 with freezer, or v2)",
        ),
        Probe::new("user namespaces", user_namespaces(), "sysctl user.max_user_namespaces=65536"),
        Probe::new("overlay", file_system("overlay"), "load the overlay module: modprobe overlay"),
        Probe::new("btrfs", file_system("btrfs"), "modprobe btrfs; without btrfs there are no disk limits"),
        Probe::new("mkfs.btrfs", program("mkfs.btrfs"), "apt-get install btrfs-progs"),
        Probe::new(
            "disk quota",
            quota(),
            "apt-get install btrfs-progs, on a kernel with btrfs and loop devices",
        ),
        Probe::new("loop devices", device("/dev/loop-control"), "modprobe loop"),
        Probe::new("nft", program("nft"), "apt-get install nftables"),
        Probe::new("disk", disk(data), "free at least 4 GiB on the disk of the data folder"),
        Probe::new("CRIU", criu(), &format!("optional, for pausing to disk: {}", crate::checkpoint::REMEDY)),
        Probe::new("KVM", device("/dev/kvm"), "optional: needed by the microVM provider only"),
    ]
}

fn root() -> Result<String, String> {
    if rustix::process::geteuid().is_root() {
        Ok("running as root".into())
    } else {
        Err("not running as root".into())
    }
}

fn kernel() -> Result<String, String> {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy().into_owned();
    match version(&release) {
        version if version < (6, 1) => Err(release),
        version if version < (6, 15) => Ok(format!("{release}; code paths for older kernels are used")),
        _ => Ok(release),
    }
}

/// The first two numbers in a text such as `6.18.44-fc` or `Version: 4.2.1`.
fn version(text: &str) -> (u32, u32) {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// How disk limits are enforced: with the quotas of btrfs, or not at all.
fn quota() -> Result<String, String> {
    let needs = [file_system("btrfs"), program("mkfs.btrfs"), device("/dev/loop-control")];
    if needs.iter().any(Result::is_err) {
        return Err("layers would be plain folders, and disk limits would be refused".into());
    }
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    Ok(match version(&release) {
        version if version < (6, 7) => "full quota groups of btrfs",
        _ => "simple quotas of btrfs",
    }
    .into())
}

/// The CRIU that the engine would use.
fn criu() -> Result<String, String> {
    crate::checkpoint::find().map(|(program, version)| format!("{version}, {}", program.display()))
}

fn control_groups() -> Result<String, String> {
    let mounts = atoll_storage::mountinfo::read().map_err(|cause| cause.to_string())?;
    let has = |name: &str| {
        mounts.iter().any(|mount| mount.kind == "cgroup" && mount.options.split(',').any(|o| o == name))
    };
    let missing: Vec<&str> =
        ["memory", "cpu", "pids", "freezer"].into_iter().filter(|name| !has(name)).collect();
    if missing.is_empty() {
        return Ok("v1: memory, cpu, pids, freezer".into());
    }
    for mount in mounts.iter().filter(|mount| mount.kind == "cgroup2") {
        let offered = std::fs::read_to_string(mount.point.join("cgroup.controllers")).unwrap_or_default();
        if ["memory", "cpu", "pids"].iter().all(|name| offered.split_whitespace().any(|found| found == *name))
        {
            return Ok("v2: memory, cpu, pids".into());
        }
    }
    Err(format!("v1 lacks {}, and v2 does not have memory, cpu and pids", missing.join(", ")))
}

fn user_namespaces() -> Result<String, String> {
    let text =
        std::fs::read_to_string("/proc/sys/user/max_user_namespaces").map_err(|cause| cause.to_string())?;
    match text.trim().parse::<u64>() {
        Ok(0) | Err(_) => Err(format!("at most {}", text.trim())),
        Ok(most) => Ok(format!("up to {most}")),
    }
}

fn file_system(name: &str) -> Result<String, String> {
    let known = std::fs::read_to_string("/proc/filesystems").map_err(|cause| cause.to_string())?;
    let found = known.lines().any(|line| line.split_whitespace().last() == Some(name));
    if found { Ok("the kernel has it".into()) } else { Err("the kernel does not list it".into()) }
}

fn device(path: &str) -> Result<String, String> {
    if Path::new(path).exists() {
        Ok(format!("{path} exists"))
    } else {
        Err(format!("{path} does not exist"))
    }
}

fn program(name: &str) -> Result<String, String> {
    let folders = ["/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/local/sbin", "/usr/local/bin"];
    let found = folders.iter().map(|folder| Path::new(folder).join(name)).find(|path| path.exists());
    let path = found.ok_or_else(|| format!("{name} is not installed"))?;
    let said = Command::new(&path).arg("--version").output().map_err(|cause| cause.to_string())?;
    let text = String::from_utf8_lossy(&said.stdout).lines().next().unwrap_or_default().trim().to_owned();
    Ok(if text.is_empty() { path.display().to_string() } else { text })
}

fn disk(data: &Path) -> Result<String, String> {
    const GIB: u64 = 1 << 30;
    let at = data.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    let stat = rustix::fs::statvfs(at).map_err(|cause| cause.to_string())?;
    let free = stat.f_bavail * stat.f_frsize;
    let text = format!("{:.1} GiB free", free as f64 / GIB as f64);
    if free >= 4 * GIB { Ok(text) } else { Err(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_out_of_what_programs_say() {
        assert_eq!(version("6.18.44-fc-v490"), (6, 18));
        assert_eq!(version("Version: 4.2.1"), (4, 2));
        assert_eq!(version("nothing"), (0, 0));
    }

    #[test]
    fn every_gap_has_one_line_that_closes_it() {
        for probe in probes(Path::new("/")) {
            assert_eq!(probe.ok, probe.fix.is_empty(), "{probe:?}");
            assert!(!probe.fix.contains('\n'), "{probe:?}");
        }
    }
}
