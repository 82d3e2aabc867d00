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
    /// The same, except what gives rights on the machine of the server: sandboxes without isolation, and folders of the host.
    /// The scope of members of the machine's group `atoll`, and of the keys that they create.
    Member,
}

/// An authenticated caller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Principal {
    /// The presented key.
    pub key: KeyId,
    /// The name of the key.
    #[serde(default)]
    pub key_name: Option<String>,
    /// Its tenant.
    pub tenant: TenantId,
    pub scope: Scope,
}

/// LIMIT: characters in the name of a key; every sandbox that is created with it stores the name.
pub const KEY_NAME_MAX: usize = 200;

/// The key that created a sandbox or caused an event. It is a copy: it stays when the key is deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreatorKey {
    pub id: KeyId,
    /// The name of the key.
    pub name: Option<String>,
}

impl Principal {
    /// The caller's key as the author of a change to an object of `tenant`. A tenant does not see keys of another one: `None` if an
    /// admin key creates something for another tenant.
    #[must_use]
    pub fn as_creator(&self, tenant: &TenantId) -> Option<CreatorKey> {
        let name = self.key_name.as_ref().map(|name| name.chars().take(KEY_NAME_MAX).collect());
        (self.tenant == *tenant).then(|| CreatorKey { id: self.key.clone(), name })
    }
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
