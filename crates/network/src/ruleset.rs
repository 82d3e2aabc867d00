//! The static nftables rules: one table in the router namespace, one in the host's. Text only, loaded once by `nft -f -`.
//!
//! Loading again is safe at any time: in one transaction the chains are emptied and written anew, while the sets
//! and with them the elements of running sandboxes stay. A set whose type must change gets a new name.
//!
//! ```text
//! packet from a sandbox ── guard ── own address? ── forward ── open? ── not never, not host? ── uplink
//!                            └ else dropped             └ else refused      └ else refused
//! ```
//!
//! Policy is looked at before connection state, in both directions: what is closed is closed for flows that exist.

use std::io;

use crate::address::{Block, GATEWAY, UPLINK};
use crate::tool;

/// Our table in the router namespace.
pub(crate) const TABLE: &str = "atoll";
/// Interfaces that may send, keyed by name.
pub(crate) const OPEN: &str = "open";
/// Which address belongs to which interface, keyed by name and address.
pub(crate) const OWN: &str = "own";
/// The host's own addresses.
pub(crate) const HOST: &str = "host";
/// In the host's table: interfaces that forward only because we asked.
pub(crate) const OPENED: &str = "opened";

/// Destinations that no policy opens: this network, private, shared, loopback, link-local with every cloud's metadata
/// service, protocol assignments, documentation of 6to4 relays, benchmarking (our uplinks), multicast, reserved, broadcast.
const NEVER: &str = "0.0.0.0/8, 10.0.0.0/8, 100.64.0.0/10, 127.0.0.0/8, 169.254.0.0/16, 172.16.0.0/12, \
    192.0.0.0/24, 192.88.99.0/24, 192.168.0.0/16, 198.18.0.0/15, 224.0.0.0/4, 240.0.0.0/4";

/// LIMIT: flows of one sandbox at a time. The connection table is one for all; a browser or a crawler needs some hundreds.
const FLOWS_PER_SANDBOX: u32 = 4096;

/// Whether the kernel can count flows per sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlowLimit {
    Counted,
    Absent,
}

/// The rules of the router namespace.
pub(crate) fn router(limit: FlowLimit) -> String {
    let (flows, count) = match limit {
        FlowLimit::Counted => (
            "set flows { type ipv4_addr; size 65535; flags dynamic; }".to_owned(),
            format!(
                "ct state new add @flows {{ ip saddr ct count over {FLOWS_PER_SANDBOX} }} reject with icmpx admin-prohibited"
            ),
        ),
        FlowLimit::Absent => (String::new(), String::new()),
    };
    format!(
        r#"table inet {TABLE} {{
  set {OPEN} {{ type ifname; }}
  set {OWN} {{ type ifname . ipv4_addr; }}
  set {HOST} {{ type ipv4_addr; }}
  set never {{ type ipv4_addr; flags interval; auto-merge; elements = {{ {NEVER} }} }}
  {flows}
  chain guard {{ type filter hook prerouting priority raw; policy drop; }}
  chain input {{ type filter hook input priority filter; policy drop; }}
  chain forward {{ type filter hook forward priority filter; policy drop; }}
  chain leave {{ type nat hook postrouting priority srcnat; policy accept; }}
}}
flush chain inet {TABLE} guard
flush chain inet {TABLE} input
flush chain inet {TABLE} forward
flush chain inet {TABLE} leave
table inet {TABLE} {{
  chain guard {{
    iifname "{UPLINK}" meta nfproto ipv4 accept
    iifname . ip saddr @{OWN} accept
  }}
  chain input {{
    iifname "{UPLINK}" drop
    iifname != @{OPEN} reject with icmpx admin-prohibited
    {count}
    ip daddr {GATEWAY} meta l4proto {{ tcp, udp }} th dport 53 accept
    reject with icmpx admin-prohibited
  }}
  chain forward {{
    iifname "{UPLINK}" oifname @{OPEN} ct state established,related accept
    iifname "{UPLINK}" drop
    iifname != @{OPEN} reject with icmpx admin-prohibited
    oifname != "{UPLINK}" reject with icmpx admin-prohibited
    ip daddr @never reject with icmpx admin-prohibited
    ip daddr @{HOST} reject with icmpx admin-prohibited
    {count}
    meta nfproto ipv4 ct state established,related,new accept
  }}
  chain leave {{
    oifname "{UPLINK}" masquerade
  }}
}}
"#
    )
}

/// The rules in the host's namespace. Every rule names our uplink; nobody else's packet is judged, except that an interface
/// which forwards only on our behalf forwards only to uplinks (this server's or another's).
pub(crate) fn host(block: Block) -> String {
    let table = block.host_table();
    let uplink = block.host_interface();
    let router = block.router_address();
    format!(
        r#"table inet {table} {{
  set {OPENED} {{ type ifname; }}
  chain arrive {{ type filter hook prerouting priority raw; policy accept; }}
  chain input {{ type filter hook input priority filter - 10; policy accept; }}
  chain forward {{ type filter hook forward priority filter - 10; policy accept; }}
  chain leave {{ type nat hook postrouting priority srcnat; policy accept; }}
}}
flush chain inet {table} arrive
flush chain inet {table} input
flush chain inet {table} forward
flush chain inet {table} leave
table inet {table} {{
  chain arrive {{
    iifname "{uplink}" meta nfproto ipv6 drop
    iifname "{uplink}" ip saddr != {router} drop
    iifname "{uplink}" fib daddr type != unicast drop
  }}
  chain input {{
    iifname "{uplink}" drop
  }}
  chain forward {{
    oifname "{uplink}" ct state established,related accept
    oifname "{uplink}" drop
    iifname @{OPENED} oifname != "atl*" drop
  }}
  chain leave {{
    ip saddr {router} oifname != "{uplink}" masquerade
  }}
}}
"#
    )
}

/// The text that removes our table from the host's namespace, whether it is there or not.
pub(crate) fn remove_host(block: Block) -> String {
    let table = block.host_table();
    format!("add table inet {table}\ndelete table inet {table}\n")
}

/// Loads a text in the network namespace of the calling thread.
pub(crate) fn load(text: &str) -> io::Result<()> {
    let finished = tool::run(tool::nft().args(["-f", "-"]), text)?;
    if finished.status.success() {
        return Ok(());
    }
    let said = finished.stderr.lines().next().unwrap_or("no reason given");
    Err(io::Error::other(format!("nft refused the rules: {said}")))
}
