//! Volumes, and access to their files without a sandbox. Every operation waits for the disk, so all run on blocking
//! threads.

use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use atoll_model::VolumeId;
use atoll_provider::{ProviderError, VolumeFiles};

use super::provide::LEAST_FREE;
use super::snapshot::blocking;
use super::{EngineShared, failed};
use atoll_storage::{CopyError, Layers, VolumeFolder};
use atoll_volume_files::{LocalVolumeFiles, RemovalRoom};

const MIB: u64 = 1 << 20;

impl EngineShared {
    pub(super) async fn create_volume(
        &self,
        volume: &VolumeId,
        size_mib: Option<u32>,
    ) -> Result<(), ProviderError> {
        self.refuse_volume_size(size_mib)?;
        self.need_room(volume).await?;
        let name = volume.as_str().to_owned();
        let work = move |layers: &Layers| layers.create_volume(&name, bytes(size_mib)).map_err(CopyError::Io);
        self.with_volumes(volume, size_mib, work).await
    }

    pub(super) async fn copy_volume(
        &self,
        from: &VolumeId,
        to: &VolumeId,
        size_mib: Option<u32>,
    ) -> Result<(), ProviderError> {
        self.refuse_volume_size(size_mib)?;
        self.need_room(to).await?;
        let (source, name) = (from.as_str().to_owned(), to.as_str().to_owned());
        let work = move |layers: &Layers| layers.copy_volume(&source, &name, bytes(size_mib));
        self.with_volumes(from, size_mib, work).await
    }

    pub(super) async fn resize_volume(&self, volume: &VolumeId, size_mib: u32) -> Result<(), ProviderError> {
        self.refuse_volume_size(Some(size_mib))?;
        let name = volume.as_str().to_owned();
        let work = move |layers: &Layers| layers.resize_volume(&name, u64::from(size_mib) * MIB);
        self.with_volumes(volume, Some(size_mib), work).await
    }

    pub(super) async fn volume_bytes(&self, volume: &VolumeId) -> Result<u64, ProviderError> {
        let name = volume.as_str().to_owned();
        let work = move |layers: &Layers| layers.volume_bytes(&name).map_err(CopyError::Io);
        self.with_volumes(volume, None, work).await
    }

    pub(super) async fn remove_volume(&self, volume: &VolumeId) -> Result<(), ProviderError> {
        let name = volume.as_str().to_owned();
        let work = move |layers: &Layers| layers.remove_volume(&name).map_err(CopyError::Io);
        self.with_volumes(volume, None, work).await
    }

    pub(super) async fn volume_files(
        &self,
        volume: &VolumeId,
    ) -> Result<Box<dyn VolumeFiles>, ProviderError> {
        let name = volume.as_str().to_owned();
        let layers = Arc::clone(&self.resources.layers);
        let opened = blocking(move || layers.volume_folder(&name)).await;
        let root = opened.map_err(failed("opening a volume"))?;
        let root = root.ok_or_else(|| ProviderError::NoVolume { volume: volume.clone() })?;
        let (layers, volume) = (Arc::clone(&self.resources.layers), volume.as_str().to_owned());
        Ok(Box::new(LocalVolumeFiles::new(VolumeFolder::new(root), VolumeRemovalRoom { layers, volume })))
    }

    pub(super) async fn sweep_volumes(&self, known: Vec<VolumeId>) -> Result<(), ProviderError> {
        let known: HashSet<String> = known.iter().map(|id| id.as_str().to_owned()).collect();
        let layers = Arc::clone(&self.resources.layers);
        blocking(move || layers.sweep_volumes(&known)).await.map_err(failed("sweeping volumes"))
    }

    /// Plain folders have no size limit, so a request for one is refused.
    fn refuse_volume_size(&self, size_mib: Option<u32>) -> Result<(), ProviderError> {
        if size_mib.is_none() || self.resources.layers.limits_disk() {
            return Ok(());
        }
        Err(ProviderError::Unsupported {
            what: "a size for a volume".into(),
            hint: "volumes are plain folders on this machine; install btrfs-progs, or omit the size".into(),
        })
    }

    async fn need_room(&self, volume: &VolumeId) -> Result<(), ProviderError> {
        let (layers, name) = (Arc::clone(&self.resources.layers), volume.as_str().to_owned());
        let measure = move || Ok((layers.space()?.free, layers.room_in_share(&name)?));
        let (free, share) = blocking(measure).await.map_err(failed("measuring free space"))?;
        let what = match share {
            _ if free < LEAST_FREE => "disk space for volumes",
            Some(room) if room < LEAST_FREE => "disk space in the share of this tenant",
            _ => return Ok(()),
        };
        Err(ProviderError::Exhausted { what: what.into() })
    }

    async fn with_volumes<T: Send + 'static>(
        &self,
        volume: &VolumeId,
        size_mib: Option<u32>,
        work: impl FnOnce(&Layers) -> Result<T, CopyError> + Send + 'static,
    ) -> Result<T, ProviderError> {
        let layers = Arc::clone(&self.resources.layers);
        let done = blocking(move || Ok(work(&layers))).await.map_err(failed("working with a volume"))?;
        done.map_err(|error| match error {
            CopyError::BelowUse { used_bytes } => ProviderError::BelowUse {
                what: "size_mib",
                wanted_mib: size_mib.unwrap_or(0).into(),
                used_mib: used_bytes.div_ceil(MIB),
            },
            CopyError::Damaged(why) => ProviderError::Damaged { what: format!("volume {volume}"), why },
            CopyError::Io(cause) => match cause.kind() {
                io::ErrorKind::NotFound => ProviderError::NoVolume { volume: volume.clone() },
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                    ProviderError::Exhausted { what: "disk space for volumes".into() }
                }
                _ => failed("working with a volume")(cause),
            },
        })
    }
}

fn bytes(size_mib: Option<u32>) -> Option<u64> {
    size_mib.map(|mib| u64::from(mib) * MIB)
}

/// Beside the folder that sandboxes see, within the volume's own limit.
struct VolumeRemovalRoom {
    layers: Arc<Layers>,
    volume: String,
}

impl RemovalRoom for VolumeRemovalRoom {
    fn folder(&self) -> PathBuf {
        self.layers.volume_back_room(&self.volume)
    }

    fn with_space(&self, step: &mut dyn FnMut() -> io::Result<()>) -> io::Result<()> {
        self.layers.with_room_to_remove(&self.volume, step)
    }
}
