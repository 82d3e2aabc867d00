//! Secrets of a tenant. No answer holds a value.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A secret without its value.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Secret {
    pub name: String,
    #[schema(format = DateTime)]
    pub created_at: String,
    /// Time of the last rotation; null if the value was never replaced.
    #[schema(format = DateTime)]
    pub rotated_at: Option<String>,
    /// Number of sandboxes that use it.
    pub used_by: u32,
}

/// By name.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SecretList {
    pub items: Vec<Secret>,
}

/// Request to create a secret.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SecretBody {
    /// Letters, digits, `_`, `.` and `-`, beginning with a letter or `_`; 64 at most.
    #[schema(example = "EXAMPLE_KEY")]
    pub name: String,
    /// At most 8 KiB, without control characters. Never shown again.
    pub value: String,
}

/// Request to replace the value of a secret.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SecretChange {
    pub value: String,
}
