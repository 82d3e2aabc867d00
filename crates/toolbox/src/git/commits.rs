//! Commits: what is in them, what will be, and how they are made.

use super::{Git, GitOutput, paths, plain, reference, words};
use crate::ToolboxError;

/// What to compare with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiffOf {
    /// The folder with what is staged.
    Unstaged,
    /// What is staged with the last commit.
    Staged,
    /// The folder with a revision, or two revisions (`a..b`).
    Target(String),
}

/// Which commits.
#[derive(Debug, Clone, Default)]
pub struct LogQuery {
    /// At most so many, newest first.
    pub max: Option<u32>,
    /// Not before; any time that git reads.
    pub since: Option<String>,
    /// Not after.
    pub until: Option<String>,
}

/// A commit that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// Full name.
    pub hash: String,
    /// Who wrote it.
    pub author: String,
    /// Their address.
    pub email: String,
    /// Subject and body.
    pub message: String,
    /// When it was written, in Unix seconds.
    pub at_s: i64,
}

/// A commit to make of what is staged.
#[derive(Debug, Clone, Default)]
pub struct NewCommit {
    /// Subject and body.
    pub message: String,
    /// Who wrote it; with an address. By default whom the repository's settings name.
    pub author: Option<String>,
    /// Their address.
    pub email: Option<String>,
    /// Also if nothing is staged.
    pub allow_empty: bool,
}

/// What came of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// Full name of the new commit; `None`: there is none.
    pub sha: Option<String>,
    /// What git said.
    pub output: GitOutput,
}

/// How much a reset changes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ResetMode {
    /// The branch alone.
    Soft,
    /// And what is staged.
    #[default]
    Mixed,
    /// And the files.
    Hard,
    /// As hard, unless it would lose changes.
    Merge,
    /// As hard, unless a changed file is in the way.
    Keep,
}

/// A reset.
#[derive(Debug, Clone, Default)]
pub struct Reset {
    /// How much.
    pub mode: ResetMode,
    /// Where to; by default the last commit.
    pub target: Option<String>,
    /// Only these are unstaged; the mode does not count then.
    pub files: Vec<String>,
}

/// Files to be put back.
#[derive(Debug, Clone, Default)]
pub struct Restore {
    /// Which.
    pub files: Vec<String>,
    /// What is staged of them.
    pub staged: bool,
    /// The files themselves; so too where neither is asked for.
    pub worktree: bool,
    /// As they are in this revision.
    pub source: Option<String>,
}

/// LIMIT: more than anybody reads; git itself has none.
const LOG_MAX: u32 = 10_000;
/// Fields of a commit are told apart by a byte that no name has, and the commits by NUL.
const FIELDS: &str = "--format=%H%x1f%an%x1f%ae%x1f%at%x1f%B";

impl Git<'_> {
    /// Differences; `context` lines around each, three where none is said.
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

    /// Commits as git shows them.
    pub async fn log(&self, query: &LogQuery) -> Result<GitOutput, ToolboxError> {
        self.here(log_args(query, None)?).await
    }

    /// Commits, read. A repository without any has an empty history.
    pub async fn history(&self, query: &LogQuery) -> Result<Vec<Commit>, ToolboxError> {
        let output = self.here(log_args(query, Some(FIELDS))?).await?;
        if output.exit_code != 0 && output.stderr.contains("does not have any commits yet") {
            return Ok(Vec::new());
        }
        let output = output.checked()?;
        output.stdout.split('\0').filter(|text| !text.is_empty()).map(commit).collect()
    }

    /// A commit or another object as git shows it.
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
        // Whoever commits is whoever wrote it; a sandbox has nobody else, and often no settings.
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

    /// Unstages files, or puts the branch elsewhere.
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

    /// Puts files back.
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
