//! Commands: what to run, how it ended, and the events of one that is followed.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A command. Set exactly one of `argv` and `command`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ExecBody {
    /// Program and arguments.
    #[schema(example = json!(["python3", "-c", "print(6*7)"]))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    /// Shell command, run by bash, or by sh if there is no bash.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Working directory. Default: the sandbox's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Variables in addition to the sandbox's environment.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// User for the operation. Default: the sandbox's user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Text for its stdin, which is then closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// The same for bytes that are not text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdin_base64: Option<String>,
    /// Keep stdin open for `POST …/processes/{pid}/stdin`; only with a stream or `detach`. Stdin of a detached
    /// process without input is open unless this is false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_stdin: Option<bool>,
    /// Time limit, after which the process is killed: `exit_code` 124, `timed_out` true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<f64>,
    /// Return when the process has started; its output goes to the logs.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub detach: bool,
    /// Name of the process in the list of processes. Must not begin with `atoll-` or `terminal-`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
}

/// Result and output of a command.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ExecResult {
    /// Exit code; 128 + the signal if a signal ended the process, 124 after a timeout.
    pub exit_code: i32,
    /// The signal that ended it.
    pub signal: Option<i32>,
    pub timed_out: bool,
    pub stdout: String,
    pub stderr: String,
    /// The exact bytes, only if stdout is not valid UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub stdout_base64: Option<String>,
    /// The exact bytes, only if stderr is not valid UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub stderr_base64: Option<String>,
    /// Whether the output is longer than shown.
    pub truncated: bool,
    /// Its pid inside the sandbox.
    pub pid: u32,
    pub duration_ms: u64,
}

/// A detached process, or the first event of a stream.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Detached {
    /// Its pid inside the sandbox.
    pub pid: u32,
}

/// How a command ended: the event `exit`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ExecExit {
    pub exit_code: i32,
    pub signal: Option<i32>,
    #[serde(default)]
    pub timed_out: bool,
}

/// Output that a slow reader lost: the event `dropped`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DroppedOutput {
    pub bytes: u64,
}

/// The last event of a stream that broke; the same words as in the envelope.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StreamError {
    pub code: String,
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// Output as text, or as base64 where it is not text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum OutputChunk {
    Text { data: String },
    Bytes { data_base64: String },
}

impl OutputChunk {
    /// Text where the bytes are text.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        match String::from_utf8(bytes) {
            Ok(data) => Self::Text { data },
            Err(e) => Self::Bytes { data_base64: STANDARD.encode(e.as_bytes()) },
        }
    }

    /// The exact bytes; `None` where they are not base64.
    #[must_use]
    pub fn into_bytes(self) -> Option<Vec<u8>> {
        match self {
            Self::Text { data } => Some(data.into_bytes()),
            Self::Bytes { data_base64 } => STANDARD.decode(data_base64).ok(),
        }
    }
}

/// One event of a command that is followed.
#[derive(Debug, Clone)]
pub enum ExecEvent {
    Start(Detached),
    Stdout(OutputChunk),
    Stderr(OutputChunk),
    Terminal(OutputChunk),
    Dropped(DroppedOutput),
    /// The last event.
    Exit(ExecExit),
    /// The last event of a stream that broke.
    Error(StreamError),
    /// An event of a newer server.
    Unknown,
}

impl ExecEvent {
    /// Reads an event by its name and data.
    pub fn parse(name: &str, data: &str) -> Result<Self, serde_json::Error> {
        Ok(match name {
            "start" => Self::Start(serde_json::from_str(data)?),
            "stdout" => Self::Stdout(serde_json::from_str(data)?),
            "stderr" => Self::Stderr(serde_json::from_str(data)?),
            "terminal" => Self::Terminal(serde_json::from_str(data)?),
            "dropped" => Self::Dropped(serde_json::from_str(data)?),
            "exit" => Self::Exit(serde_json::from_str(data)?),
            "error" => Self::Error(serde_json::from_str(data)?),
            _ => Self::Unknown,
        })
    }
}
