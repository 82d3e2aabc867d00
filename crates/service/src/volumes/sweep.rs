//! After a restart of the server: incomplete volumes are undone, interrupted removals are completed, and files without
//! a row are removed.

use atoll_model::VolumeState;

use super::{Volumes, remove_files_and_row};
use crate::service::OpenError;

impl Volumes {
    pub(crate) async fn sweep(&self) -> Result<(), OpenError> {
        let inner = &self.inner;
        let mut known = Vec::new();
        for volume in inner.store.own_volumes().await? {
            match volume.state {
                VolumeState::Ready => {
                    inner.admission.count_volume(&volume.id, super::promised_mib(&volume));
                    if volume.folder.is_none() {
                        known.push(volume.id);
                    }
                }
                VolumeState::Making | VolumeState::Deleting => {
                    if let Err(error) = remove_files_and_row(inner, &volume).await {
                        tracing::warn!(volume = %volume.id, %error, cause = ?error.cause, "a volume could not be removed; the next start removes it");
                        known.push(volume.id);
                    }
                }
            }
        }
        if let Err(error) = inner.provider.sweep_volumes(known).await {
            tracing::warn!(%error, "files of unknown volumes may be left");
        }
        Ok(())
    }
}
