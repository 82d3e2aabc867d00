//! The use of an object, from the measurements of its vendor.

use std::sync::{Mutex, PoisonError};

use atoll_provider::InstanceUsage;
use serde::Deserialize;
use tokio::time::Instant;

/// One measurement, in the names that E2B and Daytona share.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Measurement {
    /// Cores.
    pub cpu_count: u32,
    /// Of all cores together, in percent.
    pub cpu_used_pct: f64,
    /// Memory in use, in bytes.
    pub mem_used: u64,
    /// Of that, page cache.
    pub mem_cache: u64,
    /// Disk in use, in bytes.
    pub disk_used: u64,
}

/// What was measured last.
#[derive(Debug, Default)]
pub struct UsageMeter(Mutex<(InstanceUsage, Option<Instant>)>);

impl UsageMeter {
    /// The use at the last measurement.
    #[must_use]
    pub fn last(&self) -> InstanceUsage {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    /// Adds a measurement. A vendor tells the share of the cores in use, so the CPU time since the measurement before is an
    /// estimate.
    pub fn add(&self, now: Measurement) -> InstanceUsage {
        let mut meter = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (usage, at) = &mut *meter;
        let since = at.map(|at| at.elapsed()).unwrap_or_default();
        let cores = now.cpu_used_pct.max(0.0) / 100.0 * f64::from(now.cpu_count.max(1));
        let busy = since.mul_f64(cores.min(1_024.0));
        *usage = InstanceUsage {
            cpu_us: usage.cpu_us.saturating_add(u64::try_from(busy.as_micros()).unwrap_or(0)),
            memory_bytes: now.mem_used,
            cache_bytes: now.mem_cache,
            disk_bytes: Some(now.disk_used),
            ..InstanceUsage::default()
        };
        *at = Some(Instant::now());
        *usage
    }
}
