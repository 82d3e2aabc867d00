//! The durable record of a sandbox: the request, the intent and the observed state.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{
    BuildId, CreatorKey, InstanceId, Isolation, Limits, Mount, MoveReport, NetworkPolicy, NodeName,
    Principal, SandboxId, SandboxMove, SnapshotId, TenantId, Timestamp,
};

/// The state that the owner wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Intent {
    /// Running.
    Run,
    /// Paused with its memory.
    Pause,
    /// Stopped, with files only.
    Stop,
    /// Archived, with files in object storage only.
    Archive,
    /// Deleted.
    Delete,
}

/// The stage of a creation. [`crate::lifecycle::stage_follows`] defines their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// It waits for a place on its node, or its image has to be built or pulled and is in the queue.
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

/// The last observed state of the sandbox. Only [`crate::lifecycle::step`] changes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Being created.
    Creating,
    /// The agent answers.
    Running,
    /// Its processes are being frozen, or their memory is being written to disk.
    Pausing,
    /// Its processes are frozen; [`Lease::held`] says where their memory is.
    Paused,
    /// It is being thawed, or restored from disk.
    Resuming,
    /// Its processes are being ended.
    Stopping,
    /// It has only files.
    Stopped,
    /// Booting again on its files.
    Starting,
    /// Its files are being sent to object storage.
    Archiving,
    /// Its files are only in object storage.
    Archived,
    /// Its files are being restored: from object storage, to a snapshot, or at another provider ([`Lease::moving`]).
    Restoring,
    /// Everything of it is being removed.
    Deleting,
    /// Gone; the row stays for the record.
    Deleted,
    /// It could not be created, started or kept alive; the reason says why. Files may be left.
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

    /// It has no processes, and a start boots it again.
    #[must_use]
    pub const fn needs_boot(self) -> bool {
        matches!(self, Self::Stopped | Self::Archived | Self::Failed)
    }

    /// Its processes are being started.
    #[must_use]
    pub const fn is_booting(self) -> bool {
        matches!(self, Self::Creating | Self::Starting)
    }

    /// It runs soon, without another request.
    #[must_use]
    pub const fn is_waking(self) -> bool {
        matches!(self, Self::Creating | Self::Starting | Self::Resuming)
    }

    /// It is paused, being paused or being resumed: its processes may be frozen.
    #[must_use]
    pub const fn is_suspended(self) -> bool {
        matches!(self, Self::Pausing | Self::Paused | Self::Resuming)
    }

    /// The same processes continue: it runs, or is suspended.
    #[must_use]
    pub const fn keeps_processes(self) -> bool {
        matches!(self, Self::Running) || self.is_suspended()
    }

    /// Object storage may be in use for it, or no longer belongs to it.
    #[must_use]
    pub const fn may_use_archive(self) -> bool {
        matches!(self, Self::Archiving | Self::Archived | Self::Restoring) || self.is_gone()
    }

    /// Whether processes may exist; see [`Lease::holds_compute`].
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

/// The reason of a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "code", rename_all = "snake_case")]
pub enum Reason {
    /// A request of a caller.
    Requested,
    /// The step that was under way succeeded.
    Completed,
    /// The sandbox's timeout passed.
    TimedOut,
    /// It was idle for as long as its lease allows.
    Idle,
    /// It was stopped for as long as its lease allows.
    Aged,
    /// A request woke it.
    Woken,
    /// The server or the thread that it is bound to ended.
    Exit,
    /// A passing phase exceeded its deadline.
    Overdue,
    /// It was queued, and no place was free for it in time.
    QueueTimedOut,
    /// The instance ended unexpectedly: its agent died or was killed.
    InstanceDied,
    /// The instance was gone when the server started again.
    LostWhileDown,
    /// Its image could not be built or pulled; the text is safe to show.
    ImageUnavailable {
        /// The cause.
        message: String,
    },
    /// The provider refused or failed; the text is safe to show.
    Provider {
        /// The error of the provider.
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

/// The phases in which a timeout counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TimeoutCounts {
    /// In all phases: a lifetime.
    #[default]
    Always,
    /// Not while it is asleep. A timeout that has passed when it wakes starts again.
    Awake,
}

/// What happens at the orderly end of the server, or of the thread that the sandbox is bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnExit {
    /// It continues.
    #[default]
    Keep,
    /// It is paused.
    Pause,
    /// It is deleted.
    Destroy,
}

/// Which requests wake a sandbox that is paused, stopped or archived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wake {
    /// Any request that needs it.
    #[default]
    Any,
    /// Only `start` and `resume`.
    Explicit,
}

/// Automatic actions of a lease. Idle times count from the last activity, ages from the stop.
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

/// A hold: the sandbox does not count as idle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    pub until: Timestamp,
    /// A note for people.
    pub reason: Option<String>,
}

/// The origin of a sandbox's files.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Source {
    /// Its template alone.
    #[default]
    Template,
    /// A snapshot.
    Snapshot {
        snapshot: SnapshotId,
        /// Whether its processes were restored too.
        memory: bool,
        /// The snapshot was made for a fork, belongs to no tenant, and was removed at the end of the fork.
        #[serde(default)]
        fork: bool,
    },
    /// An archive of this or another server.
    Archive { archive: ArchiveRef },
}

/// The location of an archive, and its hash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArchiveRef {
    /// Its name in object storage: `<sandbox>/<digest of the manifest>`.
    pub key: String,
    /// Bytes before compression.
    pub bytes: u64,
    /// Bytes in object storage.
    pub stored_bytes: u64,
}

/// Where the sandbox's own layer is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Storage {
    /// On disk; survives a stop.
    #[default]
    Disk,
    /// In memory, counted as memory; lost when it stops.
    Memory,
}

/// Start settings of the request; the template provides the rest.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StartRequest {
    /// Default user of commands.
    pub user: Option<String>,
    /// Working directory of commands.
    pub workdir: Option<String>,
    /// Started at every boot.
    pub command: Option<Vec<String>>,
    /// Whether the image's entrypoint is started if neither the request nor the template names a command.
    pub entrypoint: bool,
}

/// The failure of a start command: it could not be started, or it ended with a status that is not 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandFailure {
    /// The status that a shell would report: 127 if the program does not exist, 126 if it cannot be started.
    pub exit_code: i32,
    pub message: String,
    pub at: Timestamp,
}

/// Data that a sandbox which waits for its image needs when the image is ready. The image is the one that the lease
/// names as its template: the result of [`Lease::image_build`], else an image of a registry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AwaitedImage {
    /// The caller for whom it is built or pulled.
    pub requested_by: Principal,
    /// How the sandbox is to start.
    pub start: StartRequest,
}

/// The wait of a creation for a place on its node: see [`crate::policy::queue`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueWait {
    /// The end of the wait; a sandbox without a place is deleted then.
    pub until: Timestamp,
    /// When the wait ended without a place.
    #[serde(default)]
    pub timed_out_at: Option<Timestamp>,
    /// Where it is in the queue. Set when the lease is shown, never stored.
    #[serde(skip)]
    pub place: Option<QueuePlace>,
}

/// The place of a creation in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuePlace {
    /// Its position among the queued creates of its tenant at its provider; 1 is the next one.
    pub position: u32,
    /// How many creates of all tenants start before it at its provider, as the queue is now.
    pub ahead: u32,
}

/// A secret of the tenant in a sandbox: its value stays outside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachedSecret {
    /// The secret's name.
    pub name: String,
    /// The text that programs see in its place. The gate replaces it in headers of requests to the hosts that the
    /// secret names.
    pub placeholder: String,
}

/// The lease: one row of `sandbox_leases`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Lease {
    /// The sandbox.
    pub id: SandboxId,
    pub tenant: TenantId,
    /// A name unique among the tenant's sandboxes that are not deleted.
    pub name: Option<String>,
    /// Free labels.
    pub labels: BTreeMap<String, String>,
    /// Environment of every command.
    pub env: BTreeMap<String, String>,
    /// The provider's name.
    pub provider: String,
    /// The node that has its files and processes; only that one changes the lease.
    #[serde(default)]
    pub node: NodeName,
    /// The template's name.
    pub template: String,
    /// The exact version of the template.
    pub template_version: String,
    /// Default user of commands.
    pub user: String,
    /// Default working directory of commands.
    pub workdir: String,
    /// Run at every boot; its output is in the logs.
    pub command: Option<Vec<String>>,
    /// How `command` failed since the last boot, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_failure: Option<CommandFailure>,
    pub limits: Limits,
    pub network: NetworkPolicy,
    /// Where its layer is stored.
    pub storage: Storage,
    /// The wanted state.
    pub intent: Intent,
    /// The observed state.
    pub phase: Phase,
    /// The stage of its creation; only meaningful while creating.
    #[serde(default)]
    pub stage: Stage,
    /// Why it is in this phase.
    pub reason: Reason,
    /// Counts the writes; every write names the generation that it is based on.
    pub generation: u64,
    /// The current instance, or the one that is being made.
    pub instance: Option<InstanceId>,
    /// Its lifetime, from create or the last extension.
    pub timeout_s: Option<u64>,
    /// When the lifetime ends.
    pub timeout_at: Option<Timestamp>,
    /// What happens at its end.
    pub on_timeout: OnTimeout,
    /// In which phases it counts.
    #[serde(default)]
    pub timeout_counts: TimeoutCounts,
    /// When it was requested.
    pub created_at: Timestamp,
    /// When the phase last changed.
    pub phase_at: Timestamp,
    /// Where the memory is while it is paused.
    #[serde(default)]
    pub held: Option<MemoryLocation>,
    #[serde(default)]
    pub timers: Timers,
    /// The last stored activity; the live server may know a later one.
    #[serde(default)]
    pub active_at: Option<Timestamp>,
    /// When it was last stopped; `None` while it runs.
    #[serde(default)]
    pub stopped_at: Option<Timestamp>,
    #[serde(default)]
    pub hold: Option<Hold>,
    /// What happens when its server or thread ends.
    #[serde(default)]
    pub on_exit: OnExit,
    /// Whether `on_exit` is the setting of its provider and changes with it; a request that names one ends that.
    #[serde(default)]
    pub follows_provider_exit: bool,
    /// The thread of conversation that it is bound to.
    #[serde(default)]
    pub thread: Option<String>,
    #[serde(default)]
    pub wake: Wake,
    /// The origin of its files.
    #[serde(default)]
    pub source: Source,
    /// The sandbox that it was forked from, or whose snapshot or archive it was made from.
    #[serde(default)]
    pub parent: Option<SandboxId>,
    /// Names in `env` that no fork and no snapshot inherits.
    #[serde(default)]
    pub private_env: BTreeSet<String>,
    /// Its files in object storage. Kept after a restore until they are removed there.
    #[serde(default)]
    pub archive: Option<ArchiveRef>,
    /// The snapshot of a rollback under way.
    #[serde(default)]
    pub rollback_to: Option<SnapshotId>,
    /// Its mounted volumes.
    #[serde(default)]
    pub mounts: Vec<Mount>,
    /// The build whose step it runs: it belongs only to the build, and is not listed.
    #[serde(default)]
    pub build: Option<BuildId>,
    /// Its ports are open to everyone who knows their address; its agent never is.
    #[serde(default)]
    pub public: bool,
    /// The host name that apps on its ports see in requests; `${PORT}` stands for the port.
    #[serde(default)]
    pub mask_host: Option<String>,
    /// Ports whose apps use TLS themselves.
    #[serde(default)]
    pub https_ports: BTreeSet<u16>,
    /// Counts how often its access tokens were replaced; tokens of an earlier count are invalid.
    #[serde(default)]
    pub token_epoch: u32,
    /// Data that a front has to return, under the front's name: `e2b.network`. No rule reads it.
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
    /// Secrets that its programs see as placeholders, by the name of the variable.
    #[serde(default)]
    pub secrets: BTreeMap<String, AttachedSecret>,
    /// When it last began to run; `None` before its first start, or if the lease is older than this field.
    #[serde(default)]
    pub started_at: Option<Timestamp>,
    /// The build of its image, if both were created together.
    #[serde(default)]
    pub image_build: Option<BuildId>,
    /// Set until its image is ready; a sandbox whose image could not be made keeps it.
    #[serde(default)]
    pub awaits: Option<AwaitedImage>,
    /// Set while it waits for a place on its node; kept if that wait timed out.
    #[serde(default)]
    pub queue: Option<QueueWait>,
    /// What its provider said when it was created: it is shown wherever the sandbox is.
    #[serde(default)]
    pub isolation: Isolation,
    /// The key that created it; `None`: a key of another tenant, or the lease is older than this field.
    #[serde(default)]
    pub created_by_key: Option<CreatorKey>,
    /// Its move to another provider, until nothing is left of it at the other one.
    #[serde(default)]
    pub moving: Option<SandboxMove>,
    /// What its last move to another provider carried, or why it failed.
    #[serde(default)]
    pub last_move: Option<MoveReport>,
    /// New limits are being put in force. Published by its driver, never stored.
    #[serde(skip)]
    pub resizing: bool,
}

impl Lease {
    /// Whether it waits for a place on its node: it is recorded, and has and counts as nothing else.
    #[must_use]
    pub fn waits_for_place(&self) -> bool {
        self.phase == Phase::Creating && self.queue.is_some()
    }

    /// Whether it waits for its image: it has no files and no instance yet.
    #[must_use]
    pub fn waits_for_image(&self) -> bool {
        self.phase == Phase::Creating && self.awaits.is_some() && self.queue.is_none()
    }

    /// Whether it waits for a place or an image, so that its instance is not being made yet.
    #[must_use]
    pub fn waits_to_boot(&self) -> bool {
        self.waits_for_place() || self.waits_for_image()
    }

    /// Whether it failed before its build had produced an image.
    #[must_use]
    pub fn failed_in_build(&self) -> bool {
        self.phase == Phase::Failed && self.awaits.is_some() && self.image_build.is_some()
    }

    /// Whether it counts against CPU and memory quotas. A sandbox on disk and one that is queued use neither; one that is being
    /// copied to another provider has an instance for the copy, and keeps its place until it runs again.
    #[must_use]
    pub fn holds_compute(&self) -> bool {
        let is_on_disk = self.phase == Phase::Paused && self.held == Some(MemoryLocation::Disk);
        (self.phase.has_instance() && !is_on_disk && !self.waits_for_place())
            || self.is_being_copied()
            || self.starts_after_move()
    }

    /// Whether its move has ended, at the target or back at the source, and it is about to be started there.
    #[must_use]
    pub fn starts_after_move(&self) -> bool {
        let is_decided = self.moving.as_ref().is_some_and(|moving| !moving.is_copying());
        self.phase == Phase::Stopped && self.intent == Intent::Run && is_decided
    }

    /// Whether it is on its way to another provider and still where it was.
    #[must_use]
    pub fn is_being_copied(&self) -> bool {
        self.moving.as_ref().is_some_and(SandboxMove::is_copying) && !self.phase.is_gone()
    }

    /// Whether some of its requests are changed on their way out, so that it has to trust Atoll's certificate
    /// authority.
    #[must_use]
    pub fn is_intercepted(&self) -> bool {
        !self.network.transforms.is_empty() || !self.secrets.is_empty()
    }

    /// Whether it failed and can be started again: it ran before, and its files outlive an instance.
    #[must_use]
    pub fn is_recoverable(&self) -> bool {
        self.phase == Phase::Failed && self.storage == Storage::Disk && self.started_at.is_some()
    }
}
