//! What went wrong, in the closed vocabulary, with what to try next. Inside text never leaves the process: it is kept
//! as the source, for the log of whoever handles the error.

use std::fmt;
use std::sync::Arc;

use atoll_model::{Code, ErrorKind};

/// The cause, for logs only.
pub type Cause = Arc<dyn std::error::Error + Send + Sync>;

/// An answer that is not the one asked for.
#[derive(Debug, Clone)]
pub struct ServiceError {
    /// The closed word.
    pub code: Code,
    /// What happened, safe to show.
    pub message: String,
    /// What to try, where there is something.
    pub hint: Option<String>,
    /// When to try again, where that helps.
    pub retry_after_s: Option<u32>,
    /// Why, for the log; never shown.
    pub cause: Option<Cause>,
}

impl ServiceError {
    /// An error with a text that is safe to show.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: None, retry_after_s: None, cause: None }
    }

    /// Says what to try.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Says when to try again.
    #[must_use]
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }

    /// Keeps the cause for the log.
    #[must_use]
    pub fn caused_by(mut self, cause: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.cause = Some(Arc::new(cause));
        self
    }

    /// What sort of failure it is.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        self.code.kind()
    }
}

impl fmt::Display for ServiceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ServiceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause.as_ref().map(|cause| cause.as_ref() as &(dyn std::error::Error + 'static))
    }
}
