//! Callers: tenants, the scope of their keys, their quotas.

use serde::{Deserialize, Serialize};

use crate::{KeyId, TenantId};

/// The permissions of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Everything of every tenant, and also keys and tenants.
    Admin,
    /// The objects of its own tenant.
    User,
}

/// An authenticated caller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Principal {
    /// The presented key.
    pub key: KeyId,
    /// Its tenant.
    pub tenant: TenantId,
    pub scope: Scope,
}

/// The most that a tenant may hold at once; `None` is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Quota {
    /// Sandboxes that are not deleted.
    pub sandboxes: Option<u32>,
    /// Thousandths of a core of sandboxes that run or are about to run.
    pub cpu_milli: Option<u64>,
    /// MiB of memory of sandboxes that run or are about to run.
    pub memory_mib: Option<u64>,
    /// MiB of disk: the limits of sandboxes that are not deleted, and the content of snapshots and uploads.
    pub disk_mib: Option<u64>,
    /// Volumes.
    #[serde(default)]
    pub volumes: Option<u32>,
    /// MiB that volumes may hold together.
    #[serde(default)]
    pub volume_mib: Option<u64>,
}

/// What a tenant holds now, counted as in [`Quota`].
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
