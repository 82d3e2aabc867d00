//! Where instances live: the [`Provider`] trait, its conformance suite, and a fake for tests.
//!
//! A provider makes instances of sandboxes and does what it is told with them. It holds no policy: whether a
//! sandbox may be made, when it ends and what it may reach is decided above and handed down.
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
//! - Every call names its instance. A provider that no longer has it answers [`ProviderError::Gone`].
//! - What the provider needs to find an instance again after a crash goes into [`Booted::facts`]; the service
//!   stores it and hands it back to [`Provider::adopt`].
//! - When `halt` or `destroy` returns, the instance is unreachable and runs no more code. Slow endings go on behind
//!   it and survive a restart; [`Provider::settle`] waits for them.

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

/// What a provider can do beyond the basics; asking for more is [`ProviderError::Unsupported`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Capabilities {
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
    /// Instances that wait can have been prepared: see [`Prepare`].
    #[serde(default)]
    pub prepares: bool,
}

/// Everything needed to make one instance.
#[derive(Debug, Clone)]
pub struct InstanceSpec {
    /// Whose.
    pub sandbox: SandboxId,
    /// Which.
    pub instance: InstanceId,
    /// Template name, resolved.
    pub template: String,
    /// Exactly which version of it.
    pub template_version: String,
    /// What it may use.
    pub limits: Limits,
    /// What it may reach.
    pub network: Arc<Egress>,
    /// Where its layer lives.
    pub storage: Storage,
    /// Host name inside.
    pub hostname: String,
    /// What its files begin as; only [`Provider::create`] looks at it.
    pub origin: FilesOrigin,
    /// Volumes that it sees.
    pub mounts: Vec<InstanceMount>,
}

/// A volume in an instance. Mounted nosuid and nodev; nothing inside can reach beyond it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceMount {
    /// What.
    pub source: MountSource,
    /// Where inside: absolute, clean; made when missing.
    pub path: String,
    /// Nothing can be written through it.
    pub read_only: bool,
}

/// What is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MountSource {
    /// A volume, or a folder of it: relative, clean, made when missing, for everybody inside to write.
    Volume {
        /// Which.
        volume: VolumeId,
        /// Which folder of it.
        sub_path: Option<String>,
    },
    /// A folder of the host below one of the roots that the operator allowed.
    Folder {
        /// Its path there, canonical: where a part of it is a link by now, it is refused.
        path: PathBuf,
        /// Which folder of it.
        sub_path: Option<String>,
        /// The user and group inside that the folder's owner is seen as. Nobody else's files can be made in it.
        seen_as: (u32, u32),
    },
    /// Memory that ends with the instance and is in no snapshot of files.
    Memory {
        /// How much it may hold.
        size_mib: u32,
    },
}

/// Instances to be kept waiting for the next create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolWish {
    /// Template name.
    pub template: String,
    /// Exactly which version of it.
    pub template_version: String,
    /// How many.
    pub size: usize,
}

/// Starts in an instance that waits for its sandbox what every sandbox of its template would have to wait for. The instance
/// has its template's user, folder and environment, and no network; it stands still from then on until it is claimed.
#[async_trait]
pub trait Prepare: Send + Sync + std::fmt::Debug {
    /// Whether there is something to start for a template of this name. What is started takes some 100 MiB for each instance.
    fn wants(&self, template: &str) -> bool;

    /// Starts it; answers when it is ready. After an error the instance is thrown away.
    async fn prepare(
        &self,
        template: &str,
        agent: AgentClient,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>>;
}

/// A file or folder of a volume. Paths are absolute within the volume; links are never followed out of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeEntry {
    /// Where.
    pub path: String,
    /// What.
    pub kind: VolumeEntryKind,
    /// Bytes.
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
    /// Where a link leads.
    pub target: Option<String>,
}

/// What an entry is.
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

/// What to change of an entry, or to give a new one; `None` leaves it, new ones get 0644 or 0755 of root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VolumeOwner {
    /// User inside.
    pub uid: Option<u32>,
    /// Group inside.
    pub gid: Option<u32>,
    /// Permissions, without setuid and setgid.
    pub mode: Option<u32>,
}

/// The files of one volume, without a sandbox. [`std::io::ErrorKind`] says what was wrong: not found, is a folder, no space …
#[async_trait]
pub trait VolumeFiles: Send + Sync {
    /// One entry; a link itself, not what it leads to.
    async fn stat(&self, path: &str) -> std::io::Result<VolumeEntry>;
    /// What is in a folder, down to `depth`, in order; `most` entries at most.
    async fn list(&self, path: &str, depth: u32, most: usize) -> std::io::Result<Vec<VolumeEntry>>;
    /// The bytes of a file.
    async fn read(&self, path: &str) -> std::io::Result<(VolumeEntry, Packed)>;
    /// Writes a file, whole or not at all; with `parents` the folders above it too.
    async fn write(
        &self,
        path: &str,
        owner: VolumeOwner,
        parents: bool,
        bytes: Packed,
    ) -> std::io::Result<VolumeEntry>;
    /// Makes a folder; with `parents` those above it too, and one that is there is fine.
    async fn make_folder(
        &self,
        path: &str,
        owner: VolumeOwner,
        parents: bool,
    ) -> std::io::Result<VolumeEntry>;
    /// Changes owner and permissions.
    async fn change(&self, path: &str, owner: VolumeOwner) -> std::io::Result<VolumeEntry>;
    /// Moves, replacing a file.
    async fn rename(&self, from: &str, to: &str) -> std::io::Result<VolumeEntry>;
    /// Removes, folders with all that is in them.
    async fn remove(&self, path: &str) -> std::io::Result<()>;
}

/// What the files of a new sandbox begin as.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum FilesOrigin {
    /// The template alone.
    #[default]
    Template,
    /// A snapshot; with `memory` its processes too.
    Snapshot {
        /// Which.
        snapshot: SnapshotId,
        /// What [`Snapshotted::seal`] said.
        seal: String,
        /// Its processes too.
        memory: bool,
    },
}

/// An instance whose agent takes connections.
#[derive(Debug, Clone)]
pub struct Booted {
    /// What only this provider understands and needs for [`Provider::adopt`]. Holds no secret.
    pub facts: serde_json::Value,
    /// The agent's token; known to the host alone. `None`: the processes were restored and have the token that they had.
    pub agent_token: Option<String>,
    /// Whether it was claimed from a pool of ready ones.
    pub from_pool: bool,
}

/// Names one instance of a sandbox, or only its files when there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Whose.
    pub sandbox: SandboxId,
    /// Which; `None` when it is stopped.
    pub instance: Option<InstanceId>,
}

/// A sandbox that the store knows, for adoption after a restart.
#[derive(Debug, Clone)]
pub struct KnownSandbox {
    /// Whose.
    pub sandbox: SandboxId,
    /// Its live instance with its facts; `None` when only files should be there.
    pub instance: Option<(InstanceId, serde_json::Value)>,
    /// Where its layer lives.
    pub storage: Storage,
    /// Its limits and policy, to be put in force again.
    pub limits: Limits,
    /// What it may reach.
    pub network: Arc<Egress>,
    /// It is paused, being paused or being resumed: a frozen instance stays frozen, and a checkpoint is kept. In all other
    /// cases an instance that is found frozen is thawed, and a checkpoint that lies about is removed.
    pub paused: bool,
}

/// One decision about what leaves an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Egressed {
    /// Whose.
    pub sandbox: SandboxId,
    /// What was decided.
    pub record: EgressRecord,
}

/// What became of a known instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adopted {
    /// Which.
    pub instance: InstanceId,
    /// What became of it.
    pub fate: AdoptionOutcome,
    /// Its facts where they are not those that were handed in: a restore had come to its end, but nobody wrote it down.
    pub facts: Option<serde_json::Value>,
}

/// What became of a known instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdoptionOutcome {
    /// It lives and is watched again.
    Alive,
    /// It lives, is watched again, and stands still.
    Frozen,
    /// Its processes are gone; a whole checkpoint of them is on disk.
    Checkpointed,
    /// It is gone; what was left of it has been cleaned up, files excepted.
    Gone,
}

/// What an instance uses now.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct InstanceUsage {
    /// CPU time since its start.
    pub cpu_us: u64,
    /// Memory charged to it, page cache included.
    pub memory_bytes: u64,
    /// Of that, page cache that can be dropped.
    pub cache_bytes: u64,
    /// Processes and threads.
    pub pids: u32,
    /// Bytes in its own layer.
    pub disk_bytes: u64,
    /// Bytes that left it over the network, loopback excepted, since its start.
    #[serde(default)]
    pub sent_bytes: u64,
}

/// What a snapshot became.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshotted {
    /// Whether it holds processes.
    pub memory: bool,
    /// Bytes of its own, as far as they can be told cheaply.
    pub bytes: u64,
    /// What the provider needs to tell later whether it is still whole. Holds no secret.
    pub seal: String,
    /// How long the sandbox stood still.
    pub stood_still: Duration,
}

/// What a rollback left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RolledBack {
    /// Files; [`Provider::boot`] comes next.
    Files,
    /// Files and a checkpoint; [`Provider::restore`] comes next.
    Memory,
}

/// A stream of a sandbox's packed files.
pub type Packed = Box<dyn AsyncRead + Send + Unpin>;

/// Something that happened to an instance without being asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// Whose.
    pub sandbox: SandboxId,
    /// Which.
    pub instance: InstanceId,
    /// What.
    pub what: NoticeKind,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoticeKind {
    /// Its first process ended.
    Died,
    /// A process inside was ended because memory ran out.
    OutOfMemory,
}

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
    /// This provider or machine can't.
    #[error("{what} is not possible on this server")]
    Unsupported {
        /// What was asked.
        what: String,
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
            Self::Unsupported { .. } => ErrorKind::Unsupported,
            Self::Exhausted { .. } => ErrorKind::Exhausted,
            Self::Late { .. } | Self::Transient { .. } | Self::PortClosed { .. } => ErrorKind::Unavailable,
            Self::Failed { .. } => ErrorKind::Internal,
        }
    }
}

/// Where instances live. Implementers: pass [`conformance`], hold no policy, never block the runtime.
#[async_trait]
pub trait Provider: Send + Sync + 'static {
    /// The name in leases: `container`, `fake`, …
    fn name(&self) -> &'static str;

    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// Makes the files and the first instance of a sandbox; returns when its agent takes connections, and whoever asked
    /// greets it. On error nothing is left.
    async fn create(&self, spec: &InstanceSpec) -> Result<Booted, ProviderError>;

    /// Makes a new instance on the files that `halt` left. On error the files are as they were.
    async fn boot(&self, spec: &InstanceSpec) -> Result<Booted, ProviderError>;

    /// Freezes every process where it stands; memory stays, connections stay. Answers when all stand still. Idempotent; one
    /// that is checkpointed stays so. [`MemoryLocation`] says where the memory is.
    async fn pause(&self, target: &Target) -> Result<MemoryLocation, ProviderError>;

    /// Brings the memory of a frozen instance to disk, checks it, and only then ends the processes. Idempotent. On error, and
    /// when it is dropped half way, it is frozen as before. When it returns the checkpoint survives a crash of the host.
    async fn checkpoint(&self, target: &Target) -> Result<(), ProviderError>;

    /// Thaws a frozen instance. Idempotent. On error it is frozen as before.
    async fn resume(&self, target: &Target) -> Result<(), ProviderError>;

    /// Makes a new instance, named by the spec, from the sandbox's checkpoint; returns when its agent takes connections. The
    /// checkpoint is spent at the moment when its processes run again, and not before. On error it is as it was.
    async fn restore(&self, spec: &InstanceSpec) -> Result<Booted, ProviderError>;

    /// Keeps the sandbox at this moment under a name of its own: files, and with `memory` the processes. A running one stands
    /// still meanwhile and runs on. Nobody else changes the sandbox at the same time. On error nothing is left.
    async fn snapshot(
        &self,
        target: &Target,
        snapshot: &SnapshotId,
        memory: bool,
    ) -> Result<Snapshotted, ProviderError>;

    /// Reads all of a snapshot and says whether it is whole; [`ProviderError::Damaged`] if not. Every use makes a quick check
    /// by itself.
    async fn verify_snapshot(&self, snapshot: &SnapshotId, seal: &str) -> Result<(), ProviderError>;

    /// Removes a snapshot. Idempotent.
    async fn remove_snapshot(&self, snapshot: &SnapshotId) -> Result<(), ProviderError>;

    /// Ends the instance, if there is one, and puts the files (and where the snapshot has them, the processes, as a checkpoint)
    /// back to a snapshot. Idempotent; after a crash the files are the old or the new ones, never a mixture.
    async fn rollback(
        &self,
        target: &Target,
        snapshot: &SnapshotId,
        seal: &str,
        limits: &Limits,
    ) -> Result<RolledBack, ProviderError>;

    /// The files of a halted sandbox as one stream that [`Provider::unpack`] of any machine understands.
    async fn pack(&self, target: &Target) -> Result<Packed, ProviderError>;

    /// Makes the files of a sandbox from such a stream. All or nothing: on error and after a crash there are none.
    async fn unpack(&self, target: &Target, limits: &Limits, files: Packed) -> Result<(), ProviderError>;

    /// What a halted sandbox changed over its template, as the tar of an OCI layer: whiteouts, hard links, xattrs and
    /// canonical ids. One that did nothing gives an empty layer. A name that no layer can tell fails the stream, which says
    /// which.
    async fn capture(
        &self,
        _target: &Target,
        _template: &str,
        _template_version: &str,
    ) -> Result<Packed, ProviderError> {
        Err(unsupported("making a layer of what a sandbox changed"))
    }

    /// Makes an empty volume of at most so many MiB; `None`: it has no limit of its own. Idempotent. All or nothing.
    async fn create_volume(&self, _volume: &VolumeId, _size_mib: Option<u32>) -> Result<(), ProviderError> {
        Err(unsupported("keeping volumes"))
    }

    /// Makes a volume with the files of another as they are at this moment; `size_mib` is its own, and
    /// [`ProviderError::BelowUse`] where that is below what it begins with. All or nothing.
    async fn copy_volume(
        &self,
        _from: &VolumeId,
        _to: &VolumeId,
        _size_mib: Option<u32>,
    ) -> Result<(), ProviderError> {
        Err(unsupported("keeping volumes"))
    }

    /// Changes how much it may hold; [`ProviderError::BelowUse`] below what it does.
    async fn resize_volume(&self, _volume: &VolumeId, _size_mib: u32) -> Result<(), ProviderError> {
        Err(unsupported("keeping volumes"))
    }

    /// Bytes in it.
    async fn volume_bytes(&self, _volume: &VolumeId) -> Result<u64, ProviderError> {
        Err(unsupported("keeping volumes"))
    }

    /// Removes it with its files. Idempotent. Nobody mounts it.
    async fn remove_volume(&self, _volume: &VolumeId) -> Result<(), ProviderError> {
        Err(unsupported("keeping volumes"))
    }

    /// Its files, without a sandbox.
    async fn volume_files(&self, _volume: &VolumeId) -> Result<Box<dyn VolumeFiles>, ProviderError> {
        Err(unsupported("keeping volumes"))
    }

    /// After a restart: removes what crashed makers left, and volumes that nobody knows.
    async fn sweep_volumes(&self, _known: Vec<VolumeId>) -> Result<(), ProviderError> {
        Ok(())
    }

    /// Which instances to keep waiting, beside those of the configuration. Replaces what was wished before.
    async fn wish_pool(&self, _wishes: Vec<PoolWish>) {}

    /// How many instances of a template's version wait ready now.
    fn pooled(&self, _template: &str, _version: &str) -> usize {
        0
    }

    /// Ends the instance and keeps the files; a checkpoint is removed. Idempotent.
    async fn halt(&self, target: &Target) -> Result<(), ProviderError>;

    /// Ends the instance and removes everything. Idempotent, legal at any time, also half way through `create`.
    async fn destroy(&self, target: &Target) -> Result<(), ProviderError>;

    /// Changes the limits of a live instance (or of the files alone).
    async fn resize(&self, target: &Target, limits: &Limits) -> Result<(), ProviderError>;

    /// Changes what a live instance may reach. Connections that are still allowed go on.
    async fn set_network(&self, target: &Target, egress: Arc<Egress>) -> Result<(), ProviderError>;

    /// The certificate authority that a sandbox has to trust for its requests to be changed on their way; PEM.
    /// `None`: nothing is changed, or this provider cannot. The same egress always has the same.
    fn authority(&self, egress: &Egress) -> Option<String>;

    /// What was decided about what leaves sandboxes, as it happens.
    fn egress(&self) -> broadcast::Receiver<Egressed>;

    /// What it uses now.
    async fn usage(&self, target: &Target) -> Result<InstanceUsage, ProviderError>;

    /// A byte stream to a port inside, also to servers that listen on loopback only.
    async fn dial(&self, target: &Target, port: u16) -> Result<Box<dyn ByteStream>, ProviderError>;

    /// After a restart: says what became of each known instance and removes everything that nobody knows.
    /// `snapshots` are all that are wanted. An instance whose restore was under way is named by its new id, with facts `null`:
    /// where the restore had come to its end it is alive, else the checkpoint is as it was.
    async fn adopt(
        &self,
        known: Vec<KnownSandbox>,
        snapshots: Vec<SnapshotId>,
    ) -> Result<Vec<Adopted>, ProviderError>;

    /// What happens to instances by itself.
    fn notices(&self) -> broadcast::Receiver<Notice>;

    /// What this node has; `live`, `memory_limits_mib`, `live_max` and `overcommit` are filled in by the service.
    async fn node(&self) -> Result<Node, ProviderError>;

    /// Waits until slow endings are done, or the deadline passes.
    async fn settle(&self, deadline: Duration) -> Result<(), ProviderError>;
}

fn unsupported(what: &str) -> ProviderError {
    ProviderError::Unsupported { what: what.into(), hint: "use provider container".into() }
}

/// The port on which the agent listens inside every sandbox.
pub const AGENT_PORT: u16 = 49_983;
