//! What a client asks of a sandbox: the bodies of create and update.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;

use atoll_model::{LimitsAsk, MountAsk, TimersAsk, UpdateSandbox};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use crate::network::Network;
use crate::words::{OnExit, OnTimeout, Storage, Wake};

/// Request to create a sandbox. Every field is optional.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CreateBody {
    /// `name`, `name:tag`, `name@sha256:…` or an alias. Default: the server's default template.
    #[schema(example = "debian")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// Provider, as `GET /v1/providers` lists them. Default: that of the thread or the snapshot, else
    /// the server's. A thread that is bound to another provider is refused with `thread_bound`.
    #[schema(example = "container")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// Image from a registry to use instead of a template; pulled if needed.
    #[schema(example = "python:3.12-slim")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Id or name of a snapshot to create the sandbox from, instead of a template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// With `snapshot`: restore its processes too. Refused if the snapshot has none.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub memory: bool,
    /// Key of an archive to create the sandbox from, instead of a template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub archive: Option<String>,
    /// Unique within the tenant: letters, digits, `-`, `_`, `.`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Volumes to mount.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<MountBody>,
    /// Environment of every command.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Names in `env` that forks and snapshots do not inherit.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub private_env: BTreeSet<String>,
    /// Cores, fractions allowed.
    #[schema(example = 1.0)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<f64>,
    #[schema(example = 512)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<i64>,
    #[schema(example = 2048)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_mib: Option<i64>,
    /// Processes and threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<i64>,
    /// Network policy. Default: `allow-all`, or the policy of the snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<Storage>,
    /// Default user of commands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Start command, which runs at every boot; its output is in the logs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// Lifetime in seconds.
    #[schema(example = 3600)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_timeout: Option<OnTimeout>,
    /// Stop the sandbox after this many idle seconds; -1 is never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_stop_s: Option<i64>,
    /// Pause the sandbox after this many idle seconds; -1 is never.
    #[schema(example = 600)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_pause_s: Option<i64>,
    /// Write the memory to disk after the sandbox was paused for this many seconds; -1 is never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_after_s: Option<i64>,
    /// Archive the sandbox after it was stopped for this many seconds; -1 is never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_archive_s: Option<i64>,
    /// Delete the sandbox after it was stopped for this many seconds; 0 deletes it with the stop; -1 is never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_delete_s: Option<i64>,
    /// Default: `keep`; with a thread the provider's default, which is `pause` unless the operator changed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_exit: Option<OnExit>,
    /// Thread to bind the sandbox to. A thread keeps the provider of its first sandbox, and a create for a thread that has a
    /// sandbox returns that sandbox with status 200.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wake: Option<Wake>,
    /// Wait for a place if the server or the quota of the tenant is full: the sandbox is `creating` with stage `queued`.
    /// Default: a full server refuses at once with `no_capacity`. Cannot be combined with `archive`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub queue: bool,
    /// With `queue`: how long to wait for a place. A sandbox that gets none in time is deleted with reason
    /// `queue_timed_out`. Default 600.
    #[schema(example = 300, minimum = 1, maximum = 86400)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_timeout_s: Option<u64>,
    /// Whether its ports are open to everyone who knows their addresses. Default: only with a key or a preview.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub public: bool,
}

/// A volume in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MountBody {
    /// Id or name of the volume.
    #[schema(example = "data")]
    pub volume: String,
    /// Absolute path in the sandbox.
    #[schema(example = "/data")]
    pub path: String,
    /// Only this folder of the volume; created if missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sub_path: Option<String>,
    /// Whether the mount is read-only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub read_only: bool,
}

impl From<MountBody> for MountAsk {
    fn from(body: MountBody) -> Self {
        let MountBody { volume, path, sub_path, read_only } = body;
        Self { volume, path, sub_path, read_only }
    }
}

/// Requested changes. Absent fields do not change.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct UpdateBody {
    /// Replaces all labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_mib: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<i64>,
    /// Replaces the whole policy; connections that the new policy allows continue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// New lifetime from now; null removes it.
    #[serde(deserialize_with = "double_option")]
    #[schema(value_type = Option<u64>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<Option<NonZeroU64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_timeout: Option<OnTimeout>,
    /// Stop the sandbox after this many idle seconds; -1 is never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_stop_s: Option<i64>,
    /// Pause the sandbox after this many idle seconds; -1 is never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_pause_s: Option<i64>,
    /// Write the memory to disk after the sandbox was paused for this many seconds; -1 is never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_after_s: Option<i64>,
    /// Archive the sandbox after it was stopped for this many seconds; -1 is never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_archive_s: Option<i64>,
    /// Delete the sandbox after it was stopped for this many seconds; 0 deletes it with the stop; -1 is never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_delete_s: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_exit: Option<OnExit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wake: Option<Wake>,
    /// Whether its ports are open to everyone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub public: Option<bool>,
}

impl From<UpdateBody> for UpdateSandbox {
    fn from(body: UpdateBody) -> Self {
        Self {
            labels: body.labels,
            env: None,
            limits: LimitsAsk {
                cpu: body.cpu,
                memory_mib: body.memory_mib,
                disk_mib: body.disk_mib,
                pids: body.pids,
            },
            network: body.network.map(Into::into),
            // To end one now there is delete.
            timeout_s: body.timeout_s.map(|seconds| seconds.map(NonZeroU64::get)),
            on_timeout: body.on_timeout.map(Into::into),
            timers: TimersAsk {
                auto_stop_s: body.auto_stop_s,
                auto_pause_s: body.auto_pause_s,
                checkpoint_after_s: body.checkpoint_after_s,
                auto_archive_s: body.auto_archive_s,
                auto_delete_s: body.auto_delete_s,
            },
            on_exit: body.on_exit.map(Into::into),
            wake: body.wake.map(Into::into),
            public: body.public,
            timeout_at_least_s: None,
            timeout_counts: None,
            mask_host: None,
            https_ports: None,
            annotations: None,
            secrets: None,
        }
    }
}

/// Tells a field that is null from one that is absent.
fn double_option<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    from: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(from).map(Some)
}
