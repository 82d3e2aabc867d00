//! The providers of a server: where sandboxes live.

use std::collections::BTreeMap;

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
    /// What separates its sandboxes from their machine; null where its settings cannot be read.
    pub isolation: Option<Isolation>,
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

/// The settings of a provider. Secrets are never part of it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ProviderSettings {
    pub name: String,
    /// The settings file, without its secrets.
    #[schema(value_type = Object)]
    pub settings: serde_json::Value,
    /// Where each value comes from that can also be set by a variable: `file`, `environment (NAME)` or `config.env (NAME)`.
    pub sources: BTreeMap<String, String>,
    /// Why the provider takes no new sandboxes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub problem: Option<String>,
}

/// The outcome of a test.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ProviderTest {
    /// Whether sandboxes can be created there.
    pub ok: bool,
    /// What is wrong, in one sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub problem: Option<String>,
    /// What would help.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub hint: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ProviderList {
    /// By name.
    pub items: Vec<Provider>,
}
