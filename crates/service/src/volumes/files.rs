//! The files of a volume without a sandbox.

use std::io::ErrorKind;

use atoll_model::{Code, Principal, Volume};
use atoll_provider::{VolumeEntry, VolumeFiles, VolumeOwner};
use tokio::io::AsyncRead;

use crate::sandboxes::printable;
use crate::service::Service;
use crate::{Bytestream, ServiceError};

/// LIMIT: what an answer may hold.
pub(super) const ENTRIES_MAX: usize = 10_000;
pub(super) const DEPTH_MAX: u32 = 64;

impl Service {
    /// One entry; a link itself, not what it leads to.
    pub async fn volume_stat(
        &self,
        who: &Principal,
        ident: &str,
        path: &str,
    ) -> Result<VolumeEntry, ServiceError> {
        self.files(who, ident).await?.stat(path).await.map_err(of(path))
    }

    /// What is in a folder, down to `depth`; the second answer says whether there was more than fits.
    pub async fn volume_list(
        &self,
        who: &Principal,
        ident: &str,
        path: &str,
        depth: u32,
    ) -> Result<(Vec<VolumeEntry>, bool), ServiceError> {
        let files = self.files(who, ident).await?;
        let depth = depth.clamp(1, DEPTH_MAX);
        let mut entries = files.list(path, depth, ENTRIES_MAX + 1).await.map_err(of(path))?;
        let more = entries.len() > ENTRIES_MAX;
        entries.truncate(ENTRIES_MAX);
        Ok((entries, more))
    }

    /// The bytes of a file.
    pub async fn volume_read(
        &self,
        who: &Principal,
        ident: &str,
        path: &str,
    ) -> Result<(VolumeEntry, Bytestream), ServiceError> {
        let (entry, bytes) = self.files(who, ident).await?.read(path).await.map_err(of(path))?;
        Ok((entry, Box::pin(bytes)))
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
        let files = self.writable(who, ident).await?;
        files.write(path, owner, true, Box::new(bytes)).await.map_err(of(path))
    }

    /// Makes a folder, with those above it.
    pub async fn volume_make_folder(
        &self,
        who: &Principal,
        ident: &str,
        path: &str,
        owner: VolumeOwner,
    ) -> Result<VolumeEntry, ServiceError> {
        self.writable(who, ident).await?.make_folder(path, owner, true).await.map_err(of(path))
    }

    /// Changes owner and permissions.
    pub async fn volume_change(
        &self,
        who: &Principal,
        ident: &str,
        path: &str,
        owner: VolumeOwner,
    ) -> Result<VolumeEntry, ServiceError> {
        self.writable(who, ident).await?.change(path, owner).await.map_err(of(path))
    }

    /// Moves an entry, replacing a file.
    pub async fn volume_move(
        &self,
        who: &Principal,
        ident: &str,
        from: &str,
        to: &str,
    ) -> Result<VolumeEntry, ServiceError> {
        self.writable(who, ident).await?.rename(from, to).await.map_err(of(from))
    }

    /// Removes an entry, folders with all that is in them.
    pub async fn volume_remove(&self, who: &Principal, ident: &str, path: &str) -> Result<(), ServiceError> {
        self.writable(who, ident).await?.remove(path).await.map_err(of(path))
    }

    async fn files(&self, who: &Principal, ident: &str) -> Result<Box<dyn VolumeFiles>, ServiceError> {
        self.files_of(&self.volume(who, ident).await?, false).await
    }

    async fn writable(&self, who: &Principal, ident: &str) -> Result<Box<dyn VolumeFiles>, ServiceError> {
        self.files_of(&self.volume(who, ident).await?, true).await
    }

    /// The files of a volume, to be written too where `writes`.
    pub(super) async fn files_of(
        &self,
        volume: &Volume,
        writes: bool,
    ) -> Result<Box<dyn VolumeFiles>, ServiceError> {
        if writes && volume.read_only {
            let message = format!("volume {} is read-only", volume.name);
            return Err(ServiceError::new(Code::Forbidden, message).hint("change its read_only first"));
        }
        if volume.folder.is_some() {
            let message = format!("the files of volume {} are a folder of the host", volume.name);
            return Err(ServiceError::new(Code::Unsupported, message)
                .hint("access them on the host, or from a sandbox that mounts the volume"));
        }
        Ok(self.inner.provider.volume_files(&volume.id).await?)
    }
}

/// What the kernel said, in our vocabulary.
pub(super) fn of(path: &str) -> impl FnOnce(std::io::Error) -> ServiceError {
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
