//! Branches: list, make, check out, delete.

use super::{Git, GitOutput, reference, words};
use crate::ToolboxError;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum BranchScope {
    /// Of this repository.
    #[default]
    Local,
    /// Of its remotes, as last fetched.
    Remote,
    /// Both.
    All,
}

/// A query for branches.
#[derive(Debug, Clone, Default)]
pub struct BranchQuery {
    pub scope: BranchScope,
    /// Only those that contain this commit.
    pub contains: Option<String>,
    /// Only those that do not contain this commit.
    pub not_contains: Option<String>,
}

/// The local branches.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Branches {
    /// By name.
    pub names: Vec<String>,
    /// The checked-out one.
    pub current: Option<String>,
}

impl Git<'_> {
    /// Lists branches in git's own format.
    pub async fn branches(&self, query: &BranchQuery) -> Result<GitOutput, ToolboxError> {
        let mut args = words(["branch", "--list", "--no-column"]);
        match query.scope {
            BranchScope::Local => {}
            BranchScope::Remote => args.push("--remotes".into()),
            BranchScope::All => args.push("--all".into()),
        }
        if let Some(commit) = &query.contains {
            args.push(format!("--contains={}", reference(commit)?));
        }
        if let Some(commit) = &query.not_contains {
            args.push(format!("--no-contains={}", reference(commit)?));
        }
        self.here(args).await
    }

    /// The local branches by name. A repository without a commit has the branch of its first commit.
    pub async fn list_branches(&self) -> Result<Branches, ToolboxError> {
        let format = "--format=%(refname:short)";
        let listed = self.here(words(["for-each-ref", format, "refs/heads/"])).await?.checked()?;
        let mut names: Vec<String> = listed.stdout.lines().map(str::to_owned).collect();
        let head = self.here(words(["symbolic-ref", "--quiet", "--short", "HEAD"])).await?;
        let current = Some(head.stdout.trim_end().to_owned()).filter(|name| !name.is_empty());
        if let Some(current) = &current
            && !names.contains(current)
        {
            names.push(current.clone());
        }
        Ok(Branches { names, current })
    }

    /// Makes a branch at `base`, or at the current commit.
    pub async fn create_branch(
        &self,
        name: &str,
        base: Option<&str>,
        checkout: bool,
    ) -> Result<GitOutput, ToolboxError> {
        let name = reference(name)?;
        let mut args = if checkout { words(["checkout", "-b", name]) } else { words(["branch", name]) };
        if let Some(base) = base {
            args.push(reference(base)?.to_owned());
        }
        if checkout {
            args.push("--".into());
        }
        self.here(args).await
    }

    /// Checks out a branch or revision; with `create` a new branch.
    pub async fn checkout(&self, branch: &str, create: bool) -> Result<GitOutput, ToolboxError> {
        if create {
            return self.create_branch(branch, None, true).await;
        }
        // The dashes exclude a path; a branch of a remote is still found by its name.
        self.here(words(["checkout", reference(branch)?, "--"])).await
    }

    /// Deletes a branch; with `force` also an unmerged one.
    pub async fn delete_branch(&self, name: &str, force: bool) -> Result<GitOutput, ToolboxError> {
        let how = if force { "-D" } else { "-d" };
        self.here(words(["branch", how, "--", reference(name)?])).await
    }
}
