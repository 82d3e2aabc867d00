//! The oracle: the same program in the same root under `runc` with the settings people take for safe.
//!
//! The spec follows what Docker gives a container: its capabilities, masked and read-only paths, a seccomp filter that denies
//! what its default profile denies. Whatever the probe can do in a sandbox of ours, it must be able to do here too.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

const CAPABILITIES: &[&str] = &[
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FSETID",
    "CAP_FOWNER",
    "CAP_MKNOD",
    "CAP_NET_RAW",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETFCAP",
    "CAP_SETPCAP",
    "CAP_NET_BIND_SERVICE",
    "CAP_SYS_CHROOT",
    "CAP_KILL",
    "CAP_AUDIT_WRITE",
];

const MASKED: &[&str] = &[
    "/proc/acpi",
    "/proc/asound",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];

const READ_ONLY: &[&str] = &["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Denied by the default profile of Docker for a container without CAP_SYS_ADMIN and its like.
const DENIED: &[&str] = &[
    "acct",
    "add_key",
    "bpf",
    "clock_adjtime",
    "clock_settime",
    "create_module",
    "delete_module",
    "finit_module",
    "fsconfig",
    "fsmount",
    "fsopen",
    "fspick",
    "get_kernel_syms",
    "get_mempolicy",
    "init_module",
    "io_uring_enter",
    "io_uring_register",
    "io_uring_setup",
    "ioperm",
    "iopl",
    "kcmp",
    "kexec_file_load",
    "kexec_load",
    "keyctl",
    "lookup_dcookie",
    "mbind",
    "mount",
    "mount_setattr",
    "move_mount",
    "move_pages",
    "nfsservctl",
    "open_by_handle_at",
    "open_tree",
    "perf_event_open",
    "pivot_root",
    "process_vm_readv",
    "process_vm_writev",
    "quotactl",
    "quotactl_fd",
    "reboot",
    "request_key",
    "set_mempolicy",
    "setns",
    "settimeofday",
    "stime",
    "swapoff",
    "swapon",
    "sysfs",
    "_sysctl",
    "umount",
    "umount2",
    "unshare",
    "uselib",
    "userfaultfd",
    "ustat",
    "vm86",
    "vm86old",
    "vhangup",
    "syslog",
    "fanotify_init",
];

/// Runs a program of the bundle's root under runc as root of a container and answers what it printed.
pub fn run(folder: &Path, rootfs: &Path, arguments: &[&str]) -> String {
    let bundle = folder.join("runc");
    std::fs::create_dir_all(&bundle).expect("a bundle");
    let root = own_root(&bundle, rootfs);
    std::fs::write(bundle.join("config.json"), spec(&root, arguments).to_string()).expect("a spec");
    let name = format!("atoll-oracle-{}", nix::unistd::getpid());
    let output = Command::new("runc")
        .arg("--root")
        .arg(bundle.join("state"))
        .args(["run", "--bundle"])
        .arg(&bundle)
        .arg(&name)
        .output()
        .expect("runc is installed");
    assert!(output.status.success(), "runc: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("the probe prints text")
}

/// A copy of the root that the container may write to.
fn own_root(bundle: &Path, rootfs: &Path) -> PathBuf {
    let root = bundle.join("rootfs");
    if !root.exists() {
        let copied = Command::new("cp").arg("-a").arg(rootfs).arg(&root).status().expect("cp");
        assert!(copied.success(), "copy of the root");
    }
    root
}

fn spec(root: &Path, arguments: &[&str]) -> Value {
    let mounts = json!([
        { "destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec", "nodev"] },
        { "destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "strictatime", "mode=755", "size=65536k"] },
        { "destination": "/dev/pts", "type": "devpts", "source": "devpts", "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"] },
        { "destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": ["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"] },
        { "destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "noexec", "nodev", "ro"] }
    ]);
    json!({
        "ociVersion": "1.0.2",
        "root": { "path": root, "readonly": false },
        "hostname": "oracle",
        "process": {
            "terminal": false, "user": { "uid": 0, "gid": 0 }, "args": arguments, "cwd": "/", "noNewPrivileges": true,
            "env": ["PATH=/usr/bin:/bin"],
            "capabilities": { "bounding": CAPABILITIES, "effective": CAPABILITIES, "permitted": CAPABILITIES }
        },
        "mounts": mounts,
        "linux": {
            "namespaces": [{ "type": "pid" }, { "type": "mount" }, { "type": "network" }, { "type": "ipc" }, { "type": "uts" }],
            "resources": { "devices": [{ "allow": false, "access": "rwm" }] },
            "maskedPaths": MASKED, "readonlyPaths": READ_ONLY,
            "seccomp": seccomp()
        }
    })
}

fn seccomp() -> Value {
    let new_user_namespace = 0x1000_0000_u64;
    json!({
        "defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86_64"],
        "syscalls": [
            { "names": DENIED, "action": "SCMP_ACT_ERRNO", "errnoRet": 1 },
            { "names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38 },
            { "names": ["clone"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1, "args": [
                { "index": 0, "value": new_user_namespace, "valueTwo": new_user_namespace, "op": "SCMP_CMP_MASKED_EQ" }] },
            { "names": ["socket"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1, "args": [{ "index": 0, "value": 40, "op": "SCMP_CMP_EQ" }] },
            { "names": ["socket"], "action": "SCMP_ACT_ERRNO", "errnoRet": 97, "args": [{ "index": 0, "value": 38, "op": "SCMP_CMP_EQ" }] }
        ]
    })
}
