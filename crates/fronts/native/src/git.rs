//! Git in a sandbox, by the sandbox's own `git`.

use atoll_client::git::{
    GitAddBody, GitBranchBody, GitBranchQuery, GitBranches, GitChange, GitCheckoutBody, GitCloneBody,
    GitCommit, GitCommitBody, GitCommitted, GitCredentials, GitDiffQuery, GitFile, GitInitBody, GitLog,
    GitLogQuery, GitPullBody, GitPushBody, GitQuery, GitRemote, GitRemoteBody, GitRemotes, GitResetBody,
    GitResetMode, GitRestoreBody, GitResult, GitStatus,
};
use atoll_front_kit::{ApiError, Caller, JsonResponse, Path, Query, StrictJson, created, ok, rfc3339_millis};
use atoll_toolbox::{
    CloneFrom, Commit, Credentials, DiffOf, FileChange, FileState, Git, GitOutput, LogQuery, NewCommit, Pull,
    Push, Remote, Reset, ResetMode, Restore, WorkTreeStatus,
};
use axum::extract::State;
use axum::http::StatusCode;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::App;
use crate::convert::{FromCore, IntoApi};
use crate::tools::{SandboxTools, tools};

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(clone_repository))
        .routes(routes!(init))
        .routes(routes!(status))
        .routes(routes!(log))
        .routes(routes!(diff))
        .routes(routes!(branches, create_branch))
        .routes(routes!(delete_branch))
        .routes(routes!(checkout))
        .routes(routes!(add))
        .routes(routes!(commit))
        .routes(routes!(reset))
        .routes(routes!(restore))
        .routes(routes!(push))
        .routes(routes!(pull))
        .routes(routes!(remotes, add_remote))
}

impl SandboxTools {
    fn git(&self, path: Option<String>) -> Git<'_> {
        self.toolbox.git(self.directory(path))
    }
}

/// The response to a successful call of git; a failure of git is an error.
fn done(output: GitOutput) -> Result<JsonResponse<GitResult>, ApiError> {
    let output = output.checked()?;
    Ok(ok(GitResult { output: output.output(), truncated: output.truncated }))
}

fn credentials(given: GitCredentials) -> Credentials {
    Credentials { username: given.username, password: given.password }
}

impl FromCore<FileChange> for GitChange {
    fn from_core(change: FileChange) -> Self {
        match change {
            FileChange::Unmodified => Self::Unmodified,
            FileChange::Untracked => Self::Untracked,
            FileChange::Modified => Self::Modified,
            FileChange::TypeChanged => Self::TypeChanged,
            FileChange::Added => Self::Added,
            FileChange::Deleted => Self::Deleted,
            FileChange::Renamed => Self::Renamed,
            FileChange::Copied => Self::Copied,
            FileChange::Unmerged => Self::Unmerged,
        }
    }
}

impl FromCore<FileState> for GitFile {
    fn from_core(file: FileState) -> Self {
        Self {
            path: file.path,
            from: file.from,
            staged: file.staged.into_api(),
            worktree: file.worktree.into_api(),
        }
    }
}

impl FromCore<WorkTreeStatus> for GitStatus {
    fn from_core(status: WorkTreeStatus) -> Self {
        Self {
            branch: status.branch,
            commit: status.commit,
            upstream: status.upstream,
            ahead: status.ahead_behind.map(|(ahead, _)| ahead),
            behind: status.ahead_behind.map(|(_, behind)| behind),
            files: status.files.into_iter().map(GitFile::from_core).collect(),
        }
    }
}

impl FromCore<Commit> for GitCommit {
    fn from_core(commit: Commit) -> Self {
        Self {
            hash: commit.hash,
            author: commit.author,
            email: commit.email,
            message: commit.message,
            at: rfc3339_millis(commit.at_s.saturating_mul(1_000)),
        }
    }
}

impl FromCore<Remote> for GitRemote {
    fn from_core(remote: Remote) -> Self {
        Self { name: remote.name, url: remote.url }
    }
}

/// Clones a repository into a new directory. Ended after 30 minutes.
///
/// Credentials are in the environment of this one `git` process, for the host of the address only. They are stored
/// neither in the repository nor on the server.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/git/clone", tag = "git",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    request_body = GitCloneBody, responses((status = 200, body = GitResult)))]
pub(crate) async fn clone_repository(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    StrictJson(body): StrictJson<GitCloneBody>,
) -> Result<JsonResponse<GitResult>, ApiError> {
    let from = CloneFrom {
        url: body.url,
        branch: body.branch,
        commit: body.commit,
        depth: body.depth,
        credentials: body.credentials.map(credentials),
        insecure_tls: false,
    };
    let tools = tools(&app, &who, &ident).await?;
    done(tools.git(Some(body.path)).clone_from(&from).await?)
}

/// Creates an empty repository.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/git/init", tag = "git",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    request_body = GitInitBody, responses((status = 200, body = GitResult)))]
pub(crate) async fn init(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    StrictJson(body): StrictJson<GitInitBody>,
) -> Result<JsonResponse<GitResult>, ApiError> {
    let tools = tools(&app, &who, &ident).await?;
    done(tools.git(Some(body.path)).init(body.bare, body.branch.as_deref()).await?)
}

/// Returns the branch and the files that differ from the last commit.
#[utoipa::path(get, path = "/v1/sandboxes/{ident}/git/status", tag = "git",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name"), GitQuery),
    responses((status = 200, body = GitStatus)))]
pub(crate) async fn status(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    Query(query): Query<GitQuery>,
) -> Result<JsonResponse<GitStatus>, ApiError> {
    let tools = tools(&app, &who, &ident).await?;
    Ok(ok(tools.git(query.path).read_status().await?.into_api()))
}

/// Returns the commits of the current branch, newest first.
#[utoipa::path(get, path = "/v1/sandboxes/{ident}/git/log", tag = "git",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name"), GitLogQuery),
    responses((status = 200, body = GitLog)))]
pub(crate) async fn log(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    Query(query): Query<GitLogQuery>,
) -> Result<JsonResponse<GitLog>, ApiError> {
    let wanted = LogQuery { max: query.limit, since: query.since, until: query.until };
    let commits = tools(&app, &who, &ident).await?.git(query.path).history(&wanted).await?;
    Ok(ok(GitLog { items: commits.into_iter().map(GitCommit::from_core).collect() }))
}

/// Returns the difference as a patch: of the working tree, of what is staged, or to a revision.
#[utoipa::path(get, path = "/v1/sandboxes/{ident}/git/diff", tag = "git",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name"), GitDiffQuery),
    responses((status = 200, body = GitResult)))]
pub(crate) async fn diff(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    Query(query): Query<GitDiffQuery>,
) -> Result<JsonResponse<GitResult>, ApiError> {
    let of = match (query.target, query.staged.unwrap_or_default().0) {
        (Some(_), true) => return Err(ApiError::invalid("target and staged cannot be combined")),
        (Some(target), false) => DiffOf::Target(target),
        (None, true) => DiffOf::Staged,
        (None, false) => DiffOf::Unstaged,
    };
    let tools = tools(&app, &who, &ident).await?;
    done(tools.git(query.path).diff(&of, query.context).await?)
}

/// Lists the local branches.
#[utoipa::path(get, path = "/v1/sandboxes/{ident}/git/branches", tag = "git",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name"), GitQuery),
    responses((status = 200, body = GitBranches)))]
pub(crate) async fn branches(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    Query(query): Query<GitQuery>,
) -> Result<JsonResponse<GitBranches>, ApiError> {
    let found = tools(&app, &who, &ident).await?.git(query.path).list_branches().await?;
    Ok(ok(GitBranches { items: found.names, current: found.current }))
}

/// Creates a branch.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/git/branches", tag = "git",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    request_body = GitBranchBody, responses((status = 200, body = GitResult)))]
pub(crate) async fn create_branch(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    StrictJson(body): StrictJson<GitBranchBody>,
) -> Result<JsonResponse<GitResult>, ApiError> {
    let tools = tools(&app, &who, &ident).await?;
    done(tools.git(body.path).create_branch(&body.name, body.base.as_deref(), body.checkout).await?)
}

/// Deletes a local branch.
#[utoipa::path(delete, path = "/v1/sandboxes/{ident}/git/branches/{branch}", tag = "git",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name"), ("branch" = String, Path),
        GitBranchQuery),
    responses((status = 204, description = "Gone")))]
pub(crate) async fn delete_branch(
    State(app): State<App>,
    Caller(who): Caller,
    Path((ident, branch)): Path<(String, String)>,
    Query(query): Query<GitBranchQuery>,
) -> Result<StatusCode, ApiError> {
    let force = query.force.unwrap_or_default().0;
    let tools = tools(&app, &who, &ident).await?;
    tools.git(query.path).delete_branch(&branch, force).await?.checked()?;
    Ok(StatusCode::NO_CONTENT)
}

/// Checks out a branch, a tag or a commit.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/git/checkout", tag = "git",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    request_body = GitCheckoutBody, responses((status = 200, body = GitResult)))]
pub(crate) async fn checkout(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    StrictJson(body): StrictJson<GitCheckoutBody>,
) -> Result<JsonResponse<GitResult>, ApiError> {
    let tools = tools(&app, &who, &ident).await?;
    done(tools.git(body.path).checkout(&body.target, false).await?)
}

/// Stages files for the next commit.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/git/add", tag = "git",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    request_body = GitAddBody, responses((status = 200, body = GitResult)))]
pub(crate) async fn add(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    StrictJson(body): StrictJson<GitAddBody>,
) -> Result<JsonResponse<GitResult>, ApiError> {
    let tools = tools(&app, &who, &ident).await?;
    done(tools.git(body.path).add(&body.files).await?)
}

/// Commits what is staged.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/git/commit", tag = "git",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    request_body = GitCommitBody, responses((status = 201, body = GitCommitted)))]
pub(crate) async fn commit(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    StrictJson(body): StrictJson<GitCommitBody>,
) -> Result<JsonResponse<GitCommitted>, ApiError> {
    let GitCommitBody { path, message, author, email, allow_empty } = body;
    let new = NewCommit { message, author, email, allow_empty };
    let committed = tools(&app, &who, &ident).await?.git(path).commit(&new).await?;
    let output = committed.output.checked()?.output();
    Ok(created(GitCommitted { hash: committed.sha.unwrap_or_default(), output }))
}

/// Unstages files, or moves the branch to another commit.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/git/reset", tag = "git",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    request_body = GitResetBody, responses((status = 200, body = GitResult)))]
pub(crate) async fn reset(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    StrictJson(body): StrictJson<GitResetBody>,
) -> Result<JsonResponse<GitResult>, ApiError> {
    let mode = match body.mode {
        GitResetMode::Soft => ResetMode::Soft,
        GitResetMode::Mixed => ResetMode::Mixed,
        GitResetMode::Hard => ResetMode::Hard,
    };
    let reset = Reset { mode, target: body.target, files: body.files };
    let tools = tools(&app, &who, &ident).await?;
    done(tools.git(body.path).reset(&reset).await?)
}

/// Discards changes of files.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/git/restore", tag = "git",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    request_body = GitRestoreBody, responses((status = 200, body = GitResult)))]
pub(crate) async fn restore(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    StrictJson(body): StrictJson<GitRestoreBody>,
) -> Result<JsonResponse<GitResult>, ApiError> {
    let GitRestoreBody { path, files, staged, worktree, source } = body;
    let tools = tools(&app, &who, &ident).await?;
    done(tools.git(path).restore(&Restore { files, staged, worktree, source }).await?)
}

/// Pushes commits to a remote. Ended after 30 minutes.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/git/push", tag = "git",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    request_body = GitPushBody, responses((status = 200, body = GitResult)))]
pub(crate) async fn push(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    StrictJson(body): StrictJson<GitPushBody>,
) -> Result<JsonResponse<GitResult>, ApiError> {
    let GitPushBody { path, remote, branch, set_upstream, credentials: given } = body;
    let push = Push { remote, branch, set_upstream, credentials: given.map(credentials) };
    let tools = tools(&app, &who, &ident).await?;
    done(tools.git(path).push(&push).await?)
}

/// Fetches commits from a remote and merges them, or rebases. Ended after 30 minutes.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/git/pull", tag = "git",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    request_body = GitPullBody, responses((status = 200, body = GitResult)))]
pub(crate) async fn pull(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    StrictJson(body): StrictJson<GitPullBody>,
) -> Result<JsonResponse<GitResult>, ApiError> {
    let GitPullBody { path, remote, branch, rebase, credentials: given } = body;
    let pull = Pull { remote, branch, rebase, credentials: given.map(credentials) };
    let tools = tools(&app, &who, &ident).await?;
    done(tools.git(path).pull(&pull).await?)
}

/// Lists the remotes.
#[utoipa::path(get, path = "/v1/sandboxes/{ident}/git/remotes", tag = "git",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name"), GitQuery),
    responses((status = 200, body = GitRemotes)))]
pub(crate) async fn remotes(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    Query(query): Query<GitQuery>,
) -> Result<JsonResponse<GitRemotes>, ApiError> {
    let found = tools(&app, &who, &ident).await?.git(query.path).remotes().await?;
    Ok(ok(GitRemotes { items: found.into_iter().map(GitRemote::from_core).collect() }))
}

/// Adds a remote. Credentials in its address are removed.
#[utoipa::path(post, path = "/v1/sandboxes/{ident}/git/remotes", tag = "git",
    params(("ident" = String, Path, description = "Id, unique prefix of an id, or name")),
    request_body = GitRemoteBody, responses((status = 200, body = GitResult)))]
pub(crate) async fn add_remote(
    State(app): State<App>,
    Caller(who): Caller,
    Path(ident): Path<String>,
    StrictJson(body): StrictJson<GitRemoteBody>,
) -> Result<JsonResponse<GitResult>, ApiError> {
    let remote = Remote { name: body.name, url: body.url };
    let tools = tools(&app, &who, &ident).await?;
    done(tools.git(body.path).add_remote(&remote, false, body.overwrite).await?)
}
