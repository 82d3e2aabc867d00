//! Rows in the form that other crates use. Plain data.

use std::collections::BTreeMap;

use atoll_model::{
    InstanceId, KeyId, Limits, NetworkPolicy, PreviewId, Quota, SandboxId, Scope, SecretId, TenantId,
};
use serde::{Deserialize, Serialize};

/// A key in a list; without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyRecord {
    /// Identifies the key without revealing it.
    pub id: KeyId,
    /// Its tenant.
    pub tenant: TenantId,
    /// Its permissions.
    pub scope: Scope,
    /// A label for people.
    pub name: Option<String>,
    /// The user key that created this key, which ends together with it. `None`: the server or an admin key created it.
    pub created_by: Option<KeyId>,
    /// Milliseconds since the Unix epoch.
    pub created_at_ms: i64,
    /// Milliseconds since the Unix epoch, at most a minute late.
    pub last_used_at_ms: Option<i64>,
}

/// A tenant and its quota.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantRecord {
    /// Its id.
    pub id: TenantId,
    /// Its name, unique on this server.
    pub name: String,
    /// Its quota.
    pub quota: Quota,
    /// The policy that restricts all its sandboxes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkPolicy>,
    /// The providers that it may use; `None`: the default rule of the service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub providers: Option<Vec<String>>,
    /// Milliseconds since the Unix epoch.
    pub created_at_ms: i64,
}

/// A secret in a list; without its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretRecord {
    /// Unique within its tenant.
    pub name: String,
    /// Milliseconds since the Unix epoch.
    pub created_at_ms: i64,
    /// When its value was last replaced, in milliseconds since the Unix epoch.
    pub rotated_at_ms: Option<i64>,
    /// Its id, which never changes.
    pub id: SecretId,
    /// Counts its values.
    pub version: u32,
    /// When it last changed, in milliseconds since the Unix epoch.
    pub changed_at_ms: i64,
    /// Its description.
    pub about: SecretAbout,
    /// How many sandboxes use it; counted by the service.
    pub used_by: u32,
}

/// The description of a secret.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SecretAbout {
    /// A text for people.
    pub description: Option<String>,
    /// The hosts that it is meant for.
    pub hosts: Vec<String>,
    /// Further data.
    pub metadata: BTreeMap<String, String>,
}

/// A change of a secret; `None` leaves a field unchanged.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct SecretChange {
    /// The new value.
    pub value: Option<String>,
    /// The new description.
    pub about: Option<SecretAbout>,
}

impl std::fmt::Debug for SecretChange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SecretChange").field("about", &self.about).finish_non_exhaustive()
    }
}

/// The secrets of a tenant, unsealed. Never shown or stored.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct SecretValues(BTreeMap<String, String>);

impl SecretValues {
    /// Wraps these values.
    #[must_use]
    pub fn new(values: BTreeMap<String, String>) -> Self {
        Self(values)
    }

    /// The value of a secret.
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
    /// Its sandbox.
    pub sandbox: SandboxId,
    /// Its instance; the terminal ends with it.
    pub instance: InstanceId,
    /// The thread of conversation.
    pub thread: String,
    /// The shell's pid in the sandbox; `None`: the shell was not started, or its pid not noted. A client that attaches
    /// finds or starts it.
    pub pid: Option<u32>,
    /// Milliseconds since the Unix epoch.
    pub created_at_ms: i64,
    /// How its shell is started, and its size.
    pub settings: TerminalSettings,
}

/// How the shell of a terminal is started, and how large the terminal is now.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TerminalSettings {
    /// Columns; 0 where a row of an older server does not say.
    pub cols: u16,
    /// Rows; 0 where a row of an older server does not say.
    pub rows: u16,
    /// The shell; `None`: bash, or sh where there is no bash.
    pub shell: Option<Vec<String>>,
    /// The folder in which it starts, as an absolute path once it has started.
    pub cwd: Option<String>,
    /// On top of the sandbox's environment.
    pub env: BTreeMap<String, String>,
    /// As whom it runs.
    pub user: Option<String>,
    /// The shell starts when the first client attaches.
    pub lazy: bool,
    /// In a fork: the id of the terminal of the parent for which the shell was started. Its tag names that terminal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<String>,
}

/// A preview of one port of a sandbox; without its token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreviewRecord {
    /// Its id.
    pub id: PreviewId,
    /// Its sandbox.
    pub sandbox: SandboxId,
    /// The port in the sandbox.
    pub port: u16,
    /// Whether it is accessible without a token.
    pub public: bool,
    /// Milliseconds since the Unix epoch.
    pub created_at_ms: i64,
    /// Milliseconds since the Unix epoch; `None`: until it is removed.
    pub expires_at_ms: Option<i64>,
}

/// The resource use of a sandbox at one time: one row of `lease_resource_snapshots`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ResourceSample {
    /// Milliseconds since the Unix epoch.
    pub at_ms: i64,
    /// CPU time since the instance's start.
    pub cpu_us: u64,
    /// CPU use since the previous sample; 100 is one core.
    pub cpu_pct: f64,
    /// Memory charged to it, including page cache.
    pub memory_bytes: u64,
    /// The part of it that is reclaimable page cache.
    pub cache_bytes: u64,
    /// Processes and threads.
    pub pids: u32,
    /// Bytes in its own layer; `None`: its provider does not measure it.
    #[serde(default)]
    pub disk_bytes: Option<u64>,
    /// Kilobits per second that left it over the network since the previous sample; `None`: there was none, or its
    /// provider does not measure it.
    #[serde(default)]
    pub sent_kbps: Option<f64>,
    /// Kilobits per second that reached it over the network since the previous sample; `None` as above.
    #[serde(default)]
    pub received_kbps: Option<f64>,
    /// Bytes that reached it over the network since the instance's start; `None`: its provider does not measure it.
    #[serde(default)]
    pub received_bytes: Option<u64>,
    /// Bytes that left it over the network since the instance's start; `None`: its provider does not measure it.
    #[serde(default)]
    pub sent_bytes: Option<u64>,
    /// Its limits.
    pub limits: Limits,
}

/// One page of a list, newest first.
#[derive(Debug, Clone, PartialEq)]
pub struct Page<T> {
    /// The rows.
    pub items: Vec<T>,
    /// The cursor of the next page; `None`: this was the last one.
    pub next_cursor: Option<String>,
}
