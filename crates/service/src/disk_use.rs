//! What takes space on the disk of this server: for each tenant its own, for the operator all of it.

mod data_folder;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use atoll_model::{Lease, Principal, Scope, SnapshotState, TenantId};
use atoll_provider::{PoolSize, StoredInventory, StoredKind};
use atoll_store::LeaseQuery;

use crate::base::visible;
use crate::sandboxes::PAGE_MAX;
use crate::{Service, ServiceError};
pub(crate) use data_folder::{folder_bytes, parts};

/// What takes space.
#[derive(Debug, Clone, Default)]
pub struct DiskUse {
    /// The disk of the data folder; for admin keys only.
    pub disk: Option<DiskTotals>,
    /// The parts of the data folder and the cache of downloads, the largest first; for admin keys only.
    pub parts: Vec<DiskPart>,
    /// Sandboxes, snapshots, volumes, memory on disk, templates and archives that the key sees, the largest first.
    pub items: Vec<DiskItem>,
    /// The sums of each tenant.
    pub tenants: Vec<TenantDisk>,
}

/// The disk below the data folder.
#[derive(Debug, Clone, Copy, Default)]
pub struct DiskTotals {
    /// Free bytes.
    pub free_bytes: u64,
    /// The reserve of the operator.
    pub reserve_bytes: u64,
    /// Bytes that the pool takes, and bytes of it that are free.
    pub pool: Option<(u64, u64)>,
}

/// A part of the data folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskPart {
    /// What it is: `pool`, `templates`, `database`, …
    pub name: &'static str,
    /// Bytes on the disk.
    pub bytes: u64,
}

/// A kind of things that take space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DiskItemKind {
    Sandbox,
    Memory,
    Snapshot,
    Volume,
    Template,
    Archive,
}

/// One thing that takes space.
#[derive(Debug, Clone)]
pub struct DiskItem {
    pub kind: DiskItemKind,
    /// Its id; of a template its version.
    pub id: String,
    /// Its name, if it has one.
    pub name: Option<String>,
    /// Its owner; `None` for what belongs to the server.
    pub tenant: Option<TenantId>,
    /// Its phase or state, where it has one.
    pub state: Option<&'static str>,
    /// Bytes that go with it.
    pub bytes: u64,
    /// Bytes that others need too.
    pub shared_bytes: u64,
}

/// What a tenant takes.
#[derive(Debug, Clone, Default)]
pub struct TenantDisk {
    pub tenant: String,
    pub name: String,
    /// Bytes by kind.
    pub bytes: BTreeMap<DiskItemKind, u64>,
}

impl Service {
    /// What takes space. A user key sees what belongs to its tenant.
    pub async fn disk_use(&self, who: &Principal) -> Result<DiskUse, ServiceError> {
        let (stored, pool) = self.stored().await;
        let mut items = self.sandbox_items(who, &stored).await?;
        items.extend(self.snapshot_items(who, &stored).await?);
        items.extend(self.volume_items(who).await?);
        items.extend(self.template_items(who).await?);
        items.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.id.cmp(&b.id)));
        let tenants = self.sums(who, &items).await?;
        let mut disk_use = DiskUse { items, tenants, ..DiskUse::default() };
        if who.scope == Scope::Admin {
            let (data, disk) = (self.base().config.data.clone(), Arc::clone(&self.base().disk));
            let measure = move || {
                let free_bytes = atoll_disk::free_bytes(&data).unwrap_or(0);
                Ok((DiskTotals { free_bytes, reserve_bytes: disk.bytes(), pool }, parts(&data)))
            };
            let (totals, parts) = self.base().run_blocking(measure).await?;
            (disk_use.disk, disk_use.parts) = (Some(totals), parts);
        }
        Ok(disk_use)
    }

    /// What the providers keep on this machine.
    pub(crate) async fn stored(&self) -> (StoredFilesByKey, Option<(u64, u64)>) {
        let (mut stored, mut size) = (HashMap::new(), None);
        for provider in self.base().providers.all() {
            match provider.stored().await {
                Ok(Some(StoredInventory { pool, files })) => {
                    size = size.or(pool.map(|PoolSize { bytes, free_bytes }| (bytes, free_bytes)));
                    stored.extend(files.into_iter().map(|one| ((one.kind, one.id), one.bytes)));
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(provider = provider.name(), %error, "what a provider keeps could not be measured");
                }
            }
        }
        (stored, size)
    }

    /// All sandboxes that the key sees, page by page.
    pub(crate) async fn all_leases(&self, who: &Principal) -> Result<Vec<Lease>, ServiceError> {
        let mut query =
            LeaseQuery { tenant: visible(who).cloned(), limit: PAGE_MAX, ..LeaseQuery::default() };
        let mut all = Vec::new();
        loop {
            let page = self.base().store.list(query.clone()).await?;
            all.extend(page.items);
            let Some(cursor) = page.next_cursor else { return Ok(all) };
            query.cursor = Some(cursor);
        }
    }

    async fn sandbox_items(
        &self,
        who: &Principal,
        stored: &StoredFilesByKey,
    ) -> Result<Vec<DiskItem>, ServiceError> {
        let mut items = Vec::new();
        for lease in self.all_leases(who).await? {
            let bytes = |kind: StoredKind| stored.get(&(kind, lease.id.to_string())).copied();
            let archived = lease.archive.as_ref().map(|archive| archive.stored_bytes);
            let found = [
                (DiskItemKind::Sandbox, bytes(StoredKind::Sandbox)),
                (DiskItemKind::Memory, bytes(StoredKind::Memory)),
                (DiskItemKind::Archive, archived),
            ];
            items.extend(found.into_iter().filter_map(|(kind, bytes)| {
                Some(DiskItem {
                    kind,
                    id: lease.id.to_string(),
                    name: lease.name.clone(),
                    tenant: Some(lease.tenant.clone()),
                    state: Some(lease.phase.as_str()),
                    bytes: bytes?,
                    shared_bytes: 0,
                })
            }));
        }
        Ok(items)
    }

    async fn snapshot_items(
        &self,
        who: &Principal,
        stored: &StoredFilesByKey,
    ) -> Result<Vec<DiskItem>, ServiceError> {
        let all = self.base().store.all_snapshots().await?;
        let seen = all.into_iter().filter(|one| {
            !one.transient
                && one.state == SnapshotState::Ready
                && visible(who).is_none_or(|tenant| *tenant == one.tenant)
        });
        Ok(seen
            .filter_map(|one| {
                let bytes = *stored.get(&(StoredKind::Snapshot, one.id.to_string()))?;
                Some(DiskItem {
                    kind: DiskItemKind::Snapshot,
                    id: one.id.to_string(),
                    name: one.name.clone(),
                    tenant: Some(one.tenant.clone()),
                    state: one.memory.then_some("memory"),
                    bytes,
                    shared_bytes: 0,
                })
            })
            .collect())
    }

    async fn volume_items(&self, who: &Principal) -> Result<Vec<DiskItem>, ServiceError> {
        let records = self.volumes().list(who).await?;
        Ok(records
            .into_iter()
            .filter_map(|record| {
                Some(DiskItem {
                    kind: DiskItemKind::Volume,
                    id: record.volume.id.to_string(),
                    name: Some(record.volume.name.clone()),
                    tenant: Some(record.volume.tenant.clone()),
                    state: (record.mounted_by > 0).then_some("mounted"),
                    bytes: record.used_bytes?,
                    shared_bytes: 0,
                })
            })
            .collect())
    }

    async fn template_items(&self, who: &Principal) -> Result<Vec<DiskItem>, ServiceError> {
        let records = self.templates().list(who).await?;
        let images = Arc::clone(self.templates().images());
        let sizes = self.base().run_blocking(move || Ok(images.version_sizes()?)).await?;
        let sizes: HashMap<_, _> = sizes.into_iter().map(|size| (size.digest.clone(), size)).collect();
        let seen = |tenant: &Option<TenantId>| match tenant {
            Some(tenant) => visible(who).is_none_or(|own| own == tenant),
            None => who.scope == Scope::Admin,
        };
        let mine = records.into_iter().filter(|record| seen(&record.tenant));
        Ok(mine
            .filter_map(|record| {
                let (bytes, shared_bytes) = match sizes.get(&record.version) {
                    Some(size) => (size.own_bytes, size.shared_bytes),
                    None => (record.size_bytes?, 0),
                };
                Some(DiskItem {
                    kind: DiskItemKind::Template,
                    id: record.version,
                    name: Some(record.name),
                    tenant: record.tenant,
                    state: None,
                    bytes,
                    shared_bytes,
                })
            })
            .collect())
    }

    async fn sums(&self, who: &Principal, items: &[DiskItem]) -> Result<Vec<TenantDisk>, ServiceError> {
        let mut sums: BTreeMap<TenantId, TenantDisk> = BTreeMap::new();
        for item in items {
            let Some(tenant) = &item.tenant else { continue };
            *sums.entry(tenant.clone()).or_default().bytes.entry(item.kind).or_insert(0) += item.bytes;
        }
        let known = self.base().store.tenants().await?;
        let mut all = Vec::new();
        for record in known {
            if visible(who).is_some_and(|own| *own != record.id) {
                continue;
            }
            let bytes = sums.remove(&record.id).unwrap_or_default().bytes;
            all.push(TenantDisk { tenant: record.id.to_string(), name: record.name, bytes });
        }
        Ok(all)
    }
}

/// Bytes by kind and id.
pub(crate) type StoredFilesByKey = HashMap<(StoredKind, String), u64>;
