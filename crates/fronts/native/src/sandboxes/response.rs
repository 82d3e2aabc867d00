//! A sandbox as the wire shows it: what was asked, what is wanted, what is, and what will happen next.

use std::collections::BTreeMap;

use atoll_front_kit::rfc3339_millis;
use atoll_model::policy::egress::PolicyLayer;
use atoll_model::{Lease, Source};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::awake::Awake;
use super::words::{
    Intent, MemoryLocation, OnExit, OnTimeout, Phase, Reason, Stage, Storage, TimeoutCounts, Wake,
};
use crate::network::Network;

/// An isolated computer.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Sandbox {
    #[schema(example = "k3v9x0qn2m7c1z8d5b4a", pattern = "^[a-z][a-z0-9]{19}$")]
    id: String,
    /// Unique among the tenant's sandboxes.
    name: Option<String>,
    /// The tenant's id.
    tenant: String,
    labels: BTreeMap<String, String>,
    /// Names of the environment's variables; values are never shown.
    env_names: Vec<String>,
    /// Those of them that no fork and no snapshot inherits.
    private_env: Vec<String>,
    provider: String,
    template: String,
    template_version: String,
    /// Who commands run as unless they say otherwise.
    user: String,
    /// Where commands start unless they say otherwise.
    workdir: String,
    /// Run at every boot; its output is in the logs.
    command: Option<Vec<String>>,
    /// Cores.
    cpu: f64,
    memory_mib: u32,
    disk_mib: u32,
    /// Processes and threads.
    pids: u32,
    network: Network,
    /// Who allows less than `network` does: `tenant`, `operator`. Absent where nobody does, and in lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    network_narrowed_by: Vec<String>,
    storage: Storage,
    /// Volumes in it.
    mounts: Vec<Mount>,
    /// What is wanted.
    intent: Intent,
    /// What is.
    phase: Phase,
    /// How far a creation is; only while it is being created.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    stage: Option<Stage>,
    /// Where its memory is while it is paused.
    held: Option<MemoryLocation>,
    /// Why it is in this phase.
    reason: Reason,
    /// Counts the changes.
    generation: u64,
    /// The incarnation that is, or is being made.
    instance: Option<String>,
    /// Absolute lifetime in seconds.
    timeout_s: Option<u64>,
    #[schema(format = DateTime)]
    timeout_at: Option<String>,
    on_timeout: OnTimeout,
    timeout_counts: TimeoutCounts,
    /// Stop after so many idle seconds; null is never.
    auto_stop_s: Option<u64>,
    /// Pause after so many idle seconds; null is never.
    auto_pause_s: Option<u64>,
    /// Write the memory to disk after so many seconds of pause; null is never.
    checkpoint_after_s: Option<u64>,
    /// Archive after so many seconds of stop; null is never.
    auto_archive_s: Option<u64>,
    /// Delete after so many seconds of stop; 0: with the stop; null is never.
    auto_delete_s: Option<u64>,
    on_exit: OnExit,
    /// The thread of conversation that it is bound to.
    thread: Option<String>,
    wake: Wake,
    /// Its ports are open to everybody who knows where they are.
    public: bool,
    /// A promise to stay awake.
    hold: Option<Hold>,
    /// The sandbox that it was forked from, or whose snapshot or archive it was made from.
    parent: Option<String>,
    /// The snapshot that it was made from.
    snapshot: Option<String>,
    /// Its files in object storage.
    archive: Option<Archive>,
    #[schema(format = DateTime)]
    created_at: String,
    /// When the phase last changed.
    #[schema(format = DateTime)]
    phase_at: String,
    /// When it last began to run.
    #[schema(format = DateTime)]
    started_at: Option<String>,
    /// When something last worked in it, as far as it is written down; `awake` knows better.
    #[schema(format = DateTime)]
    active_at: Option<String>,
    /// When it was last stopped; null while it runs.
    #[schema(format = DateTime)]
    stopped_at: Option<String>,
    /// Only where one sandbox is shown, and not of one that is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    awake: Option<Awake>,
}

/// A volume in a sandbox.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Mount {
    /// The volume's id.
    volume: String,
    /// Where inside.
    path: String,
    /// Only this folder of it.
    sub_path: Option<String>,
    read_only: bool,
}

impl From<atoll_model::Mount> for Mount {
    fn from(mount: atoll_model::Mount) -> Self {
        let atoll_model::Mount { volume, path, sub_path, read_only } = mount;
        Self { volume: volume.into(), path, sub_path, read_only }
    }
}

/// A promise to stay awake.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Hold {
    #[schema(format = DateTime)]
    until: String,
    /// For people.
    reason: Option<String>,
}

/// Files in object storage.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Archive {
    /// Hand it in as `archive` to make a sandbox from it, on another server too.
    key: String,
    /// Before compression.
    bytes: u64,
    /// In object storage.
    stored_bytes: u64,
}

/// One page of sandboxes, newest first.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct SandboxPage {
    pub(super) items: Vec<Sandbox>,
    /// Hand it in as `cursor` for the next page; null: that was all.
    pub(super) next_cursor: Option<String>,
}

impl Sandbox {
    /// With what is asked for only when one is looked at.
    pub(super) fn looked_at(lease: Lease, awake: Option<Awake>, narrowed_by: &[PolicyLayer]) -> Self {
        let network_narrowed_by = narrowed_by.iter().map(|layer| layer.as_str().to_owned()).collect();
        Self { awake, network_narrowed_by, ..lease.into() }
    }
}

impl From<Lease> for Sandbox {
    fn from(lease: Lease) -> Self {
        let creating = lease.phase == atoll_model::Phase::Creating;
        let snapshot = match lease.source {
            Source::Snapshot { snapshot, fork: false, .. } => Some(snapshot.into()),
            // Nobody can do anything with the snapshot of a fork.
            Source::Snapshot { fork: true, .. } | Source::Template | Source::Archive { .. } => None,
        };
        Self {
            id: lease.id.into(),
            name: lease.name,
            tenant: lease.tenant.into(),
            labels: lease.labels,
            env_names: lease.env.into_keys().collect(),
            private_env: lease.private_env.into_iter().collect(),
            provider: lease.provider,
            template: lease.template,
            template_version: lease.template_version,
            user: lease.user,
            workdir: lease.workdir,
            command: lease.command,
            cpu: f64::from(lease.limits.cpu_milli) / 1_000.0,
            memory_mib: lease.limits.memory_mib,
            disk_mib: lease.limits.disk_mib,
            pids: lease.limits.pids,
            network: lease.network.into(),
            network_narrowed_by: Vec::new(),
            storage: lease.storage.into(),
            mounts: lease.mounts.into_iter().map(Into::into).collect(),
            intent: lease.intent.into(),
            phase: lease.phase.into(),
            stage: creating.then(|| lease.stage.into()),
            held: lease.held.map(Into::into),
            reason: lease.reason.into(),
            generation: lease.generation,
            instance: lease.instance.map(Into::into),
            timeout_s: lease.timeout_s,
            timeout_at: lease.timeout_at.map(|at| rfc3339_millis(at.wall_ms)),
            on_timeout: lease.on_timeout.into(),
            timeout_counts: lease.timeout_counts.into(),
            auto_stop_s: lease.timers.auto_stop_s,
            auto_pause_s: lease.timers.auto_pause_s,
            checkpoint_after_s: lease.timers.checkpoint_after_s,
            auto_archive_s: lease.timers.auto_archive_s,
            auto_delete_s: lease.timers.auto_delete_s,
            on_exit: lease.on_exit.into(),
            thread: lease.thread,
            wake: lease.wake.into(),
            public: lease.public,
            hold: lease
                .hold
                .map(|hold| Hold { until: rfc3339_millis(hold.until.wall_ms), reason: hold.reason }),
            parent: lease.parent.map(Into::into),
            snapshot,
            archive: lease.archive.map(|at| Archive {
                key: at.key,
                bytes: at.bytes,
                stored_bytes: at.stored_bytes,
            }),
            created_at: rfc3339_millis(lease.created_at.wall_ms),
            phase_at: rfc3339_millis(lease.phase_at.wall_ms),
            started_at: lease.started_at.map(|at| rfc3339_millis(at.wall_ms)),
            active_at: lease.active_at.map(|at| rfc3339_millis(at.wall_ms)),
            stopped_at: lease.stopped_at.map(|at| rfc3339_millis(at.wall_ms)),
            awake: None,
        }
    }
}
