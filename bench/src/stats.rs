//! Samples and their percentiles. Knows nothing of what was measured.

use std::time::Duration;

/// Durations of one row, with the number of tries that failed.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    ms: Vec<f64>,
    failures: usize,
}

impl Samples {
    pub(crate) fn add(&mut self, took: Duration) {
        self.ms.push(took.as_secs_f64() * 1_000.0);
    }

    pub(crate) fn fail(&mut self) {
        self.failures += 1;
    }

    pub(crate) fn count(&self) -> usize {
        self.ms.len()
    }

    pub(crate) fn failures(&self) -> usize {
        self.failures
    }

    /// The `p`-th percentile (nearest rank) in milliseconds; NaN when there is no sample.
    pub(crate) fn percentile(&self, p: usize) -> f64 {
        if self.ms.is_empty() {
            return f64::NAN;
        }
        let mut sorted = self.ms.clone();
        sorted.sort_by(f64::total_cmp);
        let rank = (sorted.len() * p).div_ceil(100).clamp(1, sorted.len());
        sorted[rank - 1]
    }

    pub(crate) fn p50(&self) -> f64 {
        self.percentile(50)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_taken_by_nearest_rank() {
        let mut samples = Samples::default();
        (1..=100).rev().for_each(|ms| samples.add(Duration::from_millis(ms)));
        assert_eq!((samples.p50(), samples.percentile(95), samples.percentile(99)), (50.0, 95.0, 99.0));
        assert!(Samples::default().p50().is_nan());
    }
}
