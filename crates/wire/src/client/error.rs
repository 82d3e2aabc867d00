//! Errors of a call.

use std::fmt;

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
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(error) => write!(f, "{} ({})", error.message, error.code),
            Self::Unexplained { status, .. } => {
                write!(f, "the server answered {status} without an error message")
            }
            Self::NotUnderstood(cause) => write!(f, "the answer is not understood: {cause}"),
            Self::EventTooLarge => f.write_str("the server sent an event that is too large"),
            Self::Http(cause) => write!(f, "{cause}"),
        }
    }
}

impl std::error::Error for ClientError {}

/// Converts the errors of the client to those of the program.
pub trait MapError: Clone {
    type Error;
    fn map(&self, error: ClientError) -> Self::Error;
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
