//! The files of a sandbox as one stream, and back.

use atoll_model::Limits;
use atoll_provider::{Packed, ProviderError, Target};

use super::Inner;

impl Inner {
    pub(super) fn can_pack(&self) -> bool {
        false
    }

    pub(super) async fn pack(&self, _target: &Target) -> Result<Packed, ProviderError> {
        Err(not_yet())
    }

    pub(super) async fn unpack(
        &self,
        _target: &Target,
        _limits: &Limits,
        _files: Packed,
    ) -> Result<(), ProviderError> {
        Err(not_yet())
    }
}

fn not_yet() -> ProviderError {
    ProviderError::Unsupported { what: "packing files".into(), hint: "keep the pool on btrfs".into() }
}
