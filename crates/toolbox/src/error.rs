//! What can go wrong with a tool, in the words of the model. Text from inside a sandbox is cleaned before it gets here.

use std::time::Duration;

use atoll_agentapi::{AgentError, RpcCode};
use atoll_budget::Exhausted;
use atoll_model::{Code, ErrorKind};

/// A tool could not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ToolboxError {
    /// The sandbox lacks a program.
    #[error("the sandbox has no {tool}")]
    ToolMissing {
        /// The program, or the library of one.
        tool: &'static str,
        /// How to get it.
        hint: &'static str,
    },
    /// An argument can't be used; nothing was tried.
    #[error("{0}")]
    Invalid(String),
    /// Something has that name already.
    #[error("{0}")]
    Exists(String),
    /// There is no such context, session, terminal or language server. Each is a process of the sandbox.
    #[error("{0}")]
    NotFound(String),
    /// Git knows no such repository, branch, revision or file.
    #[error("{0}")]
    GitNotFound(String),
    /// It is not in a state that allows this.
    #[error("{0}")]
    Conflict(String),
    /// It was there and has ended.
    #[error("{0}")]
    Ended(String),
    /// Somebody inside or outside wants credentials that were not given, or are wrong.
    #[error("{0}")]
    Unauthenticated(String),
    /// It took too long and was ended.
    #[error("{what} was ended after its timeout of {} s", limit.as_secs())]
    TimedOut { what: &'static str, limit: Duration },
    /// More than a tool takes in memory.
    #[error("{what} is larger than {max} bytes")]
    TooLarge {
        /// What is too large.
        what: String,
        /// What it may have.
        max: u64,
    },
    /// A program inside said something that it never says.
    #[error("the answer of {tool} cannot be read: {why}")]
    Unreadable {
        tool: &'static str,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The server has no room for the bytes of the answer.
    #[error(transparent)]
    Exhausted(#[from] Exhausted),
    /// The agent refused, or does not answer. `File` and `Process` tell what it was about.
    #[error("{cause}")]
    Agent {
        /// What was asked for.
        about: AgentCallSubject,
        /// Its words.
        #[source]
        cause: AgentError,
    },
}

/// What a call to the agent was about; the same refusal means different things.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentCallSubject {
    /// A file or folder.
    File,
    /// A process.
    Process,
}

impl ToolboxError {
    /// The code that a user meets.
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

    /// The closed kind that edges map. Finer than the code's where a front has a word for it.
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

    /// What to try.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::ToolMissing { hint, .. } => Some(hint),
            Self::Exhausted(exhausted) => Some(exhausted.hint()),
            Self::TimedOut { .. } => Some("increase the timeout, or run it in the background"),
            Self::Agent { .. } => match self.code() {
                Code::DiskFull => Some("remove files, or give the sandbox a larger disk_mib"),
                Code::SandboxExhausted => Some("end processes, or give the sandbox more pids or memory_mib"),
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
        // The agent has one word for a full disk and for every other limit; only its text tells them apart.
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

/// What a program said, fit for an error: its last lines without control characters.
pub(crate) fn said(text: &str) -> String {
    let text = text.trim();
    let mut from = text.len().saturating_sub(SAID_MAX);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    // A blank is as short as what it stands for.
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
