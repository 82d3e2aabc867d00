//! The address of a provider must not change while it has sandboxes or volumes: at another daemon or service they would not be found, and a
//! delete would answer that they are gone while they live on.
//!
//! The address is kept in `DATA/providers/NAME/address`, so that a file that was changed while the server was down is noticed too.

use std::io::ErrorKind;
use std::path::PathBuf;

use atoll_model::{Code, ProviderSettings, Volume};

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

    /// Notes where the sandboxes of a provider are from now on.
    pub(super) fn keep_address(&self, name: &str, settings: &ProviderSettings) {
        let address = self.resolve(settings).address(settings.kind);
        let is_known = self.known_address(name).is_ok_and(|known| known.as_deref() == Some(&address));
        if is_known {
            return;
        }
        if let Err(cause) = self.write_address(name, &address) {
            tracing::warn!(provider = name, %cause, "the address of a provider could not be written; a change of it would not be noticed");
        }
    }

    fn write_address(&self, name: &str, address: &str) -> std::io::Result<()> {
        let file = self.address_file(name);
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let fresh = file.with_extension("new");
        std::fs::write(&fresh, address)?;
        std::fs::rename(fresh, file)
    }
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
