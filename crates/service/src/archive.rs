//! Archives: moves the files of a sandbox to object storage, and back.

use atoll_model::{Code, Lease, Phase, Principal, Storage};
use atoll_provider::{ProviderError, Target};

use crate::driver::Action;
use crate::sandboxes::{EndWait, Sandboxes, is_under_way};
use crate::{ServiceError, VerbOptions};

impl Sandboxes {
    /// Stops it, brings its files to object storage and frees the disk here.
    pub async fn archive(
        &self,
        who: &Principal,
        ident: &str,
        options: impl Into<VerbOptions>,
    ) -> Result<Lease, ServiceError> {
        let options = options.into();
        self.check_archivable(who, ident).await?;
        let told = self.told(who, ident, Action::Archive, options).await?;
        if !options.wait {
            return Ok(told.lease());
        }
        self.wanted(told.handle, Phase::Archived, EndWait::Transfer, |state| !is_under_way(state)).await
    }

    /// Refuses files that could not come back, before the sandbox is stopped. What else may be wrong, the verb says; the files
    /// of a running sandbox may change meanwhile, so they are checked again when it is stopped.
    async fn check_archivable(&self, who: &Principal, ident: &str) -> Result<(), ServiceError> {
        let lease = self.driven(who, ident).await?.lease();
        let rests = matches!(lease.phase, Phase::Running | Phase::Paused | Phase::Stopped);
        if lease.storage == Storage::Memory || !rests {
            return Ok(());
        }
        let provider = self.inner.providers.of(&lease)?;
        let files = Target { sandbox: lease.id.clone(), instance: None };
        match provider.check_pack(&files, &lease.limits).await {
            Err(error @ ProviderError::TooLargeToPack { .. }) => Err(error.into()),
            Err(error) => {
                tracing::debug!(sandbox = %lease.id, %error, "the files to archive could not be measured yet");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Brings the files of an archived sandbox back without starting it. A stopped one is left as it is.
    pub async fn restore(
        &self,
        who: &Principal,
        ident: &str,
        options: impl Into<VerbOptions>,
    ) -> Result<Lease, ServiceError> {
        let options = options.into();
        let told = self.told(who, ident, Action::Restore, options).await?;
        if !options.wait {
            return Ok(told.lease());
        }
        self.wanted(told.handle, Phase::Stopped, EndWait::Transfer, |state| !is_under_way(state)).await
    }

    /// The description of an archive in object storage. Access requires its key, and is never given to another tenant.
    pub(crate) async fn archived(
        &self,
        who: &Principal,
        key: &str,
    ) -> Result<(atoll_model::ArchiveRef, atoll_image::archive::ArchivedSandbox), ServiceError> {
        let not_found =
            || ServiceError::new(Code::ArchiveNotFound, "there is no such archive in object storage");
        let (at, about) = self.inner.archives.find(key).await?;
        let known = self.inner.store.lease(&about.sandbox).await?;
        match known {
            Some(lease) if atoll_model::policy::authz::sandbox(who, &lease).is_err() => Err(not_found()),
            // An archive of another server is opened by any caller that knows its digest.
            Some(_) | None => Ok((at, about)),
        }
    }
}
