//! Slow removals: the remains of an instance are removed in the background, and every failed removal is retried.
//!
//! The reaper stores nothing on disk. After a crash, adoption finds unknown instances and ends them again.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_network::{SandboxLink, SandboxNetworks};
use tokio::sync::{mpsc, watch};

use super::instance;
use crate::block::Numbers;
use crate::cgroup::Cgroups;
use crate::failpoint::FailPoint;
use atoll_storage::Layers;

/// LIMIT: most namespaces are gone within these tries, and their links with them. A namespace that had a connection to
/// the outside lives on in the kernel until the connection is given up, minutes later; its link is deleted explicitly.
const LINK_TRIES: u32 = 4;

/// The remains of an instance. Each part is taken out when it is removed.
#[derive(Debug, Default)]
pub(super) struct InstanceRemains {
    /// A first process that may still live.
    pub(super) pidfd: Option<OwnedFd>,
    pub(super) cgroup: Option<String>,
    pub(super) layer: Option<String>,
    pub(super) snapshot: Option<String>,
    pub(super) link: Option<SandboxLink>,
    pub(super) first_id: Option<u32>,
    pub(super) tries: u32,
}

/// The resources that a reaper works on.
#[derive(Debug)]
pub(super) struct HostResources {
    pub(super) cgroups: Arc<dyn Cgroups>,
    pub(super) layers: Arc<Layers>,
    pub(super) networks: SandboxNetworks,
    pub(super) numbers: Arc<Mutex<Numbers>>,
    pub(super) failpoint: FailPoint,
}

#[derive(Debug)]
pub(super) struct Reaper {
    remains: mpsc::UnboundedSender<InstanceRemains>,
    pending: Arc<watch::Sender<usize>>,
}

impl Reaper {
    /// Returns the reaper, and its loop for the owner to run.
    pub(super) fn new(resources: Arc<HostResources>) -> (Self, impl Future<Output = ()> + Send) {
        let (remains, queue) = mpsc::unbounded_channel();
        let pending = Arc::new(watch::Sender::new(0));
        let work = run(resources, queue, remains.downgrade(), Arc::clone(&pending));
        (Self { remains, pending }, work)
    }

    /// Queues remains for removal.
    pub(super) fn take(&self, remains: InstanceRemains) {
        self.pending.send_modify(|pending| *pending += 1);
        if self.remains.send(remains).is_err() {
            self.pending.send_modify(|pending| *pending -= 1);
        }
    }

    /// Waits until all remains are removed.
    pub(super) async fn settle(&self) {
        let _ = self.pending.subscribe().wait_for(|pending| *pending == 0).await;
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "sleeps some seconds at most and holds a weak reference to the queue"
)]
async fn run(
    resources: Arc<HostResources>,
    mut queue: mpsc::UnboundedReceiver<InstanceRemains>,
    again: mpsc::WeakUnboundedSender<InstanceRemains>,
    pending: Arc<watch::Sender<usize>>,
) {
    while let Some(first) = queue.recv().await {
        let mut batch = vec![first];
        while batch.len() < 64
            && let Ok(next) = queue.try_recv()
        {
            batch.push(next);
        }
        let resources = Arc::clone(&resources);
        let work = move || batch.into_iter().map(|remains| resources.clear(remains)).collect::<Vec<_>>();
        let Ok(outcomes) = tokio::task::spawn_blocking(work).await else { continue };
        for outcome in outcomes {
            match outcome {
                None => pending.send_modify(|pending| *pending -= 1),
                Some(mut left) => {
                    left.tries += 1;
                    // LIMIT: a network namespace is gone within some tens of milliseconds; a stuck process may take for
                    // ever.
                    let pause = Duration::from_millis(10 << left.tries.min(7));
                    let again = again.clone();
                    tokio::spawn(async move {
                        tokio::time::sleep(pause).await;
                        if let Some(again) = again.upgrade() {
                            let _ = again.send(left);
                        }
                    });
                }
            }
        }
    }
}

impl HostResources {
    /// Removes what can be removed; returns the rest.
    fn clear(&self, mut remains: InstanceRemains) -> Option<InstanceRemains> {
        match self.try_clear(&mut remains) {
            Ok(true) => None,
            Ok(false) => Some(remains),
            Err(cause) => {
                if remains.tries == 8 {
                    tracing::warn!(?remains, %cause, "the remains of an instance cannot be removed; this is retried");
                }
                Some(remains)
            }
        }
    }

    /// Removes what can be removed; returns whether nothing is left.
    pub(super) fn try_clear(&self, remains: &mut InstanceRemains) -> io::Result<bool> {
        if let Some(pidfd) = &remains.pidfd {
            instance::kill(pidfd.as_fd())?;
            if !instance::is_dead(pidfd.as_fd())? {
                return Ok(false);
            }
            remains.pidfd = None;
        }
        if let Some(name) = &remains.cgroup {
            self.clear_cgroup(name)?;
            remains.cgroup = None;
        }
        if let Some(name) = &remains.layer {
            self.layers.remove(name)?;
            remains.layer = None;
        }
        if let Some(name) = &remains.snapshot {
            self.layers.remove_snapshot(name)?;
            remains.snapshot = None;
        }
        if let Some(link) = remains.link {
            self.networks.detach(link).or_else(|error| match error {
                atoll_network::LinkError::Unknown { .. } => Ok(()),
                other => Err(io::Error::other(other)),
            })?;
            let mut router = self.networks.router();
            if !router.release(link).map_err(io::Error::other)? {
                if remains.tries < LINK_TRIES {
                    return Ok(false);
                }
                router.delete_links(&[link]).map_err(io::Error::other)?;
            }
            remains.link = None;
        }
        if let Some(first) = remains.first_id.take() {
            self.numbers.lock().unwrap_or_else(PoisonError::into_inner).release(first);
        }
        Ok(true)
    }

    /// Ends all processes in a cgroup, then removes its folders.
    pub(super) fn clear_cgroup(&self, name: &str) -> io::Result<()> {
        self.kill_all(name)?;
        self.cgroups.remove(name)
    }

    /// Ends all processes in a cgroup. Frozen processes run no more code of their own.
    pub(super) fn kill_all(&self, name: &str) -> io::Result<()> {
        let processes = self.cgroups.processes(name)?;
        let is_empty = processes.is_empty();
        for pid in processes {
            let Some(pid) = rustix::process::Pid::from_raw(pid) else { continue };
            let Ok(pidfd) = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()) else {
                continue;
            };
            // The pid may have been reused meanwhile; now that the process is held by descriptor, its cgroup is checked
            // again.
            if self.cgroups.processes(name)?.contains(&pid.as_raw_nonzero().get()) {
                instance::kill(pidfd.as_fd())?;
            }
        }
        if !is_empty {
            self.failpoint.reach("end.killed");
            // A frozen process does not die. Each has a pending SIGKILL now, so none runs any other code.
            let _ = self.cgroups.thaw(name);
        }
        Ok(())
    }
}
