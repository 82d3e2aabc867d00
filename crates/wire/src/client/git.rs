//! Git in a sandbox.

use reqwest::Method;
use serde::Serialize;

use super::{Answer, Client, MapError, sandbox_path, segment};
use crate::git::{
    GitAddBody, GitBranchBody, GitBranchQuery, GitBranches, GitCheckoutBody, GitCloneBody, GitCommitBody,
    GitCommitted, GitDiffQuery, GitInitBody, GitLog, GitLogQuery, GitPullBody, GitPushBody, GitQuery,
    GitRemoteBody, GitRemotes, GitResetBody, GitRestoreBody, GitResult, GitStatus,
};

impl<M: MapError> Client<M> {
    /// Clones a repository. The server ends a clone after 30 minutes.
    pub async fn git_clone(&self, ident: &str, body: &GitCloneBody) -> Result<Answer<GitResult>, M::Error> {
        self.git(ident, "clone", body).await
    }

    pub async fn git_init(&self, ident: &str, body: &GitInitBody) -> Result<Answer<GitResult>, M::Error> {
        self.git(ident, "init", body).await
    }

    pub async fn git_status(&self, ident: &str, query: &GitQuery) -> Result<Answer<GitStatus>, M::Error> {
        self.get_query(&sandbox_path(ident, "/git/status"), query).await
    }

    pub async fn git_log(&self, ident: &str, query: &GitLogQuery) -> Result<Answer<GitLog>, M::Error> {
        self.get_query(&sandbox_path(ident, "/git/log"), query).await
    }

    pub async fn git_diff(&self, ident: &str, query: &GitDiffQuery) -> Result<Answer<GitResult>, M::Error> {
        self.get_query(&sandbox_path(ident, "/git/diff"), query).await
    }

    pub async fn git_branches(&self, ident: &str, query: &GitQuery) -> Result<Answer<GitBranches>, M::Error> {
        self.get_query(&sandbox_path(ident, "/git/branches"), query).await
    }

    pub async fn git_create_branch(
        &self,
        ident: &str,
        body: &GitBranchBody,
    ) -> Result<Answer<GitResult>, M::Error> {
        self.git(ident, "branches", body).await
    }

    pub async fn git_delete_branch(
        &self,
        ident: &str,
        name: &str,
        query: &GitBranchQuery,
    ) -> Result<(), M::Error> {
        let path = sandbox_path(ident, &format!("/git/branches/{}", segment(name)));
        self.done(self.request(Method::DELETE, &path).query(query)).await
    }

    pub async fn git_checkout(
        &self,
        ident: &str,
        body: &GitCheckoutBody,
    ) -> Result<Answer<GitResult>, M::Error> {
        self.git(ident, "checkout", body).await
    }

    pub async fn git_add(&self, ident: &str, body: &GitAddBody) -> Result<Answer<GitResult>, M::Error> {
        self.git(ident, "add", body).await
    }

    pub async fn git_commit(
        &self,
        ident: &str,
        body: &GitCommitBody,
    ) -> Result<Answer<GitCommitted>, M::Error> {
        self.post(&sandbox_path(ident, "/git/commit"), body).await
    }

    pub async fn git_reset(&self, ident: &str, body: &GitResetBody) -> Result<Answer<GitResult>, M::Error> {
        self.git(ident, "reset", body).await
    }

    pub async fn git_restore(
        &self,
        ident: &str,
        body: &GitRestoreBody,
    ) -> Result<Answer<GitResult>, M::Error> {
        self.git(ident, "restore", body).await
    }

    pub async fn git_push(&self, ident: &str, body: &GitPushBody) -> Result<Answer<GitResult>, M::Error> {
        self.git(ident, "push", body).await
    }

    pub async fn git_pull(&self, ident: &str, body: &GitPullBody) -> Result<Answer<GitResult>, M::Error> {
        self.git(ident, "pull", body).await
    }

    pub async fn git_remotes(&self, ident: &str, query: &GitQuery) -> Result<Answer<GitRemotes>, M::Error> {
        self.get_query(&sandbox_path(ident, "/git/remotes"), query).await
    }

    pub async fn git_add_remote(
        &self,
        ident: &str,
        body: &GitRemoteBody,
    ) -> Result<Answer<GitResult>, M::Error> {
        self.git(ident, "remotes", body).await
    }

    /// The server's own limit for git is longer than that of other requests.
    async fn git(
        &self,
        ident: &str,
        verb: &str,
        body: &impl Serialize,
    ) -> Result<Answer<GitResult>, M::Error> {
        let path = sandbox_path(ident, &format!("/git/{verb}"));
        self.answer_without_limit(self.request(Method::POST, &path).json(body)).await
    }
}
