//! Rows as the rest of the house sees them. Plain data.

use std::collections::BTreeMap;

use atoll_model::{
    InstanceId, KeyId, Limits, NetworkPolicy, PreviewId, Quota, SandboxId, Scope, SecretId, TenantId,
};
use serde::{Deserialize, Serialize};

/// A key as it is listed; the secret is not part of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyRecord {
    /// Names the key without being it.
    pub id: KeyId,
    /// Whose.
    pub tenant: TenantId,
    /// What it may do.
    pub scope: Scope,
    /// For people.
    pub name: Option<String>,
    /// Milliseconds since the Unix epoch.
    pub created_at_ms: i64,
    /// Milliseconds since the Unix epoch, a minute late at most.
    pub last_used_at_ms: Option<i64>,
}

/// A tenant and what it may hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantRecord {
    /// Its id.
    pub id: TenantId,
    /// Its name, unique on this server.
    pub name: String,
    /// What it may hold.
    pub quota: Quota,
    /// What narrows all of its sandboxes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkPolicy>,
    /// Milliseconds since the Unix epoch.
    pub created_at_ms: i64,
}

/// A secret as it is listed; its value is not part of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretRecord {
    /// Unique within its tenant.
    pub name: String,
    /// Milliseconds since the Unix epoch.
    pub created_at_ms: i64,
    /// When its value was last replaced, in milliseconds since the Unix epoch.
    pub rotated_at_ms: Option<i64>,
    /// Its id, which stays whatever changes.
    pub id: SecretId,
    /// Counts its values.
    pub version: u32,
    /// When anything of it last changed, in milliseconds since the Unix epoch.
    pub changed_at_ms: i64,
    /// What is said of it.
    pub about: SecretAbout,
    /// How many sandboxes use it; counted by the service.
    pub used_by: u32,
}

/// What people and fronts say of a secret.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SecretAbout {
    /// For people.
    pub description: Option<String>,
    /// Where it is meant to be sent.
    pub hosts: Vec<String>,
    /// Whatever else.
    pub metadata: BTreeMap<String, String>,
}

/// What changes in a secret; `None` leaves a thing as it is.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct SecretChange {
    /// Its value.
    pub value: Option<String>,
    /// All that is said of it.
    pub about: Option<SecretAbout>,
}

impl std::fmt::Debug for SecretChange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SecretChange").field("about", &self.about).finish_non_exhaustive()
    }
}

/// The secrets of a tenant, opened. Never shown, never written down.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct SecretValues(BTreeMap<String, String>);

impl SecretValues {
    /// These.
    #[must_use]
    pub fn new(values: BTreeMap<String, String>) -> Self {
        Self(values)
    }

    /// The value of one.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

impl std::fmt::Debug for SecretValues {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SecretValues({} of them)", self.0.len())
    }
}

/// A shell bound to a thread of conversation: one row of `abstract_terminals`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terminal {
    /// Its id.
    pub id: String,
    /// Whose.
    pub sandbox: SandboxId,
    /// In which incarnation; a terminal ends with it.
    pub instance: InstanceId,
    /// The thread of conversation.
    pub thread: String,
    /// The shell's pid inside.
    pub pid: u32,
    /// Milliseconds since the Unix epoch.
    pub created_at_ms: i64,
}

/// A way to one port of a sandbox that was opened for others; the token is not part of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreviewRecord {
    /// Its id.
    pub id: PreviewId,
    /// Of which sandbox.
    pub sandbox: SandboxId,
    /// To which port inside.
    pub port: u16,
    /// Whether everybody may use it, without a token.
    pub public: bool,
    /// Milliseconds since the Unix epoch.
    pub created_at_ms: i64,
    /// Milliseconds since the Unix epoch; `None`: until it is removed.
    pub expires_at_ms: Option<i64>,
}

/// What a sandbox used at a moment: one row of `lease_resource_snapshots`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ResourceSample {
    /// Milliseconds since the Unix epoch.
    pub at_ms: i64,
    /// CPU time since the instance's start.
    pub cpu_us: u64,
    /// Of one core = 100, since the sample before.
    pub cpu_pct: f64,
    /// Memory charged to it, page cache included.
    pub memory_bytes: u64,
    /// Of that, page cache that can be dropped.
    pub cache_bytes: u64,
    /// Processes and threads.
    pub pids: u32,
    /// Bytes in its own layer.
    pub disk_bytes: u64,
    /// What it may use.
    pub limits: Limits,
}

/// One page of a list, newest first.
#[derive(Debug, Clone, PartialEq)]
pub struct Page<T> {
    /// The things.
    pub items: Vec<T>,
    /// Hand this in for the next page; `None`: that was all.
    pub next_cursor: Option<String>,
}
