//! Git in a sandbox: requests and answers.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::flag::Flag;

/// What git printed.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct GitResult {
    pub output: String,
    /// Whether the output is longer than shown.
    pub truncated: bool,
}

/// User name and password or token for HTTP. They are used for one request and not stored. Not printed by `Debug`.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GitCredentials {
    /// Not needed for most tokens.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub username: String,
    pub password: String,
}

impl std::fmt::Debug for GitCredentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("GitCredentials(..)")
    }
}

/// Request to clone a repository.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GitCloneBody {
    /// Address. Credentials in it are used and not stored.
    #[schema(example = "https://github.com/octocat/hello.git")]
    pub url: String,
    /// Directory to create.
    pub path: String,
    /// Branch or tag. Default: the default branch of the repository.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// Commit to check out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Number of commits of history. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub depth: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credentials: Option<GitCredentials>,
}

/// Request to create an empty repository.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GitInitBody {
    /// Directory of the repository; created if missing.
    pub path: String,
    /// Name of the first branch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub bare: bool,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct GitQuery {
    /// Directory of the repository. Default: the sandbox's working directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

/// State of a working tree.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct GitStatus {
    /// Branch that is checked out; null if a commit is.
    pub branch: Option<String>,
    /// Last commit; null before the first.
    pub commit: Option<String>,
    /// Branch of a remote that the branch follows.
    pub upstream: Option<String>,
    /// Commits that the upstream lacks; null without a known upstream.
    pub ahead: Option<u32>,
    /// Commits that only the upstream has.
    pub behind: Option<u32>,
    /// Files that differ from the last commit.
    pub files: Vec<GitFile>,
}

/// A file that differs.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct GitFile {
    /// Relative to the top of the repository.
    pub path: String,
    /// Earlier path of a renamed or copied file.
    pub from: Option<String>,
    /// The change that the next commit contains.
    pub staged: GitChange,
    /// The change that is not staged.
    pub worktree: GitChange,
}

/// How a file differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum GitChange {
    Unmodified,
    Untracked,
    Modified,
    TypeChanged,
    Added,
    Deleted,
    Renamed,
    Copied,
    Unmerged,
    /// A word of a newer server.
    #[serde(other, skip_serializing)]
    Unknown,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct GitLogQuery {
    /// Directory of the repository. Default: the sandbox's working directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Maximum number of commits. Default 10000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Only commits after this time, in any form that git reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Only commits before this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
}

/// Commits, newest first.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct GitLog {
    pub items: Vec<GitCommit>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct GitCommit {
    pub hash: String,
    pub author: String,
    pub email: String,
    /// Subject and body.
    pub message: String,
    #[schema(format = DateTime)]
    pub at: String,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct GitDiffQuery {
    /// Directory of the repository. Default: the sandbox's working directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// `1`: compare the staged files with the last commit. Default `0`: the working tree with the staged files.
    #[param(value_type = Option<String>, pattern = "^(0|1|true|false)$")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub staged: Option<Flag>,
    /// Revision to compare the working tree with, or two revisions as `a..b`; cannot be combined with `staged`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Lines of context. Default 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<u32>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct GitBranches {
    /// Local branches by name.
    pub items: Vec<String>,
    /// Branch that is checked out.
    pub current: Option<String>,
}

/// Request to create a branch.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GitBranchBody {
    /// Directory of the repository. Default: the sandbox's working directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    pub name: String,
    /// Revision that the branch starts at. Default: the current commit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// Check it out too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub checkout: bool,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct GitBranchQuery {
    /// Directory of the repository. Default: the sandbox's working directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// `1`: also if its commits are in no other branch. Default `0`.
    #[param(value_type = Option<String>, pattern = "^(0|1|true|false)$")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub force: Option<Flag>,
}

/// Request to check out a branch or a revision.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GitCheckoutBody {
    /// Directory of the repository. Default: the sandbox's working directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Branch, tag or commit.
    pub target: String,
}

/// Request to stage files.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GitAddBody {
    /// Directory of the repository. Default: the sandbox's working directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Files and directories relative to the directory; `.` stages everything.
    #[schema(min_items = 1)]
    pub files: Vec<String>,
}

/// Request to commit what is staged.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GitCommitBody {
    /// Directory of the repository. Default: the sandbox's working directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    pub message: String,
    /// Name of the author. Default: the one in git's settings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    /// Email address of the author.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_empty: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct GitCommitted {
    /// Hash of the new commit.
    pub hash: String,
    pub output: String,
}

/// How much a reset changes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum GitResetMode {
    /// The branch.
    Soft,
    /// The branch and what is staged.
    #[default]
    Mixed,
    /// The branch, what is staged and the files.
    Hard,
}

/// Request to unstage files, or to move the branch to another commit.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GitResetBody {
    /// Directory of the repository. Default: the sandbox's working directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Default: mixed. Ignored with `files`.
    pub mode: GitResetMode,
    /// Revision. Default: the last commit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Only unstage these files.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
}

/// Request to discard changes of files.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GitRestoreBody {
    /// Directory of the repository. Default: the sandbox's working directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    #[schema(min_items = 1)]
    pub files: Vec<String>,
    /// Unstage them and keep the files, unless `worktree` is set too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub staged: bool,
    /// Restore the files; the default without `staged`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub worktree: bool,
    /// Revision to restore from. Default: what is staged, or the last commit with `staged`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// Request to push commits.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GitPushBody {
    /// Directory of the repository. Default: the sandbox's working directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Default: the remote of the branch, else `origin`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote: Option<String>,
    /// Default: the branch that is checked out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// Let later pushes and pulls of the branch use this remote.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub set_upstream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credentials: Option<GitCredentials>,
}

/// Request to fetch and merge commits.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GitPullBody {
    /// Directory of the repository. Default: the sandbox's working directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Default: the remote of the branch, else `origin`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote: Option<String>,
    /// Default: the branch that the current one follows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// Rebase instead of merging.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub rebase: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credentials: Option<GitCredentials>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct GitRemotes {
    pub items: Vec<GitRemote>,
}

/// A remote repository.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct GitRemote {
    pub name: String,
    /// Address, without credentials.
    pub url: String,
}

/// Request to add a remote.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GitRemoteBody {
    /// Directory of the repository. Default: the sandbox's working directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    pub name: String,
    pub url: String,
    /// Change the address of a remote that has this name.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overwrite: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_not_printed() {
        let body = GitPushBody {
            credentials: Some(GitCredentials { username: "canary".into(), password: "canary".into() }),
            ..GitPushBody::default()
        };
        assert!(!format!("{body:?}").contains("canary"));
    }
}
