//! A live instance as the server holds it.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use atoll_instances::RunningInstance;
use atoll_model::SandboxId;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;

use crate::folder::{InstanceRecord, SOCKET};
use crate::processes::{InstanceProcesses, boot_id, start_time};

/// An agent with everything that it started. It ends with its agent.
#[derive(Debug)]
pub(crate) struct LocalInstance {
    pub(crate) sandbox: SandboxId,
    pub(crate) record: InstanceRecord,
    pub(crate) oom_kills: AtomicU64,
    processes: InstanceProcesses,
    folder: PathBuf,
    agent: AsyncFd<OwnedFd>,
    /// Waited for at its end. `None` for an agent of an earlier server.
    child: Mutex<Option<Child>>,
    /// The server has ended the instance itself, so its death is not reported.
    ending: AtomicBool,
}

impl LocalInstance {
    /// The process that a record describes; `None` where it has ended.
    pub(crate) fn open(
        sandbox: &SandboxId,
        folder: &Path,
        record: InstanceRecord,
        processes: &InstanceProcesses,
    ) -> io::Result<Option<Self>> {
        if record.boot_id != boot_id()? {
            return Ok(None);
        }
        let Some(pid) = Pid::from_raw(record.pid) else { return Ok(None) };
        let agent = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(agent) => agent,
            Err(rustix::io::Errno::SRCH) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        // Looked at while the descriptor is open: the id is not used again meanwhile.
        if start_time(record.pid) != Some(record.started) {
            return Ok(None);
        }
        Ok(Some(Self {
            sandbox: sandbox.clone(),
            record,
            oom_kills: AtomicU64::new(0),
            processes: processes.clone(),
            folder: folder.to_owned(),
            agent: watched(agent)?,
            child: Mutex::default(),
            ending: AtomicBool::new(false),
        }))
    }

    /// Waits for this child at its end.
    pub(crate) fn hold(&self, child: Child) {
        *self.child.lock().unwrap_or_else(PoisonError::into_inner) = Some(child);
    }

    /// The name of its control groups.
    pub(crate) fn cgroup(&self) -> &str {
        self.record.instance.as_str()
    }

    /// Ends all its processes. Blocks.
    pub(crate) fn end(&self) -> io::Result<()> {
        self.processes.end(&self.record)?;
        self.wait_for_child()
    }

    /// A child that is not waited for stays in the table of processes.
    fn wait_for_child(&self) -> io::Result<()> {
        let child = self.child.lock().unwrap_or_else(PoisonError::into_inner).take();
        child.map_or(Ok(()), |mut child| child.wait().map(drop))
    }

    /// A connection to the agent. Paths of sockets are limited to 108 bytes, so it is named by a descriptor of its folder.
    pub(crate) async fn connect(&self) -> io::Result<UnixStream> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(&self.folder, flags, Mode::empty())?;
        let number = folder.as_raw_fd();
        UnixStream::connect(format!("/proc/self/fd/{number}/{SOCKET}")).await
    }
}

#[expect(
    deprecated,
    reason = "the other constructor is unsafe code, for descriptors that may be replaced; an `OwnedFd` is not"
)]
fn watched(process: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(process, Interest::READABLE)
}

impl RunningInstance for LocalInstance {
    fn expect_end(&self) {
        self.ending.store(true, Ordering::SeqCst);
    }

    fn is_ending(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
    }

    fn is_dead(&self) -> io::Result<bool> {
        let mut polled = [PollFd::new(self.agent.get_ref(), PollFlags::IN)];
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        Ok(rustix::event::poll(&mut polled, Some(&none))? > 0)
    }

    /// Ends the other processes when the agent has ended.
    async fn dead(&self) -> io::Result<()> {
        loop {
            let mut ready = self.agent.readable().await?;
            if self.is_dead()? {
                break;
            }
            ready.clear_ready();
        }
        self.wait_for_child()?;
        let (processes, record) = (self.processes.clone(), self.record.clone());
        tokio::task::spawn_blocking(move || processes.end(&record)).await.map_err(io::Error::other)?
    }
}
