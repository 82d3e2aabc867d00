//! Errors between the host and an agent. Text from the agent is cleaned before it is stored here.

use std::time::Duration;

use atoll_model::ErrorKind;

/// A call to an agent failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// No byte stream to the agent could be opened.
    #[error("connecting to the agent")]
    Connect(#[source] std::io::Error),
    /// The byte stream broke, or was not HTTP.
    #[error("talking to the agent")]
    Transport(#[source] hyper::Error),
    /// The caller's upload stream failed.
    #[error("reading the bytes to upload")]
    Upload(#[source] std::io::Error),
    /// The agent did not answer in time.
    #[error("the agent did not answer {what} within {limit:?}")]
    Deadline {
        what: &'static str,
        /// The deadline.
        limit: Duration,
    },
    /// The instance ended, or was restored as another one, before the agent answered.
    #[error("the instance ended before its agent answered")]
    Ended,
    /// The agent's answer violates the protocol.
    #[error("the agent's answer breaks its protocol: {0}")]
    Protocol(&'static str),
    /// The agent refused.
    #[error("{message}")]
    Refused {
        /// The reason as a code.
        code: RpcCode,
        /// The reason as text. Control characters are removed, and it is cut to 1 KiB.
        message: String,
    },
    /// An argument cannot be sent.
    #[error("{0}")]
    Argument(&'static str),
    /// No program in the sandbox listens on the port.
    #[error("no program listens on port {port}")]
    PortClosed { port: u16 },
}

impl AgentError {
    /// The class of the error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Connect(_)
            | Self::Transport(_)
            | Self::Deadline { .. }
            | Self::Ended
            | Self::PortClosed { .. } => ErrorKind::Unavailable,
            Self::Upload(_) | Self::Argument(_) => ErrorKind::Invalid,
            Self::Protocol(_) => ErrorKind::Internal,
            Self::Refused { code, .. } => code.kind(),
        }
    }

    pub(crate) fn refused(code: RpcCode, message: &str) -> Self {
        Self::Refused { code, message: clean(message) }
    }
}

/// LIMIT: long enough for a path and a sentence, short enough for a log line.
const MESSAGE_MAX: usize = 1024;

/// Makes foreign text safe for logs and terminals.
fn clean(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if out.len() + c.len_utf8() > MESSAGE_MAX {
            break;
        }
        out.push(if c.is_control() { '\u{fffd}' } else { c });
    }
    out
}

macro_rules! codes {
    ($($name:ident = $text:literal, $status:literal, $kind:ident;)*) => {
        /// The Connect protocol's error codes.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[allow(missing_docs, reason = "the names are the protocol's own")]
        pub enum RpcCode { $($name,)* }

        impl RpcCode {
            /// The code on the wire.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// Parses the code on the wire; an unknown one is `Unknown`.
            pub fn parse(text: &str) -> Self {
                match text { $($text => Self::$name,)* _ => Self::Unknown }
            }

            /// The most likely code for an HTTP status without a Connect body.
            pub fn from_http(status: u16) -> Self {
                match status { $($status => Self::$name,)* 403 => Self::PermissionDenied, 502 => Self::Unavailable, 507 => Self::ResourceExhausted, 416 => Self::OutOfRange, _ => Self::Unknown }
            }

            fn kind(self) -> ErrorKind {
                match self { $(Self::$name => ErrorKind::$kind,)* }
            }
        }
    };
}

// The statuses above 9000 stand for codes that share an HTTP status with an earlier row.
codes! {
    InvalidArgument = "invalid_argument", 400, Invalid;
    Unauthenticated = "unauthenticated", 401, Unauthenticated;
    NotFound = "not_found", 404, NotFound;
    AlreadyExists = "already_exists", 409, Exists;
    ResourceExhausted = "resource_exhausted", 429, Exhausted;
    Canceled = "canceled", 499, Unavailable;
    DeadlineExceeded = "deadline_exceeded", 504, Unavailable;
    Unavailable = "unavailable", 503, Unavailable;
    Internal = "internal", 500, Internal;
    Unimplemented = "unimplemented", 501, Unsupported;
    PermissionDenied = "permission_denied", 9001, Forbidden;
    FailedPrecondition = "failed_precondition", 9002, Conflict;
    Aborted = "aborted", 9003, Conflict;
    OutOfRange = "out_of_range", 9004, Invalid;
    DataLoss = "data_loss", 9005, Internal;
    Unknown = "unknown", 9006, Internal;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_is_cut_and_cleaned() {
        let message = clean(&format!("a\x1b[2J\nb{}", "é".repeat(5_000)));
        assert!(message.len() <= MESSAGE_MAX);
        assert!(!message.chars().any(char::is_control));
    }

    #[test]
    fn every_code_survives_its_wire_word() {
        for code in [RpcCode::NotFound, RpcCode::OutOfRange, RpcCode::DataLoss, RpcCode::Canceled] {
            assert_eq!(RpcCode::parse(code.as_str()), code);
        }
        assert_eq!(RpcCode::parse("tired"), RpcCode::Unknown);
    }
}
