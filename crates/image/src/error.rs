//! Errors of templates. Each variant says what was attempted and on what; the cause is attached as the source and not
//! repeated in the text.

use std::path::{Path, PathBuf};

use atoll_model::ErrorKind;

/// A template could not be found, made, read or removed.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    #[error("template {name} does not exist")]
    NotFound {
        name: String,
        /// Known names that are similar to the requested one.
        near: Vec<String>,
    },
    #[error("{name:?} cannot be the name of a template: {reason}")]
    BadName { name: String, reason: &'static str },
    #[error("template {name} exists already")]
    Exists { name: String },
    #[error("the alias {alias} belongs to the template {owner}")]
    AliasTaken { alias: String, owner: String },
    #[error("template {name} is no longer the one this sandbox was made from (it had the digest {wanted})")]
    Replaced { name: String, wanted: String },
    #[error(transparent)]
    HostChanged(#[from] HostChanged),
    #[error(
        "this host has programs outside /usr (/{folder} is not a link into it), so it cannot be a template"
    )]
    HostNotMerged { folder: &'static str },
    #[error("the program {tool} is needed to make the template {template} and is not installed")]
    ToolMissing { tool: &'static str, template: &'static str, package: &'static str },
    #[error("{path} is dynamically linked; this template needs a static binary")]
    NotStatic { path: PathBuf },
    #[error("the apt configuration of this host names no Debian mirror for {suite}")]
    NoMirror { suite: String },
    #[error("{tool} failed ({status}): {tail}")]
    ToolFailed { tool: &'static str, status: String, tail: String },
    #[error("{tool} did not finish within {limit_s} s")]
    ToolTimedOut { tool: &'static str, limit_s: u64 },
    #[error(
        "{step} the template {name} takes {needed_mib} MiB on the disk of {}, where {free_mib} MiB are free for it",
        folder.display()
    )]
    NoRoom { name: String, step: &'static str, folder: PathBuf, needed_mib: u64, free_mib: u64 },
    #[error("{standing} built or pulled versions use the template {name} as their base")]
    InUse { name: String, standing: usize },
    #[error("{version} is damaged: {why}")]
    Damaged { version: String, why: String },
    #[error("making the template was cancelled")]
    Cancelled,
    #[error("the manifest {path} cannot be parsed")]
    BadManifest {
        path: PathBuf,
        #[source]
        cause: serde_json::Error,
    },
    #[error("cannot {action} {path}")]
    Io {
        action: &'static str,
        path: PathBuf,
        #[source]
        cause: std::io::Error,
    },
}

impl TemplateError {
    /// The class of the error, which is all that a front needs to answer.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NotFound { .. } => ErrorKind::NotFound,
            Self::BadName { .. } => ErrorKind::Invalid,
            Self::Exists { .. } | Self::AliasTaken { .. } => ErrorKind::Exists,
            Self::Replaced { .. } | Self::HostChanged(_) | Self::Damaged { .. } | Self::InUse { .. } => {
                ErrorKind::Conflict
            }
            Self::HostNotMerged { .. } | Self::NotStatic { .. } => ErrorKind::Unsupported,
            Self::ToolMissing { .. } | Self::NoMirror { .. } => ErrorKind::Unavailable,
            Self::ToolFailed { .. } | Self::ToolTimedOut { .. } | Self::Cancelled => ErrorKind::Unavailable,
            Self::NoRoom { .. } => ErrorKind::Exhausted,
            Self::Io { cause, .. } if atoll_disk::is_full(cause) => ErrorKind::Exhausted,
            Self::BadManifest { .. } | Self::Io { .. } => ErrorKind::Internal,
        }
    }

    /// What to try next, in one line, if there is a suggestion.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NotFound { name, .. } if crate::is_built_in(name) => {
                format!("make it: atoll template make {name}")
            }
            Self::NotFound { near, .. } if !near.is_empty() => format!("did you mean {}?", near.join(" or ")),
            Self::NotFound { .. } => "list the templates: atoll template ls".into(),
            Self::ToolMissing { package, .. } => format!("apt-get install -y {package}"),
            Self::HostChanged(changed) => changed.hint().into(),
            Self::HostNotMerged { .. } => "use the debian template: atoll template make debian".into(),
            Self::NotStatic { .. } => "apt-get install -y busybox-static".into(),
            Self::NoMirror { .. } => "set ATOLL_DEBIAN_MIRROR to the base address of a Debian mirror".into(),
            Self::Exists { name } => format!("remove it first: atoll template rm {name}"),
            Self::Replaced { .. } => {
                "create a new sandbox; files of the old one can still be copied out".into()
            }
            Self::ToolFailed { .. } | Self::ToolTimedOut { .. } => {
                "check the network and the apt sources, then try again".into()
            }
            Self::InUse { .. } => "remove those first, then: atoll template gc".into(),
            Self::Damaged { .. } => "pull, import or build the template again".into(),
            Self::NoRoom { step: "making", .. } => {
                "free disk space there, or set ATOLL_CACHE to a folder on a larger disk".into()
            }
            Self::NoRoom { .. } => {
                "free disk space (atoll template rm, atoll template gc), or use a larger disk".into()
            }
            Self::Io { cause, .. } if atoll_disk::is_full(cause) => {
                "free disk space (atoll template gc), or use a larger disk".into()
            }
            Self::BadName { .. }
            | Self::AliasTaken { .. }
            | Self::Cancelled
            | Self::BadManifest { .. }
            | Self::Io { .. } => return None,
        })
    }

    /// `bytes`: needed, and free.
    pub(crate) fn no_room(name: &str, step: &'static str, folder: &Path, bytes: (u64, u64)) -> Self {
        let (needed_mib, free_mib) = (bytes.0.div_ceil(1 << 20), bytes.1 >> 20);
        Self::NoRoom { name: name.to_owned(), step, folder: folder.to_owned(), needed_mib, free_mib }
    }

    /// Adds the action and the path to an I/O error.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |cause| Self::Io { action, path: path.to_owned(), cause }
    }
}

/// The host is no longer in the state that its template was made from: a sandbox of it must not start again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the host's programs changed since this sandbox was made: {what} differs")]
pub struct HostChanged {
    /// Which part differs, e.g. `/var/lib/dpkg/status`.
    pub what: String,
}

impl HostChanged {
    /// The class of the error.
    pub fn kind(&self) -> ErrorKind {
        ErrorKind::Conflict
    }

    /// What to try next.
    pub fn hint(&self) -> &'static str {
        "create a new sandbox (its template is made again automatically), or use the debian template, which does not change with the host"
    }
}
