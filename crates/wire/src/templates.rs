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

/// What to change; what is absent stays. It holds for sandboxes that are made from now on, whatever its tags point to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct UpdateTemplateBody {
    /// Who commands run as.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Where commands start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// Added to what it has.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Started at every boot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// When that is ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<Ready>,
    /// The port of previews that name none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Cores of sandboxes that ask for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<f64>,
    /// Memory of sandboxes that ask for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<i64>,
    /// Disk of sandboxes that ask for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_mib: Option<i64>,
    /// Processes and threads of sandboxes that ask for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<i64>,
    /// How many instances wait ready for the next create.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<u32>,
    /// Forget earlier changes first: what its versions say holds again.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub reset: bool,
    /// Replaces all its aliases.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aliases: Option<Vec<String>>,
    /// Whether other tenants may start from it. Needs an admin key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub public: Option<bool>,
}

/// More names for a version.
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
    /// Which, separated by commas.
    pub tags: String,
}

/// What a collection removed.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Collected {
    pub versions: u64,
    pub layers: u64,
    pub blobs: u64,
    /// Free again, about.
    pub bytes: u64,
}

/// What a sandbox starts from.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Template {
    pub name: String,
    /// Names its exact content; sandboxes stay with theirs when a tag moves.
    pub version: String,
    /// The tag that was asked for; null for what is built in.
    pub tag: Option<String>,
    /// All tags of its name.
    pub tags: Vec<String>,
    /// Other names it answers to.
    pub aliases: Vec<String>,
    /// The tenant whose it is; null: built in, everybody's.
    pub tenant: Option<String>,
    /// Whether other tenants may start from it.
    pub public: bool,
    /// `host`, `rootfs` or `image`.
    pub kind: String,
    pub made_from: MadeFrom,
    /// Digest of the image's manifest, where it was pulled.
    pub manifest: Option<String>,
    pub user: String,
    pub workdir: String,
    /// Environment that every sandbox of it starts with.
    pub env: BTreeMap<String, String>,
    /// Whether programs inside may gain privileges.
    pub sudo: bool,
    /// Started at every boot unless a sandbox brings its own.
    pub command: Option<Vec<String>>,
    /// When that is ready; a create answers then.
    #[serde(default, deserialize_with = "start::ready_from_answer")]
    pub ready: Option<Ready>,
    /// Whether its sandboxes begin with the processes that ran when it was built.
    pub warm: bool,
    /// The port of previews that name none.
    pub port: Option<u16>,
    /// Cores of sandboxes that ask for none; null: the server's default.
    pub cpu: Option<f64>,
    /// Of sandboxes that ask for none; null: the server's default.
    pub memory_mib: Option<i64>,
    /// Of sandboxes that ask for none; null: the server's default.
    pub disk_mib: Option<i64>,
    /// Of sandboxes that ask for none; null: the server's default.
    pub pids: Option<i64>,
    /// How many instances wait ready for the next create; null: the server's default.
    pub pool: Option<u32>,
    /// Bytes of its files, where they are counted.
    pub size_bytes: Option<u64>,
    pub layers: Option<u32>,
    /// What the image says of its program; shown, and never started by itself.
    pub entrypoint: Option<Vec<String>>,
    /// What the image says of its program's arguments.
    pub cmd: Option<Vec<String>>,
    /// Of the image.
    pub labels: BTreeMap<String, String>,
    /// What one should know of it, such as instructions that were left out.
    pub notes: Vec<String>,
    #[schema(format = DateTime)]
    pub created_at: String,
}

/// Who one is at a registry: a name with a password, or a token alone.
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

/// The image to fetch.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PullBody {
    /// As in `docker pull`.
    #[schema(example = "python:3.12-slim")]
    pub image: String,
    /// Who to be at its registry. Absent: what the server's Docker config knows, for admin keys; for all others nobody.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth: Option<RegistryAuth>,
    /// For which machine, where there are several. Absent: this one.
    #[schema(example = "linux/amd64")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub platform: Option<String>,
}

/// Where to send it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PushBody {
    /// As in `docker push`.
    #[schema(example = "registry.example/team/app:v1")]
    pub image: String,
    /// Who to be at its registry. Absent: what the server's Docker config knows, for admin keys; for all others nobody.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth: Option<RegistryAuth>,
}

/// What an imported archive is.
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

/// What an archive shall be.
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
