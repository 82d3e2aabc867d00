//! The answer of a request that was refused.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What every answer that is not a success holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Error)]
pub struct Envelope {
    /// One of the closed list in `docs/errors.md`.
    #[schema(example = "sandbox_not_found")]
    pub code: String,
    /// What happened, and to what.
    pub message: String,
    /// What to try.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub hint: Option<String>,
    /// The field of the request that the error is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub field: Option<String>,
    /// Finds this request in the logs.
    #[serde(default)]
    #[schema(required = true)]
    pub request_id: String,
}
