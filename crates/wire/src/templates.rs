//! Templates: what sandboxes start from.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::start::{self, Ready};
pub use crate::words::MadeFrom;

/// What happens now: the event `step`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ProgressStep {
    pub message: String,
}

/// How far a layer is: the event `layer`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LayerProgress<S = String> {
    pub digest: String,
    pub done: u64,
    pub total: u64,
    pub state: S,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TemplateList {
    pub items: Vec<Template>,
}

/// Requested changes. Absent fields do not change. The changes apply to new sandboxes, for every version of the
/// template.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct UpdateTemplateBody {
    /// User that runs commands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Working directory of commands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// Variables to add.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Start command, which runs at every boot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// Ready check of the start command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<Ready>,
    /// Default port of previews.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Default CPU limit of sandboxes in cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<f64>,
    /// Default memory limit of sandboxes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<i64>,
    /// Default disk limit of sandboxes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_mib: Option<i64>,
    /// Default limit of processes and threads of sandboxes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<i64>,
    /// Number of ready instances to keep for the next creates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<u32>,
    /// Discard earlier changes first, so that the settings of the versions apply.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub reset: bool,
    /// Replaces all its aliases.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aliases: Option<Vec<String>>,
    /// Whether other tenants may use the template. Needs an admin key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub public: Option<bool>,
}

/// Request to add tags to a version.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TagsBody {
    /// Tags of its name.
    #[schema(example = json!(["stable"]))]
    pub tags: Vec<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct UntagQuery {
    /// Tags, separated by commas.
    pub tags: String,
}

/// Result of a garbage collection.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Collected {
    pub versions: u64,
    pub layers: u64,
    pub blobs: u64,
    /// Freed bytes, approximately.
    pub bytes: u64,
    /// Bytes of layers that only the build cache keeps, so that later builds are faster.
    pub cached_bytes: u64,
    /// Versions that were kept because they were used in the last minute, or are being used.
    pub recent: u64,
}

/// A template, from which sandboxes are created.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Template {
    pub name: String,
    /// Digest of the exact content; sandboxes keep their version when a tag moves.
    pub version: String,
    /// Requested tag; null for a built-in template.
    pub tag: Option<String>,
    /// All tags of its name.
    pub tags: Vec<String>,
    /// Other names of the template.
    pub aliases: Vec<String>,
    /// Tenant that owns the template; null for a built-in template.
    pub tenant: Option<String>,
    /// Whether other tenants may use the template.
    pub public: bool,
    /// `host`, `rootfs` or `image`.
    pub kind: String,
    pub made_from: MadeFrom,
    /// Digest of the image's manifest, if it was pulled.
    pub manifest: Option<String>,
    pub user: String,
    pub workdir: String,
    /// Environment of every sandbox of the template.
    pub env: BTreeMap<String, String>,
    /// Whether programs inside can gain privileges.
    pub sudo: bool,
    /// Start command, which runs at every boot unless the sandbox has its own.
    pub command: Option<Vec<String>>,
    /// Ready check of the start command; a create waits for it.
    #[serde(default, deserialize_with = "start::ready_from_answer")]
    pub ready: Option<Ready>,
    /// Whether its sandboxes start with the processes that ran when it was built.
    pub warm: bool,
    /// Nodes that have its files; absent for a built-in template, which each node has for itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub nodes: Vec<String>,
    /// Default port of previews.
    pub port: Option<u16>,
    /// Default CPU limit of sandboxes in cores; null is the server's default.
    pub cpu: Option<f64>,
    /// Default limit of sandboxes; null is the server's default.
    pub memory_mib: Option<i64>,
    /// Default limit of sandboxes; null is the server's default.
    pub disk_mib: Option<i64>,
    /// Default limit of sandboxes; null is the server's default.
    pub pids: Option<i64>,
    /// Number of ready instances to keep for the next creates; null is the server's default.
    pub pool: Option<u32>,
    /// Size of its files in bytes, if known.
    pub size_bytes: Option<u64>,
    pub layers: Option<u32>,
    /// `Entrypoint` of the image; not started.
    pub entrypoint: Option<Vec<String>>,
    /// `Cmd` of the image; not started.
    pub cmd: Option<Vec<String>>,
    /// Of the image.
    pub labels: BTreeMap<String, String>,
    /// Notes, such as instructions that were ignored.
    pub notes: Vec<String>,
    #[schema(format = DateTime)]
    pub created_at: String,
}

/// Credentials for a registry: a user name with a password, or a token alone.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RegistryAuth {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

impl std::fmt::Debug for RegistryAuth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RegistryAuth(…)")
    }
}

/// Request to pull an image.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PullBody {
    /// As in `docker pull`.
    #[schema(example = "python:3.12-slim")]
    pub image: String,
    /// Credentials for its registry. Default: the server's Docker config for admin keys, otherwise anonymous.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth: Option<RegistryAuth>,
    /// Platform of a multi-platform image. Default: this machine's.
    #[schema(example = "linux/amd64")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub platform: Option<String>,
}

/// Request to push a template.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PushBody {
    /// As in `docker push`.
    #[schema(example = "registry.example/team/app:v1")]
    pub image: String,
    /// Credentials for its registry. Default: the server's Docker config for admin keys, otherwise anonymous.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth: Option<RegistryAuth>,
}

/// Format of an imported archive.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ImportForm {
    /// It is found out.
    #[default]
    Auto,
    /// As `docker save` writes it.
    Docker,
    /// The tar of an OCI layout.
    Oci,
    /// The tar of a whole root file system.
    Rootfs,
}

#[derive(Debug, Clone, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ImportQuery {
    /// `name` or `name:tag`.
    pub name: String,
    #[serde(default)]
    #[param(inline, required = false)]
    pub format: ImportForm,
}

/// Format of the archive.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExportForm {
    /// The tar of an OCI layout.
    #[default]
    Oci,
    /// As `docker load` reads it.
    Docker,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ExportQuery {
    #[serde(default)]
    #[param(inline, required = false)]
    pub format: ExportForm,
}
