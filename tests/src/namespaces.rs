//! The ground a world stands on: a thread in a network and a mount namespace of its own, joined to a small internet.
//!
//! Threads and processes started from that thread inherit both namespaces, so a runtime built on it, its client sockets and
//! the server are all inside. When the last of them ends, the kernel removes links, rules and mounts with the namespaces.

use std::path::Path;
use std::process::Command;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::internet::{self, Internet};

/// The address of the host on its uplink to the test's internet.
pub const HOST_ADDRESS: &str = "203.0.113.2";

/// Runs `body` on a new thread with namespaces of its own and hands its panic on.
pub fn in_own_namespaces<T: Send>(body: impl FnOnce(Internet) -> T + Send) -> T {
    // reqwest uses the provider of the process. An error says that it has one already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| body(enter()));
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn enter() -> Internet {
    assert!(nix::unistd::geteuid().is_root(), "the kernel suites need root");
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).expect("own namespaces");
    let nothing = None::<&str>;
    mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing).expect("private mounts");
    // sysfs shows the links of the network namespace it was mounted in; the old one would show the real host's.
    ip("link set lo up");
    let internet = internet::start();
    name_server(&internet);
    internet
}

/// The host's resolver becomes the one of the test's internet, in this mount namespace only.
fn name_server(internet: &Internet) {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), format!("nameserver {}\n", internet.address)).expect("resolv.conf");
    let target = std::fs::canonicalize("/etc/resolv.conf").unwrap_or_else(|_| "/etc/resolv.conf".into());
    let nothing = None::<&str>;
    mount(Some(file.path()), &target, nothing, MsFlags::MS_BIND, nothing).expect("own resolv.conf");
}

/// Binds a folder of the machine read-only at a place of this world.
pub fn bind_read_only(from: &Path, to: &Path) {
    let nothing = None::<&str>;
    mount(Some(from), to, nothing, MsFlags::MS_BIND, nothing).expect("bind");
    let again = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    mount(nothing, to, nothing, again, nothing).expect("read-only");
}

/// Makes a file system of so many MiB in a sparse file and mounts it. It goes with the mount namespace.
pub fn mount_small_disk(file: &Path, at: &Path, mib: u32) {
    let script = "truncate -s \"$3M\" \"$1\" && mkfs.ext4 -q -F -m 0 \"$1\" && mkdir -p \"$2\" && \
                  mount -o loop \"$1\" \"$2\" && chmod 700 \"$2\"";
    let mut shell = Command::new("sh");
    let done = shell.args(["-c", script, "sh"]).arg(file).arg(at).arg(mib.to_string()).output().expect("sh");
    assert!(done.status.success(), "a small disk: {}", String::from_utf8_lossy(&done.stderr));
}

/// Runs `ip` with words separated by spaces, in the namespace of the calling thread.
pub fn ip(words: &str) {
    let done = Command::new("ip").args(words.split(' ')).output().expect("ip of iproute2");
    assert!(done.status.success(), "ip {words}: {}", String::from_utf8_lossy(&done.stderr));
}
