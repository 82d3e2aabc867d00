//! One record of the egress log: the destination and the decision.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// The subject of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EgressWhat {
    /// A DNS query.
    Dns,
    /// A TLS connection through the gate.
    Tls,
    /// A plain HTTP request through the gate.
    Http,
    /// Packets that pass or are refused without the gate.
    Flow,
    /// Records are missing here, because they came faster than they were read.
    Lost,
}

/// The decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EgressVerdict {
    /// The traffic passed.
    Allowed,
    /// The traffic was refused.
    Refused,
    /// The traffic was allowed, but failed: the name does not exist, or there was no answer.
    Failed,
}

/// An egress decision. Contains no content and no header.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressRecord {
    /// The time, in milliseconds since 1970.
    pub at_ms: i64,
    pub what: EgressWhat,
    pub verdict: EgressVerdict,
    /// The reason: the list entry or the rule, such as `allow_domains: *.example.com`, `never: private`, `sni differs`.
    pub rule: String,
    /// The requested name, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The address, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// The port, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// `tcp`, `udp`, `icmp` or a number; for flows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// Bytes out of the sandbox.
    pub sent: u64,
    /// Bytes into it.
    pub received: u64,
}
