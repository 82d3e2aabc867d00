//! What a client asks of a sandbox: the bodies of create and update.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;

use atoll_model::{LimitsAsk, MountAsk, TimersAsk, UpdateSandbox};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use crate::network::Network;
use crate::words::{OnExit, OnTimeout, Storage, Wake};

/// What to make. Everything has a default.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CreateBody {
    /// `name`, `name:tag`, `name@sha256:…` or an alias; the server's default template where absent.
    #[schema(example = "debian")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// An image of a registry, pulled when it is not here, instead of a template.
    #[schema(example = "python:3.12-slim")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Make it from this snapshot, by id or name, instead of a template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// With `snapshot`: its processes too. Refused where the snapshot has none.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub memory: bool,
    /// Make it from this archive, by its key, instead of a template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub archive: Option<String>,
    /// Unique within the tenant: letters, digits, `-`, `_`, `.`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Volumes in it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<MountBody>,
    /// Environment of every command.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Names in `env` that no fork and no snapshot inherits.
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
    /// `allow-all` where absent, or what the snapshot had.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<Storage>,
    /// Default user of commands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Started at every boot; its output is in the logs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// Absolute lifetime in seconds.
    #[schema(example = 3600)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_timeout: Option<OnTimeout>,
    /// Stop after so many idle seconds; -1 is never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_stop_s: Option<i64>,
    /// Pause after so many idle seconds; -1 is never.
    #[schema(example = 600)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_pause_s: Option<i64>,
    /// Write the memory to disk after so many seconds of pause; -1 is never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_after_s: Option<i64>,
    /// Archive after so many seconds of stop; -1 is never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_archive_s: Option<i64>,
    /// Delete after so many seconds of stop; 0: with the stop; -1 is never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_delete_s: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_exit: Option<OnExit>,
    /// Binds it to a thread of conversation; `DELETE /v1/threads/{thread}` does to it what `on_exit` says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wake: Option<Wake>,
    /// Its ports are open to everybody who knows where they are; without it by key and preview only.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub public: bool,
}

/// A volume in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MountBody {
    /// By id or name.
    #[schema(example = "data")]
    pub volume: String,
    /// Where inside; absolute.
    #[schema(example = "/data")]
    pub path: String,
    /// Only this folder of it; made when missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sub_path: Option<String>,
    /// Nothing can be written through it.
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

/// What to change; what is absent stays.
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
    /// Replaces the whole policy; connections that it still allows go on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// A new lifetime from now on; null removes it.
    #[serde(deserialize_with = "double_option")]
    #[schema(value_type = Option<u64>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<Option<NonZeroU64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_timeout: Option<OnTimeout>,
    /// Stop after so many idle seconds; -1 is never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_stop_s: Option<i64>,
    /// Pause after so many idle seconds; -1 is never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_pause_s: Option<i64>,
    /// Write the memory to disk after so many seconds of pause; -1 is never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_after_s: Option<i64>,
    /// Archive after so many seconds of stop; -1 is never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_archive_s: Option<i64>,
    /// Delete after so many seconds of stop; 0: with the stop; -1 is never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_delete_s: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_exit: Option<OnExit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wake: Option<Wake>,
    /// Whether its ports are open to everybody.
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
