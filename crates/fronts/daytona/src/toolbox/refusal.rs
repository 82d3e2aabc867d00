//! Refusals with the codes of Daytona's daemon. The SDKs choose their class of exception by them.

use atoll_front_kit::{ApiError, ErrorSource};
use atoll_model::{Code, ErrorKind};
use atoll_service::ServiceError;
use atoll_toolbox::{GitFault, ToolboxError};
use axum::http::StatusCode;
use axum::response::Response;

use crate::error::daemon;

/// Marks every refusal below the toolbox as one of the sandbox's daemon.
pub(super) async fn of_daemon(mut response: Response) -> Response {
    if let Some(error) = response.extensions_mut().get_mut::<ApiError>() {
        error.source = ErrorSource::Sandbox;
    }
    response
}

/// An invalid request.
pub(super) fn bad(message: impl Into<String>) -> ApiError {
    daemon(StatusCode::BAD_REQUEST, "BAD_REQUEST", message)
}

/// An error of a path.
pub(super) fn of_file(error: ToolboxError) -> ApiError {
    let (status, word) = match error.kind() {
        ErrorKind::NotFound => (StatusCode::NOT_FOUND, "FILE_NOT_FOUND"),
        ErrorKind::Forbidden => (StatusCode::FORBIDDEN, "FILE_ACCESS_DENIED"),
        ErrorKind::Exists | ErrorKind::Conflict => (StatusCode::CONFLICT, "CONFLICT"),
        ErrorKind::Invalid => (StatusCode::BAD_REQUEST, "INVALID_FILE_PATH"),
        ErrorKind::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "FILE_READ_FAILED"),
        ErrorKind::Unavailable if error.code() == Code::SandboxUnavailable => return gone(error),
        ErrorKind::Unauthenticated
        | ErrorKind::Exhausted
        | ErrorKind::Unavailable
        | ErrorKind::Unsupported => return error.into(),
    };
    with(status, word, error)
}

/// An error of a command, a session or a terminal.
pub(super) fn of_process(error: ToolboxError) -> ApiError {
    match error {
        ToolboxError::TimedOut { what, limit } => {
            let message = format!("{what} met its timeout of {} s and was ended", limit.as_secs());
            daemon(StatusCode::REQUEST_TIMEOUT, "PROCESS_EXECUTION_TIMEOUT", message)
        }
        ToolboxError::NotFound(message) => daemon(StatusCode::NOT_FOUND, "PROCESS_NOT_FOUND", message),
        ToolboxError::Exists(message) => daemon(StatusCode::CONFLICT, "CONFLICT", message),
        ToolboxError::Conflict(message) => daemon(StatusCode::CONFLICT, "CONFLICT", message),
        ToolboxError::Invalid(message) => bad(message),
        ToolboxError::Ended(message) => daemon(StatusCode::GONE, "SESSION_ENDED", message),
        error if error.code() == Code::SandboxUnavailable => gone(error),
        error => error.into(),
    }
}

/// About a terminal.
pub(super) fn of_terminal(error: ServiceError) -> ApiError {
    match error.code {
        Code::ProcessNotFound => daemon(StatusCode::NOT_FOUND, "PROCESS_NOT_FOUND", error.message),
        Code::AlreadyExists | Code::SandboxExhausted => {
            daemon(StatusCode::CONFLICT, "CONFLICT", error.message)
        }
        Code::InvalidRequest => bad(error.message),
        Code::SandboxUnavailable => {
            ApiError::new(Code::SandboxUnavailable, GONE).from_sandbox().caused_by(error)
        }
        _ => ApiError::from(error).from_sandbox(),
    }
}

const GONE: &str = "the sandbox was stopped, paused or deleted during the request, or does not answer";

/// The sandbox ended during the call, and with it the connection to its agent.
fn gone(error: ToolboxError) -> ApiError {
    ApiError::new(Code::SandboxUnavailable, GONE).from_sandbox().caused_by(error)
}

/// An error of a language server.
pub(super) fn of_lsp(error: ToolboxError) -> ApiError {
    match error {
        ToolboxError::NotFound(message) => {
            daemon(StatusCode::BAD_REQUEST, "LSP_SERVER_NOT_INITIALIZED", message)
        }
        ToolboxError::Agent { .. } => of_file(error),
        error => of_process(error),
    }
}

/// An error of a repository, from the output of git.
pub(super) fn of_git(error: ToolboxError) -> ApiError {
    match &error {
        ToolboxError::Invalid(words)
        | ToolboxError::Exists(words)
        | ToolboxError::GitNotFound(words)
        | ToolboxError::Conflict(words)
        | ToolboxError::Unauthenticated(words) => {
            let (status, word) = fault(GitFault::of(words), &error);
            with(status, word, error)
        }
        _ => of_process(error),
    }
}

fn fault(fault: GitFault, error: &ToolboxError) -> (StatusCode, &'static str) {
    match fault {
        GitFault::Auth => (StatusCode::UNAUTHORIZED, "GIT_AUTH_FAILED"),
        GitFault::RepoNotFound => (StatusCode::NOT_FOUND, "GIT_REPO_NOT_FOUND"),
        GitFault::BranchNotFound => (StatusCode::NOT_FOUND, "GIT_BRANCH_NOT_FOUND"),
        GitFault::BranchExists => (StatusCode::CONFLICT, "GIT_BRANCH_EXISTS"),
        GitFault::PushRejected => (StatusCode::CONFLICT, "GIT_PUSH_REJECTED"),
        GitFault::DirtyWorktree => (StatusCode::CONFLICT, "GIT_DIRTY_WORKTREE"),
        GitFault::MergeConflict => (StatusCode::CONFLICT, "GIT_MERGE_CONFLICT"),
        GitFault::RemoteRejected => (StatusCode::UNPROCESSABLE_ENTITY, "GIT_REMOTE_REJECTED"),
        GitFault::Transport => (StatusCode::BAD_GATEWAY, "GIT_TRANSPORT_FAILED"),
        GitFault::Exists => (StatusCode::CONFLICT, "CONFLICT"),
        GitFault::NothingToCommit => (StatusCode::BAD_REQUEST, "BAD_REQUEST"),
        GitFault::Other => match error.kind() {
            ErrorKind::Conflict | ErrorKind::Exists => (StatusCode::CONFLICT, "CONFLICT"),
            ErrorKind::NotFound => (StatusCode::NOT_FOUND, "NOT_FOUND"),
            _ => (StatusCode::BAD_REQUEST, "BAD_REQUEST"),
        },
    }
}

fn with(status: StatusCode, word: &'static str, error: ToolboxError) -> ApiError {
    daemon(status, word, error.to_string()).caused_by(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_git_said_finds_its_class() {
        for (error, status, word) in [
            (ToolboxError::Unauthenticated("fatal: Authentication failed".into()), 401, "GIT_AUTH_FAILED"),
            (ToolboxError::GitNotFound("fatal: not a git repository".into()), 404, "GIT_REPO_NOT_FOUND"),
            (ToolboxError::Conflict(" ! [rejected] main".into()), 409, "GIT_PUSH_REJECTED"),
            (ToolboxError::Invalid("path must not be empty".into()), 400, "BAD_REQUEST"),
        ] {
            let refused = of_git(error);
            assert_eq!((refused.status().as_u16(), refused.vendor_code.unwrap_or_default()), (status, word));
        }
    }

    #[test]
    fn a_timeout_is_408_and_an_ended_session_410() {
        let limit = std::time::Duration::from_secs(2);
        let late = of_process(ToolboxError::TimedOut { what: "the command", limit });
        assert_eq!((late.status().as_u16(), late.message.contains("timeout")), (408, true));
        let ended = of_process(ToolboxError::Ended("x".into()));
        assert_eq!((ended.status().as_u16(), ended.vendor_code.unwrap_or_default()), (410, "SESSION_ENDED"));
    }
}
