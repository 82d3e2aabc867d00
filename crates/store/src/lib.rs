//! The durable record: trait Store and its SQLite form, hand-written SQL.
//!
//! A store keeps rows and answers questions about them. It never changes a phase by itself and never talks to a
//! provider. What must hold together is one call: an insert checks quota, name and idempotency in its own
//! transaction; an advance is compare-and-set on `(id, generation)` and writes the instance and the events with it.
//!
//! When a writing call returns `Ok`, the write is on disk.

#![warn(missing_docs, reason = "implementors of the trait read only these comments")]

mod builds;
#[cfg(any(test, feature = "testing"))]
pub mod conformance;
mod error;
mod leases;
mod records;
mod seal;
mod sqlite;
mod templates;
mod volumes;

use async_trait::async_trait;
use atoll_model::{
    EventKind, InstanceId, KeyId, Lease, NetworkPolicy, PreviewId, Quota, SandboxEvent, SandboxId, Snapshot,
    SnapshotId, TenantId, Timestamp, Usage,
};
use tokio::sync::{oneshot, watch};

pub use builds::{BuildQuery, BuildStore};
pub use error::{OpenError, StoreError};
pub use leases::{LeaseQuery, SortBy, Span};
pub use records::{
    KeyRecord, Page, PreviewRecord, ResourceSample, SecretAbout, SecretChange, SecretRecord, SecretValues,
    TenantRecord, Terminal,
};
pub use sqlite::SqliteStore;
pub use templates::{TemplateChange, TemplateRow, TemplateStore, VersionRow};
pub use volumes::VolumeStore;

/// The SHA-256 of a key's hex digits, or of a request.
pub type Hash = [u8; 32];

/// A sandbox to be remembered for the first time.
#[derive(Debug, Clone)]
pub struct NewLease {
    /// The whole lease, generation 1.
    pub lease: Lease,
    /// The caller's idempotency key with the hash of the request.
    pub idempotency: Option<(String, Hash)>,
}

/// What an insert did.
#[derive(Debug, Clone, PartialEq)]
pub enum Inserted {
    /// It is there.
    New,
    /// The same request was answered before, with this sandbox.
    Replayed(Box<Lease>),
}

/// What a sandbox's live instance is, for adoption and for talking to its agent.
#[derive(Clone, PartialEq)]
pub struct InstanceRow {
    /// Which.
    pub instance: InstanceId,
    /// What only the provider understands.
    pub facts: serde_json::Value,
    /// The agent's token; sealed on disk.
    pub agent_token: String,
}

impl std::fmt::Debug for InstanceRow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InstanceRow").field("instance", &self.instance).finish_non_exhaustive()
    }
}

/// What happens to the instance row with an advance.
#[derive(Debug, Clone, PartialEq)]
pub enum InstanceChange {
    /// Nothing.
    Keep,
    /// It is there now; replaces an older one of the same sandbox.
    Put(InstanceRow),
    /// Its processes run again in a new instance, which this row names: the terminals are theirs and move with them.
    Restored(InstanceRow),
    /// It is gone, and its terminals with it.
    Drop,
}

/// Which part of the quota an advance must fit into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admit {
    /// None.
    Nothing,
    /// CPU and memory: a sandbox that has none of them, stopped or paused on disk, starts.
    Compute,
    /// The new limits in place of the old.
    Resize,
}

/// An event to be written; the store numbers it.
#[derive(Debug, Clone, PartialEq)]
pub struct NewEvent {
    /// When.
    pub at: Timestamp,
    /// In which incarnation.
    pub instance: Option<InstanceId>,
    /// What.
    pub what: EventKind,
}

/// A compare-and-set write of a lease with what belongs to it.
#[derive(Debug, Clone)]
pub struct Advance {
    /// The lease as it shall be; its generation is one more than the one seen.
    pub lease: Lease,
    /// What happens to the instance row.
    pub instance: InstanceChange,
    /// Which quota it must fit into.
    pub admit: Admit,
    /// What to tell the listeners.
    pub events: Vec<NewEvent>,
}

/// Which snapshots to list: those that can be used and are not of a fork under way.
#[derive(Debug, Clone, Default)]
pub struct SnapshotQuery {
    /// Of this tenant; `None`: of all.
    pub tenant: Option<TenantId>,
    /// Of this sandbox, which may be gone.
    pub sandbox: Option<SandboxId>,
    /// With exactly this name.
    pub name: Option<String>,
    /// At most this many.
    pub limit: u32,
    /// Where the page before ended.
    pub cursor: Option<String>,
}

/// Which events to read, oldest first.
#[derive(Debug, Clone, Default)]
pub struct EventQuery {
    /// Of this tenant; `None`: of all.
    pub tenant: Option<TenantId>,
    /// Of this sandbox; `None`: of all.
    pub sandbox: Option<SandboxId>,
    /// Only later ones.
    pub after_seq: u64,
    /// At most this many.
    pub limit: u32,
}

/// What may be forgotten.
#[derive(Debug, Clone, Copy)]
pub struct Sweep {
    /// Events beyond this many, the oldest first.
    pub events_kept: u64,
    /// Records of sandboxes deleted before.
    pub deleted_before_ms: i64,
    /// Idempotency keys used before.
    pub idempotency_before_ms: i64,
    /// Builds that were asked for before and have ended.
    pub builds_before_ms: i64,
}

/// Keeps the record. Implementers: pass [`conformance`].
#[async_trait]
pub trait Store: TemplateStore + VolumeStore + BuildStore + Send + Sync + 'static {
    /// Remembers a new sandbox, after quota, name and idempotency key were checked in the same transaction.
    async fn insert(&self, new: NewLease) -> Result<Inserted, StoreError> {
        self.insert_telling(new, oneshot::channel().0).await
    }

    /// The same for whoever has something to do meanwhile: `accepted` is told when the new row stands in its transaction, a
    /// moment before the disk has it. What is begun then must be undone if this ends in an error.
    async fn insert_telling(
        &self,
        new: NewLease,
        accepted: oneshot::Sender<()>,
    ) -> Result<Inserted, StoreError>;

    /// The sandbox that was made with this idempotency key, if it was used; [`StoreError::IdempotencyMismatch`] when it
    /// was used with another request.
    async fn made_with(
        &self,
        tenant: &TenantId,
        key: &str,
        request: Hash,
    ) -> Result<Option<Lease>, StoreError>;

    /// Writes a lease if nobody else did since generation − 1; [`StoreError::Stale`] otherwise.
    async fn advance(&self, change: Advance) -> Result<(), StoreError>;

    /// Writes an event that changes no lease.
    async fn record(&self, tenant: TenantId, sandbox: SandboxId, event: NewEvent) -> Result<(), StoreError>;

    /// One lease by its id, deleted ones too.
    async fn lease(&self, id: &SandboxId) -> Result<Option<Lease>, StoreError>;

    /// What a word may mean: the lease with that id, else the ones with that name, else those whose id starts so.
    /// Two at most are returned; deleted ones and those of builds only by whole id.
    async fn find(&self, tenant: Option<&TenantId>, ident: &str) -> Result<Vec<Lease>, StoreError>;

    /// Names that people may have meant, for hints.
    async fn names(&self, tenant: Option<&TenantId>, limit: u32) -> Result<Vec<String>, StoreError>;

    /// A page of leases in the order asked for, stable while others are inserted; those of builds left out.
    async fn list(&self, query: LeaseQuery) -> Result<Page<Lease>, StoreError>;

    /// Everything that is not deleted, with its instance, for adoption.
    async fn live(&self) -> Result<Vec<(Lease, Option<InstanceRow>)>, StoreError>;

    /// How many sandboxes that are not deleted were made from a template; those of builds left out.
    async fn template_users(&self, template: &str) -> Result<u64, StoreError>;

    /// The sandboxes that were forked from one, or made from its snapshots, oldest first; deleted ones left out.
    async fn children(&self, parent: &SandboxId) -> Result<Vec<SandboxId>, StoreError>;

    /// The sandboxes bound to a thread of conversation, oldest first; deleted ones left out.
    async fn of_thread(&self, tenant: Option<&TenantId>, thread: &str) -> Result<Vec<Lease>, StoreError>;

    /// Remembers a snapshot, or replaces what is known of it, token included. [`StoreError::SnapshotNameTaken`] when another
    /// of its tenant that is not being deleted has the name; [`StoreError::Quota`] when the tenant has as many as it may.
    async fn put_snapshot(&self, snapshot: Snapshot, agent_token: Option<String>) -> Result<(), StoreError>;

    /// One snapshot by its id in whatever state, with the token that its processes know.
    async fn snapshot(&self, id: &SnapshotId) -> Result<Option<(Snapshot, Option<String>)>, StoreError>;

    /// What a word may mean: the snapshot with that id, in whatever state; else those with that name, else those whose id
    /// starts so, which are ready and not transient. Two at most are returned.
    async fn find_snapshot(
        &self,
        tenant: Option<&TenantId>,
        ident: &str,
    ) -> Result<Vec<Snapshot>, StoreError>;

    /// A page of snapshots, newest first, stable while others are made.
    async fn snapshots(&self, query: SnapshotQuery) -> Result<Page<Snapshot>, StoreError>;

    /// All of them in every state, oldest first, for adoption.
    async fn all_snapshots(&self) -> Result<Vec<Snapshot>, StoreError>;

    /// Forgets a snapshot; says whether it was there.
    async fn delete_snapshot(&self, id: &SnapshotId) -> Result<bool, StoreError>;

    /// Makes a tenant; [`StoreError::Exists`] when the name is taken.
    async fn put_tenant(&self, tenant: TenantRecord) -> Result<(), StoreError>;

    /// A tenant by id or name.
    async fn tenant(&self, ident: &str) -> Result<Option<TenantRecord>, StoreError>;

    /// All tenants, by name.
    async fn tenants(&self) -> Result<Vec<TenantRecord>, StoreError>;

    /// Changes what a tenant may hold; holds from the next insert on.
    async fn set_quota(&self, tenant: &TenantId, quota: Quota) -> Result<(), StoreError>;

    /// Changes what narrows a tenant's sandboxes; whoever calls it sees to those that live.
    async fn set_tenant_network(
        &self,
        tenant: &TenantId,
        network: Option<NetworkPolicy>,
    ) -> Result<(), StoreError>;

    /// Keeps a secret, sealed; [`StoreError::Exists`] when the tenant has one of that name,
    /// [`StoreError::TooManySecrets`] when it has `most` already.
    async fn put_secret(
        &self,
        tenant: &TenantId,
        secret: SecretRecord,
        value: String,
        most: u32,
    ) -> Result<(), StoreError>;

    /// Changes a secret; with a new value its version counts up. `None` when there is none of that name.
    async fn change_secret(
        &self,
        tenant: &TenantId,
        name: &str,
        change: SecretChange,
        at_ms: i64,
    ) -> Result<Option<SecretRecord>, StoreError>;

    /// Forgets a secret; says whether it was there.
    async fn delete_secret(&self, tenant: &TenantId, name: &str) -> Result<bool, StoreError>;

    /// The secrets of a tenant by name, without their values.
    async fn secrets(&self, tenant: &TenantId) -> Result<Vec<SecretRecord>, StoreError>;

    /// The values of a tenant's secrets, to be used outside of sandboxes.
    async fn secret_values(&self, tenant: &TenantId) -> Result<SecretValues, StoreError>;

    /// Seals a text for a tenant; it opens for nobody else.
    fn seal_text(&self, tenant: &TenantId, text: &str) -> Result<String, StoreError>;

    /// Opens a text that was sealed for a tenant.
    fn unseal_text(&self, tenant: &TenantId, sealed: &str) -> Result<String, StoreError>;

    /// A key for one purpose and one thing, derived from the secret of this server: always the same, and of no use for
    /// finding another.
    fn derive(&self, purpose: &str, id: &str) -> [u8; 32];

    /// What a tenant holds.
    async fn usage(&self, tenant: &TenantId) -> Result<Usage, StoreError>;

    /// Remembers a key by the hash of its secret.
    async fn put_key(&self, key: KeyRecord, hash: Hash) -> Result<(), StoreError>;

    /// The key with that hash, with the hash as it is stored.
    async fn key(&self, hash: Hash) -> Result<Option<(KeyRecord, Hash)>, StoreError>;

    /// Keys of a tenant, or all.
    async fn keys(&self, tenant: Option<&TenantId>) -> Result<Vec<KeyRecord>, StoreError>;

    /// Forgets a key; says whether it was there.
    async fn delete_key(&self, id: &KeyId) -> Result<bool, StoreError>;

    /// Notes when keys were last used.
    async fn touch_keys(&self, used: Vec<(KeyId, i64)>) -> Result<(), StoreError>;

    /// Binds a terminal to its thread. When the thread has one in the same instance, that one is returned.
    async fn put_terminal(&self, terminal: Terminal) -> Result<Terminal, StoreError>;

    /// The terminals of a sandbox, oldest first.
    async fn terminals(&self, sandbox: &SandboxId) -> Result<Vec<Terminal>, StoreError>;

    /// Forgets a terminal; says whether it was there.
    async fn delete_terminal(&self, sandbox: &SandboxId, id: &str) -> Result<bool, StoreError>;

    /// Remembers a preview with the hash of its token (of nothing anybody knows where it is public), and forgets those of the
    /// same sandbox that ended before it was made.
    async fn put_preview(&self, preview: PreviewRecord, hash: Hash) -> Result<(), StoreError>;

    /// The previews of a sandbox with their hashes, oldest first, also those that have ended.
    async fn previews(&self, sandbox: &SandboxId) -> Result<Vec<(PreviewRecord, Hash)>, StoreError>;

    /// Forgets a preview; says whether it was there.
    async fn delete_preview(&self, sandbox: &SandboxId, id: &PreviewId) -> Result<bool, StoreError>;

    /// Keeps samples, at most `keep` per sandbox; those of unknown sandboxes are dropped.
    async fn put_samples(
        &self,
        samples: Vec<(SandboxId, ResourceSample)>,
        keep: u32,
    ) -> Result<(), StoreError>;

    /// The newest samples at or after a moment, oldest first.
    async fn samples(
        &self,
        sandbox: &SandboxId,
        since_ms: i64,
        limit: u32,
    ) -> Result<Vec<ResourceSample>, StoreError>;

    /// Events after a number, oldest first; those of a build's sandbox only where that is asked for. What was returned once stays in front of what comes later.
    async fn events(&self, query: EventQuery) -> Result<Vec<SandboxEvent>, StoreError>;

    /// The number of the newest event; changes when there is one more.
    fn event_head(&self) -> watch::Receiver<u64>;

    /// Forgets what is old.
    async fn sweep(&self, sweep: Sweep) -> Result<(), StoreError>;

    /// Says whether reads and writes work.
    async fn ping(&self) -> Result<(), StoreError>;

    /// Ends it cleanly; later calls fail.
    async fn close(&self);
}
