//! The output of contexts: JSON lines of the bridges, or a shell's output with markers. It is untrusted, and the amount
//! of held data is limited.

use atoll_budget::{Account, Reservation};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::ToolboxError;

/// LIMIT: bytes of one line; a large picture has some megabytes.
const LINE_MAX: usize = 64 << 20;
/// Delimits a shell's markers; output that contains it by chance lacks the random name of the execution.
const MARK: u8 = 0x1e;

/// One line of a bridge.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct BridgeMessage {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) id: Option<String>,
    pub(super) text: String,
    pub(super) count: u64,
    pub(super) name: String,
    pub(super) value: String,
    pub(super) traceback: String,
    pub(super) main: bool,
    pub(super) data: Map<String, Value>,
    pub(super) tool: Option<String>,
}

impl BridgeMessage {
    pub(super) fn parse(line: &[u8]) -> Option<Self> {
        // A parsed value takes many times its own length in memory.
        if is_heavy(line) {
            return None;
        }
        serde_json::from_slice(line).ok()
    }
}

/// LIMIT: values in one line; large pictures and texts are one each.
const VALUES_MAX: usize = 500_000;

/// Whether a line contains too many values to be parsed. A rough count: commas and colons outside of strings.
pub(super) fn is_heavy(line: &[u8]) -> bool {
    let (mut values, mut in_text, mut escaped) = (0, false, false);
    for byte in line {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b',' | b':' | b'[' | b'{' if !in_text => values += 1,
            _ => {}
        }
    }
    values > VALUES_MAX
}

/// Assembles lines. The bytes of an incomplete line are charged to an account.
#[derive(Debug)]
pub(super) struct Lines {
    held: Vec<u8>,
    charged: Reservation,
}

impl Lines {
    pub(super) fn new(account: &Account) -> Self {
        Self { held: Vec::new(), charged: account.reserve() }
    }

    /// The complete lines so far.
    pub(super) fn feed(&mut self, data: &[u8]) -> Result<Vec<Vec<u8>>, ToolboxError> {
        let bytes = self.held.len().saturating_add(data.len());
        if bytes > LINE_MAX {
            return Err(ToolboxError::TooLarge { what: "one result".into(), max: LINE_MAX as u64 });
        }
        self.charged.try_grow(bytes)?;
        // Only new bytes can contain the end of a line.
        let searched = self.held.len();
        self.held.extend_from_slice(data);
        let Some(last) = self.held[searched..].iter().rposition(|byte| *byte == b'\n') else {
            return Ok(Vec::new());
        };
        let rest = self.held.split_off(searched + last + 1);
        let whole = std::mem::replace(&mut self.held, rest);
        self.charged.shrink(self.held.len());
        Ok(whole.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(<[u8]>::to_vec).collect())
    }
}

/// A part of a shell's output.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ShellOutput {
    Output(Vec<u8>),
    /// The words of a marker.
    Marker(Vec<String>),
}

/// Finds an execution's markers in a stream: `MARK name words… MARK`.
#[derive(Debug)]
pub(super) struct Markers {
    begin: Vec<u8>,
    held: Vec<u8>,
}

/// LIMIT: a marker's words are two numbers.
const MARKER_MAX: usize = 128;

impl Markers {
    pub(super) fn new(name: &str) -> Self {
        Self { begin: [&[MARK], name.as_bytes(), b" "].concat(), held: Vec::new() }
    }

    pub(super) fn feed(&mut self, data: &[u8]) -> Vec<ShellOutput> {
        self.held.extend_from_slice(data);
        let mut shown = Vec::new();
        loop {
            let found = find(&self.held, &self.begin);
            let Some(at) = found else {
                // A possible beginning of a marker stays until more is known.
                let keep = tail_of(&self.held, &self.begin);
                let rest = self.held.split_off(self.held.len() - keep);
                push(&mut shown, std::mem::replace(&mut self.held, rest));
                return shown;
            };
            let after = at + self.begin.len();
            let Some(len) = self.held[after..].iter().position(|byte| *byte == MARK) else {
                if self.held.len() - after > MARKER_MAX {
                    // It is too long, so it is not a marker.
                    let rest = self.held.split_off(after);
                    push(&mut shown, std::mem::replace(&mut self.held, rest));
                    continue;
                }
                let rest = self.held.split_off(at);
                push(&mut shown, std::mem::replace(&mut self.held, rest));
                return shown;
            };
            let words = String::from_utf8_lossy(&self.held[after..after + len]).into_owned();
            let rest = self.held.split_off(after + len + 1);
            let mut before = std::mem::replace(&mut self.held, rest);
            before.truncate(at);
            push(&mut shown, before);
            shown.push(ShellOutput::Marker(words.split(' ').map(str::to_owned).collect()));
        }
    }
}

fn push(shown: &mut Vec<ShellOutput>, output: Vec<u8>) {
    if !output.is_empty() {
        shown.push(ShellOutput::Output(output));
    }
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|window| window == what)
}

/// How much of the end of a text may be the beginning of `what`.
fn tail_of(text: &[u8], what: &[u8]) -> usize {
    let longest = text.len().min(what.len().saturating_sub(1));
    (1..=longest).rev().find(|len| text.ends_with(&what[..*len])).unwrap_or(0)
}

/// Decodes text in pieces: an incomplete character waits for its rest.
#[derive(Debug, Default)]
pub(super) struct Utf8 {
    held: Vec<u8>,
}

impl Utf8 {
    pub(super) fn feed(&mut self, data: &[u8]) -> String {
        self.held.extend_from_slice(data);
        let cut = match std::str::from_utf8(&self.held) {
            // An error without a length is an incomplete character.
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            _ => self.held.len(),
        };
        // Invalid bytes come before the incomplete character; the next call distinguishes them again.
        let cut = if self.held.len() - cut > 3 { self.held.len() } else { cut };
        let rest = self.held.split_off(cut);
        let whole = std::mem::replace(&mut self.held, rest);
        String::from_utf8_lossy(&whole).into_owned()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use atoll_budget::{Budget, BudgetOwner, Sizes};

    #[test]
    fn a_line_of_very_many_values_is_not_read() {
        let many = "0,".repeat(VALUES_MAX + 1);
        let line = |data: &str| format!("{{\"type\":\"result\",\"data\":{{\"a\":{data}}}}}");
        assert!(BridgeMessage::parse(line(&format!("[{many}0]")).as_bytes()).is_none());
        let text = line(&format!("\"\\\"{many}\""));
        assert_eq!(BridgeMessage::parse(text.as_bytes()).unwrap().kind, "result", "a text is one value");
    }

    fn account(budget: &Budget) -> Account {
        budget.account(BudgetOwner::Stranger(None))
    }

    #[test]
    fn an_incomplete_line_is_charged_until_its_end() {
        let budget = Budget::new(Sizes { tenants: 0, strangers: 4 << 20 });
        let mut lines = Lines::new(&account(&budget));
        let piece = vec![b'a'; 256 << 10];
        let mut fed = 0;
        let refused = loop {
            match lines.feed(&piece) {
                Ok(whole) => assert!(whole.is_empty()),
                Err(error) => break error,
            }
            fed += piece.len();
            assert!(fed <= 4 << 20, "more than the budget was held");
        };
        assert!(matches!(refused, ToolboxError::Exhausted(_)), "{refused}");
        assert!(budget.held().1 > 0);
        assert_eq!(lines.feed(b"\n").unwrap().len(), 1);
        assert_eq!(budget.held(), (0, 0));
    }

    #[test]
    fn lines_come_whole_whatever_the_pieces() {
        let mut lines = Lines::new(&account(&Budget::default()));
        assert!(lines.feed(b"{\"a\"").unwrap().is_empty());
        assert_eq!(lines.feed(b":1}\n{}\n{").unwrap(), [b"{\"a\":1}".to_vec(), b"{}".to_vec()]);
        assert_eq!(lines.feed(b"}\n").unwrap(), [b"{}".to_vec()]);
    }

    #[test]
    fn foreign_lines_are_nothing() {
        assert!(BridgeMessage::parse(b"hello").is_none() && BridgeMessage::parse(b"[1]").is_none());
        let told = BridgeMessage::parse(br#"{"type":"stdout","id":"x","text":"hi","more":1}"#).unwrap();
        assert_eq!((told.kind.as_str(), told.text.as_str()), ("stdout", "hi"));
    }

    fn collect(markers: &mut Markers, pieces: &[&[u8]]) -> (Vec<u8>, Vec<Vec<String>>) {
        let (mut output, mut found) = (Vec::new(), Vec::new());
        for shown in pieces.iter().flat_map(|piece| markers.feed(piece)) {
            match shown {
                ShellOutput::Output(data) => output.extend(data),
                ShellOutput::Marker(words) => found.push(words),
            }
        }
        (output, found)
    }

    #[test]
    fn markers_of_others_are_output() {
        let wire = b"a\x1ename 1 2\x1eb\x1eother 0\x1e\x1ename 3\x1e";
        let (output, found) = collect(&mut Markers::new("name"), &[wire]);
        assert_eq!(output, b"ab\x1eother 0\x1e");
        assert_eq!(found, [vec!["1".to_owned(), "2".into()], vec!["3".into()]]);
        let endless = [&b"\x1ename "[..], &[b'x'; 500]].concat();
        assert_eq!(collect(&mut Markers::new("name"), &[&endless]).0, endless);
    }

    proptest! {
        #[test]
        fn markers_are_found_whatever_the_pieces(cut in 1usize..9, output in "[a\x1en]{0,12}") {
            let wire = format!("{output}\x1ename 7\x1eend");
            let pieces: Vec<&[u8]> = wire.as_bytes().chunks(cut).collect();
            let (shown, found) = collect(&mut Markers::new("name"), &pieces);
            prop_assert_eq!(shown, format!("{output}end").into_bytes());
            prop_assert_eq!(found, vec![vec!["7".to_owned()]]);
        }

        #[test]
        fn text_in_pieces_is_the_same_text(text in ".{0,20}", cut in 1usize..5) {
            let mut utf8 = Utf8::default();
            let got: String = text.as_bytes().chunks(cut).map(|piece| utf8.feed(piece)).collect();
            prop_assert_eq!(got, text);
        }
    }
}
