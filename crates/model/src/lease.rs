//! The durable record of a sandbox: what was asked, what is wanted, what is.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{
    BuildId, InstanceId, Limits, Mount, NetworkPolicy, Principal, SandboxId, SnapshotId, TenantId, Timestamp,
};

/// What the user wants the sandbox to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Intent {
    /// Be running.
    Run,
    /// Stand still with its memory.
    Pause,
    /// Keep files only.
    Stop,
    /// Keep files in object storage only.
    Archive,
    /// Be gone.
    Delete,
}

/// How far a creation has come. [`crate::lifecycle::stage_follows`] says which comes after which.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Its image has to be built or pulled, and waits for its turn.
    Queued,
    /// Its image is being pulled.
    Pulling,
    /// Its image is being built.
    Building,
    /// The instance is being made.
    #[default]
    Booting,
}

impl Stage {
    /// Every stage, for tables and tests.
    pub const ALL: [Stage; 4] = [Stage::Queued, Stage::Pulling, Stage::Building, Stage::Booting];

    /// The stage as the API shows it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Pulling => "pulling",
            Self::Building => "building",
            Self::Booting => "booting",
        }
    }
}

/// What the sandbox is, as last observed. Only [`crate::lifecycle::step`] changes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Being made for the first time.
    Creating,
    /// Answers.
    Running,
    /// Its processes are being frozen, or their memory is being written to disk.
    Pausing,
    /// Its processes stand still; their memory is kept, as [`Lease::held`] says.
    Paused,
    /// It is being thawed, or restored from disk.
    Resuming,
    /// Its processes are being ended.
    Stopping,
    /// Files only.
    Stopped,
    /// Booting again on its files.
    Starting,
    /// Its files are on their way to object storage.
    Archiving,
    /// Files in object storage only.
    Archived,
    /// Its files are being put back: from object storage, or to a snapshot.
    Restoring,
    /// Everything of it is being removed.
    Deleting,
    /// Gone; the row stays for the record.
    Deleted,
    /// It could not be made, started or kept alive; the reason says why. Files may be left.
    Failed,
}

impl Phase {
    /// Every phase, for tables and tests.
    pub const ALL: [Phase; 14] = [
        Phase::Creating,
        Phase::Running,
        Phase::Pausing,
        Phase::Paused,
        Phase::Resuming,
        Phase::Stopping,
        Phase::Stopped,
        Phase::Starting,
        Phase::Archiving,
        Phase::Archived,
        Phase::Restoring,
        Phase::Deleting,
        Phase::Deleted,
        Phase::Failed,
    ];

    /// The phase as the API shows it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Running => "running",
            Self::Pausing => "pausing",
            Self::Paused => "paused",
            Self::Resuming => "resuming",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
            Self::Starting => "starting",
            Self::Archiving => "archiving",
            Self::Archived => "archived",
            Self::Restoring => "restoring",
            Self::Deleting => "deleting",
            Self::Deleted => "deleted",
            Self::Failed => "failed",
        }
    }

    /// It is deleted, or is being deleted.
    #[must_use]
    pub const fn is_gone(self) -> bool {
        matches!(self, Self::Deleting | Self::Deleted)
    }

    /// It has no processes, and a start boots it anew.
    #[must_use]
    pub const fn needs_boot(self) -> bool {
        matches!(self, Self::Stopped | Self::Archived | Self::Failed)
    }

    /// It boots: its processes are being started.
    #[must_use]
    pub const fn is_booting(self) -> bool {
        matches!(self, Self::Creating | Self::Starting)
    }

    /// It is paused, on its way there, or on its way back: its processes may stand still.
    #[must_use]
    pub const fn is_suspended(self) -> bool {
        matches!(self, Self::Pausing | Self::Paused | Self::Resuming)
    }

    /// The same processes go on: it runs, or is suspended.
    #[must_use]
    pub const fn keeps_processes(self) -> bool {
        matches!(self, Self::Running) || self.is_suspended()
    }

    /// Object storage may be in use for it, or is no longer its own.
    #[must_use]
    pub const fn may_use_archive(self) -> bool {
        matches!(self, Self::Archiving | Self::Archived | Self::Restoring) || self.is_gone()
    }

    /// Whether processes may be there; see [`Lease::holds_compute`].
    #[must_use]
    pub const fn has_instance(self) -> bool {
        match self {
            Self::Creating
            | Self::Running
            | Self::Pausing
            | Self::Paused
            | Self::Resuming
            | Self::Stopping
            | Self::Starting => true,
            Self::Stopped
            | Self::Archiving
            | Self::Archived
            | Self::Restoring
            | Self::Deleting
            | Self::Deleted
            | Self::Failed => false,
        }
    }
}

/// Where the memory of a paused sandbox is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryLocation {
    /// In memory; its processes are frozen.
    Live,
    /// On disk; its processes are gone and will be restored.
    Disk,
}

/// Why something happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "code", rename_all = "snake_case")]
pub enum Reason {
    /// A user asked.
    Requested,
    /// The step that was under way succeeded.
    Completed,
    /// The sandbox's timeout passed.
    TimedOut,
    /// Nothing worked in it for as long as its lease allows.
    Idle,
    /// It was stopped for as long as its lease allows.
    Aged,
    /// A request needed it.
    Woken,
    /// The server or the thread that it is bound to ended.
    Exit,
    /// A passing phase took longer than it may.
    Overdue,
    /// The instance ended by itself: its agent died or was killed.
    InstanceDied,
    /// It was not there any more when the server came back.
    LostWhileDown,
    /// Its image could not be built or pulled; the text is safe to show.
    ImageUnavailable {
        /// Why not.
        message: String,
    },
    /// The provider refused or failed; the text is safe to show.
    Provider {
        /// What the provider said.
        message: String,
    },
}

/// What happens when the timeout passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnTimeout {
    /// Delete it with its files.
    #[default]
    Delete,
    /// Stop it and keep its files.
    Stop,
    /// Pause it and keep its memory too.
    Pause,
}

/// In which phases a timeout counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TimeoutCounts {
    /// In all of them: a lifetime.
    #[default]
    Always,
    /// Not while it sleeps. One that is over when it wakes begins anew.
    Awake,
}

/// What happens when the server, or the thread it is bound to, ends in good order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnExit {
    /// It goes on.
    #[default]
    Keep,
    /// It is paused.
    Pause,
    /// It is deleted.
    Destroy,
}

/// Who may wake a sandbox that is paused, stopped or archived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wake {
    /// Any request that needs it.
    #[default]
    Any,
    /// Only `start` and `resume`.
    Explicit,
}

/// What a lease does by itself. Idle times count from the last work, ages from the stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Timers {
    /// Stop after so many idle seconds.
    pub auto_stop_s: Option<u64>,
    /// Pause after so many idle seconds.
    pub auto_pause_s: Option<u64>,
    /// Write the memory to disk after so many seconds of pause.
    pub checkpoint_after_s: Option<u64>,
    /// Archive after so many seconds of stop.
    pub auto_archive_s: Option<u64>,
    /// Delete after so many seconds of stop; 0: with the stop.
    pub auto_delete_s: Option<u64>,
}

/// A promise to stay awake.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// Until when.
    pub until: Timestamp,
    /// For people.
    pub reason: Option<String>,
}

/// What a sandbox's files began as.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Source {
    /// Its template alone.
    #[default]
    Template,
    /// A snapshot.
    Snapshot {
        snapshot: SnapshotId,
        /// Its processes too.
        memory: bool,
        /// It was made for a fork, is nobody's, and went with the end of the fork.
        #[serde(default)]
        fork: bool,
    },
    /// An archive of this or another server.
    Archive { archive: ArchiveRef },
}

/// Where an archive lies and what it must hash to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArchiveRef {
    /// Its name in object storage: `<sandbox>/<digest of the manifest>`.
    pub key: String,
    /// Bytes before compression.
    pub bytes: u64,
    /// Bytes in object storage.
    pub stored_bytes: u64,
}

/// Where the sandbox's own layer lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Storage {
    /// On disk; survives a stop.
    #[default]
    Disk,
    /// In memory, counted as memory; gone when it stops.
    Memory,
}

/// How a sandbox is to start, as its request says; the template says the rest.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StartRequest {
    /// Default user of commands.
    pub user: Option<String>,
    /// Where commands start.
    pub workdir: Option<String>,
    /// Started at every boot.
    pub command: Option<Vec<String>>,
    /// Whether the image's entrypoint is started where nothing else names a command.
    pub entrypoint: bool,
}

/// What a sandbox that waits for its image needs once the image is there. The image is the one that the lease names as its
/// template: the result of [`Lease::image_build`], else an image of a registry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AwaitedImage {
    /// The caller for whom it is built or pulled.
    pub requested_by: Principal,
    /// How the sandbox is to start.
    pub start: StartRequest,
}

/// A secret of the tenant in a sandbox: the value stays outside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachedSecret {
    /// The secret's name.
    pub name: String,
    /// What programs see in its place. The gate replaces it in headers of requests to the hosts that the secret names.
    pub placeholder: String,
}

/// The lease: one row of `sandbox_leases`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Lease {
    /// The sandbox.
    pub id: SandboxId,
    /// Its owner.
    pub tenant: TenantId,
    /// A name unique among the tenant's sandboxes that are not deleted.
    pub name: Option<String>,
    /// Free labels.
    pub labels: BTreeMap<String, String>,
    /// Environment of every command.
    pub env: BTreeMap<String, String>,
    /// The provider's name.
    pub provider: String,
    /// The template's name.
    pub template: String,
    /// Exactly which version of it.
    pub template_version: String,
    /// Who commands run as unless they say otherwise.
    pub user: String,
    /// Where commands start unless they say otherwise.
    pub workdir: String,
    /// Run at every boot; its output is in the logs.
    pub command: Option<Vec<String>>,
    /// What it may use.
    pub limits: Limits,
    /// What it may reach.
    pub network: NetworkPolicy,
    /// Where its layer lives.
    pub storage: Storage,
    /// What is wanted.
    pub intent: Intent,
    /// What is.
    pub phase: Phase,
    /// How far a creation is; only meaningful while creating.
    #[serde(default)]
    pub stage: Stage,
    /// Why it is in this phase.
    pub reason: Reason,
    /// Counts the writes; every write names the one it saw.
    pub generation: u64,
    /// The incarnation that is, or is being made.
    pub instance: Option<InstanceId>,
    /// How long it may live, from create or the last extension.
    pub timeout_s: Option<u64>,
    /// When that is over.
    pub timeout_at: Option<Timestamp>,
    /// What happens then.
    pub on_timeout: OnTimeout,
    /// In which phases it counts.
    #[serde(default)]
    pub timeout_counts: TimeoutCounts,
    /// When it was asked for.
    pub created_at: Timestamp,
    /// When the phase last changed.
    pub phase_at: Timestamp,
    /// Where the memory is while it is paused.
    #[serde(default)]
    pub held: Option<MemoryLocation>,
    /// What it does by itself.
    #[serde(default)]
    pub timers: Timers,
    /// When something last worked in it, as far as it is written; the activity of the live server may know better.
    #[serde(default)]
    pub active_at: Option<Timestamp>,
    /// When it was last stopped; `None` while it runs.
    #[serde(default)]
    pub stopped_at: Option<Timestamp>,
    /// A promise to stay awake.
    #[serde(default)]
    pub hold: Option<Hold>,
    /// What happens when its server or thread ends.
    #[serde(default)]
    pub on_exit: OnExit,
    /// The thread of conversation that it is bound to.
    #[serde(default)]
    pub thread: Option<String>,
    /// Who may wake it.
    #[serde(default)]
    pub wake: Wake,
    /// What its files began as.
    #[serde(default)]
    pub source: Source,
    /// The sandbox that it was forked from, or whose snapshot or archive it was made from.
    #[serde(default)]
    pub parent: Option<SandboxId>,
    /// Names in `env` that no fork and no snapshot inherits.
    #[serde(default)]
    pub private_env: BTreeSet<String>,
    /// Its files in object storage. Kept after a restore until those are removed.
    #[serde(default)]
    pub archive: Option<ArchiveRef>,
    /// The snapshot that it is being put back to.
    #[serde(default)]
    pub rollback_to: Option<SnapshotId>,
    /// Volumes that it sees.
    #[serde(default)]
    pub mounts: Vec<Mount>,
    /// The build whose step it runs: nobody's but the build's, and in no list.
    #[serde(default)]
    pub build: Option<BuildId>,
    /// Its ports are open to everybody who knows where they are; its agent never is.
    #[serde(default)]
    pub public: bool,
    /// What apps on its ports see as the host that was asked for; `${PORT}` stands for the port.
    #[serde(default)]
    pub mask_host: Option<String>,
    /// Ports whose apps speak TLS themselves.
    #[serde(default)]
    pub https_ports: BTreeSet<u16>,
    /// Counts how often its access tokens were replaced; those of another count open nothing.
    #[serde(default)]
    pub token_epoch: u32,
    /// What a front must show again, under the front's name: `e2b.network`. No rule reads it.
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
    /// Secrets that its programs know by a placeholder, by the variable that holds it.
    #[serde(default)]
    pub secrets: BTreeMap<String, AttachedSecret>,
    /// When it last began to run; `None` before it ever did, or where the lease is older than this field.
    #[serde(default)]
    pub started_at: Option<Timestamp>,
    /// The build that its image comes from, where it was created together with one.
    #[serde(default)]
    pub image_build: Option<BuildId>,
    /// Set until its image is there; a sandbox whose image could not be made keeps it.
    #[serde(default)]
    pub awaits: Option<AwaitedImage>,
}

impl Lease {
    /// Whether it waits for its image: it has no files and no instance yet.
    #[must_use]
    pub fn waits_for_image(&self) -> bool {
        self.phase == Phase::Creating && self.awaits.is_some()
    }

    /// Whether it failed before its build had made an image.
    #[must_use]
    pub fn failed_in_build(&self) -> bool {
        self.phase == Phase::Failed && self.awaits.is_some() && self.image_build.is_some()
    }

    /// Whether it counts against CPU and memory quotas. What is on disk takes neither.
    #[must_use]
    pub fn holds_compute(&self) -> bool {
        self.phase.has_instance() && !(self.phase == Phase::Paused && self.held == Some(MemoryLocation::Disk))
    }

    /// Whether some of its requests are changed on their way out, so that it has to trust a certificate authority of ours.
    #[must_use]
    pub fn is_intercepted(&self) -> bool {
        !self.network.transforms.is_empty() || !self.secrets.is_empty()
    }

    /// Whether it failed and a start may bring it back: it ran before, and its files outlive an instance.
    #[must_use]
    pub fn is_recoverable(&self) -> bool {
        self.phase == Phase::Failed && self.storage == Storage::Disk && self.started_at.is_some()
    }
}
