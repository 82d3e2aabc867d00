//! The files of a volume for a caller that shows the token of that volume, as SDKs do that were given no key for it. The token is
//! derived from the server's own secret and the volume's id: it is stored nowhere, opens one volume, and ends with it.

use atoll_model::{Volume, VolumeId, VolumeState};

use super::files::OpenVolume;
use super::{Volumes, missing};
use crate::ServiceError;

const PURPOSE: &str = "volume";

/// A caller that has shown the token of a volume.
#[derive(Debug, Clone)]
pub struct VolumePass {
    id: VolumeId,
}

impl Volumes {
    /// The token that opens the files of this volume, and nothing else.
    #[must_use]
    pub fn token(&self, volume: &Volume) -> String {
        self.inner.derived_token(PURPOSE, &[volume.id.as_str()])
    }

    /// Admits a caller that shows the token of a volume. Whether there is such a volume is not told to others.
    pub(crate) fn admit(&self, id: &str, shown: &str) -> Option<VolumePass> {
        match (id.parse(), self.inner.is_derived_token(PURPOSE, &[id], shown)) {
            (Ok(id), true) => Some(VolumePass { id }),
            _ => None,
        }
    }

    /// The files of the volume of a pass.
    pub async fn open_admitted(&self, pass: &VolumePass) -> Result<OpenVolume, ServiceError> {
        let known = self.inner.store.volume(&pass.id).await?;
        let known = known.filter(|volume| volume.state == VolumeState::Ready);
        Ok(self.opened(known.ok_or_else(|| missing(pass.id.as_str()))?))
    }
}
