//! The files of a volume for a caller that shows the token of that volume, as SDKs do that were given no key for it. The token is
//! derived from the server's own secret and the volume's id: it is stored nowhere, opens one volume, and ends with it.

use atoll_model::{Volume, VolumeId, VolumeState};

use super::files::OpenVolume;
use super::{Volumes, missing};
use crate::ServiceError;
use crate::access::Grant;

const PURPOSE: &str = "volume";

impl Volumes {
    /// The token that opens the files of this volume, and nothing else.
    #[must_use]
    pub fn token(&self, volume: &Volume) -> String {
        self.inner.derived_token(PURPOSE, &[volume.id.as_str()])
    }

    /// The volume whose token this is. Whether there is such a volume is not looked up.
    pub(crate) fn with_token(&self, id: &str, shown: &str) -> Option<VolumeId> {
        id.parse().ok().filter(|_| self.inner.is_derived_token(PURPOSE, &[id], shown))
    }

    /// The files of the volume that a caller was admitted to.
    pub async fn open_granted(&self, grant: &Grant<VolumeId>) -> Result<OpenVolume, ServiceError> {
        let id = &grant.target;
        let known = self.inner.store.volume(id).await?;
        let known = known.filter(|volume| volume.state == VolumeState::Ready);
        let volume = known.ok_or_else(|| missing(id.as_str()))?;
        self.need_here(&volume)?;
        self.opened(volume)
    }
}
