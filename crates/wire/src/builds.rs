//! Builds of templates and their logs.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::flag::Flag;
use crate::network::Network;
use crate::start::Start;
use crate::templates::RegistryAuth;
pub use crate::words::{BuildStatus, Level};

/// A build of a template.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Build {
    pub id: String,
    /// The tenant's id.
    pub tenant: String,
    /// Node that runs it.
    #[serde(default)]
    pub node: String,
    /// Template that the build makes.
    #[schema(example = "app:v1")]
    pub template: String,
    /// Further tags for the template.
    pub tags: Vec<String>,
    pub status: BuildStatus,
    /// Number of the current or last step; 0 before the first.
    pub step: u32,
    /// Number of steps; 0 until it is known.
    pub steps: u32,
    /// Text of that step, shortened.
    pub step_text: String,
    /// Steps that were taken from the cache.
    pub cached_steps: u32,
    /// Why the build failed.
    pub failure: Option<BuildFailure>,
    /// Version that the build made.
    pub version: Option<String>,
    /// Instructions that were ignored, with the reason.
    pub notes: Vec<String>,
    #[schema(format = DateTime)]
    pub created_at: String,
    #[schema(format = DateTime)]
    pub started_at: Option<String>,
    #[schema(format = DateTime)]
    pub ended_at: Option<String>,
}

/// Why a build failed.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct BuildFailure {
    /// One of the closed list in `docs/errors.md`.
    pub code: String,
    pub message: String,
    pub hint: Option<String>,
    /// Number of the step.
    pub step: Option<u32>,
    /// Exit code of its command.
    pub exit_code: Option<i32>,
    /// The end of its output.
    pub tail: Vec<String>,
}

/// One page of builds, newest first.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct BuildPage {
    pub items: Vec<Build>,
    /// Send it as `cursor` to get the next page; null on the last page.
    pub next_cursor: Option<String>,
}

/// The parts of a form.
#[derive(ToSchema)]
pub struct BuildForm {
    /// The build request; must be the first part.
    pub spec: BuildBody,
    /// Files for `COPY`: a tar archive, plain or compressed with gzip or zstd.
    #[schema(value_type = Option<String>, format = Binary)]
    pub context: Option<Vec<u8>>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct BuildsQuery {
    /// Only builds of the template with this name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    #[param(inline)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<BuildStatus>,
    /// Maximum number of results.
    #[param(value_type = Option<u32>, minimum = 1)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<NonZeroU32>,
    /// `next_cursor` of the previous page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// One line of a build's log.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct BuildLine {
    /// Counts from 1 without gaps.
    pub seq: u64,
    #[schema(format = DateTime)]
    pub at: String,
    pub level: Level,
    /// Number of the step; 0 before the first or after the last.
    pub step: u32,
    pub text: String,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct BuildLog {
    /// Oldest first.
    pub items: Vec<BuildLine>,
    /// Send it as `from` to get the next lines; null if there are no more lines yet.
    pub next_from: Option<u64>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct LogsQuery {
    /// Number of the first line to return. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<u64>,
    /// `1`: server-sent events until the build ends.
    #[param(value_type = Option<String>, pattern = "^(0|1|true|false)$")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub follow: Option<Flag>,
}

/// Request of a build.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BuildBody {
    /// Name of the template: `name` or `name:tag`. The default tag is `latest`.
    #[schema(example = "app:v1")]
    pub template: String,
    /// Further tags of the same name.
    #[serde(default)]
    #[schema(required = false)]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Text of the Dockerfile. Default: the file in the context.
    #[schema(example = "FROM debian\nRUN echo hello > /hello\n")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dockerfile: Option<String>,
    /// Path of the Dockerfile in the context, if its text is not given. Default `Dockerfile`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dockerfile_path: Option<String>,
    /// Values for `ARG`.
    #[serde(default)]
    #[schema(required = false)]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub args: BTreeMap<String, String>,
    /// Secrets for `RUN --mount=type=secret`. They appear in no layer, log or record.
    #[serde(default)]
    #[schema(required = false)]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<BuildSecretBody>,
    /// Stage to build. Default: the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Do not use cached steps.
    #[serde(default)]
    #[schema(required = false)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub no_cache: bool,
    /// Start settings of the template, in addition to those of its steps.
    #[serde(default)]
    #[schema(required = false)]
    #[serde(skip_serializing_if = "Start::is_default")]
    pub start: Start,
    /// Network policy of the steps. Default: the policy of the tenant's sandboxes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// CPU limit of each step in cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<f64>,
    /// Memory limit of each step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<i64>,
    /// Disk limit of each step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_mib: Option<i64>,
    /// Limit of processes and threads of each step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<i64>,
    /// Time limit of the build. Default: the server's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<u64>,
    /// Credentials for the registry of base images.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth: Option<RegistryAuth>,
    /// Platform of base images. Default: this machine's.
    #[schema(example = "linux/amd64")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub platform: Option<String>,
}

/// A secret of a build. Exactly one of `value` and `value_base64`.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BuildSecretBody {
    /// As `RUN --mount=type=secret,id=…` names it.
    pub id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// For bytes that are no text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_base64: Option<String>,
}

impl std::fmt::Debug for BuildSecretBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BuildSecretBody({:?}, …)", self.id)
    }
}
