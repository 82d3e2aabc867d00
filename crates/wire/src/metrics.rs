//! What a sandbox uses.

use atoll_model::Limits;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Resource use of a sandbox at one time.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Sample {
    #[schema(format = DateTime)]
    pub at: String,
    /// CPU time since the sandbox started.
    pub cpu_us: u64,
    /// One core is 100.
    pub cpu_pct: f64,
    /// Memory charged to it, page cache included.
    pub memory_bytes: u64,
    /// Part of it that is page cache and can be dropped.
    pub cache_bytes: u64,
    /// Processes and threads.
    pub pids: u32,
    /// Bytes in its own layer; null: its provider does not measure it.
    pub disk_bytes: Option<u64>,
    /// Bytes that it received over the network since it started, loopback excepted; null: its provider does not measure it.
    #[serde(default)]
    pub received_bytes: Option<u64>,
    /// Bytes that it sent over the network since it started, loopback excepted; null: its provider does not measure it.
    #[serde(default)]
    pub sent_bytes: Option<u64>,
    pub limits: SampleLimits,
}

/// Limits of the sandbox.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SampleLimits {
    pub cpu: f64,
    pub memory_mib: u32,
    pub disk_mib: u32,
    pub pids: u32,
}

impl From<Limits> for SampleLimits {
    fn from(limits: Limits) -> Self {
        Self {
            cpu: f64::from(limits.cpu_milli) / 1_000.0,
            memory_mib: limits.memory_mib,
            disk_mib: limits.disk_mib,
            pids: limits.pids,
        }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SampleList {
    /// Oldest first.
    pub items: Vec<Sample>,
}
