//! Why a provider could not do something.

use std::time::Duration;

use atoll_model::{ErrorKind, SandboxId, VolumeId};

use crate::Capability;

/// Why a provider could not do it.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// The instance or sandbox is not there.
    #[error("sandbox {sandbox} has no such instance here")]
    Gone {
        /// Whose.
        sandbox: SandboxId,
    },
    /// The template is not there.
    #[error("template {template} is not there")]
    NoTemplate {
        /// Which.
        template: String,
    },
    /// The host's packages changed under template `host`.
    #[error("the host's packages changed since template {template} was made")]
    HostChanged {
        /// Which.
        template: String,
    },
    /// The request cannot be met for this sandbox, or on this machine.
    #[error("{what} is not possible on this server")]
    Unsupported {
        /// What was asked.
        what: String,
        /// What would make it possible.
        hint: String,
    },
    /// The provider lacks a capability.
    #[error("{} is not possible: provider {provider} lacks the capability {capability}", capability.activity())]
    MissingCapability {
        /// The provider's name.
        provider: &'static str,
        /// What it cannot do.
        capability: Capability,
        /// What would make it possible.
        hint: String,
    },
    /// Something is used up: memory, disk, descriptors, ids.
    #[error("no {what} left")]
    Exhausted {
        /// What.
        what: String,
    },
    /// It did not answer in time.
    #[error("{what} took longer than {after:?}")]
    Late {
        /// What was waited for.
        what: String,
        /// How long.
        after: Duration,
    },
    /// It failed of something that passes; all is as before.
    #[error("{what} failed: {why}")]
    Transient {
        /// What was tried.
        what: String,
        /// Why.
        why: String,
    },
    /// A snapshot, checkpoint or pack is not what was written.
    #[error("{what} is damaged: {why}")]
    Damaged {
        /// What was to be used.
        what: String,
        /// How one can tell.
        why: String,
    },
    /// A limit below what is used was asked for.
    #[error("{what} of {wanted_mib} MiB is below the {used_mib} MiB in use")]
    BelowUse {
        /// Which limit.
        what: &'static str,
        /// What was asked.
        wanted_mib: u64,
        /// What is used.
        used_mib: u64,
    },
    /// The files would not fit their limit when they are unpacked again.
    #[error(
        "the files need more than {needed_mib} MiB when they are unpacked, and the limit is {limit_mib} MiB"
    )]
    TooLargeToPack {
        /// What was counted before the count was ended.
        needed_mib: u64,
        /// The limit of the sandbox.
        limit_mib: u64,
    },
    /// There is no such volume.
    #[error("volume {volume} is not there")]
    NoVolume {
        /// Which.
        volume: VolumeId,
    },
    /// A volume can't be mounted where and as it was asked for.
    #[error("nothing can be mounted at {path}: {why}")]
    NotMountable {
        /// Where inside.
        path: String,
        /// Why.
        why: String,
    },
    /// Nothing listens on that port inside.
    #[error("no program listens on port {port}")]
    PortClosed {
        /// Which.
        port: u16,
    },
    /// A command or file inside was refused: it is not there, it exists, it may not be written.
    #[error("{message}")]
    Refused {
        /// Why, as a class.
        kind: ErrorKind,
        /// Why, as a sentence for the caller.
        message: String,
    },
    /// A step failed at the kernel or at somebody else's API.
    #[error("{step} failed")]
    Failed {
        /// What was tried.
        step: String,
        /// Why.
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl ProviderError {
    /// What sort of failure it is.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Gone { .. } | Self::NoTemplate { .. } | Self::NoVolume { .. } => ErrorKind::NotFound,
            Self::NotMountable { .. } => ErrorKind::Invalid,
            Self::HostChanged { .. } | Self::Damaged { .. } | Self::BelowUse { .. } => ErrorKind::Conflict,
            Self::Unsupported { .. } | Self::MissingCapability { .. } => ErrorKind::Unsupported,
            Self::Exhausted { .. } | Self::TooLargeToPack { .. } => ErrorKind::Exhausted,
            Self::Late { .. } | Self::Transient { .. } | Self::PortClosed { .. } => ErrorKind::Unavailable,
            Self::Refused { kind, .. } => *kind,
            Self::Failed { .. } => ErrorKind::Internal,
        }
    }
}
