//! Language servers of projects in a sandbox.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The languages that servers are known for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum LspLanguage {
    Python,
    TypeScript,
    JavaScript,
}

/// A language server: one per language and project.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LspBody {
    pub language: LspLanguage,
    /// Directory of the project, as an absolute path.
    #[schema(example = "/home/user/app")]
    pub project: String,
}

/// Request about one file of a project.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LspFileBody {
    pub language: LspLanguage,
    /// Directory of the project, as an absolute path.
    pub project: String,
    /// File, as an absolute path.
    pub path: String,
}

/// Request to open a file, or to give the server a newer text of it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LspOpenBody {
    pub language: LspLanguage,
    /// Directory of the project, as an absolute path.
    pub project: String,
    /// File, as an absolute path.
    pub path: String,
    /// Text of the file. Default: its content in the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Version of the text. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<i64>,
}

/// Request for completions at a position.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LspCompletionBody {
    pub language: LspLanguage,
    /// Directory of the project, as an absolute path.
    pub project: String,
    /// File, as an absolute path.
    pub path: String,
    /// From 0.
    pub line: u32,
    /// From 0, in UTF-16 units.
    pub character: u32,
}

/// Request for symbols: of the file `path`, or of the project by `query`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LspSymbolBody {
    pub language: LspLanguage,
    /// Directory of the project, as an absolute path.
    pub project: String,
    /// File, as an absolute path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Part of the name of a symbol.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub query: Option<String>,
}

/// Completions, best first.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct LspCompletions {
    /// Whether more typing gives other completions.
    pub is_incomplete: bool,
    pub items: Vec<LspCompletion>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct LspCompletion {
    pub label: String,
    /// `CompletionItemKind` of the Language Server Protocol.
    pub kind: Option<i64>,
    pub detail: Option<String>,
    pub documentation: Option<String>,
    /// Text to insert if it is not the label.
    pub insert_text: Option<String>,
    pub filter_text: Option<String>,
    pub sort_text: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct LspSymbols {
    pub items: Vec<LspSymbol>,
}

/// A definition in a file.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct LspSymbol {
    pub name: String,
    /// `SymbolKind` of the Language Server Protocol.
    pub kind: i64,
    #[schema(example = "file:///home/user/app/main.py")]
    pub uri: String,
    pub start: LspPosition,
    pub end: LspPosition,
}

/// A position in a file, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LspPosition {
    pub line: u32,
    /// In UTF-16 units.
    pub character: u32,
}
