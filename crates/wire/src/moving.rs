//! The move of a sandbox to another provider.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::words::{LeftBehindKind, MoveCarried, MoveStage, MoveStep};

/// Request to move a sandbox to another provider.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveSandboxBody {
    /// Name of the provider that the sandbox goes to.
    #[schema(example = "docker")]
    pub provider: String,
    /// Template or image there. Default: the sandbox's own if the provider has it, else the provider's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub template: Option<String>,
}

/// A move that is not finished.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Moving {
    /// Provider that the sandbox leaves.
    pub from: String,
    /// Provider that it goes to.
    pub to: String,
    /// Template or image that it gets there.
    pub template: String,
    pub stage: MoveStage,
    pub step: MoveStep,
    /// Files, folders and links that were sent, or compared.
    pub entries: u64,
    /// Bytes of files that were sent, or compared.
    pub bytes: u64,
    #[schema(format = DateTime)]
    pub started_at: String,
}

/// Result of the last move.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct MoveReport {
    pub from: String,
    pub to: String,
    #[schema(format = DateTime)]
    pub ended_at: String,
    /// Why the sandbox stayed where it was; null: it was moved.
    pub failure: Option<String>,
    pub carried: MoveCarried,
    /// Files, folders and links.
    pub entries: u64,
    /// Bytes of files.
    pub bytes: u64,
    /// What is not at the new provider.
    pub left_behind: Vec<LeftBehind>,
}

/// Something of a sandbox that did not move with it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct LeftBehind {
    pub kind: LeftBehindKind,
    /// The first of them: paths, ids, or a sentence.
    pub names: Vec<String>,
    /// How many there are.
    pub count: u64,
}

impl From<atoll_model::LeftBehind> for LeftBehind {
    fn from(left: atoll_model::LeftBehind) -> Self {
        let atoll_model::LeftBehind { kind, names, count } = left;
        Self { kind: kind.into(), names, count }
    }
}
