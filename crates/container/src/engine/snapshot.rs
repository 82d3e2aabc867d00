//! Snapshots of files and memory, and the way back to them.

use atoll_model::{Limits, SnapshotId};
use atoll_provider::{Known, ProviderError, RolledBack, Snapshotted, Target};

use super::Inner;

impl Inner {
    pub(super) fn can_snapshot(&self) -> bool {
        false
    }

    pub(super) async fn snapshot(
        &self,
        _target: &Target,
        _snapshot: &SnapshotId,
        _memory: bool,
    ) -> Result<Snapshotted, ProviderError> {
        Err(not_yet())
    }

    pub(super) async fn verify_snapshot(
        &self,
        _snapshot: &SnapshotId,
        _seal: &str,
    ) -> Result<(), ProviderError> {
        Err(not_yet())
    }

    pub(super) async fn remove_snapshot(&self, _snapshot: &SnapshotId) -> Result<(), ProviderError> {
        Ok(())
    }

    pub(super) async fn rollback(
        &self,
        _target: &Target,
        _snapshot: &SnapshotId,
        _seal: &str,
        _limits: &Limits,
    ) -> Result<RolledBack, ProviderError> {
        Err(not_yet())
    }

    /// At adoption, with everything else in place: removes every snapshot that is not wanted, and what a rollback left.
    pub(super) async fn sweep_snapshots(
        &self,
        _known: &[Known],
        _wanted: &[SnapshotId],
    ) -> Result<(), ProviderError> {
        Ok(())
    }
}

fn not_yet() -> ProviderError {
    ProviderError::Unsupported { what: "a snapshot".into(), hint: "keep the pool on btrfs".into() }
}
