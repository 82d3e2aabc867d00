//! Errors in a Dockerfile, its context or a declared build, with hints.

use atoll_model::ErrorKind;

/// A Dockerfile cannot be planned, or one of its steps cannot be run as written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{why}", if *line == 0 { String::new() } else { format!("line {line}: ") })]
pub struct BadDockerfile {
    /// From 1; 0: the whole file.
    pub line: usize,
    /// What is wrong, with the name of the instruction.
    pub why: String,
    /// What to do instead.
    pub hint: Option<String>,
}

impl BadDockerfile {
    pub(crate) fn at(line: usize, why: impl Into<String>) -> Self {
        Self { line, why: why.into(), hint: None }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The class of the error.
    pub fn kind(&self) -> ErrorKind {
        ErrorKind::Invalid
    }
}

/// A build's context cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BadContext {
    /// The context is not a tar archive, or is damaged.
    #[error("the build context is not a valid tar archive")]
    Archive(#[source] crate::LayerError),
    /// An entry that is not allowed in a context.
    #[error("the build context contains {path:?}, {why}")]
    Entry {
        path: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The context exceeds a limit.
    #[error("the build context has more than {limit} {what}")]
    TooMany { what: &'static str, limit: u64 },
    /// The context could not be read.
    #[error("reading the build context")]
    Read(#[source] std::io::Error),
    /// The build was cancelled.
    #[error("the build was cancelled")]
    Cancelled,
}

impl BadContext {
    /// The class of the error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Archive(_) | Self::Entry { .. } => ErrorKind::Invalid,
            Self::TooMany { .. } => ErrorKind::Exhausted,
            Self::Read(_) => ErrorKind::Internal,
            Self::Cancelled => ErrorKind::Unavailable,
        }
    }
}
