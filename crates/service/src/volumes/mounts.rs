//! The mounts of a sandbox: volumes are found by name when it is created, and looked up again at every boot.

use std::path::PathBuf;

use atoll_model::{Code, Lease, Mount, MountAsk, Principal, Volume, VolumeState};
use atoll_provider::{InstanceMount, MountSource};

use super::folder;
use crate::ServiceError;
use crate::sandboxes::printable;
use crate::service::{Service, ServiceShared};

/// The owner of a folder in the sandbox if the template does not contain its user.
const SOMEBODY: (u32, u32) = (1_000, 1_000);

impl Service {
    /// The mounts of a new sandbox. Only volumes of its own tenant: a sandbox must not see more than its tenant.
    pub(crate) async fn mounts_of(
        &self,
        who: &Principal,
        asked: &[MountAsk],
    ) -> Result<Vec<Mount>, ServiceError> {
        let mut mounts = Vec::with_capacity(asked.len());
        for ask in asked {
            let found = self.inner.store.find_volume(Some(&who.tenant), &ask.volume).await?;
            let mut found = found.into_iter().filter(|volume| volume.state == VolumeState::Ready);
            let (Some(volume), None) = (found.next(), found.next()) else {
                let message = format!("there is no volume {}", printable(&ask.volume));
                return Err(ServiceError::new(Code::VolumeNotFound, message)
                    .hint("list them: GET /v1/volumes, or atoll volume ls"));
            };
            mounts.push(Mount {
                volume: volume.id,
                path: ask.path.clone(),
                sub_path: ask.sub_path.clone(),
                read_only: ask.read_only || volume.read_only,
            });
        }
        Ok(mounts)
    }
}

/// The mounts of a sandbox as the provider makes them. What its volumes say by now holds.
pub(crate) async fn mounts_for(
    inner: &ServiceShared,
    lease: &Lease,
) -> Result<Vec<InstanceMount>, ServiceError> {
    let mut mounts = Vec::with_capacity(lease.mounts.len());
    for mount in &lease.mounts {
        let volume = inner.store.volume(&mount.volume).await?;
        let Some(volume) = volume.filter(|volume| volume.state == VolumeState::Ready) else {
            let message = format!("volume {} of sandbox {} is missing", mount.volume, lease.id);
            return Err(ServiceError::new(Code::VolumeNotFound, message));
        };
        mounts.push(InstanceMount {
            source: source(inner, lease, mount, &volume).await?,
            path: mount.path.clone(),
            read_only: mount.read_only || volume.read_only,
        });
    }
    if let Some(build) = &lease.build {
        mounts.extend(inner.builds.memory_over(build, lease.limits.memory_mib));
    }
    Ok(mounts)
}

async fn source(
    inner: &ServiceShared,
    lease: &Lease,
    mount: &Mount,
    volume: &Volume,
) -> Result<MountSource, ServiceError> {
    let sub_path = mount.sub_path.clone();
    let Some(path) = &volume.folder else {
        return Ok(MountSource::Volume { volume: volume.id.clone(), sub_path });
    };
    // The operator may have taken the root back, and somebody may have put a link there.
    let path: PathBuf = folder::check(&inner.config, path)?;
    Ok(MountSource::Folder { path, sub_path, seen_as: ids(inner, lease).await? })
}

/// The user that commands run as, in numbers.
async fn ids(inner: &ServiceShared, lease: &Lease) -> Result<(u32, u32), ServiceError> {
    let (user, group) = lease.user.split_once(':').unwrap_or((&lease.user, &lease.user));
    if let (Ok(user), Ok(group)) = (user.parse(), group.parse()) {
        return Ok((user, group));
    }
    if user == "root" {
        return Ok((0, 0));
    }
    let sources = std::sync::Arc::clone(&inner.templates.sources);
    let (template, version, user) = (lease.template.clone(), lease.template_version.clone(), user.to_owned());
    let look = move || Ok(sources.user_ids(&template, &version, &user));
    Ok(crate::templates::blocking(inner, look).await?.unwrap_or(SOMEBODY))
}
