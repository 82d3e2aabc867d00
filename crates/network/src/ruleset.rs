//! The static nftables rules: one table in the router namespace, one in the host's. Text only, loaded once by `nft -f -`.
//!
//! Loading again is safe at any time: in one transaction the chains are emptied and written anew, while the sets
//! and with them the elements of running sandboxes stay. A set whose type must change gets a new name.
//!
//! ```text
//! packet from a sandbox ── guard ── own address? ── names: tcp to a fresh answer? ──► the gate, by input
//!                            └ else dropped             │ no
//!        ┌──────────────────────────────────────────────┘
//!        └► forward ── host, udp to a name? ── open? ── never? ─┬─► pass: limits, records ──► uplink
//!                          │                    └ listed? ──────┘
//!                          └───────────────── refuse: records, an error at once ◄── else
//! ```
//!
//! A sandbox with a list of addresses has a set `d<n>` and a chain `c<n>` of its own, one with a budget `q<n>` and `b<n>`; two
//! verdict maps lead there. So a change costs what the one sandbox has, however many others there are.
//!
//! Policy is looked at before connection state, in both directions: what is closed is closed for flows that exist.

use std::io;
use std::net::Ipv4Addr;

use atoll_model::policy::egress::ranges::{Ranges4, never};

use crate::address::{Block, GATEWAY, UPLINK};
use crate::gate::GATE_PORT;
use crate::tool;

/// Our table in the router namespace.
pub(crate) const TABLE: &str = "atoll";
/// Interfaces that may send to everything public, keyed by name.
pub(crate) const OPEN: &str = "open";
/// Interfaces that may use the gate without being open, keyed by name.
pub(crate) const NAMED: &str = "named";
/// Where the addresses are listed that an interface may send to, keyed by name.
pub(crate) const LISTED: &str = "listed";
/// Where the budget of an interface is looked after, keyed by name.
pub(crate) const BUDGETS: &str = "budgets";
/// How many connections a sandbox may have, keyed by its address. Not dynamic: from a dynamic set the kernel collects elements
/// that count no connection at the moment.
pub(crate) const LIMITED: &str = "capped";
/// Answers that the gate gave, keyed by sandbox and address.
pub(crate) const FRESH: &str = "fresh";
/// Which address belongs to which interface, keyed by name and address.
pub(crate) const OWN: &str = "own";
/// The host's own addresses.
pub(crate) const HOST: &str = "host";
/// What passed out of sandboxes, and into them: sandbox, address, protocol, port.
pub(crate) const SENT: &str = "sent";
pub(crate) const GOT: &str = "got";
/// Who sends to so many new destinations that they are no longer told apart, and the sums of what is not told apart: by sandbox.
pub(crate) const CROWD: &str = "crowd";
pub(crate) const MORE: &str = "more";
pub(crate) const MORE_GOT: &str = "moregot";
/// What was refused; behind the port stands why.
pub(crate) const REFUSED: &str = "refused";
/// Who is refused so often that no more of it is written down.
pub(crate) const NOISY: &str = "noisy";
/// Who asks for names, and how often.
pub(crate) const ASKERS: &str = "askers";
/// LIMIT: questions that reach the gate: above its own rate, so that it tells who asks too much, and below what would fill the
/// one queue that all sandboxes share.
const QUESTIONS: &str = "200/second burst 400 packets";
/// How many flows each sandbox has.
pub(crate) const FLOWS: &str = "flows";
/// Where what may leave goes on, and where what may not.
pub(crate) const PASS: &str = "pass";
pub(crate) const REFUSE: &str = "refuse";
/// In the host's table: interfaces that forward only because we asked.
pub(crate) const OPENED: &str = "opened";

/// Why something is refused, as it stands in the mark of the packet.
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
}

impl Why {
    pub(crate) fn from_mark(mark: u32) -> Option<Self> {
        use Why::{Budget, Closed, Connections, Host, Never, NoService, Sandbox, UdpToName};
        [Host, Never, Closed, UdpToName, Connections, Budget, Sandbox, NoService]
            .into_iter()
            .find(|why| *why as u32 == mark)
    }

    /// The end of a rule that refuses.
    fn text(self) -> String {
        format!("meta mark set {} goto {REFUSE}", self as u32)
    }
}

/// LIMIT: flows of one sandbox at a time. The connection table is one for all; a browser or a crawler needs some hundreds.
const FLOWS_PER_SANDBOX: u32 = 4096;
/// LIMIT: destinations that are recorded at a time, of all sandboxes together; what is beyond is added up by sandbox.
const RECORDS: u32 = 65_536;
/// LIMIT: new destinations of one sandbox that are recorded one by one, so that none can fill the records of all.
const DESTINATIONS: &str = "100/second burst 500 packets";
/// How long a destination is remembered after its last packet. They are read every second.
const RECORDS_FOR: &str = "20s";
/// LIMIT: refused packets of one sandbox that are recorded, so that none can fill the records of all.
const REFUSALS: &str = "50/second burst 200 packets";
/// LIMIT: answers of the gate that are fresh at a time.
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
    text.push_str(&format!("flush set inet {TABLE} never\nflush set inet {TABLE} nobody\n"));
    text.push_str(&chains(limit));
    text
}

const CHAINS: [&str; 13] = [
    "guard", "names", "input", "forward", "output", "leave", "local", "public", "back", "enter", PASS,
    REFUSE, "answer",
];

/// Sets and empty chains, so that the rest can speak of them.
fn sets(limit: FlowLimit) -> String {
    let flows = match limit {
        FlowLimit::Counted => "set flows { type ipv4_addr; size 65535; flags dynamic; }",
        FlowLimit::Absent => "",
    };
    let key = "ipv4_addr . ipv4_addr . inet_proto . inet_service";
    let recorded = format!("size {RECORDS}; flags dynamic,timeout; timeout {RECORDS_FOR};");
    format!(
        r#"table inet {TABLE} {{
  set {OPEN} {{ type ifname; }}
  set {NAMED} {{ type ifname; }}
  set {OWN} {{ type ifname . ipv4_addr; }}
  set {HOST} {{ type ipv4_addr; }}
  set never {{ type ipv4_addr; flags interval; auto-merge; }}
  set nobody {{ type ipv4_addr; flags interval; auto-merge; }}
  set {FRESH} {{ type ipv4_addr . ipv4_addr; size {FRESH_MAX}; flags timeout; }}
  map {LISTED} {{ type ifname : verdict; }}
  map {BUDGETS} {{ type ifname : verdict; }}
  set {LIMITED} {{ type ipv4_addr; }}
  {flows}
  set {SENT} {{ type {key}; {recorded} }}
  set {CROWD} {{ type ipv4_addr; size 65535; flags dynamic,timeout; timeout 10s; }}
  set {MORE} {{ type ipv4_addr; size 65535; flags dynamic,timeout; timeout {RECORDS_FOR}; }}
  set {MORE_GOT} {{ type ipv4_addr; size 65535; flags dynamic,timeout; timeout {RECORDS_FOR}; }}
  set {GOT} {{ type {key}; {recorded} }}
  set {REFUSED} {{ type {key} . mark; {recorded} }}
  set {ASKERS} {{ type ipv4_addr; size 65535; flags dynamic,timeout; timeout 10s; }}
  set {NOISY} {{ type ipv4_addr; size 65535; flags dynamic,timeout; timeout 10s; }}
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
}}
"#
    )
}

fn chains(limit: FlowLimit) -> String {
    let (host, closed, sandbox) = (Why::Host.text(), Why::Closed.text(), Why::Sandbox.text());
    let (never_why, udp_to_name, no_service) =
        (Why::Never.text(), Why::UdpToName.text(), Why::NoService.text());
    let (flows, connections) = match limit {
        FlowLimit::Counted => (
            format!(
                "ct state new add @flows {{ ip saddr ct count over {FLOWS_PER_SANDBOX} }} {}",
                Why::Connections.text()
            ),
            format!("ct state new ip saddr @{LIMITED} {}", Why::Connections.text()),
        ),
        FlowLimit::Absent => (String::new(), String::new()),
    };
    let (record_sent, record_got) = (record(SENT, "ip saddr . ip daddr", "th dport", ""), record_back());
    let record_refused = record(REFUSED, "ip saddr . ip daddr", "th dport", " . meta mark");
    let unknown =
        format!("meta l4proto != icmp ip saddr . ip daddr . meta l4proto . th dport != @{SENT} ct state established,related,new");
    let unknown_back = format!("meta l4proto != icmp ip daddr . ip saddr . meta l4proto . th sport != @{SENT}");
    // What the router refuses to itself is told over its loopback.
    // Private ranges are reached where a policy names them; the router's own sockets are the gate's, and it has looked.
    let (unreached, nobody) = (elements(&never(Ranges4::default())), elements(&never(Ranges4::all())));
    format!(
        r#"table inet {TABLE} {{
  set never {{ type ipv4_addr; flags interval; auto-merge; elements = {{ {unreached} }} }}
  set nobody {{ type ipv4_addr; flags interval; auto-merge; elements = {{ {nobody} }} }}
  chain guard {{
    iifname "{UPLINK}" meta nfproto ipv4 accept
    iifname . ip saddr @{OWN} accept
    iifname "lo" ip protocol icmp accept
  }}
  chain names {{
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
  chain forward {{
    iifname "{UPLINK}" goto back
    oifname != "{UPLINK}" {sandbox}
    ip daddr @{HOST} {host}
    meta l4proto udp ip saddr . ip daddr @{FRESH} {udp_to_name}
    iifname @{OPEN} goto public
    iifname vmap @{LISTED}
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
    iifname vmap @{BUDGETS}
    {unknown} add @{CROWD} {{ ip saddr limit rate over {DESTINATIONS} }} update @{MORE} {{ ip saddr counter }} accept
    {record_sent}
    {unknown} update @{MORE} {{ ip saddr counter }}
    meta nfproto ipv4 ct state established,related,new accept
  }}
  chain back {{
    ct state != {{ established, related }} drop
    oifname @{OPEN} goto enter
    oifname vmap @{LISTED}
    drop
  }}
  chain enter {{
    oifname vmap @{BUDGETS}
    {unknown_back} update @{MORE_GOT} {{ ip daddr counter }} accept
    {record_got}
    accept
  }}
  chain {REFUSE} {{
    iifname "{UPLINK}" drop
    add @{NOISY} {{ ip saddr limit rate over {REFUSALS} }} goto answer
    {record_refused}
    goto answer
  }}
  chain answer {{
    meta l4proto tcp ct state established reject with tcp reset
    reject with icmpx admin-prohibited
  }}
  chain output {{
    oifname != "{UPLINK}" accept
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

/// Two rules that count a packet. Where ports would be, ICMP has a checksum: its type and code are taken from the flow.
fn record(set: &str, addresses: &str, port: &str, more: &str) -> String {
    format!(
        "meta l4proto icmp update @{set} {{ ct original ip saddr . ct original ip daddr . meta l4proto . \
         ct original proto-dst{more} counter }}\n    \
         meta l4proto != icmp update @{set} {{ {addresses} . meta l4proto . {port}{more} counter }}"
    )
}

fn record_back() -> String {
    record(GOT, "ip daddr . ip saddr", "th sport", "")
}

fn elements(ranges: &Ranges4) -> String {
    let ranges = ranges.iter().map(|(first, last)| {
        if first == last {
            Ipv4Addr::from(first).to_string()
        } else {
            format!("{}-{}", Ipv4Addr::from(first), Ipv4Addr::from(last))
        }
    });
    ranges.collect::<Vec<_>>().join(", ")
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
