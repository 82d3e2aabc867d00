//! Calls to the Docker daemon about volumes. A volume is this server's if it has the owner label, the label of a volume, and
//! the name that belongs to it; all others are never returned, so nothing can touch them.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use atoll_model::VolumeId;
use atoll_provider::ProviderError;
use bollard::models::{Volume, VolumeCreateRequest};
use bollard::query_parameters::{ListVolumesOptionsBuilder, RemoveVolumeOptionsBuilder};

use super::{ANSWER_WITHIN, CHANGE_WITHIN, CallError, Daemon, OWNER_LABEL};
use crate::failed;

/// The volume whose files a volume of the daemon holds.
const VOLUME_LABEL: &str = "atoll.volume";
/// Marks the files of a copy that is not complete.
const DRAFT_LABEL: &str = "atoll.draft";
/// LIMIT: removing a volume. The daemon removes its files one by one.
const REMOVE_WITHIN: Duration = Duration::from_secs(600);

/// What a volume of the daemon is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VolumeRole {
    /// The files of a volume.
    Files,
    /// The files of a copy that is under way.
    Draft,
}

/// A volume of the daemon that belongs to this server.
#[derive(Debug, Clone)]
pub(crate) struct FoundVolume {
    pub(crate) name: String,
    pub(crate) volume: VolumeId,
    pub(crate) role: VolumeRole,
    /// The folder with its files, on the daemon's machine.
    pub(crate) path: PathBuf,
}

/// The daemon's name of a volume.
fn volume_name(volume: &VolumeId, role: VolumeRole) -> String {
    match role {
        VolumeRole::Files => format!("atoll-{volume}"),
        VolumeRole::Draft => format!("atoll-{volume}.draft"),
    }
}

impl Daemon {
    /// The labels of a volume.
    pub(crate) fn volume_labels(&self, volume: &VolumeId, role: VolumeRole) -> HashMap<String, String> {
        let mut labels = HashMap::from([
            (OWNER_LABEL.to_owned(), self.owner.clone()),
            (VOLUME_LABEL.to_owned(), volume.as_str().to_owned()),
        ]);
        if role == VolumeRole::Draft {
            labels.insert(DRAFT_LABEL.to_owned(), "copy".to_owned());
        }
        labels
    }

    /// The volume of this server that a volume of the daemon is; `None` where it is another's.
    fn own_volume(&self, found: Volume) -> Option<FoundVolume> {
        let volume: VolumeId = found.labels.get(VOLUME_LABEL)?.parse().ok()?;
        let role = match found.labels.contains_key(DRAFT_LABEL) {
            true => VolumeRole::Draft,
            false => VolumeRole::Files,
        };
        let is_own =
            found.labels.get(OWNER_LABEL) == Some(&self.owner) && found.name == volume_name(&volume, role);
        is_own.then(|| FoundVolume { name: found.name, volume, role, path: found.mountpoint.into() })
    }

    /// Makes a volume; the one that is there where this server made it before.
    pub(crate) async fn create_volume(
        &self,
        volume: &VolumeId,
        role: VolumeRole,
    ) -> Result<FoundVolume, ProviderError> {
        let name = volume_name(volume, role);
        let request = VolumeCreateRequest {
            name: Some(name.clone()),
            driver: Some("local".to_owned()),
            labels: Some(self.volume_labels(volume, role)),
            ..VolumeCreateRequest::default()
        };
        let docker = self.docker()?;
        let made = self.bounded("making the volume", CHANGE_WITHIN, docker.create_volume(request)).await?;
        let foreign = || failed("making the volume")(format!("{name} is there and belongs to another owner"));
        self.own_volume(made).ok_or_else(foreign)
    }

    /// The volumes of this server: all, or those that hold the files of one volume.
    pub(crate) async fn volumes(&self, of: Option<&VolumeId>) -> Result<Vec<FoundVolume>, ProviderError> {
        let of = of.map(|volume| format!("{VOLUME_LABEL}={volume}"));
        let labels: Vec<String> = [self.owner_filter()].into_iter().chain(of).collect();
        let options =
            ListVolumesOptionsBuilder::default().filters(&HashMap::from([("label", labels)])).build();
        let docker = self.docker()?;
        let call = docker.list_volumes(Some(options));
        let listed = self.bounded("listing volumes", ANSWER_WITHIN, call).await?;
        let volumes = listed.volumes.unwrap_or_default().into_iter();
        Ok(volumes.filter_map(|found| self.own_volume(found)).collect())
    }

    /// Removes a volume with its files. One that is not there is fine.
    pub(crate) async fn remove_volume(&self, volume: &FoundVolume) -> Result<(), ProviderError> {
        let docker = self.docker()?.with_timeout(REMOVE_WITHIN);
        let options = RemoveVolumeOptionsBuilder::default().build();
        let call = docker.remove_volume(&volume.name, Some(options));
        match self.bounded("removing the volume", REMOVE_WITHIN, call).await {
            Err(error) if error.is(404) => Ok(()),
            Err(CallError::Refused { status: 409, message, .. }) => Err(ProviderError::Transient {
                what: format!("removing the volume {}", volume.name),
                why: message,
            }),
            other => Ok(other?),
        }
    }
}
