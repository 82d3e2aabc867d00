//! Errors of a call.

use std::fmt;
use std::time::Duration;

use atoll_model::Code;
use reqwest::header::HeaderMap;

/// The header field with the version of the server, in every answer of `/v1`.
pub const VERSION_HEADER: &str = "atoll-version";

/// A request that the server refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    /// The HTTP status.
    pub status: u16,
    /// One of the closed list in `docs/errors.md`.
    pub code: String,
    /// What happened.
    pub message: String,
    /// Suggestion for a fix.
    pub hint: Option<String>,
    /// The field of the request that the error is about.
    pub field: Option<String>,
    /// The id of the request in the server's logs.
    pub request_id: Option<String>,
    /// When to try again, where the server says so.
    pub retry_after: Option<Duration>,
}

impl ApiError {
    /// The code as this version knows it; `None` for a code of a newer server.
    #[must_use]
    pub fn known_code(&self) -> Option<Code> {
        Code::ALL.iter().copied().find(|code| code.as_str() == self.code)
    }
}

/// A failed call.
#[derive(Debug)]
pub enum ClientError {
    /// The server refused the request with a reason.
    Refused(Box<ApiError>),
    /// An error status without the envelope of the API.
    Unexplained { status: u16, request_id: Option<String> },
    /// A success whose content this client does not understand.
    NotUnderstood(serde_json::Error),
    /// An event of a stream exceeds the size limit.
    EventTooLarge,
    /// No answer, or an incomplete one.
    Http(reqwest::Error),
    /// The address is not that of a server.
    BadAddress { address: String, why: String },
}

impl ClientError {
    /// The refusal of the server, if that is the error.
    #[must_use]
    pub fn refusal(&self) -> Option<&ApiError> {
        match self {
            Self::Refused(error) => Some(error),
            Self::Unexplained { .. }
            | Self::NotUnderstood(_)
            | Self::EventTooLarge
            | Self::Http(_)
            | Self::BadAddress { .. } => None,
        }
    }

    /// Whether the server refused the request with this code.
    #[must_use]
    pub fn is(&self, code: Code) -> bool {
        self.refusal().is_some_and(|error| error.code == code.as_str())
    }

    /// The id of the request in the server's logs.
    #[must_use]
    pub fn request_id(&self) -> Option<&str> {
        match self {
            Self::Refused(error) => error.request_id.as_deref(),
            Self::Unexplained { request_id, .. } => request_id.as_deref(),
            Self::NotUnderstood(_) | Self::EventTooLarge | Self::Http(_) | Self::BadAddress { .. } => None,
        }
    }
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(error) => write!(f, "{} ({})", error.message, error.code),
            Self::Unexplained { status, .. } => {
                write!(f, "the server answered {status} without an error message")
            }
            Self::NotUnderstood(_) => f.write_str("the answer is not understood"),
            Self::EventTooLarge => f.write_str("the server sent an event that is too large"),
            Self::Http(_) => f.write_str("the server did not answer"),
            Self::BadAddress { address, why } => {
                write!(f, "{address:?} is not the address of a server: {why}")
            }
        }
    }
}

impl std::error::Error for ClientError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::NotUnderstood(cause) => Some(cause),
            Self::Http(cause) => Some(cause),
            Self::Refused(_) | Self::Unexplained { .. } | Self::EventTooLarge | Self::BadAddress { .. } => {
                None
            }
        }
    }
}

/// Converts the errors of the client to those of the program.
pub trait MapError: Clone {
    type Error;
    fn map(&self, error: ClientError) -> Self::Error;

    /// Sees the header fields of every answer, errors included, such as [`VERSION_HEADER`].
    fn answered(&self, _headers: &HeaderMap) {}
}

/// Leaves errors unchanged.
#[derive(Debug, Clone, Copy, Default)]
pub struct PlainErrors;

impl MapError for PlainErrors {
    type Error = ClientError;

    fn map(&self, error: ClientError) -> ClientError {
        error
    }
}
