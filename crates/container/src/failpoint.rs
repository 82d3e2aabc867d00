//! Named places between the steps of the engine at which a test ends the server. Without a hook each place costs one
//! branch.
//!
//! There is one between every two steps of a start, a checkpoint, a restore, a snapshot with memory, a fork with memory and a rollback.
//! The crash suite ends the server at each of them, the soak test at random ones.

use std::fmt;
use std::sync::Arc;

type Hook = dyn Fn(&'static str) + Send + Sync;

/// An optional hook that is called at every named place.
#[derive(Clone, Default)]
pub struct FailPoint(Option<Arc<Hook>>);

impl fmt::Debug for FailPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FailPoint").field(&self.0.is_some()).finish()
    }
}

impl FailPoint {
    /// All places, in the order in which an operation passes them.
    pub const PLACES: &[&'static str] = &[
        // A start.
        "start.prepared",
        "start.spawned",
        "start.connected",
        // A dump: of a checkpoint, and of a snapshot with memory.
        "dump.begin",
        "dump.started",
        "dump.written",
        "dump.frozen",
        "dump.sealed",
        // A checkpoint.
        "checkpoint.frozen",
        "checkpoint.drafted",
        "checkpoint.dumped",
        "commit.cleared",
        "commit.synced",
        "commit.renamed",
        "checkpoint.committed",
        "end.killed",
        "checkpoint.killed",
        "checkpoint.dead",
        "checkpoint.detached",
        // A restore.
        "restore.verified",
        "restore.prepared",
        "restore.started",
        "restore.connected",
        "restore.frozen",
        "restore.standing",
        "restore.closed",
        "restore.open",
        "restore.limited",
        "spend.noted",
        "spend.renamed",
        "restore.spent",
        "restore.thawed",
        "restore.watched",
        "restore.freed",
        // A snapshot with memory.
        "snapshot.folder",
        "snapshot.frozen",
        "snapshot.dumped",
        "snapshot.copied",
        "snapshot.thawed",
        "snapshot.synced",
        "snapshot.sealed",
        // A sandbox with the memory of a snapshot.
        "fork.checked",
        "fork.copied",
        "fork.named",
        // A rollback.
        "rollback.checked",
        "rollback.prepared",
        "rollback.ended",
        "rollback.forgotten",
        "rollback.swapped",
        "rollback.drafted",
        "rollback.filled",
        "rollback.placed",
    ];

    /// Calls `hook` with the name of each place as it is reached, on the thread that reaches it.
    pub fn new(hook: impl Fn(&'static str) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(hook)))
    }

    pub(crate) fn reach(&self, place: &'static str) {
        if let Some(hook) = &self.0 {
            debug_assert!(Self::PLACES.contains(&place), "{place} is not listed");
            hook(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_is_listed_once() {
        let mut names = FailPoint::PLACES.to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), FailPoint::PLACES.len());
    }
}
