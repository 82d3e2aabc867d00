//! The circuit of one vendor: after several failures in a row calls are refused at once, and one call from time to time finds out
//! whether the vendor answers again.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// So many failures without a success between them, over at least this time, suspend the calls.
const FAILURES: u32 = 5;
const FAILING_FOR: Duration = Duration::from_secs(3);
/// The first and the longest suspension.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub(crate) struct Circuit(Mutex<CircuitState>);

#[derive(Debug, Default)]
struct CircuitState {
    failures: u32,
    failing_since: Option<Instant>,
    suspended: Option<Suspension>,
}

#[derive(Debug, Clone, Copy)]
struct Suspension {
    until: Instant,
    lasts: Duration,
}

impl Circuit {
    fn state(&self) -> MutexGuard<'_, CircuitState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a call may be made now; if not, how long calls are still suspended.
    pub(crate) fn admit(&self) -> Result<(), Duration> {
        let mut state = self.state();
        let Some(suspension) = &mut state.suspended else { return Ok(()) };
        let now = Instant::now();
        if suspension.until > now {
            return Err(suspension.until - now);
        }
        // This call finds out; the others wait for its outcome.
        suspension.until = now + suspension.lasts;
        Ok(())
    }

    pub(crate) fn succeed(&self) {
        *self.state() = CircuitState::default();
    }

    pub(crate) fn fail(&self) {
        let now = Instant::now();
        let mut state = self.state();
        state.failures = state.failures.saturating_add(1);
        let since = *state.failing_since.get_or_insert(now);
        let lasts = match state.suspended {
            Some(before) => (before.lasts * 2).min(LONGEST),
            None if state.failures >= FAILURES && now - since >= FAILING_FOR => FIRST,
            None => return,
        };
        state.suspended = Some(Suspension { until: now + lasts, lasts });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn failing() -> Circuit {
        let circuit = Circuit::default();
        for _ in 0..FAILURES {
            assert!(circuit.admit().is_ok());
            circuit.fail();
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        circuit
    }

    #[tokio::test(start_paused = true)]
    async fn calls_are_suspended_after_failures_and_one_call_tries_again() {
        let circuit = failing().await;
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(circuit.admit().is_ok(), "one call tries");
        assert!(circuit.admit().is_err(), "the others do not");
        circuit.fail();
        assert!(circuit.admit().unwrap_err() > FIRST, "the next suspension is longer");
        tokio::time::advance(LONGEST).await;
        assert!(circuit.admit().is_ok());
        circuit.succeed();
        assert!(circuit.admit().is_ok() && circuit.admit().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_of_failures_between_successes_suspends_nothing() {
        let circuit = Circuit::default();
        for _ in 0..100 {
            circuit.fail();
        }
        assert!(circuit.admit().is_ok(), "they came within one moment");
        circuit.succeed();
        tokio::time::advance(FAILING_FOR * 2).await;
        circuit.fail();
        assert!(circuit.admit().is_ok());
    }
}
