//! Room for uploads: the disk's reserve, the bound of the store per tenant, and the tenant's disk quota.
//!
//! All uploads of a tenant lie in one folder. They are counted there, so no counter can differ from the disk after a crash.

use std::path::{Path, PathBuf};

use atoll_disk::{Purpose, SpaceWriter};
use atoll_model::policy::quota::{self, Exceeded};
use atoll_model::{Code, Lease, Quota, TenantId};
use atoll_store::StoreError;

use super::folder::{UploadFolder, bytes_below, make_room};
use crate::ServiceError;
use crate::base::ServiceBase;
use crate::sandboxes::Sandboxes;

const MIB: u64 = 1 << 20;
/// LIMIT: the uploads of a tenant are counted again after so many more bytes.
const COUNT_EVERY: u64 = 8 * MIB;
/// LIMIT: all uploads of a tenant together are as large as so many of the largest allowed.
pub(super) const BOUND_TIMES: u64 = 4;

/// Asks for room while one upload is written into the folder of its tenant.
#[derive(Debug)]
pub(super) struct UploadSpace {
    disk: SpaceWriter,
    folder: PathBuf,
    bound_bytes: u64,
    quota: Option<QuotaLeft>,
    since_count: Option<u64>,
}

/// What the tenant's disk quota leaves to uploads.
#[derive(Debug)]
struct QuotaLeft {
    exceeded: Exceeded,
    left_bytes: u64,
}

impl ServiceBase {
    /// Room for one upload of a tenant, whose folder is there.
    pub(super) async fn upload_space(
        &self,
        tenant: &TenantId,
        folder: &UploadFolder,
    ) -> Result<UploadSpace, ServiceError> {
        let disk = self.disk.writer(folder.path(), Purpose::Data).map_err(no_space)?;
        let record = self.store.tenant(tenant.as_str()).await?.ok_or(StoreError::NoTenant)?;
        let quota = match record.quota.disk_mib {
            None => None,
            Some(max) => {
                let used = self.store.usage(tenant).await?.disk_mib;
                let left_bytes = max.saturating_sub(used).saturating_mul(MIB);
                Some(QuotaLeft {
                    exceeded: Exceeded { what: "MiB of disk", used, asked: 0, max },
                    left_bytes,
                })
            }
        };
        let bound_bytes = self.config.build_context_bytes.saturating_mul(BOUND_TIMES);
        Ok(UploadSpace { disk, folder: folder.path().to_owned(), bound_bytes, quota, since_count: None })
    }

    /// MiB of the uploads of a tenant.
    pub(crate) async fn uploaded_mib(&self, tenant: &TenantId) -> u64 {
        let folder = UploadFolder::new(&self.config.data, tenant);
        let counted = tokio::task::spawn_blocking(move || bytes_below(folder.path()));
        // It can't be cancelled, and a panic in it is logged by the hook.
        counted.await.unwrap_or(0).div_ceil(MIB)
    }
}

impl Sandboxes {
    /// Refuses a new sandbox that fits into the tenant's quota only without the uploads.
    pub(crate) async fn admit_beside_uploads(&self, lease: &Lease) -> Result<(), ServiceError> {
        let uploaded = self.inner.uploaded_mib(&lease.tenant).await;
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
    /// Asks the disk alone, for bytes that are written a second time; blocks.
    pub(super) fn take_again(&mut self, bytes: u64) -> Result<(), ServiceError> {
        self.disk.take(bytes).map_err(no_space)
    }

    /// Called before so many bytes are written.
    pub(super) async fn take(&mut self, bytes: u64) -> Result<(), ServiceError> {
        self.disk.take(bytes).map_err(no_space)?;
        let since = self.since_count.map(|since| since + bytes);
        self.since_count = since;
        if since.is_some_and(|since| since < COUNT_EVERY) {
            return Ok(());
        }
        self.since_count = Some(0);
        let held = held_with_room(&self.folder, self.bound_bytes, bytes).await?;
        match &self.quota {
            Some(quota) => quota.admit(held, bytes),
            None => Ok(()),
        }
    }
}

/// Bytes that the folder holds once there is room for more.
pub(super) async fn held_with_room(folder: &Path, bound_bytes: u64, more: u64) -> Result<u64, ServiceError> {
    let folder = folder.to_owned();
    let counted = tokio::task::spawn_blocking(move || make_room(&folder, bound_bytes, more)).await;
    // It can't be cancelled, and a panic in it is logged by the hook.
    counted.unwrap_or(None).ok_or_else(|| {
        ServiceError::new(Code::QuotaExceeded, "this tenant has too many unfinished uploads")
            .hint("finish or abort them; an unfinished upload is deleted two hours after its last part")
            .retry_after(60)
    })
}

impl QuotaLeft {
    fn admit(&self, held: u64, bytes: u64) -> Result<(), ServiceError> {
        if held.saturating_add(bytes) <= self.left_bytes {
            return Ok(());
        }
        let used = self.exceeded.used.saturating_add(held.div_ceil(MIB));
        let exceeded = Exceeded { used, asked: bytes.div_ceil(MIB), ..self.exceeded.clone() };
        Err(ServiceError::new(Code::QuotaExceeded, exceeded.to_string())
            .hint("uploads that no build uses are deleted after a day; delete sandboxes or snapshots, or ask for a larger quota"))
    }
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
