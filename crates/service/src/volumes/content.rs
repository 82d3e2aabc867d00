//! The files of a volume for whoever shows the token of that volume, as SDKs do that were given no key for it. The token is
//! derived from the server's own secret and the volume's id: it is stored nowhere, opens one volume, and ends with it.

use atoll_model::{Code, Volume, VolumeId, VolumeState};
use atoll_provider::{VolumeEntry, VolumeFiles, VolumeOwner};
use tokio::io::AsyncRead;

use super::files::{DEPTH_MAX, ENTRIES_MAX, of};
use crate::service::Service;
use crate::{Bytestream, ServiceError};

const PURPOSE: &str = "volume";

/// Somebody has shown the token of a volume.
#[derive(Debug, Clone)]
pub struct VolumePass {
    id: VolumeId,
}

impl Service {
    /// What opens the files of this volume, and nothing else.
    #[must_use]
    pub fn volume_token(&self, volume: &Volume) -> String {
        self.inner.derived(PURPOSE, &[volume.id.as_str()])
    }

    /// Lets in who shows the token of a volume. Whether there is such a volume is not told to others.
    pub fn admit_volume(&self, id: &str, shown: &str) -> Result<VolumePass, ServiceError> {
        match (id.parse(), self.inner.derived_is(PURPOSE, &[id], shown)) {
            (Ok(id), true) => Ok(VolumePass { id }),
            _ => Err(self.wrong_credential(
                ServiceError::new(Code::Unauthenticated, "the request has no valid token of this volume")
                    .hint("get the volume again: the answer contains the token"),
            )),
        }
    }

    /// One entry; a link itself.
    pub async fn content_stat(&self, pass: &VolumePass, path: &str) -> Result<VolumeEntry, ServiceError> {
        self.content(pass, false).await?.stat(path).await.map_err(of(path))
    }

    /// What is in a folder, down to `depth`; refused where there is more than an answer holds.
    pub async fn content_list(
        &self,
        pass: &VolumePass,
        path: &str,
        depth: u32,
    ) -> Result<Vec<VolumeEntry>, ServiceError> {
        let files = self.content(pass, false).await?;
        let entries = files.list(path, depth.clamp(1, DEPTH_MAX), ENTRIES_MAX + 1).await.map_err(of(path))?;
        if entries.len() > ENTRIES_MAX {
            let message = format!("there are more than {ENTRIES_MAX} entries");
            return Err(ServiceError::new(Code::PayloadTooLarge, message)
                .hint("list its folders one by one, or with a smaller depth"));
        }
        Ok(entries)
    }

    /// The bytes of a file.
    pub async fn content_read(
        &self,
        pass: &VolumePass,
        path: &str,
    ) -> Result<(VolumeEntry, Bytestream), ServiceError> {
        let (entry, bytes) = self.content(pass, false).await?.read(path).await.map_err(of(path))?;
        Ok((entry, Box::pin(bytes)))
    }

    /// Writes a file, whole or not at all; `replace`: also where one is; `parents`: with the folders above it.
    pub async fn content_write(
        &self,
        pass: &VolumePass,
        path: &str,
        owner: VolumeOwner,
        (replace, parents): (bool, bool),
        bytes: impl AsyncRead + Send + Unpin + 'static,
    ) -> Result<VolumeEntry, ServiceError> {
        let files = self.content(pass, true).await?;
        if !replace && files.stat(path).await.is_ok() {
            return Err(of(path)(std::io::ErrorKind::AlreadyExists.into()));
        }
        files.write(path, owner, parents, Box::new(bytes)).await.map_err(of(path))
    }

    /// Makes a folder; `parents`: with those above it, and one that is there is fine.
    pub async fn content_make_folder(
        &self,
        pass: &VolumePass,
        path: &str,
        owner: VolumeOwner,
        parents: bool,
    ) -> Result<VolumeEntry, ServiceError> {
        let files = self.content(pass, true).await?;
        files.make_folder(path, owner, parents).await.map_err(of(path))
    }

    /// Changes owner and permissions.
    pub async fn content_change(
        &self,
        pass: &VolumePass,
        path: &str,
        owner: VolumeOwner,
    ) -> Result<VolumeEntry, ServiceError> {
        self.content(pass, true).await?.change(path, owner).await.map_err(of(path))
    }

    /// Removes, folders with all that is in them.
    pub async fn content_remove(&self, pass: &VolumePass, path: &str) -> Result<(), ServiceError> {
        self.content(pass, true).await?.remove(path).await.map_err(of(path))
    }

    async fn content(&self, pass: &VolumePass, writes: bool) -> Result<Box<dyn VolumeFiles>, ServiceError> {
        let known = self.inner.store.volume(&pass.id).await?;
        let known = known.filter(|volume| volume.state == VolumeState::Ready);
        let volume = known.ok_or_else(|| super::missing(pass.id.as_str()))?;
        self.files_of(&volume, writes).await
    }
}
