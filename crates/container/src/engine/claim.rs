//! A claim: a ready instance becomes a sandbox. One thread sets limits, name and layer; another makes the network.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use atoll_instances::{InstanceLauncher, Instances};
use atoll_provider::{Booted, InstanceSpec, ProviderError};
use rustix::thread::LinkNameSpaceType;

use super::instance::Live;
use super::pool::Ready;
use super::{EngineShared, failed};

const MIB: u64 = 1 << 20;

impl EngineShared {
    /// `None`: no instance is ready, or the claim failed and the sandbox has to be started cold.
    pub(super) async fn claim(&self, spec: &InstanceSpec) -> Option<(Live, Booted)> {
        let mut ready = Instances::take_ready(self, &spec.template, &spec.template_version, &spec.limits)?;
        match self.furnish(&mut ready, spec).await {
            Ok(facts) => {
                let booted = Booted { facts, agent_token: Some(ready.token), from_pool: true };
                Some((ready.live, booted))
            }
            Err(cause) => {
                tracing::warn!(
                    cause = &cause as &dyn std::error::Error,
                    "an instance of the pool could not be claimed"
                );
                // The cold start makes a layer of this name itself. An error means that the layer was not renamed yet.
                let _ = self.resources.layers.rename(spec.sandbox.as_str(), &ready.layer);
                self.discard(ready);
                None
            }
        }
    }

    async fn furnish(
        &self,
        ready: &mut Ready,
        spec: &InstanceSpec,
    ) -> Result<serde_json::Value, ProviderError> {
        let link = self.router().reserve(None).map_err(failed("reserving an address"))?;
        ready.live.facts.link = Some(link);
        let netns = ready.live.netns().try_clone_to_owned().map_err(failed("copying a descriptor"))?;
        let (resources, sandbox, egress) =
            (Arc::clone(&self.resources), spec.sandbox.clone(), Arc::clone(&spec.network));
        let connect = self.blocking.run(move || {
            resources.networks.attach(link, &sandbox, &egress, netns.as_fd()).map_err(io::Error::other)?;
            atoll_network::setup_from_outside(netns.as_fd(), link.address).map_err(io::Error::other)
        });
        let personalise = self.personalise(ready, spec)?;
        let (connected, personalised) = tokio::join!(connect, personalise);
        personalised.map_err(failed("making it the sandbox's own"))?;
        connected.map_err(failed("connecting the network"))?;
        serde_json::to_value(&ready.live.facts).map_err(failed("writing facts"))
    }

    /// Sets layer, limits and host name, then lets the instance run.
    fn personalise(
        &self,
        ready: &Ready,
        spec: &InstanceSpec,
    ) -> Result<impl Future<Output = io::Result<()>> + use<'_>, ProviderError> {
        let (cgroups, layers) = (Arc::clone(&self.resources.cgroups), Arc::clone(&self.resources.layers));
        let (cgroup, old, new) =
            (ready.live.facts.cgroup.clone(), ready.layer.clone(), spec.sandbox.as_str().to_owned());
        let pidfd = ready.live.pidfd().try_clone_to_owned().map_err(failed("copying a descriptor"))?;
        let (made_with, limits, hostname) = (ready.limits, spec.limits, spec.hostname.clone());
        let home = Arc::clone(&self.own_uts);
        Ok(self.blocking.run(move || {
            layers.rename(&old, &new)?;
            if limits != made_with {
                cgroups.set_limits(&cgroup, &limits)?;
                layers.set_limit(&new, u64::from(limits.disk_mib) * MIB)?;
            }
            set_hostname(pidfd.as_fd(), &home, &hostname)?;
            cgroups.thaw(&cgroup)
        }))
    }
}

/// Enters the sandbox's UTS namespace for one call, and returns.
pub(super) fn set_hostname(pidfd: BorrowedFd<'_>, home: &OwnedFd, hostname: &str) -> io::Result<()> {
    let flags = rustix::thread::ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME;
    rustix::thread::move_into_thread_name_spaces(pidfd, flags)?;
    let named = rustix::system::sethostname(hostname.as_bytes());
    if rustix::thread::move_into_link_name_space(
        home.as_fd(),
        Some(LinkNameSpaceType::HostNameAndNISDomainName),
    )
    .is_err()
    {
        // A thread that stayed in the namespace would later set the host's name instead of a sandbox's.
        std::process::abort();
    }
    Ok(named?)
}
