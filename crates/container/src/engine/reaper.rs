//! What ended instances leave on the host, and how it is removed.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use atoll_cgroup::Cgroups;
use atoll_instances::{Numbers, RemainsCleaner};
use atoll_model::SandboxId;
use atoll_network::{SandboxLink, SandboxNetworks};

use super::instance;
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
}

/// The resources of instances on this machine.
#[derive(Debug)]
pub(super) struct HostResources {
    pub(super) cgroups: Arc<dyn Cgroups>,
    pub(super) layers: Arc<Layers>,
    pub(super) networks: SandboxNetworks,
    pub(super) numbers: Arc<Mutex<Numbers>>,
    pub(super) failpoint: FailPoint,
}

impl RemainsCleaner for HostResources {
    type Remains = InstanceRemains;

    fn try_clear(&self, remains: &mut InstanceRemains, tries: u32) -> io::Result<bool> {
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
                if tries < LINK_TRIES {
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
}

impl HostResources {
    /// Frees the name of a layer; returns the name under which the reaper finds it, if it is still there. Blocks.
    pub(super) fn free_layer_name(&self, name: &str) -> io::Result<Option<String>> {
        self.layers.put_aside(name).or_else(|cause| {
            // A full file system may have no room for a new name, but gets room by a removal.
            tracing::warn!(name, %cause, "a layer could not be moved aside; it is removed at once");
            self.layers.remove(name).map(|()| None)
        })
    }

    /// As above for a caller that cannot fail. The reaper never gets the name of a sandbox, because it may be in use again when the
    /// reaper works: such a layer stays until its sandbox is destroyed, or until the next adoption.
    pub(super) fn layer_for_reaper(&self, name: String) -> Option<String> {
        self.free_layer_name(&name).unwrap_or_else(|cause| {
            tracing::warn!(name, %cause, "a layer could not be removed yet");
            name.parse::<SandboxId>().is_err().then_some(name)
        })
    }

    /// Ends all processes in a cgroup, then removes its folders.
    pub(super) fn clear_cgroup(&self, name: &str) -> io::Result<()> {
        self.kill_all(name)?;
        self.cgroups.remove(name)
    }

    /// Ends all processes in a cgroup. Frozen processes run no more code of their own.
    pub(super) fn kill_all(&self, name: &str) -> io::Result<()> {
        atoll_cgroup::kill_all(&*self.cgroups, name, || self.failpoint.reach("end.killed")).map(drop)
    }
}
