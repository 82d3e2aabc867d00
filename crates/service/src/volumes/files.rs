//! The files of a volume without a sandbox.

use std::io::ErrorKind;
use std::sync::Arc;

use atoll_model::{Code, Principal, Volume};
use atoll_provider::{Provider, VolumeEntry, VolumeFiles, VolumeOwner};
use tokio::io::AsyncRead;

use super::Volumes;
use crate::sandboxes::printable;
use crate::{Bytestream, ServiceError};

/// LIMIT: what an answer may hold.
const ENTRIES_MAX: usize = 10_000;
const DEPTH_MAX: u32 = 64;

/// The files of one volume, for a caller that may use them.
pub struct OpenVolume {
    volume: Volume,
    provider: Arc<dyn Provider>,
}

/// What a write may do besides writing one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteRules {
    /// Write over a file that is there.
    pub replace: bool,
    /// Make the folders above it.
    pub parents: bool,
}

impl std::fmt::Debug for OpenVolume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenVolume").field("volume", &self.volume.id).finish_non_exhaustive()
    }
}

impl Volumes {
    /// The files of a volume that the key sees.
    pub async fn open(&self, who: &Principal, ident: &str) -> Result<OpenVolume, ServiceError> {
        self.opened(self.local(who, ident).await?)
    }

    pub(super) fn opened(&self, volume: Volume) -> Result<OpenVolume, ServiceError> {
        let provider = self.inner.providers.of_volume(&volume)?;
        Ok(OpenVolume { volume, provider })
    }
}

impl OpenVolume {
    /// One entry; a link itself, not what it leads to.
    pub async fn stat(&self, path: &str) -> Result<VolumeEntry, ServiceError> {
        self.files().await?.stat(path).await.map_err(of(path))
    }

    /// What is in a folder, down to `depth`; the second answer says whether there was more than fits.
    pub async fn list(&self, path: &str, depth: u32) -> Result<(Vec<VolumeEntry>, bool), ServiceError> {
        let depth = depth.clamp(1, DEPTH_MAX);
        let mut entries = self.files().await?.list(path, depth, ENTRIES_MAX + 1).await.map_err(of(path))?;
        let more = entries.len() > ENTRIES_MAX;
        entries.truncate(ENTRIES_MAX);
        Ok((entries, more))
    }

    /// The same, refused where there is more than an answer holds.
    pub async fn list_all(&self, path: &str, depth: u32) -> Result<Vec<VolumeEntry>, ServiceError> {
        let (entries, more) = self.list(path, depth).await?;
        if more {
            let message = format!("there are more than {ENTRIES_MAX} entries");
            return Err(ServiceError::new(Code::PayloadTooLarge, message)
                .hint("list its folders one by one, or with a smaller depth"));
        }
        Ok(entries)
    }

    /// The bytes of a file.
    pub async fn read(&self, path: &str) -> Result<(VolumeEntry, Bytestream), ServiceError> {
        let (entry, bytes) = self.files().await?.read(path).await.map_err(of(path))?;
        Ok((entry, Box::pin(bytes)))
    }

    /// Writes a file, whole or not at all.
    pub async fn write(
        &self,
        path: &str,
        owner: VolumeOwner,
        rules: WriteRules,
        bytes: impl AsyncRead + Send + Unpin + 'static,
    ) -> Result<VolumeEntry, ServiceError> {
        let files = self.writable().await?;
        if !rules.replace && files.stat(path).await.is_ok() {
            return Err(of(path)(ErrorKind::AlreadyExists.into()));
        }
        files.write(path, owner, rules.parents, Box::new(bytes)).await.map_err(of(path))
    }

    /// Makes a folder; `parents`: with those above it, and one that is there is fine.
    pub async fn make_folder(
        &self,
        path: &str,
        owner: VolumeOwner,
        parents: bool,
    ) -> Result<VolumeEntry, ServiceError> {
        self.writable().await?.make_folder(path, owner, parents).await.map_err(of(path))
    }

    /// Changes owner and permissions.
    pub async fn change(&self, path: &str, owner: VolumeOwner) -> Result<VolumeEntry, ServiceError> {
        self.writable().await?.change(path, owner).await.map_err(of(path))
    }

    /// Moves an entry, replacing a file.
    pub async fn rename(&self, from: &str, to: &str) -> Result<VolumeEntry, ServiceError> {
        self.writable().await?.rename(from, to).await.map_err(of(from))
    }

    /// Removes an entry, folders with all that is in them.
    pub async fn remove(&self, path: &str) -> Result<(), ServiceError> {
        self.writable().await?.remove(path).await.map_err(of(path))
    }

    async fn writable(&self) -> Result<Box<dyn VolumeFiles>, ServiceError> {
        if self.volume.read_only {
            let message = format!("volume {} is read-only", self.volume.name);
            return Err(ServiceError::new(Code::Forbidden, message).hint("change its read_only first"));
        }
        self.files().await
    }

    async fn files(&self) -> Result<Box<dyn VolumeFiles>, ServiceError> {
        if self.volume.folder.is_some() {
            let message = format!("the files of volume {} are a folder of the host", self.volume.name);
            return Err(ServiceError::new(Code::Unsupported, message)
                .hint("access them on the host, or from a sandbox that mounts the volume"));
        }
        Ok(self.provider.volume_files(&self.volume.id).await?)
    }
}

/// What the kernel said, in our vocabulary.
fn of(path: &str) -> impl FnOnce(std::io::Error) -> ServiceError {
    let path = printable(path);
    move |error| {
        let says = |code, why: &str| ServiceError::new(code, format!("{path}: {why}"));
        let shown = match error.kind() {
            ErrorKind::NotFound => says(Code::FileNotFound, "there is no such file or folder"),
            ErrorKind::AlreadyExists => says(Code::AlreadyExists, "it already exists"),
            ErrorKind::IsADirectory => says(Code::InvalidArgument, "it is a folder"),
            ErrorKind::NotADirectory => says(Code::InvalidArgument, "it is not a folder"),
            ErrorKind::DirectoryNotEmpty => says(Code::InvalidArgument, "the folder is not empty"),
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
                says(Code::DiskFull, "the volume is full").hint("remove files, or give it a larger size_mib")
            }
            ErrorKind::InvalidInput | ErrorKind::InvalidFilename | ErrorKind::InvalidData => {
                says(Code::InvalidArgument, "this path or value cannot be used")
            }
            ErrorKind::PermissionDenied | ErrorKind::CrossesDevices | ErrorKind::ReadOnlyFilesystem => {
                says(Code::InvalidArgument, "it is outside the volume, or its path contains a link")
            }
            ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => {
                ServiceError::new(Code::InvalidRequest, "the body ended before it was complete")
            }
            ErrorKind::TimedOut => says(Code::DeadlineExceeded, "it took too long"),
            // The error for too many links has no stable kind yet.
            _ if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
                says(Code::InvalidArgument, "its path contains a link")
            }
            _ => says(Code::Internal, "it could not be read or written"),
        };
        shown.caused_by(error)
    }
}
