//! Timestamps: wall time for people, boot time for decisions.
//!
//! Within one boot the monotonic part decides, so a jump of the wall clock triggers nothing early. Across boots only
//! wall time is available.

use serde::{Deserialize, Serialize};

/// A point in time on both clocks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timestamp {
    /// Milliseconds since the Unix epoch.
    pub wall_ms: i64,
    /// The boot that `boot_ms` belongs to (`/proc/sys/kernel/random/boot_id`).
    pub boot_id: String,
    /// Milliseconds of CLOCK_BOOTTIME.
    pub boot_ms: i64,
}

impl Timestamp {
    /// The time `ms` later, on both clocks.
    #[must_use]
    pub fn plus_ms(&self, ms: i64) -> Self {
        Self {
            wall_ms: self.wall_ms.saturating_add(ms),
            boot_id: self.boot_id.clone(),
            boot_ms: self.boot_ms.saturating_add(ms),
        }
    }

    /// Milliseconds from `now` until this time; negative when it has passed.
    #[must_use]
    pub fn ms_after(&self, now: &Timestamp) -> i64 {
        if self.boot_id == now.boot_id {
            self.boot_ms.saturating_sub(now.boot_ms)
        } else {
            self.wall_ms.saturating_sub(now.wall_ms)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(wall_ms: i64, boot: &str, boot_ms: i64) -> Timestamp {
        Timestamp { wall_ms, boot_id: boot.to_owned(), boot_ms }
    }

    #[test]
    fn a_jump_of_the_wall_clock_changes_nothing_within_a_boot() {
        let due = moment(1_000, "a", 1_000).plus_ms(60_000);
        assert_eq!(due.ms_after(&moment(90_000_000, "a", 2_000)), 59_000);
    }

    #[test]
    fn after_a_reboot_wall_time_decides() {
        let due = moment(1_000, "a", 900_000).plus_ms(60_000);
        assert_eq!(due.ms_after(&moment(51_000, "b", 5)), 10_000);
    }
}
