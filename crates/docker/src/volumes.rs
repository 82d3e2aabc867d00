//! Volumes that the Docker daemon keeps, for a daemon on this machine.
//!
//! ```text
//! atoll-<volume>         a named volume with the labels atoll.owner and atoll.volume
//!   _data/               its files, as sandboxes see them
//!   removed-…/           a folder that is being removed from it; no sandbox sees it
//! atoll-<volume>.draft   a copy that is under way; it has the label atoll.draft too
//! ```
//!
//! Docker renames no volume and changes no label, so a copy is made in a draft. The folder of the complete draft then takes
//! the place of the empty one of the new volume, in one step. A draft that is found at a start was interrupted.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use atoll_model::VolumeId;
use atoll_provider::{Capability, ProviderError, VolumeFiles, VolumeSupport};
use atoll_storage::{VolumeFolder, copy_live_tree, live_tree_bytes, remove_tree};
use atoll_volume_files::{LocalVolumeFiles, RemovalRoom};
use rustix::fs::{CWD, Mode, OFlags};

use crate::daemon::{FoundVolume, VolumeRole};
use crate::{DockerProvider, Shared, failed};

/// LIMIT: entries that are counted to measure a volume, which happens whenever volumes are listed.
const MEASURED_MOST: u64 = 100_000;
/// LIMIT: entries that are counted before a copy.
const COPIED_MOST: u64 = 4 << 20;
/// LIMIT: free space that a copy leaves on the daemon's disk.
const LEAST_FREE: u64 = 256 << 20;
/// Names beside the files of a volume that an interrupted removal leaves.
const REMAINS: [&str; 2] = ["removed-", ".trash-"];

#[async_trait]
impl VolumeSupport for DockerProvider {
    async fn create_volume(&self, volume: &VolumeId, size_mib: Option<u32>) -> Result<(), ProviderError> {
        self.shared.refuse_size(size_mib)?;
        let volume = volume.clone();
        self.shared.change_volume(|shared| async move { shared.create_volume(&volume).await }).await
    }

    async fn copy_volume(
        &self,
        from: &VolumeId,
        to: &VolumeId,
        size_mib: Option<u32>,
    ) -> Result<(), ProviderError> {
        self.shared.refuse_size(size_mib)?;
        let (from, to) = (from.clone(), to.clone());
        self.shared.change_volume(|shared| async move { shared.copy_volume(&from, &to).await }).await
    }

    async fn resize_volume(&self, _: &VolumeId, size_mib: u32) -> Result<(), ProviderError> {
        self.shared.refuse_size(Some(size_mib))
    }

    async fn volume_bytes(&self, volume: &VolumeId) -> Result<u64, ProviderError> {
        let root = self.shared.volume_root(volume).await?.1;
        let _turn = self.shared.measurements.acquire().await.map_err(failed("measuring a volume"))?;
        let counted = blocking(move || live_tree_bytes(root, MEASURED_MOST)).await;
        let counted = counted.map_err(failed("measuring a volume"))?;
        counted.ok_or_else(|| ProviderError::Unsupported {
            what: format!("measuring a volume with more than {MEASURED_MOST} files and folders"),
            hint: "use du in a sandbox that mounts it".to_owned(),
        })
    }

    async fn remove_volume(&self, volume: &VolumeId) -> Result<(), ProviderError> {
        let volume = volume.clone();
        self.shared.change_volume(|shared| async move { shared.remove_volume(&volume).await }).await
    }

    async fn volume_files(&self, volume: &VolumeId) -> Result<Box<dyn VolumeFiles>, ProviderError> {
        let (found, root) = self.shared.volume_root(volume).await?;
        Ok(Box::new(LocalVolumeFiles::new(VolumeFolder::new(root), BesideFiles(beside(&found)))))
    }

    async fn sweep_volumes(&self, known: Vec<VolumeId>) -> Result<(), ProviderError> {
        self.shared.sweep_volumes(&known).await
    }
}

/// The daemon's folder of a volume, beside its files.
struct BesideFiles(PathBuf);

impl RemovalRoom for BesideFiles {
    fn folder(&self) -> PathBuf {
        self.0.clone()
    }
}

impl Shared {
    /// Docker limits no volume.
    fn refuse_size(&self, size_mib: Option<u32>) -> Result<(), ProviderError> {
        match size_mib {
            None => Ok(()),
            Some(_) => Err(ProviderError::MissingCapability {
                provider: self.name,
                capability: Capability::DiskLimit,
                hint: "omit the size: volumes of a Docker daemon have no limit".to_owned(),
            }),
        }
    }

    /// Runs a change of volumes to its end, also without a caller, and while no sweep looks for what is half made.
    async fn change_volume<W, F>(self: &Arc<Self>, work: W) -> Result<(), ProviderError>
    where
        W: FnOnce(Arc<Self>) -> F,
        F: Future<Output = Result<(), ProviderError>> + Send + 'static,
    {
        let no_sweep = Arc::clone(&self.volume_sweep).read_owned().await;
        let work = work(Arc::clone(self));
        let task = self.changes.spawn(async move {
            let done = work.await;
            drop(no_sweep);
            done
        });
        task.await.map_err(failed("changing a volume"))?
    }

    /// The volume of the daemon with the files of a volume.
    pub(crate) async fn find_volume(&self, volume: &VolumeId) -> Result<Option<FoundVolume>, ProviderError> {
        let found = self.daemon.volumes(Some(volume)).await?;
        Ok(found.into_iter().find(|found| found.role == VolumeRole::Files))
    }

    /// A volume, and its folder.
    pub(crate) async fn volume_root(
        &self,
        volume: &VolumeId,
    ) -> Result<(FoundVolume, OwnedFd), ProviderError> {
        let found = self.find_volume(volume).await?;
        let found = found.ok_or_else(|| ProviderError::NoVolume { volume: volume.clone() })?;
        let root = self.open_files(&found)?;
        Ok((found, root))
    }

    fn open_files(&self, found: &FoundVolume) -> Result<OwnedFd, ProviderError> {
        open_folder(&found.path).map_err(|cause| match cause.kind() {
            io::ErrorKind::NotFound => ProviderError::Unsupported {
                what: format!("reaching the folder {} of a volume", found.path.display()),
                hint: "if the Docker daemon is on another machine, set docker.remote to true in the settings of this \
                       provider"
                    .to_owned(),
            },
            _ => failed("opening a volume")(cause),
        })
    }

    async fn create_volume(&self, volume: &VolumeId) -> Result<(), ProviderError> {
        if self.find_volume(volume).await?.is_some() {
            return Ok(());
        }
        let made = self.daemon.create_volume(volume, VolumeRole::Files).await?;
        // Every user in a sandbox that mounts the volume may write.
        let opened = self.open_files(&made).and_then(|root| {
            rustix::fs::fchmod(root, Mode::from_raw_mode(0o777)).map_err(failed("making a volume writable"))
        });
        if opened.is_err() {
            self.undo(volume).await;
        }
        opened
    }

    async fn copy_volume(&self, from: &VolumeId, to: &VolumeId) -> Result<(), ProviderError> {
        let source = self.volume_root(from).await?.1;
        let there = self.daemon.volumes(Some(to)).await?;
        if there.iter().any(|found| found.role == VolumeRole::Draft) {
            // An earlier copy was interrupted.
            self.remove_volume(to).await?;
        } else if !there.is_empty() {
            return Ok(());
        }
        let _turn = self.copies.acquire().await.map_err(failed("copying a volume"))?;
        let copied = self.copy_files(source, to).await;
        if copied.is_err() {
            self.undo(to).await;
        }
        copied
    }

    async fn copy_files(&self, source: OwnedFd, to: &VolumeId) -> Result<(), ProviderError> {
        let draft = self.daemon.create_volume(to, VolumeRole::Draft).await?;
        let target = self.open_files(&draft)?;
        let copied = blocking(move || {
            need_room(&source)?;
            copy_live_tree(source, target)
        });
        copied.await.map_err(not_copied)?;
        let made = self.daemon.create_volume(to, VolumeRole::Files).await?;
        let (complete, empty) = (draft.path.clone(), made.path);
        let moved = blocking(move || {
            std::fs::rename(&complete, &empty)?;
            [&complete, &empty].into_iter().filter_map(|path| path.parent()).try_for_each(sync_folder)
        });
        moved.await.map_err(failed("giving a copy its name"))?;
        // The copy is complete.
        if let Err(error) = self.daemon.remove_volume(&draft).await {
            tracing::warn!(volume = %to, %error, "an empty draft of a volume could not be removed; the next start removes it");
        }
        Ok(())
    }

    /// Removes a volume that could not be completed.
    async fn undo(&self, volume: &VolumeId) {
        if let Err(error) = self.remove_volume(volume).await {
            tracing::warn!(%volume, %error, "a volume that was not completed could not be removed; the next start removes it");
        }
    }

    /// Removes a volume, also one that is not complete.
    async fn remove_volume(&self, volume: &VolumeId) -> Result<(), ProviderError> {
        for found in self.daemon.volumes(Some(volume)).await? {
            self.daemon.remove_volume(&found).await?;
        }
        Ok(())
    }

    /// Removes drafts, volumes that are not known, and folders that known ones were letting go of. One that fails keeps no
    /// other from being swept.
    async fn sweep_volumes(&self, known: &[VolumeId]) -> Result<(), ProviderError> {
        let _no_change = self.volume_sweep.write().await;
        let mut outcome = Ok(());
        for found in self.daemon.volumes(None).await? {
            let swept = match found.role {
                VolumeRole::Files if known.contains(&found.volume) => {
                    let beside = beside(&found);
                    blocking(move || remove_remains(&beside)).await.map_err(failed("sweeping a volume"))
                }
                VolumeRole::Files | VolumeRole::Draft => self.daemon.remove_volume(&found).await,
            };
            outcome = outcome.and(swept);
        }
        outcome
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(io::Error::other("work on a volume panicked")))
}

/// The daemon's folder that contains the folder with a volume's files.
fn beside(found: &FoundVolume) -> PathBuf {
    found.path.parent().unwrap_or(&found.path).to_owned()
}

fn open_folder(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(CWD, path, flags, Mode::empty())?)
}

fn sync_folder(path: &Path) -> io::Result<()> {
    Ok(rustix::fs::fsync(open_folder(path)?)?)
}

/// Refuses a copy that would fill the disk: no limit of a volume prevents that.
fn need_room(source: &OwnedFd) -> io::Result<()> {
    let disk = rustix::fs::fstatvfs(source)?;
    let bytes = live_tree_bytes(source, COPIED_MOST)?
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it has too many files"))?;
    match disk.f_bavail.saturating_mul(disk.f_frsize) >= bytes.saturating_add(LEAST_FREE) {
        true => Ok(()),
        false => Err(io::ErrorKind::StorageFull.into()),
    }
}

fn not_copied(cause: io::Error) -> ProviderError {
    match cause.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            ProviderError::Exhausted { what: "disk space for volumes of the Docker daemon".to_owned() }
        }
        io::ErrorKind::InvalidData => ProviderError::Unsupported {
            what: format!("a copy of the volume ({cause})"),
            hint: "copy its files with a program in a sandbox".to_owned(),
        },
        _ => failed("copying a volume")(cause),
    }
}

fn remove_remains(beside: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(beside)? {
        let entry = entry?;
        let name = entry.file_name();
        let is_remains = REMAINS.iter().any(|start| name.as_encoded_bytes().starts_with(start.as_bytes()));
        if is_remains && entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    Ok(())
}
