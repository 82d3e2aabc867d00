//! An official SDK in a process of its own, timed by a small program.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::stats::Samples;

/// Milliseconds by row.
pub(crate) struct Timed(Value);

impl Timed {
    /// Runs a Python program that times an SDK, so many rounds of it, with these variables.
    pub(crate) fn take(
        python: &Path,
        program: &str,
        place: &Path,
        rounds: u32,
        env: &[(&str, &str)],
    ) -> Result<Self> {
        Self::take_file(python, "probe.py", program, place, rounds, env)
    }

    /// The same with any interpreter; `name` is what the program's file is called.
    pub(crate) fn take_file(
        interpreter: &Path,
        name: &str,
        program: &str,
        place: &Path,
        rounds: u32,
        env: &[(&str, &str)],
    ) -> Result<Self> {
        let file = place.join(name);
        std::fs::write(&file, program)?;
        let ran = Command::new(interpreter)
            .arg(&file)
            .arg(rounds.to_string())
            .envs(env.iter().copied())
            .output()
            .context("cannot run the interpreter of the SDK")?;
        if !ran.status.success() {
            bail!("the probe failed: {}", String::from_utf8_lossy(&ran.stderr));
        }
        Ok(Self(serde_json::from_slice(&ran.stdout).context("the probe's figures")?))
    }

    pub(crate) fn samples(&self, row: &str) -> Samples {
        let mut samples = Samples::default();
        for ms in self.0[row].as_array().into_iter().flatten().filter_map(Value::as_f64) {
            samples.add(Duration::from_secs_f64(ms / 1_000.0));
        }
        samples
    }
}

/// The python that has an SDK, if it can be had.
pub(crate) fn python(script: &str) -> Option<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts").join(script);
    let got = Command::new(script).arg("python").stderr(Stdio::inherit()).output().ok()?;
    got.status.success().then(|| String::from_utf8_lossy(&got.stdout).trim().into())
}
