//! The rule that decided about a flow, as text.

use std::net::IpAddr;

use atoll_model::policy::egress::ranges::{class_of_ip, never6};
use atoll_model::policy::egress::{DirectMode, Dns, Egress};
use atoll_model::{EgressRecord, EgressVerdict, EgressWhat};

use super::{Destination, Why};

/// The verdict about a destination and the rule behind it.
pub(super) fn of(egress: &Egress, destination: &Destination) -> (EgressVerdict, String) {
    if destination.mark == 0 {
        return (EgressVerdict::Allowed, allowed(egress, destination).to_owned());
    }
    let rule = match destination.why() {
        Some(Why::Host) => "never: host".to_owned(),
        Some(Why::Never | Why::Sandbox | Why::NoService) => {
            format!("never: {}", class_of_ip(destination.address).unwrap_or("not public"))
        }
        Some(Why::UdpToName) => "udp to a name".to_owned(),
        Some(Why::Connections) => "limits: connections".to_owned(),
        Some(Why::Budget) => "limits: bytes_per_destination".to_owned(),
        Some(Why::Proxied) => "egress proxy: only tcp is carried".to_owned(),
        Some(Why::Closed) | None => closed(egress, destination),
    };
    (EgressVerdict::Refused, rule)
}

/// A policy without names allows everything that it does not deny.
fn allowed(egress: &Egress, destination: &Destination) -> &'static str {
    if destination.address.is_ipv6() {
        return "allow_cidrs";
    }
    if egress.direct_mode == DirectMode::Listed && !egress.names.is_empty() {
        "allow_cidrs"
    } else {
        "allow-all"
    }
}

fn closed(egress: &Egress, destination: &Destination) -> String {
    if egress.direct_mode == DirectMode::Closed && egress.dns == Dns::Closed && egress.names.is_empty() {
        return "deny-all".to_owned();
    }
    let is_shut = match destination.address {
        IpAddr::V4(v4) => egress.shut.contains(v4.into()),
        IpAddr::V6(v6) => never6().contains(v6.into()),
    };
    if !is_shut {
        return "not in allow_cidrs".to_owned();
    }
    match class_of_ip(destination.address) {
        Some(class) => format!("never: {class}"),
        None => "deny_cidrs".to_owned(),
    }
}

/// One record for destinations that are too many to be recorded separately.
pub(super) fn of_many(at_ms: i64, verdict: EgressVerdict) -> EgressRecord {
    EgressRecord {
        at_ms,
        what: EgressWhat::Flow,
        verdict,
        rule: "many more destinations".to_owned(),
        name: None,
        address: None,
        port: None,
        protocol: None,
        sent: 0,
        received: 0,
    }
}

/// TCP, DCCP, UDP, SCTP and UDP-Lite.
pub(super) fn has_ports(protocol: u8) -> bool {
    matches!(protocol, 6 | 17 | 33 | 132 | 136)
}

pub(super) fn protocol(number: u8) -> String {
    match number {
        1 => "icmp".to_owned(),
        6 => "tcp".to_owned(),
        17 => "udp".to_owned(),
        58 => "icmpv6".to_owned(),
        other => other.to_string(),
    }
}
