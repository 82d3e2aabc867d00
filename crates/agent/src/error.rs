//! Errors of the agent, and their only mapping to Connect codes and HTTP statuses.

use connectrpc::ConnectError;
use http::StatusCode;
use rustix::io::Errno;

/// A refusal. The text is for people and contains no more than the caller sent.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum AgentError {
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    Exists(String),
    #[error("{0}")]
    Invalid(String),
    #[error("{0}")]
    Unauthenticated(String),
    #[error("{0}")]
    Denied(String),
    /// A limit of the sandbox or of the agent was reached.
    #[error("{0}")]
    Exhausted(String),
    /// The disk or its quota is full.
    #[error("{0}")]
    NoSpace(String),
    /// The state of the object does not allow the operation.
    #[error("{0}")]
    Conflict(String),
    #[error("{0}")]
    Unavailable(String),
    #[error("{0}")]
    Range(String),
    #[error("{0}")]
    NotAcceptable(String),
    /// What this agent never does.
    #[error("{0}")]
    Unsupported(String),
    #[error("{0}")]
    Internal(String),
}

impl AgentError {
    /// The error for a failed system call on `what`.
    pub(crate) fn from_errno(errno: Errno, what: &str) -> Self {
        let text = format!("{what}: {}", describe(errno));
        match errno {
            Errno::NOENT => Self::NotFound(text),
            Errno::EXIST => Self::Exists(text),
            Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::LOOP => Self::Denied(text),
            Errno::NOTDIR
            | Errno::ISDIR
            | Errno::INVAL
            | Errno::NAMETOOLONG
            | Errno::TOOBIG
            | Errno::NOEXEC => Self::Invalid(text),
            Errno::NOSPC | Errno::DQUOT | Errno::FBIG => Self::NoSpace(text),
            Errno::AGAIN | Errno::NOMEM | Errno::MFILE | Errno::NFILE => Self::Exhausted(text),
            Errno::NOTEMPTY | Errno::BUSY | Errno::XDEV | Errno::TXTBSY => Self::Conflict(text),
            _ => Self::Internal(text),
        }
    }

    /// Whether a system call failed because the agent lacks a resource, so that the error says nothing about its
    /// object.
    pub(crate) fn is_exhaustion(errno: Errno) -> bool {
        matches!(errno, Errno::MFILE | Errno::NFILE | Errno::NOMEM)
    }

    pub(crate) fn http_status(&self) -> StatusCode {
        match self {
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::Exists(_) | Self::Conflict(_) => StatusCode::CONFLICT,
            Self::Invalid(_) => StatusCode::BAD_REQUEST,
            Self::Unauthenticated(_) => StatusCode::UNAUTHORIZED,
            Self::Denied(_) => StatusCode::FORBIDDEN,
            Self::Exhausted(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::NoSpace(_) => StatusCode::INSUFFICIENT_STORAGE,
            Self::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Range(_) => StatusCode::RANGE_NOT_SATISFIABLE,
            Self::NotAcceptable(_) => StatusCode::NOT_ACCEPTABLE,
            Self::Unsupported(_) => StatusCode::NOT_IMPLEMENTED,
            Self::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

impl From<AgentError> for ConnectError {
    fn from(refusal: AgentError) -> Self {
        match refusal {
            AgentError::NotFound(text) => Self::not_found(text),
            AgentError::Exists(text) => Self::already_exists(text),
            AgentError::Invalid(text) => Self::invalid_argument(text),
            AgentError::Unauthenticated(text) => Self::unauthenticated(text),
            AgentError::Denied(text) => Self::permission_denied(text),
            AgentError::Exhausted(text) | AgentError::NoSpace(text) => Self::resource_exhausted(text),
            AgentError::Conflict(text) => Self::failed_precondition(text),
            AgentError::Unavailable(text) => Self::unavailable(text),
            AgentError::Range(text) => Self::out_of_range(text),
            AgentError::NotAcceptable(text) | AgentError::Unsupported(text) => Self::unimplemented(text),
            AgentError::Internal(text) => Self::internal(text),
        }
    }
}

/// Texts for common errors; the kernel's number for the rest. libc's own texts may load a locale.
fn describe(errno: Errno) -> String {
    let text = match errno {
        Errno::NOENT => "no such file or directory",
        Errno::EXIST => "already exists",
        Errno::ACCESS | Errno::PERM => "permission denied",
        Errno::ROFS => "read-only file system",
        Errno::LOOP => "too many symbolic links, or a link that leaves the tree",
        Errno::NOTDIR => "not a directory",
        Errno::ISDIR => "is a directory",
        Errno::INVAL => "invalid argument",
        Errno::NAMETOOLONG => "name too long",
        Errno::TOOBIG => "argument list too long",
        Errno::NOEXEC => "exec format error",
        Errno::NOSPC => "not enough disk space",
        Errno::DQUOT => "disk quota exceeded",
        Errno::FBIG => "file too large",
        Errno::AGAIN => "the sandbox's process limit is reached",
        Errno::NOMEM => "out of memory",
        Errno::MFILE | Errno::NFILE => "too many open files",
        Errno::NOTEMPTY => "directory not empty",
        Errno::BUSY => "busy",
        Errno::XDEV => "is on another file system",
        Errno::TXTBSY => "is being executed",
        other => return format!("error {}", other.raw_os_error()),
    };
    text.to_owned()
}
