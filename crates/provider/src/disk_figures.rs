//! How much disk sandboxes use, where only a walk over all of their files tells it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_model::SandboxId;
use tokio::time::Instant;

/// How long a figure is returned again without another walk.
const FRESH: Duration = Duration::from_secs(30);
/// LIMIT: how long a caller waits for a walk; after that it gets the previous figure.
pub const WALK_LIMIT: Duration = Duration::from_secs(1);

/// The last figure of each sandbox.
#[derive(Debug, Default)]
pub struct DiskFigures(Mutex<HashMap<SandboxId, DiskFigure>>);

#[derive(Debug, Clone, Copy)]
struct DiskFigure {
    /// `None`: no walk has come to its end in time yet.
    bytes: Option<u64>,
    walked_at: Instant,
}

impl DiskFigures {
    /// The bytes of a sandbox, by `walk` if the last one was a while ago. Callers at the same time share one walk.
    pub async fn read(&self, sandbox: &SandboxId, walk: impl Future<Output = Option<u64>>) -> Option<u64> {
        let before = self.lock().get(sandbox).copied();
        if let Some(figure) = before.filter(|figure| figure.walked_at.elapsed() < FRESH) {
            return figure.bytes;
        }
        let before = before.and_then(|figure| figure.bytes);
        self.set(sandbox, before);
        let bytes = tokio::time::timeout(WALK_LIMIT, walk).await.ok().flatten().or(before);
        self.set(sandbox, bytes);
        bytes
    }

    /// Forgets a sandbox that is deleted.
    pub fn forget(&self, sandbox: &SandboxId) {
        self.lock().remove(sandbox);
    }

    fn set(&self, sandbox: &SandboxId, bytes: Option<u64>) {
        self.lock().insert(sandbox.clone(), DiskFigure { bytes, walked_at: Instant::now() });
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SandboxId, DiskFigure>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_figure_is_told_again_until_it_is_old() {
        let (figures, sandbox) = (DiskFigures::default(), SandboxId::from_entropy([1; 20]));
        let walk = |bytes| std::future::ready(Some(bytes));
        assert_eq!(figures.read(&sandbox, walk(1)).await, Some(1));
        assert_eq!(figures.read(&sandbox, walk(2)).await, Some(1));
        tokio::time::advance(FRESH).await;
        assert_eq!(figures.read(&sandbox, walk(3)).await, Some(3));
        figures.forget(&sandbox);
        assert_eq!(figures.read(&sandbox, walk(4)).await, Some(4));
    }

    #[tokio::test(start_paused = true)]
    async fn a_walk_that_takes_too_long_leaves_the_figure_before() {
        let (figures, sandbox) = (DiskFigures::default(), SandboxId::from_entropy([1; 20]));
        assert_eq!(figures.read(&sandbox, std::future::pending()).await, None);
        tokio::time::advance(FRESH).await;
        assert_eq!(figures.read(&sandbox, std::future::ready(Some(5))).await, Some(5));
        tokio::time::advance(FRESH).await;
        assert_eq!(figures.read(&sandbox, std::future::pending()).await, Some(5));
    }
}
