//! The gate handles outbound traffic by name. It answers DNS, and it takes the TCP connections that the kernel
//! redirects to it: those to addresses that it returned in DNS answers.
//!
//! ```text
//!             ┌ 53   DNS ── name allowed? ── upstream ── Opener: (link, address) open for a while ── answer
//! sandbox ────┤
//!             └ 3129 TCP ── whose? where to? ── peek ─┬ TLS, allowed name ────── tunnel, unread
//!                                                     ├ TLS, changed name ────── terminated here, requests changed
//!                                                     ├ HTTP, allowed host ───── request by request
//!                                                     └ anything else ────────── refused, or direct if packets are
//! ```
//!
//! A sandbox is identified by its source address, which the kernel enforces. Connections go to the address that the
//! sandbox connected to, never to one that the gate looked up. Content is read only if a policy changes requests, and
//! is never logged. The gate does not decide about packets that the kernel lets pass without it.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, TcpListener as StdListener, UdpSocket as StdSocket};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use atoll_model::policy::egress::{Egress, Seed};
use atoll_model::{EgressRecord, EgressVerdict, EgressWhat, SandboxId};
use rustix::net::sockopt;
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinSet;

use crate::address::{GATEWAY, SandboxLink};
use crate::dns::{self, QueryLimiter, Upstreams};
use crate::netns;

mod answers;
mod authority;
mod bucket;
mod flow;
mod guest;
mod head;
mod hello;
mod host;
mod http;
mod outbound;
mod peek;
mod read_limiter;
mod serve;
mod tunnel;

pub(crate) use flow::now_ms;
pub(crate) use guest::{EgressRefusal, Guest};
use outbound::Outbound;
pub(crate) use serve::source;

/// The port on the gateway's address to which the kernel redirects TCP connections for inspection.
pub const GATE_PORT: u16 = 3129;
/// LIMIT: connections in total. Each holds two descriptors, and together they leave half of the descriptors to the rest
/// of the server.
const FLOWS_IN_ALL: usize = 16 << 10;
const DESCRIPTORS_PER_FLOW: usize = 4;
/// LIMIT: the share of one sandbox.
const SHARE_OF_ONE: usize = 4;

/// LIMIT: bytes of unread queries.
const QUESTIONS_QUEUE: usize = 4 << 20;

/// Opens addresses for a sandbox in the kernel, and closes them.
pub trait Opener: Send + Sync + 'static {
    /// Returns after the kernel has acknowledged; extends an existing timeout.
    fn open(&self, link: SandboxLink, addresses: &[Ipv4Addr], ttl: Duration) -> io::Result<()>;
    /// Closes opened addresses; addresses that are not open are no error.
    fn close(&self, link: SandboxLink, addresses: &[Ipv4Addr]) -> io::Result<()>;
}

/// Called with every decision. Must not block.
pub type Log = Arc<dyn Fn(&SandboxId, EgressRecord) + Send + Sync>;

/// The gate. Clones share the same state.
#[derive(Clone)]
pub struct Gate(Arc<GateShared>);

struct GateShared {
    sockets: Mutex<Option<Sockets>>,
    upstreams: Arc<Upstreams>,
    outbound: Arc<Outbound>,
    opener: Arc<dyn Opener>,
    log: Log,
    guests: Guests,
}

struct Sockets {
    dns_udp: StdSocket,
    dns_tcp: StdListener,
    tcp: StdListener,
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
        let sockets = netns::run_in(router, || -> io::Result<_> {
            Ok(Sockets {
                dns_udp: StdSocket::bind((GATEWAY, dns::PORT))?,
                dns_tcp: StdListener::bind((GATEWAY, dns::PORT))?,
                tcp: StdListener::bind((GATEWAY, GATE_PORT))?,
            })
        })??;
        // All sandboxes share this queue. Without the privilege to extend it, it has the default length.
        let _ = sockopt::set_socket_recv_buffer_size_force(&sockets.dns_udp, QUESTIONS_QUEUE);
        sockets.dns_udp.set_nonblocking(true)?;
        sockets.dns_tcp.set_nonblocking(true)?;
        sockets.tcp.set_nonblocking(true)?;
        Ok(Self(Arc::new(GateShared {
            sockets: Mutex::new(Some(sockets)),
            upstreams: Arc::new(upstreams),
            outbound: Arc::new(Outbound::start(router)?),
            opener,
            log,
            guests: Guests::default(),
        })))
    }

    /// Serves until the future is dropped; all its tasks end with it. Call it only once.
    pub async fn run(&self) -> io::Result<()> {
        let sockets = self.0.sockets.lock().unwrap_or_else(PoisonError::into_inner).take();
        let sockets = sockets.ok_or_else(|| io::Error::other("the gate is already running"))?;
        let dns_udp = Arc::new(UdpSocket::from_std(sockets.dns_udp)?);
        let dns_tcp = TcpListener::from_std(sockets.dns_tcp)?;
        let tcp = TcpListener::from_std(sockets.tcp)?;
        let (inner, places) = (&self.0, QueryLimiter::default());
        tokio::try_join!(
            dns::serve_udp(dns_udp, &inner.upstreams, &inner.guests, &places),
            dns::serve_tcp(dns_tcp, &inner.upstreams, &inner.guests, &places),
            accept(tcp, inner),
        )?;
        Ok(())
    }

    /// Admits a sandbox, or changes its policy: ends flows that are no longer allowed, keeps the others, and closes
    /// addresses that no longer belong to an allowed name.
    pub fn admit(&self, link: SandboxLink, sandbox: &SandboxId, egress: Arc<Egress>) {
        let known = self.0.guests.find(link.address);
        if let Some(guest) = known.filter(|guest| guest.link == link && guest.sandbox == *sandbox) {
            return guest.change(egress);
        }
        let inner = &self.0;
        let (opener, log) = (Arc::clone(&inner.opener), Arc::clone(&inner.log));
        let guest = Guest::new(link, sandbox.clone(), egress, opener, log);
        // An address can be reused with another link or sandbox; no state of the earlier one is kept.
        if let Some(before) = inner.guests.insert(Arc::new(guest)) {
            before.leave();
        }
    }

    /// Ends the flows of a sandbox, closes its addresses and removes it. An unknown link is no error.
    pub fn dismiss(&self, link: SandboxLink) {
        if let Some(guest) = self.0.guests.remove(link) {
            guest.leave();
        }
    }
}

/// The certificate of the sandbox's own authority, as PEM; the same seed always gives the same certificate.
#[must_use]
pub fn authority(seed: &Seed) -> String {
    authority::certificate(seed)
}

/// The sandboxes at the gate, by their address.
#[derive(Clone, Default)]
pub(crate) struct Guests(Arc<RwLock<HashMap<Ipv4Addr, Arc<Guest>>>>);

impl Guests {
    pub(crate) fn find(&self, address: Ipv4Addr) -> Option<Arc<Guest>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&address).cloned()
    }

    fn insert(&self, guest: Arc<Guest>) -> Option<Arc<Guest>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(guest.link.address, guest)
    }

    fn remove(&self, link: SandboxLink) -> Option<Arc<Guest>> {
        let mut guests = self.0.write().unwrap_or_else(PoisonError::into_inner);
        // Another link may have the address by now.
        guests
            .get(&link.address)
            .is_some_and(|guest| guest.link == link)
            .then(|| guests.remove(&link.address))?
    }
}

async fn accept(listener: TcpListener, inner: &Arc<GateShared>) -> io::Result<()> {
    let mut flows = JoinSet::new();
    let most = most_flows();
    loop {
        while flows.try_join_next().is_some() {}
        let Ok((stream, peer)) = listener.accept().await else {
            tokio::time::sleep(dns::PAUSE_AFTER_ERROR).await;
            continue;
        };
        let Some(guest) = source(peer).and_then(|address| inner.guests.find(address)) else { continue };
        // Only redirected connections have a destination other than the gate itself.
        let to = match serve::original(&stream) {
            Ok(to) if *to.ip() != GATEWAY => to,
            Ok(_) | Err(_) => continue,
        };
        let visit = if flows.len() < most {
            guest.arrive(to, most / SHARE_OF_ONE)
        } else {
            Err(EgressRefusal("limits: connections of all sandboxes".to_owned()))
        };
        match visit {
            Ok(visit) => {
                let outbound = Arc::clone(&inner.outbound);
                flows.spawn(async move { serve::serve(stream, visit, &outbound).await });
            }
            Err(EgressRefusal(rule)) if guest.complaints.take() => {
                let flow = flow::Flow::new(0, to);
                guest.log(flow.decision(EgressWhat::Flow, EgressVerdict::Refused, &rule, None));
            }
            Err(EgressRefusal(_)) => {}
        }
    }
}

/// The maximum number of connections for the descriptor limit of this process.
fn most_flows() -> usize {
    let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let descriptors = descriptors.and_then(|count| usize::try_from(count).ok()).unwrap_or(usize::MAX);
    (descriptors / DESCRIPTORS_PER_FLOW).clamp(64, FLOWS_IN_ALL)
}
