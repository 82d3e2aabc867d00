//! Tenants, their quotas and what they use.

use serde::de;
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use crate::network::{self, Network};
use crate::tolerance::keep_fields;

/// Limits of a tenant; null or absent is no limit.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Quota {
    /// Number of sandboxes that are not deleted.
    pub sandboxes: Option<u32>,
    /// Total cores of running and starting sandboxes.
    pub cpu: Option<f64>,
    /// Total memory of running and starting sandboxes.
    pub memory_mib: Option<u64>,
    /// Total disk of sandboxes that are not deleted.
    pub disk_mib: Option<u64>,
    /// Number of volumes.
    pub volumes: Option<u32>,
    /// Total size of volumes.
    pub volume_mib: Option<u64>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Tenant {
    pub id: String,
    pub name: String,
    #[serde(deserialize_with = "quota_from_answer")]
    pub quota: Quota,
    /// Network policy that narrows its sandboxes; null if there is none.
    #[serde(default, deserialize_with = "network::from_optional_answer")]
    pub network: Option<Network>,
    /// Providers that it may use; null: those of the kinds `container` and
    /// `microvm`, and the server's default; for the first tenant every provider.
    #[serde(default)]
    pub providers: Option<Vec<String>>,
    #[schema(format = DateTime)]
    pub created_at: String,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TenantList {
    pub items: Vec<Tenant>,
}

/// Request to create a tenant.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TenantBody {
    pub name: String,
    #[serde(default)]
    #[schema(required = false)]
    pub quota: Quota,
}

/// Requested changes.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TenantChange {
    /// Replaces the whole quota.
    pub quota: Quota,
}

/// The providers that a tenant may use for new sandboxes and volumes.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TenantProviders {
    /// Names of providers.
    pub providers: Vec<String>,
}

/// Returns the current use and the quota of a tenant.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct UsageAnswer {
    pub usage: Usage,
    #[serde(deserialize_with = "quota_from_answer")]
    pub quota: Quota,
}

/// Current use of a tenant, counted like its quota.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Usage {
    pub sandboxes: u32,
    pub cpu: f64,
    pub memory_mib: u64,
    pub disk_mib: u64,
    pub volumes: u32,
    pub volume_mib: u64,
}

impl From<atoll_model::Quota> for Quota {
    fn from(quota: atoll_model::Quota) -> Self {
        Self {
            sandboxes: quota.sandboxes,
            cpu: quota.cpu_milli.map(cores),
            memory_mib: quota.memory_mib,
            disk_mib: quota.disk_mib,
            volumes: quota.volumes,
            volume_mib: quota.volume_mib,
        }
    }
}

/// Thousandths of a core as cores.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "exact far beyond any node")]
pub fn cores(milli: u64) -> f64 {
    milli as f64 / 1_000.0
}

/// Requests are strict; an answer of a newer server may hold more limits.
fn quota_from_answer<'de, D: Deserializer<'de>>(from: D) -> Result<Quota, D::Error> {
    const KNOWN: [&str; 6] = ["sandboxes", "cpu", "memory_mib", "disk_mib", "volumes", "volume_mib"];
    let mut quota = serde_json::Value::deserialize(from)?;
    keep_fields(&mut quota, &KNOWN);
    Quota::deserialize(quota).map_err(de::Error::custom)
}
