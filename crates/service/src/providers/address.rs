//! The address of a provider must not change while it has sandboxes or volumes: at another daemon or service they would not be found, and a
//! delete would answer that they are gone while they live on.
//!
//! The address is kept in `DATA/providers/NAME/address`, so that a file that was changed while the server was down is noticed too.
//! The key of a service can change, because keys are replaced; its account cannot. A hash of the last key is in `account` beside
//! the address: with another key the service has to know at least one of the sandboxes.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use atoll_model::{Code, ProviderSettings, Volume};
use atoll_provider::Provider;
use sha2::{Digest, Sha256};

use super::ANSWERS_WITHIN;
use super::files::ProviderFiles;
use crate::ServiceError;
use crate::service::Service;

impl ProviderFiles {
    fn address_file(&self, name: &str) -> PathBuf {
        self.data().join("providers").join(name).join("address")
    }

    fn known_address(&self, name: &str) -> std::io::Result<Option<String>> {
        match std::fs::read_to_string(self.address_file(name)) {
            Ok(text) => Ok(Some(text)),
            Err(cause) if cause.kind() == ErrorKind::NotFound => Ok(None),
            Err(cause) => Err(cause),
        }
    }

    /// A hash of the key with which a service is called, and of the organisation; `None`: the kind has no key.
    fn account(&self, settings: &ProviderSettings) -> Option<String> {
        let resolved = self.resolve(settings);
        let key = resolved.section.get("api_key")?.as_str()?;
        let mut hash = Sha256::new_with_prefix(key);
        // A key can belong to several organisations, whose sandboxes are separate.
        if let Some(organization) = resolved.section.get("organization").and_then(|name| name.as_str()) {
            hash.update([0]);
            hash.update(organization);
        }
        Some(hex::encode(hash.finalize()))
    }

    fn account_file(&self, name: &str) -> PathBuf {
        self.address_file(name).with_file_name("account")
    }

    /// Notes where the sandboxes of a provider are from now on.
    pub(super) fn keep_address(&self, name: &str, settings: &ProviderSettings) {
        if let Some(account) = self.account(settings)
            && let Err(cause) = write_whole(&self.account_file(name), &account)
        {
            tracing::warn!(provider = name, %cause, "the account of a provider could not be written; a change of it would not be noticed");
        }
        let address = self.resolve(settings).address(settings.kind);
        let is_known = self.known_address(name).is_ok_and(|known| known.as_deref() == Some(&address));
        if is_known {
            return;
        }
        if let Err(cause) = write_whole(&self.address_file(name), &address) {
            tracing::warn!(provider = name, %cause, "the address of a provider could not be written; a change of it would not be noticed");
        }
    }
}

fn write_whole(file: &Path, text: &str) -> std::io::Result<()> {
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let fresh = file.with_extension("new");
    std::fs::write(&fresh, text)?;
    std::fs::rename(fresh, file)
}

impl Service {
    /// Refuses settings that name another kind or address than the one where this provider has sandboxes or volumes.
    pub(super) async fn check_address(
        &self,
        files: &ProviderFiles,
        name: &str,
        settings: &ProviderSettings,
    ) -> Result<(), ServiceError> {
        let known = files.known_address(name).map_err(|cause| unreadable(name, cause))?;
        let address = files.resolve(settings).address(settings.kind);
        match known {
            Some(known) if known != address => {
                let live = self.base().store.live().await?;
                let sandboxes = live.iter().filter(|(lease, _)| lease.provider == name).count();
                let volumes = self.base().store.own_volumes().await?;
                let is_kept_there = |volume: &&Volume| volume.provider == name && volume.folder.is_none();
                match (sandboxes, volumes.iter().filter(is_kept_there).count()) {
                    (0, 0) => Ok(()),
                    (sandboxes, volumes) => Err(in_use(name, sandboxes, volumes, &known)),
                }
            }
            Some(_) | None => Ok(()),
        }
    }
}

impl Service {
    /// Refuses a key of an account that knows none of the sandboxes. While the service does not say so, the key is refused, too: it
    /// would be used when the service answers again, and all sandboxes would seem to be gone.
    pub(super) async fn check_account(
        &self,
        files: &ProviderFiles,
        provider: &Arc<dyn Provider>,
        settings: &ProviderSettings,
    ) -> Result<(), ServiceError> {
        let name = provider.name();
        let known = match std::fs::read_to_string(files.account_file(name)) {
            Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(()),
            read => read.map_err(|cause| unreadable(name, cause))?,
        };
        let Some(account) = files.account(settings) else { return Ok(()) };
        let live = self.base().store.live().await?;
        let live: Vec<_> =
            live.iter().filter(|(lease, row)| lease.provider == name && row.is_some()).collect();
        if account == known || live.is_empty() {
            return Ok(());
        }
        let owned = match tokio::time::timeout(ANSWERS_WITHIN * 5, provider.owned()).await {
            Ok(Ok(owned)) => owned,
            Ok(Err(error)) => return Err(unknown_account(name, live.len(), &error.to_string())),
            Err(_) => return Err(unknown_account(name, live.len(), "it did not answer in time")),
        };
        let is_known = owned.iter().any(|found| live.iter().any(|(lease, _)| lease.id == found.sandbox));
        if is_known {
            return Ok(());
        }
        let message = format!(
            "provider {name} has {} sandboxes, and the account of the new key has none of them",
            live.len()
        );
        Err(ServiceError::new(Code::ProviderInUse, message)
            .hint("set a key of their account, or delete the sandboxes with the old key first"))
    }
}

fn unknown_account(name: &str, sandboxes: usize, why: &str) -> ServiceError {
    let message = format!(
        "provider {name} has {sandboxes} sandboxes, and its service did not tell whether the account of the new key has them: {why}"
    );
    ServiceError::new(Code::ProviderNotConfigured, message)
        .hint("check the key; it is tried again until the service answers")
        .retry_after(5)
}

fn in_use(name: &str, sandboxes: usize, volumes: usize, address: &str) -> ServiceError {
    let message = format!(
        "provider {name} has {sandboxes} sandboxes and {volumes} volumes at {}; with another kind or address they would not be found",
        address.trim()
    );
    ServiceError::new(Code::ProviderInUse, message)
        .hint("delete its sandboxes and volumes first, or give the new address to a provider of another name")
}

fn unreadable(name: &str, cause: std::io::Error) -> ServiceError {
    ServiceError::new(Code::Internal, format!("the address of provider {name} cannot be read or written"))
        .hint("check the space and the permissions of DATA/providers")
        .caused_by(cause)
}
