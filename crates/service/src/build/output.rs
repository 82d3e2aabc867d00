//! Turns the output of a step into lines of a log: split, limited, and without terminal control characters.

use std::collections::VecDeque;
use std::fmt::Write;

use atoll_model::BuildLevel;

use super::log::Log;
use super::secrets::SecretMask;

/// LIMIT: bytes of one line; longer lines are cut.
const LINE_BYTES: usize = 4 << 10;
/// LIMIT: bytes of one step; further output is counted, not kept.
const STEP_BYTES: u64 = 2 << 20;
/// LIMIT: lines of the end that a failure shows.
const TAIL_LINES: usize = 20;

/// Both streams of one step.
pub(super) struct StepOutput<'a> {
    log: &'a Log,
    hidden: &'a SecretMask,
    step: u32,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    written: u64,
    left_out: u64,
    tail: VecDeque<Vec<u8>>,
}

impl<'a> StepOutput<'a> {
    pub(super) fn new(log: &'a Log, hidden: &'a SecretMask, step: u32) -> Self {
        Self {
            log,
            hidden,
            step,
            stdout: Vec::new(),
            stderr: Vec::new(),
            written: 0,
            left_out: 0,
            tail: VecDeque::with_capacity(TAIL_LINES),
        }
    }

    pub(super) fn stdout(&mut self, data: &[u8]) {
        let mut held = std::mem::take(&mut self.stdout);
        self.take(BuildLevel::Stdout, &mut held, data);
        self.stdout = held;
    }

    pub(super) fn stderr(&mut self, data: &[u8]) {
        let mut held = std::mem::take(&mut self.stderr);
        self.take(BuildLevel::Stderr, &mut held, data);
        self.stderr = held;
    }

    /// Records that this many bytes were lost.
    pub(super) fn lost(&mut self, bytes: u64) {
        self.left_out = self.left_out.saturating_add(bytes);
    }

    /// Writes the remaining output, and returns the last lines.
    pub(super) fn end(mut self) -> Vec<String> {
        for (level, held) in [
            (BuildLevel::Stdout, std::mem::take(&mut self.stdout)),
            (BuildLevel::Stderr, std::mem::take(&mut self.stderr)),
        ] {
            if !held.is_empty() {
                self.line(level, &held);
            }
        }
        if self.left_out > 0 {
            let text = format!("{} more bytes were written than the log of a step keeps", self.left_out);
            self.log.say(BuildLevel::Warn, self.step, text);
        }
        let tail = std::mem::take(&mut self.tail);
        tail.into_iter().map(|line| self.shown(line)).collect()
    }

    fn take(&mut self, level: BuildLevel, held: &mut Vec<u8>, data: &[u8]) {
        for piece in data.split_inclusive(|byte| *byte == b'\n') {
            for part in piece.chunks(LINE_BYTES) {
                if held.len() + part.len() > LINE_BYTES {
                    self.line(level, held);
                    held.clear();
                }
                held.extend_from_slice(part);
            }
            if held.last() == Some(&b'\n') {
                self.line(level, held);
                held.clear();
            }
        }
    }

    fn line(&mut self, level: BuildLevel, bytes: &[u8]) {
        if self.tail.len() == TAIL_LINES {
            self.tail.pop_front();
        }
        self.tail.push_back(bytes.to_vec());
        self.written += bytes.len() as u64;
        if self.written > STEP_BYTES {
            self.left_out = self.left_out.saturating_add(bytes.len() as u64);
        } else {
            self.log.say(level, self.step, self.shown(bytes.to_vec()));
        }
    }

    fn shown(&self, mut line: Vec<u8>) -> String {
        self.hidden.hide(&mut line);
        clean(&line)
    }
}

/// A line as text: without its end and without text that a carriage return would have overwritten; other control
/// characters are escaped.
pub(super) fn clean(bytes: &[u8]) -> String {
    let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
    let last = bytes.rsplit(|byte| *byte == b'\r').next().unwrap_or_default();
    let text = String::from_utf8_lossy(last);
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\t' => shown.push(c),
            // Characters that change the direction of text can hide content like an escape sequence.
            c if c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}') => {
                let _ = write!(shown, "\\u{{{:x}}}", u32::from(c));
            }
            c => shown.push(c),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TestClock;
    use futures::StreamExt;

    async fn lines(feed: impl FnOnce(&mut StepOutput<'_>)) -> (Vec<(BuildLevel, String)>, Vec<String>) {
        let folder = tempfile::tempdir().expect("a folder");
        let log =
            Log::create(folder.path(), TestClock::new("boot"), &atoll_disk::Reserve::new(0)).expect("a log");
        let hidden = SecretMask::default();
        let mut output = StepOutput::new(&log, &hidden, 3);
        feed(&mut output);
        let tail = output.end();
        let read = super::super::log::read(folder.path(), 0, None);
        (read.map(|line| (line.level, line.text)).collect().await, tail)
    }

    #[tokio::test]
    async fn lines_are_put_together_from_pieces() {
        let (seen, tail) = lines(|output| {
            output.stdout(b"one\ntw");
            output.stderr(b"oops\n");
            output.stdout(b"o\nthree");
        })
        .await;
        let (out, err) = (BuildLevel::Stdout, BuildLevel::Stderr);
        let wanted = [(out, "one"), (err, "oops"), (out, "two"), (out, "three")];
        assert_eq!(seen, wanted.map(|(level, text)| (level, text.to_owned())));
        assert_eq!(tail, ["one", "oops", "two", "three"]);
    }

    #[tokio::test]
    async fn what_a_terminal_would_obey_is_shown() {
        assert_eq!(clean(b"\x1b[31mred\x07\n"), "\\u{1b}[31mred\\u{7}");
        assert_eq!(clean(b" 10%\r 50%\r100%\r\n"), "100%");
        assert_eq!(clean("a\u{202e}b".as_bytes()), "a\\u{202e}b");
        assert_eq!(clean(b"\xff\xfe"), "\u{fffd}\u{fffd}");
    }

    #[tokio::test]
    async fn output_without_end_is_cut_and_said_so() {
        let (seen, tail) = lines(|output| {
            for _ in 0..1_000 {
                output.stdout(&[b'x'; 10_000]);
            }
        })
        .await;
        let kept: usize = seen.iter().map(|(_, text)| text.len()).sum();
        assert!(kept as u64 <= STEP_BYTES + 200, "{kept}");
        let (level, last) = seen.last().expect("lines");
        assert_eq!(*level, BuildLevel::Warn);
        assert!(last.contains("more bytes"), "{last}");
        assert_eq!(tail.len(), TAIL_LINES);
    }
}
