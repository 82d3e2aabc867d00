//! The providers of a server: where sandboxes live.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::health::HealthStatus;
pub use crate::words::Isolation;

/// A provider of this server.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Provider {
    /// Send it as `provider` of a create.
    #[schema(example = "container")]
    pub name: String,
    /// What it is; providers of one kind differ in name only.
    pub kind: String,
    pub isolation: Isolation,
    /// What it can do on this machine; a request that needs another capability is refused with `unsupported`.
    pub capabilities: Vec<String>,
    pub health: HealthStatus,
    /// Why it is degraded.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub problem: Option<String>,
    /// What a sandbox costs, in a few words.
    pub cost: String,
    /// What it is best for, in a few words.
    pub best_for: String,
    /// Whether a create without `provider` uses it.
    pub default: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ProviderList {
    /// By name.
    pub items: Vec<Provider>,
}
