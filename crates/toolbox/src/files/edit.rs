//! Edits of text: find and replace in one file with its difference, or in many.

use bytes::Bytes;
use similar::TextDiff;

use super::{Files, Part};
use crate::ToolboxError;

/// LIMIT: files that are edited in memory; what is larger is edited by programs inside.
const EDIT_MAX: u64 = 16 << 20;
/// LIMIT: a difference of two very different files is told coarsely instead of for minutes.
const DIFF_LIMIT: std::time::Duration = std::time::Duration::from_secs(2);

/// A text to be found and what takes its place, everywhere in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edit {
    /// Not empty.
    pub find: String,
    /// May be empty.
    pub replace: String,
}

/// What edits did to a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edited {
    /// Unified difference; empty where nothing changed.
    pub diff: String,
    /// How many places.
    pub replacements: u64,
}

/// What came of one file among many.
#[derive(Debug)]
pub struct Replaced {
    /// As it was named.
    pub file: String,
    /// How many places, or why none could be.
    pub outcome: Result<u64, ToolboxError>,
}

impl Files<'_> {
    /// Does the edits one after the other. A text that is not there is an error, and the file stays as it was.
    pub async fn edit(&self, path: &str, edits: &[Edit]) -> Result<Edited, ToolboxError> {
        if edits.is_empty() {
            return Err(ToolboxError::Invalid("edits must not be empty".into()));
        }
        let before = self.text(path).await?;
        let mut after = before.clone();
        let mut replacements = 0;
        for edit in edits {
            let (text, count) = replaced(&after, &edit.find, &edit.replace)?;
            if count == 0 {
                let shown: String = edit.find.chars().take(80).collect();
                return Err(ToolboxError::Invalid(format!("path '{path}' does not hold {shown:?}")));
            }
            (after, replacements) = (text, replacements + count);
        }
        if after != before {
            self.write(path, None, Bytes::from(after.clone())).await?;
        }
        let name = path.to_owned();
        Ok(Edited { diff: difference(&name, &before, &after), replacements })
    }

    /// Replaces a text in many files, each on its own. A file that does not hold it stays as it is, which is no error.
    pub async fn replace(&self, files: &[String], find: &str, replace: &str) -> Vec<Replaced> {
        let mut done = Vec::with_capacity(files.len());
        for file in files {
            let outcome = self.replace_in(file, find, replace).await;
            done.push(Replaced { file: file.clone(), outcome });
        }
        done
    }

    async fn replace_in(&self, path: &str, find: &str, replace: &str) -> Result<u64, ToolboxError> {
        let (after, count) = replaced(&self.text(path).await?, find, replace)?;
        if count > 0 {
            self.write(path, None, Bytes::from(after)).await?;
        }
        Ok(count)
    }

    async fn text(&self, path: &str) -> Result<String, ToolboxError> {
        let bytes = self.read_bytes(path, Part::Whole, EDIT_MAX).await?;
        String::from_utf8(bytes).map_err(|_| ToolboxError::Invalid(format!("path '{path}' is not text")))
    }
}

fn replaced(text: &str, find: &str, replace: &str) -> Result<(String, u64), ToolboxError> {
    if find.is_empty() {
        return Err(ToolboxError::Invalid("the text to find must not be empty".into()));
    }
    let count = text.matches(find).count() as u64;
    let grown = (text.len() as u64).saturating_add(count.saturating_mul(replace.len() as u64));
    if grown > EDIT_MAX * 2 {
        return Err(ToolboxError::TooLarge { what: "the edited file".into(), max: EDIT_MAX * 2 });
    }
    Ok((text.replace(find, replace), count))
}

fn difference(name: &str, before: &str, after: &str) -> String {
    let diff = TextDiff::configure().timeout(DIFF_LIMIT).diff_lines(before, after);
    let name = name.trim_start_matches('/');
    diff.unified_diff().context_radius(3).header(&format!("a/{name}"), &format!("b/{name}")).to_string()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_difference_is_one_that_patch_reads() {
        let diff = difference("/srv/a.txt", "one\ntwo\nthree\n", "one\n2\nthree\n");
        assert_eq!(diff, "--- a/srv/a.txt\n+++ b/srv/a.txt\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n");
        assert_eq!(difference("x", "same\n", "same\n"), "");
    }

    #[test]
    fn every_place_counts_and_nothing_is_found_in_nothing() {
        assert_eq!(replaced("aXbXc", "X", "--").unwrap(), ("a--b--c".into(), 2));
        assert!(replaced("a", "", "b").is_err());
        assert!(replaced(&"a".repeat(1 << 20), "a", &"b".repeat(1 << 20)).is_err(), "no bomb");
    }

    proptest! {
        #[test]
        fn counting_agrees_with_replacing(text in "[ab\n]{0,60}", find in "[ab]{1,3}") {
            let (after, count) = replaced(&text, &find, "").unwrap();
            prop_assert_eq!(text.len() - after.len(), usize::try_from(count).unwrap() * find.len());
        }
    }
}
