//! Rows of volumes, and the sandboxes that mount them.

use async_trait::async_trait;
use atoll_model::{TenantId, Volume, VolumeId};

use crate::StoreError;

/// Stores rows of volumes. Part of [`crate::Store`]; an insert of a lease with mounts is refused with
/// [`StoreError::NoVolume`] unless each volume is ready and belongs to the same tenant.
#[async_trait]
pub trait VolumeStore: Send + Sync + 'static {
    /// Stores a new volume. [`StoreError::VolumeNameTaken`] if another volume of the tenant that is not being deleted
    /// has the name; [`StoreError::Quota`] if it does not fit.
    async fn insert_volume(&self, volume: Volume) -> Result<(), StoreError>;

    /// Replaces the row of a volume; returns whether it existed. [`StoreError::VolumeInUse`] if it is to be deleted and
    /// a sandbox that is not deleted mounts it; [`StoreError::Quota`] if it grows beyond the quota.
    async fn set_volume(&self, volume: Volume) -> Result<bool, StoreError>;

    /// A volume by its id.
    async fn volume(&self, id: &VolumeId) -> Result<Option<Volume>, StoreError>;

    /// The volume with this id, else those with this name, else those whose id starts with the text. At most two; those
    /// that are being deleted only by their whole id.
    async fn find_volume(&self, tenant: Option<&TenantId>, ident: &str) -> Result<Vec<Volume>, StoreError>;

    /// The volumes of this node in every state, for adoption.
    async fn own_volumes(&self) -> Result<Vec<Volume>, StoreError>;

    /// Volumes by name, each with the number of sandboxes that are not deleted and mount it; includes volumes that are
    /// being deleted.
    async fn volumes(&self, tenant: Option<&TenantId>) -> Result<Vec<(Volume, u32)>, StoreError>;

    /// How many sandboxes that are not deleted mount it.
    async fn volume_users(&self, id: &VolumeId) -> Result<u32, StoreError>;

    /// Removes a volume; returns whether it existed.
    async fn delete_volume(&self, id: &VolumeId) -> Result<bool, StoreError>;
}
