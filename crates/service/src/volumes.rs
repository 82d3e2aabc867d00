//! Volumes: files that outlive sandboxes. Made, found, copied, resized, removed; their files without a sandbox.

use atoll_model::{Code, Principal, Volume};
use atoll_provider::{VolumeEntry, VolumeOwner};
use tokio::io::AsyncRead;

use crate::service::Service;
use crate::{Bytestream, ServiceError};

/// A volume to be made.
#[derive(Debug, Clone, Default)]
pub struct NewVolume {
    /// Unique among the tenant's volumes.
    pub name: String,
    /// How much it may hold; `None`: the server's default.
    pub size_mib: Option<u32>,
    /// A folder of the host instead, below a root that the operator allowed; needs an admin key.
    pub folder: Option<String>,
    /// Whether nobody may write.
    pub read_only: bool,
}

/// A change of a volume; `None` leaves a thing as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UpdateVolume {
    /// How much it may hold.
    pub size_mib: Option<u32>,
    /// Whether nobody may write; holds from the next start of a sandbox on.
    pub read_only: Option<bool>,
}

/// A volume as users see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeRecord {
    /// Its row.
    pub volume: Volume,
    /// Bytes in it; `None` where that is not known.
    pub used_bytes: Option<u64>,
    /// How many sandboxes that are not deleted mount it.
    pub mounted_by: u32,
}

fn not_yet() -> ServiceError {
    ServiceError::new(Code::Unsupported, "not built yet")
}

#[allow(clippy::unused_async)]
impl Service {
    /// Makes a volume.
    pub async fn create_volume(&self, who: &Principal, new: NewVolume) -> Result<VolumeRecord, ServiceError> {
        let _ = (who, new);
        Err(not_yet())
    }
    /// The volumes that the key sees, by name.
    pub async fn list_volumes(&self, who: &Principal) -> Result<Vec<VolumeRecord>, ServiceError> {
        let _ = who;
        Err(not_yet())
    }
    /// A volume by id, name or unique start of its id.
    pub async fn get_volume(&self, who: &Principal, ident: &str) -> Result<VolumeRecord, ServiceError> {
        let _ = (who, ident);
        Err(not_yet())
    }
    /// Changes it.
    pub async fn update_volume(
        &self,
        who: &Principal,
        ident: &str,
        change: UpdateVolume,
    ) -> Result<VolumeRecord, ServiceError> {
        let _ = (who, ident, change);
        Err(not_yet())
    }
    /// Removes it with its files; [`Code::VolumeInUse`] while a sandbox that is not deleted mounts it.
    pub async fn remove_volume(&self, who: &Principal, ident: &str) -> Result<(), ServiceError> {
        let _ = (who, ident);
        Err(not_yet())
    }
    /// Makes a volume with the files of another as they are now.
    pub async fn copy_volume(
        &self,
        who: &Principal,
        from: &str,
        name: &str,
    ) -> Result<VolumeRecord, ServiceError> {
        let _ = (who, from, name);
        Err(not_yet())
    }
    /// One entry.
    pub async fn volume_stat(
        &self,
        who: &Principal,
        ident: &str,
        path: &str,
    ) -> Result<VolumeEntry, ServiceError> {
        let _ = (who, ident, path);
        Err(not_yet())
    }
    /// What is in a folder, down to `depth`; the second answer says whether there was more than fits.
    pub async fn volume_list(
        &self,
        who: &Principal,
        ident: &str,
        path: &str,
        depth: u32,
    ) -> Result<(Vec<VolumeEntry>, bool), ServiceError> {
        let _ = (who, ident, path, depth);
        Err(not_yet())
    }
    /// The bytes of a file.
    pub async fn volume_read(
        &self,
        who: &Principal,
        ident: &str,
        path: &str,
    ) -> Result<(VolumeEntry, Bytestream), ServiceError> {
        let _ = (who, ident, path);
        Err(not_yet())
    }
    /// Writes a file, whole or not at all; parents are made.
    pub async fn volume_write(
        &self,
        who: &Principal,
        ident: &str,
        path: &str,
        owner: VolumeOwner,
        bytes: impl AsyncRead + Send + Unpin + 'static,
    ) -> Result<VolumeEntry, ServiceError> {
        let _ = (who, ident, path, owner, bytes);
        Err(not_yet())
    }
    /// Makes a folder, with those above it.
    pub async fn volume_make_folder(
        &self,
        who: &Principal,
        ident: &str,
        path: &str,
        owner: VolumeOwner,
    ) -> Result<VolumeEntry, ServiceError> {
        let _ = (who, ident, path, owner);
        Err(not_yet())
    }
    /// Changes owner and permissions.
    pub async fn volume_change(
        &self,
        who: &Principal,
        ident: &str,
        path: &str,
        owner: VolumeOwner,
    ) -> Result<VolumeEntry, ServiceError> {
        let _ = (who, ident, path, owner);
        Err(not_yet())
    }
    /// Moves an entry.
    pub async fn volume_move(
        &self,
        who: &Principal,
        ident: &str,
        from: &str,
        to: &str,
    ) -> Result<VolumeEntry, ServiceError> {
        let _ = (who, ident, from, to);
        Err(not_yet())
    }
    /// Removes an entry, folders with all that is in them.
    pub async fn volume_remove(&self, who: &Principal, ident: &str, path: &str) -> Result<(), ServiceError> {
        let _ = (who, ident, path);
        Err(not_yet())
    }
}
