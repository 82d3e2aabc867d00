//! Named places in the drivers at which a test may wait, end the server or panic. Without a hook they take one branch.

use std::sync::Arc;

use futures::future::BoxFuture;

type Hook = dyn Fn(&'static str) -> BoxFuture<'static, ()> + Send + Sync;

/// A hook that is called at every named place, or none.
#[derive(Clone, Default)]
pub struct FailPoint(Option<Arc<Hook>>);

impl FailPoint {
    /// No hook.
    #[must_use]
    pub const fn none() -> Self {
        Self(None)
    }

    /// Calls `hook` with the name of each place when it is reached, and waits for it.
    pub fn new(hook: impl Fn(&'static str) -> BoxFuture<'static, ()> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(hook)))
    }

    /// All places.
    pub const PLACES: &[&'static str] = &[
        "insert.before",
        "insert.after",
        "effect.before",
        "effect.made",
        "effect.after",
        "advance.before",
        "advance.after",
        "pause.before",
        "pause.frozen",
        "checkpoint.before",
        "checkpoint.after",
        "resume.before",
        "resume.after",
        "restore.before",
        "restore.made",
        "snapshot.row",
        "snapshot.made",
        "snapshot.ready",
        "snapshot.deleting",
        "snapshot.removed",
        "fork.snapshot",
        "fork.child",
        "fork.made",
        "fork.done",
        "archive.before",
        "archive.packed",
        "archive.uploaded",
        "archive.written",
        "archive.local_removed",
        "restore.fetch",
        "restore.unpacked",
        "restore.objects_removed",
        "rollback.before",
        "rollback.after",
    ];

    /// All places of a move to another provider, beside those of the life of a sandbox.
    pub const MOVES: &[&'static str] = &[
        "move.stopped",
        "move.begun",
        "move.source_booted",
        "move.target_made",
        "move.copied",
        "move.compared",
        "move.halted",
        "move.committed",
        "move.aborted",
        "move.removed",
    ];

    /// All places outside of the life of one sandbox: templates, volumes, terminals, the queue of creates and the end of the
    /// server.
    pub const BESIDE: &[&'static str] = &[
        "collect.rows",
        "pull.files",
        "volume.row",
        "volume.files",
        "volume.deleting",
        "volume.removed",
        "terminal.row",
        "terminal.shell",
        "exit.marked",
        "queue.turn",
        "queue.reserved",
        "queue.placed",
    ];

    pub(crate) async fn reach(&self, place: &'static str) {
        if let Some(hook) = &self.0 {
            debug_assert!(
                [Self::PLACES, Self::MOVES, Self::BESIDE].iter().any(|places| places.contains(&place)),
                "{place} is not listed"
            );
            hook(place).await;
        }
    }
}
