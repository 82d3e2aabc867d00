//! Git in a folder of a sandbox. Field names in these bodies have underscores, unlike the rest of Daytona's API.

use atoll_front_kit::{ApiError, Json, JsonResponse, Query, ok, rfc3339_millis};
use atoll_toolbox::{
    CloneFrom, ConfigScope, Credentials, FileChange as GitState, FileState, Git, GitOutput, LogQuery,
    NewCommit, Pull, Push, Remote, Reset, ResetMode, Restore, StoredCredentials, ToolboxError,
};
use axum::Router;
use axum::http::StatusCode;
use axum::routing::{get, post};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::inside::Inside;
use super::refusal::{bad, of_git};
use crate::DaytonaApp;

mod settings;

pub(super) fn routes() -> Router<DaytonaApp> {
    Router::new()
        .route("/git/clone", post(clone))
        .route("/git/status", get(status))
        .route("/git/add", post(add))
        .route("/git/commit", post(commit))
        .route("/git/push", post(push))
        .route("/git/pull", post(pull))
        .route("/git/branches", get(branches).post(create_branch).delete(delete_branch))
        .route("/git/checkout", post(checkout))
        .route("/git/history", get(history))
        .route("/git/init", post(init))
        .route("/git/reset", post(reset))
        .route("/git/restore", post(restore))
        .route("/git/remotes", get(remotes).post(add_remote))
        .merge(settings::routes())
}

fn at<'a>(inside: &'a Inside, path: &str) -> Result<Git<'a>, ApiError> {
    Ok(inside.toolbox.git(inside.path(path)?))
}

/// The output of git, or the error of a failed command.
fn done(said: Result<GitOutput, ToolboxError>) -> Result<GitOutput, ApiError> {
    said.and_then(GitOutput::checked).map_err(of_git)
}

fn some(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}

fn credentials(username: Option<String>, password: Option<String>) -> Option<Credentials> {
    let (username, password) = (some(username), some(password));
    (username.is_some() || password.is_some()).then(|| Credentials {
        username: username.unwrap_or_default(),
        password: password.unwrap_or_default(),
    })
}

#[derive(Deserialize)]
struct CloneBody {
    url: String,
    path: String,
    branch: Option<String>,
    commit_id: Option<String>,
    depth: Option<u32>,
    username: Option<String>,
    password: Option<String>,
    insecure_skip_tls: Option<bool>,
}

async fn clone(inside: Inside, Json(body): Json<CloneBody>) -> Result<StatusCode, ApiError> {
    let from = CloneFrom {
        url: body.url,
        branch: some(body.branch),
        commit: some(body.commit_id),
        depth: body.depth.filter(|depth| *depth > 0),
        credentials: credentials(body.username, body.password),
        insecure_tls: body.insecure_skip_tls.unwrap_or(false),
    };
    done(at(&inside, &body.path)?.clone_from(&from).await)?;
    Ok(StatusCode::OK)
}

#[derive(Debug, Deserialize)]
struct At {
    path: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    current_branch: String,
    file_status: Vec<Value>,
    ahead: u32,
    behind: u32,
    branch_published: bool,
    detached: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    upstream: Option<String>,
}

async fn status(inside: Inside, Query(query): Query<At>) -> Result<JsonResponse<Status>, ApiError> {
    let found = at(&inside, &query.path)?.read_status().await.map_err(of_git)?;
    let (ahead, behind) = found.ahead_behind.unwrap_or((0, 0));
    let detached = found.is_detached();
    Ok(ok(Status {
        current_branch: found.branch.or(found.commit).unwrap_or_default(),
        file_status: found.files.iter().map(file).collect(),
        ahead,
        behind,
        branch_published: found.upstream.is_some(),
        detached,
        upstream: found.upstream,
    }))
}

fn file(state: &FileState) -> Value {
    json!({
        "name": state.path,
        "extra": state.from.as_deref().unwrap_or_default(),
        "staging": word(state.staged),
        "worktree": word(state.worktree),
    })
}

const fn word(state: GitState) -> &'static str {
    match state {
        GitState::Unmodified => "Unmodified",
        GitState::Untracked => "Untracked",
        GitState::Modified | GitState::TypeChanged => "Modified",
        GitState::Added => "Added",
        GitState::Deleted => "Deleted",
        GitState::Renamed => "Renamed",
        GitState::Copied => "Copied",
        GitState::Unmerged => "Updated but unmerged",
    }
}

#[derive(Debug, Deserialize)]
struct AddBody {
    path: String,
    files: Vec<String>,
}

async fn add(inside: Inside, Json(body): Json<AddBody>) -> Result<StatusCode, ApiError> {
    done(at(&inside, &body.path)?.add(&body.files).await)?;
    Ok(StatusCode::OK)
}

#[derive(Debug, Deserialize)]
struct CommitBody {
    path: String,
    message: String,
    author: String,
    email: String,
    allow_empty: Option<bool>,
}

async fn commit(inside: Inside, Json(body): Json<CommitBody>) -> Result<JsonResponse<Value>, ApiError> {
    let new = NewCommit {
        message: body.message,
        author: some(Some(body.author)),
        email: some(Some(body.email)),
        allow_empty: body.allow_empty.unwrap_or(false),
    };
    let made = at(&inside, &body.path)?.commit(&new).await.map_err(of_git)?;
    match made.sha {
        Some(hash) => Ok(ok(json!({ "hash": hash }))),
        None => done(Ok(made.output)).map(|_| ok(json!({ "hash": "" }))),
    }
}

/// A push, or a pull.
#[derive(Deserialize)]
struct SyncBody {
    path: String,
    remote: Option<String>,
    branch: Option<String>,
    set_upstream: Option<bool>,
    username: Option<String>,
    password: Option<String>,
}

async fn push(inside: Inside, Json(body): Json<SyncBody>) -> Result<StatusCode, ApiError> {
    let push = Push {
        remote: some(body.remote),
        branch: some(body.branch),
        set_upstream: body.set_upstream.unwrap_or(false),
        credentials: credentials(body.username, body.password),
    };
    done(at(&inside, &body.path)?.push(&push).await)?;
    Ok(StatusCode::OK)
}

async fn pull(inside: Inside, Json(body): Json<SyncBody>) -> Result<StatusCode, ApiError> {
    let pull = Pull {
        remote: some(body.remote),
        branch: some(body.branch),
        rebase: false,
        credentials: credentials(body.username, body.password),
    };
    done(at(&inside, &body.path)?.pull(&pull).await)?;
    Ok(StatusCode::OK)
}

async fn branches(inside: Inside, Query(query): Query<At>) -> Result<JsonResponse<Value>, ApiError> {
    let found = at(&inside, &query.path)?.list_branches().await.map_err(of_git)?;
    Ok(ok(json!({ "branches": found.names, "current": found.current.unwrap_or_default() })))
}

#[derive(Debug, Deserialize)]
struct BranchBody {
    path: String,
    name: String,
}

/// COMPAT(daytona): a new branch is checked out too.
async fn create_branch(inside: Inside, Json(body): Json<BranchBody>) -> Result<StatusCode, ApiError> {
    done(at(&inside, &body.path)?.create_branch(&body.name, None, true).await)?;
    Ok(StatusCode::CREATED)
}

/// COMPAT(daytona): a branch is deleted even if it is not merged.
async fn delete_branch(inside: Inside, Json(body): Json<BranchBody>) -> Result<StatusCode, ApiError> {
    done(at(&inside, &body.path)?.delete_branch(&body.name, true).await)?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize)]
struct CheckoutBody {
    path: String,
    branch: String,
}

async fn checkout(inside: Inside, Json(body): Json<CheckoutBody>) -> Result<StatusCode, ApiError> {
    done(at(&inside, &body.path)?.checkout(&body.branch, false).await)?;
    Ok(StatusCode::OK)
}

async fn history(inside: Inside, Query(query): Query<At>) -> Result<JsonResponse<Vec<Value>>, ApiError> {
    let found = at(&inside, &query.path)?.history(&LogQuery::default()).await.map_err(of_git)?;
    let shown = found.into_iter().map(|commit| {
        json!({
            "hash": commit.hash,
            "author": commit.author,
            "email": commit.email,
            "message": commit.message,
            "timestamp": rfc3339_millis(commit.at_s.saturating_mul(1_000)),
        })
    });
    Ok(ok(shown.collect()))
}

#[derive(Debug, Deserialize)]
struct InitBody {
    path: String,
    bare: Option<bool>,
    initial_branch: Option<String>,
}

async fn init(inside: Inside, Json(body): Json<InitBody>) -> Result<StatusCode, ApiError> {
    let branch = some(body.initial_branch);
    done(at(&inside, &body.path)?.init(body.bare.unwrap_or(false), branch.as_deref()).await)?;
    Ok(StatusCode::CREATED)
}

#[derive(Debug, Deserialize)]
struct ResetBody {
    path: String,
    mode: Option<String>,
    target: Option<String>,
    files: Option<Vec<String>>,
}

async fn reset(inside: Inside, Json(body): Json<ResetBody>) -> Result<StatusCode, ApiError> {
    let mode = match body.mode.as_deref() {
        None | Some("" | "mixed") => ResetMode::Mixed,
        Some("soft") => ResetMode::Soft,
        Some("hard") => ResetMode::Hard,
        Some("merge") => ResetMode::Merge,
        Some("keep") => ResetMode::Keep,
        Some(_) => return Err(bad("mode must be soft, mixed, hard, merge or keep")),
    };
    let reset = Reset { mode, target: some(body.target), files: body.files.unwrap_or_default() };
    done(at(&inside, &body.path)?.reset(&reset).await)?;
    Ok(StatusCode::OK)
}

#[derive(Debug, Deserialize)]
struct RestoreBody {
    path: String,
    files: Vec<String>,
    staged: Option<bool>,
    worktree: Option<bool>,
    source: Option<String>,
}

async fn restore(inside: Inside, Json(body): Json<RestoreBody>) -> Result<StatusCode, ApiError> {
    let restore = Restore {
        files: body.files,
        staged: body.staged.unwrap_or(false),
        worktree: body.worktree.unwrap_or(false),
        source: some(body.source),
    };
    done(at(&inside, &body.path)?.restore(&restore).await)?;
    Ok(StatusCode::OK)
}

async fn remotes(inside: Inside, Query(query): Query<At>) -> Result<JsonResponse<Value>, ApiError> {
    let found = at(&inside, &query.path)?.remotes().await.map_err(of_git)?;
    let shown: Vec<Value> =
        found.into_iter().map(|remote| json!({ "name": remote.name, "url": remote.url })).collect();
    Ok(ok(json!({ "remotes": shown })))
}

#[derive(Debug, Deserialize)]
struct RemoteBody {
    path: String,
    name: String,
    url: String,
    fetch: Option<bool>,
    overwrite: Option<bool>,
}

async fn add_remote(inside: Inside, Json(body): Json<RemoteBody>) -> Result<StatusCode, ApiError> {
    let remote = Remote { name: body.name, url: body.url };
    let (fetch, overwrite) = (body.fetch.unwrap_or(false), body.overwrite.unwrap_or(false));
    done(at(&inside, &body.path)?.add_remote(&remote, fetch, overwrite).await)?;
    Ok(StatusCode::CREATED)
}
