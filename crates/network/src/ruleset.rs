//! The static nftables rules: one table in the router namespace, one in the host's. Text only, loaded once by `nft -f
//! -`.
//!
//! Loading again is safe at any time: one transaction empties the chains and writes them again, while the sets and the
//! elements of running sandboxes stay. A set whose type must change gets a new name.
//!
//! ```text
//! packet from a sandbox ── guard ── own address? ── names: tcp to a fresh answer? ──► the gate, by input
//!                            └ else dropped             │ no
//!        ┌──────────────────────────────────────────────┘
//!        └► forward ── host, udp to a name? ── open? ── never? ──────────┬─► pass: limits, records ──► uplink
//!                          │                    └ never but private? ── listed? ┘
//!                          └───────────────── refuse: records, an error at once ◄── else
//! ```
//!
//! A sandbox with a list of addresses has its own set `d<n>` and chain `c<n>`, one with a budget `q<n>` and `b<n>`; two
//! verdict maps refer to them. So the cost of a change depends only on the one sandbox, however many others there are.
//!
//! IPv6 has the same objects with the suffix 6: own6, listed6, sent6 … It has no open mode, no names and no gate, only
//! lists, and sandboxes without such a list have no address that `guard` accepts. The objects of a sandbox are `f<n>`,
//! `e<n>`, `r<n>` and `g<n>`.
//!
//! Policy is checked before connection state, in both directions: a closed destination is closed for existing flows
//! too.

use std::fmt::Display;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};

use atoll_model::policy::egress::ranges::{Bound, Ranges, Ranges4, never, never6};

use crate::address::{Block, GATEWAY, OWN6_NETWORK, UPLINK};
use crate::gate::GATE_PORT;
use crate::tool;

/// The table in the router namespace.
pub(crate) const TABLE: &str = "atoll";
/// Interfaces that may send to all public addresses, keyed by name.
pub(crate) const OPEN: &str = "open";
/// Interfaces that may use the gate without being open, keyed by name.
pub(crate) const NAMED: &str = "named";
/// Interfaces whose connections are passed on through a proxy: all of TCP goes to the gate, and nothing else leaves. Keyed by name.
pub(crate) const PROXIED: &str = "proxied";
/// The sets of one version of IP, and the chain for allowed packets.
#[derive(Debug)]
pub(crate) struct Sets {
    /// The map to the address list of an interface, keyed by name.
    pub(crate) listed: &'static str,
    /// The map to the budget of an interface, keyed by name.
    pub(crate) budgets: &'static str,
    /// The connection limit of a sandbox, keyed by its address. Not dynamic: from a dynamic set the kernel removes
    /// elements that currently count no connection.
    pub(crate) limited: &'static str,
    pub(crate) pass: &'static str,
}

/// For IPv4.
pub(crate) const SETS: Sets = Sets { listed: "listed", budgets: "budgets", limited: "capped", pass: PASS };
/// For IPv6.
pub(crate) const SETS6: Sets =
    Sets { listed: "listed6", budgets: "budgets6", limited: "capped6", pass: "pass6" };
/// Fresh DNS answers of the gate, keyed by sandbox and address.
pub(crate) const FRESH: &str = "fresh";
/// The address of each interface, keyed by name and address.
pub(crate) const OWN: &str = "own";
pub(crate) const OWN6: &str = "own6";
/// The host's own addresses.
pub(crate) const HOST: &str = "host";
pub(crate) const HOST6: &str = "host6";
/// Traffic out of sandboxes, and into them: sandbox, address, protocol, port.
pub(crate) const SENT: &str = "sent";
pub(crate) const GOT: &str = "got";
/// Sandboxes that send to so many new destinations that these are no longer counted separately, and the sums of those:
/// by sandbox.
pub(crate) const CROWD: &str = "crowd";
pub(crate) const MORE: &str = "more";
pub(crate) const MORE_GOT: &str = "moregot";
pub(crate) const SENT6: &str = "sent6";
pub(crate) const GOT6: &str = "got6";
/// Refused traffic; the reason follows the port.
pub(crate) const REFUSED: &str = "refused";
pub(crate) const REFUSED6: &str = "refused6";
/// Sandboxes that are refused so often that further refusals are not recorded.
pub(crate) const NOISY: &str = "noisy";
/// DNS queries per sandbox.
pub(crate) const ASKERS: &str = "askers";
/// LIMIT: queries that reach the gate: above its own limit, so that the gate can log excessive queries, and below what
/// would fill the queue that all sandboxes share.
const QUESTIONS: &str = "200/second burst 400 packets";
pub(crate) const NOISY6: &str = "noisy6";
/// The number of flows of each sandbox.
pub(crate) const FLOWS: &str = "flows";
pub(crate) const FLOWS6: &str = "flows6";
/// The chains for allowed and for refused packets.
pub(crate) const PASS: &str = "pass";
pub(crate) const REFUSE: &str = "refuse";
/// In the host's table: interfaces on which Atoll has enabled forwarding.
pub(crate) const OPENED: &str = "opened";
pub(crate) const OPENED6: &str = "opened6";

/// The reason of a refusal, as stored in the mark of the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    Host = 1,
    Never = 2,
    Closed = 3,
    UdpToName = 4,
    Connections = 5,
    Budget = 6,
    Sandbox = 7,
    NoService = 8,
    Proxied = 9,
}

impl Why {
    pub(crate) fn from_mark(mark: u32) -> Option<Self> {
        use Why::{Budget, Closed, Connections, Host, Never, NoService, Proxied, Sandbox, UdpToName};
        [Host, Never, Closed, UdpToName, Connections, Budget, Sandbox, NoService, Proxied]
            .into_iter()
            .find(|why| *why as u32 == mark)
    }

    /// The end of a rule that refuses.
    fn text(self) -> String {
        format!("meta mark set {} goto {REFUSE}", self as u32)
    }
}

/// LIMIT: flows of one sandbox at a time. All sandboxes share the connection table; a browser or a crawler needs some
/// hundreds.
const FLOWS_PER_SANDBOX: u32 = 4096;
/// LIMIT: destinations that are counted at a time, of all sandboxes together; further ones are summed up by sandbox.
const RECORDS: u32 = 65_536;
/// LIMIT: new destinations of one sandbox that are counted separately, so that one sandbox cannot fill the shared
/// records.
const DESTINATIONS: &str = "100/second burst 500 packets";
/// How long a destination is kept after its last packet. The sets are read every second.
const RECORDS_FOR: &str = "20s";
/// LIMIT: recorded refusals of one sandbox, so that one sandbox cannot fill the shared records.
const REFUSALS: &str = "50/second burst 200 packets";
/// LIMIT: fresh answers of the gate at a time.
pub(crate) const FRESH_MAX: u32 = 262_144;

/// Whether the kernel can count flows per sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlowLimit {
    Counted,
    Absent,
}

/// The rules of the router namespace.
pub(crate) fn router(limit: FlowLimit) -> String {
    let mut text = sets(limit);
    for chain in CHAINS {
        text.push_str(&format!("flush chain inet {TABLE} {chain}\n"));
    }
    text.push_str(&format!(
        "flush set inet {TABLE} never\nflush set inet {TABLE} nobody\nflush set inet {TABLE} never6\n"
    ));
    text.push_str(&chains(limit));
    text
}

const CHAINS: [&str; 17] = [
    "guard", "names", "input", "forward", "output", "leave", "local", "public", "back", "enter", PASS,
    REFUSE, "answer", "six", "pass6", "enter6", "refuse6",
];

/// Sets and empty chains, so that the rules can refer to them.
fn sets(limit: FlowLimit) -> String {
    let flows = match limit {
        FlowLimit::Counted => {
            "set flows { type ipv4_addr; size 65535; flags dynamic; }
  set flows6 { type ipv6_addr; size 65535; flags dynamic; }"
        }
        FlowLimit::Absent => "",
    };
    let key = "ipv4_addr . ipv4_addr . inet_proto . inet_service";
    let key6 = "ipv6_addr . ipv6_addr . inet_proto . inet_service";
    let Sets { listed, budgets, limited, .. } = SETS;
    let Sets { listed: listed6, budgets: budgets6, limited: limited6, .. } = SETS6;
    let recorded = format!("size {RECORDS}; flags dynamic,timeout; timeout {RECORDS_FOR};");
    format!(
        r#"table inet {TABLE} {{
  set {OPEN} {{ type ifname; }}
  set {NAMED} {{ type ifname; }}
  set {PROXIED} {{ type ifname; }}
  set {OWN} {{ type ifname . ipv4_addr; }}
  set {HOST} {{ type ipv4_addr; }}
  set never {{ type ipv4_addr; flags interval; auto-merge; }}
  set nobody {{ type ipv4_addr; flags interval; auto-merge; }}
  set {FRESH} {{ type ipv4_addr . ipv4_addr; size {FRESH_MAX}; flags timeout; }}
  map {listed} {{ type ifname : verdict; }}
  map {budgets} {{ type ifname : verdict; }}
  set {limited} {{ type ipv4_addr; }}
  set {OWN6} {{ type ifname . ipv6_addr; }}
  set {HOST6} {{ type ipv6_addr; }}
  set never6 {{ type ipv6_addr; flags interval; auto-merge; }}
  map {listed6} {{ type ifname : verdict; }}
  map {budgets6} {{ type ifname : verdict; }}
  set {limited6} {{ type ipv6_addr; }}
  {flows}
  set {SENT} {{ type {key}; {recorded} }}
  set {CROWD} {{ type ipv4_addr; size 65535; flags dynamic,timeout; timeout 10s; }}
  set {MORE} {{ type ipv4_addr; size 65535; flags dynamic,timeout; timeout {RECORDS_FOR}; }}
  set {MORE_GOT} {{ type ipv4_addr; size 65535; flags dynamic,timeout; timeout {RECORDS_FOR}; }}
  set {GOT} {{ type {key}; {recorded} }}
  set {REFUSED} {{ type {key} . mark; {recorded} }}
  set {ASKERS} {{ type ipv4_addr; size 65535; flags dynamic,timeout; timeout 10s; }}
  set {NOISY} {{ type ipv4_addr; size 65535; flags dynamic,timeout; timeout 10s; }}
  set {SENT6} {{ type {key6}; {recorded} }}
  set {GOT6} {{ type {key6}; {recorded} }}
  set {REFUSED6} {{ type {key6} . mark; {recorded} }}
  set {NOISY6} {{ type ipv6_addr; size 65535; flags dynamic,timeout; timeout 10s; }}
  chain guard {{ type filter hook prerouting priority raw; policy drop; }}
  chain names {{ type nat hook prerouting priority dstnat; policy accept; }}
  chain input {{ type filter hook input priority filter; policy drop; }}
  chain forward {{ type filter hook forward priority filter; policy drop; }}
  chain output {{ type filter hook output priority filter; policy accept; }}
  chain leave {{ type nat hook postrouting priority srcnat; policy accept; }}
  chain local {{ }}
  chain public {{ }}
  chain back {{ }}
  chain enter {{ }}
  chain {PASS} {{ }}
  chain {REFUSE} {{ }}
  chain answer {{ }}
  chain six {{ }}
  chain pass6 {{ }}
  chain enter6 {{ }}
  chain refuse6 {{ }}
}}
"#
    )
}

/// The rules of all chains; [`sets`] declares the chains.
fn chains(limit: FlowLimit) -> String {
    unreachable_ranges()
        + &router_chains(limit)
        + &forwarding_chains(limit)
        + &refusal_chains()
        + &chains6(limit)
}

/// Ranges that sandboxes cannot reach. A private range is reachable if a policy names it, and from the gate's own
/// sockets, because the gate checks the policy itself.
fn unreachable_ranges() -> String {
    let (unreached, never_listed) = (
        elements(&never(Ranges4::default()), Ipv4Addr::from),
        elements(&never(Ranges4::all()), Ipv4Addr::from),
    );
    let unreached6 = elements(&never6(), Ipv6Addr::from);
    format!(
        r#"table inet {TABLE} {{
  set never {{ type ipv4_addr; flags interval; auto-merge; elements = {{ {unreached} }} }}
  set nobody {{ type ipv4_addr; flags interval; auto-merge; elements = {{ {never_listed} }} }}
  set never6 {{ type ipv6_addr; flags interval; auto-merge; elements = {{ {unreached6} }} }}
}}
"#
    )
}

/// Limits for new connections of a sandbox: the first counts its open flows, the second refuses if the policy's limit
/// is reached.
fn flow_limits(limit: FlowLimit) -> (String, String) {
    let limited = SETS.limited;
    let why = Why::Connections.text();
    match limit {
        FlowLimit::Counted => (
            format!("ct state new add @flows {{ ip saddr ct count over {FLOWS_PER_SANDBOX} }} {why}"),
            format!("ct state new ip saddr @{limited} {why}"),
        ),
        FlowLimit::Absent => (String::new(), String::new()),
    }
}

/// Packets to the router itself (the resolver and the gate), and packets from the router. Refusals of the router's own
/// packets go over its loopback.
fn router_chains(limit: FlowLimit) -> String {
    let (closed, no_service) = (Why::Closed.text(), Why::NoService.text());
    let (flows, connections) = flow_limits(limit);
    format!(
        r#"table inet {TABLE} {{
  chain guard {{
    iifname "{UPLINK}" meta nfproto ipv4 accept
    iifname . ip saddr @{OWN} accept
    iifname "{UPLINK}" ip6 daddr {OWN6_NETWORK} accept
    iifname . ip6 saddr @{OWN6} accept
    iifname "lo" ip protocol icmp accept
  }}
  chain names {{
    iifname @{PROXIED} ip daddr @{HOST} accept
    iifname @{PROXIED} meta l4proto tcp ip daddr != {GATEWAY} dnat ip to {GATEWAY}:{GATE_PORT}
    iifname != "{UPLINK}" meta l4proto tcp ip saddr . ip daddr @{FRESH} dnat ip to {GATEWAY}:{GATE_PORT}
  }}
  chain input {{
    iifname {{ "{UPLINK}", "lo" }} ct state established,related accept
    iifname {{ "{UPLINK}", "lo" }} drop
    iifname @{OPEN} goto local
    iifname @{NAMED} goto local
    {closed}
  }}
  chain local {{
    {flows}
    ip daddr {GATEWAY} udp dport 53 add @{ASKERS} {{ ip saddr limit rate over {QUESTIONS} }} drop
    ip daddr {GATEWAY} meta l4proto {{ tcp, udp }} th dport 53 accept
    {connections}
    ip daddr {GATEWAY} tcp dport {GATE_PORT} ct status dnat accept
    {no_service}
  }}
  chain output {{
    oifname != "{UPLINK}" accept
    meta nfproto ipv6 drop
    ip daddr @nobody reject with icmpx admin-prohibited
    ip daddr @{HOST} reject with icmpx admin-prohibited
  }}
  chain leave {{
    oifname "{UPLINK}" masquerade
  }}
}}
"#
    )
}

/// Packets of sandboxes to addresses outside, and their replies.
fn forwarding_chains(limit: FlowLimit) -> String {
    let Sets { listed, budgets, .. } = SETS;
    let listed6 = SETS6.listed;
    let (host, closed, sandbox) = (Why::Host.text(), Why::Closed.text(), Why::Sandbox.text());
    let proxied = Why::Proxied.text();
    let (never_why, udp_to_name) = (Why::Never.text(), Why::UdpToName.text());
    let (flows, connections) = flow_limits(limit);
    let record_sent = record(SENT, "ip", ["saddr", "daddr"], "th dport", "");
    let record_got = record(GOT, "ip", ["daddr", "saddr"], "th sport", "");
    let unknown = format!(
        "meta l4proto != icmp ip saddr . ip daddr . meta l4proto . th dport != @{SENT} ct state established,related,new"
    );
    let unknown_back =
        format!("meta l4proto != icmp ip daddr . ip saddr . meta l4proto . th sport != @{SENT}");
    format!(
        r#"table inet {TABLE} {{
  chain forward {{
    iifname "{UPLINK}" goto back
    oifname != "{UPLINK}" {sandbox}
    meta nfproto ipv6 goto six
    ip daddr @{HOST} {host}
    iifname @{PROXIED} {proxied}
    meta l4proto udp ip saddr . ip daddr @{FRESH} {udp_to_name}
    iifname @{OPEN} goto public
    ip daddr @nobody {never_why}
    iifname vmap @{listed}
    {closed}
  }}
  chain six {{
    ip6 daddr @{HOST6} {host}
    ip6 daddr @never6 {never_why}
    iifname vmap @{listed6}
    {closed}
  }}
  chain public {{
    ip daddr @never {never_why}
    goto {PASS}
  }}
  chain {PASS} {{
    iifname "{UPLINK}" goto enter
    {flows}
    {connections}
    iifname vmap @{budgets}
    {unknown} add @{CROWD} {{ ip saddr limit rate over {DESTINATIONS} }} update @{MORE} {{ ip saddr counter }} accept
    {record_sent}
    {unknown} update @{MORE} {{ ip saddr counter }}
    meta nfproto ipv4 ct state established,related,new accept
  }}
  chain back {{
    ct state != {{ established, related }} drop
    meta nfproto ipv6 oifname vmap @{listed6}
    meta nfproto ipv6 drop
    oifname @{OPEN} goto enter
    oifname vmap @{listed}
    drop
  }}
  chain enter {{
    oifname vmap @{budgets}
    {unknown_back} update @{MORE_GOT} {{ ip daddr counter }} accept
    {record_got}
    accept
  }}
}}
"#
    )
}

/// How a refused packet is answered. An IPv6 TCP connection is refused by a reset: the kernel loses an ICMPv6 error
/// that arrives while `connect` still holds the socket, which is always the case over a veth, and the caller would wait
/// a second for the next one.
fn refusal_chains() -> String {
    let record_refused = record(REFUSED, "ip", ["saddr", "daddr"], "th dport", " . meta mark");
    format!(
        r#"table inet {TABLE} {{
  chain {REFUSE} {{
    iifname "{UPLINK}" drop
    meta nfproto ipv6 goto refuse6
    add @{NOISY} {{ ip saddr limit rate over {REFUSALS} }} goto answer
    {record_refused}
    goto answer
  }}
  chain answer {{
    meta l4proto tcp ct state established reject with tcp reset
    meta nfproto ipv6 meta l4proto tcp reject with tcp reset
    reject with icmpx admin-prohibited
  }}
}}
"#
    )
}

/// The chains for IPv6 packets to listed addresses, and for refused ones.
fn chains6(limit: FlowLimit) -> String {
    let Sets { budgets, limited, pass, .. } = SETS6;
    let why = Why::Connections.text();
    let (flows, connections) = match limit {
        FlowLimit::Counted => (
            format!("ct state new add @{FLOWS6} {{ ip6 saddr ct count over {FLOWS_PER_SANDBOX} }} {why}"),
            format!("ct state new ip6 saddr @{limited} {why}"),
        ),
        FlowLimit::Absent => (String::new(), String::new()),
    };
    let record_sent = record(SENT6, "ip6", ["saddr", "daddr"], "th dport", "");
    let record_got = record(GOT6, "ip6", ["daddr", "saddr"], "th sport", "");
    let record_refused = record(REFUSED6, "ip6", ["saddr", "daddr"], "th dport", " . meta mark");
    format!(
        r#"table inet {TABLE} {{
  chain {pass} {{
    iifname "{UPLINK}" goto enter6
    {flows}
    {connections}
    iifname vmap @{budgets}
    {record_sent}
    ct state established,related,new accept
  }}
  chain enter6 {{
    oifname vmap @{budgets}
    {record_got}
    accept
  }}
  chain refuse6 {{
    add @{NOISY6} {{ ip6 saddr limit rate over {REFUSALS} }} goto answer
    {record_refused}
    goto answer
  }}
}}
"#
    )
}

/// Two rules that count a packet. ICMP has a checksum in place of ports: its type and code are taken from the flow.
fn record(set: &str, ip: &str, [sandbox, other]: [&str; 2], port: &str, more: &str) -> String {
    let icmp = if ip == "ip" { "icmp" } else { "ipv6-icmp" };
    format!(
        "meta l4proto {icmp} update @{set} {{ ct original {ip} saddr . ct original {ip} daddr . meta l4proto . \
         ct original proto-dst{more} counter }}\n    \
         meta l4proto != {icmp} update @{set} {{ {ip} {sandbox} . {ip} {other} . meta l4proto . {port}{more} counter }}"
    )
}

fn elements<T: Bound, A: Display>(ranges: &Ranges<T>, address: impl Fn(T) -> A) -> String {
    let ranges = ranges.iter().map(|(first, last)| {
        if first == last {
            address(first).to_string()
        } else {
            format!("{}-{}", address(first), address(last))
        }
    });
    ranges.collect::<Vec<_>>().join(", ")
}

/// The rules in the host's namespace. Every rule names this server's uplink, so packets of other programs are not
/// affected. The exception: an interface on which Atoll enabled forwarding forwards only to uplinks (this server's or
/// another's).
pub(crate) fn host(block: Block) -> String {
    let table = block.host_table();
    let uplink = block.host_interface();
    let (router, router6) = (block.router_address(), block.router_address6());
    format!(
        r#"table inet {table} {{
  set {OPENED} {{ type ifname; }}
  set {OPENED6} {{ type ifname; }}
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
    iifname "{uplink}" ip saddr != {router} drop
    iifname "{uplink}" ip6 saddr != {router6} drop
    iifname "{uplink}" meta nfproto ipv4 fib daddr type != unicast drop
    iifname "{uplink}" meta nfproto ipv6 fib daddr type {{ local, anycast, multicast }} drop
  }}
  chain input {{
    iifname "{uplink}" drop
  }}
  chain forward {{
    oifname "{uplink}" ct state established,related accept
    oifname "{uplink}" drop
    meta nfproto ipv4 iifname @{OPENED} oifname != "atl*" drop
    meta nfproto ipv6 iifname @{OPENED6} oifname != "atl*" drop
  }}
  chain leave {{
    ip saddr {router} oifname != "{uplink}" masquerade
    ip6 saddr {router6} oifname != "{uplink}" masquerade
  }}
}}
"#
    )
}

/// Removes this server's table from the host's namespace, whether it exists or not.
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
