//! Space for uploads of tenants: the disk's reserve, and the tenant's disk quota.
//!
//! Uploads are in folders of their own (`Config::upload_folders`), one per tenant, and count against the tenant's disk
//! quota beside its sandboxes and snapshots. Their size is read from the folders, so it is not recorded anywhere.

use std::path::{Path, PathBuf};

use atoll_disk::{Purpose, SpaceWriter};
use atoll_model::policy::quota::{self, Exceeded};
use atoll_model::{Code, Lease, Quota, TenantId};
use atoll_store::StoreError;

use crate::ServiceError;
use crate::service::{Service, ServiceShared};

const MIB: u64 = 1 << 20;
/// LIMIT: the bytes of a tenant are counted again whenever this many more have arrived.
const COUNT_EVERY: u64 = 8 * MIB;

/// Reserves space while one upload is written.
#[derive(Debug)]
pub struct UploadSpace {
    space: SpaceWriter,
    quota: Option<QuotaLeft>,
}

/// The part of the tenant's quota that is left for uploads.
#[derive(Debug)]
struct QuotaLeft {
    folders: Vec<PathBuf>,
    exceeded: Exceeded,
    left_bytes: u64,
    /// Bytes of this upload that are not in one of the folders.
    outside_bytes: u64,
    lies_outside: bool,
    since_count: Option<u64>,
}

impl Service {
    /// Room for one upload of a tenant into the folder `at`, which is there.
    pub async fn upload_space(&self, tenant: &TenantId, at: &Path) -> Result<UploadSpace, ServiceError> {
        let inner = &self.inner;
        let space = inner.images.disk().writer(at, Purpose::Data).map_err(no_space)?;
        let record = inner.store.tenant(tenant.as_str()).await?.ok_or(StoreError::NoTenant)?;
        let Some(max) = record.quota.disk_mib else { return Ok(UploadSpace { space, quota: None }) };
        let used = inner.store.usage(tenant).await?.disk_mib;
        let folders = folders(inner, tenant);
        let lies_outside = !folders.iter().any(|folder| at.starts_with(folder));
        let quota = QuotaLeft {
            folders,
            exceeded: Exceeded { what: "MiB of disk", used, asked: 0, max },
            left_bytes: max.saturating_sub(used).saturating_mul(MIB),
            outside_bytes: 0,
            lies_outside,
            since_count: None,
        };
        Ok(UploadSpace { space, quota: Some(quota) })
    }

    /// The MiB of a tenant's uploads that are still here.
    pub(crate) async fn uploaded_mib(&self, tenant: &TenantId) -> u64 {
        count(folders(&self.inner, tenant)).await.div_ceil(MIB)
    }

    /// Refuses a new sandbox that fits into the tenant's quota only without the uploads.
    pub(crate) async fn admit_beside_uploads(&self, lease: &Lease) -> Result<(), ServiceError> {
        let uploaded = self.uploaded_mib(&lease.tenant).await;
        if uploaded == 0 {
            return Ok(());
        }
        let store = &self.inner.store;
        let record = store.tenant(lease.tenant.as_str()).await?.ok_or(StoreError::NoTenant)?;
        let mut usage = store.usage(&lease.tenant).await?;
        usage.disk_mib = usage.disk_mib.saturating_add(uploaded);
        if let Some(waiting) = lease.build.as_ref().and_then(|build| self.inner.registry.waiting_for(build)) {
            // A step of its build uses its place.
            usage.disk_mib = usage.disk_mib.saturating_sub(u64::from(waiting.limits.disk_mib));
        }
        // The rest of the quota is checked when the lease is written.
        let of_disk = Quota { disk_mib: record.quota.disk_mib, ..Quota::default() };
        Ok(quota::admit_new(&of_disk, &usage, &lease.limits).map_err(StoreError::from)?)
    }
}

impl UploadSpace {
    /// Reserves space on the disk only, for bytes that are written a second time.
    pub fn take_again(&mut self, bytes: u64) -> Result<(), ServiceError> {
        self.space.take(bytes).map_err(no_space)
    }

    /// Must be called before this many bytes are written.
    pub async fn take(&mut self, bytes: u64) -> Result<(), ServiceError> {
        self.space.take(bytes).map_err(no_space)?;
        match &mut self.quota {
            Some(quota) => quota.take(bytes).await,
            None => Ok(()),
        }
    }
}

impl QuotaLeft {
    async fn take(&mut self, bytes: u64) -> Result<(), ServiceError> {
        if self.lies_outside {
            self.outside_bytes += bytes;
        }
        let since = self.since_count.map(|since| since + bytes);
        self.since_count = since;
        if since.is_some_and(|since| since < COUNT_EVERY) {
            return Ok(());
        }
        self.since_count = Some(0);
        let held = count(self.folders.clone()).await.saturating_add(self.outside_bytes);
        if held.saturating_add(bytes) <= self.left_bytes {
            return Ok(());
        }
        let used = self.exceeded.used.saturating_add(held.div_ceil(MIB));
        let exceeded = Exceeded { used, asked: bytes.div_ceil(MIB), ..self.exceeded.clone() };
        Err(ServiceError::new(Code::QuotaExceeded, exceeded.to_string())
            .hint("uploads that no build uses are deleted after a day; delete sandboxes or snapshots, or ask for a larger quota"))
    }
}

fn folders(inner: &ServiceShared, tenant: &TenantId) -> Vec<PathBuf> {
    inner.config.upload_folders.iter().map(|folder| folder.join(tenant.as_str())).collect()
}

async fn count(folders: Vec<PathBuf>) -> u64 {
    let counted = tokio::task::spawn_blocking(move || folders.iter().map(|folder| bytes_below(folder)).sum());
    // It cannot be cancelled, and the hook logs a panic in it.
    counted.await.unwrap_or(0)
}

fn bytes_below(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => bytes_below(&entry.path()),
        Ok(found) => found.len(),
        Err(_) => 0,
    });
    sizes.sum()
}

fn no_space(cause: std::io::Error) -> ServiceError {
    if atoll_disk::is_full(&cause) {
        return ServiceError::new(Code::NoCapacity, "the server's disk has no space for this upload")
            .retry_after(60)
            .caused_by(cause);
    }
    ServiceError::new(Code::Internal, "the free space of the server's disk could not be read")
        .caused_by(cause)
}
