//! Commits: history, diffs, staging, and new commits.

use super::{Git, GitOutput, paths, plain, reference, words};
use crate::ToolboxError;

/// What to compare.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiffOf {
    /// The work tree with the index.
    Unstaged,
    /// The index with the last commit.
    Staged,
    /// The work tree with a revision, or two revisions (`a..b`).
    Target(String),
}

/// A query for commits.
#[derive(Debug, Clone, Default)]
pub struct LogQuery {
    /// The maximal number, newest first.
    pub max: Option<u32>,
    /// Not before this time; in any format of git.
    pub since: Option<String>,
    /// Not after this time.
    pub until: Option<String>,
}

/// An existing commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// The full hash.
    pub hash: String,
    /// The name of the author.
    pub author: String,
    /// The address of the author.
    pub email: String,
    /// Subject and body.
    pub message: String,
    /// When it was written, in Unix seconds.
    pub at_s: i64,
}

/// A new commit of the index.
#[derive(Debug, Clone, Default)]
pub struct NewCommit {
    /// Subject and body.
    pub message: String,
    /// The author's name; requires an address. By default the one in the repository's settings.
    pub author: Option<String>,
    /// The author's address.
    pub email: Option<String>,
    /// Commit even if nothing is staged.
    pub allow_empty: bool,
}

/// The result of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// The full hash of the new commit; `None`: there is none.
    pub sha: Option<String>,
    /// The output of git.
    pub output: GitOutput,
}

/// What a reset changes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ResetMode {
    /// The branch only.
    Soft,
    /// The branch and the index.
    #[default]
    Mixed,
    /// The branch, the index and the files.
    Hard,
    /// As hard, unless changes would be lost.
    Merge,
    /// As hard, unless a changed file is in the way.
    Keep,
}

/// A reset.
#[derive(Debug, Clone, Default)]
pub struct Reset {
    pub mode: ResetMode,
    /// The target; by default the last commit.
    pub target: Option<String>,
    /// Unstage only these files; the mode is ignored then.
    pub files: Vec<String>,
}

/// Files to restore.
#[derive(Debug, Clone, Default)]
pub struct Restore {
    pub files: Vec<String>,
    /// Restore the index.
    pub staged: bool,
    /// Restore the work tree; the default if neither is set.
    pub worktree: bool,
    /// The source revision.
    pub source: Option<String>,
}

/// LIMIT: commits of one answer.
const LOG_MAX: u32 = 10_000;
/// The fields of a commit are separated by a byte that no name contains, and the commits by NUL.
const FIELDS: &str = "--format=%H%x1f%an%x1f%ae%x1f%at%x1f%B";

impl Git<'_> {
    /// Diffs with `context` lines around each change; default three.
    pub async fn diff(&self, of: &DiffOf, context: Option<u32>) -> Result<GitOutput, ToolboxError> {
        let mut args = words(["diff", "--no-ext-diff"]);
        if let Some(lines) = context {
            args.push(format!("--unified={lines}"));
        }
        match of {
            DiffOf::Unstaged => {}
            DiffOf::Staged => args.push("--cached".into()),
            DiffOf::Target(target) => args.push(reference(target)?.to_owned()),
        }
        args.push("--".into());
        self.here(args).await
    }

    /// Commits in git's own format.
    pub async fn log(&self, query: &LogQuery) -> Result<GitOutput, ToolboxError> {
        self.here(log_args(query, None)?).await
    }

    /// Parsed commits. A repository without commits has an empty history.
    pub async fn history(&self, query: &LogQuery) -> Result<Vec<Commit>, ToolboxError> {
        let output = self.here(log_args(query, Some(FIELDS))?).await?;
        if output.exit_code != 0 && output.stderr.contains("does not have any commits yet") {
            return Ok(Vec::new());
        }
        let output = output.checked()?;
        output.stdout.split('\0').filter(|text| !text.is_empty()).map(commit).collect()
    }

    /// A commit or another object in git's own format.
    pub async fn show(&self, revision: &str) -> Result<GitOutput, ToolboxError> {
        self.here(words(["show", "--no-ext-diff", reference(revision)?, "--"])).await
    }

    /// Stages files.
    pub async fn add(&self, files: &[String]) -> Result<GitOutput, ToolboxError> {
        self.here([words(["add"]), paths(files)?].concat()).await
    }

    /// Makes a commit.
    pub async fn commit(&self, new: &NewCommit) -> Result<Committed, ToolboxError> {
        if new.message.trim().is_empty() || new.message.contains('\0') {
            return Err(ToolboxError::Invalid("message must not be empty".into()));
        }
        let mut args = Vec::new();
        // The committer is the author; a sandbox often has no settings for it.
        let given = [("user.name", "author", &new.author), ("user.email", "email", &new.email)];
        for (key, what, value) in given {
            if let Some(value) = value {
                args.extend(["-c".to_owned(), format!("{key}={}", plain(what, value)?)]);
            }
        }
        args.push("commit".into());
        args.push(format!("--message={}", new.message));
        if new.allow_empty {
            args.push("--allow-empty".into());
        }
        let output = self.here(args).await?;
        if output.exit_code != 0 {
            return Ok(Committed { sha: None, output });
        }
        let head = self.here(words(["rev-parse", "--verify", "HEAD"])).await?.checked()?;
        Ok(Committed { sha: Some(head.stdout.trim().to_owned()), output })
    }

    /// Unstages files, or moves the branch.
    pub async fn reset(&self, reset: &Reset) -> Result<GitOutput, ToolboxError> {
        let target = reset.target.as_deref().map(reference).transpose()?.unwrap_or("HEAD");
        if !reset.files.is_empty() {
            return self.here([words(["reset", target]), paths(&reset.files)?].concat()).await;
        }
        let mode = match reset.mode {
            ResetMode::Soft => "--soft",
            ResetMode::Mixed => "--mixed",
            ResetMode::Hard => "--hard",
            ResetMode::Merge => "--merge",
            ResetMode::Keep => "--keep",
        };
        self.here(words(["reset", mode, target, "--"])).await
    }

    /// Restores files.
    pub async fn restore(&self, restore: &Restore) -> Result<GitOutput, ToolboxError> {
        let mut args = words(["restore"]);
        if restore.staged {
            args.push("--staged".into());
        }
        if restore.worktree || !restore.staged {
            args.push("--worktree".into());
        }
        if let Some(source) = &restore.source {
            args.push(format!("--source={}", reference(source)?));
        }
        args.extend(paths(&restore.files)?);
        self.here(args).await
    }
}

fn log_args(query: &LogQuery, format: Option<&str>) -> Result<Vec<String>, ToolboxError> {
    let mut args = words(["log", "--no-ext-diff", "--no-show-signature"]);
    args.push(format!("--max-count={}", query.max.unwrap_or(LOG_MAX).min(LOG_MAX)));
    for (option, time) in [("--since", &query.since), ("--until", &query.until)] {
        if let Some(time) = time {
            args.push(format!("{option}={}", plain("a time", time)?));
        }
    }
    if let Some(format) = format {
        args.extend(["-z".to_owned(), format.to_owned()]);
    }
    args.push("--".into());
    Ok(args)
}

fn commit(text: &str) -> Result<Commit, ToolboxError> {
    let broken = ToolboxError::Unreadable { tool: "git", why: "a commit without its fields" };
    let mut fields = text.splitn(5, '\x1f').map(str::to_owned);
    let mut next = || fields.next();
    let (Some(hash), Some(author), Some(email), Some(at), Some(message)) =
        (next(), next(), next(), next(), next())
    else {
        return Err(broken);
    };
    let at_s = at.parse().map_err(|_| broken)?;
    Ok(Commit { hash, author, email, message: message.trim_end().to_owned(), at_s })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn commits_are_read_field_by_field() {
        let read = commit("abc\x1fA B\x1fa@b\x1f1700000000\x1fsubject\n\nbody\n").unwrap();
        assert_eq!(
            (read.author.as_str(), read.at_s, read.message.as_str()),
            ("A B", 1_700_000_000, "subject\n\nbody")
        );
        assert!(commit("abc").is_err() && commit("a\x1fb\x1fc\x1fnever\x1fd").is_err());
    }

    #[test]
    fn times_are_no_options() {
        let query = LogQuery { since: Some("--output=/etc/passwd".into()), ..Default::default() };
        assert!(log_args(&query, None).is_err());
    }

    #[test]
    fn any_commit_is_read_or_refused() {
        atoll_robustness::check("git_commit", |bytes| {
            let _ = commit(&String::from_utf8_lossy(bytes));
        });
    }
}
