//! Everything between sandboxes and the outside: packets in the router, names at the gate, and the egress log of both.
//!
//! Router, gate and log are kept in one place so that they always agree about the owner of a link. No decision is made
//! here: the policy is compiled already.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_model::SandboxId;
use atoll_model::policy::egress::Egress;

use crate::address::SandboxLink;
use crate::dns::Upstreams;
use crate::error::LinkError;
use crate::flows::Flows;
use crate::fresh_answers::Fresh;
use crate::gate::{Gate, Log};
use crate::handle::{LinkEnd, RouterHandle};
use crate::router::Router;

/// The networks of all sandboxes.
pub struct SandboxNetworks {
    router: Mutex<RouterHandle>,
    /// `None`: another program uses its ports, and sandboxes reach addresses only.
    gate: Option<Gate>,
    flows: Flows,
    log: Log,
}

impl fmt::Debug for SandboxNetworks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SandboxNetworks").field("router", &self.router).finish_non_exhaustive()
    }
}

impl SandboxNetworks {
    /// Binds the gate and reads the counters of flows. Without the gate's ports, sandboxes have no DNS.
    pub fn open(router: &Router, handle: RouterHandle, upstreams: Upstreams, log: Log) -> io::Result<Self> {
        let fresh = Fresh::open(router.namespace())?;
        let flows = Flows::open(router.namespace())?;
        let gate = Gate::bind(router.namespace(), upstreams, Arc::new(fresh), Arc::clone(&log))
            .inspect_err(|cause| tracing::error!(%cause, "DNS for sandboxes is not available"))
            .ok();
        Ok(Self { router: Mutex::new(handle), gate, flows, log })
    }

    /// The gate, for the server to run.
    pub fn gate(&self) -> Option<&Gate> {
        self.gate.as_ref()
    }

    /// The router's links, for one caller at a time.
    pub fn router(&self) -> MutexGuard<'_, RouterHandle> {
        self.router.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connects a sandbox. On an error everything is undone, except that the link number stays reserved.
    pub fn attach<'a>(
        &self,
        link: SandboxLink,
        sandbox: &SandboxId,
        egress: &Arc<Egress>,
        end: impl Into<LinkEnd<'a>>,
    ) -> Result<(), LinkError> {
        let mut router = self.router();
        // The first packet of the sandbox may be a DNS query.
        self.admit(link, sandbox, egress);
        router.attach(link, egress, end).inspect_err(|_| self.dismiss(link))
    }

    /// The first half of [`SandboxNetworks::attach`]: all parts exist, and no traffic passes in either direction.
    pub fn connect<'a>(
        &self,
        link: SandboxLink,
        egress: &Egress,
        end: impl Into<LinkEnd<'a>>,
    ) -> Result<(), LinkError> {
        self.router().connect(link, egress, end)
    }

    /// The second half: the sandbox may send what its policy allows.
    pub fn let_through(
        &self,
        link: SandboxLink,
        sandbox: &SandboxId,
        egress: &Arc<Egress>,
    ) -> Result<(), LinkError> {
        let mut router = self.router();
        self.admit(link, sandbox, egress);
        router.admit(link, egress).inspect_err(|_| self.dismiss(link))
    }

    /// Changes the policy of a connected sandbox.
    pub fn change<'a>(
        &self,
        link: SandboxLink,
        sandbox: &SandboxId,
        egress: &Arc<Egress>,
        end: impl Into<LinkEnd<'a>>,
    ) -> Result<(), LinkError> {
        let mut router = self.router();
        router.set_policy(link, egress, end)?;
        // Under the router's lock: a sandbox that is being detached is not admitted again.
        self.admit(link, sandbox, egress);
        Ok(())
    }

    /// Makes a sandbox unreachable in both directions.
    pub fn detach(&self, link: SandboxLink) -> Result<(), LinkError> {
        let mut router = self.router();
        match router.detach(link) {
            // The address may belong to another sandbox by now.
            Err(error @ LinkError::Unknown { .. }) => Err(error),
            other => {
                self.dismiss(link);
                other
            }
        }
    }

    /// Reads the kernel's counters and logs what is new. Call it about once a second.
    pub fn write_down(&self) {
        match self.flows.read() {
            Ok(records) => {
                for (sandbox, record) in records {
                    (self.log)(&sandbox, record);
                }
            }
            Err(cause) => tracing::warn!(%cause, "the flow counters cannot be read"),
        }
    }

    fn admit(&self, link: SandboxLink, sandbox: &SandboxId, egress: &Arc<Egress>) {
        if let Some(gate) = &self.gate {
            gate.admit(link, sandbox, Arc::clone(egress));
        }
        self.flows.admit(link, sandbox, Arc::clone(egress));
    }

    fn dismiss(&self, link: SandboxLink) {
        if let Some(gate) = &self.gate {
            gate.dismiss(link);
        }
        self.flows.dismiss(link);
    }
}
