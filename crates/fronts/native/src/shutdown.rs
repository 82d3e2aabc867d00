//! The two steps of closing a server.

use std::future::Future;

use tokio_util::sync::CancellationToken;

/// The two steps of closing. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    draining: CancellationToken,
    immediate: CancellationToken,
}

impl Shutdown {
    /// For the first signal: no new connections; running requests may finish.
    pub fn begin(&self) {
        self.draining.cancel();
    }

    /// For the second signal: close at once.
    pub fn force(&self) {
        self.draining.cancel();
        self.immediate.cancel();
    }

    /// The tokens of the two steps, for the code that serves connections: closing begins, and connections end at once.
    #[must_use]
    pub fn tokens(&self) -> (CancellationToken, CancellationToken) {
        (self.draining.clone(), self.immediate.clone())
    }

    /// Resolves when closing begins.
    pub fn draining(&self) -> impl Future<Output = ()> + Send + 'static {
        self.draining.clone().cancelled_owned()
    }
}
