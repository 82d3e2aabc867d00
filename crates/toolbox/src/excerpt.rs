//! Output for a reader with little room: cut in the middle; the whole is kept in a file of the sandbox.

use atoll_budget::CollectedOutput;
use futures::stream;

use crate::{Toolbox, ToolboxError};

/// The folder of kept outputs, below the folder for temporary files.
const FOLDER: &str = ".atoll-output";

/// A text that is complete, or its beginning and its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputExcerpt {
    /// The text. Bytes that are no UTF-8 are replaced.
    pub text: String,
    /// Bytes of the whole output.
    pub bytes: u64,
    /// Whether the middle is missing in `text`.
    pub cut: bool,
    /// The file in the sandbox with everything that was collected; only if `text` is cut.
    pub file: Option<String>,
}

impl Toolbox {
    /// At most about `max` bytes of an output. A longer one is written to a file, and a line in the middle of the text names it.
    /// If the file cannot be written, as on a full disk, that line says so.
    pub async fn excerpt(&self, output: &CollectedOutput, max: usize) -> Result<OutputExcerpt, ToolboxError> {
        if output.head.len() + output.tail.len() <= max && !output.is_truncated() {
            let text = String::from_utf8_lossy(&output.to_vec()).into_owned();
            return Ok(OutputExcerpt { text, bytes: output.written, cut: false, file: None });
        }
        let (first, last) = (beginning(output, max / 2), end(output, max - max / 2));
        let omitted = output.written.saturating_sub((first.len() + last.len()) as u64);
        let path = format!("{}/{FOLDER}/{}.txt", self.sandbox.temporary_folder(), crate::random_id()?);
        let pieces = stream::iter([Ok(output.head.clone()), Ok(output.tail.clone())]);
        let written = self.files().write_stream(&path, Some(0o600), pieces).await;
        let (file, place) = match written {
            Ok(()) if output.is_truncated() => {
                let place = format!("; {path} has the first and the last part");
                (Some(path), place)
            }
            Ok(()) => {
                let place = format!("; the whole output is in {path}");
                (Some(path), place)
            }
            Err(error) => (None, format!("; it could not be kept in a file: {error}")),
        };
        let (first, last) = (String::from_utf8_lossy(&first), String::from_utf8_lossy(&last));
        let text = format!("{first}\n[{omitted} bytes are left out here{place}]\n{last}");
        Ok(OutputExcerpt { text, bytes: output.written, cut: true, file })
    }
}

/// The first bytes of an output, cut between characters.
fn beginning(output: &CollectedOutput, max: usize) -> Vec<u8> {
    let mut cut = max.min(output.head.len());
    while cut > 0 && is_inside(output.head.get(cut)) {
        cut -= 1;
    }
    output.head[..cut].to_vec()
}

/// The last bytes of an output, cut between characters.
fn end(output: &CollectedOutput, max: usize) -> Vec<u8> {
    let of_tail = &output.tail[output.tail.len().saturating_sub(max)..];
    // Without a gap the head goes on in the tail.
    let missing = if output.is_truncated() { 0 } else { max - of_tail.len() };
    let of_head = &output.head[output.head.len().saturating_sub(missing)..];
    let bytes = [of_head, of_tail].concat();
    let cut = bytes.iter().take_while(|byte| is_inside(Some(byte))).count();
    bytes[cut..].to_vec()
}

/// Whether a byte continues a character.
fn is_inside(byte: Option<&u8>) -> bool {
    byte.is_some_and(|byte| byte & 0b1100_0000 == 0b1000_0000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(head: &str, tail: &str, omitted: u64) -> CollectedOutput {
        CollectedOutput {
            head: head.to_owned().into(),
            tail: tail.to_owned().into(),
            written: (head.len() + tail.len()) as u64 + omitted,
            omitted,
        }
    }

    fn ends(output: &CollectedOutput, max: usize) -> (String, String) {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("whole characters");
        (text(beginning(output, max)), text(end(output, max)))
    }

    #[test]
    fn both_ends_are_kept_and_no_character_is_cut() {
        let pair = |first: &str, last: &str| (first.to_owned(), last.to_owned());
        assert_eq!(ends(&output("abcdefgh", "", 0), 2), pair("ab", "gh"));
        assert_eq!(ends(&output("abcd", "efgh", 0), 3), pair("abc", "fgh"));
        assert_eq!(ends(&output("abcdef", "gh", 0), 3), pair("abc", "fgh"));
        assert_eq!(ends(&output("abcd", "gh", 9), 3), pair("abc", "gh"), "the head is far from the tail");
        assert_eq!(ends(&output("ééé", "", 0), 3), pair("é", "é"));
        assert_eq!(ends(&output("", "", 0), 3), pair("", ""));
    }
}
