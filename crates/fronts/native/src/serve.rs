//! Serving connections: caps on heads, a deadline for reading them, a bounded number of clients, and an orderly end.
//!
//! ```text
//! first signal:  stop accepting, finish what is under way (streams are ended), at most `drain_for`
//! second signal: close everything at once
//! ```
//!
//! Every connection is a task of one set that ends with [`serve`]; none outlives it.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::leftover;
use crate::telemetry::{self, Open};

/// The two steps of closing. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    draining: CancellationToken,
    immediate: CancellationToken,
}

impl Shutdown {
    /// For the first signal: no new connections; what is under way may finish.
    pub fn begin(&self) {
        self.draining.cancel();
    }

    /// For the second signal: at once.
    pub fn force(&self) {
        self.draining.cancel();
        self.immediate.cancel();
    }

    /// The two steps, for who serves connections: closing begins, and ends at once.
    #[must_use]
    pub fn tokens(&self) -> (CancellationToken, CancellationToken) {
        (self.draining.clone(), self.immediate.clone())
    }

    /// Resolves when closing begins.
    pub fn draining(&self) -> impl Future<Output = ()> + Send + 'static {
        self.draining.clone().cancelled_owned()
    }
}

/// Bounds of the server; the defaults suit one machine.
#[derive(Debug, Clone)]
pub struct ServeLimits {
    /// Clients at once; further ones wait in the kernel's queue.
    pub connections: usize,
    /// For a request's head, and for an idle connection's next request.
    pub head_within: Duration,
    /// Bytes of a head.
    pub head_bytes: usize,
    /// How long sent bytes may stay unread by the client before its connection is given up.
    pub unread_for: Duration,
    /// How long requests under way may take to finish when the server closes.
    pub drain_for: Duration,
}

impl Default for ServeLimits {
    fn default() -> Self {
        Self {
            // LIMIT: two descriptors each (the client's and the agent's) stay below the usual 65,536.
            connections: 16_384,
            head_within: Duration::from_secs(30),
            head_bytes: 64 * 1_024,
            unread_for: Duration::from_secs(300),
            drain_for: Duration::from_secs(10),
        }
    }
}

// LIMIT: recorded times pile up for this long at most.
const UPKEEP_EVERY: Duration = Duration::from_secs(5);
// LIMIT: when descriptors run out, accepting again at once would only spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves `router` on `listener` until `shutdown`; returns when every connection has ended.
pub async fn serve(listener: TcpListener, router: Router, shutdown: Shutdown, limits: ServeLimits) {
    let room = Arc::new(Semaphore::new(limits.connections));
    let http = http(&limits);
    let mut clients = JoinSet::new();
    let mut upkeep = tokio::time::interval(UPKEEP_EVERY);
    loop {
        tokio::select! {
            biased;
            () = shutdown.draining() => break,
            _ = upkeep.tick() => telemetry::upkeep(),
            // Ended tasks are collected here, so that the set does not grow.
            Some(_) = clients.join_next(), if !clients.is_empty() => {}
            accepted = accept(&listener, &room) => if let Some((stream, place)) = accepted {
                prepare(&stream, &limits);
                let client = client(http.clone(), stream, router.clone(), shutdown.clone());
                clients.spawn(async move {
                    client.await;
                    drop(place);
                });
            },
        }
    }
    drop(listener);
    drain(clients, &shutdown, limits.drain_for).await;
}

/// Cancel-safe: a place that was taken is given back when this is dropped, and `accept` takes nothing until it is done.
async fn accept(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
) -> Option<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let place = Arc::clone(room).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => Some((stream, place)),
        Err(error) => {
            tracing::warn!(%error, "cannot accept a connection");
            tokio::time::sleep(ACCEPT_PAUSE).await;
            None
        }
    }
}

async fn drain(mut clients: JoinSet<()>, shutdown: &Shutdown, within: Duration) {
    let all = async { while clients.join_next().await.is_some() {} };
    tokio::select! {
        () = all => {}
        () = shutdown.immediate.cancelled() => tracing::warn!("closing at once"),
        () = tokio::time::sleep(within) => tracing::warn!(?within, "requests were still under way"),
    }
    clients.shutdown().await;
}

fn http(limits: &ServeLimits) -> http1::Builder {
    let mut http = http1::Builder::new();
    // The number of header fields stays at hyper's 100, which it keeps on the stack.
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.head_within)
        .max_header_size(limits.head_bytes)
        .keep_alive(true)
        .half_close(false);
    http
}

/// Best effort: a socket that refuses an option still serves.
fn prepare(stream: &TcpStream, limits: &ServeLimits) {
    let unread_ms = u32::try_from(limits.unread_for.as_millis()).unwrap_or(u32::MAX);
    let _ = stream.set_nodelay(true);
    let _ = rustix::net::sockopt::set_socket_keepalive(stream, true);
    // The kernel gives up on a peer that is gone, and on one that keeps its window shut.
    let _ = rustix::net::sockopt::set_tcp_user_timeout(stream, unread_ms);
}

async fn client(http: http1::Builder, stream: TcpStream, router: Router, shutdown: Shutdown) {
    let _counted = Open::connection();
    // Who asks, for those who must say it on.
    let peer = stream.peer_addr().ok().map(ConnectInfo);
    let (watch, mut leftovers) = leftover::leftovers();
    let service = router.map_request(move |request: Request<Incoming>| {
        let (head, body) = request.into_parts();
        let body = watch.body(&head.headers, body);
        let mut request = Request::from_parts(head, Body::new(body));
        peer.map(|peer| request.extensions_mut().insert(peer));
        request
    });
    let service = TowerToHyperService::new(service);
    let connection = http.serve_connection(TokioIo::new(stream), service).with_upgrades();
    let mut connection = std::pin::pin!(connection);
    let serving = async {
        tokio::select! {
            ended = connection.as_mut() => ended,
            () = shutdown.draining() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    };
    let ended = tokio::select! { ended = serving => ended, never = leftovers.discard() => match never {} };
    if let Err(error) = ended {
        // Clients that vanish or send nonsense are everyday; nobody must look.
        tracing::debug!(%error, "a connection ended early");
    }
}
