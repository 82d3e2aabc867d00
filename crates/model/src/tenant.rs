//! Who asks: tenants, the scope of their keys, what they may use.

use serde::{Deserialize, Serialize};

use crate::{KeyId, TenantId};

/// What a key may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Everything of every tenant, keys and tenants too.
    Admin,
    /// The things of its own tenant.
    User,
}

/// An authenticated caller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Principal {
    /// The key that was shown.
    pub key: KeyId,
    /// Its tenant.
    pub tenant: TenantId,
    /// What it may do.
    pub scope: Scope,
}

/// The most a tenant may hold at once; `None` is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Quota {
    /// Sandboxes that are not deleted.
    pub sandboxes: Option<u32>,
    /// Thousandths of a core of sandboxes that run or are about to.
    pub cpu_milli: Option<u64>,
    /// MiB of memory of sandboxes that run or are about to.
    pub memory_mib: Option<u64>,
    /// MiB of disk: the limits of sandboxes that are not deleted, and what snapshots and uploads hold.
    pub disk_mib: Option<u64>,
    /// Volumes.
    #[serde(default)]
    pub volumes: Option<u32>,
    /// MiB that volumes may hold together.
    #[serde(default)]
    pub volume_mib: Option<u64>,
}

/// What a tenant holds now, counted as [`Quota`] counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Sandboxes that are not deleted.
    pub sandboxes: u32,
    /// Thousandths of a core.
    pub cpu_milli: u64,
    /// MiB.
    pub memory_mib: u64,
    /// MiB.
    pub disk_mib: u64,
    /// Volumes.
    #[serde(default)]
    pub volumes: u32,
    /// MiB.
    #[serde(default)]
    pub volume_mib: u64,
}
