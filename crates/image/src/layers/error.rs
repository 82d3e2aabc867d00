//! Why an archive could not become a layer. On each of these errors the staged files are removed.

use std::path::{Path, PathBuf};

use atoll_model::ErrorKind;
use atoll_tar::TarError;
pub(crate) use atoll_tar::shown;

use super::digest::Digest;

/// An archive could not be made a layer, or a layer could not be packed.
#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    /// An entry breaks a rule.
    #[error("the entry {entry} of the archive is refused: {why}")]
    Refused {
        /// Its name, safe to display.
        entry: String,
        why: String,
    },
    /// These bytes are not an archive.
    #[error("the archive is damaged at byte {at}: {why}")]
    BadArchive {
        /// Offset in the uncompressed bytes.
        at: u64,
        /// What is wrong there.
        why: String,
    },
    /// The archive exceeds a limit.
    #[error("the archive contains more than {limit} {what}")]
    TooBig {
        /// Bytes or entries.
        what: &'static str,
        /// How many are allowed.
        limit: u64,
    },
    /// The reserve of the disk would be used.
    #[error(
        "the disk has too little free space for this layer ({free} bytes are free, {reserve} of them are reserved)"
    )]
    NoRoom {
        /// Bytes free now.
        free: u64,
        /// Bytes that must stay free.
        reserve: u64,
    },
    /// The archive is complete, but not the expected one.
    #[error("the layer is damaged: it should be {expected} and is {found}")]
    WrongDigest {
        /// The expected digest.
        expected: Digest,
        found: Digest,
    },
    /// The operation was cancelled.
    #[error("unpacking was cancelled")]
    Cancelled,
    /// The source of the bytes failed.
    #[error("the archive could not be read to its end")]
    Source(#[source] std::io::Error),
    /// The destination of the bytes failed.
    #[error("the archive could not be written")]
    Sink(#[source] std::io::Error),
    /// The server's disk failed.
    #[error("cannot {action} {path}")]
    Io {
        action: &'static str,
        path: PathBuf,
        /// The system error.
        #[source]
        cause: std::io::Error,
    },
}

impl LayerError {
    /// The class of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Refused { .. } | Self::BadArchive { .. } => ErrorKind::Invalid,
            Self::TooBig { .. } | Self::NoRoom { .. } => ErrorKind::Exhausted,
            Self::WrongDigest { .. } => ErrorKind::Conflict,
            Self::Cancelled | Self::Source(_) | Self::Sink(_) => ErrorKind::Unavailable,
            Self::Io { .. } => ErrorKind::Internal,
        }
    }

    /// What to try next, in one line, if there is a suggestion.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NoRoom { .. } => Some("free disk space (atoll template gc), or use a larger disk"),
            Self::TooBig { .. } => Some("the operator can raise this limit"),
            Self::WrongDigest { .. } => {
                Some("try again; if this persists, the image is damaged at its source")
            }
            _ => None,
        }
    }

    pub(crate) fn refused(entry: &[u8], why: impl Into<String>) -> Self {
        Self::Refused { entry: shown(entry), why: why.into() }
    }

    /// Converts an error of the server's disk. A full disk has its own variant.
    pub(crate) fn io(action: &'static str, path: impl AsRef<Path>) -> impl FnOnce(std::io::Error) -> Self {
        move |cause| Self::full(&cause).unwrap_or(Self::Io { action, path: path.as_ref().to_owned(), cause })
    }

    /// The error for a full disk, if the cause is one.
    fn full(cause: &std::io::Error) -> Option<Self> {
        let refused = cause.get_ref().and_then(|inner| inner.downcast_ref::<atoll_disk::NoSpace>());
        match refused {
            Some(refused) => Some(Self::NoRoom { free: refused.free, reserve: refused.reserve }),
            None => atoll_disk::is_full(cause).then_some(Self::NoRoom { free: 0, reserve: 0 }),
        }
    }

    /// Reports a full disk if a blob of the store was being written.
    pub(crate) fn of_blob(self) -> Self {
        match &self {
            Self::Sink(cause) => Self::full(cause).unwrap_or(self),
            _ => self,
        }
    }
}

impl From<TarError> for LayerError {
    fn from(error: TarError) -> Self {
        match error {
            TarError::Refused { entry, why } => Self::refused(&entry, why),
            TarError::Damaged { at, why } => Self::BadArchive { at, why },
            TarError::TooLong { limit } => Self::TooBig { what: "bytes", limit },
            TarError::Source(cause) => Self::Source(cause),
        }
    }
}
