//! The settings that the host sends to a new agent (`POST /init`), its answer, and `GET /metrics`.
//!
//! Unknown fields are accepted on both sides: agents live as long as their sandbox and may talk to newer hosts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Body of `POST /init`. Missing fields stay unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct InitRequest {
    /// Replaces the sandbox's environment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub env_vars: Option<BTreeMap<String, String>>,
    /// Replaces the agent token (after restore and fork).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_token: Option<String>,
    /// The default user of requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_user: Option<String>,
    /// The default working directory of processes; empty: the user's home.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_workdir: Option<String>,
    /// The sandbox's host name, to be added to its `/etc/hosts`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// The totals that `GET /metrics` reports, because `/proc` and statfs show the host's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<AgentLimits>,
}

/// The sandbox's limits, as far as its own metrics show them. 0: unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AgentLimits {
    /// CPUs, rounded up.
    pub cpu_count: u32,
    /// Memory limit in bytes.
    pub memory_bytes: u64,
    /// Disk quota in bytes.
    pub disk_bytes: u64,
    /// Disk in use in bytes, if the host has a better value than statfs.
    pub disk_used_bytes: u64,
}

/// Answer to `POST /init` with the [`crate::INIT_HEADER`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct InitReply {
    /// Version of the agent's crate.
    pub agent_version: String,
    /// The envd version that it emulates.
    pub envd_version: String,
    /// Protocol generation.
    pub generation: u32,
    /// Its features beyond those of its generation.
    pub features: Vec<String>,
}

/// Body of `GET /hold`: how long a program in the sandbox holds it awake.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldStatus {
    /// Seconds from now; 0: no hold.
    pub held_s: u64,
}

/// Names of features that a host may check for.
#[derive(Debug, Clone, Copy)]
pub struct Features;

impl Features {
    /// All features of the agent in this source tree.
    pub const ALL: &'static [&'static str] = &[
        "attach-tail",
        "logs",
        "byte-paths",
        "range",
        "signal-any",
        "token-rotation",
        "attach-from",
        "hold",
        "search",
        "archive",
    ];
}

/// Body of `GET /metrics`, with envd's names.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Metrics {
    /// Unix seconds.
    pub ts: i64,
    /// CPUs the sandbox may use.
    pub cpu_count: u32,
    /// CPU use since the previous call; 100 is one CPU.
    pub cpu_used_pct: f32,
    /// Bytes.
    pub mem_total: u64,
    /// Bytes.
    pub mem_used: u64,
    /// Bytes.
    pub mem_cache: u64,
    /// MiB.
    pub mem_total_mib: u64,
    /// MiB.
    pub mem_used_mib: u64,
    /// Bytes.
    pub disk_used: u64,
    /// Bytes.
    pub disk_total: u64,
}
