//! Errors of registries. A variant says what was attempted and on what; causes are attached as sources, and no text
//! contains a secret of a registry or a user.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use atoll_model::{Code, ErrorKind};

use crate::images::ImageError;
use crate::layers::LayerError;

/// An image could not be pulled or pushed.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    #[error("the registry {host} has no image {image}, or does not show it")]
    NotFound { host: String, image: String },
    #[error("the registry {host} does not show {image} without credentials")]
    CredentialsNeeded { host: String, image: String },
    #[error("the registry {host} refuses these credentials for {image}")]
    Refused { host: String, image: String },
    #[error("{image} does not exist for {asked}; available: {there}")]
    NoPlatform { image: String, asked: String, there: String },
    #[error("not a platform: {0:?}")]
    BadPlatform(String),
    #[error("{what} of {image} cannot be used: {why}")]
    Unsupported { image: String, what: String, why: &'static str },
    #[error("{url} cannot be reached: {why}")]
    Forbidden { url: String, why: String },
    #[error("{host} cannot be reached: its address {address} is {class}")]
    ForbiddenAddress { host: String, address: IpAddr, class: &'static str },
    #[error("{what} has the wrong content: {why}")]
    Damaged { what: String, why: String },
    #[error("cannot reach {host}")]
    Unreachable {
        host: String,
        #[source]
        cause: reqwest::Error,
    },
    #[error("{host} does not answer")]
    Silent { host: String },
    #[error("{host} answers {status} to {asked}")]
    Answered { host: String, status: u16, asked: String },
    #[error("{host} limits requests; try again in {wait_s} s")]
    Busy { host: String, wait_s: u64 },
    #[error("{host} interrupts {what} too often, or sends it too slowly")]
    BrokenOff { host: String, what: String },
    #[error("{image} was not pulled or pushed within {limit_s} s")]
    TooSlow { image: String, limit_s: u64 },
    #[error("the operator's {path} cannot be used: {why}")]
    DockerConfig { path: PathBuf, why: String },
    #[error("cannot {action} {path}")]
    Io {
        action: &'static str,
        path: PathBuf,
        #[source]
        cause: std::io::Error,
    },
    #[error(transparent)]
    Layer(#[from] LayerError),
    #[error(transparent)]
    Images(#[from] ImageError),
}

impl RegistryError {
    /// The class of the error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Layer(cause) => cause.kind(),
            Self::Images(cause) => cause.kind(),
            other => other.code().kind(),
        }
    }

    /// The error code for the user. A refusal by a registry is never `unauthenticated`: that code is about the key to
    /// Atoll.
    pub fn code(&self) -> Code {
        match self {
            Self::NotFound { .. }
            | Self::CredentialsNeeded { .. }
            | Self::Refused { .. }
            | Self::NoPlatform { .. } => Code::ImageNotFound,
            Self::BadPlatform(_)
            | Self::Unsupported { .. }
            | Self::Forbidden { .. }
            | Self::ForbiddenAddress { .. } => Code::InvalidRequest,
            Self::Damaged { .. } => Code::Damaged,
            Self::Unreachable { .. }
            | Self::Silent { .. }
            | Self::Answered { .. }
            | Self::Busy { .. }
            | Self::BrokenOff { .. }
            | Self::TooSlow { .. } => Code::RegistryUnavailable,
            Self::DockerConfig { .. } | Self::Io { .. } => Code::Internal,
            Self::Layer(cause) => code_of_layer(cause),
            Self::Images(ImageError::Layer(cause)) => code_of_layer(cause),
            Self::Images(cause) => code_of_image(cause),
        }
    }

    /// What to try next, in one line, if there is a suggestion.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NotFound { .. } => "check the name and the tag; a private image needs credentials".into(),
            Self::CredentialsNeeded { .. } => {
                "send a user name and a password or token with the request".into()
            }
            Self::Refused { .. } => "check the user name, the password or token, and its permissions".into(),
            Self::NoPlatform { .. } => "use one of these, or build the image for this machine".into(),
            Self::BadPlatform(_) => "write it as linux/amd64 or linux/arm64".into(),
            Self::Forbidden { .. } | Self::ForbiddenAddress { .. } => {
                "the operator can allow the host: atoll serve --registry-insecure HOST[:PORT]".into()
            }
            Self::Damaged { .. } => {
                "pull again; if this persists, the image in the registry is damaged".into()
            }
            Self::Busy { wait_s, .. } => format!("try again in {wait_s} s, or send credentials"),
            Self::Unreachable { .. }
            | Self::Silent { .. }
            | Self::Answered { .. }
            | Self::BrokenOff { .. }
            | Self::TooSlow { .. } => "try again; downloaded parts are kept".into(),
            Self::Unsupported { .. } | Self::DockerConfig { .. } | Self::Io { .. } => return None,
            Self::Layer(cause) => return cause.hint().map(str::to_owned),
            Self::Images(cause) => return cause.hint(),
        })
    }

    /// Adds the action and the path to an I/O error.
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |cause| Self::Io { action, path: path.to_owned(), cause }
    }

    /// Content from a registry, received or stored, is invalid.
    pub(super) fn damaged(what: impl ToString, why: impl ToString) -> Self {
        Self::Damaged { what: what.to_string(), why: why.to_string() }
    }
}

fn code_of_layer(cause: &LayerError) -> Code {
    match cause {
        LayerError::Refused { .. } | LayerError::BadArchive { .. } => Code::InvalidRequest,
        LayerError::TooBig { .. } => Code::PayloadTooLarge,
        LayerError::NoRoom { .. } => Code::NoCapacity,
        LayerError::WrongDigest { .. } => Code::Damaged,
        LayerError::Cancelled | LayerError::Source(_) | LayerError::Sink(_) => Code::RegistryUnavailable,
        LayerError::Io { .. } => Code::Internal,
    }
}

fn code_of_image(cause: &ImageError) -> Code {
    match cause.kind() {
        _ if cause.is_damage() => Code::Damaged,
        ErrorKind::NotFound => Code::TemplateNotFound,
        ErrorKind::Invalid => Code::InvalidRequest,
        ErrorKind::Exhausted => Code::PayloadTooLarge,
        ErrorKind::Unsupported => Code::Unsupported,
        _ => Code::Internal,
    }
}
