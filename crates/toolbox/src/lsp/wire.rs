//! Frames of the protocol: a head with a length, a body of JSON.

use atoll_budget::{Account, Reservation};
use serde_json::Value;

use crate::ToolboxError;

/// LIMIT: the symbols of a very large project; a larger body is refused.
const BODY_MAX: usize = 32 << 20;
/// LIMIT: a head has two short lines.
const HEAD_MAX: usize = 4 << 10;
const LENGTH: &[u8] = b"content-length:";

/// Writes a frame.
pub(super) fn frame(message: &Value) -> Vec<u8> {
    let body = message.to_string();
    format!("Content-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// Parses frames from a stream that may begin in the middle of one. Bytes that wait for the rest of their frame are charged
/// to an account.
pub(super) struct Frames {
    held: Vec<u8>,
    charged: Reservation,
}

impl Frames {
    pub(super) fn new(account: &Account) -> Self {
        Self { held: Vec::new(), charged: account.reserve() }
    }

    pub(super) fn feed(&mut self, data: &[u8]) -> Result<(), ToolboxError> {
        self.charged.try_grow(self.held.len().saturating_add(data.len()))?;
        self.held.extend_from_slice(data);
        Ok(())
    }

    /// Drops what was not read.
    pub(super) fn clear(&mut self) {
        self.held = Vec::new();
        self.charged.shrink(0);
    }

    /// The next complete frame; invalid JSON is skipped.
    pub(super) fn next(&mut self) -> Result<Option<Value>, ToolboxError> {
        let next = self.parse_next();
        self.charged.shrink(self.held.len());
        next
    }

    fn parse_next(&mut self) -> Result<Option<Value>, ToolboxError> {
        loop {
            let Some(begin) = find_ignoring_case(&self.held, LENGTH) else {
                let keep = self.held.len().min(LENGTH.len());
                self.held.drain(..self.held.len() - keep);
                return Ok(None);
            };
            self.held.drain(..begin);
            // Limited: searching all held bytes for each head would take quadratic time.
            let head = &self.held[..self.held.len().min(HEAD_MAX)];
            let Some(end) = head.windows(4).position(|four| four == b"\r\n\r\n") else {
                if self.held.len() > HEAD_MAX {
                    self.held.drain(..LENGTH.len());
                    continue;
                }
                return Ok(None);
            };
            let Some(length) = length(&self.held[LENGTH.len()..end]) else {
                self.held.drain(..LENGTH.len());
                continue;
            };
            if length > BODY_MAX {
                return Err(ToolboxError::Unreadable {
                    tool: "the language server",
                    why: "a frame is too large",
                });
            }
            let body = end + 4;
            if self.held.len() < body + length {
                return Ok(None);
            }
            let value = serde_json::from_slice(&self.held[body..body + length]);
            self.held.drain(..body + length);
            if let Ok(value) = value {
                return Ok(Some(value));
            }
        }
    }
}

fn length(head: &[u8]) -> Option<usize> {
    let line = head.split(|byte| *byte == b'\r').next()?;
    std::str::from_utf8(line).ok()?.trim().parse().ok()
}

fn find_ignoring_case(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len()).position(|window| window.eq_ignore_ascii_case(wanted))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use atoll_budget::{Budget, BudgetOwner, Sizes};

    fn frames() -> Frames {
        Frames::new(&Budget::default().account(BudgetOwner::Stranger(None)))
    }

    #[test]
    fn an_incomplete_frame_is_charged_until_it_is_read() {
        let budget = Budget::new(Sizes { tenants: 0, strangers: 4 << 20 });
        let mut frames = Frames::new(&budget.account(BudgetOwner::Stranger(None)));
        frames.feed(b"Content-Length: 8000000\r\n\r\n").unwrap();
        let piece = vec![b'1'; 64 << 10];
        let fed = (0..64).take_while(|_| frames.feed(&piece).is_ok()).count();
        assert!((1..64).contains(&fed), "{fed}");
        assert_eq!(frames.next().unwrap(), None);
        assert!(budget.held().1 > 0);
        frames.clear();
        assert_eq!(budget.held(), (0, 0));
        frames.feed(&frame(&json!([]))).unwrap();
        assert_eq!(frames.next().unwrap(), Some(json!([])));
    }

    #[test]
    fn frames_come_whole_however_they_are_cut() {
        let messages =
            [json!({"id": 1, "text": "Content-Length: 3\r\n\r\n"}), json!([]), json!({"ü": "日本"})];
        let stream: Vec<u8> = messages.iter().flat_map(frame).collect();
        for cut in 1..stream.len() {
            let mut frames = frames();
            let mut read = Vec::new();
            for piece in stream.chunks(cut) {
                frames.feed(piece).unwrap();
                while let Some(message) = frames.next().unwrap() {
                    read.push(message);
                }
            }
            assert_eq!(read, messages, "cut at {cut}");
        }
    }

    #[test]
    fn a_stream_may_begin_in_the_middle_of_a_frame() {
        let mut frames = frames();
        frames.feed(b"ngth\":4}}").unwrap();
        frames.feed(&frame(&json!({"id": "a"}))).unwrap();
        assert_eq!(frames.next().unwrap(), Some(json!({"id": "a"})));
        assert_eq!(frames.next().unwrap(), None);
    }

    #[test]
    fn a_frame_without_measure_is_refused() {
        let mut frames = frames();
        frames.feed(b"Content-Length: 999999999999\r\n\r\n").unwrap();
        assert!(frames.next().is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(data in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut frames = frames();
            frames.feed(&data).unwrap();
            let _ = frames.next();
            frames.feed(b"Content-Length: 2\r\n\r\n{}").unwrap();
            let _ = frames.next();
        }
    }

    #[test]
    fn any_stream_of_a_language_server_is_read_or_refused() {
        atoll_robustness::check("lsp_frames", |bytes| {
            let (mut frames, mut read) = (frames(), 0);
            frames.feed(bytes).unwrap();
            while let Ok(Some(_)) = frames.next() {
                read += 1;
            }
            assert!(read * LENGTH.len() <= bytes.len());
        });
    }
}
