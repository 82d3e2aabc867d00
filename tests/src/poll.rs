//! Waiting for something to become true, with a deadline. The only place where a test sleeps.

use std::time::{Duration, Instant};

/// LIMIT: what a loaded machine with two cores may need for anything that takes milliseconds when it is quiet. Waiting ends as
/// soon as the condition holds, so a long limit costs nothing but the time of a test that fails.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Polls until `done` answers something; fails with `what` after [`PATIENCE`].
pub async fn until<T>(what: &str, done: impl AsyncFnMut() -> Option<T>) -> T {
    until_within(PATIENCE, what, done).await
}

/// Polls until `done` answers something; fails with `what` after `limit`.
pub async fn until_within<T>(limit: Duration, what: &str, mut done: impl AsyncFnMut() -> Option<T>) -> T {
    let started = Instant::now();
    let mut pause = Duration::from_millis(2);
    loop {
        if let Some(answer) = done().await {
            return answer;
        }
        assert!(started.elapsed() < limit, "{what}: not after {limit:?}");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}
