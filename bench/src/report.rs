//! Collects rows and writes them as a page. A bar that is missed says by how much.

use std::fmt::Write as _;

use crate::noise::{BASE_MS, QUIET_MS};
use crate::stats::Samples;

/// What a row must hold.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Bar {
    /// p50, and p99 where one is promised, in ms on a quiet machine.
    Latency { p50_ms: f64, p99_ms: Option<f64> },
    /// A figure that must not be passed.
    AtMost(f64),
    /// A figure that must be reached.
    AtLeast(f64),
}

#[derive(Debug)]
struct Row {
    name: String,
    value: String,
    bar: String,
    verdict: String,
}

/// All figures of one run.
#[derive(Debug, Default)]
pub(crate) struct Report {
    quick: bool,
    /// p50 of spawn + wait, the yardstick.
    pub(crate) noise_ms: f64,
    rows: Vec<Row>,
    notes: Vec<String>,
    sections: Vec<(String, String)>,
    /// p50 of the cold path and of each peer, for the ratios.
    pub(crate) cold_ms: Option<f64>,
    pub(crate) peers_ms: Vec<(String, f64)>,
}

impl Report {
    pub(crate) fn new(quick: bool) -> Self {
        Self { quick, ..Self::default() }
    }

    /// 1 on a quiet machine, larger on a noisy one.
    fn scale(&self) -> f64 {
        if self.noise_ms > QUIET_MS { self.noise_ms / BASE_MS } else { 1.0 }
    }

    /// A row of durations.
    pub(crate) fn row(&mut self, name: &str, samples: &Samples, bar: Option<Bar>) {
        let (p50, p95, p99) = (samples.p50(), samples.percentile(95), samples.percentile(99));
        println!("{name}: p50 {p50:.2} ms, p95 {p95:.2}, p99 {p99:.2}, n {}", samples.count());
        let value = format!(
            "p50 **{p50:.2}** ms, p95 {p95:.2}, p99 {p99:.2} (n {}, {} failed)",
            samples.count(),
            samples.failures()
        );
        let (bar_text, mut verdict) = match bar {
            Some(Bar::Latency { p50_ms, p99_ms }) => self.judge_latency(p50, p99, p50_ms, p99_ms),
            Some(Bar::AtMost(_) | Bar::AtLeast(_)) | None => (String::new(), String::new()),
        };
        if samples.failures() > 0 && bar.is_some() {
            verdict = format!("missed: {} failed", samples.failures());
        }
        self.rows.push(Row { name: name.to_owned(), value, bar: bar_text, verdict });
    }

    fn judge_latency(&self, p50: f64, p99: f64, p50_ms: f64, p99_ms: Option<f64>) -> (String, String) {
        let scale = self.scale();
        let mut text = format!("p50 ≤ {p50_ms} ms");
        let mut misses = Vec::new();
        if p50 > p50_ms * scale {
            misses.push(format!("p50 by {:.2} ms", p50 - p50_ms * scale));
        }
        if let Some(p99_ms) = p99_ms {
            let _ = write!(text, ", p99 ≤ {p99_ms} ms");
            if p99 > p99_ms * scale {
                misses.push(format!("p99 by {:.2} ms", p99 - p99_ms * scale));
            }
        }
        if scale > 1.0 {
            let _ = write!(text, " (×{scale:.2} for noise)");
        }
        (text, if misses.is_empty() { "met".into() } else { format!("missed: {}", misses.join(", ")) })
    }

    /// A row of one figure.
    pub(crate) fn figure(&mut self, name: &str, value: f64, unit: &str, bar: Option<Bar>) {
        println!("{name}: {value:.2} {unit}");
        let (bar_text, verdict) = match bar {
            Some(Bar::AtMost(max)) if value <= max => (format!("≤ {max} {unit}"), "met".to_owned()),
            Some(Bar::AtMost(max)) => (format!("≤ {max} {unit}"), format!("missed by {:.2}", value - max)),
            Some(Bar::AtLeast(min)) if value >= min => (format!("≥ {min} {unit}"), "met".to_owned()),
            Some(Bar::AtLeast(min)) => (format!("≥ {min} {unit}"), format!("missed by {:.2}", min - value)),
            Some(Bar::Latency { .. }) | None => (String::new(), String::new()),
        };
        self.rows.push(Row {
            name: name.to_owned(),
            value: format!("**{value:.2}** {unit}"),
            bar: bar_text,
            verdict,
        });
    }

    /// A figure whose bar grows with the machine's noise.
    pub(crate) fn scaled_figure(&mut self, name: &str, value: f64, unit: &str, max: f64) {
        let scaled = (max * self.scale() * 10.0).round() / 10.0;
        self.figure(name, value, unit, Some(Bar::AtMost(scaled)));
    }

    /// What was left out, and why.
    pub(crate) fn note(&mut self, text: impl Into<String>) {
        let text = text.into();
        println!("note: {text}");
        self.notes.push(text);
    }

    /// Free text under a heading of its own.
    pub(crate) fn section(&mut self, title: &str, text: String) {
        println!("{title}\n{text}");
        self.sections.push((title.to_owned(), text));
    }

    /// The ratios that DESIGN §8 promises.
    pub(crate) fn compare_with_peers(&mut self) {
        let Some(cold) = self.cold_ms else { return };
        for (name, p50) in self.peers_ms.clone() {
            let bar = match name.as_str() {
                "docker run" => Some(Bar::AtLeast(40.0)),
                "runc run" => Some(Bar::AtLeast(3.0)),
                _ => None,
            };
            self.figure(&format!("cold create is faster than `{name}` by"), p50 / cold, "×", bar);
        }
    }

    pub(crate) fn render(&self) -> String {
        let mut text = String::from("# Results\n\n");
        let mode = if self.quick { "quick" } else { "full" };
        let _ = writeln!(
            text,
            "Made by `make bench` ({mode} run) on {}; {}.\nMachine: spawn + wait of `/bin/true` takes {:.2} ms at \
             p50 ({}).\n",
            jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M UTC"),
            machine(),
            self.noise_ms,
            if self.scale() > 1.0 { "noisy: absolute bars scale with it" } else { "quiet" }
        );
        text.push_str("| what | measured | bar | verdict |\n|---|---|---|---|\n");
        for row in &self.rows {
            let _ = writeln!(text, "| {} | {} | {} | {} |", row.name, row.value, row.bar, row.verdict);
        }
        for (title, body) in &self.sections {
            let _ = write!(text, "\n## {title}\n\n{body}\n");
        }
        let _ = write!(text, "\n{}", include_str!("../NOTES.md"));
        if !self.notes.is_empty() {
            text.push_str("\n## Left out, and why\n\n");
            for note in &self.notes {
                let _ = writeln!(text, "- {note}");
            }
        }
        text
    }
}

fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total_kib: u64 = memory
        .lines()
        .find_map(|l| l.strip_prefix("MemTotal:"))
        .and_then(|v| v.trim().trim_end_matches(" kB").parse().ok())
        .unwrap_or(0);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{cores} cores, {} GiB, Linux {}", total_kib / 1_048_576, kernel.trim())
}
