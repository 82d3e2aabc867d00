//! What a provider can do, and what it says about itself.

use atoll_model::Isolation;
use serde::{Deserialize, Serialize};

/// What a provider can do beyond the basics; asking for more is [`ProviderError::MissingCapability`](crate::ProviderError::MissingCapability).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Capabilities {
    /// How ports inside can be reached.
    pub dials: DialMode,
    /// Commands and files are reached by the provider's own calls: see [`SessionSupport`](crate::SessionSupport). A provider that
    /// dials and has no such calls runs Atoll's agent in its instances, which gives all of a session.
    #[serde(default)]
    pub session: bool,
    /// A session by the provider's own calls can write to the standard input of a process.
    #[serde(default)]
    pub stdin: bool,
    /// A session by the provider's own calls can send signals.
    #[serde(default)]
    pub signals: bool,
    /// A session by the provider's own calls can give a process a terminal.
    #[serde(default)]
    pub terminals: bool,
    /// Commands and file operations can act as any user of the sandbox.
    #[serde(default)]
    pub users: bool,
    /// Files survive `halt`.
    pub keeps_files: bool,
    /// A disk limit holds.
    pub limits_disk: bool,
    /// Limits of a live instance can change.
    pub resizes_live: bool,
    /// Network policy can be enforced.
    pub network: bool,
    /// An instance can stand still with its memory.
    pub pauses: bool,
    /// Memory of a paused instance can be brought to disk and back.
    pub checkpoints: bool,
    /// Files can be snapshotted, rolled back and forked.
    pub snapshots: bool,
    /// Files can be packed for object storage.
    pub packs: bool,
    /// What a sandbox changed can be had as a layer of an image.
    pub captures: bool,
    /// Volumes can be kept and mounted.
    pub volumes: bool,
    /// Instances can be started before they are needed.
    pub pools: bool,
    /// Sandboxes can be made from the layers of this server's templates.
    #[serde(default)]
    pub layers: bool,
    /// Instances of a pool can run a program before they are needed: see [`Prepare`](crate::Prepare).
    #[serde(default)]
    pub prepares: bool,
}

/// How ports inside an instance can be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DialMode {
    /// Not at all.
    #[default]
    None,
    /// A dial gives a stream on which the caller speaks HTTP/1.1 in plain text; upgrades are possible. The provider sends the
    /// requests to where the vendor takes them.
    Http,
    /// A dial gives the connection itself.
    Stream,
}

/// One thing that a provider can do, or cannot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Capability {
    /// HTTP to ports inside an instance.
    Dial,
    /// Connections to ports inside an instance that carry any protocol.
    DialStream,
    /// Atoll's agent in every instance.
    Agent,
    /// Commands and files by the provider's own calls.
    Session,
    /// Writing to the standard input of a process.
    Stdin,
    /// Sending a signal to a process.
    Signal,
    /// Processes with a terminal.
    Terminal,
    /// Commands and files as another user than the default one.
    User,
    /// Files that survive `halt`.
    KeepFiles,
    /// A limit on the disk space of a sandbox.
    DiskLimit,
    /// Changing the limits of a live instance.
    Resize,
    /// Enforcing a network policy.
    Egress,
    /// Freezing an instance with its memory.
    Pause,
    /// Writing the memory of a paused instance to disk, and restoring it.
    Checkpoint,
    /// Snapshots of files, rollback and forks.
    Snapshot,
    /// Packing the files of a sandbox for object storage.
    Archive,
    /// Reading the changes of a sandbox as a layer of an image.
    Capture,
    /// Volumes.
    Volume,
    /// Instances that are started before they are needed.
    Pool,
    /// Sandboxes from the layers of this server's templates.
    Layers,
}

impl Capability {
    /// Every capability, in the order of the documentation.
    pub const ALL: [Self; 20] = [
        Self::Dial,
        Self::DialStream,
        Self::Agent,
        Self::Session,
        Self::Stdin,
        Self::Signal,
        Self::Terminal,
        Self::User,
        Self::KeepFiles,
        Self::DiskLimit,
        Self::Resize,
        Self::Egress,
        Self::Pause,
        Self::Checkpoint,
        Self::Snapshot,
        Self::Archive,
        Self::Capture,
        Self::Volume,
        Self::Pool,
        Self::Layers,
    ];

    /// The name in answers and errors.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dial => "dial",
            Self::DialStream => "dial_stream",
            Self::Agent => "agent",
            Self::Session => "session",
            Self::Stdin => "stdin",
            Self::Signal => "signal",
            Self::Terminal => "terminal",
            Self::User => "user",
            Self::KeepFiles => "keep_files",
            Self::DiskLimit => "disk_limit",
            Self::Resize => "resize",
            Self::Egress => "egress",
            Self::Pause => "pause",
            Self::Checkpoint => "checkpoint",
            Self::Snapshot => "snapshot",
            Self::Archive => "archive",
            Self::Capture => "capture",
            Self::Volume => "volume",
            Self::Pool => "pool",
            Self::Layers => "layers",
        }
    }
}

impl Capability {
    /// What it lets a caller do, as the subject of a sentence.
    #[must_use]
    pub const fn activity(self) -> &'static str {
        match self {
            Self::Dial => "connecting to a port",
            Self::DialStream => "connecting to a port without HTTP/1.1",
            Self::Agent => "what only Atoll's agent can do",
            Self::Session => "running commands and reading files",
            Self::Stdin => "input to a process",
            Self::Signal => "sending a signal",
            Self::Terminal => "a terminal",
            Self::User => "acting as another user",
            Self::KeepFiles => "keeping files over a stop",
            Self::DiskLimit => "a disk limit",
            Self::Resize => "changing the limits of a running sandbox",
            Self::Egress => "a network policy",
            Self::Pause => "a pause",
            Self::Checkpoint => "writing memory to disk",
            Self::Snapshot => "a snapshot",
            Self::Archive => "archiving files",
            Self::Capture => "making an image of a sandbox",
            Self::Volume => "a volume",
            Self::Pool => "keeping instances ready",
            Self::Layers => "using a template of this server",
        }
    }
}

impl std::fmt::Display for Capability {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl Capabilities {
    const fn runs_agent(&self) -> bool {
        !self.session && !matches!(self.dials, DialMode::None)
    }

    /// Whether a capability is there.
    #[must_use]
    pub const fn has(&self, capability: Capability) -> bool {
        match capability {
            Capability::Dial => !matches!(self.dials, DialMode::None),
            Capability::DialStream => matches!(self.dials, DialMode::Stream),
            Capability::Agent => self.runs_agent(),
            Capability::Session => self.session,
            Capability::Stdin => self.runs_agent() || self.stdin,
            Capability::Signal => self.runs_agent() || self.signals,
            Capability::Terminal => self.runs_agent() || self.terminals,
            Capability::User => self.users,
            Capability::KeepFiles => self.keeps_files,
            Capability::DiskLimit => self.limits_disk,
            Capability::Resize => self.resizes_live,
            Capability::Egress => self.network,
            Capability::Pause => self.pauses,
            Capability::Checkpoint => self.checkpoints,
            Capability::Snapshot => self.snapshots,
            Capability::Archive => self.packs,
            Capability::Capture => self.captures,
            Capability::Volume => self.volumes,
            Capability::Pool => self.pools,
            Capability::Layers => self.layers,
        }
    }
}

/// What a provider says about itself to people who choose one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProviderDescription {
    /// What separates its sandboxes from their machine.
    pub isolation: Isolation,
    /// What a sandbox costs, in a few words.
    pub cost: &'static str,
    /// What it is best for, in a few words.
    pub best_for: &'static str,
}
