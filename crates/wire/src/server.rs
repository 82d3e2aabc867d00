//! The server as its operator sees it: what the machine supports, and the settings in effect.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The server: checks of its machine, and its settings.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct ServerReport {
    pub version: String,
    /// The checks of `atoll doctor`.
    pub checks: Vec<ServerCheck>,
    /// The options of `atoll serve` with their values.
    pub settings: Vec<ServerSetting>,
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ServerCheck {
    pub name: String,
    pub state: CheckState,
    /// What was found.
    pub found: String,
    /// One line that repairs it.
    pub fix: Option<String>,
}

/// The state of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CheckState {
    /// As it should be.
    Good,
    /// Sandboxes run, but something is slower or missing.
    Lacking,
    /// No sandbox can run without it.
    Missing,
}

/// An option of the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ServerSetting {
    /// As on the command line.
    #[schema(example = "--listen")]
    pub name: String,
    /// Values in effect; empty where the option is not set and has no default.
    pub values: Vec<String>,
    /// Where they come from: `default`, `option`, `environment (NAME)`, or the place in the configuration file (`FILE:LINE`).
    pub source: String,
    /// What the option is for.
    pub about: String,
}
