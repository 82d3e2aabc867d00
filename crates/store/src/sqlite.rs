//! The store in one SQLite file: `DATA/sandbox.db`, or a file that several servers of one machine share.
//!
//! ```text
//! callers ──► queue ──► writer thread: BEGIN IMMEDIATE, each write in a savepoint, COMMIT, then answer all
//!         └─► queue ──► reader threads, each with its own connection
//! ```
//!
//! A single writer per server makes group commit simple (one fsync per commit, however many writes are queued). Writers
//! of several servers take turns: SQLite runs one immediate transaction at a time. A failed write is rolled back alone;
//! a failed commit is reported to every write in it. [`feed`] tells what other servers wrote.

mod builds;
mod database_copy;
mod events;
mod feed;
mod identity;
mod keys;
mod leases;
mod lists;
mod newer;
mod open;
mod previews;
mod samples;
mod schema;
mod secrets;
mod servers;
mod snapshots;
mod templates;
mod terminals;
mod thread_bindings;
mod threads;
mod volumes;

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use atoll_disk::Reserve;
use atoll_model::{
    KeyId, Lease, NetworkPolicy, NodeName, PreviewId, Quota, SandboxEvent, SandboxId, Snapshot, SnapshotId,
    SnapshotState, TenantId, Usage,
};
use rusqlite::Connection;
use tokio::sync::{oneshot, watch};

use crate::{
    Advance, EventQuery, FeedChange, FeedPage, Hash, Inserted, InstanceRow, KeyRecord, LeaseQuery, NewEvent,
    NewLease, OpenError, Page, PreviewRecord, ResourceSample, SecretChange, SecretRecord, SecretValues,
    SnapshotQuery, Store, StoreConfig, StoreError, Sweep, TenantRecord, Terminal, Vault,
};
use feed::{Heads, Watcher};
use threads::{Readers, Writer};

pub use database_copy::{DatabaseContents, TaggedVersion, kept_objects, lease_generations, reseal_snapshots};
pub(crate) use identity::recorded_database;
pub use newer::refuse_newer;
pub(crate) use open::DB as DATABASE;

/// LIMIT: enough to keep two cores busy with reads; each costs a connection with its page cache.
const READERS: usize = 3;

/// The store in SQLite. Closing is explicit; dropping it also closes it, without waiting.
pub struct SqliteStore {
    disk: Arc<Reserve>,
    writer: Writer,
    readers: Readers,
    watcher: Watcher,
    vault: Arc<dyn Vault>,
    node: NodeName,
    heads: Heads,
}

impl SqliteStore {
    /// Opens the folder with its own database; see [`StoreConfig::new`].
    pub fn open(data: &Path) -> Result<Self, OpenError> {
        Self::open_with(&StoreConfig::new(data))
    }

    /// Opens or makes the database, and locks the folder for this process. Blocking.
    pub fn open_with(config: &StoreConfig) -> Result<Self, OpenError> {
        let opened = open::open(config)?;
        let db = &config.database;
        let failed = |cause| OpenError::Database { action: "read", db: db.clone(), cause };
        let heads = Heads::read(&opened.conn).map_err(failed)?;
        let readers = Readers::start(READERS, db).map_err(failed)?;
        let watcher = Watcher::start(db, heads.clone()).map_err(failed)?;
        let disk = Arc::clone(&config.disk);
        let writer = Writer::start(opened.conn, opened.claim, heads.clone(), Arc::clone(&disk));
        Ok(Self { disk, writer, readers, watcher, vault: opened.vault, node: opened.node, heads })
    }

    /// Refuses to change what belongs to another node.
    fn own(&self, node: &NodeName, what: impl FnOnce() -> String) -> Result<(), StoreError> {
        if *node == self.node {
            return Ok(());
        }
        Err(StoreError::WrongNode { what: what(), node: node.clone() })
    }

    /// A write that other nodes have to know of.
    async fn write_shared<T: Send + 'static>(
        &self,
        change: FeedChange,
        work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let node = self.node.clone();
        self.write(move |conn| {
            let done = work(conn)?;
            feed::append(conn, &node, &change)?;
            Ok(done)
        })
        .await
    }

    async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.writer.run(work).await
    }

    /// A write that makes the database permanently larger.
    async fn add<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        if !self.disk.takes_records() {
            return Err(StoreError::NoSpace);
        }
        self.writer.run(work).await
    }

    async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.readers.run(work).await
    }
}

/// The owner of a sealed text.
fn text_owner(tenant: &TenantId) -> String {
    format!("text/{tenant}")
}

#[async_trait]
impl Store for SqliteStore {
    fn node(&self) -> &NodeName {
        &self.node
    }

    async fn nodes(&self) -> Result<Vec<NodeName>, StoreError> {
        self.read(|conn| {
            let mut statement = conn.prepare_cached("SELECT name FROM nodes ORDER BY name")?;
            let rows = statement.query_map([], |row| row.get::<_, String>(0))?;
            rows.map(|name| keys::parse_id("nodes", &name?)).collect()
        })
        .await
    }

    async fn remove_node(&self) -> Result<(), StoreError> {
        let node = self.node.clone();
        self.write(move |conn| {
            for table in ["snapshots", "volumes", "builds", "template_copies"] {
                conn.execute(&format!("DELETE FROM {table} WHERE node = ?1"), [node.as_str()])?;
            }
            conn.execute("DELETE FROM nodes WHERE name = ?1", [node.as_str()])?;
            Ok(())
        })
        .await
    }

    async fn insert_telling(
        &self,
        new: NewLease,
        accepted: oneshot::Sender<()>,
    ) -> Result<Inserted, StoreError> {
        self.own(&new.lease.node, || format!("sandbox {}", new.lease.id))?;
        let row = leases::Row::new(&new.lease)?;
        let work = move |conn: &Connection| {
            let inserted = leases::insert(conn, &new, &row)?;
            if inserted == Inserted::New {
                let _ = accepted.send(());
            }
            Ok(inserted)
        };
        self.add(work).await
    }

    async fn made_with(
        &self,
        tenant: &TenantId,
        key: &str,
        request: Hash,
    ) -> Result<Option<Lease>, StoreError> {
        let (tenant, key) = (tenant.clone(), key.to_owned());
        self.read(move |conn| leases::replay(conn, &tenant, &key, &request)).await
    }

    async fn advance(&self, change: Advance) -> Result<(), StoreError> {
        self.own(&change.lease.node, || format!("sandbox {}", change.lease.id))?;
        let row = leases::Row::new(&change.lease)?;
        let sealed = leases::seal_instance(self.vault.as_ref(), &change.instance)?;
        self.write(move |conn| leases::advance(conn, &change, &row, sealed)).await
    }

    async fn record(&self, tenant: TenantId, sandbox: SandboxId, event: NewEvent) -> Result<(), StoreError> {
        self.write(move |conn| events::append(conn, &tenant, &sandbox, &event)).await
    }

    async fn lease(&self, id: &SandboxId) -> Result<Option<Lease>, StoreError> {
        let id = id.clone();
        self.read(move |conn| leases::by_id(conn, &id)).await
    }

    async fn find(&self, tenant: Option<&TenantId>, ident: &str) -> Result<Vec<Lease>, StoreError> {
        let (tenant, ident) = (tenant.cloned(), ident.to_owned());
        self.read(move |conn| leases::find(conn, tenant.as_ref(), &ident)).await
    }

    async fn names(&self, tenant: Option<&TenantId>, limit: u32) -> Result<Vec<String>, StoreError> {
        let tenant = tenant.cloned();
        self.read(move |conn| leases::names(conn, tenant.as_ref(), limit)).await
    }

    async fn list(&self, query: LeaseQuery) -> Result<Page<Lease>, StoreError> {
        self.read(move |conn| lists::list(conn, &query)).await
    }

    async fn live(&self) -> Result<Vec<(Lease, Option<InstanceRow>)>, StoreError> {
        let (vault, node) = (Arc::clone(&self.vault), self.node.clone());
        self.read(move |conn| leases::live(conn, vault.as_ref(), &node)).await
    }

    async fn due(&self, now_ms: i64, limit: u32) -> Result<Vec<SandboxId>, StoreError> {
        let node = self.node.clone();
        self.read(move |conn| leases::due(conn, &node, now_ms, limit)).await
    }

    async fn template_users(&self, template: &str) -> Result<u64, StoreError> {
        let (template, node) = (template.to_owned(), self.node.clone());
        self.read(move |conn| leases::template_users(conn, &template, &node)).await
    }

    async fn children(&self, parent: &SandboxId) -> Result<Vec<SandboxId>, StoreError> {
        let parent = parent.clone();
        self.read(move |conn| leases::children(conn, &parent)).await
    }

    async fn of_thread(&self, tenant: Option<&TenantId>, thread: &str) -> Result<Vec<Lease>, StoreError> {
        let (tenant, thread) = (tenant.cloned(), thread.to_owned());
        self.read(move |conn| leases::of_thread(conn, tenant.as_ref(), &thread)).await
    }

    async fn find_session(
        &self,
        tenant: Option<&TenantId>,
        provider: Option<&str>,
        ident: &str,
    ) -> Result<Vec<Lease>, StoreError> {
        let (tenant, provider, ident) = (tenant.cloned(), provider.map(str::to_owned), ident.to_owned());
        self.read(move |conn| {
            thread_bindings::find_session(conn, tenant.as_ref(), provider.as_deref(), &ident)
        })
        .await
    }

    async fn begin_exits(&self) -> Result<(), StoreError> {
        let node = self.node.clone();
        self.write(move |conn| leases::begin_exits(conn, &node)).await
    }

    async fn pending_exits(&self) -> Result<Vec<SandboxId>, StoreError> {
        let node = self.node.clone();
        self.read(move |conn| leases::pending_exits(conn, &node)).await
    }

    async fn end_exits(&self, sandboxes: Vec<SandboxId>) -> Result<(), StoreError> {
        self.write(move |conn| leases::end_exits(conn, &sandboxes)).await
    }

    async fn put_snapshot(&self, snapshot: Snapshot, agent_token: Option<String>) -> Result<(), StoreError> {
        self.own(&snapshot.node, || format!("snapshot {}", snapshot.id))?;
        let row = snapshots::Row::new(self.vault.as_ref(), &snapshot, agent_token.as_deref())?;
        let is_removal = snapshot.state == SnapshotState::Deleting;
        let put = move |conn: &Connection| snapshots::put(conn, &snapshot, &row);
        // A delete must also work on a full disk: it does not take space permanently.
        if is_removal { self.write(put).await } else { self.add(put).await }
    }

    async fn snapshot(&self, id: &SnapshotId) -> Result<Option<(Snapshot, Option<String>)>, StoreError> {
        let (id, vault) = (id.clone(), Arc::clone(&self.vault));
        self.read(move |conn| snapshots::by_id(conn, vault.as_ref(), &id)).await
    }

    async fn find_snapshot(
        &self,
        tenant: Option<&TenantId>,
        ident: &str,
    ) -> Result<Vec<Snapshot>, StoreError> {
        let (tenant, ident) = (tenant.cloned(), ident.to_owned());
        self.read(move |conn| snapshots::find(conn, tenant.as_ref(), &ident)).await
    }

    async fn snapshots(&self, query: SnapshotQuery) -> Result<Page<Snapshot>, StoreError> {
        self.read(move |conn| snapshots::list(conn, &query)).await
    }

    async fn all_snapshots(&self) -> Result<Vec<Snapshot>, StoreError> {
        let node = self.node.clone();
        self.read(move |conn| snapshots::all(conn, &node)).await
    }

    async fn move_snapshot_name(&self, id: &SnapshotId, name: &str) -> Result<Option<Snapshot>, StoreError> {
        let (id, name) = (id.clone(), name.to_owned());
        self.write(move |conn| snapshots::move_name(conn, &id, &name)).await
    }

    async fn delete_snapshot(&self, id: &SnapshotId) -> Result<bool, StoreError> {
        let (id, node) = (id.clone(), self.node.clone());
        self.write(move |conn| snapshots::delete(conn, &id, &node)).await
    }

    async fn put_tenant(&self, tenant: TenantRecord) -> Result<(), StoreError> {
        self.write(move |conn| keys::put_tenant(conn, &tenant)).await
    }

    async fn tenant(&self, ident: &str) -> Result<Option<TenantRecord>, StoreError> {
        let ident = ident.to_owned();
        self.read(move |conn| keys::tenant(conn, &ident)).await
    }

    async fn tenants(&self) -> Result<Vec<TenantRecord>, StoreError> {
        self.read(keys::tenants).await
    }

    async fn set_quota(&self, tenant: &TenantId, quota: Quota) -> Result<(), StoreError> {
        let tenant = tenant.clone();
        self.write(move |conn| keys::set_quota(conn, &tenant, &quota)).await
    }

    async fn set_tenant_network(
        &self,
        tenant: &TenantId,
        network: Option<NetworkPolicy>,
    ) -> Result<(), StoreError> {
        let tenant = tenant.clone();
        let change = FeedChange::TenantNetwork { tenant: tenant.clone() };
        self.write_shared(change, move |conn| keys::set_network(conn, &tenant, network.as_ref())).await
    }

    async fn set_tenant_providers(
        &self,
        tenant: &TenantId,
        providers: Option<Vec<String>>,
    ) -> Result<(), StoreError> {
        let tenant = tenant.clone();
        let change = FeedChange::TenantProviders { tenant: tenant.clone() };
        self.write_shared(change, move |conn| keys::set_providers(conn, &tenant, providers.as_deref())).await
    }

    async fn put_secret(
        &self,
        tenant: &TenantId,
        secret: SecretRecord,
        value: String,
        most: u32,
    ) -> Result<(), StoreError> {
        let tenant = tenant.clone();
        let sealed = self.vault.seal(&secrets::owner(&tenant, &secret.name), &value);
        let sealed = sealed.ok_or(StoreError::Sealed { what: "a secret" })?;
        self.add(move |conn| secrets::put(conn, &tenant, &secret, &sealed, most)).await
    }

    async fn change_secret(
        &self,
        tenant: &TenantId,
        name: &str,
        change: SecretChange,
        at_ms: i64,
    ) -> Result<Option<SecretRecord>, StoreError> {
        let (tenant, name) = (tenant.clone(), name.to_owned());
        let seal = |value: String| {
            let sealed = self.vault.seal(&secrets::owner(&tenant, &name), &value);
            sealed.ok_or(StoreError::Sealed { what: "a secret" })
        };
        let change =
            secrets::SecretChange { sealed: change.value.map(seal).transpose()?, about: change.about };
        let told = FeedChange::Secret { tenant: tenant.clone(), name: name.clone() };
        self.write_shared(told, move |conn| secrets::change(conn, &tenant, &name, &change, at_ms)).await
    }

    async fn delete_secret(&self, tenant: &TenantId, name: &str) -> Result<bool, StoreError> {
        let (tenant, name) = (tenant.clone(), name.to_owned());
        self.write(move |conn| secrets::delete(conn, &tenant, &name)).await
    }

    async fn secrets(&self, tenant: &TenantId) -> Result<Vec<SecretRecord>, StoreError> {
        let tenant = tenant.clone();
        self.read(move |conn| secrets::list(conn, &tenant)).await
    }

    async fn secret_values(&self, tenant: &TenantId) -> Result<SecretValues, StoreError> {
        let (tenant, vault) = (tenant.clone(), Arc::clone(&self.vault));
        self.read(move |conn| secrets::values(conn, vault.as_ref(), &tenant)).await
    }

    fn seal_text(&self, tenant: &TenantId, text: &str) -> Result<String, StoreError> {
        let sealed =
            self.vault.seal(&text_owner(tenant), text).ok_or(StoreError::Sealed { what: "a text" })?;
        Ok(hex::encode(sealed))
    }

    fn unseal_text(&self, tenant: &TenantId, sealed: &str) -> Result<String, StoreError> {
        let opened =
            hex::decode(sealed).ok().and_then(|bytes| self.vault.unseal(&text_owner(tenant), &bytes));
        opened.ok_or(StoreError::Sealed { what: "a text" })
    }

    fn derive(&self, purpose: &str, id: &str) -> [u8; 32] {
        self.vault.derive(purpose, id)
    }

    async fn usage(&self, tenant: &TenantId) -> Result<Usage, StoreError> {
        let tenant = tenant.clone();
        self.read(move |conn| leases::usage(conn, &tenant, None)).await
    }

    async fn put_key(&self, key: KeyRecord, hash: Hash, most: u32) -> Result<(), StoreError> {
        self.write(move |conn| keys::put_key(conn, &key, &hash, most)).await
    }

    async fn key(&self, hash: Hash) -> Result<Option<(KeyRecord, Hash)>, StoreError> {
        self.read(move |conn| keys::key(conn, &hash)).await
    }

    async fn keys(&self, tenant: Option<&TenantId>) -> Result<Vec<KeyRecord>, StoreError> {
        let tenant = tenant.cloned();
        self.read(move |conn| keys::keys(conn, tenant.as_ref())).await
    }

    async fn delete_key(&self, id: &KeyId) -> Result<Vec<KeyId>, StoreError> {
        let (id, node) = (id.clone(), self.node.clone());
        self.write(move |conn| {
            let deleted = keys::delete_key(conn, &id)?;
            for key in &deleted {
                feed::append(conn, &node, &FeedChange::KeyDeleted { key: key.clone() })?;
            }
            Ok(deleted)
        })
        .await
    }

    async fn touch_keys(&self, used: Vec<(KeyId, i64)>) -> Result<(), StoreError> {
        self.write(move |conn| keys::touch(conn, &used)).await
    }

    async fn put_terminal(&self, terminal: Terminal, most: u32) -> Result<Terminal, StoreError> {
        self.add(move |conn| terminals::put(conn, terminal, most)).await
    }

    async fn update_terminal(
        &self,
        terminal: Terminal,
        expected_pid: Option<u32>,
    ) -> Result<bool, StoreError> {
        self.write(move |conn| terminals::update(conn, &terminal, expected_pid)).await
    }

    async fn terminals(&self, sandbox: &SandboxId) -> Result<Vec<Terminal>, StoreError> {
        let sandbox = sandbox.clone();
        self.read(move |conn| terminals::list(conn, &sandbox)).await
    }

    async fn delete_terminal(&self, sandbox: &SandboxId, id: &str) -> Result<bool, StoreError> {
        let (sandbox, id) = (sandbox.clone(), id.to_owned());
        self.write(move |conn| terminals::delete(conn, &sandbox, &id)).await
    }

    async fn delete_unstarted_terminal(&self, sandbox: &SandboxId, id: &str) -> Result<bool, StoreError> {
        let (sandbox, id) = (sandbox.clone(), id.to_owned());
        self.write(move |conn| terminals::delete_unstarted(conn, &sandbox, &id)).await
    }

    async fn put_preview(&self, preview: PreviewRecord, hash: Hash, most: u32) -> Result<(), StoreError> {
        if !self.disk.takes_records() {
            return Err(StoreError::NoSpace);
        }
        let change = FeedChange::Previews { sandbox: preview.sandbox.clone(), deleted: None };
        self.write_shared(change, move |conn| previews::put(conn, &preview, &hash, most)).await
    }

    async fn previews(&self, sandbox: &SandboxId) -> Result<Vec<(PreviewRecord, Hash)>, StoreError> {
        let sandbox = sandbox.clone();
        self.read(move |conn| previews::list(conn, &sandbox)).await
    }

    async fn has_preview(&self, id: &PreviewId) -> Result<bool, StoreError> {
        let id = id.clone();
        self.read(move |conn| {
            Ok(conn.prepare_cached("SELECT 1 FROM previews WHERE id = ?1")?.exists([id.as_str()])?)
        })
        .await
    }

    async fn delete_preview(&self, sandbox: &SandboxId, id: &PreviewId) -> Result<bool, StoreError> {
        let (sandbox, id) = (sandbox.clone(), id.clone());
        let change = FeedChange::Previews { sandbox: sandbox.clone(), deleted: Some(id.clone()) };
        self.write_shared(change, move |conn| previews::delete(conn, &sandbox, &id)).await
    }

    async fn put_samples(
        &self,
        samples: Vec<(SandboxId, ResourceSample)>,
        keep: u32,
    ) -> Result<(), StoreError> {
        self.add(move |conn| samples::put(conn, &samples, keep)).await
    }

    async fn samples(
        &self,
        sandbox: &SandboxId,
        since_ms: i64,
        limit: u32,
    ) -> Result<Vec<ResourceSample>, StoreError> {
        let sandbox = sandbox.clone();
        self.read(move |conn| samples::list(conn, &sandbox, since_ms, limit)).await
    }

    async fn events(&self, query: EventQuery) -> Result<Vec<SandboxEvent>, StoreError> {
        self.read(move |conn| events::list(conn, &query)).await
    }

    fn event_head(&self) -> watch::Receiver<u64> {
        self.heads.events.subscribe()
    }

    async fn changes(&self, after: u64) -> Result<FeedPage, StoreError> {
        self.read(move |conn| feed::after(conn, after)).await
    }

    fn change_head(&self) -> watch::Receiver<u64> {
        self.heads.changes.subscribe()
    }

    async fn sweep(&self, sweep: Sweep) -> Result<(), StoreError> {
        self.write(move |conn| {
            leases::sweep(conn, &sweep)?;
            thread_bindings::sweep(conn)?;
            feed::sweep(conn)?;
            events::sweep(conn, sweep.events_kept)
        })
        .await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.read(|conn| Ok(conn.query_row("SELECT 1", [], |_| Ok(()))?)).await?;
        self.write(|_| Ok(())).await
    }

    async fn close(&self) {
        self.watcher.stop().await;
        self.readers.stop().await;
        self.writer.stop().await;
    }
}
