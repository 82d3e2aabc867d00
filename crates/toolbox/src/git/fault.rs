//! Classifies failures of git by its messages (in English, because of the environment). One table; the first matching
//! row counts.

/// The kind of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GitFault {
    /// Credentials are missing or wrong.
    Auth,
    /// No repository exists at that path or address.
    RepoNotFound,
    /// The branch, tag or commit does not exist.
    BranchNotFound,
    /// The branch exists already.
    BranchExists,
    /// The remote has commits that are missing here.
    PushRejected,
    /// The remote refused it.
    RemoteRejected,
    /// Changed files are in the way.
    DirtyWorktree,
    /// Two changes of the same lines.
    MergeConflict,
    /// The remote can't be reached.
    Transport,
    /// The destination exists already.
    Exists,
    /// There are no changes to commit.
    NothingToCommit,
    /// Any other failure.
    Other,
}

#[rustfmt::skip]
const TABLE: &[(GitFault, &[&str])] = &[
    (GitFault::Auth, &["Authentication failed", "could not read Username", "could not read Password",
        "terminal prompts disabled", "returned error: 401", "returned error: 403", "Permission denied (publickey"]),
    (GitFault::RemoteRejected, &["[remote rejected]", "hook declined", "protected branch"]),
    (GitFault::PushRejected, &["[rejected]", "non-fast-forward", "fetch first"]),
    (GitFault::DirtyWorktree, &["would be overwritten", "commit your changes or stash", "cannot pull with rebase",
        "your index contains uncommitted changes"]),
    (GitFault::MergeConflict, &["CONFLICT", "Automatic merge failed", "unmerged files", "needs merge",
        "you need to resolve your current index"]),
    (GitFault::BranchExists, &["a branch named"]),
    (GitFault::BranchNotFound, &["Remote branch", "couldn't find remote ref", "does not match any", "did not match any",
        "unknown revision", "bad revision", "not a valid object", "not a commit", "reference is not a tree",
        "invalid reference", "is not a valid branch", "upload-pack: not our ref"]),
    (GitFault::RepoNotFound, &["not a git repository", "does not appear to be a git repository", "cannot change to",
        "Repository not found", "repository not found", "No such remote"]),
    (GitFault::Transport, &["Could not resolve host", "Failed to connect", "Connection refused", "Connection timed out",
        "Connection reset", "SSL certificate", "unable to connect", "early EOF", "Could not read from remote",
        "unable to access", "the remote end hung up", "Network is unreachable"]),
    (GitFault::Exists, &["already exists"]),
    (GitFault::NothingToCommit, &["nothing to commit", "nothing added to commit", "no changes added to commit"]),
];

impl GitFault {
    /// Classifies the output of git.
    pub fn of(words: &str) -> Self {
        // Two failures have the same first word and differ at the end.
        let ends = |begin: &str, end: &str| {
            words
                .lines()
                .any(|line| line.contains(begin) && line.trim_end().trim_end_matches('.').ends_with(end))
        };
        if ends("branch '", "not found") {
            return Self::BranchNotFound;
        }
        if ends("repository '", "not found")
            || ends("repository '", "does not exist")
            || words.contains("error: 404")
        {
            return Self::RepoNotFound;
        }
        let fits = |needles: &[&str]| needles.iter().any(|needle| words.contains(needle));
        TABLE.iter().find(|(_, needles)| fits(needles)).map_or(Self::Other, |(fault, _)| *fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_told_apart_by_what_git_says() {
        for (words, wanted) in [
            ("fatal: Authentication failed for 'http://h/'", GitFault::Auth),
            ("fatal: could not read Username for 'http://h': terminal prompts disabled", GitFault::Auth),
            ("fatal: repository 'http://h/x/' not found", GitFault::RepoNotFound),
            ("fatal: repository '/nowhere' does not exist", GitFault::RepoNotFound),
            ("fatal: not a git repository (or any of the parent directories): .git", GitFault::RepoNotFound),
            ("fatal: cannot change to '/x': No such file or directory", GitFault::RepoNotFound),
            ("fatal: Remote branch x not found in upstream origin", GitFault::BranchNotFound),
            ("error: pathspec 'x' did not match any file(s) known to git", GitFault::BranchNotFound),
            ("fatal: invalid reference: x", GitFault::BranchNotFound),
            ("error: branch 'x' not found.", GitFault::BranchNotFound),
            ("error: branch 'x' not found", GitFault::BranchNotFound),
            ("error: src refspec x does not match any", GitFault::BranchNotFound),
            ("fatal: a branch named 'x' already exists", GitFault::BranchExists),
            (" ! [rejected]        main -> main (fetch first)", GitFault::PushRejected),
            (" ! [remote rejected] main -> main (pre-receive hook declined)", GitFault::RemoteRejected),
            (
                "error: Your local changes to the following files would be overwritten by checkout:",
                GitFault::DirtyWorktree,
            ),
            ("CONFLICT (content): Merge conflict in a\nAutomatic merge failed", GitFault::MergeConflict),
            ("fatal: unable to access 'http://h/': Could not resolve host: h", GitFault::Transport),
            ("fatal: unable to access 'http://h/': The requested URL returned error: 403", GitFault::Auth),
            ("fatal: destination path 'x' already exists and is not an empty directory.", GitFault::Exists),
            ("nothing to commit, working tree clean", GitFault::NothingToCommit),
            ("something new", GitFault::Other),
        ] {
            assert_eq!(GitFault::of(words), wanted, "{words}");
        }
    }
}
