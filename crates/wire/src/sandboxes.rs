//! Sandboxes: the answers about them, and the small requests that change their life.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::flag::Flag;
use crate::moving::{MoveReport, Moving};
use crate::network::{self, Network};
use crate::words::{
    AwakeReason, Intent, Isolation, MemoryLocation, OnExit, OnTimeout, Phase, Reason, Stage, Storage,
    TimeoutCounts, Wake,
};

/// Older servers have no other kind of provider.
const fn container() -> Isolation {
    Isolation::Container
}

/// A sandbox: an isolated Linux environment.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Sandbox {
    #[schema(example = "k3v9x0qn2m7c1z8d5b4a", pattern = "^[a-z][a-z0-9]{19}$")]
    pub id: String,
    /// Unique among the tenant's sandboxes.
    pub name: Option<String>,
    /// The tenant's id.
    pub tenant: String,
    /// Key that created it, which may be deleted since. Null for a sandbox that is older than this field, and for one that
    /// an admin key of another tenant forked.
    #[serde(default)]
    pub created_by_key: Option<CreatorKey>,
    pub labels: BTreeMap<String, String>,
    /// Names of environment variables; values are never shown.
    pub env_names: Vec<String>,
    /// Names of variables that forks and snapshots do not inherit.
    pub private_env: Vec<String>,
    pub provider: String,
    /// What separates it from the machine that it runs on.
    #[serde(default = "container")]
    pub isolation: Isolation,
    /// Node that has its files and processes.
    #[serde(default)]
    pub node: String,
    pub template: String,
    pub template_version: String,
    /// Default user of commands.
    pub user: String,
    /// Default working directory of commands.
    pub workdir: String,
    /// Start command, which runs at every boot; its output is in the logs.
    pub command: Option<Vec<String>>,
    /// How the start command failed since the last boot; absent if it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub command_failure: Option<CommandFailure>,
    /// Cores.
    pub cpu: f64,
    pub memory_mib: u32,
    pub disk_mib: u32,
    /// Processes and threads.
    pub pids: u32,
    #[serde(deserialize_with = "network::from_answer")]
    pub network: Network,
    /// Which other policies narrow `network`: `tenant`, `operator`. Absent if there is none, and in lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub network_narrowed_by: Vec<String>,
    pub storage: Storage,
    /// Volumes to mount.
    pub mounts: Vec<Mount>,
    /// Wanted state.
    pub intent: Intent,
    /// Last observed state.
    pub phase: Phase,
    /// Progress of the create; only while the sandbox is being created.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub stage: Option<Stage>,
    /// Its place in the queue; only while it waits for one of the server's places.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub queue: Option<QueuePlace>,
    /// Build of its image, if both were created together.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub build: Option<String>,
    /// Where its memory is while it is paused.
    pub held: Option<MemoryLocation>,
    /// Why the sandbox is in this phase.
    pub reason: Reason,
    /// Number of changes.
    pub generation: u64,
    /// Current instance, or the one that is being made.
    pub instance: Option<String>,
    /// Lifetime in seconds.
    pub timeout_s: Option<u64>,
    #[schema(format = DateTime)]
    pub timeout_at: Option<String>,
    pub on_timeout: OnTimeout,
    pub timeout_counts: TimeoutCounts,
    /// Stop the sandbox after this many idle seconds; null is never.
    pub auto_stop_s: Option<u64>,
    /// Pause the sandbox after this many idle seconds; null is never.
    pub auto_pause_s: Option<u64>,
    /// Write the memory to disk after the sandbox was paused for this many seconds; null is never.
    pub checkpoint_after_s: Option<u64>,
    /// Archive the sandbox after it was stopped for this many seconds; null is never.
    pub auto_archive_s: Option<u64>,
    /// Delete the sandbox after it was stopped for this many seconds; 0 deletes it with the stop; null is never.
    pub auto_delete_s: Option<u64>,
    pub on_exit: OnExit,
    /// Thread that the sandbox is bound to.
    pub thread: Option<String>,
    pub wake: Wake,
    /// Whether its ports are open to everyone who knows their addresses.
    pub public: bool,
    /// A hold, which prevents idle timers from acting.
    pub hold: Option<Hold>,
    /// Sandbox that it was forked from, or whose snapshot or archive it was created from.
    pub parent: Option<String>,
    /// Snapshot that it was created from.
    pub snapshot: Option<String>,
    /// Its files in object storage.
    pub archive: Option<Archive>,
    /// Its move to another provider; only until nothing is left of it at the other one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub moving: Option<Moving>,
    /// Its last move to another provider; absent if it was never moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub last_move: Option<MoveReport>,
    #[schema(format = DateTime)]
    pub created_at: String,
    /// When the phase last changed.
    #[schema(format = DateTime)]
    pub phase_at: String,
    /// Time of the last start.
    #[schema(format = DateTime)]
    pub started_at: Option<String>,
    /// Time of the last recorded activity; `awake` is more exact.
    #[schema(format = DateTime)]
    pub active_at: Option<String>,
    /// Time of the last stop; null while it runs.
    #[schema(format = DateTime)]
    pub stopped_at: Option<String>,
    /// Only if a single sandbox is requested and it is not deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub awake: Option<Awake>,
}

/// The failure of a start command: it could not be started, or it ended with a status that is not 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CommandFailure {
    /// The status that a shell would report: 127 if the program does not exist, 126 if it cannot be started.
    #[schema(example = 127)]
    pub exit_code: i32,
    #[schema(example = "command not found: 'serve'")]
    pub message: String,
    #[schema(format = DateTime)]
    pub at: String,
}

/// The key that created a sandbox, never its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreatorKey {
    pub id: String,
    /// The name that the key had.
    pub name: Option<String>,
}

impl From<atoll_model::CreatorKey> for CreatorKey {
    fn from(key: atoll_model::CreatorKey) -> Self {
        let atoll_model::CreatorKey { id, name } = key;
        Self { id: id.into(), name }
    }
}

/// Place of a create in the queue of a full server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueuePlace {
    /// Position among the queued creates of its tenant; 1 is the next one.
    #[schema(example = 2, minimum = 1)]
    pub position: u32,
    /// How many creates of all tenants start before it, as the queue is now.
    #[schema(example = 3)]
    pub ahead: u32,
}

impl From<atoll_model::QueuePlace> for QueuePlace {
    fn from(place: atoll_model::QueuePlace) -> Self {
        let atoll_model::QueuePlace { position, ahead } = place;
        Self { position, ahead }
    }
}

/// A volume in a sandbox.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Mount {
    /// The volume's id.
    pub volume: String,
    /// Path in the sandbox.
    pub path: String,
    /// Only this folder of the volume.
    pub sub_path: Option<String>,
    pub read_only: bool,
}

impl From<atoll_model::Mount> for Mount {
    fn from(mount: atoll_model::Mount) -> Self {
        let atoll_model::Mount { volume, path, sub_path, read_only } = mount;
        Self { volume: volume.into(), path, sub_path, read_only }
    }
}

/// A hold, which prevents idle timers from acting.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Hold {
    #[schema(format = DateTime)]
    pub until: String,
    /// Reason, for people.
    pub reason: Option<String>,
}

/// Files in object storage.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Archive {
    /// Key of the archive. Send it as `archive` to create a sandbox from it, also on another server.
    pub key: String,
    /// Before compression.
    pub bytes: u64,
    /// In object storage.
    pub stored_bytes: u64,
}

/// One page of sandboxes, newest first.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SandboxPage {
    pub items: Vec<Sandbox>,
    /// Send it as `cursor` to get the next page; null on the last page.
    pub next_cursor: Option<String>,
}

/// Activity of a sandbox and its next timer.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Awake {
    /// Reasons why the sandbox is not idle; empty if it is idle or does not run.
    pub because: Vec<AwakeReason>,
    /// Time of the last activity.
    #[schema(format = DateTime)]
    pub active_at: Option<String>,
    /// Whether the sandbox is idle. A sandbox that does not run is idle.
    pub idle: bool,
    /// The timer that acts next if there is no activity until then.
    pub next: Option<NextTimer>,
}

/// The next timer.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct NextTimer {
    #[schema(format = DateTime)]
    pub at: String,
    /// Action: `pause`, `stop`, `checkpoint`, `archive` or `delete`.
    #[schema(example = "pause")]
    pub what: String,
}

/// Request to hold a sandbox.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HoldBody {
    /// Duration in seconds from now, at most a day.
    #[schema(example = 600, minimum = 1, maximum = 86400)]
    pub for_s: u64,
    /// Reason, for people.
    #[serde(default)]
    #[schema(required = false)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Minimum remaining lifetime.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExtendBody {
    /// Seconds from now.
    #[schema(example = 3600, minimum = 1)]
    pub seconds: u64,
}

/// Request to fork a sandbox. May be absent.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ForkBody {
    /// Number of copies, at most 100.
    #[schema(example = 1, minimum = 1, maximum = 100)]
    pub count: u32,
    /// Copy the processes too, best effort; the answer says whether they were copied.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub memory: bool,
    /// Labels of the copies. Default: those of the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    /// Lifetime of the copies. Default: that of the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<u64>,
}

impl Default for ForkBody {
    fn default() -> Self {
        Self { count: 1, memory: false, labels: None, timeout_s: None }
    }
}

/// Result of a fork.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Forked {
    pub sandboxes: Vec<Sandbox>,
    /// Whether the copies have the processes of the source.
    pub memory: bool,
    /// Why the processes were not copied, if that was requested.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(nullable = false)]
    pub memory_refused: Option<String>,
}

/// Returns the sandbox or snapshot that a sandbox was created from, and the sandboxes created from it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Lineage {
    /// Sandbox that it was forked from, or whose snapshot or archive it was created from; it may be deleted.
    pub parent: Option<String>,
    /// Snapshot that it was created from.
    pub snapshot: Option<String>,
    /// Sandboxes that were created from it.
    pub children: Vec<String>,
}

/// Request to pause a sandbox. May be absent.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PauseBody {
    /// `live` (the default) freezes the processes; `disk` also writes the memory to disk and frees it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryLocation>,
}

/// Request to roll back a sandbox.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RollbackBody {
    /// Id or name of a snapshot of the same sandbox.
    pub snapshot: String,
}

/// What happened to the sandboxes of a thread.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Ended {
    pub items: Vec<Sandbox>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct WaitQuery {
    /// `0` returns at once, before the operation is finished. Default `1`.
    #[param(value_type = Option<String>, pattern = "^(0|1|true|false)$")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<Flag>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct DeleteQuery {
    /// `0` returns at once, before the operation is finished. Default `1`.
    #[param(value_type = Option<String>, pattern = "^(0|1|true|false)$")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<Flag>,
    /// `1`: remove its snapshots too. Default `0`: they are kept and can still be used.
    #[param(value_type = Option<String>, pattern = "^(0|1|true|false)$")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshots: Option<Flag>,
}

/// Which sandboxes to list. The server reads pairs, because `label` and `phase` may be repeated.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ListQuery {
    /// Only sandboxes in these phases, separated by commas. Default: all that are not deleted.
    #[param(example = "running,stopped")]
    pub phase: Option<String>,
    /// `key=value`; repeated labels must all match.
    pub label: Option<Vec<String>>,
    /// Only the sandbox with exactly this name.
    pub name: Option<String>,
    /// Only sandboxes of exactly this template.
    pub template: Option<String>,
    /// Name or id of a tenant. A tenant other than your own needs an admin key.
    pub tenant: Option<String>,
    /// `1`: include records of deleted sandboxes.
    #[param(pattern = "^(0|1|true|false)$")]
    pub all: Option<String>,
    /// Maximum number of results.
    pub limit: Option<u32>,
    /// `next_cursor` of the previous page.
    pub cursor: Option<String>,
}

impl WaitQuery {
    /// Whether to answer when the work is done.
    #[must_use]
    pub fn wait(&self) -> bool {
        self.wait.is_none_or(|flag| flag.0)
    }
}

impl ListQuery {
    /// In the form of a query string.
    #[must_use]
    pub fn pairs(&self) -> Vec<(&'static str, String)> {
        let one = [
            ("phase", self.phase.clone()),
            ("name", self.name.clone()),
            ("template", self.template.clone()),
            ("tenant", self.tenant.clone()),
            ("all", self.all.clone()),
            ("limit", self.limit.map(|limit| limit.to_string())),
            ("cursor", self.cursor.clone()),
        ];
        let labels = self.label.iter().flatten().map(|label| ("label", label.clone()));
        one.into_iter().filter_map(|(name, value)| Some((name, value?))).chain(labels).collect()
    }
}
