//! A JSON object that is encoded while it is written. The output of a command is held once, as raw bytes; its JSON
//! form, up to eighteen times larger, exists only piece by piece.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use serde::Serialize;

/// How many bytes are encoded at a time; a multiple of three, for base64.
const PIECE: usize = 12 << 10;

/// An object with fewer bytes than this is encoded at once; the encoded form is at most eighteen times larger.
const SMALL: usize = 4 << 10;

/// Lines of text, each with a prefix.
#[derive(Debug, Clone)]
pub struct Marked {
    /// The prefix of every line; ASCII.
    pub mark: &'static str,
    /// The lines.
    pub text: Bytes,
}

/// A JSON object as a body. Fields come in the order in which they were added.
#[derive(Debug, Default)]
pub struct JsonObject {
    parts: VecDeque<JsonPart>,
    is_finished: bool,
}

#[derive(Debug)]
enum JsonPart {
    /// Encoded JSON, and small.
    Raw(Vec<u8>),
    /// Encoded JSON.
    Json(Bytes),
    /// The content of a string; invalid UTF-8 is replaced.
    Text(Bytes),
    /// The same, with a prefix for every line. `begins`: a prefix comes before the next byte.
    Lines { marked: Marked, begins: bool },
    /// The content of a base64 string.
    Base64(Bytes),
}

impl JsonObject {
    /// Without fields.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a small field.
    #[must_use]
    pub fn field(mut self, name: &str, value: &impl Serialize) -> Self {
        let mut raw = self.name(name);
        let encoded = serde_json::to_vec(value).expect("wire types hold string keys only");
        raw.extend_from_slice(&encoded);
        self.parts.push_back(JsonPart::Raw(raw));
        self
    }

    /// Adds a field whose value is encoded JSON.
    #[must_use]
    pub fn raw(mut self, name: &str, json: Bytes) -> Self {
        let raw = self.name(name);
        self.parts.push_back(JsonPart::Raw(raw));
        self.parts.push_back(JsonPart::Json(json));
        self
    }

    /// Adds a text; invalid UTF-8 becomes replacement characters.
    #[must_use]
    pub fn text(self, name: &str, text: Bytes) -> Self {
        self.string(name, [JsonPart::Text(text)])
    }

    /// Adds a text that consists of several parts.
    #[must_use]
    pub fn texts(self, name: &str, parts: impl IntoIterator<Item = Bytes>) -> Self {
        self.string(name, parts.into_iter().map(JsonPart::Text))
    }

    /// Adds a text of lines with prefixes.
    #[must_use]
    pub fn lines(self, name: &str, lines: Vec<Marked>) -> Self {
        self.string(name, lines.into_iter().map(|marked| JsonPart::Lines { marked, begins: true }))
    }

    /// Adds bytes as base64.
    #[must_use]
    pub fn base64(self, name: &str, bytes: Bytes) -> Self {
        self.string(name, [JsonPart::Base64(bytes)])
    }

    fn string(mut self, name: &str, inside: impl IntoIterator<Item = JsonPart>) -> Self {
        let mut raw = self.name(name);
        raw.push(b'"');
        self.parts.push_back(JsonPart::Raw(raw));
        self.parts.extend(inside);
        self.parts.push_back(JsonPart::Raw(b"\"".to_vec()));
        self
    }

    fn name(&self, name: &str) -> Vec<u8> {
        let before = if self.parts.is_empty() { '{' } else { ',' };
        format!("{before}\"{name}\":").into_bytes()
    }

    /// The whole encoded object, if it is small: its length is known before it is sent, and it is sent in one piece.
    ///
    /// # Errors
    /// The object itself, if it is too large to be encoded at once.
    pub fn encode_small(mut self) -> Result<Bytes, Self> {
        if self.parts.iter().map(JsonPart::len).sum::<usize>() > SMALL {
            return Err(self);
        }
        let mut whole = Vec::new();
        while let Some(piece) = self.piece() {
            whole.extend_from_slice(&piece);
        }
        Ok(whole.into())
    }

    /// The next encoded piece; `None` at the end.
    fn piece(&mut self) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        while out.len() < PIECE {
            let Some(part) = self.parts.front_mut() else {
                if !std::mem::replace(&mut self.is_finished, true) {
                    out.push(b'}');
                }
                break;
            };
            if part.encode(&mut out) {
                self.parts.pop_front();
            }
        }
        (!out.is_empty()).then_some(out)
    }
}

impl JsonPart {
    /// Bytes that it holds, before encoding.
    fn len(&self) -> usize {
        match self {
            Self::Raw(raw) => raw.len(),
            Self::Json(bytes) | Self::Text(bytes) | Self::Base64(bytes) => bytes.len(),
            Self::Lines { marked, .. } => marked.text.len(),
        }
    }

    /// Encodes a part of it; returns whether it is complete.
    fn encode(&mut self, out: &mut Vec<u8>) -> bool {
        match self {
            Self::Raw(raw) => {
                out.append(raw);
                true
            }
            Self::Json(json) => {
                let at = json.len().min(PIECE);
                out.extend_from_slice(&json.split_to(at));
                json.is_empty()
            }
            Self::Text(text) => {
                let at = cut(text, PIECE);
                let now = text.split_to(at);
                escape(&now, out);
                text.is_empty()
            }
            Self::Lines { marked: Marked { mark, text }, begins } => {
                let at = cut(text, PIECE);
                let now = text.split_to(at);
                for line in now.split_inclusive(|byte| *byte == b'\n') {
                    if *begins {
                        escape(mark.as_bytes(), out);
                    }
                    escape(line, out);
                    *begins = line.ends_with(b"\n");
                }
                text.is_empty()
            }
            Self::Base64(bytes) => {
                let at = bytes.len().min(PIECE);
                let now = bytes.split_to(at);
                out.extend_from_slice(STANDARD.encode(&now).as_bytes());
                bytes.is_empty()
            }
        }
    }
}

/// At most `most` bytes, without splitting a character.
fn cut(text: &[u8], most: usize) -> usize {
    if text.len() <= most {
        return text.len();
    }
    let divides = |at: &usize| text[*at] & 0b1100_0000 == 0b1000_0000;
    (most - 3..=most).rev().find(|at| !divides(at)).unwrap_or(most)
}

fn escape(bytes: &[u8], out: &mut Vec<u8>) {
    const REPLACEMENT: &str = "\u{fffd}";
    for chunk in bytes.utf8_chunks() {
        escape_text(chunk.valid().as_bytes(), out);
        if !chunk.invalid().is_empty() {
            out.extend_from_slice(REPLACEMENT.as_bytes());
        }
    }
}

fn escape_text(mut text: &[u8], out: &mut Vec<u8>) {
    let is_special = |byte: &u8| *byte < b' ' || matches!(*byte, b'"' | b'\\');
    while let Some(at) = text.iter().position(is_special) {
        out.extend_from_slice(&text[..at]);
        match text[at] {
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            quoted @ (b'"' | b'\\') => out.extend_from_slice(&[b'\\', quoted]),
            control => out.extend_from_slice(format!("\\u{control:04x}").as_bytes()),
        }
        text = &text[at + 1..];
    }
    out.extend_from_slice(text);
}

impl Body for JsonObject {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.piece().map(|piece| Ok(Frame::data(piece.into()))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_finished
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn whole(mut object: JsonObject) -> Value {
        let mut text = Vec::new();
        while let Some(piece) = object.piece() {
            assert!(piece.len() <= 19 * PIECE, "{}", piece.len());
            text.extend_from_slice(&piece);
        }
        serde_json::from_slice(&text).unwrap()
    }

    #[test]
    fn what_was_put_in_is_read_again() {
        let odd = "a\"b\\c\n\r\t\u{0}\u{1f}\u{7f}é日\u{1f600}".repeat(5_000);
        let object = JsonObject::new()
            .field("code", &7)
            .text("text", Bytes::from(odd.clone()))
            .base64("exact", Bytes::from(odd.clone()))
            .raw("raw", serde_json::to_vec(&odd).unwrap().into())
            .field("last", &Value::Null);
        let exact = STANDARD.encode(&odd);
        assert_eq!(whole(object), json!({"code": 7, "text": odd, "exact": exact, "raw": odd, "last": null}));
        assert_eq!(whole(JsonObject::new().text("empty", Bytes::new())), json!({"empty": ""}));
    }

    #[test]
    fn a_small_object_is_encoded_whole_and_a_large_one_is_streamed() {
        let object = |size| JsonObject::new().field("code", &0).text("text", vec![b'"'; size].into());
        let small = object(100).encode_small().unwrap();
        assert_eq!(
            serde_json::from_slice::<Value>(&small).unwrap(),
            json!({"code": 0, "text": "\"".repeat(100)})
        );
        let large = object(SMALL + 1).encode_small().unwrap_err();
        assert_eq!(
            whole(large),
            json!({"code": 0, "text": "\"".repeat(SMALL + 1)}),
            "no part of it was taken"
        );
    }

    #[test]
    fn what_is_not_utf8_is_replaced_wherever_it_is_cut() {
        for shift in 0..4 {
            let bytes =
                [vec![b'x'; PIECE - shift], "é日".repeat(9).into_bytes(), b"a\xff\xe6\x97z\xc3".to_vec()]
                    .concat();
            let text = String::from_utf8_lossy(&bytes).into_owned();
            assert_eq!(whole(JsonObject::new().text("t", bytes.into())), json!({"t": text}), "{shift}");
        }
    }

    #[test]
    fn every_line_has_its_mark_once() {
        let long = "x".repeat(3 * PIECE);
        let lines = vec![
            Marked { mark: "\u{1}", text: Bytes::from(format!("a\n{long}\nb")) },
            Marked { mark: "\u{2}", text: Bytes::from_static(b"e\n") },
        ];
        let wanted = format!("\u{1}a\n\u{1}{long}\n\u{1}b\u{2}e\n");
        assert_eq!(whole(JsonObject::new().lines("o", lines)), json!({"o": wanted}));
    }
}
