//! The one store of files that are sent before the build that copies from them: archives by tenant and by the hash that the
//! sender gave them, whole or in parts. E2B's links, Daytona's object storage and the native API all write into it.
//!
//! ```text
//! upload_ticket  ─► take_upload     one archive, without a key                    ┐
//! storage_access ─► admit_storage   object storage: whole objects, or in parts    ├─► DATA/uploads/TENANT
//! a build's own context             moves on into the folder of its build         ┘
//! ```
//!
//! All uploads of a tenant, finished or not, count against one bound, the tenant's disk quota and the reserve of the disk
//! ([`space`]). The least recently used archives make room for new ones; a timer removes what no build used for a day
//! ([`folder`]). A build gets links of its own, so a newer archive of the same hash changes nothing for it.
//!
//! Tickets and storage tokens are signed by the server's secret and stored nowhere. They end with the key that asked for them.

mod folder;
mod space;

use std::collections::HashSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use atoll_model::{Code, KeyId, Principal, TenantId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::Builds;
use super::ask::{BuildContext, BuildSource, StartBuild};
use super::context::{self, Staged, sent_in, upload_in};
use crate::ServiceError;
use crate::random::entropy;
use crate::sandboxes::printable;
pub use folder::{BadUploadHash, UploadHash};
use folder::{JoinedParts, PartialFile, UploadFolder, part_name};
use space::{UploadSpace, held_with_room};

/// LIMIT: SDKs stop sending after an hour.
const TICKET_S: i64 = 2 * 3_600;
const STORAGE_S: i64 = 3_600;
const SEND: Duration = Duration::from_secs(3_600);
/// LIMIT: that of S3.
const PARTS_MAX: u32 = 10_000;
const PIECE: usize = 256 << 10;
const TICKET: &str = "upload";
const STORAGE: &str = "storage";

impl Builds {
    /// Whether an archive with this hash is stored for builds of the caller.
    pub async fn has_upload(&self, who: &Principal, hash: &str) -> Result<bool, ServiceError> {
        let path = self.uploads_of(&who.tenant).archive(&parse(hash)?);
        Ok(tokio::fs::try_exists(&path).await.unwrap_or(false))
    }

    /// Lets its holder send the archive with this hash without a key.
    pub fn upload_ticket(&self, who: &Principal, hash: &str) -> Result<String, ServiceError> {
        parse(hash)?;
        Ok(self.inner.ticket(TICKET, &[who.tenant.as_str(), who.key.as_str(), hash], TICKET_S))
    }

    /// Receives an archive: completely or not at all. It replaces one with the same hash.
    pub async fn take_upload(&self, ticket: &str, bytes: BuildContext) -> Result<(), ServiceError> {
        let [tenant, key, hash] = self.inner.open_ticket(TICKET, ticket).ok_or_else(bad_ticket)?;
        let hash = hash.parse().map_err(|_| bad_ticket())?;
        self.admitted_uploads(tenant, key).await?.ok_or_else(bad_ticket)?.put(&hash, bytes).await
    }

    /// Temporary credentials of the object storage for build contexts.
    #[must_use]
    pub fn storage_access(&self, who: &Principal) -> StorageAccess {
        let inner = &self.inner;
        let token = inner.ticket(STORAGE, &[who.tenant.as_str(), who.key.as_str()], STORAGE_S);
        let access_key =
            format!("ATOLL{}", inner.derived_token("storage/key", &[&token])[..15].to_ascii_uppercase());
        let secret = inner.derived_token("storage/secret", &[&access_key]);
        StorageAccess { access_key, secret, token }
    }

    /// The uploads of the tenant whose storage token is shown.
    pub async fn admit_storage(&self, token: &str) -> Result<TenantUploads, ServiceError> {
        let [tenant, key] = self.inner.open_ticket(STORAGE, token).ok_or_else(bad_ticket)?;
        self.admitted_uploads(tenant, key).await?.ok_or_else(bad_ticket)
    }

    /// The uploads of a tenant, while the key that asked for the access exists.
    async fn admitted_uploads(&self, tenant: &str, key: &str) -> Result<Option<TenantUploads>, ServiceError> {
        let (Ok(tenant), Ok(key)) = (tenant.parse::<TenantId>(), key.parse::<KeyId>()) else {
            return Ok(None);
        };
        let exists = self.inner.access.key_exists(&tenant, &key).await?;
        Ok(exists.then(|| TenantUploads { builds: self.clone(), tenant }))
    }

    /// Removes uploads that no build used for long.
    pub(crate) async fn collect_uploads(&self) {
        let root = folder::root(&self.inner.config.data);
        // It cannot be cancelled, and a panic in it is logged by the hook.
        let _ = tokio::task::spawn_blocking(move || folder::sweep(&root)).await;
    }

    fn uploads_of(&self, tenant: &TenantId) -> UploadFolder {
        UploadFolder::new(&self.inner.config.data, tenant)
    }

    /// Receives the context that comes with a build into the folder of the build.
    pub(super) async fn receive_context(
        &self,
        tenant: &TenantId,
        bytes: BuildContext,
        folder: &Path,
    ) -> Result<Staged, ServiceError> {
        let uploads = TenantUploads { builds: self.clone(), tenant: tenant.clone() };
        let (into, within) = (uploads.folder()?, self.inner.config.build_timeout);
        let (file, _) = uploads.receive(into.path(), "context", bytes, within).await?;
        file.keep(&sent_in(folder)).map_err(not_kept)?;
        Ok(Staged::Sent)
    }

    /// Puts links to what a build copies into its folder.
    pub(super) fn stage_uploads(
        &self,
        who: &Principal,
        ask: &StartBuild,
        folder: &Path,
    ) -> Result<Staged, ServiceError> {
        let (mut hashes, is_declared): (Vec<String>, bool) = match &ask.source {
            BuildSource::Declared(declared) => {
                (declared.files().into_iter().map(str::to_owned).collect(), true)
            }
            BuildSource::Dockerfile { .. } | BuildSource::Text(_) => (ask.contexts.clone(), false),
        };
        // One that is named twice is linked once; the order stays.
        let mut seen = HashSet::new();
        hashes.retain(|hash| seen.insert(hash.clone()));
        let uploads = self.uploads_of(&who.tenant);
        if let [hash] = &hashes[..]
            && !is_declared
        {
            link(&uploads, hash, &sent_in(folder))?;
            return Ok(Staged::Sent);
        }
        for hash in &hashes {
            link(&uploads, hash, &upload_in(folder, hash))?;
        }
        Ok(match (hashes.is_empty(), is_declared) {
            (true, _) => Staged::Nothing,
            (false, true) => Staged::Uploads(hashes),
            (false, false) => Staged::Merged(hashes),
        })
    }
}

/// Temporary credentials of the object storage.
pub struct StorageAccess {
    /// The public name of the credentials.
    pub access_key: String,
    /// The key of signatures.
    pub secret: String,
    /// What every request shows; [`Builds::admit_storage`] takes it.
    pub token: String,
}

/// Why an upload in parts is refused.
#[derive(Debug, thiserror::Error)]
pub enum UploadError {
    /// It never began, or it was finished, aborted or swept.
    #[error("there is no such upload")]
    NoSuchUpload,
    /// A part has no valid number, or there is none.
    #[error("a part is missing or has no valid number")]
    InvalidPart,
    /// Everything else.
    #[error(transparent)]
    Refused(#[from] ServiceError),
}

/// The uploads of one tenant, for a caller who was admitted to them.
pub struct TenantUploads {
    builds: Builds,
    tenant: TenantId,
}

impl TenantUploads {
    /// Whose they are.
    #[must_use]
    pub const fn tenant(&self) -> &TenantId {
        &self.tenant
    }

    /// The size of a whole archive.
    pub async fn size(&self, hash: &UploadHash) -> Option<u64> {
        let found = tokio::fs::metadata(self.builds.uploads_of(&self.tenant).archive(hash)).await.ok()?;
        found.is_file().then_some(found.len())
    }

    /// Takes an archive in: whole or not at all, in place of one with the same hash.
    pub async fn put(&self, hash: &UploadHash, bytes: BuildContext) -> Result<(), ServiceError> {
        let folder = self.folder()?;
        let (file, _) = self.receive(folder.path(), hash.as_str(), bytes, SEND).await?;
        file.keep(&folder.archive(hash)).map_err(not_kept)?;
        tracing::info!(tenant = %self.tenant, "an archive for builds was sent");
        Ok(())
    }

    /// Begins an upload in parts; answers its id.
    pub async fn begin(&self, hash: &UploadHash) -> Result<String, ServiceError> {
        let folder = self.folder()?;
        let bound = self.builds.inner.config.build_context_bytes.saturating_mul(space::BOUND_TIMES);
        held_with_room(folder.path(), bound, 0).await?;
        let upload = hex::encode(entropy::<16>()?);
        folder.create_parts(hash, &upload).map_err(not_kept)?;
        Ok(upload)
    }

    /// Takes one part in, in place of one with the same number; answers its size.
    pub async fn put_part(
        &self,
        hash: &UploadHash,
        upload: &str,
        number: u32,
        bytes: BuildContext,
    ) -> Result<u64, UploadError> {
        if !(1..=PARTS_MAX).contains(&number) {
            return Err(UploadError::InvalidPart);
        }
        let parts = self.parts(hash, upload)?;
        let (file, size) = self.receive(&parts, &number.to_string(), bytes, SEND).await?;
        match file.keep(&parts.join(part_name(number))) {
            Ok(()) => Ok(size),
            // It was finished or aborted meanwhile.
            Err(_) if !parts.is_dir() => Err(UploadError::NoSuchUpload),
            Err(cause) => Err(not_kept(cause).into()),
        }
    }

    /// Joins the parts in the order of their numbers; they become the archive.
    pub async fn finish(&self, hash: &UploadHash, upload: &str) -> Result<(), UploadError> {
        let (folder, parts) = (self.folder()?, self.parts(hash, upload)?);
        let mut space = self.builds.inner.upload_space(&self.tenant, &folder).await?;
        let (hash, random) = (hash.clone(), entropy()?);
        let limit = self.builds.inner.config.build_context_bytes;
        let joined = tokio::task::spawn_blocking(move || {
            let taken = JoinedParts::take(&parts).map_err(not_kept)?.ok_or(UploadError::NoSuchUpload)?;
            if taken.parts.is_empty() || taken.bytes > limit {
                let is_empty = taken.parts.is_empty();
                taken.give_back();
                return Err(if is_empty {
                    UploadError::InvalidPart
                } else {
                    context::too_large(limit).into()
                });
            }
            let file = PartialFile::new(folder.path(), hash.as_str(), random);
            taken.write(file.path(), |bytes| space.take_again(bytes))?;
            Ok(file.keep(&folder.archive(&hash)).map_err(not_kept)?)
        });
        joined.await.map_err(|cause| not_kept(std::io::Error::other(cause)))?
    }

    /// Gives up an upload in parts.
    pub async fn abort(&self, hash: &UploadHash, upload: &str) -> Result<(), UploadError> {
        let parts = self.parts(hash, upload)?;
        Ok(tokio::fs::remove_dir_all(parts).await.map_err(not_kept)?)
    }

    fn parts(&self, hash: &UploadHash, upload: &str) -> Result<PathBuf, UploadError> {
        self.builds.uploads_of(&self.tenant).parts(hash, upload).ok_or(UploadError::NoSuchUpload)
    }

    fn folder(&self) -> Result<UploadFolder, ServiceError> {
        let folder = self.builds.uploads_of(&self.tenant);
        folder.create().map_err(not_kept)?;
        Ok(folder)
    }

    /// Receives a file into a folder of the tenant as it comes; answers its size too.
    async fn receive(
        &self,
        into: &Path,
        name: &str,
        bytes: BuildContext,
        within: Duration,
    ) -> Result<(PartialFile, u64), ServiceError> {
        let inner = &self.builds.inner;
        let _uploading = inner.queue.admit_upload(&self.tenant)?;
        let space = self.builds.inner.upload_space(&self.tenant, &self.folder()?).await?;
        let file = PartialFile::new(into, name, entropy()?);
        let received = receive(bytes, file.path(), space, inner.config.build_context_bytes);
        let size = tokio::time::timeout(within, received)
            .await
            .map_err(|_| ServiceError::new(Code::DeadlineExceeded, "the upload did not arrive in time"))??;
        Ok((file, size))
    }
}

async fn receive(
    mut from: BuildContext,
    path: &Path,
    mut space: UploadSpace,
    limit: u64,
) -> Result<u64, ServiceError> {
    let mut file = tokio::fs::File::from_std(context::create(path)?);
    let mut piece = vec![0; PIECE];
    let mut bytes = 0u64;
    loop {
        let read = from.read(&mut piece).await.map_err(|cause| {
            ServiceError::new(Code::InvalidRequest, "the context ended before it was complete")
                .caused_by(cause)
        })?;
        if read == 0 {
            break;
        }
        bytes += read as u64;
        if bytes > limit {
            return Err(context::too_large(limit));
        }
        space.take(read as u64).await?;
        file.write_all(&piece[..read]).await.map_err(context::not_written)?;
    }
    file.flush().await.map_err(context::not_written)?;
    Ok(bytes)
}

/// Links an archive into the folder of a build. It was used now, so it is kept for another day.
#[expect(clippy::disallowed_methods, reason = "the file time that says when an upload was used last")]
fn link(uploads: &UploadFolder, hash: &str, to: &Path) -> Result<(), ServiceError> {
    let from = uploads.archive(&parse(hash)?);
    match std::fs::hard_link(&from, to) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let message =
                format!("the files {hash} of this build were not uploaded, or their upload has expired");
            return Err(ServiceError::new(Code::InvalidRequest, message).hint("upload them again"));
        }
        Err(error) => return Err(not_kept(error)),
    }
    if let Ok(file) = File::open(&from) {
        let _ = file.set_modified(SystemTime::now());
    }
    Ok(())
}

/// Removes what a server that ended was receiving; blocks.
pub(super) fn recover(data: &Path) {
    folder::recover(&folder::root(data));
}

fn parse(hash: &str) -> Result<UploadHash, ServiceError> {
    hash.parse().map_err(|bad: BadUploadHash| {
        ServiceError::new(Code::InvalidRequest, format!("{} is not a hash of files: {bad}", printable(hash)))
    })
}

fn bad_ticket() -> ServiceError {
    ServiceError::new(
        Code::Forbidden,
        "this upload link or session is unknown, expired, or its key was deleted",
    )
    .hint("ask for a new one")
}

fn not_kept(cause: std::io::Error) -> ServiceError {
    if atoll_disk::is_full(&cause) {
        return context::not_written(cause);
    }
    ServiceError::new(Code::Internal, "the archive could not be stored").caused_by(cause)
}
