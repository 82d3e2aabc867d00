//! Shell sessions: shells that keep their state between commands.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Request to start a session.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionBody {
    /// 1 to 256 printable characters.
    pub name: String,
    /// Working directory. Default: the sandbox's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
}

/// A shell that keeps its directory, variables and functions between commands.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Session {
    pub name: String,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SessionList {
    pub items: Vec<Session>,
}

/// A session and its commands, oldest first.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SessionDetails {
    pub name: String,
    pub commands: Vec<SessionCommand>,
}

/// A command of a session.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SessionCommand {
    pub id: String,
    pub command: String,
    /// Null while it runs or waits for its turn.
    pub exit_code: Option<i32>,
}

/// A command for a session. The commands of a session run one after the other.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionExecBody {
    /// Shell command; may have several lines.
    pub command: String,
    /// Return when the shell has the command; its input can be written with `POST …/stdin`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub detach: bool,
    /// With `detach`: do not copy its input to its output.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub quiet_stdin: bool,
    /// Without `detach`: how long to wait for the end of the command. After that the answer is the error
    /// `deadline_exceeded`, and the command goes on. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<f64>,
}

/// A command that the shell has.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SessionStarted {
    /// Id of the command.
    pub id: String,
}

/// Result and output of a command.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SessionResult {
    /// Id of the command.
    pub id: String,
    pub exit_code: i32,
    /// If the output is longer than 16 MiB, the middle is left out and a line says so.
    pub stdout: String,
    pub stderr: String,
}

/// What a command has written so far: the last 16 MiB of each stream.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SessionOutput {
    /// Null while it runs or waits for its turn.
    pub exit_code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}
