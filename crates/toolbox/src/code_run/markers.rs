//! Extracts marked parts from a stream: `RS word {JSON} RS word`, however the stream is split.

use serde_json::Value;

/// LIMIT: bytes of a picture and its data; a larger part stays in the output.
const TOLD_MAX: usize = 32 << 20;
/// LIMIT: bytes of all marked parts together.
const ALL_MAX: usize = 64 << 20;

pub(super) struct Marks {
    mark: Vec<u8>,
    held: Vec<u8>,
    /// A mark was seen, and the part after it is held.
    inside: bool,
    told: Vec<Value>,
    all: usize,
}

impl Marks {
    pub(super) fn new(word: &str) -> Self {
        let mark = [b"\x1e", word.as_bytes()].concat();
        Self { mark, held: Vec::new(), inside: false, told: Vec::new(), all: 0 }
    }

    /// The output part of the stream.
    pub(super) fn feed(&mut self, data: &[u8]) -> Vec<u8> {
        let mut output = Vec::new();
        // Where a mark may begin that this piece completes.
        let mut from = self.held.len().saturating_sub(self.mark.len());
        self.held.extend_from_slice(data);
        while let Some(at) = find(&self.held[from..], &self.mark).map(|at| at + from) {
            let before: Vec<u8> = self.held.drain(..at + self.mark.len()).take(at).collect();
            match self.inside {
                false => output.extend_from_slice(&before),
                true => self.take(&before),
            }
            self.inside = !self.inside;
            from = 0;
        }
        if !self.inside {
            let keep = partial(&self.held, &self.mark);
            output.extend(self.held.drain(..self.held.len() - keep));
        } else if self.held.len() > TOLD_MAX {
            self.inside = false;
            output.append(&mut self.held);
        }
        output
    }

    /// The number of held bytes that are not output.
    pub(super) fn size(&self) -> usize {
        self.all.min(ALL_MAX) + if self.inside { self.held.len() } else { 0 }
    }

    /// The held bytes at the end of the stream.
    pub(super) fn rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }

    pub(super) fn into_told(self) -> Vec<Value> {
        self.told
    }

    fn take(&mut self, text: &[u8]) {
        self.all += text.len();
        if self.all <= ALL_MAX
            && let Ok(value) = serde_json::from_slice(text)
        {
            self.told.push(value);
        }
    }
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len()).position(|window| window == wanted)
}

/// How much of the end may be the beginning of a mark.
fn partial(text: &[u8], mark: &[u8]) -> usize {
    let longest = text.len().min(mark.len() - 1);
    (1..=longest).rev().find(|len| text.ends_with(&mark[..*len])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_told_is_taken_out_wherever_the_stream_is_cut() {
        let stream = b"a\x1ew{\"png\":1}\x1eww\x1eb\x1ew{\"png\":2}\x1ew";
        for cut in 1..stream.len() {
            let mut marks = Marks::new("w");
            let mut output = Vec::new();
            for piece in stream.chunks(cut) {
                output.extend(marks.feed(piece));
            }
            output.extend(marks.rest());
            assert_eq!(output, b"aw\x1eb", "cut at {cut}");
            assert_eq!(marks.into_told(), [json!({"png": 1}), json!({"png": 2})], "cut at {cut}");
        }
    }

    #[test]
    fn what_is_begun_and_never_ended_is_shown() {
        let mut marks = Marks::new("w");
        let mut output = marks.feed(b"x\x1ew{\"png\"");
        output.extend(marks.rest());
        assert_eq!(output, b"x{\"png\"");
    }

    #[test]
    fn any_stream_is_taken_apart_the_same_however_it_is_cut() {
        let read = |bytes: &[u8], piece: usize| {
            let mut marks = Marks::new("w");
            let mut output: Vec<u8> = bytes.chunks(piece).flat_map(|piece| marks.feed(piece)).collect();
            output.extend(marks.rest());
            (output, marks.into_told())
        };
        atoll_robustness::check("marked_output", |bytes| {
            let whole = read(bytes, bytes.len().max(1));
            assert!(whole.0.len() <= bytes.len());
            assert_eq!(read(bytes, 64), whole);
        });
    }
}
