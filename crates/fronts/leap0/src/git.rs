//! Git in a folder of a sandbox: every call is a POST and returns git's output, whatever its exit code.

use atoll_front_kit::{ApiError, Caller, Path, RequestBudget, ok, parse_json_or_empty};
use atoll_toolbox::{
    BranchQuery, BranchScope, CloneFrom, Credentials, DiffOf, GitOutput, LogQuery, NewCommit, Pull, Push,
    Reset, Toolbox, ToolboxError,
};
use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use atoll_model::Code;

use crate::Leap0App;
use crate::filesystem::awake;

pub(crate) fn routes() -> Router<Leap0App> {
    Router::new().route("/v1/sandbox/{id}/git/{op}", post(git))
}

#[derive(Debug, Serialize)]
struct Said {
    output: String,
    exit_code: i32,
}

impl From<GitOutput> for Said {
    fn from(said: GitOutput) -> Self {
        Self { output: said.output(), exit_code: said.exit_code }
    }
}

#[derive(Debug, Serialize)]
struct Committed {
    sha: String,
    result: Said,
}

async fn git(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Path((id, op)): Path<(String, String)>,
    request: axum::extract::Request,
) -> Result<Response, ApiError> {
    let budget = RequestBudget::of(request.extensions()).cloned();
    let body =
        atoll_front_kit::read_body(request.into_body(), atoll_front_kit::BODY_BYTES, budget.as_ref()).await?;
    let call = Call::parse(&op, &body)?;
    let awake = awake(&app, &who, &id).await?;
    call.run(&awake.toolbox).await
}

/// One call. The body is read completely before the sandbox is woken.
#[derive(Debug)]
enum Call {
    Clone(CloneBody),
    Status(At),
    Reset(At),
    Branches(BranchesBody),
    Diff(At, DiffOf, Option<u32>),
    Log(LogBody),
    Show(ShowBody),
    CreateBranch(CreateBranchBody),
    Checkout(CheckoutBody),
    DeleteBranch(DeleteBranchBody),
    Add(AddBody),
    Commit(CommitBody),
    Push(SyncBody),
    Pull(SyncBody),
}

impl Call {
    fn parse(op: &str, body: &Bytes) -> Result<Self, ApiError> {
        let diff = |of| {
            let asked: DiffBody = parse_json_or_empty(body)?;
            Ok(Self::Diff(At { path: asked.path }, of, asked.context_lines))
        };
        match op {
            "clone" => parse_json_or_empty(body).map(Self::Clone),
            "status" => parse_json_or_empty(body).map(Self::Status),
            "reset" => parse_json_or_empty(body).map(Self::Reset),
            "branches" => parse_json_or_empty(body).map(Self::Branches),
            "diff-unstaged" => diff(DiffOf::Unstaged),
            "diff-staged" => diff(DiffOf::Staged),
            "diff" => {
                let asked: DiffBody = parse_json_or_empty(body)?;
                let target = asked.target.ok_or_else(|| ApiError::field("target", "is required"))?;
                Ok(Self::Diff(At { path: asked.path }, DiffOf::Target(target), asked.context_lines))
            }
            "log" => parse_json_or_empty(body).map(Self::Log),
            "show" => parse_json_or_empty(body).map(Self::Show),
            "create-branch" => parse_json_or_empty(body).map(Self::CreateBranch),
            "checkout-branch" => parse_json_or_empty(body).map(Self::Checkout),
            "delete-branch" => parse_json_or_empty(body).map(Self::DeleteBranch),
            "add" => parse_json_or_empty(body).map(Self::Add),
            "commit" => parse_json_or_empty(body).map(Self::Commit),
            "push" => parse_json_or_empty(body).map(Self::Push),
            "pull" => parse_json_or_empty(body).map(Self::Pull),
            _ => Err(ApiError::new(Code::RouteNotFound, "there is no such git operation")),
        }
    }

    async fn run(self, toolbox: &Toolbox) -> Result<Response, ApiError> {
        let said = match self {
            Self::Commit(body) => return commit(toolbox, body).await,
            Self::Clone(body) => clone(toolbox, body).await,
            Self::Status(at) => toolbox.git(at.path).porcelain_status().await,
            Self::Reset(at) => toolbox.git(at.path).reset(&Reset::default()).await,
            Self::Branches(body) => toolbox.git(body.path.clone()).branches(&body.into()).await,
            Self::Diff(at, of, context) => toolbox.git(at.path).diff(&of, context).await,
            Self::Log(body) => toolbox.git(body.path.clone()).log(&body.into()).await,
            Self::Show(body) => toolbox.git(body.path).show(body.revision.as_deref().unwrap_or("HEAD")).await,
            Self::CreateBranch(body) => {
                let checkout = body.checkout.unwrap_or(false);
                toolbox.git(body.path).create_branch(&body.name, body.base_branch.as_deref(), checkout).await
            }
            Self::Checkout(body) => {
                toolbox.git(body.path).checkout(&body.branch, body.create.unwrap_or(false)).await
            }
            Self::DeleteBranch(body) => toolbox.git(body.path).delete_branch(&body.name, body.force).await,
            Self::Add(body) => toolbox.git(body.path).add(&body.files).await,
            Self::Push(body) => toolbox.git(body.path.clone()).push(&body.into()).await,
            Self::Pull(body) => toolbox.git(body.path.clone()).pull(&body.into()).await,
        };
        Ok(ok(Said::from(said?)).into_response())
    }
}

async fn commit(toolbox: &Toolbox, body: CommitBody) -> Result<Response, ApiError> {
    let new = NewCommit {
        message: body.message,
        author: body.author,
        email: body.email,
        allow_empty: body.allow_empty.unwrap_or(false),
    };
    let done = toolbox.git(body.path).commit(&new).await?;
    Ok(ok(Committed { sha: done.sha.unwrap_or_default(), result: done.output.into() }).into_response())
}

async fn clone(toolbox: &Toolbox, body: CloneBody) -> Result<GitOutput, ToolboxError> {
    let from = CloneFrom {
        url: body.url,
        branch: body.branch,
        commit: body.commit_id,
        depth: body.depth,
        credentials: credentials(body.username, body.password),
        ..CloneFrom::default()
    };
    toolbox.git(body.path).clone_from(&from).await
}

fn credentials(username: Option<String>, password: Option<String>) -> Option<Credentials> {
    (username.is_some() || password.is_some()).then(|| Credentials {
        username: username.unwrap_or_default(),
        password: password.unwrap_or_default(),
    })
}

#[derive(Debug, Deserialize)]
struct At {
    path: String,
}

#[derive(Deserialize)]
struct CloneBody {
    url: String,
    path: String,
    #[serde(default)]
    branch: Option<String>,
    #[serde(default)]
    commit_id: Option<String>,
    #[serde(default)]
    depth: Option<u32>,
    #[serde(default)]
    username: Option<String>,
    #[serde(default)]
    password: Option<String>,
}

/// Leaves out credentials; a URL can contain some too.
impl std::fmt::Debug for CloneBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CloneBody").field("path", &self.path).finish_non_exhaustive()
    }
}

#[derive(Debug, Deserialize)]
struct BranchesBody {
    path: String,
    #[serde(default)]
    branch_type: BranchType,
    #[serde(default)]
    contains: Option<String>,
    #[serde(default)]
    not_contains: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum BranchType {
    #[default]
    Local,
    Remote,
    All,
}

impl From<BranchesBody> for BranchQuery {
    fn from(body: BranchesBody) -> Self {
        let scope = match body.branch_type {
            BranchType::Local => BranchScope::Local,
            BranchType::Remote => BranchScope::Remote,
            BranchType::All => BranchScope::All,
        };
        Self { scope, contains: body.contains, not_contains: body.not_contains }
    }
}

#[derive(Debug, Deserialize)]
struct DiffBody {
    path: String,
    #[serde(default)]
    target: Option<String>,
    #[serde(default)]
    context_lines: Option<u32>,
}

#[derive(Debug, Deserialize)]
struct LogBody {
    path: String,
    #[serde(default)]
    max_count: Option<u32>,
    #[serde(default)]
    start_timestamp: Option<String>,
    #[serde(default)]
    end_timestamp: Option<String>,
}

/// COMPAT(leap0): the default is ten.
const LOG_MAX: u32 = 10;

impl From<LogBody> for LogQuery {
    fn from(body: LogBody) -> Self {
        Self {
            max: Some(body.max_count.unwrap_or(LOG_MAX)),
            since: body.start_timestamp,
            until: body.end_timestamp,
        }
    }
}

#[derive(Debug, Deserialize)]
struct ShowBody {
    path: String,
    #[serde(default)]
    revision: Option<String>,
}

#[derive(Debug, Deserialize)]
struct CreateBranchBody {
    path: String,
    name: String,
    #[serde(default)]
    checkout: Option<bool>,
    #[serde(default)]
    base_branch: Option<String>,
}

#[derive(Debug, Deserialize)]
struct CheckoutBody {
    path: String,
    branch: String,
    #[serde(default)]
    create: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct DeleteBranchBody {
    path: String,
    name: String,
    #[serde(default)]
    force: bool,
}

#[derive(Debug, Deserialize)]
struct AddBody {
    path: String,
    files: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct CommitBody {
    path: String,
    message: String,
    #[serde(default)]
    author: Option<String>,
    #[serde(default)]
    email: Option<String>,
    #[serde(default)]
    allow_empty: Option<bool>,
}

/// A push, or a pull.
#[derive(Deserialize)]
struct SyncBody {
    path: String,
    #[serde(default)]
    remote: Option<String>,
    #[serde(default)]
    branch: Option<String>,
    #[serde(default)]
    set_upstream: Option<bool>,
    #[serde(default)]
    rebase: Option<bool>,
    #[serde(default)]
    username: Option<String>,
    #[serde(default)]
    password: Option<String>,
}

/// Leaves out credentials.
impl std::fmt::Debug for SyncBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SyncBody").field("path", &self.path).finish_non_exhaustive()
    }
}

impl From<SyncBody> for Push {
    fn from(body: SyncBody) -> Self {
        Self {
            remote: body.remote,
            branch: body.branch,
            set_upstream: body.set_upstream.unwrap_or(false),
            credentials: credentials(body.username, body.password),
        }
    }
}

impl From<SyncBody> for Pull {
    fn from(body: SyncBody) -> Self {
        Self {
            remote: body.remote,
            branch: body.branch,
            rebase: body.rebase.unwrap_or(false),
            credentials: credentials(body.username, body.password),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn call(op: &str, body: &'static str) -> Result<Call, ApiError> {
        Call::parse(op, &Bytes::from_static(body.as_bytes()))
    }

    #[test]
    fn every_call_of_the_sdk_is_read() {
        for (op, body) in [
            ("clone", r#"{"url":"u","path":"/r","branch":"main","depth":1}"#),
            ("status", r#"{"path":"/r"}"#),
            ("reset", r#"{"path":"/r"}"#),
            ("branches", r#"{"path":"/r","branch_type":"remote"}"#),
            ("diff-unstaged", r#"{"path":"/r","context_lines":1}"#),
            ("diff-staged", r#"{"path":"/r"}"#),
            ("diff", r#"{"path":"/r","target":"HEAD~1"}"#),
            ("log", r#"{"path":"/r","max_count":3}"#),
            ("show", r#"{"path":"/r","revision":"HEAD"}"#),
            ("create-branch", r#"{"path":"/r","name":"x","checkout":true}"#),
            ("checkout-branch", r#"{"path":"/r","branch":"x"}"#),
            ("delete-branch", r#"{"path":"/r","name":"x","force":true}"#),
            ("add", r#"{"path":"/r","files":["."]}"#),
            ("commit", r#"{"path":"/r","message":"m","author":"a","email":"e"}"#),
            ("push", r#"{"path":"/r","remote":"origin"}"#),
            ("pull", r#"{"path":"/r","rebase":true}"#),
        ] {
            call(op, body).unwrap_or_else(|error| panic!("{op}: {error:?}"));
        }
        assert_eq!(call("status", "{}").unwrap_err().field_name(), Some("path"));
        assert_eq!(call("diff", r#"{"path":"/r"}"#).unwrap_err().field_name(), Some("target"));
        assert_eq!(call("gc", r#"{"path":"/r"}"#).unwrap_err().status().as_u16(), 404);
    }

    #[test]
    fn credentials_are_not_shown_to_the_log() {
        let said =
            call("clone", r#"{"url":"https://u:canary@h/","path":"/r","username":"u","password":"canary"}"#);
        assert!(!format!("{:?}", said.unwrap()).contains("canary"));
        let said = call("push", r#"{"path":"/r","username":"u","password":"canary"}"#);
        assert!(!format!("{:?}", said.unwrap()).contains("canary"));
    }
}
