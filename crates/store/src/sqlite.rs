//! The store in one SQLite file: `DATA/sandbox.db`.
//!
//! ```text
//! callers ──► queue ──► writer thread: BEGIN IMMEDIATE, each write in a savepoint, COMMIT, then answer all
//!         └─► queue ──► reader threads, each with its own connection
//! ```
//!
//! A single writer makes group commit simple (one fsync per commit, however many writes are queued) and gives events an
//! order. A failed write is rolled back alone; a failed commit is reported to every write in it.

mod builds;
mod events;
mod keys;
mod leases;
mod lists;
mod open;
mod previews;
mod samples;
mod secrets;
mod snapshots;
mod templates;
mod terminals;
mod threads;
mod volumes;

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use atoll_disk::Reserve;
use atoll_model::{
    KeyId, Lease, NetworkPolicy, PreviewId, Quota, SandboxEvent, SandboxId, Snapshot, SnapshotId,
    SnapshotState, TenantId, Usage,
};
use rusqlite::Connection;
use tokio::sync::{oneshot, watch};

use crate::seal::Seal;
use crate::{
    Advance, EventQuery, Hash, Inserted, InstanceRow, KeyRecord, LeaseQuery, NewEvent, NewLease, OpenError,
    Page, PreviewRecord, ResourceSample, SecretChange, SecretRecord, SecretValues, SnapshotQuery, Store,
    StoreError, Sweep, TenantRecord, Terminal,
};
use threads::{Readers, Writer};

/// LIMIT: enough to keep two cores busy with reads; each costs a connection with its page cache.
const READERS: usize = 3;

/// The store in SQLite. Closing is explicit; dropping it also closes it, without waiting.
pub struct SqliteStore {
    disk: Arc<Reserve>,
    writer: Writer,
    readers: Readers,
    seal: Arc<Seal>,
    head: watch::Receiver<u64>,
}

impl SqliteStore {
    /// [`SqliteStore::open_on`] without a disk reserve.
    pub fn open(data: &Path) -> Result<Self, OpenError> {
        Self::open_on(data, Reserve::new(0))
    }

    /// Opens or makes `sandbox.db` in the folder and locks the folder for this process. New rows are refused if the
    /// disk has no space for records. Blocking.
    pub fn open_on(data: &Path, disk: Arc<Reserve>) -> Result<Self, OpenError> {
        let opened = open::open(data)?;
        let failed = |cause| OpenError::Database { action: "read", db: data.join(open::DB), cause };
        let (head_tx, head) = watch::channel(events::head(&opened.conn).map_err(failed)?);
        let readers = Readers::start(READERS, &data.join(open::DB)).map_err(failed)?;
        let writer = Writer::start(opened.conn, opened.claim, head_tx, Arc::clone(&disk));
        let seal = Arc::new(opened.seal);
        Ok(Self { disk, writer, readers, seal, head })
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
    async fn insert_telling(
        &self,
        new: NewLease,
        accepted: oneshot::Sender<()>,
    ) -> Result<Inserted, StoreError> {
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
        let row = leases::Row::new(&change.lease)?;
        let sealed = leases::seal_instance(&self.seal, &change.instance)?;
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
        let seal = Arc::clone(&self.seal);
        self.read(move |conn| leases::live(conn, &seal)).await
    }

    async fn template_users(&self, template: &str) -> Result<u64, StoreError> {
        let template = template.to_owned();
        self.read(move |conn| leases::template_users(conn, &template)).await
    }

    async fn children(&self, parent: &SandboxId) -> Result<Vec<SandboxId>, StoreError> {
        let parent = parent.clone();
        self.read(move |conn| leases::children(conn, &parent)).await
    }

    async fn of_thread(&self, tenant: Option<&TenantId>, thread: &str) -> Result<Vec<Lease>, StoreError> {
        let (tenant, thread) = (tenant.cloned(), thread.to_owned());
        self.read(move |conn| leases::of_thread(conn, tenant.as_ref(), &thread)).await
    }

    async fn put_snapshot(&self, snapshot: Snapshot, agent_token: Option<String>) -> Result<(), StoreError> {
        let row = snapshots::Row::new(&self.seal, &snapshot, agent_token.as_deref())?;
        let is_removal = snapshot.state == SnapshotState::Deleting;
        let put = move |conn: &Connection| snapshots::put(conn, &snapshot, &row);
        // A delete must also work on a full disk: it does not take space permanently.
        if is_removal { self.write(put).await } else { self.add(put).await }
    }

    async fn snapshot(&self, id: &SnapshotId) -> Result<Option<(Snapshot, Option<String>)>, StoreError> {
        let (id, seal) = (id.clone(), Arc::clone(&self.seal));
        self.read(move |conn| snapshots::by_id(conn, &seal, &id)).await
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
        self.read(snapshots::all).await
    }

    async fn delete_snapshot(&self, id: &SnapshotId) -> Result<bool, StoreError> {
        let id = id.clone();
        self.write(move |conn| snapshots::delete(conn, &id)).await
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
        self.write(move |conn| keys::set_network(conn, &tenant, network.as_ref())).await
    }

    async fn put_secret(
        &self,
        tenant: &TenantId,
        secret: SecretRecord,
        value: String,
        most: u32,
    ) -> Result<(), StoreError> {
        let tenant = tenant.clone();
        let sealed = self.seal.seal(&secrets::owner(&tenant, &secret.name), &value);
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
            let sealed = self.seal.seal(&secrets::owner(&tenant, &name), &value);
            sealed.ok_or(StoreError::Sealed { what: "a secret" })
        };
        let change =
            secrets::SecretChange { sealed: change.value.map(seal).transpose()?, about: change.about };
        self.write(move |conn| secrets::change(conn, &tenant, &name, &change, at_ms)).await
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
        let (tenant, seal) = (tenant.clone(), Arc::clone(&self.seal));
        self.read(move |conn| secrets::values(conn, &seal, &tenant)).await
    }

    fn seal_text(&self, tenant: &TenantId, text: &str) -> Result<String, StoreError> {
        let sealed =
            self.seal.seal(&text_owner(tenant), text).ok_or(StoreError::Sealed { what: "a text" })?;
        Ok(hex::encode(sealed))
    }

    fn unseal_text(&self, tenant: &TenantId, sealed: &str) -> Result<String, StoreError> {
        let opened = hex::decode(sealed).ok().and_then(|bytes| self.seal.unseal(&text_owner(tenant), &bytes));
        opened.ok_or(StoreError::Sealed { what: "a text" })
    }

    fn derive(&self, purpose: &str, id: &str) -> [u8; 32] {
        self.seal.derive(purpose, id)
    }

    async fn usage(&self, tenant: &TenantId) -> Result<Usage, StoreError> {
        let tenant = tenant.clone();
        self.read(move |conn| leases::usage(conn, &tenant, None)).await
    }

    async fn put_key(&self, key: KeyRecord, hash: Hash) -> Result<(), StoreError> {
        self.write(move |conn| keys::put_key(conn, &key, &hash)).await
    }

    async fn key(&self, hash: Hash) -> Result<Option<(KeyRecord, Hash)>, StoreError> {
        self.read(move |conn| keys::key(conn, &hash)).await
    }

    async fn keys(&self, tenant: Option<&TenantId>) -> Result<Vec<KeyRecord>, StoreError> {
        let tenant = tenant.cloned();
        self.read(move |conn| keys::keys(conn, tenant.as_ref())).await
    }

    async fn delete_key(&self, id: &KeyId) -> Result<bool, StoreError> {
        let id = id.clone();
        self.write(move |conn| keys::delete_key(conn, &id)).await
    }

    async fn touch_keys(&self, used: Vec<(KeyId, i64)>) -> Result<(), StoreError> {
        self.write(move |conn| keys::touch(conn, &used)).await
    }

    async fn put_terminal(&self, terminal: Terminal) -> Result<Terminal, StoreError> {
        self.add(move |conn| terminals::put(conn, terminal)).await
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

    async fn put_preview(&self, preview: PreviewRecord, hash: Hash) -> Result<(), StoreError> {
        self.add(move |conn| previews::put(conn, &preview, &hash)).await
    }

    async fn previews(&self, sandbox: &SandboxId) -> Result<Vec<(PreviewRecord, Hash)>, StoreError> {
        let sandbox = sandbox.clone();
        self.read(move |conn| previews::list(conn, &sandbox)).await
    }

    async fn delete_preview(&self, sandbox: &SandboxId, id: &PreviewId) -> Result<bool, StoreError> {
        let (sandbox, id) = (sandbox.clone(), id.clone());
        self.write(move |conn| previews::delete(conn, &sandbox, &id)).await
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
        self.head.clone()
    }

    async fn sweep(&self, sweep: Sweep) -> Result<(), StoreError> {
        self.write(move |conn| {
            leases::sweep(conn, &sweep)?;
            events::sweep(conn, sweep.events_kept)
        })
        .await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.read(|conn| Ok(conn.query_row("SELECT 1", [], |_| Ok(()))?)).await?;
        self.write(|_| Ok(())).await
    }

    async fn close(&self) {
        self.readers.stop().await;
        self.writer.stop().await;
    }
}
