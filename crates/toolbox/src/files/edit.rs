//! Edits of text: find and replace in one file with a diff, or in many files.

use bytes::Bytes;
use similar::TextDiff;
use tokio::sync::Semaphore;

use super::{FilePart, Files};
use crate::ToolboxError;

/// LIMIT: size of files that are edited in memory; larger files have to be edited by programs in the sandbox.
const EDIT_MAX: u64 = 16 << 20;
/// LIMIT: after this time a diff of two very different files becomes coarse.
const DIFF_LIMIT: std::time::Duration = std::time::Duration::from_secs(2);
/// LIMIT: lines of a file for a diff; each costs a hundred bytes during the comparison.
const DIFF_LINES: usize = 200_000;
/// LIMIT: edits of one call, and bytes that all its edits may search together.
const EDITS_MAX: usize = 1_000;
const WORK_MAX: u64 = 128 << 20;
/// LIMIT: concurrent computations, so that the server stays responsive.
static ROOM: Semaphore = Semaphore::const_new(2);

/// A text to find and its replacement, everywhere in the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Edit {
    /// Must not be empty.
    pub find: String,
    /// May be empty.
    pub replace: String,
    /// More than one occurrence is an error.
    pub unique: bool,
}

/// The result of edits of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edited {
    /// Unified diff; empty if nothing changed.
    pub diff: String,
    /// The number of replacements.
    pub replacements: u64,
}

/// The result for one file among many.
#[derive(Debug)]
pub struct Replaced {
    /// As named in the request.
    pub file: String,
    /// The number of replacements, or the error.
    pub outcome: Result<u64, ToolboxError>,
}

impl Files<'_> {
    /// Applies the edits one after the other. If a text is not found, or not unique although it must be, that is an
    /// error, and the file stays unchanged.
    pub async fn edit(&self, path: &str, edits: &[Edit]) -> Result<Edited, ToolboxError> {
        if edits.is_empty() {
            return Err(ToolboxError::Invalid("edits must not be empty".into()));
        }
        if edits.len() > EDITS_MAX {
            return Err(ToolboxError::Invalid(format!("at most {EDITS_MAX} edits are allowed in one call")));
        }
        let before = self.text(path).await?;
        let (name, edits) = (path.to_owned(), edits.to_vec());
        let (edited, after) = apart(move || edit(&name, &before, &edits)).await?;
        if let Some(after) = after {
            self.write(path, None, Bytes::from(after)).await?;
        }
        Ok(edited)
    }

    /// Replaces a text in many files, each independently. A file without the text stays unchanged, which is no error.
    pub async fn replace(&self, files: &[String], find: &str, replace: &str) -> Vec<Replaced> {
        let mut done = Vec::with_capacity(files.len());
        for file in files {
            let outcome = self.replace_in(file, find, replace).await;
            done.push(Replaced { file: file.clone(), outcome });
        }
        done
    }

    async fn replace_in(&self, path: &str, find: &str, replace: &str) -> Result<u64, ToolboxError> {
        let before = self.text(path).await?;
        let (find, replace) = (find.to_owned(), replace.to_owned());
        let (after, count) = apart(move || replaced(&before, &find, &replace)).await?;
        if count > 0 {
            self.write(path, None, Bytes::from(after)).await?;
        }
        Ok(count)
    }

    async fn text(&self, path: &str) -> Result<String, ToolboxError> {
        let bytes = self.read_bytes(path, FilePart::Whole, EDIT_MAX).await?;
        String::from_utf8(bytes).map_err(|_| ToolboxError::Invalid(format!("path '{path}' is not text")))
    }
}

/// Runs long computations outside of the threads that answer requests.
async fn apart<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ToolboxError> + Send + 'static,
) -> Result<T, ToolboxError> {
    let stopped = |_| ToolboxError::Conflict("the server is shutting down".into());
    let place =
        ROOM.acquire().await.map_err(|_| ToolboxError::Conflict("the server is shutting down".into()))?;
    let done = tokio::task::spawn_blocking(move || {
        // Held until it is done, even if the caller is gone.
        let _place = place;
        work()
    });
    done.await.map_err(stopped)?
}

/// The result of the edits, and the new text if it changed.
fn edit(path: &str, before: &str, edits: &[Edit]) -> Result<(Edited, Option<String>), ToolboxError> {
    let mut after = before.to_owned();
    let (mut replacements, mut work) = (0, 0);
    for edit in edits {
        work += after.len() as u64;
        if work > WORK_MAX {
            let message =
                format!("there are too many edits for a file of {} bytes in one call", before.len());
            return Err(ToolboxError::Invalid(message));
        }
        let (text, count) = replaced(&after, &edit.find, &edit.replace)?;
        let shown = || edit.find.chars().take(80).collect::<String>();
        if count == 0 {
            return Err(ToolboxError::Invalid(format!("path '{path}' does not contain {:?}", shown())));
        }
        if edit.unique && count > 1 {
            let message = format!(
                "path '{path}' contains {:?} {count} times; find more of the text around it, or replace all",
                shown()
            );
            return Err(ToolboxError::Invalid(message));
        }
        (after, replacements) = (text, replacements + count);
    }
    let edited = Edited { diff: difference(path, before, &after), replacements };
    let changed = after != before;
    Ok((edited, changed.then_some(after)))
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
    let name = name.trim_start_matches('/');
    let lines = |text: &str| text.bytes().filter(|byte| *byte == b'\n').count();
    if before != after && lines(before).max(lines(after)) > DIFF_LINES {
        return format!(
            "--- a/{name}\n+++ b/{name}\n(more than {DIFF_LINES} lines: the difference is not shown)\n"
        );
    }
    let diff = TextDiff::configure().timeout(DIFF_LIMIT).diff_lines(before, after);
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

    #[test]
    fn edits_have_bounds() {
        let to_and_fro = [("a", "b"), ("b", "a")].map(|(f, r)| Edit {
            find: f.into(),
            replace: r.into(),
            ..Edit::default()
        });
        let edits: Vec<Edit> = to_and_fro.iter().cycle().take(EDITS_MAX).cloned().collect();
        assert!(edit("x", "aaa", &edits).is_ok());
        assert!(edit("x", &"a".repeat(1 << 20), &edits).is_err());
        let many = "\n".repeat(DIFF_LINES + 1);
        assert!(difference("x", &many, &format!("{many}y")).contains("not shown"));
        assert_eq!(difference("x", &many, &many), "");
    }

    #[test]
    fn a_text_that_must_be_unique_stands_once() {
        let once = |find: &str| Edit { find: find.into(), replace: "x".into(), unique: true };
        assert_eq!(edit("f", "a b b", &[once("a")]).unwrap().1.unwrap(), "x b b");
        let refused = edit("f", "a b b", &[once("a"), once("b")]).unwrap_err().to_string();
        assert!(refused.contains("2 times"), "{refused}");
    }

    proptest! {
        #[test]
        fn counting_agrees_with_replacing(text in "[ab\n]{0,60}", find in "[ab]{1,3}") {
            let (after, count) = replaced(&text, &find, "").unwrap();
            prop_assert_eq!(text.len() - after.len(), usize::try_from(count).unwrap() * find.len());
        }
    }
}
