//! What can go wrong with a call.

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
    /// Finds the request in the server's logs.
    pub request_id: Option<String>,
}

/// A call that did not work.
#[derive(Debug)]
pub enum ClientError {
    /// The server refused, and says why.
    Refused(Box<ApiError>),
    /// Something answered with a status that is no success, and without the envelope of the API.
    Unexplained { status: u16, request_id: Option<String> },
    /// The answer is a success, and not what this client understands.
    NotUnderstood(serde_json::Error),
    /// One event of a stream is larger than any of ours.
    EventTooLarge,
    /// No answer, or one that broke off.
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

/// Makes the errors of a program from those of the client.
pub trait MapError: Clone {
    type Error;
    fn map(&self, error: ClientError) -> Self::Error;
}

/// Errors as they are.
#[derive(Debug, Clone, Copy, Default)]
pub struct PlainErrors;

impl MapError for PlainErrors {
    type Error = ClientError;

    fn map(&self, error: ClientError) -> ClientError {
        error
    }
}
