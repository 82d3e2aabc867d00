//! Progress display: bars on a terminal, plain lines elsewhere, nothing with `--json` or `--quiet`.
//!
//! All output goes to stderr. Text from outside is escaped before it is shown.

use std::{collections::HashMap, time::Duration};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::{
    human::{bytes, harmless},
    out::Out,
};

/// The kind of display.
enum ProgressDisplay {
    /// None.
    Nothing,
    /// A file or a pipe: one line per event.
    Lines,
    Bars(MultiProgress),
}

/// Bars or lines of one piece of work.
pub(super) struct Progress {
    out: Out,
    shown: ProgressDisplay,
    layers: HashMap<String, LayerProgress>,
    /// The line with the current step.
    step: Option<ProgressBar>,
}

struct LayerProgress {
    bar: Option<ProgressBar>,
    state: String,
}

/// LIMIT: bars on a terminal; of an image with more layers the first are shown.
const BARS_MAX: usize = 24;

impl Progress {
    pub(super) fn new(out: Out, quiet: bool) -> Self {
        let shown = if quiet || out.json {
            ProgressDisplay::Nothing
        } else if out.talks() {
            ProgressDisplay::Bars(MultiProgress::with_draw_target(ProgressDrawTarget::stderr()))
        } else {
            ProgressDisplay::Lines
        };
        Self { out, shown, layers: HashMap::new(), step: None }
    }

    /// The current step; on a terminal the next one replaces it.
    pub(super) fn step(&mut self, text: &str) {
        match &self.shown {
            ProgressDisplay::Nothing => {}
            ProgressDisplay::Lines => self.out.say(&harmless(text)),
            ProgressDisplay::Bars(_) => self.now(text),
        }
    }

    /// The same, only on a terminal.
    pub(super) fn now(&mut self, text: &str) {
        let ProgressDisplay::Bars(bars) = &self.shown else { return };
        let step = self.step.get_or_insert_with(|| {
            let step = bars.add(ProgressBar::new_spinner());
            step.enable_steady_tick(Duration::from_millis(120));
            step
        });
        step.set_message(harmless(text));
    }

    /// A line that stays.
    pub(super) fn line(&self, text: &str) {
        let text = harmless(text);
        match &self.shown {
            ProgressDisplay::Nothing => {}
            ProgressDisplay::Lines => self.out.say(&text),
            // If the terminal cannot be written to, the error cannot be reported either.
            ProgressDisplay::Bars(bars) => drop(bars.println(text)),
        }
    }

    /// The progress of one layer, by its digest.
    pub(super) fn layer(&mut self, digest: &str, done: u64, total: u64, state: &str) {
        let name = short(digest);
        let count = self.layers.len();
        let layer = self.layers.entry(digest.to_owned()).or_insert_with(|| {
            let bar = match &self.shown {
                ProgressDisplay::Bars(bars) if count < BARS_MAX => Some(match &self.step {
                    // The line with the current step stays at the bottom.
                    Some(step) => bars.insert_before(step, bar(total)),
                    None => bars.add(bar(total)),
                }),
                _ => None,
            };
            LayerProgress { bar, state: String::new() }
        });
        let changed = layer.state != state;
        if changed {
            state.clone_into(&mut layer.state);
        }
        match (&self.shown, &layer.bar) {
            (_, Some(bar)) => {
                bar.set_prefix(name);
                bar.set_message(harmless(state));
                bar.set_length(total.max(done));
                bar.set_position(done);
                if is_over(state) {
                    bar.finish();
                }
            }
            (ProgressDisplay::Lines, None) if changed && is_over(state) => {
                self.out.say(&format!("{name}  {}  {}", harmless(state), bytes(total)));
            }
            _ => {}
        }
    }

    /// A transfer of bytes without a name.
    pub(super) fn transfer(&mut self, what: &str, total: Option<u64>) -> Transfer {
        let ProgressDisplay::Bars(bars) = &self.shown else { return Transfer(None) };
        let shown = match total {
            Some(total) => bar(total),
            None => {
                let shown = ProgressBar::new_spinner();
                shown.set_style(styled("{prefix:12} {bytes} {bytes_per_sec} {spinner}"));
                shown.enable_steady_tick(Duration::from_millis(120));
                shown
            }
        };
        let shown = bars.add(shown);
        shown.set_prefix(harmless(what));
        Transfer(Some(shown))
    }

    /// Removes the temporary lines.
    pub(super) fn done(&mut self) {
        if let Some(step) = self.step.take() {
            step.finish_and_clear();
        }
        if let ProgressDisplay::Bars(bars) = &self.shown {
            // Completed bars are not useful.
            let _ = bars.clear();
        }
        self.layers.clear();
    }
}

/// The bar of a transfer; can be moved to the code that counts the bytes.
#[derive(Clone)]
pub(super) struct Transfer(Option<ProgressBar>);

impl Transfer {
    pub(super) fn add(&self, count: u64) {
        if let Some(bar) = &self.0 {
            bar.inc(count);
        }
    }

    pub(super) fn done(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

fn bar(total: u64) -> ProgressBar {
    let bar = ProgressBar::new(total.max(1));
    bar.set_style(styled("{prefix:12} {bar:30} {bytes:>10}/{total_bytes:<10} {msg}"));
    bar
}

fn styled(template: &str) -> ProgressStyle {
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    style.progress_chars("=> ")
}

fn is_over(state: &str) -> bool {
    matches!(state, "done" | "exists" | "present")
}

/// The short form of `sha256:0123…`.
pub(super) fn short(digest: &str) -> String {
    harmless(digest.rsplit(':').next().unwrap_or(digest)).chars().take(12).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_short_and_harmless() {
        assert_eq!(short("sha256:0123456789abcdef"), "0123456789ab");
        assert_eq!(short("x\u{1b}[2J"), "x\\u{1b}[2J");
    }

    #[test]
    fn styles_are_understood() {
        for template in [
            "{prefix:12} {bytes} {bytes_per_sec} {spinner}",
            "{prefix:12} {bar:30} {bytes:>10}/{total_bytes:<10} {msg}",
        ] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }
}
