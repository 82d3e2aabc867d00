//! Waits for all children: those that the agent started, and orphans that are reparented to PID 1 or a subreaper.
//!
//! SIGCHLD arrives through a signalfd, so no handler runs in this process. Signals coalesce; hence the loop.

use std::os::fd::{FromRawFd, OwnedFd};

use crate::readiness::watched;

use super::{Exit, Table};

/// LIMIT: exits handled before other work gets its turn, so that a storm of orphans does not block the agent.
const BATCH: usize = 128;

/// Reaps until the runtime ends.
pub(crate) async fn reap_forever(table: &Table) -> std::io::Result<()> {
    let signals = watched(child_signals()?)?;
    loop {
        let mut guard = signals.readable().await?;
        // Several signals at a time; waitpid tells which children ended, since signals coalesce.
        let mut info = [0u8; 128 * 4];
        let _ = guard.try_io(|fd| rustix::io::read(fd.get_ref(), &mut info).map_err(std::io::Error::from));
        reap_all(table).await;
    }
}

async fn reap_all(table: &Table) {
    loop {
        for _ in 0..BATCH {
            let mut status = 0;
            // SAFETY: the status pointer is valid for the call; no other memory is touched.
            let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG | libc::__WALL) };
            match u32::try_from(pid) {
                Ok(pid) if pid > 0 => table.reaped(pid, decode(status)),
                _ => return,
            }
        }
        tokio::task::yield_now().await;
    }
}

fn decode(status: i32) -> Exit {
    let signaled = libc::WIFSIGNALED(status);
    Exit {
        code: if signaled { 0 } else { libc::WEXITSTATUS(status) },
        signal: if signaled { libc::WTERMSIG(status) } else { 0 },
        core_dumped: signaled && libc::WCOREDUMP(status),
        timed_out: false,
    }
}

/// Blocks SIGCHLD on this thread (before any other thread starts, so for all) and opens its signalfd.
fn child_signals() -> std::io::Result<OwnedFd> {
    // SAFETY: a zeroed sigset_t is valid storage that sigemptyset initialises; all pointers live through the calls.
    let fd = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
        libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
    };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: signalfd returned a new descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
