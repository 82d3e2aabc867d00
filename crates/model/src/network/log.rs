//! One line of the egress log: who wanted to reach what, and what was decided.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// What was decided about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EgressWhat {
    /// A question to the name service.
    Dns,
    /// A TLS connection through the gate.
    Tls,
    /// A plain HTTP request through the gate.
    Http,
    /// Packets that pass or are refused without the gate.
    Flow,
    /// Records of others that came faster than they were read are missing here.
    Lost,
}

/// What was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EgressVerdict {
    /// It passed.
    Allowed,
    /// It did not.
    Refused,
    /// It was allowed, and could not be done: no such name, nobody answered.
    Failed,
}

/// A decision about what leaves a sandbox. Holds no content and no header.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressRecord {
    /// When, in milliseconds since 1970.
    pub at_ms: i64,
    /// What was decided about.
    pub what: EgressWhat,
    /// What was decided.
    pub verdict: EgressVerdict,
    /// Why: the list entry or the rule that decided, such as `allow_domains: *.example.com`, `never: private`, `sni differs`.
    pub rule: String,
    /// The name asked for, where one is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The address, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// The port, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// `tcp`, `udp`, `icmp` or a number; of flows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// Bytes out of the sandbox.
    pub sent: u64,
    /// Bytes into it.
    pub received: u64,
}
