//! Archives that are sent before the build that copies from them, kept by tenant and by the hash that the sender gave them.
//!
//! Whoever holds a ticket may send one archive, without a key, until the ticket is over. A build gets a link of its own to
//! what lies here, so that a newer archive of the same hash changes nothing under it. What nobody used for a day goes.

use std::fs::{DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use atoll_image::build::DeclaredBuild;
use atoll_model::{Code, KeyId, Principal, TenantId};

use super::ask::BuildContext;
use super::context::{Staged, receive_as, upload_in};
use crate::ServiceError;
use crate::random::entropy;
use crate::sandboxes::printable;
use crate::service::{Service, ServiceShared};

/// LIMIT: SDKs stop sending after an hour.
const TICKET_S: i64 = 2 * 3_600;
const SEND: Duration = Duration::from_secs(3_600);
/// How long an archive is kept that no build uses.
const KEPT: Duration = Duration::from_secs(24 * 3_600);
/// What is half sent and this old was given up.
const HALF_KEPT: Duration = Duration::from_secs(2 * 3_600);
/// LIMIT: archives of a tenant; the oldest go for new ones.
const UPLOADS_MAX: usize = 512;
/// LIMIT: all archives of a tenant together are as large as so many of the largest.
const UPLOADS_FULL: u64 = 2;
const HALF: &str = ".part";
const PURPOSE: &str = "upload";

impl Service {
    /// Whether an archive with this hash lies here for builds of the caller.
    pub async fn has_upload(&self, who: &Principal, hash: &str) -> Result<bool, ServiceError> {
        check(hash)?;
        let path = place(&self.inner, &who.tenant).join(hash);
        Ok(tokio::fs::try_exists(&path).await.unwrap_or(false))
    }

    /// What lets somebody without a key send the archive with this hash.
    pub fn upload_ticket(&self, who: &Principal, hash: &str) -> Result<String, ServiceError> {
        check(hash)?;
        let until = self.inner.clock.now().wall_ms / 1_000 + TICKET_S;
        let (tenant, key) = (who.tenant.as_str(), who.key.as_str());
        let proof = self.inner.derived(PURPOSE, &[tenant, key, hash, &until.to_string()]);
        Ok(format!("{tenant}.{key}.{hash}.{until}.{proof}"))
    }

    /// Receives an archive: completely or not at all. It replaces one with the same hash.
    pub async fn take_upload(&self, ticket: &str, bytes: BuildContext) -> Result<(), ServiceError> {
        let inner = &self.inner;
        let refused = || {
            ServiceError::new(Code::Forbidden, "this upload link is unknown, expired, or its key was deleted")
                .hint("ask for a new one")
        };
        let UploadTicket { tenant, key, hash } = admitted(inner, ticket).ok_or_else(refused)?;
        if !self.key_exists(&tenant, &key).await? {
            return Err(refused());
        }
        let _uploading = inner.builds.admit_upload(&tenant)?;
        let folder = place(inner, &tenant);
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&folder);
        made.map_err(|cause| not_kept(cause.into()))?;
        let own: [u8; 8] = entropy()?;
        let half = PartialUpload(folder.join(format!("{hash}.{}{HALF}", hex::encode(own))));
        let space = self.upload_space(&tenant, &folder).await?;
        let received = receive_as(bytes, &half.0, space, inner.config.build_context_bytes);
        tokio::time::timeout(SEND, received)
            .await
            .map_err(|_| ServiceError::new(Code::DeadlineExceeded, "the archive did not arrive in time"))??;
        std::fs::rename(&half.0, folder.join(&hash)).map_err(|cause| not_kept(cause.into()))?;
        let most = inner.config.build_context_bytes.saturating_mul(UPLOADS_FULL);
        tokio::task::spawn_blocking(move || thin_out(&folder, most));
        tracing::info!(%tenant, "an archive for builds was sent");
        Ok(())
    }

    /// Puts links to what the steps of a build copy into its folder.
    #[expect(clippy::disallowed_methods, reason = "the file time that says when an upload was used last")]
    pub(super) fn link_uploads(
        &self,
        who: &Principal,
        declared: &DeclaredBuild,
        folder: &Path,
    ) -> Result<Staged, ServiceError> {
        let hashes = declared.files();
        let place = place(&self.inner, &who.tenant);
        for hash in &hashes {
            check(hash)?;
            let from = place.join(hash);
            match std::fs::hard_link(&from, upload_in(folder, hash)) {
                Ok(()) => {}
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    let message = format!("the files {hash} of a COPY were not uploaded");
                    return Err(ServiceError::new(Code::InvalidRequest, message)
                        .hint("get the upload address: GET /templates/{id}/files/{hash}"));
                }
                Err(error) => return Err(not_kept(error.into())),
            }
            // Used now: it is kept for another day.
            if let Ok(file) = File::open(&from) {
                let _ = file.set_modified(SystemTime::now());
            }
        }
        Ok(match hashes.is_empty() {
            true => Staged::Nothing,
            false => Staged::Uploads(hashes.into_iter().map(str::to_owned).collect()),
        })
    }
}

/// Removes what nobody used for long.
pub(crate) async fn collect(inner: &ServiceShared) {
    let root = root(inner);
    let collected = tokio::task::spawn_blocking(move || {
        let Ok(tenants) = std::fs::read_dir(&root) else { return };
        for tenant in tenants.flatten() {
            for upload in entries(&tenant.path()) {
                let is_half = upload.path.to_string_lossy().ends_with(HALF);
                let limit = if is_half { HALF_KEPT } else { KEPT };
                if upload.used.elapsed().is_ok_and(|ago| ago > limit) {
                    remove(&upload.path);
                }
            }
            // Only one that is empty goes.
            let _ = std::fs::remove_dir(tenant.path());
        }
    });
    // It cannot be cancelled, and a panic in it is logged by the hook.
    let _ = collected.await;
}

/// Lets the oldest go where there are too many, or more than `most` bytes.
fn thin_out(folder: &Path, most: u64) {
    let mut all = entries(folder);
    all.sort_by_key(|upload| std::cmp::Reverse(upload.used));
    let mut bytes = 0;
    for (at, upload) in all.iter().enumerate() {
        bytes += upload.bytes;
        // What just came stays, whatever its size.
        if at >= UPLOADS_MAX || (at > 0 && bytes > most) {
            remove(&upload.path);
        }
    }
}

struct Kept {
    path: PathBuf,
    used: SystemTime,
    bytes: u64,
}

fn entries(folder: &Path) -> Vec<Kept> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let known = entries.flatten().filter_map(|entry| {
        let metadata = entry.metadata().ok()?;
        Some(Kept { path: entry.path(), used: metadata.modified().ok()?, bytes: metadata.len() })
    });
    known.collect()
}

fn remove(path: &Path) {
    if let Err(error) = std::fs::remove_file(path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "an uploaded archive could not be removed");
    }
}

/// An archive that is not whole yet; it goes unless it was renamed.
struct PartialUpload(PathBuf);

impl Drop for PartialUpload {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

fn root(inner: &ServiceShared) -> PathBuf {
    inner.config.data.join("builds").join("uploads")
}

fn place(inner: &ServiceShared, tenant: &TenantId) -> PathBuf {
    root(inner).join(tenant.as_str())
}

/// The archive that a ticket admits, and the key that asked for it.
struct UploadTicket {
    tenant: TenantId,
    key: KeyId,
    hash: String,
}

fn admitted(inner: &ServiceShared, ticket: &str) -> Option<UploadTicket> {
    let parts: Vec<&str> = ticket.split('.').collect();
    let [tenant, key, hash, until, proof] = parts[..] else { return None };
    if !inner.derived_is(PURPOSE, &[tenant, key, hash, until], proof) || check(hash).is_err() {
        return None;
    }
    let is_open = inner.clock.now().wall_ms / 1_000 <= until.parse::<i64>().ok()?;
    let ticket = UploadTicket { tenant: tenant.parse().ok()?, key: key.parse().ok()?, hash: hash.to_owned() };
    is_open.then_some(ticket)
}

/// A hash is the name of a file, and of a folder in a context.
fn check(hash: &str) -> Result<(), ServiceError> {
    if (16..=128).contains(&hash.len()) && hash.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return Ok(());
    }
    let message =
        format!("{} is not a hash of files: a hash has 16 to 128 letters and digits", printable(hash));
    Err(ServiceError::new(Code::InvalidRequest, message))
}

fn not_kept(cause: Box<dyn std::error::Error + Send + Sync>) -> ServiceError {
    ServiceError::new(Code::Internal, "the archive could not be stored")
        .caused_by(std::io::Error::other(cause))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_no_path() {
        assert!(check(&"a1".repeat(32)).is_ok());
        for bad in ["", "short", "../../../../etc/passwd", "a/aaaaaaaaaaaaaaaaaa", &"a".repeat(129)] {
            assert!(check(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_oldest_archives_go_for_new_ones() {
        let folder = tempfile::tempdir().expect("a folder");
        for n in 0..UPLOADS_MAX + 3 {
            let file = File::create(folder.path().join(format!("{n:04}"))).expect("a file");
            let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000 + n as u64);
            file.set_modified(at).expect("a time");
        }
        thin_out(folder.path(), u64::MAX);
        let left = entries(folder.path());
        assert_eq!(left.len(), UPLOADS_MAX);
        assert!(left.iter().all(|upload| !upload.path.ends_with("0000") && !upload.path.ends_with("0002")));
        std::fs::write(folder.path().join("new"), [0; 10]).expect("a file");
        std::fs::write(folder.path().join("newer"), [0; 10]).expect("a file");
        thin_out(folder.path(), 10);
        let bytes: u64 = entries(folder.path()).iter().map(|upload| upload.bytes).sum();
        assert_eq!(bytes, 10, "one of the two");
    }
}
