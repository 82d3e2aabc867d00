//! The files of a sandbox.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::flag::Flag;

/// A file, directory or link.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Entry {
    /// The last part of its path.
    pub name: String,
    /// Absolute.
    pub path: String,
    pub kind: EntryKind,
    pub size: u64,
    /// Permission bits in octal.
    #[schema(example = "0644", pattern = "^[0-7]{4}$")]
    pub mode: String,
    pub owner: String,
    pub group: String,
    #[schema(format = DateTime)]
    pub modified_at: String,
    /// Target of a link.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub symlink_target: Option<String>,
    /// The exact name, only if it is not valid UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub name_base64: Option<String>,
    /// The exact path, only if it is not valid UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub path_base64: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    File,
    Directory,
    Symlink,
    #[serde(other)]
    Other,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct EntryList {
    pub items: Vec<Entry>,
    /// Whether the directory has more entries than listed.
    pub truncated: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PathQuery {
    /// Absolute, or relative to the sandbox's workdir.
    #[param(example = "/home/user/notes.txt")]
    pub path: String,
}

#[derive(Debug, Clone, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct WriteQuery {
    /// Absolute, or relative to the sandbox's workdir.
    pub path: String,
    /// Permission bits in octal, such as `644`.
    #[param(pattern = "^[0-7]{1,4}$")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// User for the operation. Default: the sandbox's user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListQuery {
    pub path: String,
    /// Number of levels. Default 1.
    pub depth: Option<u32>,
}

#[derive(Debug, Clone, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct WatchQuery {
    pub path: String,
    /// `1`: watch recursively. Default `0`.
    #[param(value_type = Option<String>, pattern = "^(0|1|true|false)$")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recursive: Option<Flag>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MkdirBody {
    pub path: String,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveBody {
    pub from: String,
    pub to: String,
}

/// What was written of an archive.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ArchiveWritten {
    /// Files, directories and links.
    pub entries: u64,
    /// Bytes of files.
    pub bytes: u64,
}

/// A change below a watched directory.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FileChange {
    /// Relative to the watched directory.
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name_base64: Option<String>,
}

/// Request to find files by name.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SearchBody {
    /// Directory to search. Default: the sandbox's working directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Glob. Without a slash it matches names at any depth, with a slash paths below the directory.
    #[schema(example = "*.py")]
    pub pattern: String,
    /// Globs of files and directories to leave out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
}

/// Paths that match, sorted.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SearchResult {
    pub items: Vec<String>,
    /// Whether a limit was reached, so that there may be more.
    pub truncated: bool,
}

/// Request to find lines in files. Binary files and links are skipped.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GrepBody {
    /// Directory or file to search. Default: the sandbox's working directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Regular expression in the syntax of Rust's `regex`, or plain text with `literal`.
    #[schema(example = "fn \\w+")]
    pub pattern: String,
    /// Take `pattern` as plain text.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub literal: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ignore_case: bool,
    /// Globs of the files to search. Default: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub include: Vec<String>,
    /// Globs of files and directories to leave out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
}

/// Lines that match, sorted by path.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct GrepResult {
    pub items: Vec<GrepMatch>,
    /// Whether a limit was reached, so that there may be more.
    pub truncated: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct GrepMatch {
    pub path: String,
    /// Number of the line, from 1.
    pub line: u64,
    /// The line, shortened if it is very long.
    pub text: String,
}

/// Request to edit a text file. The edits are applied in order, all or none.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EditBody {
    pub path: String,
    #[schema(min_items = 1)]
    pub edits: Vec<TextEdit>,
}

/// A replacement of exact text.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TextEdit {
    /// Text to find. It must occur exactly once unless `all` is set.
    pub find: String,
    pub replace: String,
    /// Replace every occurrence.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct EditResult {
    /// Number of places that were replaced.
    pub replacements: u64,
    /// Unified diff of the change.
    pub diff: String,
}
