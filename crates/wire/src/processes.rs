//! Processes that were started through the API, and the logs they leave.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::exec::OutputChunk;
use crate::flag::Flag;

/// A process that runs.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Process {
    /// Its pid inside the sandbox.
    pub pid: u32,
    pub argv: Vec<String>,
    pub cwd: String,
    pub user: String,
    pub tag: Option<String>,
    /// Whether it has a terminal.
    pub pty: bool,
    #[schema(format = DateTime)]
    pub started_at: Option<String>,
    pub running: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ProcessList {
    pub items: Vec<Process>,
}

#[derive(Debug, Clone, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct AttachQuery {
    /// `1`: begin with the stored output. Default `0`.
    #[param(value_type = Option<String>, pattern = "^(0|1|true|false)$")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tail: Option<Flag>,
}

/// Request to send a signal.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SignalBody {
    pub signal: Signal,
}

/// A name (`TERM`, `SIGTERM`) or a number.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(untagged, expecting = "a signal is a name such as \"TERM\" or a number")]
pub enum Signal {
    Number(i32),
    Name(String),
}

#[derive(Debug, Clone, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct LogsQuery {
    /// `1`: follow new output. Default `0`.
    #[param(value_type = Option<String>, pattern = "^(0|1|true|false)$")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub follow: Option<Flag>,
}

/// Output in the logs of a sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LogEntry {
    pub at: String,
    pub pid: u32,
    /// `stdout`, `stderr` or `terminal`.
    pub stream: String,
    #[serde(flatten)]
    pub chunk: OutputChunk,
}
