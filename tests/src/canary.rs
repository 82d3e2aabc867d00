//! Files and settings of the host that no sandbox may change. Taken before a test, compared after it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// Settings that escapes of the past wrote to.
const SETTINGS: &[&str] = &[
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/kernel/hostname",
    "/proc/sys/kernel/domainname",
    "/proc/sys/kernel/sysrq",
    "/proc/sys/kernel/pid_max",
    "/proc/sys/kernel/randomize_va_space",
    "/proc/sys/kernel/unprivileged_bpf_disabled",
    "/proc/sys/fs/suid_dumpable",
    "/proc/sys/vm/overcommit_memory",
    "/sys/fs/cgroup/memory/release_agent",
    "/sys/fs/cgroup/pids/release_agent",
];

/// Files that hold or guard secrets.
const FILES: &[&str] =
    &["/etc/passwd", "/etc/shadow", "/etc/group", "/etc/hosts", "/etc/ld.so.cache", "/usr/bin/true"];

/// A picture of the host, and a secret file that nothing inside may read.
pub struct Canary {
    before: BTreeMap<PathBuf, String>,
    extra: Vec<PathBuf>,
    secret: PathBuf,
}

/// Only this harness and the host know it; finding it inside a sandbox or an answer is an escape.
pub const SECRET: &str = "canary-8f2e61c0-of-the-host";

impl Canary {
    /// Takes the picture; `extra` files (our own binaries) are watched too.
    pub fn take(folder: &Path, extra: &[&Path]) -> Self {
        let secret = folder.join("secret-of-the-host");
        std::fs::write(&secret, SECRET).expect("canary file");
        let extra: Vec<PathBuf> =
            extra.iter().map(|path| path.to_path_buf()).chain([secret.clone()]).collect();
        Self { before: picture(&extra), extra, secret }
    }

    /// The secret file's path on the host.
    pub fn secret(&self) -> &Path {
        &self.secret
    }

    /// What changed, one line each.
    pub fn changes(&self) -> Vec<String> {
        let now = picture(&self.extra);
        let changed = |(path, was): (&PathBuf, &String)| {
            let is = now.get(path).cloned().unwrap_or_else(|| "gone".to_owned());
            (is != *was).then(|| format!("{} changed: {was} became {is}", path.display()))
        };
        self.before.iter().filter_map(changed).collect()
    }
}

fn picture(extra: &[PathBuf]) -> BTreeMap<PathBuf, String> {
    let settings = SETTINGS.iter().filter_map(|path| {
        let text = std::fs::read_to_string(path).ok()?;
        Some((PathBuf::from(path), text.trim_end().to_owned()))
    });
    let files = FILES.iter().map(PathBuf::from).chain(extra.iter().cloned()).filter_map(|path| {
        let bytes = std::fs::read(&path).ok()?;
        Some((path, hex::encode(Sha256::digest(bytes))))
    });
    settings.chain(files).collect()
}
