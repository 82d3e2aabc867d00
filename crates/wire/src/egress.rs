//! The log of what a sandbox wanted to reach and what was decided.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::flag::Flag;
pub use crate::words::{EgressVerdict, EgressWhat};

/// A decision about what leaves a sandbox. Holds no content and no header.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Egress {
    #[schema(format = DateTime)]
    pub at: String,
    pub what: EgressWhat,
    pub verdict: EgressVerdict,
    /// What decided: the entry of a list or a rule, such as `allow_domains: *.example.com` or `never: private`.
    pub rule: String,
    /// The name asked for, where one is known.
    pub name: Option<String>,
    pub address: Option<String>,
    pub port: Option<u16>,
    /// `tcp`, `udp`, `icmp` or a number.
    pub protocol: Option<String>,
    /// Bytes out of the sandbox.
    pub sent: u64,
    /// Bytes into it.
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
    /// The newest so many, 100 unless said otherwise and 10000 at most.
    #[param(minimum = 1)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Only later ones: a moment such as `2026-01-02T03:04:05.678Z`, or the `at` of a record.
    #[param(format = DateTime)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Only these.
    #[param(inline)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<EgressVerdict>,
    /// `1`: server-sent events; those recorded first, then live.
    #[param(value_type = Option<String>, pattern = "^(0|1|true|false)$")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub follow: Option<Flag>,
}
