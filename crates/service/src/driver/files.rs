//! Uploads files to object storage and downloads them.
//!
//! ```text
//! pack ──► upload ──► (lease says archived) ──► local files are removed
//! download ──► unpack ──► (lease says stopped) ──► objects are removed
//! ```
//! At every moment one of the two places has all files, and the lease says which.

use std::sync::Arc;

use atoll_image::archive::{ArchiveError, ArchivedSandbox};
use atoll_model::{ArchiveRef, Code, Source};
use atoll_provider::{ProviderError, Target};

use super::effects::{EffectJob, gone_is_fine};
use super::{Driver, DriverMessage};
use crate::ServiceError;

impl EffectJob {
    /// Uploads the files of a stopped sandbox to object storage. The local files stay.
    pub(super) async fn archive(&self) -> Result<ArchiveRef, ServiceError> {
        let work = async {
            let inner = &self.inner;
            inner.failpoint.reach("archive.before").await;
            let files = Target { sandbox: self.lease.id.clone(), instance: None };
            self.provider.check_pack(&files, &self.lease.limits).await?;
            let packed = self.provider.pack(&files).await?;
            inner.failpoint.reach("archive.packed").await;
            let kept = inner.archives.put(self.about(), packed).await?;
            inner.failpoint.reach("archive.uploaded").await;
            Ok(kept)
        };
        self.unless_stopped(work).await.unwrap_or_else(|| Err(cut_short()))
    }

    /// Downloads the files. The objects in object storage stay.
    pub(super) async fn unarchive(&self) -> Result<(), ServiceError> {
        let work = async {
            let (inner, lease) = (&self.inner, &self.lease);
            inner.failpoint.reach("restore.fetch").await;
            let at = match (&lease.archive, &lease.source) {
                (Some(own), _) | (None, Source::Archive { archive: own }) => own,
                (None, Source::Template | Source::Snapshot { .. }) => {
                    return Err(ServiceError::new(Code::Internal, "no archive was named"));
                }
            };
            let (_, packed) = inner.archives.get(at).await?;
            let target = Target { sandbox: lease.id.clone(), instance: None };
            // An earlier attempt may have succeeded without a record. All files are in object storage, so the local
            // ones are removed first.
            gone_is_fine(self.provider.destroy(&target).await)?;
            let unpacked = self.provider.unpack(&target, &lease.limits, packed).await;
            unpacked.map_err(|error| told_by_the_stream(&error).unwrap_or_else(|| error.into()))?;
            inner.failpoint.reach("restore.unpacked").await;
            Ok(())
        };
        self.unless_stopped(work).await.unwrap_or_else(|| Err(cut_short()))
    }

    /// Removes the objects of a deleted sandbox from object storage.
    pub(super) async fn forget_objects(&self) -> Result<(), ServiceError> {
        if self.lease.archive.is_some() || self.uploads {
            self.inner.archives.remove(&self.lease.id).await?;
        }
        Ok(())
    }

    fn about(&self) -> ArchivedSandbox {
        let lease = &self.lease;
        let mut env = lease.env.clone();
        env.retain(|name, _| !lease.private_env.contains(name));
        ArchivedSandbox {
            sandbox: lease.id.clone(),
            template: lease.template.clone(),
            template_version: lease.template_version.clone(),
            env,
            user: lease.user.clone(),
            workdir: lease.workdir.clone(),
            command: lease.command.clone(),
            limits: lease.limits,
            archived_at_ms: self.inner.clock.now().wall_ms,
        }
    }
}

/// The error of a transfer that was asked to end.
fn cut_short() -> ServiceError {
    ServiceError::new(Code::PhaseConflict, "the transfer was ended early").hint("try again")
}

impl Driver {
    /// The files are here again: the objects in object storage are removed in the background, then the reference is
    /// removed from the lease.
    pub(super) fn tidy_objects(&mut self) {
        let Some(archive) = self.lease.archive.clone() else { return };
        if self.tidying.as_ref().is_some_and(|tidying| !tidying.is_finished()) {
            return;
        }
        let (inner, id, handle) =
            (Arc::clone(&self.inner), self.lease.id.clone(), self.inner.registry.get(&self.lease.id));
        let tidying = self.inner.spawn(async move {
            // LIMIT: if the storage is unavailable for longer, the next start tries again.
            for wait_s in [0, 2, 10, 60, 300] {
                if wait_s > 0 {
                    tokio::time::sleep(std::time::Duration::from_secs(wait_s)).await;
                }
                match inner.archives.remove(&id).await {
                    Ok(()) => {
                        inner.failpoint.reach("restore.objects_removed").await;
                        if let Some(handle) = handle {
                            let _ = handle.mailbox.send(DriverMessage::Tidied { archive }.into()).await;
                        }
                        return;
                    }
                    Err(error) => {
                        tracing::warn!(sandbox = %id, %error, "its archive could not be removed yet")
                    }
                }
            }
        });
        self.tidying = Some(tidying);
    }
}

/// The provider only reports that it could not read; the stream that it read from knows the reason.
fn told_by_the_stream(error: &ProviderError) -> Option<ServiceError> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(now) = cause {
        if let Some(found) = now.downcast_ref::<ArchiveError>() {
            return Some(shown(found));
        }
        cause = match now.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
            Some(inner) => Some(inner),
            None => now.source(),
        };
    }
    None
}

fn shown(error: &ArchiveError) -> ServiceError {
    let new = |code, text: String| ServiceError::new(code, text);
    match error {
        ArchiveError::NotFound { .. } => new(Code::ArchiveNotFound, error.to_string()),
        ArchiveError::Damaged { .. } => new(Code::Damaged, error.to_string()),
        ArchiveError::BadPlace { .. } => {
            new(Code::ArchiveUnavailable, "archives cannot be stored at the configured place".to_owned())
        }
        ArchiveError::NoSpace(_) => new(Code::NoCapacity, error.to_string())
            .hint("free some disk space, or store archives in object storage (atoll serve --archive)")
            .retry_after(60),
        ArchiveError::Source(_) => new(Code::Internal, "the files could not be packed".to_owned()),
        ArchiveError::Storage { .. } => new(Code::ArchiveUnavailable, error.to_string())
            .hint("check the server's log and the object storage")
            .retry_after(30),
    }
}

impl From<ArchiveError> for ServiceError {
    fn from(error: ArchiveError) -> Self {
        shown(&error).caused_by(error)
    }
}
