//! Where instances live: the [`Provider`] trait, its conformance suite, and a fake for tests.
//!
//! A provider makes and operates instances of sandboxes. It has no policy: the service decides whether a sandbox may be
//! created, when it ends and what it may reach.
//!
//! ```text
//! create ──► instance ──► halt ──► (files only) ──► boot ──► next instance
//!               │ ▲                       │ ▲
//!               │ │ resume                │ └─ unpack ◄─ (archive) ◄─ pack, destroy
//!         pause ▼ │                       └─── rollback to a snapshot
//!             frozen ──► checkpoint ──► (files and memory on disk) ──► restore ──► next instance
//!
//! destroy is legal at any time and idempotent
//! ```
//!
//! - A *sandbox* owns files; an *instance* owns processes. `halt` ends the instance and keeps the files.
//! - Every call names its instance. A provider that no longer has it returns [`ProviderError::Gone`].
//! - The data that the provider needs to find an instance again after a crash is in [`Booted::facts`]; the service
//!   stores it and passes it to [`Provider::adopt`].
//! - When `halt` or `destroy` returns, the instance is unreachable and runs no more code. Slow removals continue in the
//!   background and survive a restart; [`Provider::settle`] waits for them.

#![warn(missing_docs, reason = "implementors of the trait read only these comments")]

#[cfg(any(test, feature = "testing"))]
pub mod conformance;
#[cfg(any(test, feature = "testing"))]
pub mod fake;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use atoll_agentapi::AgentClient;
use atoll_model::policy::egress::Egress;
use atoll_model::policy::placement::Node;
use atoll_model::{
    EgressRecord, ErrorKind, InstanceId, Limits, MemoryLocation, SandboxId, SnapshotId, Storage, VolumeId,
};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncRead;
use tokio::sync::broadcast;

pub use atoll_agentapi::ByteStream;

/// Optional features of a provider; a call that needs a missing one returns [`ProviderError::Unsupported`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Capabilities {
    /// Files survive `halt`.
    pub keeps_files: bool,
    /// Disk limits are enforced.
    pub limits_disk: bool,
    /// Limits of a live instance can change.
    pub resizes_live: bool,
    /// Network policy can be enforced.
    pub network: bool,
    /// An instance can be frozen with its memory.
    pub pauses: bool,
    /// The memory of a paused instance can be written to disk and restored.
    pub checkpoints: bool,
    /// Files can be snapshotted, rolled back and forked.
    pub snapshots: bool,
    /// Files can be packed for object storage.
    pub packs: bool,
    /// The changes of a sandbox can be captured as an image layer.
    pub captures: bool,
    /// Volumes can be stored and mounted.
    pub volumes: bool,
    /// Instances in the pool can be prepared: see [`Prepare`].
    #[serde(default)]
    pub prepares: bool,
}

/// Everything needed to make one instance.
#[derive(Debug, Clone)]
pub struct InstanceSpec {
    /// The sandbox of the instance.
    pub sandbox: SandboxId,
    /// The id of the new instance.
    pub instance: InstanceId,
    /// Template name, resolved.
    pub template: String,
    /// The exact version of the template.
    pub template_version: String,
    /// Its resource limits.
    pub limits: Limits,
    /// The compiled network policy.
    pub network: Arc<Egress>,
    /// Where its layer is stored.
    pub storage: Storage,
    /// The host name in the sandbox.
    pub hostname: String,
    /// The origin of its files; only [`Provider::create`] uses it.
    pub origin: FilesOrigin,
    /// Its mounts.
    pub mounts: Vec<InstanceMount>,
}

/// A mount in an instance. Always nosuid and nodev; programs cannot reach beyond it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceMount {
    /// What is mounted.
    pub source: MountSource,
    /// The mount point: absolute and normalised; made when missing.
    pub path: String,
    /// Whether writing is refused.
    pub read_only: bool,
}

/// The source of a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MountSource {
    /// A volume, or a folder of it: relative, normalised, made when missing, writable for all users.
    Volume {
        /// The volume.
        volume: VolumeId,
        /// Mount only this folder of it.
        sub_path: Option<String>,
    },
    /// A folder of the host below one of the roots that the operator allowed.
    Folder {
        /// Its canonical path; refused if a component has become a symbolic link.
        path: PathBuf,
        /// Mount only this folder of it.
        sub_path: Option<String>,
        /// The user and group that the folder's owner appears as in the sandbox. No files of other owners can be made
        /// in it.
        seen_as: (u32, u32),
    },
    /// A tmpfs that ends with the instance and is not part of snapshots of files.
    Memory {
        /// Size limit in MiB.
        size_mib: u32,
    },
}

/// A requested pool of ready instances.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolWish {
    /// Template name.
    pub template: String,
    /// The exact version of the template.
    pub template_version: String,
    /// The number of instances.
    pub size: usize,
}

/// Starts processes in a ready instance that every sandbox of its template would have to wait for. The instance has its
/// template's user, folder and environment, and no network; it is frozen afterwards until it is claimed.
#[async_trait]
pub trait Prepare: Send + Sync + std::fmt::Debug {
    /// Whether instances of this template are prepared. The processes take about 100 MiB for each instance.
    fn wants(&self, template: &str) -> bool;

    /// Prepares an instance; returns when it is ready. After an error the instance is discarded.
    async fn prepare(
        &self,
        template: &str,
        agent: AgentClient,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>>;
}

/// A file or folder of a volume. Paths are absolute within the volume; symbolic links are never followed out of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeEntry {
    /// The path in the volume.
    pub path: String,
    /// The type of the entry.
    pub kind: VolumeEntryKind,
    /// The size in bytes.
    pub size: u64,
    /// Permissions.
    pub mode: u32,
    /// Owner, as seen inside a sandbox.
    pub uid: u32,
    /// Group, as seen inside a sandbox.
    pub gid: u32,
    /// Milliseconds since the Unix epoch.
    pub accessed_ms: i64,
    /// Milliseconds since the Unix epoch.
    pub modified_ms: i64,
    /// Milliseconds since the Unix epoch.
    pub changed_ms: i64,
    /// The target of a symbolic link.
    pub target: Option<String>,
}

/// The type of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VolumeEntryKind {
    /// A file.
    File,
    /// A folder.
    Folder,
    /// A symbolic link.
    Link,
    /// A pipe, socket or device.
    Other,
}

/// New attributes of an entry; `None` leaves one unchanged, and new entries get 0644 or 0755 of root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VolumeOwner {
    /// User id in the sandbox.
    pub uid: Option<u32>,
    /// Group id in the sandbox.
    pub gid: Option<u32>,
    /// Permissions, without setuid and setgid.
    pub mode: Option<u32>,
}

/// The files of one volume, without a sandbox. [`std::io::ErrorKind`] gives the reason of an error: not found, is a
/// folder, no space …
#[async_trait]
pub trait VolumeFiles: Send + Sync {
    /// One entry; symbolic links are not followed.
    async fn stat(&self, path: &str) -> std::io::Result<VolumeEntry>;
    /// The entries of a folder, down to `depth`, in order; at most `most` entries.
    async fn list(&self, path: &str, depth: u32, most: usize) -> std::io::Result<Vec<VolumeEntry>>;
    /// The bytes of a file.
    async fn read(&self, path: &str) -> std::io::Result<(VolumeEntry, Packed)>;
    /// Writes a file, completely or not at all; with `parents` also makes missing folders.
    async fn write(
        &self,
        path: &str,
        owner: VolumeOwner,
        parents: bool,
        bytes: Packed,
    ) -> std::io::Result<VolumeEntry>;
    /// Makes a folder; with `parents` also missing parents, and an existing folder is no error.
    async fn make_folder(
        &self,
        path: &str,
        owner: VolumeOwner,
        parents: bool,
    ) -> std::io::Result<VolumeEntry>;
    /// Changes owner and permissions.
    async fn change(&self, path: &str, owner: VolumeOwner) -> std::io::Result<VolumeEntry>;
    /// Moves an entry; replaces an existing file.
    async fn rename(&self, from: &str, to: &str) -> std::io::Result<VolumeEntry>;
    /// Removes an entry, folders with all their content.
    async fn remove(&self, path: &str) -> std::io::Result<()>;
}

/// The origin of a new sandbox's files.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum FilesOrigin {
    /// The template alone.
    #[default]
    Template,
    /// A snapshot; with `memory` also its processes.
    Snapshot {
        /// The snapshot.
        snapshot: SnapshotId,
        /// The value of [`Snapshotted::seal`].
        seal: String,
        /// Also restore its processes.
        memory: bool,
    },
}

/// An instance whose agent accepts connections.
#[derive(Debug, Clone)]
pub struct Booted {
    /// Provider-specific data for [`Provider::adopt`]. Contains no secret.
    pub facts: serde_json::Value,
    /// The agent's token; only the host knows it. `None`: the processes were restored and keep their token.
    pub agent_token: Option<String>,
    /// Whether it was claimed from a pool.
    pub from_pool: bool,
}

/// Names one instance of a sandbox, or only its files if there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// `None` when the sandbox is stopped.
    pub instance: Option<InstanceId>,
}

/// A sandbox in the store, for adoption after a restart.
#[derive(Debug, Clone)]
pub struct KnownSandbox {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// Its live instance with its facts; `None` if only files should exist.
    pub instance: Option<(InstanceId, serde_json::Value)>,
    /// Where its layer is stored.
    pub storage: Storage,
    /// Its limits, to be applied again.
    pub limits: Limits,
    /// Its network policy, to be applied again.
    pub network: Arc<Egress>,
    /// Whether it is paused, being paused or being resumed: a frozen instance stays frozen, and a checkpoint is kept.
    /// In all other cases a frozen instance is thawed, and a leftover checkpoint is removed.
    pub paused: bool,
}

/// One egress decision of an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Egressed {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// The decision.
    pub record: EgressRecord,
}

/// The result of adoption for a known instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adopted {
    /// The instance.
    pub instance: InstanceId,
    /// Its state.
    pub fate: AdoptionOutcome,
    /// Its facts, if they differ from the passed ones: a restore had finished before its facts were stored.
    pub facts: Option<serde_json::Value>,
}

/// The state of a known instance after adoption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdoptionOutcome {
    /// It lives and is watched again.
    Alive,
    /// It lives, is watched again, and is frozen.
    Frozen,
    /// Its processes are gone; a complete checkpoint of them is on disk.
    Checkpointed,
    /// It is gone; everything of it except its files has been removed.
    Gone,
}

/// The current resource use of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct InstanceUsage {
    /// CPU time since its start.
    pub cpu_us: u64,
    /// Memory charged to it, including page cache.
    pub memory_bytes: u64,
    /// The part of it that is reclaimable page cache.
    pub cache_bytes: u64,
    /// Processes and threads.
    pub pids: u32,
    /// Bytes in its own layer.
    pub disk_bytes: u64,
    /// Bytes that it has sent over the network since its start, without loopback.
    #[serde(default)]
    pub sent_bytes: u64,
}

/// The result of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshotted {
    /// Whether it contains processes.
    pub memory: bool,
    /// Its own bytes, as far as they can be determined cheaply.
    pub bytes: u64,
    /// Data for the later check that the snapshot is unchanged. Contains no secret.
    pub seal: String,
    /// How long the sandbox was frozen.
    pub stood_still: Duration,
}

/// The result of a rollback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RolledBack {
    /// Files; [`Provider::boot`] comes next.
    Files,
    /// Files and a checkpoint; [`Provider::restore`] comes next.
    Memory,
}

/// A stream of a sandbox's packed files.
pub type Packed = Box<dyn AsyncRead + Send + Unpin>;

/// A spontaneous event of an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// The instance.
    pub instance: InstanceId,
    /// The event.
    pub what: NoticeKind,
}

/// The kind of a spontaneous event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoticeKind {
    /// Its first process ended.
    Died,
    /// The OOM killer ended a process in the sandbox.
    OutOfMemory,
}

/// An operation of a provider failed.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// The instance or sandbox does not exist.
    #[error("sandbox {sandbox} has no such instance here")]
    Gone {
        /// The sandbox.
        sandbox: SandboxId,
    },
    /// The template does not exist.
    #[error("template {template} does not exist")]
    NoTemplate {
        /// Its name.
        template: String,
    },
    /// The host's packages changed under template `host`.
    #[error("the host's packages changed since template {template} was made")]
    HostChanged {
        /// The name of the template.
        template: String,
    },
    /// This provider or machine does not support the operation.
    #[error("{what} is not possible on this server")]
    Unsupported {
        /// What was requested.
        what: String,
        /// What would make it possible.
        hint: String,
    },
    /// A resource is used up: memory, disk, descriptors, ids.
    #[error("no {what} left")]
    Exhausted {
        /// The resource.
        what: String,
    },
    /// The operation did not finish in time.
    #[error("{what} took longer than {after:?}")]
    Late {
        /// The operation.
        what: String,
        /// The deadline.
        after: Duration,
    },
    /// A temporary failure; nothing has changed.
    #[error("{what} failed: {why}")]
    Transient {
        /// The operation.
        what: String,
        /// The reason.
        why: String,
    },
    /// A snapshot, checkpoint or pack differs from what was written.
    #[error("{what} is damaged: {why}")]
    Damaged {
        /// What is damaged.
        what: String,
        /// How the damage was detected.
        why: String,
    },
    /// A limit below the current use was requested.
    #[error("{what} of {wanted_mib} MiB is below the {used_mib} MiB in use")]
    BelowUse {
        /// The limit.
        what: &'static str,
        /// The requested value.
        wanted_mib: u64,
        /// The current use.
        used_mib: u64,
    },
    /// The volume does not exist.
    #[error("volume {volume} does not exist")]
    NoVolume {
        /// Its id.
        volume: VolumeId,
    },
    /// A volume can't be mounted as requested.
    #[error("cannot mount at {path}: {why}")]
    NotMountable {
        /// The mount point.
        path: String,
        /// The reason.
        why: String,
    },
    /// No program listens on that port in the sandbox.
    #[error("no program listens on port {port}")]
    PortClosed {
        /// The port.
        port: u16,
    },
    /// A step failed in the kernel or in a remote API.
    #[error("{step} failed")]
    Failed {
        /// The step.
        step: String,
        /// The cause.
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl ProviderError {
    /// The class of the error.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Gone { .. } | Self::NoTemplate { .. } | Self::NoVolume { .. } => ErrorKind::NotFound,
            Self::NotMountable { .. } => ErrorKind::Invalid,
            Self::HostChanged { .. } | Self::Damaged { .. } | Self::BelowUse { .. } => ErrorKind::Conflict,
            Self::Unsupported { .. } => ErrorKind::Unsupported,
            Self::Exhausted { .. } => ErrorKind::Exhausted,
            Self::Late { .. } | Self::Transient { .. } | Self::PortClosed { .. } => ErrorKind::Unavailable,
            Self::Failed { .. } => ErrorKind::Internal,
        }
    }
}

/// Implementations must pass [`conformance`], have no policy, and never block the runtime.
#[async_trait]
pub trait Provider: Send + Sync + 'static {
    /// The name in leases: `container`, `fake`, …
    fn name(&self) -> &'static str;

    /// The optional features.
    fn capabilities(&self) -> Capabilities;

    /// Makes the files and the first instance of a sandbox; returns when its agent accepts connections. The caller
    /// sends the init request. On an error nothing is left.
    async fn create(&self, spec: &InstanceSpec) -> Result<Booted, ProviderError>;

    /// Makes a new instance on the files that `halt` left. On an error the files are unchanged.
    async fn boot(&self, spec: &InstanceSpec) -> Result<Booted, ProviderError>;

    /// Freezes every process; memory and connections stay. Returns when all processes are frozen. Idempotent; a
    /// checkpointed sandbox stays checkpointed. [`MemoryLocation`] says where the memory is.
    async fn pause(&self, target: &Target) -> Result<MemoryLocation, ProviderError>;

    /// Writes the memory of a frozen instance to disk, verifies it, and only then ends the processes. Idempotent. On an
    /// error, and when the call is dropped, the instance stays frozen. When it returns, the checkpoint survives a crash
    /// of the host.
    async fn checkpoint(&self, target: &Target) -> Result<(), ProviderError>;

    /// Thaws a frozen instance. Idempotent. On an error the instance stays frozen.
    async fn resume(&self, target: &Target) -> Result<(), ProviderError>;

    /// Makes a new instance, named by the spec, from the sandbox's checkpoint; returns when its agent accepts
    /// connections. The checkpoint is spent at the moment when its processes run again, and not before. On an error it
    /// is unchanged.
    async fn restore(&self, spec: &InstanceSpec) -> Result<Booted, ProviderError>;

    /// Stores the current state of the sandbox under its own id: files, and with `memory` the processes. A running
    /// sandbox is frozen meanwhile and continues afterwards. No other operation changes the sandbox at the same time.
    /// On an error nothing is left.
    async fn snapshot(
        &self,
        target: &Target,
        snapshot: &SnapshotId,
        memory: bool,
    ) -> Result<Snapshotted, ProviderError>;

    /// Reads and verifies a whole snapshot; [`ProviderError::Damaged`] if it has changed. Every use makes a quick check
    /// anyway.
    async fn verify_snapshot(&self, snapshot: &SnapshotId, seal: &str) -> Result<(), ProviderError>;

    /// Removes a snapshot. Idempotent.
    async fn remove_snapshot(&self, snapshot: &SnapshotId) -> Result<(), ProviderError>;

    /// Ends the instance, if there is one, and resets the files to a snapshot; if the snapshot has processes, they
    /// become a checkpoint. Idempotent; after a crash the files are the old or the new ones, never a mixture.
    async fn rollback(
        &self,
        target: &Target,
        snapshot: &SnapshotId,
        seal: &str,
        limits: &Limits,
    ) -> Result<RolledBack, ProviderError>;

    /// The files of a halted sandbox as one stream that [`Provider::unpack`] of any machine accepts.
    async fn pack(&self, target: &Target) -> Result<Packed, ProviderError>;

    /// Makes the files of a sandbox from such a stream. All or nothing: on an error and after a crash there are none.
    async fn unpack(&self, target: &Target, limits: &Limits, files: Packed) -> Result<(), ProviderError>;

    /// The changes of a halted sandbox over its template, as the tar of an OCI layer: whiteouts, hard links, xattrs and
    /// canonical ids. Without changes the layer is empty. A name that a layer cannot represent makes the stream fail
    /// with that name.
    async fn capture(
        &self,
        _target: &Target,
        _template: &str,
        _template_version: &str,
    ) -> Result<Packed, ProviderError> {
        Err(unsupported("making a layer of what a sandbox changed"))
    }

    /// Makes an empty volume with this size limit in MiB; `None`: without a limit. Idempotent. All or nothing.
    async fn create_volume(&self, _volume: &VolumeId, _size_mib: Option<u32>) -> Result<(), ProviderError> {
        Err(unsupported("keeping volumes"))
    }

    /// Makes a volume with the current files of another; `size_mib` is its own limit, and [`ProviderError::BelowUse`]
    /// is returned if the files exceed it. All or nothing.
    async fn copy_volume(
        &self,
        _from: &VolumeId,
        _to: &VolumeId,
        _size_mib: Option<u32>,
    ) -> Result<(), ProviderError> {
        Err(unsupported("keeping volumes"))
    }

    /// Changes the size limit of a volume; [`ProviderError::BelowUse`] if its content exceeds it.
    async fn resize_volume(&self, _volume: &VolumeId, _size_mib: u32) -> Result<(), ProviderError> {
        Err(unsupported("keeping volumes"))
    }

    /// The bytes in a volume.
    async fn volume_bytes(&self, _volume: &VolumeId) -> Result<u64, ProviderError> {
        Err(unsupported("keeping volumes"))
    }

    /// Removes a volume with its files. Idempotent. No sandbox may mount it.
    async fn remove_volume(&self, _volume: &VolumeId) -> Result<(), ProviderError> {
        Err(unsupported("keeping volumes"))
    }

    /// The files of a volume, without a sandbox.
    async fn volume_files(&self, _volume: &VolumeId) -> Result<Box<dyn VolumeFiles>, ProviderError> {
        Err(unsupported("keeping volumes"))
    }

    /// After a restart: removes unfinished volumes, and volumes that are not in `known`.
    async fn sweep_volumes(&self, _known: Vec<VolumeId>) -> Result<(), ProviderError> {
        Ok(())
    }

    /// Sets the pools to keep, besides those of the configuration. Replaces earlier requests.
    async fn wish_pool(&self, _wishes: Vec<PoolWish>) {}

    /// How many instances of a template version are ready in the pool.
    fn pooled(&self, _template: &str, _version: &str) -> usize {
        0
    }

    /// Ends the instance and keeps the files; removes a checkpoint. Idempotent.
    async fn halt(&self, target: &Target) -> Result<(), ProviderError>;

    /// Ends the instance and removes everything. Idempotent, and allowed at any time, also during `create`.
    async fn destroy(&self, target: &Target) -> Result<(), ProviderError>;

    /// Changes the limits of a live instance (or of the files alone).
    async fn resize(&self, target: &Target, limits: &Limits) -> Result<(), ProviderError>;

    /// Changes the network policy of a live instance. Connections that are still allowed continue.
    async fn set_network(&self, target: &Target, egress: Arc<Egress>) -> Result<(), ProviderError>;

    /// The certificate authority, as PEM, that a sandbox must trust so that its requests can be changed. `None`: no
    /// request is changed, or this provider cannot do it. The same egress always has the same authority.
    fn authority(&self, egress: &Egress) -> Option<String>;

    /// Egress decisions of all sandboxes, as they happen.
    fn egress(&self) -> broadcast::Receiver<Egressed>;

    /// The current resource use.
    async fn usage(&self, target: &Target) -> Result<InstanceUsage, ProviderError>;

    /// A byte stream to a port in the sandbox, also to servers that listen only on loopback.
    async fn dial(&self, target: &Target, port: u16) -> Result<Box<dyn ByteStream>, ProviderError>;

    /// After a restart: returns the state of each known instance and removes everything unknown. `snapshots` lists all
    /// that are wanted. An instance whose restore was under way is named by its new id, with facts `null`: if the
    /// restore had finished, the instance is alive, otherwise the checkpoint is unchanged.
    async fn adopt(
        &self,
        known: Vec<KnownSandbox>,
        snapshots: Vec<SnapshotId>,
    ) -> Result<Vec<Adopted>, ProviderError>;

    /// Spontaneous events of instances.
    fn notices(&self) -> broadcast::Receiver<Notice>;

    /// The capacity of this node; the service fills in `live`, `memory_limits_mib`, `live_max` and `overcommit`.
    async fn node(&self) -> Result<Node, ProviderError>;

    /// Waits until slow removals are done, or the deadline passes.
    async fn settle(&self, deadline: Duration) -> Result<(), ProviderError>;
}

fn unsupported(what: &str) -> ProviderError {
    ProviderError::Unsupported { what: what.into(), hint: "use provider container".into() }
}

/// The port on which the agent listens inside every sandbox.
pub const AGENT_PORT: u16 = 49_983;
