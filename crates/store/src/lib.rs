//! The durable record: trait Store and its SQLite form, hand-written SQL.
//!
//! A store keeps rows and answers queries about them. It never changes a phase by itself and never calls a provider.
//! Everything that must be consistent is one call: an insert checks quota, name and idempotency in its own transaction;
//! an advance is compare-and-set on `(id, generation)` and also writes the instance and the events.
//!
//! When a writing call returns `Ok`, the write is on disk.

#![warn(missing_docs, reason = "implementors of the trait read only these comments")]

mod builds;
mod config;
#[cfg(any(test, feature = "testing"))]
pub mod conformance;
mod error;
mod feed;
mod leases;
mod records;
mod sqlite;
mod templates;
mod threads;
mod vault;
mod volumes;

use async_trait::async_trait;
use atoll_model::{
    CreatorKey, EventKind, InstanceId, KeyId, Lease, NetworkPolicy, NodeName, PreviewId, Quota, SandboxEvent,
    SandboxId, Snapshot, SnapshotId, TenantId, Timestamp, Usage,
};
use tokio::sync::{oneshot, watch};

pub use builds::{BuildQuery, BuildStore};
pub use config::StoreConfig;
pub use error::{OpenError, SchemaWriter, StoreError};
pub use feed::{FeedChange, FeedEntry, FeedPage};
pub use leases::{LeaseQuery, SortBy, Span};
pub use records::{
    KeyRecord, Page, PreviewRecord, ResourceSample, SecretAbout, SecretChange, SecretRecord, SecretValues,
    TenantRecord, Terminal, TerminalSettings,
};
pub use sqlite::{
    DatabaseContents, SqliteStore, TaggedVersion, kept_objects, lease_generations, refuse_newer,
    reseal_snapshots,
};
pub use templates::{TemplateChange, TemplateRow, TemplateStore, VersionRow};
pub use threads::{ThreadQuery, ThreadRecord, ThreadStore};
pub use vault::{FileVault, Vault};
pub use volumes::VolumeStore;

/// The SHA-256 of a key's hex digits, or of a request.
pub type Hash = [u8; 32];

/// A new sandbox to store.
#[derive(Debug, Clone)]
pub struct NewLease {
    /// The whole lease, generation 1.
    pub lease: Lease,
    /// The caller's idempotency key with the hash of the request.
    pub idempotency: Option<(String, Hash)>,
}

/// The result of an insert.
#[derive(Debug, Clone, PartialEq)]
pub enum Inserted {
    /// The sandbox was stored.
    New,
    /// The same request was made before, and created this sandbox.
    Replayed(Box<Lease>),
    /// The thread of the request has this sandbox already.
    Bound(Box<Lease>),
}

/// The live instance of a sandbox, for adoption and for connections to its agent.
#[derive(Clone, PartialEq)]
pub struct InstanceRow {
    /// Its id.
    pub instance: InstanceId,
    /// Provider-specific data.
    pub facts: serde_json::Value,
    /// The agent's token; sealed on disk.
    pub agent_token: String,
}

impl std::fmt::Debug for InstanceRow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InstanceRow").field("instance", &self.instance).finish_non_exhaustive()
    }
}

/// The change of the instance row in an advance.
#[derive(Debug, Clone, PartialEq)]
pub enum InstanceChange {
    /// No change.
    Keep,
    /// The new instance; replaces an older one of the same sandbox.
    Put(InstanceRow),
    /// The processes continue in a new instance, which this row names: their terminals move with them.
    Restored(InstanceRow),
    /// The instance is gone, and its terminals with it.
    Drop,
}

/// The part of the quota that an advance must fit into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admit {
    /// None.
    Nothing,
    /// CPU and memory: a sandbox that uses none (stopped or paused on disk) starts.
    Compute,
    /// The new limits instead of the old ones.
    Resize,
    /// All of it: a queued sandbox, which counted as nothing, gets its place.
    Place,
}

/// A new event; the store assigns its number.
#[derive(Debug, Clone, PartialEq)]
pub struct NewEvent {
    /// Its time.
    pub at: Timestamp,
    /// Its instance.
    pub instance: Option<InstanceId>,
    /// Its kind.
    pub what: EventKind,
    /// The key of the request that caused it.
    pub by: Option<CreatorKey>,
}

/// A compare-and-set write of a lease with its related rows.
#[derive(Debug, Clone)]
pub struct Advance {
    /// The new lease; its generation is one more than the generation that it is based on.
    pub lease: Lease,
    /// The change of the instance row.
    pub instance: InstanceChange,
    /// The quota that it must fit into.
    pub admit: Admit,
    /// New events.
    pub events: Vec<NewEvent>,
}

/// A query for snapshots that can be used and do not belong to a fork under way.
#[derive(Debug, Clone, Default)]
pub struct SnapshotQuery {
    /// Of this tenant; `None`: of all.
    pub tenant: Option<TenantId>,
    /// Of this sandbox, which may be gone.
    pub sandbox: Option<SandboxId>,
    /// Of sandboxes that had exactly this name when the snapshot was taken.
    pub sandbox_name: Option<String>,
    /// With exactly this name.
    pub name: Option<String>,
    /// At most this many.
    pub limit: u32,
    /// The cursor of the previous page.
    pub cursor: Option<String>,
}

/// A query for events, oldest first.
#[derive(Debug, Clone, Default)]
pub struct EventQuery {
    /// Of this tenant; `None`: of all.
    pub tenant: Option<TenantId>,
    /// Of this sandbox; `None`: of all.
    pub sandbox: Option<SandboxId>,
    /// After this number.
    pub after_seq: u64,
    /// At most this many.
    pub limit: u32,
    /// Of more than `limit`, the newest instead of the oldest; the order is the same.
    pub newest: bool,
}

/// The rows that a sweep may remove.
#[derive(Debug, Clone, Copy)]
pub struct Sweep {
    /// Keep this many events; the oldest are removed first.
    pub events_kept: u64,
    /// Records of sandboxes that were deleted before this time. Transient threads without a sandbox are removed too.
    pub deleted_before_ms: i64,
    /// Idempotency keys that were used before this time.
    pub idempotency_before_ms: i64,
    /// Builds that were requested before this time and have ended.
    pub builds_before_ms: i64,
}

/// The store, as one node uses it; several nodes may share its rows. A call that changes a lease, snapshot, volume or
/// build of another node fails with [`StoreError::WrongNode`]. Implementations must pass [`conformance`].
#[async_trait]
pub trait Store: TemplateStore + VolumeStore + BuildStore + ThreadStore + Send + Sync + 'static {
    /// The node of this server.
    fn node(&self) -> &NodeName;

    /// All nodes that ever opened the store, by name.
    async fn nodes(&self) -> Result<Vec<NodeName>, StoreError>;

    /// Removes this node with its snapshots, volumes, builds and copies of templates; for the removal of a server whose
    /// sandboxes are deleted.
    async fn remove_node(&self) -> Result<(), StoreError>;

    /// Stores a new sandbox. Quota, name, thread and idempotency key are checked in the same transaction. A sandbox that names
    /// a thread becomes the thread's sandbox, unless the thread has one ([`Inserted::Bound`]) or belongs to another
    /// provider ([`StoreError::ThreadBound`]). A fork with memory has the shells of its parent, so it gets copies of the
    /// parent's terminals.
    async fn insert(&self, new: NewLease) -> Result<Inserted, StoreError> {
        self.insert_telling(new, oneshot::channel().0).await
    }

    /// The same for callers that can work in parallel: `accepted` is notified when the new row is in its transaction,
    /// shortly before it is on disk. Work that is started then must be undone if this returns an error.
    async fn insert_telling(
        &self,
        new: NewLease,
        accepted: oneshot::Sender<()>,
    ) -> Result<Inserted, StoreError>;

    /// The sandbox that was created with this idempotency key; [`StoreError::IdempotencyMismatch`] if the key was used
    /// with another request.
    async fn made_with(
        &self,
        tenant: &TenantId,
        key: &str,
        request: Hash,
    ) -> Result<Option<Lease>, StoreError>;

    /// Writes a lease if its stored generation is one less; [`StoreError::Stale`] otherwise.
    async fn advance(&self, change: Advance) -> Result<(), StoreError>;

    /// Writes an event that changes no lease.
    async fn record(&self, tenant: TenantId, sandbox: SandboxId, event: NewEvent) -> Result<(), StoreError>;

    /// A lease by its id, also of a deleted sandbox.
    async fn lease(&self, id: &SandboxId) -> Result<Option<Lease>, StoreError>;

    /// The lease with this id, else those with this name, else those whose id starts with the text. At most two are
    /// returned; deleted sandboxes and those of builds only by their whole id.
    async fn find(&self, tenant: Option<&TenantId>, ident: &str) -> Result<Vec<Lease>, StoreError>;

    /// Existing names, for hints.
    async fn names(&self, tenant: Option<&TenantId>, limit: u32) -> Result<Vec<String>, StoreError>;

    /// A page of leases in the requested order, stable during inserts; without those of builds.
    async fn list(&self, query: LeaseQuery) -> Result<Page<Lease>, StoreError>;

    /// Everything of this node that is not deleted, with its instance, for adoption.
    async fn live(&self) -> Result<Vec<(Lease, Option<InstanceRow>)>, StoreError>;

    /// Sandboxes of this node whose deadline has passed at this time, the longest overdue first.
    async fn due(&self, now_ms: i64, limit: u32) -> Result<Vec<SandboxId>, StoreError>;

    /// How many sandboxes of this node that are not deleted use a template; without those of builds.
    async fn template_users(&self, template: &str) -> Result<u64, StoreError>;

    /// The sandboxes that were forked from one, or created from its snapshots, oldest first; without deleted ones.
    async fn children(&self, parent: &SandboxId) -> Result<Vec<SandboxId>, StoreError>;

    /// The sandboxes bound to a thread of conversation, oldest first; without deleted ones.
    async fn of_thread(&self, tenant: Option<&TenantId>, thread: &str) -> Result<Vec<Lease>, StoreError>;

    /// The sandbox with this id, else those of the thread with this name, else those whose id starts with the text. At most
    /// two are returned, and no deleted ones.
    async fn find_session(
        &self,
        tenant: Option<&TenantId>,
        provider: Option<&str>,
        ident: &str,
    ) -> Result<Vec<Lease>, StoreError>;

    /// Records that this node's server ends in good order: each sandbox whose `on_exit` has to act is marked until
    /// [`Store::end_exits`].
    async fn begin_exits(&self) -> Result<(), StoreError>;

    /// The marked sandboxes of this node, oldest first.
    async fn pending_exits(&self) -> Result<Vec<SandboxId>, StoreError>;

    /// Removes the marks of these sandboxes.
    async fn end_exits(&self, sandboxes: Vec<SandboxId>) -> Result<(), StoreError>;

    /// Stores a snapshot, or replaces its row, including its token. [`StoreError::SnapshotNameTaken`] if another
    /// snapshot of its sandbox that is not being deleted has the name, or for a tenant-wide name one of its tenant; [`StoreError::Quota`] if the tenant has the
    /// maximal number.
    async fn put_snapshot(&self, snapshot: Snapshot, agent_token: Option<String>) -> Result<(), StoreError>;

    /// A snapshot by its id, in any state, with the token of its processes.
    async fn snapshot(&self, id: &SnapshotId) -> Result<Option<(Snapshot, Option<String>)>, StoreError>;

    /// The snapshot with this id, in any state; else the one with this tenant-wide name, else those of any sandbox with this
    /// name, else those whose id starts with the text, if
    /// they are ready and not transient. At most two are returned.
    async fn find_snapshot(
        &self,
        tenant: Option<&TenantId>,
        ident: &str,
    ) -> Result<Vec<Snapshot>, StoreError>;

    /// A page of snapshots, newest first, stable during inserts.
    async fn snapshots(&self, query: SnapshotQuery) -> Result<Page<Snapshot>, StoreError>;

    /// All snapshots of this node in every state, oldest first, for adoption.
    async fn all_snapshots(&self) -> Result<Vec<Snapshot>, StoreError>;

    /// Gives a name to a snapshot; another snapshot of its sandbox that has it loses it, or for a tenant-wide name one of its
    /// tenant, on whichever node it is. Returns
    /// the renamed snapshot, or `None` if it does not exist.
    async fn move_snapshot_name(&self, id: &SnapshotId, name: &str) -> Result<Option<Snapshot>, StoreError>;

    /// Removes a snapshot; returns whether it existed.
    async fn delete_snapshot(&self, id: &SnapshotId) -> Result<bool, StoreError>;

    /// Stores a tenant; [`StoreError::Exists`] if the name is taken.
    async fn put_tenant(&self, tenant: TenantRecord) -> Result<(), StoreError>;

    /// A tenant by id or name.
    async fn tenant(&self, ident: &str) -> Result<Option<TenantRecord>, StoreError>;

    /// All tenants, by name.
    async fn tenants(&self) -> Result<Vec<TenantRecord>, StoreError>;

    /// Changes the quota of a tenant; it applies from the next insert on.
    async fn set_quota(&self, tenant: &TenantId, quota: Quota) -> Result<(), StoreError>;

    /// Changes the network policy of a tenant; the caller applies it to live sandboxes.
    async fn set_tenant_network(
        &self,
        tenant: &TenantId,
        network: Option<NetworkPolicy>,
    ) -> Result<(), StoreError>;

    /// Changes the list of providers that a tenant may use; `None` removes it.
    async fn set_tenant_providers(
        &self,
        tenant: &TenantId,
        providers: Option<Vec<String>>,
    ) -> Result<(), StoreError>;

    /// Stores a secret, sealed; [`StoreError::Exists`] if the tenant has one of that name,
    /// [`StoreError::TooManySecrets`] if it has `most` already.
    async fn put_secret(
        &self,
        tenant: &TenantId,
        secret: SecretRecord,
        value: String,
        most: u32,
    ) -> Result<(), StoreError>;

    /// Changes a secret; a new value increases its version. `None` if there is no secret of that name.
    async fn change_secret(
        &self,
        tenant: &TenantId,
        name: &str,
        change: SecretChange,
        at_ms: i64,
    ) -> Result<Option<SecretRecord>, StoreError>;

    /// Removes a secret; returns whether it existed.
    async fn delete_secret(&self, tenant: &TenantId, name: &str) -> Result<bool, StoreError>;

    /// The secrets of a tenant by name, without their values.
    async fn secrets(&self, tenant: &TenantId) -> Result<Vec<SecretRecord>, StoreError>;

    /// The values of a tenant's secrets, to be used outside of sandboxes.
    async fn secret_values(&self, tenant: &TenantId) -> Result<SecretValues, StoreError>;

    /// Seals a text for a tenant; it can be opened only for that tenant.
    fn seal_text(&self, tenant: &TenantId, text: &str) -> Result<String, StoreError>;

    /// Opens a text that was sealed for a tenant.
    fn unseal_text(&self, tenant: &TenantId, sealed: &str) -> Result<String, StoreError>;

    /// A key for one purpose and one object, derived from this server's secret: always the same, and useless for
    /// finding another.
    fn derive(&self, purpose: &str, id: &str) -> [u8; 32];

    /// The current usage of a tenant.
    async fn usage(&self, tenant: &TenantId) -> Result<Usage, StoreError>;

    /// Stores a key by the hash of its secret. For a key that a user key created: [`StoreError::NoKey`] if that key is gone,
    /// [`StoreError::TooManyKeys`] if the tenant has `most` such keys already.
    async fn put_key(&self, key: KeyRecord, hash: Hash, most: u32) -> Result<(), StoreError>;

    /// The key with this hash, with the stored hash.
    async fn key(&self, hash: Hash) -> Result<Option<(KeyRecord, Hash)>, StoreError>;

    /// The keys of a tenant, or all keys.
    async fn keys(&self, tenant: Option<&TenantId>) -> Result<Vec<KeyRecord>, StoreError>;

    /// Removes a key and every key that was created with it, directly or through others; returns the removed ones.
    /// [`StoreError::LastAdminKey`] if no other key has the admin scope.
    async fn delete_key(&self, id: &KeyId) -> Result<Vec<KeyId>, StoreError>;

    /// Stores the times at which keys were last used.
    async fn touch_keys(&self, used: Vec<(KeyId, i64)>) -> Result<(), StoreError>;

    /// Binds a terminal to its thread in the instance that the sandbox has in this transaction; the instance of the
    /// argument is not used. If the thread already has a terminal in that instance, that one is returned.
    /// [`StoreError::TooManyTerminals`] if the instance has `most` already, [`StoreError::NoInstance`] if the sandbox has
    /// no instance.
    async fn put_terminal(&self, terminal: Terminal, most: u32) -> Result<Terminal, StoreError>;

    /// Writes the shell and the settings of a terminal, if its shell is still the one with this pid; says whether it was.
    async fn update_terminal(
        &self,
        terminal: Terminal,
        expected_pid: Option<u32>,
    ) -> Result<bool, StoreError>;

    /// The terminals of the instance that a sandbox has now, oldest first.
    async fn terminals(&self, sandbox: &SandboxId) -> Result<Vec<Terminal>, StoreError>;

    /// Removes a terminal; returns whether it existed.
    async fn delete_terminal(&self, sandbox: &SandboxId, id: &str) -> Result<bool, StoreError>;

    /// Removes a terminal whose shell was not noted yet; returns whether it did.
    async fn delete_unstarted_terminal(&self, sandbox: &SandboxId, id: &str) -> Result<bool, StoreError>;

    /// Stores a preview with the hash of its token (a random hash for a public preview), and removes expired previews
    /// of the same sandbox. [`StoreError::TooManyPreviews`] if it then has `most` open ones.
    async fn put_preview(&self, preview: PreviewRecord, hash: Hash, most: u32) -> Result<(), StoreError>;

    /// The previews of a sandbox with their hashes, oldest first, including expired ones.
    async fn previews(&self, sandbox: &SandboxId) -> Result<Vec<(PreviewRecord, Hash)>, StoreError>;

    /// Whether there is a preview with this id.
    async fn has_preview(&self, id: &PreviewId) -> Result<bool, StoreError>;

    /// Removes a preview; returns whether it existed.
    async fn delete_preview(&self, sandbox: &SandboxId, id: &PreviewId) -> Result<bool, StoreError>;

    /// Stores samples, at most `keep` per sandbox; samples of unknown sandboxes are dropped.
    async fn put_samples(
        &self,
        samples: Vec<(SandboxId, ResourceSample)>,
        keep: u32,
    ) -> Result<(), StoreError>;

    /// The newest samples at or after a time, oldest first.
    async fn samples(
        &self,
        sandbox: &SandboxId,
        since_ms: i64,
        limit: u32,
    ) -> Result<Vec<ResourceSample>, StoreError>;

    /// Events after a number, oldest first; those of a build's sandbox only if requested by its id. The order of
    /// returned events never changes.
    async fn events(&self, query: EventQuery) -> Result<Vec<SandboxEvent>, StoreError>;

    /// The number of the newest event; changes with every new event.
    fn event_head(&self) -> watch::Receiver<u64>;

    /// The changes after a revision, of all nodes.
    async fn changes(&self, after: u64) -> Result<FeedPage, StoreError>;

    /// The revision of the newest change. It rises within a fraction of a second, whichever node made the change.
    fn change_head(&self) -> watch::Receiver<u64>;

    /// Removes old rows.
    async fn sweep(&self, sweep: Sweep) -> Result<(), StoreError>;

    /// Checks that reads and writes work.
    async fn ping(&self) -> Result<(), StoreError>;

    /// Closes the store cleanly; later calls fail.
    async fn close(&self);
}
