//! What is wrong with a Dockerfile, its context or a declared build, and what to do about it.

use atoll_model::ErrorKind;

/// A Dockerfile cannot be planned, or one of its steps cannot be done as it is written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{why}", if *line == 0 { String::new() } else { format!("line {line}: ") })]
pub struct BadDockerfile {
    /// From 1; 0: the whole file.
    pub line: usize,
    /// What is wrong, with the instruction's name.
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

    /// The closed kind that edges map.
    pub fn kind(&self) -> ErrorKind {
        ErrorKind::Invalid
    }
}

/// A build's context cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BadContext {
    /// It is not a tar archive, or a damaged one.
    #[error("the build context is not a valid tar archive")]
    Archive(#[source] crate::LayerError),
    /// An entry that no context has.
    #[error("the build context contains {path:?}, {why}")]
    Entry {
        path: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Too much of something.
    #[error("the build context has more than {limit} {what}")]
    TooMany { what: &'static str, limit: u64 },
    /// It could not be read.
    #[error("reading the build context")]
    Read(#[source] std::io::Error),
    /// Its reader gave up.
    #[error("the build was cancelled")]
    Cancelled,
}

impl BadContext {
    /// The closed kind that edges map.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Archive(_) | Self::Entry { .. } => ErrorKind::Invalid,
            Self::TooMany { .. } => ErrorKind::Exhausted,
            Self::Read(_) => ErrorKind::Internal,
            Self::Cancelled => ErrorKind::Unavailable,
        }
    }
}
