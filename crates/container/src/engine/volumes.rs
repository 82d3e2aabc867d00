//! Volumes, and access to their files without a sandbox. Every operation waits for the disk, so all run on blocking
//! threads.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::Arc;

use async_trait::async_trait;
use atoll_model::VolumeId;
use atoll_provider::{Packed, ProviderError, VolumeEntry, VolumeEntryKind, VolumeFiles, VolumeOwner};
use rustix::fs::{CWD, FileType, Mode, OFlags};
use tokio::io::AsyncReadExt;

use super::pack;
use super::provide::LEAST_FREE;
use super::snapshot::blocking;
use super::{EngineShared, failed};
use atoll_storage::{CopyError, EntryAttributes, Layers, OpenedEntry, VolumeFolder};

const MIB: u64 = 1 << 20;
const PIECE: usize = 256 << 10;

impl EngineShared {
    pub(super) async fn create_volume(
        &self,
        volume: &VolumeId,
        size_mib: Option<u32>,
    ) -> Result<(), ProviderError> {
        self.refuse_volume_size(size_mib)?;
        self.need_room().await?;
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
        self.need_room().await?;
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
        Ok(Box::new(ContainerVolumeFiles { layers, volume, folder: Arc::new(VolumeFolder::new(root)) }))
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

    async fn need_room(&self) -> Result<(), ProviderError> {
        let layers = Arc::clone(&self.resources.layers);
        let space = blocking(move || layers.space()).await.map_err(failed("measuring free space"))?;
        if space.free < LEAST_FREE {
            return Err(ProviderError::Exhausted { what: "disk space for volumes".into() });
        }
        Ok(())
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

/// The files of one volume.
struct ContainerVolumeFiles {
    layers: Arc<Layers>,
    volume: String,
    folder: Arc<VolumeFolder>,
}

impl ContainerVolumeFiles {
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&VolumeFolder) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let folder = Arc::clone(&self.folder);
        blocking(move || work(&folder)).await
    }

    async fn entry(
        &self,
        work: impl FnOnce(&VolumeFolder) -> io::Result<OpenedEntry> + Send + 'static,
    ) -> io::Result<VolumeEntry> {
        self.run(work).await.map(entry)
    }
}

#[async_trait]
impl VolumeFiles for ContainerVolumeFiles {
    async fn stat(&self, path: &str) -> io::Result<VolumeEntry> {
        let path = path.to_owned();
        self.entry(move |folder| folder.stat(&path)).await
    }

    async fn list(&self, path: &str, depth: u32, most: usize) -> io::Result<Vec<VolumeEntry>> {
        let path = path.to_owned();
        let all = self.run(move |folder| folder.list(&path, depth, most)).await?;
        Ok(all.into_iter().map(entry).collect())
    }

    async fn read(&self, path: &str) -> io::Result<(VolumeEntry, Packed)> {
        let path = path.to_owned();
        let (found, file) = self.run(move |folder| folder.read(&path)).await?;
        let entry = entry(found);
        let size = entry.size;
        Ok((entry, pack::stream(move |out| copy(file, size, out))))
    }

    async fn write(
        &self,
        path: &str,
        owner: VolumeOwner,
        parents: bool,
        mut bytes: Packed,
    ) -> io::Result<VolumeEntry> {
        let (path, wanted) = (path.to_owned(), wanted(owner));
        let mut draft = self.run(move |folder| folder.begin(&path, wanted, parents)).await?;
        loop {
            let mut piece = Vec::with_capacity(PIECE);
            while piece.len() < PIECE && bytes.read_buf(&mut piece).await? > 0 {}
            if piece.is_empty() {
                break;
            }
            draft = blocking(move || {
                draft.file.write_all(&piece)?;
                Ok(draft)
            })
            .await?;
        }
        blocking(move || draft.publish()).await.map(entry)
    }

    async fn make_folder(&self, path: &str, owner: VolumeOwner, parents: bool) -> io::Result<VolumeEntry> {
        let (path, wanted) = (path.to_owned(), wanted(owner));
        self.entry(move |folder| folder.make_folder(&path, wanted, parents)).await
    }

    async fn change(&self, path: &str, owner: VolumeOwner) -> io::Result<VolumeEntry> {
        let (path, wanted) = (path.to_owned(), wanted(owner));
        self.entry(move |folder| folder.change(&path, wanted)).await
    }

    async fn rename(&self, from: &str, to: &str) -> io::Result<VolumeEntry> {
        let (from, to) = (from.to_owned(), to.to_owned());
        self.entry(move |folder| folder.rename(&from, &to)).await
    }

    async fn remove(&self, path: &str) -> io::Result<()> {
        let (path, layers, volume) = (path.to_owned(), Arc::clone(&self.layers), self.volume.clone());
        self.run(move |folder| {
            let room = layers.volume_back_room(&volume);
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let aside = rustix::fs::openat(CWD, &room, flags, Mode::empty())?;
            let mut random = [0; 8];
            getrandom::fill(&mut random).map_err(io::Error::other)?;
            let name = format!("removed-{}", hex::encode(random));
            let is_folder = layers.with_room_to_remove(&volume, || folder.take_away(&path, &aside, &name))?;
            if is_folder {
                layers.with_room_to_remove(&volume, || atoll_storage::remove_tree(&room.join(&name)))?;
            }
            Ok(())
        })
        .await
    }
}

fn copy(file: File, size: u64, out: &mut impl Write) -> io::Result<()> {
    let copied = io::copy(&mut file.take(size), out)?;
    if copied < size {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file shrank while it was read"));
    }
    out.flush()
}

fn wanted(owner: VolumeOwner) -> EntryAttributes {
    EntryAttributes { uid: owner.uid, gid: owner.gid, mode: owner.mode }
}

fn entry(found: OpenedEntry) -> VolumeEntry {
    let ms = |seconds: i64, nanoseconds: u64| {
        seconds.saturating_mul(1_000).saturating_add(i64::try_from(nanoseconds / 1_000_000).unwrap_or(0))
    };
    let kind = match found.kind() {
        FileType::RegularFile => VolumeEntryKind::File,
        FileType::Directory => VolumeEntryKind::Folder,
        FileType::Symlink => VolumeEntryKind::Link,
        _ => VolumeEntryKind::Other,
    };
    let OpenedEntry { path, stat, target } = found;
    VolumeEntry {
        path,
        kind,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        accessed_ms: ms(stat.st_atime, stat.st_atime_nsec),
        modified_ms: ms(stat.st_mtime, stat.st_mtime_nsec),
        changed_ms: ms(stat.st_ctime, stat.st_ctime_nsec),
        target,
    }
}
