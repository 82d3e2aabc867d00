//! Rows of volumes, and which sandboxes see them.

use async_trait::async_trait;
use atoll_model::{TenantId, Volume, VolumeId};

use crate::StoreError;

/// Keeps rows of volumes. Part of [`crate::Store`]; an insert of a lease with mounts is refused with
/// [`StoreError::NoVolume`] unless each of them is ready and of the same tenant.
#[async_trait]
pub trait VolumeStore: Send + Sync + 'static {
    /// Remembers a new volume. [`StoreError::VolumeNameTaken`] when another of the tenant that is not being deleted has the
    /// name; [`StoreError::Quota`] when it does not fit.
    async fn insert_volume(&self, volume: Volume) -> Result<(), StoreError>;

    /// Replaces what is known of a volume; says whether it was there. [`StoreError::VolumeInUse`] when it shall be deleted
    /// and a sandbox that is not deleted mounts it; [`StoreError::Quota`] when it grows beyond what fits.
    async fn set_volume(&self, volume: Volume) -> Result<bool, StoreError>;

    /// One by its id.
    async fn volume(&self, id: &VolumeId) -> Result<Option<Volume>, StoreError>;

    /// What a word may mean: the volume with that id, else those with that name, else those whose id starts so. Two at most;
    /// those that are being deleted only by whole id.
    async fn find_volume(&self, tenant: Option<&TenantId>, ident: &str) -> Result<Vec<Volume>, StoreError>;

    /// By name, with how many sandboxes that are not deleted mount each; those that are being deleted too.
    async fn volumes(&self, tenant: Option<&TenantId>) -> Result<Vec<(Volume, u32)>, StoreError>;

    /// How many sandboxes that are not deleted mount it.
    async fn volume_users(&self, id: &VolumeId) -> Result<u32, StoreError>;

    /// Forgets a volume; says whether it was there.
    async fn delete_volume(&self, id: &VolumeId) -> Result<bool, StoreError>;
}
