//! Terminals and the text frames of their WebSocket.

use std::collections::BTreeMap;
use std::num::NonZeroU16;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::exec::StreamError;

/// A shell that keeps its directory and environment between commands.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Terminal {
    pub id: String,
    pub sandbox: String,
    /// Thread that the terminal belongs to.
    pub thread: String,
    /// The shell's pid inside the sandbox.
    pub pid: u32,
    #[schema(format = DateTime)]
    pub created_at: String,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TerminalList {
    pub items: Vec<Terminal>,
}

/// Request to open a terminal or to return the existing one.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TerminalBody {
    /// The same thread gets the same terminal.
    pub thread: String,
    /// Default 80.
    #[schema(value_type = Option<u16>, minimum = 1)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cols: Option<NonZeroU16>,
    /// Default 24.
    #[schema(value_type = Option<u16>, minimum = 1)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows: Option<NonZeroU16>,
    /// Program and arguments. Default: bash, or sh if there is no bash.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shell: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    #[serde(default)]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// What a client may say in a text frame.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum TerminalClientFrame {
    Resize { cols: NonZeroU16, rows: NonZeroU16 },
    Input { data: String },
}

/// What the server says in a text frame.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum TerminalServerFrame {
    Exit {
        exit_code: i32,
        signal: Option<i32>,
    },
    Dropped {
        bytes: u64,
    },
    Error(StreamError),
    /// A frame of a newer server.
    #[serde(other, skip_serializing)]
    Unknown,
}
