//! Reads the lines of a file in pieces, and matches them against a pattern.

use std::os::fd::OwnedFd;

use regex::bytes::{Regex, RegexBuilder};
use rustix::io::Errno;

use crate::error::AgentError;

/// LIMIT: bytes of a line that are returned.
pub(super) const SHOWN_MAX: usize = 4 << 10;
/// LIMIT: bytes of a line that are matched; the rest of a longer line is skipped.
const LINE_MAX: usize = 64 << 10;
/// LIMIT: memory of a compiled pattern.
const COMPILED_MAX: usize = 2 << 20;
/// LIMIT: bytes of a pattern.
const PATTERN_MAX: usize = 16 << 10;

/// A pattern.
#[derive(Debug)]
pub(super) struct Matcher(Regex);

impl Matcher {
    pub(super) fn compile(pattern: &[u8], literal: bool, ignore_case: bool) -> Result<Self, AgentError> {
        let text = std::str::from_utf8(pattern)
            .map_err(|_| AgentError::Invalid("a pattern must be UTF-8".into()))?;
        if text.len() > PATTERN_MAX {
            return Err(AgentError::Invalid(format!("a pattern has at most {PATTERN_MAX} bytes")));
        }
        let text = if literal { regex::escape(text) } else { text.to_owned() };
        RegexBuilder::new(&text)
            .case_insensitive(ignore_case)
            .size_limit(COMPILED_MAX)
            .dfa_size_limit(COMPILED_MAX)
            .nest_limit(atoll_glob::shell::NEST_MAX)
            .build()
            .map(Self)
            .map_err(|error| AgentError::Invalid(format!("the pattern is invalid: {}", reason(&error))))
    }

    pub(super) fn is_match(&self, line: &[u8]) -> bool {
        self.0.is_match(line)
    }
}

/// The last line of the library's error; the other lines show the pattern.
fn reason(error: &regex::Error) -> String {
    let text = error.to_string();
    let last = text.lines().last().unwrap_or_default().trim_start_matches("error: ");
    last.chars().take(200).collect()
}

/// The lines of a text file.
pub(super) struct Lines<'f> {
    file: &'f OwnedFd,
    buffer: Vec<u8>,
    /// The first byte that was not returned yet.
    from: usize,
    number: u64,
    ended: bool,
    /// Skipping the rest of a line that was too long.
    skips: bool,
}

impl<'f> Lines<'f> {
    pub(super) fn new(file: &'f OwnedFd) -> Self {
        Self { file, buffer: Vec::new(), from: 0, number: 0, ended: false, skips: false }
    }

    /// The next line and its number from 1; `None` at the end, or if the file turns out to be binary.
    pub(super) fn next(&mut self) -> rustix::io::Result<Option<(u64, &[u8])>> {
        loop {
            let rest = &self.buffer[self.from..];
            let end = rest.iter().position(|byte| *byte == b'\n');
            if let Some(end) = end {
                let start = self.from;
                self.from += end + 1;
                if std::mem::take(&mut self.skips) {
                    continue;
                }
                self.number += 1;
                return Ok(Some((self.number, trimmed(&self.buffer[start..start + end]))));
            }
            if self.skips {
                self.from = self.buffer.len();
            } else if rest.len() >= LINE_MAX || (self.ended && !rest.is_empty()) {
                let start = self.from;
                self.from = self.buffer.len();
                self.skips = !self.ended;
                self.number += 1;
                return Ok(Some((self.number, trimmed(&self.buffer[start..]))));
            }
            if self.ended || !self.fill()? {
                return Ok(None);
            }
        }
    }

    /// Reads more. False: the file is not text.
    fn fill(&mut self) -> rustix::io::Result<bool> {
        self.buffer.drain(..self.from);
        self.from = 0;
        let old = self.buffer.len();
        self.buffer.resize(old + LINE_MAX, 0);
        let count = loop {
            match rustix::io::read(self.file, &mut self.buffer[old..]) {
                Err(Errno::INTR) => {}
                other => break other?,
            }
        };
        self.buffer.truncate(old + count);
        self.ended = count == 0;
        Ok(!self.buffer[old..].contains(&0))
    }
}

fn trimmed(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;

    fn lines(content: &[u8]) -> Vec<Vec<u8>> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content).unwrap();
        let file = OwnedFd::from(file);
        rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0)).unwrap();
        let mut lines = Lines::new(&file);
        let mut found = Vec::new();
        while let Some((number, line)) = lines.next().unwrap() {
            found.push(line.to_vec());
            assert_eq!(number as usize, found.len());
        }
        found
    }

    #[test]
    fn lines_may_be_long_unfinished_or_none() {
        assert_eq!(lines(b""), Vec::<Vec<u8>>::new());
        assert_eq!(lines(b"a\r\n\nb"), [&b"a"[..], b"", b"b"]);
        let long = [vec![b'x'; 300_000], b"\nafter\n".to_vec()].concat();
        let found = lines(&long);
        assert_eq!((found.len(), found[0].len() >= LINE_MAX, found[1].as_slice()), (2, true, &b"after"[..]));
        assert!(lines(b"text\n\0binary\n").is_empty());
    }

    proptest! {
        #[test]
        fn lines_are_those_of_the_library(text in "[ab\n]{0,200}") {
            let expected: Vec<Vec<u8>> = text.lines().map(|line| line.as_bytes().to_vec()).collect();
            prop_assert_eq!(lines(text.as_bytes()), expected);
        }
    }
}
