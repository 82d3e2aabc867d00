//! Sets up the inside of a sandbox's network namespace: loopback, eth0, its address and default route, in one netlink
//! batch.
//!
//! Plain, short code without threads: the first process runs it right after clone. It needs no lookups.

use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;

use crate::address::{ETH0_INDEX, GATEWAY, SandboxLink};
use crate::error::SetupError;
use crate::netlink::route::{self, Arp};
use crate::netlink::{Batch, Family, Socket};

const LOOPBACK_INDEX: u32 = 1;
const OPEN: &str = "open a netlink socket";

/// Brings `lo` and `eth0` up, and sets address and default route. Call it in the new namespace after the veth exists.
pub fn child_setup(address: Ipv4Addr) -> Result<(), SetupError> {
    let socket = Socket::open(Family::Route).map_err(|cause| SetupError { step: OPEN, cause })?;
    configure(socket, address)
}

/// The same from outside, for a pool instance that is claimed: the calling thread enters the namespace only to make one
/// socket.
pub fn setup_from_outside(namespace: BorrowedFd<'_>, address: Ipv4Addr) -> Result<(), SetupError> {
    let socket =
        Socket::open_in(Family::Route, namespace).map_err(|cause| SetupError { step: OPEN, cause })?;
    configure(socket, address)
}

/// Adds addresses to `lo`, from outside: sockets of a restored sandbox may use addresses that it no longer has.
pub fn add_to_loopback(namespace: BorrowedFd<'_>, addresses: &[Ipv4Addr]) -> Result<(), SetupError> {
    if addresses.is_empty() {
        return Ok(());
    }
    let mut socket =
        Socket::open_in(Family::Route, namespace).map_err(|cause| SetupError { step: OPEN, cause })?;
    let mut batch = Batch::new();
    for address in addresses {
        route::add_address(&mut batch, LOOPBACK_INDEX, *address, 32);
    }
    socket.call_all(&mut batch).map_err(|cause| SetupError { step: "give lo an address", cause })
}

/// The same for the IPv6 addresses that belong to them.
pub fn add_to_loopback6(namespace: BorrowedFd<'_>, addresses: &[Ipv4Addr]) -> Result<(), SetupError> {
    change6(namespace, "give lo an IPv6 address", |batch| {
        for address in addresses {
            route::add_address6(batch, LOOPBACK_INDEX, SandboxLink::address6_of(*address), 128);
        }
    })
}

/// Adds an IPv6 route without replies for the restore of a sandbox without IPv6. Sockets of an earlier policy need a
/// route to be restored, and a reset during the restore would make the whole restore fail.
pub fn add_silent_way6(namespace: BorrowedFd<'_>) -> Result<(), SetupError> {
    change6(namespace, "add the IPv6 route", |batch| route::add_silent_default_route6(batch, ETH0_INDEX))
}

/// Removes the route of [`add_silent_way6`]: from now on, connections by IPv6 fail at once.
pub fn remove_silent_way6(namespace: BorrowedFd<'_>) -> Result<(), SetupError> {
    change6(namespace, "remove the IPv6 route", |batch| {
        route::delete_silent_default_route6(batch, ETH0_INDEX);
    })
}

fn change6(
    namespace: BorrowedFd<'_>,
    step: &'static str,
    fill: impl FnOnce(&mut Batch),
) -> Result<(), SetupError> {
    let mut socket =
        Socket::open_in(Family::Route, namespace).map_err(|cause| SetupError { step: OPEN, cause })?;
    let mut batch = Batch::new();
    fill(&mut batch);
    socket.call_all(&mut batch).map_err(|cause| SetupError { step, cause })
}

/// Brings only `lo` up, for an instance that has no network yet.
pub fn loopback_up() -> Result<(), SetupError> {
    let mut socket = Socket::open(Family::Route).map_err(|cause| SetupError { step: OPEN, cause })?;
    let mut batch = Batch::new();
    route::raise(&mut batch, LOOPBACK_INDEX, Arp::On);
    socket.call_all(&mut batch).map_err(|cause| SetupError { step: "raise lo", cause })
}

fn configure(mut socket: Socket, address: Ipv4Addr) -> Result<(), SetupError> {
    const STEPS: [&str; 5] = [
        "switch IPv6 off on eth0",
        "raise lo",
        "raise eth0",
        "give eth0 its address",
        "add the default route",
    ];
    let mut batch = Batch::new();
    route::no_ipv6_address(&mut batch, ETH0_INDEX);
    route::raise(&mut batch, LOOPBACK_INDEX, Arp::On);
    route::raise(&mut batch, ETH0_INDEX, Arp::Off);
    route::add_address(&mut batch, ETH0_INDEX, address, 32);
    route::add_default_route(&mut batch, GATEWAY, ETH0_INDEX);
    let answers = socket.call(&mut batch).map_err(|cause| SetupError { step: "configure eth0", cause })?;
    for (step, answer) in STEPS.iter().zip(answers).skip(1) {
        // The first result is ignored: a kernel without IPv6 refuses that step, and the router drops IPv6 anyway.
        answer.map_err(|cause| SetupError { step, cause })?;
    }
    Ok(())
}
