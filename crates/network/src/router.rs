//! The router namespace of a server: made once, pinned by a bind mount, found again after a crash, removed by `teardown`.
//!
//! Every step checks the current state and adds what is missing, so `open` may be called at any time. Tables, links and
//! settings of other programs are not changed, except to let the packets of this server's uplink pass.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use crate::address::{Block, GATEWAY, UPLINK};
use crate::error::RouterError;
use crate::forwarding::{Forwarding, Protocol};
use crate::handle::RouterHandle;
use crate::ipv6::Six;
use crate::netlink::nft::{self, Transaction};
use crate::netlink::route::{self, Arp, End, FoundLink, Veth};
use crate::netlink::{Batch, Family, Socket};
use crate::ruleset::{self, FlowLimit};
use crate::{netns, sysctl};

/// LIMIT: larger packets would only have to be fragmented on the way out.
const LARGEST_MTU: u32 = 1500;
/// LIMIT: an interface with a smaller MTU is ignored.
const SMALLEST_MTU: u32 = 1280;
/// How often and how long to wait for the uplink of a router that is being removed.
const UPLINK_TRIES: u32 = 40;
const UPLINK_PAUSE: Duration = Duration::from_millis(50);

/// The settings of a server's router.
#[derive(Clone, Debug)]
pub struct RouterConfig {
    /// Unique on the machine.
    pub block: Block,
    /// The path where the namespace is pinned; its folder is made when missing. It must be in a mount namespace that
    /// outlives the server.
    pub pin: PathBuf,
}

/// The router namespace, held open together with the host's.
#[derive(Debug)]
pub struct Router {
    config: RouterConfig,
    namespace: OwnedFd,
    host: OwnedFd,
}

impl Router {
    /// Makes the router or finds it again, and brings it to the wanted state.
    ///
    /// The calling thread's network namespace counts as the host's. One caller at a time per pin (a server locks its
    /// DATA).
    pub fn open(config: RouterConfig) -> Result<Self, RouterError> {
        let host = netns::current().map_err(step("open the host's network namespace"))?;
        let namespace = netns::open_or_pin(&config.pin)
            .map_err(|cause| RouterError::Pin { path: config.pin.clone(), cause })?;
        let router = Self { config, namespace, host };
        // The rules come before the uplink: packets never pass unchecked.
        router.prepare_namespace()?;
        router
            .in_host(|| ruleset::load(&ruleset::host(router.config.block)))?
            .map_err(|cause| RouterError::Rules { place: "host", cause })?;
        router.ensure_uplink()?;
        router.in_host(sysctl::make_room_for_neighbours)?;
        router.refresh_host()?;
        Ok(router)
    }

    /// Opens an existing router; `None` if there is none.
    pub fn find(config: RouterConfig) -> Result<Option<Self>, RouterError> {
        let host = netns::current().map_err(step("open the host's network namespace"))?;
        let found = netns::open_pinned(&config.pin)
            .map_err(|cause| RouterError::Pin { path: config.pin.clone(), cause })?;
        Ok(found.map(|namespace| Self { config, namespace, host }))
    }

    /// The router namespace itself.
    pub fn namespace(&self) -> BorrowedFd<'_> {
        self.namespace.as_fd()
    }

    /// The block of this router.
    pub fn block(&self) -> Block {
        self.config.block
    }

    /// Moves the calling thread into the router namespace permanently.
    pub fn join(&self) -> Result<(), RouterError> {
        netns::join(self.namespace()).map_err(step("join the router namespace"))
    }

    /// Opens the sockets for operations on sandbox links. The handle works from any namespace.
    pub fn handle(&self) -> Result<RouterHandle, RouterError> {
        let links = self.links_of(self.namespace())?;
        let mtu = links.iter().find(|link| link.name == UPLINK).map_or(LARGEST_MTU, |link| link.mtu);
        RouterHandle::open(self.namespace(), mtu, &links, self.six()?)
            .map_err(step("open the router's netlink sockets"))
    }

    /// Reads the host's addresses and default routes again and updates the rules.
    ///
    /// Between two calls a new address of the host is unreachable anyway: the host's table drops packets to it.
    pub fn refresh_host(&self) -> Result<(), RouterError> {
        self.refresh_addresses()?;
        self.refresh_ipv6()?;
        let ways_out: Vec<String> = self.ways_out()?.into_iter().map(|link| link.name).collect();
        // Packets are forwarded if their incoming interface forwards: the uplink for the way out, the others for the
        // replies.
        self.in_host(|| sysctl::set_forwarding(&self.config.block.host_interface(), true))??;
        self.forwarding(Protocol::V4).update(&ways_out)
    }

    /// Removes the uplink, the table in the host's namespace and the pin, and restores the settings of the host's
    /// interfaces. Attached sandboxes lose their network.
    pub fn teardown(self) -> Result<(), RouterError> {
        let block = self.config.block;
        let mut socket = self.socket(Family::Route, self.host.as_fd())?;
        let name = block.host_interface();
        delete_by_name(&mut socket, &name).map_err(|cause| RouterError::Uplink { name, cause })?;
        // First the settings, then the rules: an interface never forwards other traffic in between.
        self.forwarding(Protocol::V4).put_back()?;
        self.forwarding(Protocol::V6).put_back()?;
        self.in_host(|| ruleset::load(&ruleset::remove_host(block)))?
            .map_err(|cause| RouterError::Rules { place: "host", cause })?;
        netns::unpin(&self.config.pin)
            .map_err(|cause| RouterError::Pin { path: self.config.pin.clone(), cause })
    }

    fn prepare_namespace(&self) -> Result<(), RouterError> {
        netns::run_in(self.namespace(), || {
            sysctl::prepare_router()?;
            ruleset::load(&ruleset::router(FlowLimit::Counted))
                .or_else(|_| ruleset::load(&ruleset::router(FlowLimit::Absent)))
                .map_err(|cause| RouterError::Rules { place: "router", cause })
        })
        .map_err(step("enter the router namespace"))?
    }

    fn ensure_uplink(&self) -> Result<(), RouterError> {
        let name = self.config.block.host_interface();
        for _ in 0..UPLINK_TRIES {
            let outside = self.links_of(self.host.as_fd())?.into_iter().find(|link| link.name == name);
            let inside = self.links_of(self.namespace())?.into_iter().find(|link| link.name == UPLINK);
            match (outside, inside) {
                (Some(outside), Some(inside)) => return self.configure_uplink(&outside, &inside),
                (None, None) => match self.create_uplink(&name) {
                    Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => {
                        std::thread::sleep(UPLINK_PAUSE)
                    }
                    other => other.map_err(|cause| RouterError::Uplink { name: name.clone(), cause })?,
                },
                // Half of a pair is left from a router that is gone.
                (Some(_), None) => self.delete_half(self.host.as_fd(), &name)?,
                (None, Some(_)) => self.delete_half(self.namespace(), UPLINK)?,
            }
        }
        Err(RouterError::Uplink { name, cause: io::ErrorKind::TimedOut.into() })
    }

    fn create_uplink(&self, name: &str) -> io::Result<()> {
        let mtu = self.ways_out().map_err(io::Error::other)?.iter().map(|link| link.mtu).min();
        let mut batch = Batch::new();
        route::add_veth(
            &mut batch,
            &Veth {
                near: End { name, index: 0, mac: None },
                far: End { name: UPLINK, index: 0, mac: None },
                far_namespace: self.namespace(),
                mtu: mtu.unwrap_or(LARGEST_MTU).clamp(SMALLEST_MTU, LARGEST_MTU),
                arp: Arp::On,
            },
        );
        Socket::open_in(Family::Route, self.host.as_fd())?.call_all(&mut batch)
    }

    fn configure_uplink(&self, outside: &FoundLink, inside: &FoundLink) -> Result<(), RouterError> {
        const LOOPBACK_INDEX: u32 = 1;
        let block = self.config.block;
        let failed = |cause| RouterError::Uplink { name: outside.name.clone(), cause };
        let mut batch = Batch::new();
        route::no_ipv6_address(&mut batch, outside.index);
        route::raise(&mut batch, outside.index, Arp::On);
        route::add_address(&mut batch, outside.index, block.host_address(), 30);
        self.socket(Family::Route, self.host.as_fd())?
            .call(&mut batch)
            .and_then(all_but_first)
            .map_err(failed)?;
        let mut batch = Batch::new();
        route::raise(&mut batch, LOOPBACK_INDEX, Arp::On);
        route::add_address(&mut batch, LOOPBACK_INDEX, GATEWAY, 32);
        route::raise(&mut batch, inside.index, Arp::On);
        route::add_address(&mut batch, inside.index, block.router_address(), 30);
        route::add_default_route(&mut batch, block.host_address(), inside.index);
        self.socket(Family::Route, self.namespace())?.call_all(&mut batch).map_err(failed)
    }

    fn delete_half(&self, namespace: BorrowedFd<'_>, name: &str) -> Result<(), RouterError> {
        let mut socket = self.socket(Family::Route, namespace)?;
        delete_by_name(&mut socket, name)
            .map_err(|cause| RouterError::Uplink { name: name.to_owned(), cause })
    }

    fn six(&self) -> Result<Six, RouterError> {
        let copy = |namespace: &OwnedFd| namespace.try_clone().map_err(step("copy a descriptor"));
        Ok(Six::new(copy(&self.host)?, copy(&self.namespace)?, self.config.block))
    }

    /// The same for IPv6, if a sandbox uses it; otherwise nothing is changed.
    fn refresh_ipv6(&self) -> Result<(), RouterError> {
        let mut socket = self.socket(Family::Netfilter, self.namespace())?;
        let users =
            set_keys(&mut socket, ruleset::TABLE, ruleset::OWN6).map_err(step("read the router's rules"))?;
        if users.is_empty() { Ok(()) } else { self.six()?.refresh() }
    }

    fn refresh_addresses(&self) -> Result<(), RouterError> {
        let addresses: Vec<Ipv4Addr> = self
            .socket(Family::Route, self.host.as_fd())?
            .dump_steady(route::dump_addresses, |message, found| found.extend(route::read_address(message)))
            .map_err(step("list the host's addresses"))?;
        let mut wanted: Vec<Vec<u8>> = addresses.iter().map(|address| address.octets().to_vec()).collect();
        wanted.sort();
        wanted.dedup();
        let mut socket = self.socket(Family::Netfilter, self.namespace())?;
        let known =
            set_keys(&mut socket, ruleset::TABLE, ruleset::HOST).map_err(step("read the router's rules"))?;
        replace(&mut socket, ruleset::TABLE, ruleset::HOST, &known, &wanted)
            .map_err(step("update the router's rules"))
    }

    /// The interfaces of the host's default routes.
    fn ways_out(&self) -> Result<Vec<FoundLink>, RouterError> {
        let indices: Vec<u32> = self
            .socket(Family::Route, self.host.as_fd())?
            .dump_steady(route::dump_routes, |message, found| {
                found.extend(route::read_default_route(message))
            })
            .map_err(step("list the host's routes"))?;
        Ok(self
            .links_of(self.host.as_fd())?
            .into_iter()
            .filter(|link| indices.contains(&link.index))
            .collect())
    }

    fn links_of(&self, namespace: BorrowedFd<'_>) -> Result<Vec<FoundLink>, RouterError> {
        self.socket(Family::Route, namespace)?
            .dump_steady(route::dump_links, |message, found| found.extend(route::read_link(message)))
            .map_err(step("list network links"))
    }

    fn forwarding(&self, protocol: Protocol) -> Forwarding<'_> {
        Forwarding { host: self.host.as_fd(), block: self.config.block, protocol }
    }

    fn socket(&self, family: Family, namespace: BorrowedFd<'_>) -> Result<Socket, RouterError> {
        Socket::open_in(family, namespace).map_err(step("open a netlink socket"))
    }

    fn in_host<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, RouterError> {
        netns::run_in(self.host.as_fd(), work).map_err(step("enter the host's network namespace"))
    }
}

/// Every key of a set.
pub(crate) fn set_keys(socket: &mut Socket, table: &str, set: &str) -> io::Result<Vec<Vec<u8>>> {
    socket.dump_steady(
        || nft::dump_elements(table, set),
        |message, found| nft::read_keys(message, |key| found.push(key.to_vec())),
    )
}

/// LIMIT: acknowledgements of one batch wait in the socket's buffer, which holds about two hundred.
pub(crate) const CHANGES_AT_ONCE: usize = 64;

pub(crate) fn replace(
    socket: &mut Socket,
    table: &str,
    set: &str,
    known: &[Vec<u8>],
    wanted: &[Vec<u8>],
) -> io::Result<()> {
    let mut transaction = Transaction::new(table);
    wanted.iter().filter(|key| !known.contains(key)).for_each(|key| transaction.add(set, key));
    known.iter().filter(|key| !wanted.contains(key)).for_each(|key| transaction.remove(set, key));
    if transaction.is_empty() { Ok(()) } else { socket.call_all(&mut transaction.finish()) }
}

/// Removes elements in one transaction; if one is missing, removes the others one by one.
pub(crate) fn remove_elements(socket: &mut Socket, elements: &[(&str, &[u8])]) -> io::Result<()> {
    let transaction = |elements: &[(&str, &[u8])]| {
        let mut transaction = Transaction::new(ruleset::TABLE);
        elements.iter().for_each(|(set, key)| transaction.remove(set, key));
        transaction.finish()
    };
    match socket.call_all(&mut transaction(elements)) {
        Err(error) if is_absent(&error) => elements.iter().try_for_each(|element| {
            let alone = socket.call_all(&mut transaction(std::slice::from_ref(element)));
            match alone {
                Err(error) if is_absent(&error) => Ok(()),
                other => other,
            }
        }),
        other => other,
    }
}

pub(crate) fn is_absent(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::NOENT.raw_os_error())
}

fn delete_by_name(socket: &mut Socket, name: &str) -> io::Result<()> {
    let mut batch = Batch::new();
    route::delete_link_by_name(&mut batch, name);
    match socket.call_all(&mut batch) {
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error()) => Ok(()),
        other => other,
    }
}

fn all_but_first(answers: Vec<io::Result<()>>) -> io::Result<()> {
    answers.into_iter().skip(1).collect()
}

pub(crate) fn step(step: &'static str) -> impl Fn(io::Error) -> RouterError {
    move |cause| RouterError::Step { step, cause }
}
