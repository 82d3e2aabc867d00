//! The status of a work tree, from git's porcelain format version 2.

use super::{Git, GitOutput, words};
use crate::ToolboxError;

/// The status of a work tree.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkTreeStatus {
    /// The branch; `None` without one.
    pub branch: Option<String>,
    /// The last commit; `None` before the first.
    pub commit: Option<String>,
    /// The upstream of the branch.
    pub upstream: Option<String>,
    /// Commits that the upstream lacks, and the reverse; `None`: no known upstream.
    pub ahead_behind: Option<(u32, u32)>,
    /// Files that differ, by path.
    pub files: Vec<FileState>,
}

impl WorkTreeStatus {
    /// Whether HEAD is a commit instead of a branch.
    pub fn is_detached(&self) -> bool {
        self.branch.is_none()
    }
}

/// One changed file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileState {
    /// Relative to the top of the repository.
    pub path: String,
    /// Its earlier path, if it was renamed or copied.
    pub from: Option<String>,
    /// The staged change.
    pub staged: FileChange,
    /// The change in the work tree beyond that.
    pub worktree: FileChange,
}

/// The kind of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are git's own")]
pub enum FileChange {
    Unmodified,
    Untracked,
    Modified,
    TypeChanged,
    Added,
    Deleted,
    Renamed,
    Copied,
    Unmerged,
}

impl Git<'_> {
    /// The status in git's own format.
    pub async fn porcelain_status(&self) -> Result<GitOutput, ToolboxError> {
        self.here(words(["status", "--porcelain=v2", "--branch"])).await
    }

    /// The parsed status.
    pub async fn read_status(&self) -> Result<WorkTreeStatus, ToolboxError> {
        let args = words(["status", "--porcelain=v2", "--branch", "--untracked-files=all", "-z"]);
        parse(&self.here(args).await?.checked()?.stdout)
    }
}

fn parse(text: &str) -> Result<WorkTreeStatus, ToolboxError> {
    let broken = |why| ToolboxError::Unreadable { tool: "git", why };
    let mut status = WorkTreeStatus::default();
    let mut lines = text.split('\0').filter(|line| !line.is_empty());
    while let Some(line) = lines.next() {
        let (kind, rest) = line.split_once(' ').ok_or(broken("a line without a kind"))?;
        match kind {
            "#" => head(&mut status, rest),
            "?" => status.files.push(file(rest, None, FileChange::Untracked, FileChange::Untracked)),
            "!" => {}
            // XY sub mH mI mW hH hI path
            "1" => {
                let (states, path) = fields(rest, 7).ok_or(broken("a changed file without its fields"))?;
                status.files.push(file(path, None, states.0, states.1));
            }
            // XY sub mH mI mW hH hI Xscore path NUL from
            "2" => {
                let (states, path) = fields(rest, 8).ok_or(broken("a renamed file without its fields"))?;
                let from = lines.next().ok_or(broken("a renamed file without its old name"))?;
                status.files.push(file(path, Some(from), states.0, states.1));
            }
            // XY sub m1 m2 m3 mW h1 h2 h3 path
            "u" => {
                let (_, path) = fields(rest, 9).ok_or(broken("an unmerged file without its fields"))?;
                status.files.push(file(path, None, FileChange::Unmerged, FileChange::Unmerged));
            }
            // A later git may have more lines.
            _ => {}
        }
    }
    Ok(status)
}

fn head(status: &mut WorkTreeStatus, line: &str) {
    let Some((key, value)) = line.split_once(' ') else { return };
    match key {
        "branch.oid" => status.commit = Some(value.to_owned()).filter(|value| value != "(initial)"),
        "branch.head" => status.branch = Some(value.to_owned()).filter(|value| value != "(detached)"),
        "branch.upstream" => status.upstream = Some(value.to_owned()),
        "branch.ab" => {
            let mut counts = value.split(' ').map(|word| word.trim_start_matches(['+', '-']).parse().ok());
            status.ahead_behind = counts.next().flatten().zip(counts.next().flatten());
        }
        _ => {}
    }
}

/// The two states, and the rest after so many fields; a path may contain blanks.
fn fields(line: &str, before_path: usize) -> Option<((FileChange, FileChange), &str)> {
    let mut parts = line.splitn(before_path + 1, ' ');
    let mut states = parts.next()?.chars().map(state);
    let states = (states.next()?, states.next()?);
    let path = parts.nth(before_path - 1)?;
    Some((states, path))
}

fn state(letter: char) -> FileChange {
    match letter {
        'M' => FileChange::Modified,
        'T' => FileChange::TypeChanged,
        'A' => FileChange::Added,
        'D' => FileChange::Deleted,
        'R' => FileChange::Renamed,
        'C' => FileChange::Copied,
        'U' => FileChange::Unmerged,
        _ => FileChange::Unmodified,
    }
}

fn file(path: &str, from: Option<&str>, staged: FileChange, worktree: FileChange) -> FileState {
    FileState { path: path.to_owned(), from: from.map(str::to_owned), staged, worktree }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_status_is_read_whole() {
        let zero = "0000000000000000000000000000000000000000";
        let text = format!(
            "# branch.oid {zero}\0# branch.head main\0# branch.upstream origin/main\0# branch.ab +2 -1\0\
             1 .M N... 100644 100644 100644 {zero} {zero} a file\0\
             2 R. N... 100644 100644 100644 {zero} {zero} R100 new name\0old name\0\
             u UU N... 100644 100644 100644 100644 {zero} {zero} {zero} both\0? new\0"
        );
        let status = parse(&text).unwrap();
        assert_eq!((status.branch.as_deref(), status.ahead_behind), (Some("main"), Some((2, 1))));
        let files: Vec<_> =
            status.files.iter().map(|f| (f.path.as_str(), f.from.as_deref(), f.staged, f.worktree)).collect();
        assert_eq!(
            files,
            [
                ("a file", None, FileChange::Unmodified, FileChange::Modified),
                ("new name", Some("old name"), FileChange::Renamed, FileChange::Unmodified),
                ("both", None, FileChange::Unmerged, FileChange::Unmerged),
                ("new", None, FileChange::Untracked, FileChange::Untracked),
            ]
        );
    }

    #[test]
    fn a_fresh_or_detached_repository_has_less() {
        let fresh = parse("# branch.oid (initial)\0# branch.head main\0").unwrap();
        assert_eq!((fresh.commit, fresh.branch.as_deref()), (None, Some("main")));
        assert!(parse("# branch.oid abc\0# branch.head (detached)\0").unwrap().is_detached());
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "[12u?!#. AMRC\0a-z0-9]{0,200}") {
            let _ = parse(&text);
        }
    }

    #[test]
    fn any_status_of_git_is_read_or_refused() {
        atoll_robustness::check("git_status", |bytes| {
            let text = String::from_utf8_lossy(bytes);
            assert!(parse(&text).map_or(true, |status| status.files.len() <= text.split('\0').count()));
        });
    }
}
