//! Addresses, names and indexes of links. Pure arithmetic; no kernel calls.
//!
//! ```text
//! uplink of block b   198.18.0.0/15, slice b of /30:   .1 the host's end, .2 the router's end
//! sandbox n           100.64.0.0/10 + n                name s<n>, index 1000 + n, MAC 02:00 + address
//! gateway and DNS     169.254.0.1                      once, on the router's loopback
//!
//! where a policy names IPv6 ranges:
//! sandbox             fd61:746f:6c6c:: + its IPv4 address                     /128
//! uplink of block b   fd61:746f:6c6c:<8000 + b>::1 the host's, ::2 the router's
//! ```
//!
//! The router namespace is private to a server, so two servers may use the same sandbox addresses. Uplinks are in the
//! host's namespace, so a block is unique on a machine.

use std::net::{Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

/// The gateway and name server of every sandbox.
pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(169, 254, 0, 1);
/// The name of the router's end of the uplink, inside the router namespace.
pub(crate) const UPLINK: &str = "uplink";
/// The index of a sandbox's `eth0`: fixed, so that set-up needs no lookup; high, so that it never collides with the
/// kernel's fallback devices.
pub(crate) const ETH0_INDEX: u32 = 100;
/// The last number of a sandbox link; the last address of the range stays unused.
pub(crate) const LAST_NUMBER: u32 = (1 << 22) - 2;

const UPLINK_BASE: u32 = u32::from_be_bytes([198, 18, 0, 0]);
const SANDBOX_BASE: u32 = u32::from_be_bytes([100, 64, 0, 0]);
const FIRST_INDEX: u32 = 1000;
/// The IPv6 addresses of sandboxes and uplinks, /48. Unique local: they are valid only on the machine and are
/// translated before packets leave it.
const OWN6: u128 = 0xfd61_746f_6c6c << 80;
/// The same in the syntax of rules.
pub(crate) const OWN6_NETWORK: &str = "fd61:746f:6c6c::/48";
/// The IPv6 gateway of a sandbox. No interface has this address: both ends of a link have the same MAC, so every packet
/// arrives.
pub(crate) const GATEWAY6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

/// The number of a server on this machine: its slice of the uplink range and part of its interface names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
pub struct Block(u16);

impl Block {
    /// LIMIT: a /15 holds this many /30.
    pub const COUNT: u16 = 1 << 15;

    /// `None` at [`Block::COUNT`] and above.
    pub fn new(number: u16) -> Option<Self> {
        (number < Self::COUNT).then_some(Self(number))
    }

    pub fn number(self) -> u16 {
        self.0
    }

    /// The name of the host's end of the uplink.
    pub fn host_interface(self) -> String {
        format!("atl{}u", self.0)
    }

    /// The block of an uplink interface on the host; `None` for other interfaces.
    pub(crate) fn of_host_interface(name: &str) -> Option<Self> {
        let number = name.strip_prefix("atl")?.strip_suffix('u')?.parse().ok()?;
        Self::new(number).filter(|block| block.host_interface() == name)
    }

    /// The name of this server's table in the host's namespace.
    pub fn host_table(self) -> String {
        format!("atoll_{}", self.0)
    }

    /// The host's address on the uplink.
    pub fn host_address(self) -> Ipv4Addr {
        Ipv4Addr::from(self.base() + 1)
    }

    /// The router's address on the uplink; packets of sandboxes have it as their source when they reach the host.
    pub fn router_address(self) -> Ipv4Addr {
        Ipv4Addr::from(self.base() + 2)
    }

    /// The host's IPv6 address on the uplink.
    pub(crate) fn host_address6(self) -> Ipv6Addr {
        Ipv6Addr::from(self.base6() | 1)
    }

    /// The router's IPv6 address on the uplink.
    pub(crate) fn router_address6(self) -> Ipv6Addr {
        Ipv6Addr::from(self.base6() | 2)
    }

    /// The uplink's network, as `address/30`.
    pub fn network(self) -> String {
        format!("{}/30", Ipv4Addr::from(self.base()))
    }

    /// Blocks are below 0x8000 and sandboxes in network 0, so the networks never overlap.
    fn base6(self) -> u128 {
        OWN6 | u128::from(0x8000 | self.0) << 64
    }

    fn base(self) -> u32 {
        UPLINK_BASE + u32::from(self.0) * 4
    }
}

impl TryFrom<u16> for Block {
    type Error = BlockOutOfRange;

    fn try_from(number: u16) -> Result<Self, BlockOutOfRange> {
        Self::new(number).ok_or(BlockOutOfRange { number })
    }
}

impl From<Block> for u16 {
    fn from(block: Block) -> u16 {
        block.0
    }
}

/// A block number at or above [`Block::COUNT`].
#[derive(Debug, thiserror::Error)]
#[error("network block {number} is not below 32768")]
pub struct BlockOutOfRange {
    number: u16,
}

/// The veth or tap of a sandbox: its number gives name and index and is not reused soon; its address stays with the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SandboxLink {
    /// Increased with every attachment.
    pub number: u32,
    /// The sandbox's address. Equal to [`SandboxLink::address_of`] its number, except after a restore that keeps the
    /// old address.
    pub address: Ipv4Addr,
}

impl SandboxLink {
    /// The default address of a number.
    pub fn address_of(number: u32) -> Ipv4Addr {
        Ipv4Addr::from(SANDBOX_BASE + (number & 0x3f_ffff))
    }

    /// The name of the router's end.
    pub fn name(&self) -> String {
        format!("s{}", self.number)
    }

    /// Whether the address is one a sandbox may have.
    pub fn is_sandbox_address(address: Ipv4Addr) -> bool {
        (1..=LAST_NUMBER).contains(&u32::from(address).wrapping_sub(SANDBOX_BASE))
    }

    /// The sandbox's IPv6 address, if its policy names IPv6 ranges.
    pub fn address6(&self) -> Ipv6Addr {
        Self::address6_of(self.address)
    }

    /// The IPv6 address that belongs to an IPv4 address.
    pub(crate) fn address6_of(address: Ipv4Addr) -> Ipv6Addr {
        Ipv6Addr::from(OWN6 | u128::from(u32::from(address)))
    }

    /// Whether a socket table in the format of /proc contains an IPv6 address of a sandbox.
    pub fn is_in_socket_table(table: &str) -> bool {
        let [a, b, c, d, ..] = OWN6.to_be_bytes();
        table.contains(&format!("{:08X}", u32::from_ne_bytes([a, b, c, d])))
    }

    pub(crate) fn index(&self) -> u32 {
        FIRST_INDEX + self.number
    }

    /// Both ends have the same MAC, also the interface of a guest behind a tap. It contains the address, so a link found
    /// after a crash can be identified.
    pub fn mac(&self) -> [u8; 6] {
        let [a, b, c, d] = self.address.octets();
        [2, 0, a, b, c, d]
    }

    pub(crate) fn from_kernel(name: &str, mac: &[u8]) -> Option<Self> {
        let number =
            name.strip_prefix('s')?.parse().ok().filter(|number| (1..=LAST_NUMBER).contains(number))?;
        let [2, 0, a, b, c, d] = *mac else { return None };
        Some(Self { number, address: Ipv4Addr::new(a, b, c, d) })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn names_fit_the_kernel_and_blocks_do_not_meet() {
        let last = Block::new(Block::COUNT - 1).unwrap();
        assert!(last.host_interface().len() <= 15);
        assert_eq!(Block::of_host_interface(&last.host_interface()), Some(last));
        for name in ["atl", "atlu", "atl01u", "atl32768u", "eth0", "atl1"] {
            assert_eq!(Block::of_host_interface(name), None, "{name}");
        }
        assert_eq!(last.router_address(), Ipv4Addr::new(198, 19, 255, 254));
        assert_eq!(Block::new(1).unwrap().network(), "198.18.0.4/30");
        assert!(Block::new(Block::COUNT).is_none());
        let link = SandboxLink { number: LAST_NUMBER, address: SandboxLink::address_of(LAST_NUMBER) };
        assert!(link.name().len() <= 15);
        assert_eq!(link.address, Ipv4Addr::new(100, 127, 255, 254));
        assert_eq!(link.address6().to_string(), "fd61:746f:6c6c::647f:fffe");
        assert_eq!(last.router_address6().to_string(), "fd61:746f:6c6c:ffff::2");
        assert_eq!(Block::new(0).unwrap().host_address6().to_string(), "fd61:746f:6c6c:8000::1");
    }

    #[test]
    fn a_link_is_read_back_from_name_and_mac() {
        let link = SandboxLink { number: 77, address: Ipv4Addr::new(100, 70, 1, 2) };
        assert_eq!(SandboxLink::from_kernel(&link.name(), &link.mac()), Some(link));
        assert_eq!(SandboxLink::from_kernel("sit0", &link.mac()), None);
        assert_eq!(SandboxLink::from_kernel("s1", &[0; 6]), None);
        let line = "0: 6F7461FD00006C6C000000002C535C64:D3A8 B80D0120000010000000000010000000:0007 01";
        assert!(SandboxLink::is_in_socket_table(line) || cfg!(target_endian = "big"));
        assert!(!SandboxLink::is_in_socket_table("0: 00000000000000000000000000000000:1F40"));
        assert!(!SandboxLink::is_sandbox_address(Ipv4Addr::new(10, 0, 0, 1)));
    }
}
