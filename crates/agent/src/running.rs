//! Time that counts only while the sandbox runs: a pause must not use up a deadline.
//!
//! The kernel's clocks continue while the sandbox is frozen. So a long wait consists of short slices: at most one slice
//! passes during a freeze. (A checkpoint needs nothing: CRIU restores into a time namespace in which the clocks have
//! not jumped.)

use std::time::Duration;

/// The most that a pause can take from a deadline.
pub(crate) const SLICE: Duration = Duration::from_secs(1);

/// Sleeps for so much running time, and reports the rest before each slice.
pub(crate) async fn sleep(limit: Duration, mut left_is: impl FnMut(Duration)) {
    let mut left = limit;
    while !left.is_zero() {
        left_is(left);
        let slice = left.min(SLICE);
        tokio::time::sleep(slice).await;
        left -= slice;
    }
}

/// Runs the work, unless so much running time passes before it is done.
pub(crate) async fn within<T>(limit: Duration, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        done = work => Some(done),
        () = sleep(limit, |_| ()) => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use tokio::time::{Instant, advance};

    #[test]
    fn a_freeze_costs_a_slice_at_most() {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let begun = Instant::now();
            let frozen = Duration::from_secs(3600);
            let waiting = tokio::spawn(within(Duration::from_secs(10), std::future::pending::<()>()));
            tokio::time::sleep(Duration::from_millis(2500)).await;
            // All clocks jump at once, as for a thawed process.
            advance(frozen).await;
            assert_eq!(waiting.await.unwrap(), None);
            let ran = begun.elapsed() - frozen;
            assert!(ran > Duration::from_secs(9) && ran <= Duration::from_secs(10), "{ran:?}");
        });
    }
}
