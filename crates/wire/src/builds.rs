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

/// One making of a template.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Build {
    pub id: String,
    /// The tenant's id.
    pub tenant: String,
    /// What it makes.
    #[schema(example = "app:v1")]
    pub template: String,
    /// Further tags that shall point to it.
    pub tags: Vec<String>,
    pub status: BuildStatus,
    /// The step that is under way, or was the last; 0 before the first.
    pub step: u32,
    /// How many there are; 0 until that is known.
    pub steps: u32,
    /// That step as its author wrote it, shortened.
    pub step_text: String,
    /// Steps that were taken from the cache.
    pub cached_steps: u32,
    /// Why it failed.
    pub failure: Option<BuildFailure>,
    /// What it made.
    pub version: Option<String>,
    /// Instructions that were left out, and why.
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
    /// In which step.
    pub step: Option<u32>,
    /// What its command exited with.
    pub exit_code: Option<i32>,
    /// The end of what it wrote.
    pub tail: Vec<String>,
}

/// One page of builds, newest first.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct BuildPage {
    pub items: Vec<Build>,
    /// Hand it in as `cursor` for the next page; null: that was all.
    pub next_cursor: Option<String>,
}

/// The parts of a form.
#[derive(ToSchema)]
pub struct BuildForm {
    /// What to build; the first part.
    pub spec: BuildBody,
    /// The files that it may copy from: a tar, plain or compressed with gzip or zstd.
    #[schema(value_type = Option<String>, format = Binary)]
    pub context: Option<Vec<u8>>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct BuildsQuery {
    /// Only of the template with this name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    #[param(inline)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<BuildStatus>,
    /// At most this many.
    #[param(value_type = Option<u32>, minimum = 1)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<NonZeroU32>,
    /// `next_cursor` of the page before.
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
    /// In which step; 0: before the first or after the last.
    pub step: u32,
    pub text: String,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct BuildLog {
    /// Oldest first.
    pub items: Vec<BuildLine>,
    /// Hand it in as `from` for what comes behind; null: that was all, for now.
    pub next_from: Option<u64>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct LogsQuery {
    /// The first line that is wanted. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<u64>,
    /// `1`: server-sent events until the build ends.
    #[param(value_type = Option<String>, pattern = "^(0|1|true|false)$")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub follow: Option<Flag>,
}

/// What to build.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BuildBody {
    /// Its name: `name` or `name:tag`; `latest` where no tag is said.
    #[schema(example = "app:v1")]
    pub template: String,
    /// Further tags of that name.
    #[serde(default)]
    #[schema(required = false)]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// The text of the Dockerfile. Absent: it is in the context.
    #[schema(example = "FROM debian\nRUN echo hello > /hello\n")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dockerfile: Option<String>,
    /// Where the Dockerfile is in the context, where its text is not given. Default `Dockerfile`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dockerfile_path: Option<String>,
    /// Values for `ARG`.
    #[serde(default)]
    #[schema(required = false)]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub args: BTreeMap<String, String>,
    /// What `RUN --mount=type=secret` sees; in no layer, no log and no record.
    #[serde(default)]
    #[schema(required = false)]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<BuildSecretBody>,
    /// The stage to end with; absent: the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Do every step again.
    #[serde(default)]
    #[schema(required = false)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub no_cache: bool,
    /// What sandboxes of it start with, on top of what its steps say.
    #[serde(default)]
    #[schema(required = false)]
    #[serde(skip_serializing_if = "Start::is_default")]
    pub start: Start,
    /// What its steps may reach; absent: what a sandbox of this tenant may.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// Cores of each step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<f64>,
    /// Memory of each step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<i64>,
    /// Disk of each step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_mib: Option<i64>,
    /// Processes and threads of each step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<i64>,
    /// How long it may take in all; absent: the server's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<u64>,
    /// Who to be at the registry of its base images.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth: Option<RegistryAuth>,
    /// Which form of a base image with several; absent: this machine's.
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
