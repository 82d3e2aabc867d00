//! NETLINK_ROUTE messages: links, addresses, routes. Builds and parses them; sends nothing.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd};

use super::{Batch, F_ACK, F_CREATE, F_DUMP, F_EXCL, F_REPLACE, Message, text, u32_at};

const NEWLINK: u16 = 16;
const DELLINK: u16 = 17;
const GETLINK: u16 = 18;
const SETLINK: u16 = 19;
const NEWADDR: u16 = 20;
const GETADDR: u16 = 22;
const NEWROUTE: u16 = 24;
const DELROUTE: u16 = 25;
const GETROUTE: u16 = 26;
const NEWNEIGH: u16 = 28;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINKINFO: u16 = 18;
const IFLA_AF_SPEC: u16 = 26;
const IFLA_GROUP: u16 = 27;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_NUM_TX_QUEUES: u16 = 31;
const IFLA_NUM_RX_QUEUES: u16 = 32;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
const ADDR_GEN_MODE_NONE: u8 = 1;

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;
const IFA_F_NODAD: u32 = 2;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NUD_PERMANENT: u16 = 0x80;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PREFSRC: u16 = 7;

const IFF_UP: u32 = 0x1;
const IFF_NOARP: u32 = 0x80;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const TABLE_MAIN: u8 = 254;
const PROTO_STATIC: u8 = 4;
const SCOPE_UNIVERSE: u8 = 0;
const SCOPE_LINK: u8 = 253;
const UNICAST: u8 = 1;
const NH_ONLINK: u32 = 4;
const LINK_HEADER: usize = 16;
const ADDR_HEADER: usize = 8;
const NEIGH_HEADER: usize = 12;
const ROUTE_HEADER: usize = 12;

/// Whether an interface resolves neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arp {
    On,
    Off,
}

/// One end of a new veth pair.
pub(crate) struct End<'a> {
    pub(crate) name: &'a str,
    /// 0: the kernel chooses.
    pub(crate) index: u32,
    pub(crate) mac: Option<[u8; 6]>,
}

/// A veth pair: `near` is up in this namespace, `far` is in another namespace and still down.
pub(crate) struct Veth<'a> {
    pub(crate) near: End<'a>,
    pub(crate) far: End<'a>,
    pub(crate) far_namespace: BorrowedFd<'a>,
    pub(crate) mtu: u32,
    pub(crate) arp: Arp,
}

/// The needed properties of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FoundLink {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) mac: Vec<u8>,
    pub(crate) mtu: u32,
}

pub(crate) fn add_veth(batch: &mut Batch, veth: &Veth<'_>) {
    let flags = flags_of(veth.arp) | IFF_UP;
    batch.message(NEWLINK, F_ACK | F_CREATE | F_EXCL, &link_header(veth.near.index, flags, flags));
    put_end(batch, &veth.near, veth.mtu);
    let info = batch.open(IFLA_LINKINFO);
    batch.attr_name(IFLA_INFO_KIND, "veth");
    let data = batch.open(IFLA_INFO_DATA);
    let peer = batch.open(VETH_INFO_PEER);
    // Never up here: the kernel refuses to bring an end up before the other end is registered.
    batch.raw(&link_header(veth.far.index, 0, 0));
    put_end(batch, &veth.far, veth.mtu);
    batch.attr(IFLA_NET_NS_FD, &veth.far_namespace.as_raw_fd().to_ne_bytes());
    batch.close(peer);
    batch.close(data);
    batch.close(info);
}

/// Sets MAC and MTU of an existing link, and brings it up.
pub(crate) fn set_up(batch: &mut Batch, index: u32, mac: [u8; 6], mtu: u32, arp: Arp) {
    raise(batch, index, arp);
    batch.attr(IFLA_ADDRESS, &mac);
    batch.attr(IFLA_MTU, &mtu.to_ne_bytes());
}

fn put_end(batch: &mut Batch, end: &End<'_>, mtu: u32) {
    batch.attr_name(IFLA_IFNAME, end.name);
    batch.attr(IFLA_MTU, &mtu.to_ne_bytes());
    if let Some(mac) = end.mac {
        batch.attr(IFLA_ADDRESS, &mac);
    }
    // Without this a veth gets a queue per core, which costs memory and time.
    batch.attr(IFLA_NUM_TX_QUEUES, &1u32.to_ne_bytes());
    batch.attr(IFLA_NUM_RX_QUEUES, &1u32.to_ne_bytes());
}

pub(crate) fn raise(batch: &mut Batch, index: u32, arp: Arp) {
    let flags = flags_of(arp) | IFF_UP;
    batch.message(SETLINK, F_ACK, &link_header(index, flags, flags));
}

/// Disables the link-local IPv6 address of an interface. Fails if the kernel has no IPv6, which is fine.
pub(crate) fn no_ipv6_address(batch: &mut Batch, index: u32) {
    batch.message(SETLINK, F_ACK, &link_header(index, 0, 0));
    let families = batch.open(IFLA_AF_SPEC);
    let inet6 = batch.open(AF_INET6.into());
    batch.attr(IFLA_INET6_ADDR_GEN_MODE, &[ADDR_GEN_MODE_NONE]);
    batch.close(inet6);
    batch.close(families);
}

pub(crate) fn delete_link_by_name(batch: &mut Batch, name: &str) {
    batch.message(DELLINK, F_ACK, &link_header(0, 0, 0));
    batch.attr_name(IFLA_IFNAME, name);
}

pub(crate) fn delete_link(batch: &mut Batch, index: u32) {
    batch.message(DELLINK, F_ACK, &link_header(index, 0, 0));
}

pub(crate) fn set_group(batch: &mut Batch, index: u32, group: u32) {
    batch.message(SETLINK, F_ACK, &link_header(index, 0, 0));
    batch.attr(IFLA_GROUP, &group.to_ne_bytes());
}

/// Deletes all links of a group for the cost of one: the kernel waits for its grace period once.
pub(crate) fn delete_group(batch: &mut Batch, group: u32) {
    batch.message(DELLINK, F_ACK, &link_header(0, 0, 0));
    batch.attr(IFLA_GROUP, &group.to_ne_bytes());
}

pub(crate) fn dump_links() -> Batch {
    let mut batch = Batch::new();
    batch.message(GETLINK, F_DUMP, &link_header(0, 0, 0));
    batch
}

/// Checks that a link exists; an error means that it does not.
pub(crate) fn probe_link(batch: &mut Batch, index: u32) {
    // A message without flags changes nothing, and fails with ENODEV if the link is gone.
    batch.message(SETLINK, F_ACK, &link_header(index, 0, 0));
}

pub(crate) fn read_link(message: &Message<'_>) -> Option<FoundLink> {
    if message.kind != NEWLINK {
        return None;
    }
    let attrs = message.attrs(LINK_HEADER);
    Some(FoundLink {
        index: u32_at(message.body, 4)?,
        name: text(attrs.find(IFLA_IFNAME)?)?.to_owned(),
        mac: attrs.find(IFLA_ADDRESS).unwrap_or_default().to_vec(),
        mtu: u32_at(attrs.find(IFLA_MTU)?, 0)?,
    })
}

/// Adds an address to the interface; an existing one is no error.
pub(crate) fn add_address(batch: &mut Batch, index: u32, address: Ipv4Addr, prefix_len: u8) {
    let mut header = [0u8; ADDR_HEADER];
    header[0] = AF_INET;
    header[1] = prefix_len;
    header[3] = SCOPE_UNIVERSE;
    header[4..].copy_from_slice(&index.to_ne_bytes());
    batch.message(NEWADDR, F_ACK | F_CREATE | F_REPLACE, &header);
    batch.attr(IFA_LOCAL, &address.octets());
    batch.attr(IFA_ADDRESS, &address.octets());
}

pub(crate) fn dump_addresses() -> Batch {
    let mut batch = Batch::new();
    let mut header = [0u8; ADDR_HEADER];
    header[0] = AF_INET;
    batch.message(GETADDR, F_DUMP, &header);
    batch
}

pub(crate) fn read_address(message: &Message<'_>) -> Option<Ipv4Addr> {
    if message.kind != NEWADDR || message.body.first() != Some(&AF_INET) {
        return None;
    }
    message.attrs(ADDR_HEADER).find(IFA_LOCAL).and_then(ipv4)
}

/// The route to one sandbox; ICMP errors of the router on it come from `source`.
pub(crate) fn add_host_route(batch: &mut Batch, to: Ipv4Addr, index: u32, source: Ipv4Addr) {
    batch.message(NEWROUTE, F_ACK | F_CREATE | F_EXCL, &route_header(32, SCOPE_LINK, 0));
    batch.attr(RTA_DST, &to.octets());
    batch.attr(RTA_OIF, &index.to_ne_bytes());
    batch.attr(RTA_PREFSRC, &source.octets());
}

/// The default route, through a gateway that needs no route of its own.
pub(crate) fn add_default_route(batch: &mut Batch, gateway: Ipv4Addr, index: u32) {
    batch.message(NEWROUTE, F_ACK | F_CREATE | F_REPLACE, &route_header(0, SCOPE_UNIVERSE, NH_ONLINK));
    batch.attr(RTA_GATEWAY, &gateway.octets());
    batch.attr(RTA_OIF, &index.to_ne_bytes());
}

pub(crate) fn dump_routes() -> Batch {
    let mut batch = Batch::new();
    let mut header = [0u8; ROUTE_HEADER];
    header[0] = AF_INET;
    batch.message(GETROUTE, F_DUMP, &header);
    batch
}

/// The interface of a default route in the main table.
pub(crate) fn read_default_route(message: &Message<'_>) -> Option<u32> {
    default_route_of(AF_INET, message)
}

fn default_route_of(family: u8, message: &Message<'_>) -> Option<u32> {
    let is_default = message.kind == NEWROUTE
        && message.body.first() == Some(&family)
        && message.body.get(1) == Some(&0)
        && message.body.get(4) == Some(&TABLE_MAIN)
        && message.body.get(7) == Some(&UNICAST);
    is_default.then(|| message.attrs(ROUTE_HEADER).find(RTA_OIF).and_then(|value| u32_at(value, 0)))?
}

/// The same for IPv6. The address is unique, so duplicate address detection is disabled.
pub(crate) fn add_address6(batch: &mut Batch, index: u32, address: Ipv6Addr, prefix_len: u8) {
    let mut header = [0u8; ADDR_HEADER];
    header[0] = AF_INET6;
    header[1] = prefix_len;
    header[3] = SCOPE_UNIVERSE;
    header[4..].copy_from_slice(&index.to_ne_bytes());
    batch.message(NEWADDR, F_ACK | F_CREATE | F_REPLACE, &header);
    batch.attr(IFA_LOCAL, &address.octets());
    batch.attr(IFA_ADDRESS, &address.octets());
    batch.attr(IFA_FLAGS, &IFA_F_NODAD.to_ne_bytes());
}

pub(crate) fn dump_addresses6() -> Batch {
    let mut batch = Batch::new();
    let mut header = [0u8; ADDR_HEADER];
    header[0] = AF_INET6;
    batch.message(GETADDR, F_DUMP, &header);
    batch
}

pub(crate) fn read_address6(message: &Message<'_>) -> Option<Ipv6Addr> {
    if message.kind != NEWADDR || message.body.first() != Some(&AF_INET6) {
        return None;
    }
    let attrs = message.attrs(ADDR_HEADER);
    let value = attrs.find(IFA_LOCAL).or_else(|| attrs.find(IFA_ADDRESS))?;
    value.first_chunk::<16>().map(|octets| Ipv6Addr::from(*octets))
}

/// The route to one sandbox's IPv6 address; an existing one is no error.
pub(crate) fn add_host_route6(batch: &mut Batch, to: Ipv6Addr, index: u32) {
    let header = route_header_of(AF_INET6, 128, SCOPE_UNIVERSE, 0);
    batch.message(NEWROUTE, F_ACK | F_CREATE | F_REPLACE, &header);
    batch.attr(RTA_DST, &to.octets());
    batch.attr(RTA_OIF, &index.to_ne_bytes());
}

/// The IPv6 default route.
pub(crate) fn add_default_route6(batch: &mut Batch, gateway: Ipv6Addr, index: u32) {
    let header = route_header_of(AF_INET6, 0, SCOPE_UNIVERSE, NH_ONLINK);
    batch.message(NEWROUTE, F_ACK | F_CREATE | F_REPLACE, &header);
    batch.attr(RTA_GATEWAY, &gateway.octets());
    batch.attr(RTA_OIF, &index.to_ne_bytes());
}

/// An IPv6 default route without replies. It has the same metric as the other default route, which replaces it.
pub(crate) fn add_silent_default_route6(batch: &mut Batch, index: u32) {
    let header = route_header_of(AF_INET6, 0, SCOPE_UNIVERSE, 0);
    batch.message(NEWROUTE, F_ACK | F_CREATE | F_REPLACE, &header);
    batch.attr(RTA_OIF, &index.to_ne_bytes());
}

pub(crate) fn delete_silent_default_route6(batch: &mut Batch, index: u32) {
    batch.message(DELROUTE, F_ACK, &route_header_of(AF_INET6, 0, SCOPE_UNIVERSE, 0));
    batch.attr(RTA_OIF, &index.to_ne_bytes());
}

/// Adds a permanent neighbour entry, so that no neighbour discovery is needed.
pub(crate) fn add_neighbour6(batch: &mut Batch, index: u32, address: Ipv6Addr, mac: &[u8]) {
    let mut header = [0u8; NEIGH_HEADER];
    header[0] = AF_INET6;
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..10].copy_from_slice(&NUD_PERMANENT.to_ne_bytes());
    batch.message(NEWNEIGH, F_ACK | F_CREATE | F_REPLACE, &header);
    batch.attr(NDA_DST, &address.octets());
    batch.attr(NDA_LLADDR, mac);
}

pub(crate) fn dump_routes6() -> Batch {
    let mut batch = Batch::new();
    let mut header = [0u8; ROUTE_HEADER];
    header[0] = AF_INET6;
    batch.message(GETROUTE, F_DUMP, &header);
    batch
}

/// The interface of an IPv6 default route in the main table.
pub(crate) fn read_default_route6(message: &Message<'_>) -> Option<u32> {
    default_route_of(AF_INET6, message)
}

pub(crate) fn ipv4(bytes: &[u8]) -> Option<Ipv4Addr> {
    bytes.first_chunk::<4>().map(|octets| Ipv4Addr::from(*octets))
}

fn flags_of(arp: Arp) -> u32 {
    match arp {
        Arp::On => 0,
        Arp::Off => IFF_NOARP,
    }
}

fn link_header(index: u32, flags: u32, change: u32) -> [u8; LINK_HEADER] {
    let mut header = [0u8; LINK_HEADER];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..].copy_from_slice(&change.to_ne_bytes());
    header
}

fn route_header(prefix_len: u8, scope: u8, flags: u32) -> [u8; ROUTE_HEADER] {
    route_header_of(AF_INET, prefix_len, scope, flags)
}

fn route_header_of(family: u8, prefix_len: u8, scope: u8, flags: u32) -> [u8; ROUTE_HEADER] {
    let mut header = [family, prefix_len, 0, 0, TABLE_MAIN, PROTO_STATIC, scope, UNICAST, 0, 0, 0, 0];
    header[8..].copy_from_slice(&flags.to_ne_bytes());
    header
}
