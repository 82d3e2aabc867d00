//! Idle connections to apps, and the number of requests under way per sandbox.
//!
//! A connection belongs to one instance, so a restarted sandbox never gets a request over an old one. Both numbers are
//! limited; an idle connection does not keep a sandbox awake.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use atoll_model::{InstanceId, SandboxId};
use axum::body::Body;
use hyper::client::conn::http2;
use tokio::time::Instant;

use crate::app_connection::AppConnection;

/// LIMIT: shorter than the timeout of most servers, so that this side closes first.
const IDLE_FOR: Duration = Duration::from_secs(4);
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// LIMIT: idle connections per port, and in total.
const IDLE_PER_PORT: usize = 64;
const IDLE_MAX: usize = 2_048;
/// LIMIT: requests and tunnels under way per sandbox; a loop of apps ends here at the latest.
const OPEN_PER_SANDBOX: usize = 4_096;

/// HTTP/2: one connection carries all requests.
pub(crate) type Shared = http2::SendRequest<Body>;

/// The key of idle connections.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct PoolKey {
    pub(crate) instance: InstanceId,
    pub(crate) port: u16,
}

#[derive(Default)]
pub(crate) struct Pool {
    held: Mutex<PoolState>,
}

#[derive(Default)]
struct PoolState {
    idle: HashMap<PoolKey, Vec<(AppConnection, Instant)>>,
    idle_count: usize,
    shared: HashMap<PoolKey, (Shared, Instant)>,
    open: HashMap<SandboxId, usize>,
}

/// One request or tunnel under way.
pub(crate) struct RequestPermit {
    pool: Arc<Pool>,
    sandbox: SandboxId,
}

impl Pool {
    #[expect(clippy::disallowed_methods, reason = "ends with the pool, of which it holds a weak reference")]
    pub(crate) fn new() -> Arc<Self> {
        let pool = Arc::new(Self::default());
        let weak: Weak<Self> = Arc::downgrade(&pool);
        tokio::spawn(async move {
            let mut tick = tokio::time::interval(SWEEP_EVERY);
            loop {
                tick.tick().await;
                let Some(pool) = weak.upgrade() else { return };
                pool.sweep();
            }
        });
        pool
    }

    /// A slot for one more request; `None`: there are too many.
    pub(crate) fn enter(self: &Arc<Self>, sandbox: &SandboxId) -> Option<RequestPermit> {
        let mut held = self.lock();
        let open = held.open.entry(sandbox.clone()).or_default();
        if *open >= OPEN_PER_SANDBOX {
            return None;
        }
        *open += 1;
        Some(RequestPermit { pool: Arc::clone(self), sandbox: sandbox.clone() })
    }

    /// The most recently used idle connection, and how long it was idle; the caller checks that it is still open.
    pub(crate) fn take(&self, key: &PoolKey) -> Option<(AppConnection, Duration)> {
        let mut held = self.lock();
        let PoolState { idle, idle_count, .. } = &mut *held;
        let waiting = idle.get_mut(key)?;
        let (connection, since) = waiting.pop()?;
        *idle_count -= 1;
        // The others were idle for even longer; the sweep removes them.
        let waited = since.elapsed();
        (waited < IDLE_FOR).then_some((connection, waited))
    }

    /// The HTTP/2 connection to this port, if there is one.
    pub(crate) fn shared(&self, key: &PoolKey) -> Option<Shared> {
        let mut held = self.lock();
        let (sender, used) = held.shared.get_mut(key)?;
        *used = Instant::now();
        (!sender.is_closed()).then(|| sender.clone())
    }

    /// Shares a connection. A replaced one ends with its last request.
    pub(crate) fn share(&self, key: PoolKey, sender: Shared) {
        self.lock().shared.insert(key, (sender, Instant::now()));
    }

    /// Keeps a connection for the next request.
    pub(crate) fn put(&self, key: PoolKey, connection: AppConnection) {
        let mut held = self.lock();
        let PoolState { idle, idle_count, .. } = &mut *held;
        if *idle_count >= IDLE_MAX {
            return;
        }
        let waiting = idle.entry(key).or_default();
        if waiting.len() < IDLE_PER_PORT {
            waiting.push((connection, Instant::now()));
            *idle_count += 1;
        }
    }

    fn sweep(&self) {
        let mut held = self.lock();
        let held = &mut *held;
        held.idle.retain(|_, waiting| {
            waiting.retain(|(_, since)| since.elapsed() < IDLE_FOR);
            !waiting.is_empty()
        });
        held.shared.retain(|_, (sender, used)| !sender.is_closed() && used.elapsed() < IDLE_FOR);
        held.idle_count = held.idle.values().map(Vec::len).sum();
    }

    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        let mut held = self.pool.lock();
        if let Some(open) = held.open.get_mut(&self.sandbox) {
            *open -= 1;
            if *open == 0 {
                held.open.remove(&self.sandbox);
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use tokio::io::DuplexStream;

    async fn connection() -> (AppConnection, DuplexStream) {
        let (near, far) = tokio::io::duplex(1_024);
        let mut connection = crate::app_connection::open(near, std::future::pending()).await.unwrap();
        assert!(connection.is_ready().await);
        (connection, far)
    }

    fn key(n: u8) -> PoolKey {
        PoolKey { instance: InstanceId::from_entropy([n; 20]), port: 80 }
    }

    #[tokio::test]
    async fn a_connection_serves_its_own_incarnation_once() {
        let pool = Pool::new();
        let (connection, _far) = connection().await;
        pool.put(key(1), connection);
        assert!(pool.take(&key(2)).is_none());
        assert!(pool.take(&key(1)).is_some());
        assert!(pool.take(&key(1)).is_none());
        assert_eq!(pool.lock().idle_count, 0);
    }

    #[tokio::test]
    async fn a_connection_that_broke_is_seen_by_who_takes_it() {
        let pool = Pool::new();
        let (connection, far) = connection().await;
        pool.put(key(1), connection);
        drop(far);
        assert!(!pool.take(&key(1)).unwrap().0.is_ready().await);
    }

    #[tokio::test]
    async fn a_connection_ends_with_its_incarnation() {
        let (near, _far) = tokio::io::duplex(1_024);
        let (gone, ends) = tokio::sync::oneshot::channel::<()>();
        let mut connection = crate::app_connection::open(near, async { drop(ends.await) }).await.unwrap();
        assert!(connection.is_ready().await);
        drop(gone);
        assert!(!connection.is_ready().await);
    }

    #[tokio::test]
    async fn waiting_connections_are_bounded() {
        let pool = Pool::new();
        let mut ends = Vec::new();
        for _ in 0..IDLE_PER_PORT + 3 {
            let (connection, far) = connection().await;
            pool.put(key(1), connection);
            ends.push(far);
        }
        assert_eq!(pool.lock().idle_count, IDLE_PER_PORT);
    }

    #[tokio::test]
    async fn places_are_bounded_and_come_back() {
        let pool = Pool::new();
        let sandbox = SandboxId::from_entropy([1; 20]);
        let mut places: Vec<_> = (0..OPEN_PER_SANDBOX).map(|_| pool.enter(&sandbox).unwrap()).collect();
        assert!(pool.enter(&sandbox).is_none());
        assert!(pool.enter(&SandboxId::from_entropy([2; 20])).is_some());
        places.pop();
        assert!(pool.enter(&sandbox).is_some());
        drop(places);
        assert!(pool.lock().open.is_empty());
    }
}
