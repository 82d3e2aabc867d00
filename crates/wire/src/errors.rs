//! The answer of a request that was refused.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Body of every error response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Error)]
pub struct Envelope {
    /// One of the closed list in `docs/errors.md`.
    #[schema(example = "sandbox_not_found")]
    pub code: String,
    /// What happened.
    pub message: String,
    /// Suggestion for a fix.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub hint: Option<String>,
    /// The field of the request that the error is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub field: Option<String>,
    /// Id of the request, which is also in the server's logs.
    #[serde(default)]
    #[schema(required = true)]
    pub request_id: String,
}
