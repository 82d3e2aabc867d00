//! After a restart of the server: incomplete volumes are undone, interrupted removals are completed, and files without
//! a row are removed.

use std::collections::HashMap;
use std::sync::Arc;

use atoll_model::{VolumeId, VolumeState};
use atoll_provider::Provider;

use super::{Volumes, remove_files_and_row};
use crate::service::OpenError;

impl Volumes {
    pub(crate) async fn sweep(&self, providers: &[Arc<dyn Provider>]) -> Result<(), OpenError> {
        let inner = &self.inner;
        let mut known: HashMap<String, Vec<VolumeId>> = HashMap::new();
        for volume in inner.store.own_volumes().await? {
            // Volumes of a provider that this server does not have stay as they are.
            if !providers.iter().any(|provider| provider.name() == volume.provider) {
                continue;
            }
            match volume.state {
                VolumeState::Ready => {
                    inner.admission.count_volume(&volume, super::promised_mib(&volume));
                    if volume.folder.is_none() {
                        known.entry(volume.provider).or_default().push(volume.id);
                    }
                }
                VolumeState::Making | VolumeState::Deleting => {
                    if let Err(error) = remove_files_and_row(inner, &volume).await {
                        tracing::warn!(volume = %volume.id, %error, cause = ?error.cause, "a volume could not be removed; the next start removes it");
                        known.entry(volume.provider).or_default().push(volume.id);
                    }
                }
            }
        }
        for provider in providers {
            let own = known.remove(provider.name()).unwrap_or_default();
            if let Err(error) = provider.sweep_volumes(own).await {
                tracing::warn!(provider = provider.name(), %error, "files of unknown volumes may be left");
            }
        }
        Ok(())
    }
}
