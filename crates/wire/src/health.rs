//! Whether the server works, and which one it is.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = Status)]
pub enum HealthStatus {
    Ok,
    Degraded,
    /// A word of a newer server.
    #[serde(other, skip_serializing)]
    Unknown,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Health {
    pub status: HealthStatus,
    pub version: String,
    /// Problems of the server.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub problems: Vec<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Version {
    /// Of the server.
    pub version: String,
    /// Of the API.
    pub api: String,
}
