//! Volumes: files that outlive sandboxes. They are created, found, copied, resized and removed here.
//!
//! ```text
//! row: making ──► files ──► row: ready ──► row: deleting ──► no files ──► no row
//! ```
//! The row always tells what may exist, so the next start repairs the state after a crash at any point: see [`sweep`].
//! The store decides in one transaction whether a sandbox mounts a volume or the volume is removed.

mod content;
mod files;
mod folder;
mod mounts;
mod sweep;

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use atoll_model::policy::authz;
use atoll_model::{Code, Principal, Volume, VolumeId, VolumeState};
use atoll_provider::{Capability, Provider};

pub use files::{OpenVolume, WriteRules};

use crate::ServiceError;
use crate::base::{ServiceBase, visible};
use crate::random::entropy;
use crate::sandboxes::printable;

/// LIMIT: a smaller volume has no room for the file system itself.
const SIZE_MIB_MIN: u32 = 1;
const SIZE_MIB_MAX: u32 = 16 << 20;

/// A volume to create.
#[derive(Debug, Clone, Default)]
pub struct NewVolume {
    /// Unique among the tenant's volumes.
    pub name: String,
    /// The provider that keeps its files; `None`: the server's default.
    pub provider: Option<String>,
    /// Its size; `None`: the server's default.
    pub size_mib: Option<u32>,
    /// A folder of the host instead, below a root that the operator allowed; needs an admin key.
    pub folder: Option<String>,
    /// Whether writing is forbidden.
    pub read_only: bool,
}

/// A change of a volume; `None` leaves a field unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UpdateVolume {
    /// The new size.
    pub size_mib: Option<u32>,
    /// Whether writing is forbidden; applies from the next start of a sandbox on.
    pub read_only: Option<bool>,
}

/// A volume as users see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeRecord {
    /// Its row.
    pub volume: Volume,
    /// Bytes in it; `None` if that is not known.
    pub used_bytes: Option<u64>,
    /// How many sandboxes that are not deleted mount it.
    pub mounted_by: u32,
}

/// The volumes of all tenants. Cloning is cheap.
#[derive(Clone)]
pub struct Volumes {
    inner: Arc<VolumesState>,
}

struct VolumesState {
    base: Arc<ServiceBase>,
    turns: VolumeTurns,
}

impl Deref for VolumesState {
    type Target = ServiceBase;

    fn deref(&self) -> &ServiceBase {
        &self.base
    }
}

impl Volumes {
    pub(crate) fn new(base: &Arc<ServiceBase>) -> Self {
        Self { inner: Arc::new(VolumesState { base: Arc::clone(base), turns: VolumeTurns::default() }) }
    }

    /// Makes a volume.
    pub async fn create(&self, who: &Principal, new: NewVolume) -> Result<VolumeRecord, ServiceError> {
        check_name(&new.name)?;
        let provider = self.inner.providers.requested(new.provider.as_deref())?;
        self.inner.providers.check(who, provider.as_ref())?;
        let folder = match &new.folder {
            Some(folder) => {
                authz::admin(who)?;
                if new.size_mib.is_some() {
                    let message = "size_mib: a folder of the host has no size limit";
                    return Err(ServiceError::new(Code::InvalidRequest, message));
                }
                Some(folder::check(&self.inner.config, folder)?)
            }
            None => None,
        };
        let size_mib = if folder.is_some() { None } else { self.size_of(&provider, new.size_mib)? };
        let volume = Volume {
            id: VolumeId::from_entropy(entropy()?),
            tenant: who.tenant.clone(),
            node: self.inner.store.node().clone(),
            name: new.name,
            provider: provider.name().to_owned(),
            size_mib,
            folder: folder.map(|path| path.to_string_lossy().into_owned()),
            read_only: new.read_only,
            parent: None,
            state: VolumeState::Making,
            created_at: self.inner.clock.now(),
        };
        let volume = self.inner.run_detached(make(Arc::clone(&self.inner), volume, None)).await?;
        tracing::info!(tenant = %who.tenant, key = %who.key, volume = %volume.id, name = volume.name, "a volume was made");
        self.record(volume).await
    }

    /// Makes a volume with the files of another as they are now.
    pub async fn copy(&self, who: &Principal, from: &str, name: &str) -> Result<VolumeRecord, ServiceError> {
        check_name(name)?;
        let from = self.local(who, from).await?;
        if from.folder.is_some() {
            let message = format!("volume {} is a folder of the host, which cannot be copied", from.name);
            return Err(ServiceError::new(Code::Unsupported, message));
        }
        let volume = Volume {
            id: VolumeId::from_entropy(entropy()?),
            name: name.to_owned(),
            read_only: false,
            parent: Some(from.id.clone()),
            state: VolumeState::Making,
            created_at: self.inner.clock.now(),
            ..from.clone()
        };
        let volume = self.inner.run_detached(make(Arc::clone(&self.inner), volume, Some(from.id))).await?;
        tracing::info!(tenant = %volume.tenant, key = %who.key, volume = %volume.id, name = volume.name, "a volume was copied");
        self.record(volume).await
    }

    /// The volumes that the key sees, by name.
    pub async fn list(&self, who: &Principal) -> Result<Vec<VolumeRecord>, ServiceError> {
        let all = self.inner.store.volumes(visible(who)).await?;
        let records = all.into_iter().map(|(volume, mounted_by)| async move {
            VolumeRecord { used_bytes: used(&self.inner, &volume).await, volume, mounted_by }
        });
        Ok(futures::future::join_all(records).await)
    }

    /// A volume by id, name or unique start of its id.
    pub async fn get(&self, who: &Principal, ident: &str) -> Result<VolumeRecord, ServiceError> {
        let volume = self.ready(who, ident).await?;
        self.record(volume).await
    }

    /// Changes it.
    pub async fn update(
        &self,
        who: &Principal,
        ident: &str,
        change: UpdateVolume,
    ) -> Result<VolumeRecord, ServiceError> {
        let volume = self.local(who, ident).await?;
        if let Some(size) = change.size_mib {
            check_size(size)?;
            if volume.folder.is_some() {
                let message = "size_mib: a folder of the host has no size limit";
                return Err(ServiceError::new(Code::InvalidRequest, message));
            }
        }
        let volume = self.inner.run_detached(changed(Arc::clone(&self.inner), volume.id, change)).await?;
        tracing::info!(tenant = %volume.tenant, key = %who.key, volume = %volume.id, ?change, "a volume was changed");
        self.record(volume).await
    }

    /// Removes it with its files; [`Code::VolumeInUse`] while a sandbox that is not deleted mounts it. Of a folder of the host
    /// only the name goes.
    pub async fn remove(&self, who: &Principal, ident: &str) -> Result<(), ServiceError> {
        let volume = self.find(who, ident).await?;
        self.need_here(&volume)?;
        let id = volume.id.clone();
        self.inner.run_detached(remove(Arc::clone(&self.inner), volume)).await?;
        tracing::info!(tenant = %who.tenant, key = %who.key, volume = %id, "a volume was removed");
        Ok(())
    }

    /// Removes every volume of this node with its files, whoever owns it: for the removal of a server. Sandboxes are gone.
    pub async fn remove_own(&self) -> Result<(), ServiceError> {
        for volume in self.inner.store.own_volumes().await? {
            // One of a provider that this server does not have stays as it is.
            if volume.folder.is_none() && self.inner.providers.of_volume(&volume).is_ok() {
                remove(Arc::clone(&self.inner), volume).await?;
            }
        }
        Ok(())
    }

    /// A volume that can be used.
    async fn ready(&self, who: &Principal, ident: &str) -> Result<Volume, ServiceError> {
        let volume = self.find(who, ident).await?;
        if volume.state == VolumeState::Ready { Ok(volume) } else { Err(missing(ident)) }
    }

    /// A volume that can be used and whose files are on this node.
    async fn local(&self, who: &Principal, ident: &str) -> Result<Volume, ServiceError> {
        let volume = self.ready(who, ident).await?;
        self.need_here(&volume)?;
        Ok(volume)
    }

    fn need_here(&self, volume: &Volume) -> Result<(), ServiceError> {
        self.inner.need_here(&format!("volume {}", volume.name), &volume.node)
    }

    async fn find(&self, who: &Principal, ident: &str) -> Result<Volume, ServiceError> {
        let volume = self.find_visible(who, ident).await?;
        if volume.folder.is_some() {
            authz::host(who)?;
        }
        Ok(volume)
    }

    async fn find_visible(&self, who: &Principal, ident: &str) -> Result<Volume, ServiceError> {
        let mut found = self.inner.store.find_volume(Some(&who.tenant), ident).await?;
        if found.is_empty() && visible(who).is_none() {
            // Of other tenants by id only, as for sandboxes.
            found = self.inner.store.find_volume(None, ident).await?;
            found.retain(|volume| volume.id.as_str().starts_with(ident));
        }
        match (found.pop(), found.pop()) {
            (Some(volume), None) => Ok(volume),
            (None, _) => Err(missing(ident)),
            (Some(one), Some(other)) => {
                let message = format!("{} matches more than one volume", printable(ident));
                Err(ServiceError::new(Code::InvalidRequest, message)
                    .hint(format!("choose one of them: {}, {}, …", other.id, one.id)))
            }
        }
    }

    async fn record(&self, volume: Volume) -> Result<VolumeRecord, ServiceError> {
        let mounted_by = self.inner.store.volume_users(&volume.id).await?;
        Ok(VolumeRecord { used_bytes: used(&self.inner, &volume).await, volume, mounted_by })
    }

    fn size_of(&self, provider: &Arc<dyn Provider>, asked: Option<u32>) -> Result<Option<u32>, ServiceError> {
        match asked {
            Some(size) => check_size(size).map(|()| Some(size)),
            // If limits cannot be enforced, none is set.
            None => Ok(provider.capabilities().limits_disk.then_some(self.inner.config.volume_mib)),
        }
    }
}

/// Volumes whose files are being changed as a whole: one operation at a time.
#[derive(Default)]
struct VolumeTurns(Mutex<HashMap<VolumeId, Arc<tokio::sync::Mutex<()>>>>);

impl VolumeTurns {
    async fn take(&self, id: &VolumeId) -> tokio::sync::OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
            Arc::clone(turns.entry(id.clone()).or_default())
        };
        turn.lock_owned().await
    }
}

async fn make(
    inner: Arc<VolumesState>,
    volume: Volume,
    from: Option<VolumeId>,
) -> Result<Volume, ServiceError> {
    let (id, provider) = (volume.id.clone(), inner.providers.of_volume(&volume)?);
    if volume.folder.is_none() && !provider.capabilities().volumes {
        return Err(provider.missing(Capability::Volume).into());
    }
    let _turn = match &from {
        Some(from) => Some(inner.turns.take(from).await),
        None => None,
    };
    let more = if from.is_none() { beyond_default(&inner, volume.size_mib, 0) } else { 0 };
    inner.admission.reserve_volume(provider.as_ref(), &volume, promised_mib(&volume), more).await?;
    if let Err(refused) = inner.store.insert_volume(volume.clone()).await {
        inner.admission.release_volume(&id);
        return Err(refused.into());
    }
    inner.failpoint.reach("volume.row").await;
    let made = match (&volume.folder, &from) {
        (Some(_), _) => Ok(()),
        (None, Some(from)) => provider.copy_volume(from, &id, volume.size_mib).await,
        (None, None) => provider.create_volume(&id, volume.size_mib).await,
    };
    inner.failpoint.reach("volume.files").await;
    let ready = Volume { state: VolumeState::Ready, ..volume };
    let written = match made {
        Ok(()) => inner.store.set_volume(ready.clone()).await.map(|_| ()).map_err(ServiceError::from),
        Err(error) => Err(error.into()),
    };
    if let Err(failure) = written {
        let undone = Volume { state: VolumeState::Deleting, ..ready };
        if let Err(error) = remove_files_and_row(&inner, &undone).await {
            tracing::warn!(volume = %id, %error, "a partial volume could not be removed; the next start removes it");
        }
        return Err(failure);
    }
    Ok(ready)
}

/// What must be free for a volume of this size. Limits may add up to more than there is, but no single one may: it could not be
/// held. The server's own default is the operator's word.
fn beyond_default(inner: &VolumesState, size_mib: Option<u32>, had_mib: u32) -> u64 {
    let size = size_mib.filter(|size| *size > inner.config.volume_mib);
    size.map_or(0, |size| size.saturating_sub(had_mib).into())
}

async fn changed(
    inner: Arc<VolumesState>,
    id: VolumeId,
    change: UpdateVolume,
) -> Result<Volume, ServiceError> {
    let _turn = inner.turns.take(&id).await;
    let known = inner.store.volume(&id).await?.filter(|volume| volume.state == VolumeState::Ready);
    let before = known.ok_or_else(|| missing(id.as_str()))?;
    let after = Volume {
        size_mib: change.size_mib.or(before.size_mib),
        read_only: change.read_only.unwrap_or(before.read_only),
        ..before.clone()
    };
    if after.size_mib == before.size_mib {
        inner.store.set_volume(after.clone()).await?;
        return Ok(after);
    }
    let provider = inner.providers.of_volume(&before)?;
    let size = after.size_mib.unwrap_or_default();
    if before.size_mib.is_some_and(|before| size < before) {
        // The content may not fit, so the files are resized first.
        provider.resize_volume(&id, size).await?;
        inner.store.set_volume(after.clone()).await?;
        inner.admission.count_volume(&after, promised_mib(&after));
        return Ok(after);
    }
    let more = beyond_default(&inner, after.size_mib, before.size_mib.unwrap_or_default());
    inner.admission.reserve_volume(provider.as_ref(), &after, promised_mib(&after), more).await?;
    // The quota is checked first.
    if let Err(refused) = inner.store.set_volume(after.clone()).await {
        inner.admission.count_volume(&before, promised_mib(&before));
        return Err(refused.into());
    }
    if let Err(error) = provider.resize_volume(&id, size).await {
        inner.admission.count_volume(&before, promised_mib(&before));
        inner.store.set_volume(before).await?;
        return Err(error.into());
    }
    Ok(after)
}

async fn remove(inner: Arc<VolumesState>, volume: Volume) -> Result<(), ServiceError> {
    if volume.folder.is_none() {
        inner.providers.of_volume(&volume)?;
    }
    let _turn = inner.turns.take(&volume.id).await;
    let doomed = Volume { state: VolumeState::Deleting, ..volume };
    inner.store.set_volume(doomed.clone()).await?;
    inner.failpoint.reach("volume.deleting").await;
    remove_files_and_row(&inner, &doomed).await
}

/// The rest of a removal whose row is written.
async fn remove_files_and_row(inner: &VolumesState, volume: &Volume) -> Result<(), ServiceError> {
    if volume.folder.is_none() {
        inner.providers.of_volume(volume)?.remove_volume(&volume.id).await?;
    }
    inner.failpoint.reach("volume.removed").await;
    inner.store.delete_volume(&volume.id).await?;
    inner.admission.release_volume(&volume.id);
    Ok(())
}

/// The disk that is promised to a volume; folders of the host belong to the operator.
fn promised_mib(volume: &Volume) -> u64 {
    if volume.folder.is_some() { 0 } else { volume.size_mib.unwrap_or(0).into() }
}

async fn used(inner: &VolumesState, volume: &Volume) -> Option<u64> {
    let is_here = volume.node == *inner.store.node();
    if volume.folder.is_some() || volume.state != VolumeState::Ready || !is_here {
        return None;
    }
    inner.providers.of_volume(volume).ok()?.volume_bytes(&volume.id).await.ok()
}

fn check_size(size_mib: u32) -> Result<(), ServiceError> {
    if (SIZE_MIB_MIN..=SIZE_MIB_MAX).contains(&size_mib) {
        return Ok(());
    }
    let message = format!("size_mib must be between {SIZE_MIB_MIN} and {SIZE_MIB_MAX}, not {size_mib}");
    Err(ServiceError::new(Code::InvalidRequest, message))
}

/// The same rules as for names of sandboxes: a name cannot be an id, a path or a mount's `name:path`.
fn check_name(name: &str) -> Result<(), ServiceError> {
    Ok(atoll_model::check_name(name)?)
}

fn missing(ident: &str) -> ServiceError {
    ServiceError::new(Code::VolumeNotFound, format!("there is no volume {}", printable(ident)))
        .hint("list them: GET /v1/volumes, or atoll volume ls")
}
