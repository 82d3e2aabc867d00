//! A live instance as the server holds it, and the facts by which a later server finds it again.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use atoll_instances::RunningInstance;
use atoll_model::Storage;
use atoll_network::SandboxLink;
use atoll_provider::NetworkBytes;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use tokio::io::unix::AsyncFd;

use crate::launcher::CAP_SETFCAP;

/// Stored by the service. Contains no secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Facts {
    /// Pids are invalid after a reboot.
    pub(super) boot_id: String,
    pub(super) pid: i32,
    /// In clock ticks since boot: a process that reuses the pid has another value.
    pub(super) started: u64,
    /// The name of the instance's cgroups.
    pub(super) cgroup: String,
    pub(super) first_id: u32,
    pub(super) link: Option<SandboxLink>,
    /// Addresses that the instance had before a restore; its sockets may still use them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) earlier: Vec<Ipv4Addr>,
    pub(super) template: String,
    pub(super) template_version: String,
    pub(super) storage: Storage,
    /// Mount points of volumes and of folders of the host, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) mounts: Vec<String>,
}

#[derive(Debug)]
pub(super) struct Live {
    pub(super) facts: Facts,
    pidfd: AsyncFd<OwnedFd>,
    netns: OwnedFd,
    /// The server has ended the instance itself, so its death is not reported.
    ending: AtomicBool,
    pub(super) oom_kills: AtomicU64,
}

impl Live {
    pub(super) fn new(facts: Facts, pidfd: OwnedFd, netns: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            facts,
            pidfd: crate::sys::watch(pidfd)?,
            netns,
            ending: AtomicBool::new(false),
            oom_kills: AtomicU64::new(0),
        })
    }

    pub(super) fn netns(&self) -> BorrowedFd<'_> {
        self.netns.as_fd()
    }

    pub(super) fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.get_ref().as_fd()
    }

    /// Bytes that the instance has moved over its link since its start; `None` if it has no link or is gone.
    pub(super) fn network_bytes(&self) -> Option<NetworkBytes> {
        // The kernel's view of the network namespace; programs in the sandbox cannot change or replace the link.
        let text = std::fs::read_to_string(format!("/proc/{}/net/dev", self.facts.pid)).ok()?;
        bytes_of_eth0(&text)
    }

    /// Ends the instance with all its processes: the kernel ends the pid namespace with its first process.
    pub(super) fn kill(&self) -> io::Result<()> {
        kill(self.pidfd())
    }
}

impl RunningInstance for Live {
    fn expect_end(&self) {
        self.ending.store(true, Ordering::SeqCst);
    }

    fn is_ending(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
    }

    fn is_dead(&self) -> io::Result<bool> {
        is_dead(self.pidfd())
    }

    async fn dead(&self) -> io::Result<()> {
        loop {
            let mut ready = self.pidfd.readable().await?;
            if is_dead(self.pidfd())? {
                return Ok(());
            }
            ready.clear_ready();
        }
    }
}

/// Bytes received and sent: the first and the ninth number after the interface name.
fn bytes_of_eth0(text: &str) -> Option<NetworkBytes> {
    let figures = text.lines().find_map(|line| line.trim().strip_prefix("eth0:"))?;
    let figure = |at| figures.split_whitespace().nth(at)?.parse().ok();
    Some(NetworkBytes { received: figure(0)?, sent: figure(8)? })
}

/// Sends SIGKILL; a process that has ended already is no error.
pub(super) fn kill(pidfd: BorrowedFd<'_>) -> io::Result<()> {
    match rustix::process::pidfd_send_signal(pidfd, Signal::KILL) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Whether the process has ended.
pub(super) fn is_dead(pidfd: BorrowedFd<'_>) -> io::Result<bool> {
    let mut polled = [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)];
    let none = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    Ok(rustix::event::poll(&mut polled, Some(&none))? > 0)
}

/// The start time of a process, from the 22nd field of its `stat`.
pub(super) fn started(pid: i32) -> io::Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The second field is a name in parentheses that may contain any character.
    let rest = stat.rsplit_once(')').map(|(_, rest)| rest);
    rest.and_then(|rest| rest.split_whitespace().nth(19))
        .and_then(|field| field.parse().ok())
        .ok_or(io::ErrorKind::InvalidData.into())
}

/// Whether the processes of the sandbox with this first process cannot set the set-user-ID and set-group-ID bits. Such
/// sandboxes also lack CAP_SETFCAP, and the kernel shows that.
pub(super) fn refuses_special_bits(pid: i32) -> io::Result<bool> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let bounding = status.lines().find_map(|line| line.strip_prefix("CapBnd:"));
    let bounding = bounding.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    Ok(bounding.ok_or(io::ErrorKind::InvalidData)? & CAP_SETFCAP == 0)
}

/// The id of this boot of the kernel.
pub(super) fn boot_id() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_traffic_of_a_sandbox_is_read_from_the_kernels_table() {
        let text = "Inter-|   Receive  | Transmit\n    lo: 9 1 0 0 0 0 0 0 9 1 0 0 0 0 0 0\n  eth0: 10 1 0 0 0 0 0 0 4321 2 0 0 0 0 0 0\n";
        assert_eq!(bytes_of_eth0(text), Some(NetworkBytes { received: 10, sent: 4_321 }));
        assert_eq!(bytes_of_eth0("  eth0: 1 2"), None);
        assert_eq!(bytes_of_eth0("    lo: 9 1 0 0 0 0 0 0 9 1 0 0 0 0 0 0"), None);
    }

    #[test]
    fn our_own_start_time_can_be_read_and_stands_still() {
        let pid = i32::try_from(std::process::id()).unwrap();
        assert_eq!(started(pid).unwrap(), started(pid).unwrap());
        assert!(!boot_id().unwrap().is_empty());
    }
}
