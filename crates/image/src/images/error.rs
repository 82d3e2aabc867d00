//! Errors of template versions that are stored as layers.

use std::path::{Path, PathBuf};

use atoll_model::ErrorKind;

use crate::error::TemplateError;
use crate::layers::{BadDigest, DiffId, LayerError};

/// A version, a layer or a blob could not be found, made, read or removed.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// An archive could not be made a layer.
    #[error(transparent)]
    Layer(#[from] LayerError),
    /// Not a digest.
    #[error(transparent)]
    BadDigest(#[from] BadDigest),
    /// There is no such version.
    #[error("there is no template version {version}")]
    NotFound {
        /// The requested version.
        version: String,
    },
    /// A version names a layer that is missing.
    #[error("the layer {layer} is missing")]
    LayerMissing { layer: DiffId },
    /// An entry is incomplete or has changed.
    #[error("{what} is damaged: {why}")]
    Damaged {
        /// A version, a layer or a blob.
        what: String,
        why: String,
    },
    /// More layers than can be stacked, or more bytes than an image may have.
    #[error("the image has more than {limit} {what}")]
    TooBig {
        /// Layers or bytes.
        what: &'static str,
        /// How many are allowed.
        limit: u64,
    },
    /// The input is not an image.
    #[error("this is not an image that can be imported: {why}")]
    NotAnImage {
        /// What is missing.
        why: String,
    },
    /// The operation is not possible with this template.
    #[error("{what}")]
    Unsupported {
        /// What is not possible, and why.
        what: String,
    },
    /// The built-in template below it failed.
    #[error(transparent)]
    Template(#[from] TemplateError),
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

impl ImageError {
    /// The class of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Layer(error) => error.kind(),
            Self::Template(error) => error.kind(),
            Self::BadDigest(_) | Self::NotAnImage { .. } => ErrorKind::Invalid,
            Self::NotFound { .. } | Self::LayerMissing { .. } => ErrorKind::NotFound,
            Self::Damaged { .. } => ErrorKind::Conflict,
            Self::TooBig { .. } => ErrorKind::Exhausted,
            Self::Unsupported { .. } => ErrorKind::Unsupported,
            Self::Io { .. } => ErrorKind::Internal,
        }
    }

    /// What to try next, in one line, if there is a suggestion.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Layer(error) => error.hint().map(str::to_owned),
            Self::Template(error) => error.hint(),
            Self::Damaged { .. } => Some("pull, import or build the template again".into()),
            Self::NotAnImage { .. } => Some(
                "use an archive of docker save, an OCI archive or folder, or a tar of a root file system"
                    .into(),
            ),
            _ => None,
        }
    }

    /// Whether the entry exists but is damaged: the code `damaged`.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        matches!(self, Self::Damaged { .. } | Self::Layer(LayerError::WrongDigest { .. }))
    }

    pub(crate) fn io(action: &'static str, path: impl AsRef<Path>) -> impl FnOnce(std::io::Error) -> Self {
        move |cause| match LayerError::io(action, path)(cause) {
            LayerError::Io { action, path, cause } => Self::Io { action, path, cause },
            full => Self::Layer(full),
        }
    }
}

/// For the engine: a missing version is a template that does not exist.
impl From<ImageError> for TemplateError {
    fn from(error: ImageError) -> Self {
        match error {
            ImageError::Template(error) => error,
            ImageError::NotFound { version } => Self::NotFound { name: version, near: Vec::new() },
            ImageError::BadDigest(bad) => Self::NotFound { name: bad.text, near: Vec::new() },
            ImageError::Io { action, path, cause } => Self::Io { action, path, cause },
            ImageError::Damaged { what, why } => Self::Damaged { version: what, why },
            other => Self::Damaged { version: "of a template".into(), why: other.to_string() },
        }
    }
}
