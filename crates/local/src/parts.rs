//! The optional parts: connections always, pauses and changed limits where this machine gives control groups.

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use atoll_cgroup::Cgroups;
use atoll_instances::{RunningInstance, SandboxSlot, failed};
use atoll_model::{Limits, MemoryLocation};
use atoll_provider::{
    AGENT_PORT, ByteStream, Capability, DialSupport, PauseSupport, Provider, ProviderError, ResizeSupport,
    Target,
};
use tokio::net::TcpStream;

use crate::instance::LocalInstance;
use crate::{LocalProvider, LocalShared, blocking};

/// LIMIT: a connection inside the machine.
const DIAL_WITHIN: Duration = Duration::from_secs(5);
const MIB: u64 = 1 << 20;

impl LocalShared {
    fn slot(&self, target: &Target) -> Result<Arc<SandboxSlot<LocalInstance>>, ProviderError> {
        let gone = || ProviderError::Gone { sandbox: target.sandbox.clone() };
        self.instances.existing_slot(&target.sandbox).ok_or_else(gone)
    }

    /// The running instance that a call means.
    pub(crate) fn live(&self, target: &Target) -> Result<Arc<LocalInstance>, ProviderError> {
        let live = self.instances.live(target)?;
        match live.is_dead().map_err(failed("watching the agent"))? {
            true => Err(ProviderError::Gone { sandbox: target.sandbox.clone() }),
            false => Ok(live),
        }
    }

    pub(crate) fn is_frozen(&self, live: &LocalInstance) -> bool {
        let cgroups = self.cleaner.processes.cgroups.as_ref().filter(|_| live.record.has_cgroup);
        cgroups.is_some_and(|cgroups| cgroups.is_frozen(live.cgroup()).unwrap_or(false))
    }

    pub(crate) async fn thaw(&self, live: &LocalInstance) -> Result<(), ProviderError> {
        let Some(cgroups) = self.cleaner.processes.cgroups.clone() else { return Ok(()) };
        let name = live.cgroup().to_owned();
        blocking(move || cgroups.thaw(&name)).await.map_err(failed("thawing the processes of the sandbox"))
    }

    async fn dial_port(&self, port: u16) -> Result<TcpStream, ProviderError> {
        if self.config.refused_ports.contains(&port) {
            return Err(ProviderError::Unsupported {
                what: format!("connecting to port {port}, on which the server itself listens,"),
                hint: "let the program in the sandbox listen on another port".to_owned(),
            });
        }
        match tokio::time::timeout(DIAL_WITHIN, TcpStream::connect((Ipv4Addr::LOCALHOST, port))).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                Err(ProviderError::PortClosed { port })
            }
            Ok(Err(error)) => Err(failed("connecting")(error)),
            Err(_) => {
                Err(ProviderError::Late { what: format!("connecting to port {port}"), after: DIAL_WITHIN })
            }
        }
    }
}

impl LocalProvider {
    fn cgroups(&self, capability: Capability) -> Result<Arc<dyn Cgroups>, ProviderError> {
        self.shared.cleaner.processes.cgroups.clone().ok_or_else(|| self.missing(capability))
    }
}

#[async_trait]
impl DialSupport for LocalProvider {
    async fn dial(&self, target: &Target, port: u16) -> Result<Box<dyn ByteStream>, ProviderError> {
        let live = self.shared.live(target)?;
        if port != AGENT_PORT {
            return Ok(Box::new(self.shared.dial_port(port).await?));
        }
        match live.connect().await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(_) if live.is_dead().unwrap_or(true) => {
                Err(ProviderError::Gone { sandbox: target.sandbox.clone() })
            }
            Err(error) => Err(failed("connecting to the agent")(error)),
        }
    }
}

#[async_trait]
impl PauseSupport for LocalProvider {
    async fn pause(&self, target: &Target) -> Result<MemoryLocation, ProviderError> {
        let cgroups = self.cgroups(Capability::Pause)?;
        let slot = self.shared.slot(target)?;
        let _turn = slot.turn().await;
        let name = self.shared.live(target)?.cgroup().to_owned();
        let freeze = move || {
            let frozen = cgroups.freeze(&name);
            if frozen.is_err() {
                let _ = cgroups.thaw(&name);
            }
            frozen
        };
        blocking(freeze).await.map_err(failed("freezing the processes of the sandbox"))?;
        Ok(MemoryLocation::Live)
    }

    async fn resume(&self, target: &Target) -> Result<(), ProviderError> {
        self.cgroups(Capability::Pause)?;
        let slot = self.shared.slot(target)?;
        let _turn = slot.turn().await;
        let live = self.shared.live(target)?;
        self.shared.thaw(&live).await
    }
}

#[async_trait]
impl ResizeSupport for LocalProvider {
    async fn resize(&self, target: &Target, limits: &Limits) -> Result<(), ProviderError> {
        let cgroups = self.cgroups(Capability::Resize)?;
        if target.instance.is_none() {
            // Only instances have limits: the next one gets its own.
            let is_there = self.shared.cleaner.folders.owns(&target.sandbox);
            return if is_there {
                Ok(())
            } else {
                Err(ProviderError::Gone { sandbox: target.sandbox.clone() })
            };
        }
        let name = self.shared.live(target)?.cgroup().to_owned();
        let limits = *limits;
        let change = move || atoll_cgroup::set_limits_above_use(&*cgroups, &name, &limits);
        match blocking(change).await.map_err(failed("changing limits"))? {
            None => Ok(()),
            Some(used) => Err(ProviderError::BelowUse {
                what: "memory_mib",
                wanted_mib: limits.memory_mib.into(),
                used_mib: used.div_ceil(MIB),
            }),
        }
    }
}
