//! The state of each sandbox: whose turn it is, and its live container.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_model::{InstanceId, SandboxId};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags};

use crate::exec_stream::ExecStream;

/// The stream of connections into a container; `None` before the first connection.
pub(crate) type HeldStream = tokio::sync::Mutex<Option<Arc<ExecStream>>>;

/// A running container.
#[derive(Debug)]
pub(crate) struct LiveContainer {
    pub(crate) id: String,
    pub(crate) instance: InstanceId,
    pub(crate) access: ContainerAccess,
}

/// How a container is reached.
#[derive(Debug)]
pub(crate) enum ContainerAccess {
    /// It is on this machine. The descriptors stay with its first process when the process id is used again.
    Local { network: OwnedFd, process: OwnedFd },
    /// It is on the daemon's machine, which is another one.
    Remote(HeldStream),
}

/// The first process of a container cannot be found on this machine.
#[derive(Debug)]
pub(crate) enum NotLive {
    /// It has ended.
    Ended,
    /// A process of another program has its id: the daemon is on another machine.
    Elsewhere,
    /// The kernel refused.
    Failed(io::Error),
}

impl LiveContainer {
    /// One whose first process is on this machine.
    pub(crate) fn local(id: &str, instance: &InstanceId, pid: i32) -> Result<Self, NotLive> {
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => NotLive::Ended,
            _ if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => NotLive::Ended,
            _ => NotLive::Failed(error),
        };
        let number = Pid::from_raw(pid).ok_or(NotLive::Ended)?;
        let process =
            rustix::process::pidfd_open(number, PidfdFlags::empty()).map_err(|error| failed(error.into()))?;
        let network = File::open(format!("/proc/{pid}/ns/net")).map_err(failed)?.into();
        // Read while the process exists, so the text is that of the descriptors' process.
        let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).map_err(failed)?;
        let access = ContainerAccess::Local { network, process };
        let live = Self { id: id.to_owned(), instance: instance.clone(), access };
        match (live.is_dead(), groups.contains(id)) {
            (true, _) => Err(NotLive::Ended),
            (false, false) => Err(NotLive::Elsewhere),
            (false, true) => Ok(live),
        }
    }

    /// One of a daemon on another machine.
    pub(crate) fn remote(id: &str, instance: &InstanceId) -> Self {
        let access = ContainerAccess::Remote(HeldStream::default());
        Self { id: id.to_owned(), instance: instance.clone(), access }
    }

    /// Whether its first process has ended. On another machine only the daemon knows.
    pub(crate) fn is_dead(&self) -> bool {
        let ContainerAccess::Local { process, .. } = &self.access else { return false };
        let mut wait = [PollFd::new(process, PollFlags::IN)];
        rustix::event::poll(&mut wait, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }
}

#[derive(Debug, Default)]
struct SlotState {
    live: Option<Arc<LiveContainer>>,
    /// The instance that this server ended, or whose death it reported: it never becomes live again.
    ended: Option<InstanceId>,
}

/// The state of one sandbox.
#[derive(Debug, Default)]
pub(crate) struct SandboxSlot {
    /// Held by the call that changes the sandbox.
    pub(crate) turn: Arc<tokio::sync::Mutex<()>>,
    state: Mutex<SlotState>,
}

impl SandboxSlot {
    fn state(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn live(&self) -> Option<Arc<LiveContainer>> {
        self.state().live.clone()
    }

    /// Makes a container the live one, unless its instance has ended.
    pub(crate) fn set_live(&self, live: Arc<LiveContainer>) -> bool {
        let mut state = self.state();
        let is_allowed = state.ended.as_ref() != Some(&live.instance);
        if is_allowed {
            state.live = Some(live);
        }
        is_allowed
    }

    /// Marks an instance as ended, so that no death is reported.
    pub(crate) fn end(&self, instance: &InstanceId) {
        self.end_live(instance);
        self.state().ended = Some(instance.clone());
    }

    /// Marks an instance as ended if it is the live one; returns whether it was.
    pub(crate) fn end_live(&self, instance: &InstanceId) -> bool {
        let mut state = self.state();
        let was_live = state.live.as_ref().is_some_and(|live| live.instance == *instance);
        if was_live {
            state.live = None;
            state.ended = Some(instance.clone());
        }
        was_live
    }

    fn is_empty(&self) -> bool {
        let state = self.state();
        state.live.is_none() && state.ended.is_none()
    }
}

/// All sandboxes of a provider.
#[derive(Debug, Default)]
pub(crate) struct SandboxSlots(Mutex<HashMap<SandboxId, Arc<SandboxSlot>>>);

impl SandboxSlots {
    fn lock(&self) -> MutexGuard<'_, HashMap<SandboxId, Arc<SandboxSlot>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The slot of a sandbox; made when missing.
    pub(crate) fn of(&self, sandbox: &SandboxId) -> Arc<SandboxSlot> {
        Arc::clone(self.lock().entry(sandbox.clone()).or_default())
    }

    pub(crate) fn existing(&self, sandbox: &SandboxId) -> Option<Arc<SandboxSlot>> {
        self.lock().get(sandbox).cloned()
    }

    /// All slots with a live container.
    pub(crate) fn live(&self) -> Vec<(SandboxId, Arc<LiveContainer>)> {
        let slots = self.lock();
        slots.iter().filter_map(|(sandbox, slot)| Some((sandbox.clone(), slot.live()?))).collect()
    }

    pub(crate) fn forget(&self, sandbox: &SandboxId) {
        self.lock().remove(sandbox);
    }

    /// Removes a slot that was made only to wait in it. The map and the caller hold it.
    pub(crate) fn forget_empty(&self, sandbox: &SandboxId, slot: &Arc<SandboxSlot>) {
        let mut slots = self.lock();
        let is_current = slots.get(sandbox).is_some_and(|current| Arc::ptr_eq(current, slot));
        if is_current && slot.is_empty() && Arc::strong_count(slot) <= 2 {
            slots.remove(sandbox);
        }
    }
}
