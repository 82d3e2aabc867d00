//! The log of what a sandbox wanted to reach and what was decided.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::flag::Flag;
pub use crate::words::{EgressVerdict, EgressWhat};

/// A decision about outbound traffic of a sandbox. Contains no content and no header.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Egress {
    #[schema(format = DateTime)]
    pub at: String,
    pub what: EgressWhat,
    pub verdict: EgressVerdict,
    /// Entry of a list or rule that decided, such as `allow_domains: *.example.com` or `never: private`.
    pub rule: String,
    /// Requested name, if known.
    pub name: Option<String>,
    pub address: Option<String>,
    pub port: Option<u16>,
    /// `tcp`, `udp`, `icmp` or a number.
    pub protocol: Option<String>,
    /// Bytes sent by the sandbox.
    pub sent: u64,
    /// Bytes received by the sandbox.
    pub received: u64,
}

/// Decisions, newest last.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct EgressList {
    pub items: Vec<Egress>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct LogQuery {
    /// Number of newest records, at most 10000. Default 100.
    #[param(minimum = 1)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Only later records: a time such as `2026-01-02T03:04:05.678Z`, or the `at` of a record.
    #[param(format = DateTime)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Only records with this verdict.
    #[param(inline)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<EgressVerdict>,
    /// `1`: server-sent events, first the stored records, then new ones.
    #[param(value_type = Option<String>, pattern = "^(0|1|true|false)$")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub follow: Option<Flag>,
}
