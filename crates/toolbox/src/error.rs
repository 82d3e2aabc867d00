//! Errors of tools. Text from inside a sandbox is cleaned before it is stored here.

use std::time::Duration;

use atoll_agentapi::{AgentError, RpcCode};
use atoll_budget::Exhausted;
use atoll_model::{Code, ErrorKind};

/// A tool failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ToolboxError {
    /// The sandbox lacks a program.
    #[error("the sandbox has no {tool}")]
    ToolMissing {
        /// The program, or a library of one.
        tool: &'static str,
        /// How to install it.
        hint: &'static str,
    },
    /// An argument is invalid; nothing was tried.
    #[error("{0}")]
    Invalid(String),
    /// An object with that name exists already.
    #[error("{0}")]
    Exists(String),
    /// The context, session, terminal or language server does not exist. Each is a process of the sandbox.
    #[error("{0}")]
    NotFound(String),
    /// Git does not find the repository, branch, revision or file.
    #[error("{0}")]
    GitNotFound(String),
    /// The state of the object does not allow the operation.
    #[error("{0}")]
    Conflict(String),
    /// The object existed and has ended.
    #[error("{0}")]
    Ended(String),
    /// Credentials are required and were missing or wrong.
    #[error("{0}")]
    Unauthenticated(String),
    /// The operation took too long and was ended.
    #[error("{what} was ended after its timeout of {} s", limit.as_secs())]
    TimedOut { what: &'static str, limit: Duration },
    /// A value exceeds the memory limit of a tool.
    #[error("{what} is larger than {max} bytes")]
    TooLarge {
        /// What is too large.
        what: String,
        /// The maximal size.
        max: u64,
    },
    /// A program in the sandbox sent unexpected output.
    #[error("the answer of {tool} cannot be read: {why}")]
    Unreadable {
        tool: &'static str,
        /// The problem.
        why: &'static str,
    },
    /// The server has no memory budget for the answer.
    #[error(transparent)]
    Exhausted(#[from] Exhausted),
    /// The agent refused, or does not answer. The subject tells whether the call was about a file or a process.
    #[error("{cause}")]
    Agent {
        /// The subject of the call.
        about: AgentCallSubject,
        /// The error of the agent.
        #[source]
        cause: AgentError,
    },
}

/// The subject of a call to the agent; the same error has different meanings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentCallSubject {
    /// A file or folder.
    File,
    /// A process.
    Process,
}

impl ToolboxError {
    /// The error code for users.
    pub fn code(&self) -> Code {
        match self {
            Self::ToolMissing { .. } => Code::ToolMissing,
            Self::Invalid(_) | Self::Conflict(_) | Self::Unauthenticated(_) => Code::InvalidArgument,
            Self::Exists(_) => Code::AlreadyExists,
            Self::GitNotFound(_) => Code::FileNotFound,
            Self::NotFound(_) | Self::Ended(_) => Code::ProcessNotFound,
            Self::TimedOut { .. } => Code::DeadlineExceeded,
            Self::TooLarge { .. } => Code::PayloadTooLarge,
            Self::Unreadable { .. } => Code::Internal,
            Self::Exhausted(exhausted) => exhausted.code(),
            Self::Agent { about, cause } => code_of(*about, cause),
        }
    }

    /// The class of the error. More specific than that of the code if a front needs it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Conflict(_) => ErrorKind::Conflict,
            Self::Unauthenticated(_) => ErrorKind::Unauthenticated,
            Self::Agent { cause: AgentError::Refused { code: RpcCode::PermissionDenied, .. }, .. } => {
                ErrorKind::Forbidden
            }
            Self::Agent { cause: AgentError::Refused { code: RpcCode::FailedPrecondition, .. }, .. } => {
                ErrorKind::Conflict
            }
            other => other.code().kind(),
        }
    }

    /// A suggestion.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::ToolMissing { hint, .. } => Some(hint),
            Self::Exhausted(exhausted) => Some(exhausted.hint()),
            Self::TimedOut { .. } => Some("increase the timeout, or run it in the background"),
            Self::Agent { .. } => match self.code() {
                Code::DiskFull => Some("remove files, or give the sandbox a larger disk_mib"),
                Code::SandboxExhausted => Some("end processes, or give the sandbox more pids or memory_mib"),
                Code::Unsupported if self.to_string().contains("lacks the capability") => {
                    Some("choose a provider that has it; `atoll provider ls --wide` shows what each can do")
                }
                Code::Unsupported => Some("the sandbox is older than this server: stop and start it"),
                _ => None,
            },
            _ => None,
        }
    }

    pub(crate) fn file(cause: AgentError) -> Self {
        Self::Agent { about: AgentCallSubject::File, cause }
    }

    pub(crate) fn process(cause: AgentError) -> Self {
        Self::Agent { about: AgentCallSubject::Process, cause }
    }
}

fn code_of(about: AgentCallSubject, error: &AgentError) -> Code {
    let (code, message) = match error {
        AgentError::Refused { code, message } => (*code, message),
        AgentError::Argument(_) | AgentError::Upload(_) => return Code::InvalidArgument,
        AgentError::Deadline { .. } => return Code::DeadlineExceeded,
        AgentError::Connect(_) | AgentError::Transport(_) | AgentError::Protocol(_) | AgentError::Ended => {
            return Code::SandboxUnavailable;
        }
        _ => return Code::Internal,
    };
    match (code, about) {
        (RpcCode::NotFound, AgentCallSubject::File) => Code::FileNotFound,
        (RpcCode::NotFound, AgentCallSubject::Process) => Code::ProcessNotFound,
        (RpcCode::AlreadyExists, _) => Code::AlreadyExists,
        // The agent has one code for a full disk and for every other limit; only its text distinguishes them.
        (RpcCode::ResourceExhausted, _) if message.contains("disk") => Code::DiskFull,
        (RpcCode::ResourceExhausted, _) => Code::SandboxExhausted,
        (RpcCode::Unimplemented, _) => Code::Unsupported,
        (RpcCode::DeadlineExceeded, _) => Code::DeadlineExceeded,
        (RpcCode::Unavailable | RpcCode::Canceled, _) => Code::SandboxUnavailable,
        (RpcCode::Internal | RpcCode::DataLoss | RpcCode::Unknown, _) => Code::Internal,
        (
            RpcCode::InvalidArgument
            | RpcCode::OutOfRange
            | RpcCode::PermissionDenied
            | RpcCode::FailedPrecondition
            | RpcCode::Aborted
            | RpcCode::Unauthenticated,
            _,
        ) => Code::InvalidArgument,
    }
}

/// LIMIT: long enough for a sentence of a program, short enough for a log line.
const SAID_MAX: usize = 1024;

/// The output of a program, prepared for an error: its last lines without control characters.
pub(crate) fn said(text: &str) -> String {
    let text = text.trim();
    let mut from = text.len().saturating_sub(SAID_MAX);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    // A blank has the same length as the replaced character.
    text[from..].chars().map(|c| if c.is_ascii_control() && c != '\n' { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: RpcCode, message: &str) -> AgentError {
        AgentError::Refused { code, message: message.to_owned() }
    }

    #[test]
    fn the_same_refusal_means_what_it_was_about() {
        assert_eq!(ToolboxError::file(refused(RpcCode::NotFound, "no")).code(), Code::FileNotFound);
        assert_eq!(ToolboxError::process(refused(RpcCode::NotFound, "no")).code(), Code::ProcessNotFound);
        let full = ToolboxError::file(refused(RpcCode::ResourceExhausted, "not enough disk space"));
        assert_eq!((full.code(), full.hint().is_some()), (Code::DiskFull, true));
        let denied = ToolboxError::file(refused(RpcCode::PermissionDenied, "no"));
        assert_eq!(denied.kind(), ErrorKind::Forbidden);
    }

    #[test]
    fn what_a_program_said_is_cut_and_cleaned() {
        let text = said(&format!("{}\u{1b}[2Jfatal: no\n", "é".repeat(2_000)));
        assert!(text.len() <= SAID_MAX && text.ends_with("[2Jfatal: no") && !text.contains('\u{1b}'));
    }
}
