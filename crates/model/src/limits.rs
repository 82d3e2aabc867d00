//! Resource limits of a sandbox, and the checks of requested limits.

use serde::{Deserialize, Serialize};

/// Resolved limits of one sandbox; every field is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Thousandths of a core.
    pub cpu_milli: u32,
    /// Memory of all processes and tmpfs files together.
    pub memory_mib: u32,
    /// MiB in the sandbox's own layer.
    pub disk_mib: u32,
    /// Processes and threads.
    pub pids: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { cpu_milli: 1_000, memory_mib: 512, disk_mib: 2_048, pids: 512 }
    }
}

/// Requested limits; a missing one gets the default.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LimitsAsk {
    /// Cores, fractions allowed.
    pub cpu: Option<f64>,
    /// MiB.
    pub memory_mib: Option<i64>,
    /// MiB.
    pub disk_mib: Option<i64>,
    /// Processes and threads.
    pub pids: Option<i64>,
}

/// A requested limit that is out of range.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{field} {}", self.problem())]
pub struct BadLimit {
    /// The name of the field in the API.
    pub field: &'static str,
    /// The requested value.
    pub got: f64,
    /// The smallest allowed.
    pub min: f64,
    /// The largest allowed.
    pub max: f64,
}

impl BadLimit {
    /// What is wrong with the field.
    #[must_use]
    pub fn problem(&self) -> String {
        format!("must be between {} and {}, not {}", self.min, self.max, self.got)
    }
}

// LIMIT: below 16 MiB the agent itself does not start; the maxima keep sums of quotas far from overflow.
const CPU: (f64, f64) = (0.01, 512.0);
const MEMORY_MIB: (f64, f64) = (16.0, 4_194_304.0);
const DISK_MIB: (f64, f64) = (4.0, 16_777_216.0);
const PIDS: (f64, f64) = (4.0, 4_194_304.0);

impl LimitsAsk {
    /// Checks each requested limit and fills the rest from `base`.
    pub fn resolve(self, base: Limits) -> Result<Limits, BadLimit> {
        #[expect(clippy::cast_precision_loss, reason = "compared with bounds far below 2^53")]
        let int = |field, value: Option<i64>, range, base| match value {
            None => Ok(base),
            Some(v) => within(field, v as f64, range).map(to_u32),
        };
        let cpu_milli = match self.cpu {
            None => base.cpu_milli,
            Some(cpu) => to_u32(within("cpu", cpu, CPU)? * 1_000.0),
        };
        Ok(Limits {
            cpu_milli,
            memory_mib: int("memory_mib", self.memory_mib, MEMORY_MIB, base.memory_mib)?,
            disk_mib: int("disk_mib", self.disk_mib, DISK_MIB, base.disk_mib)?,
            pids: int("pids", self.pids, PIDS, base.pids)?,
        })
    }
}

fn within(field: &'static str, got: f64, (min, max): (f64, f64)) -> Result<f64, BadLimit> {
    // In this form NaN is refused too.
    if got >= min && got <= max { Ok(got) } else { Err(BadLimit { field, got, min, max }) }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded by `within` before")]
fn to_u32(value: f64) -> u32 {
    value.round() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_wishes_take_the_defaults() {
        assert_eq!(LimitsAsk::default().resolve(Limits::default()), Ok(Limits::default()));
    }

    #[test]
    fn absurd_limits_are_refused_by_name() {
        for (ask, field) in [
            (LimitsAsk { cpu: Some(-1.0), ..Default::default() }, "cpu"),
            (LimitsAsk { cpu: Some(f64::NAN), ..Default::default() }, "cpu"),
            (LimitsAsk { cpu: Some(f64::INFINITY), ..Default::default() }, "cpu"),
            (LimitsAsk { memory_mib: Some(0), ..Default::default() }, "memory_mib"),
            (LimitsAsk { memory_mib: Some(i64::MAX), ..Default::default() }, "memory_mib"),
            (LimitsAsk { disk_mib: Some(-5), ..Default::default() }, "disk_mib"),
            (LimitsAsk { pids: Some(i64::MIN), ..Default::default() }, "pids"),
        ] {
            assert_eq!(ask.resolve(Limits::default()).expect_err("absurd").field, field);
        }
    }
}
