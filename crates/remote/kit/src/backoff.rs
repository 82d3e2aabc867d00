//! Waits between attempts: they double, and half of each is random, so that many callers do not come back at once.

use std::time::Duration;

/// LIMIT: a service that asks for more is not waited for.
const LONGEST: Duration = Duration::from_secs(10);

/// The waits of one caller.
#[derive(Debug)]
pub struct Backoff {
    next: Duration,
}

impl Backoff {
    /// Begins with waits of about `first`.
    #[must_use]
    pub const fn new(first: Duration) -> Self {
        Self { next: first }
    }

    /// The next wait; at least what the service asked for.
    pub fn wait(&mut self, asked: Option<Duration>) -> Duration {
        let whole = self.next.max(asked.unwrap_or_default()).min(LONGEST);
        self.next = (self.next * 2).min(LONGEST);
        match asked {
            Some(asked) => asked.min(LONGEST) + whole.mul_f64(random_part() / 4.0),
            None => whole.mul_f64(0.5 + random_part() / 2.0),
        }
    }
}

/// From 0 to 1.
fn random_part() -> f64 {
    let mut bytes = [0; 4];
    // Without random bytes the waits are not spread.
    let _ = getrandom::fill(&mut bytes);
    f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_are_spread_and_end_at_the_longest() {
        let mut backoff = Backoff::new(Duration::from_millis(100));
        for bound_ms in [100, 200, 400, 800] {
            let wait = backoff.wait(None);
            assert!(wait.as_millis() >= bound_ms / 2 && wait.as_millis() <= bound_ms, "{wait:?}");
        }
        for _ in 0..20 {
            assert!(backoff.wait(None) <= LONGEST);
        }
    }

    #[test]
    fn what_a_service_asks_for_is_waited_for() {
        let asked = Duration::from_secs(2);
        let wait = Backoff::new(Duration::from_millis(100)).wait(Some(asked));
        assert!(wait >= asked && wait <= asked * 2, "{wait:?}");
        let wait = Backoff::new(Duration::from_millis(100)).wait(Some(Duration::from_secs(3_600)));
        assert!(wait <= LONGEST * 2, "{wait:?}");
    }
}
