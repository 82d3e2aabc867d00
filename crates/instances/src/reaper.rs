//! Slow removals: the remains of an instance are removed in the background, and every failed removal is retried.
//!
//! The reaper stores nothing on disk. After a crash, adoption finds unknown instances and ends them again.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};

/// LIMIT: remains that are removed in one step on a thread.
const BATCH: usize = 64;
/// The number of failed tries after which a warning is logged.
const WARN_AT: u32 = 8;

/// Removes what ended instances leave.
pub trait RemainsCleaner: Send + Sync + 'static {
    /// The remains of an instance. Each part is taken out when it is removed.
    type Remains: fmt::Debug + Send + 'static;

    /// Removes what can be removed; returns whether nothing is left. `tries` counts the earlier calls for these
    /// remains. Blocks.
    fn try_clear(&self, remains: &mut Self::Remains, tries: u32) -> io::Result<bool>;
}

/// Remains in the queue, and how often their removal was tried.
type Queued<R> = (R, u32);

/// Removes remains in the background.
#[derive(Debug)]
pub struct Reaper<R> {
    remains: mpsc::UnboundedSender<Queued<R>>,
    pending: Arc<watch::Sender<usize>>,
}

impl<R: fmt::Debug + Send + 'static> Reaper<R> {
    /// Returns the reaper, and its loop for the owner to run.
    pub(crate) fn new<C: RemainsCleaner<Remains = R>>(
        cleaner: Arc<C>,
    ) -> (Self, impl Future<Output = ()> + Send + use<C, R>) {
        let (remains, queue) = mpsc::unbounded_channel();
        let pending = Arc::new(watch::Sender::new(0));
        let work = run(cleaner, queue, remains.downgrade(), Arc::clone(&pending));
        (Self { remains, pending }, work)
    }

    /// Queues remains for removal.
    pub fn take(&self, remains: R) {
        self.take_after(remains, 0);
    }

    /// Queues remains whose removal was tried already.
    pub fn take_after(&self, remains: R, tries: u32) {
        self.pending.send_modify(|pending| *pending += 1);
        if self.remains.send((remains, tries)).is_err() {
            self.pending.send_modify(|pending| *pending -= 1);
        }
    }

    /// Waits until all remains are removed.
    pub async fn settle(&self) {
        let _ = self.pending.subscribe().wait_for(|pending| *pending == 0).await;
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "sleeps some seconds at most and holds a weak reference to the queue"
)]
async fn run<C: RemainsCleaner>(
    cleaner: Arc<C>,
    mut queue: mpsc::UnboundedReceiver<Queued<C::Remains>>,
    again: mpsc::WeakUnboundedSender<Queued<C::Remains>>,
    pending: Arc<watch::Sender<usize>>,
) {
    while let Some(first) = queue.recv().await {
        let mut batch = vec![first];
        while batch.len() < BATCH
            && let Ok(next) = queue.try_recv()
        {
            batch.push(next);
        }
        let cleaner = Arc::clone(&cleaner);
        let work = move || batch.into_iter().map(|queued| clear(&*cleaner, queued)).collect::<Vec<_>>();
        let Ok(outcomes) = tokio::task::spawn_blocking(work).await else { continue };
        for outcome in outcomes {
            match outcome {
                None => pending.send_modify(|pending| *pending -= 1),
                Some((remains, tries)) => {
                    let tries = tries + 1;
                    // LIMIT: a network namespace is gone within some tens of milliseconds; a stuck process may take for
                    // ever.
                    let pause = Duration::from_millis(10 << tries.min(7));
                    let again = again.clone();
                    tokio::spawn(async move {
                        tokio::time::sleep(pause).await;
                        if let Some(again) = again.upgrade() {
                            let _ = again.send((remains, tries));
                        }
                    });
                }
            }
        }
    }
}

/// Removes what can be removed; returns the rest.
fn clear<C: RemainsCleaner>(
    cleaner: &C,
    (mut remains, tries): Queued<C::Remains>,
) -> Option<Queued<C::Remains>> {
    match cleaner.try_clear(&mut remains, tries) {
        Ok(true) => None,
        Ok(false) => Some((remains, tries)),
        Err(cause) => {
            if tries == WARN_AT {
                tracing::warn!(?remains, %cause, "the remains of an instance cannot be removed; this is retried");
            }
            Some((remains, tries))
        }
    }
}
