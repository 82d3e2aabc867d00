//! IPv6 for sandboxes whose policy names IPv6 ranges. Nothing on the machine changes before the first such sandbox.
//!
//! ```text
//! eth0 fd61:746f:6c6c::<v4>/128 ── s<n> ── router ── uplink fd61:746f:6c6c:<8000 + b>::/126 ── host ── by its default route
//!   default via fe80::1 (NOARP)            masquerade        static neighbours                 masquerade
//! ```
//!
//! These links use neither neighbour discovery nor router advertisements, so neighbours and routers cannot be spoofed.
//! On the host only single interfaces are enabled for forwarding; the setting for all of them is never written, because
//! it would disable router advertisements.

use std::io;
use std::net::Ipv6Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::address::{Block, ETH0_INDEX, GATEWAY6, SandboxLink, UPLINK};
use crate::error::RouterError;
use crate::forwarding::{Forwarding, Protocol};
use crate::netlink::route::{self, Arp, FoundLink};
use crate::netlink::{Batch, Family, Socket};
use crate::router::{replace, set_keys, step};
use crate::{netns, ruleset, sysctl};

/// The two namespaces that packets pass through.
#[derive(Debug)]
pub(crate) struct Six {
    host: OwnedFd,
    router: OwnedFd,
    block: Block,
    is_prepared: bool,
}

impl Six {
    pub(crate) fn new(host: OwnedFd, router: OwnedFd, block: Block) -> Self {
        Self { host, router, block, is_prepared: false }
    }

    /// Sets up IPv6 on the uplink, once.
    pub(crate) fn prepare(&mut self) -> Result<(), RouterError> {
        if self.is_prepared {
            return Ok(());
        }
        let name = self.block.host_interface();
        let (outside, inside) = (self.link(&self.host, &name)?, self.link(&self.router, UPLINK)?);
        within(&self.host, || {
            if !sysctl::is_forwarding6_everywhere() {
                match sysctl::is_forwarding6(&name) {
                    None => return Err(RouterError::NoIpv6 { why: NEEDS }),
                    Some(_) => sysctl::set_forwarding6(&name, true)?,
                }
            }
            Ok(())
        })?;
        let (host, router) = (self.block.host_address6(), self.block.router_address6());
        let mut at_host = self.end(&self.host, &outside, host)?;
        route::add_neighbour6(&mut at_host.0, outside.index, router, &inside.mac);
        let mut at_router = self.end(&self.router, &inside, router)?;
        route::add_neighbour6(&mut at_router.0, inside.index, host, &outside.mac);
        route::add_default_route6(&mut at_router.0, host, inside.index);
        for (mut batch, mut socket) in [at_host, at_router] {
            socket.call_all(&mut batch).map_err(|cause| RouterError::Uplink { name: name.clone(), cause })?;
        }
        self.refresh()?;
        self.is_prepared = true;
        Ok(())
    }

    /// Enables IPv6 on one end of the uplink and starts to set its address.
    fn end(
        &self,
        namespace: &OwnedFd,
        link: &FoundLink,
        address: Ipv6Addr,
    ) -> Result<(Batch, Socket), RouterError> {
        let mut socket = open(Family::Route, namespace)?;
        let mut batch = Batch::new();
        route::no_ipv6_address(&mut batch, link.index);
        socket.call_all(&mut batch).map_err(step("keep the uplink from choosing an address"))?;
        within(namespace, || sysctl::enable_ipv6(&link.name))?;
        let mut batch = Batch::new();
        route::add_address6(&mut batch, link.index, address, 126);
        Ok((batch, socket))
    }

    /// Reads the host's IPv6 addresses and default routes again and updates rules and settings.
    pub(crate) fn refresh(&self) -> Result<(), RouterError> {
        let mut host = open(Family::Route, &self.host)?;
        let addresses: Vec<Ipv6Addr> = host
            .dump_steady(route::dump_addresses6, |message, found| found.extend(route::read_address6(message)))
            .map_err(step("list the host's IPv6 addresses"))?;
        let mut wanted: Vec<Vec<u8>> = addresses.iter().map(|address| address.octets().to_vec()).collect();
        wanted.sort();
        wanted.dedup();
        let mut nft = open(Family::Netfilter, &self.router)?;
        let known =
            set_keys(&mut nft, ruleset::TABLE, ruleset::HOST6).map_err(step("read the router's rules"))?;
        replace(&mut nft, ruleset::TABLE, ruleset::HOST6, &known, &wanted)
            .map_err(step("update the router's rules"))?;
        self.let_ways_out_forward(&mut host)
    }

    /// Does nothing if the operator has enabled forwarding.
    fn let_ways_out_forward(&self, host: &mut Socket) -> Result<(), RouterError> {
        let indices: Vec<u32> = host
            .dump_steady(route::dump_routes6, |message, found| {
                found.extend(route::read_default_route6(message));
            })
            .map_err(step("list the host's IPv6 routes"))?;
        let ways_out: Vec<String> = links(host)?
            .into_iter()
            .filter(|link| indices.contains(&link.index))
            .map(|link| link.name)
            .collect();
        Forwarding { host: self.host.as_fd(), block: self.block, protocol: Protocol::V6 }.update(&ways_out)
    }

    /// The router namespace.
    pub(crate) fn router(&self) -> BorrowedFd<'_> {
        self.router.as_fd()
    }

    /// Sets up both ends of a sandbox's link, or the router's end if the other is a guest. May be repeated.
    pub(crate) fn wire(
        &self,
        route: &mut Socket,
        link: SandboxLink,
        sandbox: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        let name = link.name();
        let mut batch = Batch::new();
        route::no_ipv6_address(&mut batch, link.index());
        route.call_all(&mut batch)?;
        netns::run_in(self.router.as_fd(), || sysctl::enable_ipv6(&name))?.map_err(io::Error::other)?;
        let mut batch = Batch::new();
        route::add_host_route6(&mut batch, link.address6(), link.index());
        route.call_all(&mut batch)?;
        let Some(sandbox) = sandbox else { return Ok(()) };
        let mut inside = Socket::open_in(Family::Route, sandbox)?;
        let mut batch = Batch::new();
        route::no_ipv6_address(&mut batch, ETH0_INDEX);
        // A route needs an interface that is up.
        route::raise(&mut batch, ETH0_INDEX, Arp::Off);
        inside.call_all(&mut batch)?;
        netns::run_in(sandbox, || sysctl::enable_ipv6("eth0"))?.map_err(io::Error::other)?;
        let mut batch = Batch::new();
        route::add_address6(&mut batch, ETH0_INDEX, link.address6(), 128);
        route::add_default_route6(&mut batch, GATEWAY6, ETH0_INDEX);
        inside.call_all(&mut batch)
    }

    /// Removes IPv6 from the link, with every address and route.
    pub(crate) fn unwire(&self, link: SandboxLink, sandbox: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let name = link.name();
        if let Some(sandbox) = sandbox {
            netns::run_in(sandbox, || sysctl::disable_ipv6("eth0"))?.map_err(io::Error::other)?;
        }
        netns::run_in(self.router.as_fd(), || sysctl::disable_ipv6(&name))?.map_err(io::Error::other)
    }

    fn link(&self, namespace: &OwnedFd, name: &str) -> Result<FoundLink, RouterError> {
        let found = links(&mut open(Family::Route, namespace)?)?.into_iter().find(|link| link.name == name);
        let gone = || RouterError::Uplink { name: name.to_owned(), cause: io::ErrorKind::NotFound.into() };
        found.ok_or_else(gone)
    }
}

const NEEDS: &str = "IPv6 for sandboxes needs Linux 6.17, or a host that forwards IPv6 (net.ipv6.conf.all.forwarding=1, with \
                     accept_ra=2 where it listens to router advertisements)";

fn links(socket: &mut Socket) -> Result<Vec<FoundLink>, RouterError> {
    socket
        .dump_steady(route::dump_links, |message, found| found.extend(route::read_link(message)))
        .map_err(step("list network links"))
}

fn open(family: Family, namespace: &OwnedFd) -> Result<Socket, RouterError> {
    Socket::open_in(family, namespace.as_fd()).map_err(step("open a netlink socket"))
}

fn within<T: Send>(
    namespace: &OwnedFd,
    work: impl FnOnce() -> Result<T, RouterError> + Send,
) -> Result<T, RouterError> {
    netns::run_in(namespace.as_fd(), work).map_err(step("enter a network namespace"))?
}
