//! Everything between sandboxes and the outside: packets in the router, names at the gate, and the egress log of both.
//!
//! Router, gate and log are kept in one place so that they always agree about the owner of a link. No decision is made
//! here: the policy is compiled already.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_model::policy::egress::Egress;
use atoll_model::{EgressRecord, SandboxId};
use atoll_network::{Flows, Fresh, Gate, LinkError, Router, RouterHandle, SandboxLink, Upstreams};
use atoll_provider::Egressed;
use tokio::sync::broadcast;

/// The networks of all sandboxes.
pub(super) struct SandboxNetworks {
    router: Mutex<RouterHandle>,
    /// `None`: another program uses its ports, and sandboxes reach addresses only.
    gate: Option<Gate>,
    flows: Flows,
    egressed: broadcast::Sender<Egressed>,
}

impl fmt::Debug for SandboxNetworks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Doors").field("router", &self.router).finish_non_exhaustive()
    }
}

impl SandboxNetworks {
    pub(super) fn open(
        router: &Router,
        handle: RouterHandle,
        upstreams: Upstreams,
        egressed: broadcast::Sender<Egressed>,
    ) -> io::Result<Self> {
        let fresh = Fresh::open(router.namespace())?;
        let flows = Flows::open(router.namespace())?;
        let told = egressed.clone();
        // Without a listener the record is dropped.
        let log = move |sandbox: &SandboxId, record: EgressRecord| {
            let _ = told.send(Egressed { sandbox: sandbox.clone(), record });
        };
        let gate = Gate::bind(router.namespace(), upstreams, Arc::new(fresh), Arc::new(log))
            .inspect_err(|cause| tracing::error!(%cause, "DNS for sandboxes is not available"))
            .ok();
        Ok(Self { router: Mutex::new(handle), gate, flows, egressed })
    }

    pub(super) fn gate(&self) -> Option<&Gate> {
        self.gate.as_ref()
    }

    pub(super) fn router(&self) -> MutexGuard<'_, RouterHandle> {
        self.router.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connects a sandbox. On an error everything is undone, except that the link number stays reserved.
    pub(super) fn attach(
        &self,
        link: SandboxLink,
        sandbox: &SandboxId,
        egress: &Arc<Egress>,
        namespace: BorrowedFd<'_>,
    ) -> Result<(), LinkError> {
        let mut router = self.router();
        // The first packet of the sandbox may be a DNS query.
        self.admit(link, sandbox, egress);
        router.attach(link, egress, namespace).inspect_err(|_| self.dismiss(link))
    }

    /// The first half of [`SandboxNetworks::attach`]: all parts exist, and no traffic passes in either direction.
    pub(super) fn connect(
        &self,
        link: SandboxLink,
        egress: &Egress,
        namespace: BorrowedFd<'_>,
    ) -> Result<(), LinkError> {
        self.router().connect(link, egress, namespace)
    }

    /// The second half: the sandbox may send what its policy allows.
    pub(super) fn let_through(
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
    pub(super) fn change(
        &self,
        link: SandboxLink,
        sandbox: &SandboxId,
        egress: &Arc<Egress>,
        namespace: BorrowedFd<'_>,
    ) -> Result<(), LinkError> {
        let mut router = self.router();
        router.set_policy(link, egress, namespace)?;
        // Under the router's lock: a sandbox that is being detached is not admitted again.
        self.admit(link, sandbox, egress);
        Ok(())
    }

    /// Makes a sandbox unreachable in both directions.
    pub(super) fn detach(&self, link: SandboxLink) -> Result<(), LinkError> {
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
    pub(super) fn write_down(&self) {
        match self.flows.read() {
            Ok(records) => {
                for (sandbox, record) in records {
                    let _ = self.egressed.send(Egressed { sandbox, record });
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
