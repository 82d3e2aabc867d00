//! A rate limit: a burst at once, then so many per second. It never waits; the answer is yes or no.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// The maximal rate of an event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    pub(crate) per_second: u32,
    pub(crate) burst: u32,
}

/// Counts against a [`Rate`].
#[derive(Debug)]
pub(crate) struct Bucket {
    rate: Rate,
    level: Mutex<(f64, Instant)>,
}

impl Bucket {
    pub(crate) fn new(rate: Rate) -> Self {
        Self { rate, level: Mutex::new((f64::from(rate.burst), Instant::now())) }
    }

    /// Takes a token, if one is available.
    pub(crate) fn take(&self) -> bool {
        self.take_at(Instant::now())
    }

    fn take_at(&self, now: Instant) -> bool {
        let mut level = self.level.lock().unwrap_or_else(PoisonError::into_inner);
        let grown = now.saturating_duration_since(level.1).as_secs_f64() * f64::from(self.rate.per_second);
        let left = (level.0 + grown).min(f64::from(self.rate.burst));
        *level = (if left >= 1.0 { left - 1.0 } else { left }, now.max(level.1));
        left >= 1.0
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_burst_passes_then_the_rate() {
        let bucket = Bucket::new(Rate { per_second: 10, burst: 3 });
        let start = Instant::now();
        let taken = |after_ms| bucket.take_at(start + Duration::from_millis(after_ms));
        assert_eq!([0, 0, 0, 0].map(taken), [true, true, true, false]);
        assert_eq!([150, 150, 300].map(taken), [true, false, true]);
        assert_eq!([60_000; 5].map(taken), [true, true, true, false, false]);
    }
}
