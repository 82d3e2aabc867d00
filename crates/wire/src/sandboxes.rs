//! Sandboxes: the answers about them, and the small requests that change their life.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::flag::Flag;
use crate::network::{self, Network};
use crate::words::{
    AwakeReason, Intent, MemoryLocation, OnExit, OnTimeout, Phase, Reason, Stage, Storage, TimeoutCounts,
    Wake,
};

/// An isolated computer.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Sandbox {
    #[schema(example = "k3v9x0qn2m7c1z8d5b4a", pattern = "^[a-z][a-z0-9]{19}$")]
    pub id: String,
    /// Unique among the tenant's sandboxes.
    pub name: Option<String>,
    /// The tenant's id.
    pub tenant: String,
    pub labels: BTreeMap<String, String>,
    /// Names of the environment's variables; values are never shown.
    pub env_names: Vec<String>,
    /// Those of them that no fork and no snapshot inherits.
    pub private_env: Vec<String>,
    pub provider: String,
    pub template: String,
    pub template_version: String,
    /// Who commands run as unless they say otherwise.
    pub user: String,
    /// Where commands start unless they say otherwise.
    pub workdir: String,
    /// Run at every boot; its output is in the logs.
    pub command: Option<Vec<String>>,
    /// Cores.
    pub cpu: f64,
    pub memory_mib: u32,
    pub disk_mib: u32,
    /// Processes and threads.
    pub pids: u32,
    #[serde(deserialize_with = "network::from_answer")]
    pub network: Network,
    /// Who allows less than `network` does: `tenant`, `operator`. Absent where nobody does, and in lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub network_narrowed_by: Vec<String>,
    pub storage: Storage,
    /// Volumes in it.
    pub mounts: Vec<Mount>,
    /// What is wanted.
    pub intent: Intent,
    /// What is.
    pub phase: Phase,
    /// How far a creation is; only while it is being created.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub stage: Option<Stage>,
    /// Where its memory is while it is paused.
    pub held: Option<MemoryLocation>,
    /// Why it is in this phase.
    pub reason: Reason,
    /// Counts the changes.
    pub generation: u64,
    /// The incarnation that is, or is being made.
    pub instance: Option<String>,
    /// Absolute lifetime in seconds.
    pub timeout_s: Option<u64>,
    #[schema(format = DateTime)]
    pub timeout_at: Option<String>,
    pub on_timeout: OnTimeout,
    pub timeout_counts: TimeoutCounts,
    /// Stop after so many idle seconds; null is never.
    pub auto_stop_s: Option<u64>,
    /// Pause after so many idle seconds; null is never.
    pub auto_pause_s: Option<u64>,
    /// Write the memory to disk after so many seconds of pause; null is never.
    pub checkpoint_after_s: Option<u64>,
    /// Archive after so many seconds of stop; null is never.
    pub auto_archive_s: Option<u64>,
    /// Delete after so many seconds of stop; 0: with the stop; null is never.
    pub auto_delete_s: Option<u64>,
    pub on_exit: OnExit,
    /// The thread of conversation that it is bound to.
    pub thread: Option<String>,
    pub wake: Wake,
    /// Its ports are open to everybody who knows where they are.
    pub public: bool,
    /// A promise to stay awake.
    pub hold: Option<Hold>,
    /// The sandbox that it was forked from, or whose snapshot or archive it was made from.
    pub parent: Option<String>,
    /// The snapshot that it was made from.
    pub snapshot: Option<String>,
    /// Its files in object storage.
    pub archive: Option<Archive>,
    #[schema(format = DateTime)]
    pub created_at: String,
    /// When the phase last changed.
    #[schema(format = DateTime)]
    pub phase_at: String,
    /// When it last began to run.
    #[schema(format = DateTime)]
    pub started_at: Option<String>,
    /// When something last worked in it, as far as it is written down; `awake` knows better.
    #[schema(format = DateTime)]
    pub active_at: Option<String>,
    /// When it was last stopped; null while it runs.
    #[schema(format = DateTime)]
    pub stopped_at: Option<String>,
    /// Only where one sandbox is shown, and not of one that is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub awake: Option<Awake>,
}

/// A volume in a sandbox.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Mount {
    /// The volume's id.
    pub volume: String,
    /// Where inside.
    pub path: String,
    /// Only this folder of it.
    pub sub_path: Option<String>,
    pub read_only: bool,
}

impl From<atoll_model::Mount> for Mount {
    fn from(mount: atoll_model::Mount) -> Self {
        let atoll_model::Mount { volume, path, sub_path, read_only } = mount;
        Self { volume: volume.into(), path, sub_path, read_only }
    }
}

/// A promise to stay awake.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Hold {
    #[schema(format = DateTime)]
    pub until: String,
    /// For people.
    pub reason: Option<String>,
}

/// Files in object storage.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Archive {
    /// Hand it in as `archive` to make a sandbox from it, on another server too.
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
    /// Hand it in as `cursor` for the next page; null: that was all.
    pub next_cursor: Option<String>,
}

/// Whether something works in a sandbox, and what happens to it next.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Awake {
    /// Every reason to stay awake; none where it is idle or does not run.
    pub because: Vec<AwakeReason>,
    /// When something last worked in it.
    #[schema(format = DateTime)]
    pub active_at: Option<String>,
    /// Nothing works in it; so it is with one that does not run.
    pub idle: bool,
    /// The timer that acts next, should nothing happen until then.
    pub next: Option<NextTimer>,
}

/// A timer that will act.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct NextTimer {
    #[schema(format = DateTime)]
    pub at: String,
    /// What it will do: `pause`, `stop`, `checkpoint`, `archive` or `delete`.
    #[schema(example = "pause")]
    pub what: String,
}

/// How long to stay awake.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HoldBody {
    /// Seconds from now, at most a day.
    #[schema(example = 600, minimum = 1, maximum = 86400)]
    pub for_s: u64,
    /// For people.
    #[serde(default)]
    #[schema(required = false)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// How long it lives at least.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExtendBody {
    /// Seconds from now.
    #[schema(example = 3600, minimum = 1)]
    pub seconds: u64,
}

/// How many, and what they get. May be absent.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ForkBody {
    /// How many to make, at most 100.
    #[schema(example = 1, minimum = 1, maximum = 100)]
    pub count: u32,
    /// Their processes too, where that can be had; the answer says whether it could.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub memory: bool,
    /// Instead of the labels of the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    /// Instead of the lifetime of the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<u64>,
}

impl Default for ForkBody {
    fn default() -> Self {
        Self { count: 1, memory: false, labels: None, timeout_s: None }
    }
}

/// What was made, and what of the wish was granted.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Forked {
    pub sandboxes: Vec<Sandbox>,
    /// Whether they have the processes of the source.
    pub memory: bool,
    /// Why not, where it was asked for.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(nullable = false)]
    pub memory_refused: Option<String>,
}

/// Where a sandbox comes from and what came from it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Lineage {
    /// The sandbox that it was forked from, or whose snapshot or archive it was made from; it may be gone by now.
    pub parent: Option<String>,
    /// The snapshot that it was made from.
    pub snapshot: Option<String>,
    /// The sandboxes that were made from it.
    pub children: Vec<String>,
}

/// How to pause. May be absent.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PauseBody {
    /// `live` (the default) freezes; `disk` also writes the memory to disk and frees it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryLocation>,
}

/// Where to go back to.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RollbackBody {
    /// Id or name of a snapshot of this very sandbox.
    pub snapshot: String,
}

/// What became of the sandboxes of a thread.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Ended {
    pub items: Vec<Sandbox>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct WaitQuery {
    /// `0` answers at once, before the work is done. Default `1`.
    #[param(value_type = Option<String>, pattern = "^(0|1|true|false)$")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<Flag>,
}

/// Which sandboxes to list. The server reads pairs, because `label` and `phase` may be repeated.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ListQuery {
    /// Any of these phases, separated by commas; without it all that are not deleted.
    #[param(example = "running,stopped")]
    pub phase: Option<String>,
    /// `key=value`; all that are given must match.
    pub label: Option<Vec<String>>,
    /// Exactly this name.
    pub name: Option<String>,
    /// Exactly this template.
    pub template: Option<String>,
    /// Name or id of a tenant; another than one's own needs an admin key.
    pub tenant: Option<String>,
    /// `1`: records of deleted ones too.
    #[param(pattern = "^(0|1|true|false)$")]
    pub all: Option<String>,
    /// At most this many.
    pub limit: Option<u32>,
    /// `next_cursor` of the page before.
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
    /// As a query string holds it.
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
