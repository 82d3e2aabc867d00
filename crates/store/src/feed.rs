//! The feed of changes that several nodes have in their caches. Each entry has a revision of the database, taken in the
//! transaction of the change itself, so the order of entries is the order of commits, whichever node made them.

use atoll_model::{KeyId, NodeName, PreviewId, SandboxId, TenantId};
use serde::{Deserialize, Serialize};

/// What changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum FeedChange {
    /// A key was deleted.
    KeyDeleted {
        /// The key.
        key: KeyId,
    },
    /// The previews of a sandbox changed.
    Previews {
        /// The sandbox.
        sandbox: SandboxId,
        /// The preview that was deleted.
        deleted: Option<PreviewId>,
    },
    /// The network policy of a tenant changed.
    TenantNetwork {
        /// The tenant.
        tenant: TenantId,
    },
    /// The list of providers that a tenant may use changed.
    TenantProviders {
        /// The tenant.
        tenant: TenantId,
    },
    /// A secret has another value or description.
    Secret {
        /// Its tenant.
        tenant: TenantId,
        /// Its name.
        name: String,
    },
    /// Names, tags or versions of templates changed.
    Templates,
    /// A kind that this release does not know: a newer node wrote it.
    #[serde(other)]
    Unknown,
}

/// One change of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedEntry {
    /// Its place in the order of all changes.
    pub revision: u64,
    /// The node that made it.
    pub node: NodeName,
    /// What changed.
    pub change: FeedChange,
}

/// The changes after a revision.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FeedPage {
    /// Oldest first.
    pub entries: Vec<FeedEntry>,
    /// Entries after the revision were removed before they were read: anything may have changed.
    pub has_gap: bool,
}
