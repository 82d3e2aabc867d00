//! Measures the duration of steps, for `/metrics` and for the benchmark's breakdown.

use tokio::time::Instant;

const SECONDS: &str = "atoll_step_seconds";

/// Runs `work` and records how long it took under the name of its step.
pub(crate) async fn timed<T>(step: &'static str, work: impl Future<Output = T>) -> T {
    let begin = Instant::now();
    let done = work.await;
    metrics::histogram!(SECONDS, "step" => step).record(begin.elapsed().as_secs_f64());
    done
}
