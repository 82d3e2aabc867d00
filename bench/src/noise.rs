//! How quiet the machine is: the yardstick of every absolute bar.

use std::process::Command;
use std::time::Instant;

use anyhow::Result;

use crate::report::Report;
use crate::stats::Samples;

/// Times spawn + wait of `/bin/true`; above [`QUIET_MS`] the run is called noisy and the bars scale with it.
pub(crate) fn measure(report: &mut Report) -> Result<()> {
    let mut samples = Samples::default();
    for _ in 0..200 {
        let begin = Instant::now();
        Command::new("/bin/true").status()?;
        samples.add(begin.elapsed());
    }
    report.noise_ms = samples.p50();
    report.row("spawn + wait of /bin/true (the machine)", &samples, None);
    Ok(())
}

/// At or below this the machine counts as quiet.
pub(crate) const QUIET_MS: f64 = 1.2;
/// What a quiet machine shows.
pub(crate) const BASE_MS: f64 = 0.9;
