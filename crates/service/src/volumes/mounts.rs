//! The mounts of a sandbox: volumes are found by name when it is created, and looked up again at every boot.

use std::path::PathBuf;
use std::sync::Arc;

use atoll_model::policy::authz;
use atoll_model::{Code, Lease, Mount, MountAsk, Principal, VolumeState};
use atoll_provider::{InstanceMount, MountSource, Provider};

use super::{Volumes, folder};
use crate::ServiceError;
use crate::sandboxes::printable;
use crate::templates::Templates;

/// The owner of a folder in the sandbox if the template does not contain its user.
const SOMEBODY: (u32, u32) = (1_000, 1_000);

impl Volumes {
    /// The mounts of a new sandbox. Only volumes of its own tenant: a sandbox must not see more than its tenant. Only volumes
    /// of its own provider, and folders of the host: no other provider has the files.
    pub(crate) async fn mounts_of(
        &self,
        who: &Principal,
        provider: &Arc<dyn Provider>,
        asked: &[MountAsk],
    ) -> Result<Vec<Mount>, ServiceError> {
        if !asked.is_empty() && !provider.binds_folders() {
            provider.volume_support()?;
        }
        let mut mounts = Vec::with_capacity(asked.len());
        for ask in asked {
            let found = self.inner.store.find_volume(Some(&who.tenant), &ask.volume).await?;
            let mut found = found.into_iter().filter(|volume| volume.state == VolumeState::Ready);
            let (Some(volume), None) = (found.next(), found.next()) else {
                let message = format!("there is no volume {}", printable(&ask.volume));
                return Err(ServiceError::new(Code::VolumeNotFound, message)
                    .hint("list them: GET /v1/volumes, or atoll volume ls"));
            };
            self.need_here(&volume)?;
            if volume.folder.is_some() {
                authz::host(who)?;
            } else {
                provider.volume_support()?;
            }
            if volume.folder.is_none() && volume.provider != provider.name() {
                let (kept, own) = (&volume.provider, provider.name());
                let why = format!("volume {} is kept by provider {kept}, the sandbox by {own}", volume.name);
                return Err(ServiceError::field("mounts", why).hint("use a volume of the same provider"));
            }
            mounts.push(Mount {
                volume: volume.id,
                path: ask.path.clone(),
                sub_path: ask.sub_path.clone(),
                read_only: ask.read_only || volume.read_only,
            });
        }
        Ok(mounts)
    }

    /// The mounts of a sandbox as the provider makes them. What its volumes say by now holds. A folder
    /// of the host belongs to the user that commands run as, whom the template knows by number.
    pub(crate) async fn mounts_for(
        &self,
        lease: &Lease,
        templates: &Templates,
    ) -> Result<Vec<InstanceMount>, ServiceError> {
        let mut mounts = Vec::with_capacity(lease.mounts.len());
        for mount in &lease.mounts {
            let volume = self.inner.store.volume(&mount.volume).await?;
            let Some(volume) = volume.filter(|volume| volume.state == VolumeState::Ready) else {
                let message = format!("volume {} of sandbox {} is missing", mount.volume, lease.id);
                return Err(ServiceError::new(Code::VolumeNotFound, message));
            };
            let sub_path = mount.sub_path.clone();
            let source = match &volume.folder {
                None => MountSource::Volume { volume: volume.id.clone(), sub_path },
                Some(path) => {
                    // The operator may have taken the root back, and somebody may have put a link there.
                    let path: PathBuf = folder::check(&self.inner.config, path)?;
                    let seen_as = templates.user_of(lease).await?.unwrap_or(SOMEBODY);
                    MountSource::Folder { path, sub_path, seen_as }
                }
            };
            mounts.push(InstanceMount {
                source,
                path: mount.path.clone(),
                read_only: mount.read_only || volume.read_only,
            });
        }
        Ok(mounts)
    }
}
