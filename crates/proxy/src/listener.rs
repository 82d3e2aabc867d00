//! The listeners of a server: connections, plain or TLS, HTTP/1 or HTTP/2, and an orderly shutdown.
//!
//! ```text
//! accept ─ (TLS) ─ which protocol? ─┬─ HTTP/1: strict heads ─┬─ a preview ─► proxy
//!                                   └─ HTTP/2               ├─ CONNECT to this server ─► a connection inside this one
//!                                                           └─ anything else ─► fronts
//! ```
//!
//! First signal: stop accepting, finish requests under way, for at most `drain_for`; second: at once. Every connection
//! is a task of the listener, and none outlives it.

mod body_recovery;
mod checks;
mod connect;
mod connection;
mod counted_answer;
mod guarded_stream;
mod revocable;
mod strangers;
mod strict;
mod tls;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use atoll_budget::BudgetOwner;
use atoll_service::UnixPeer;
use axum::Router;
use http::HeaderValue;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::proxy::Proxy;
pub(crate) use connection::Arrival;
use guarded_stream::GuardedBody;
use strangers::{RequestTurn, StrangerConnections};
pub use tls::{BadCertificate, CertificateFiles, Tls};

/// Limits of the listeners; the defaults suit one machine.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Connections at once, on all listeners; further ones wait in the kernel's queue.
    pub connections: usize,
    /// Deadline for a request's head, for the next request of an idle connection, and for a handshake.
    pub head_within: Duration,
    /// Bytes of a head.
    pub head_bytes: usize,
    /// Requests at once over one HTTP/2 connection.
    pub streams: u32,
    /// How long an HTTP/2 connection may be open without a request; half as long before its client presented a valid
    /// key or token. (For HTTP/1, `head_within`.)
    pub idle_for: Duration,
    /// How long sent bytes may stay unread by the client before its connection is closed.
    pub unread_for: Duration,
    /// How long requests under way may take to finish when the server closes.
    pub drain_for: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            // LIMIT: two descriptors each (the client's and the app's) stay below the usual 65,536.
            connections: 16_384,
            head_within: Duration::from_secs(30),
            head_bytes: 64 << 10,
            streams: 250,
            idle_for: Duration::from_secs(120),
            unread_for: Duration::from_secs(300),
            drain_for: Duration::from_secs(10),
        }
    }
}

/// The two steps of closing.
#[derive(Debug, Clone, Default)]
pub struct Closing {
    /// No new connections; requests under way may finish.
    pub draining: CancellationToken,
    /// Close at once.
    pub forced: CancellationToken,
}

// LIMIT: when descriptors run out, accepting again at once would only spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
// LIMIT: HTTP/2's windows, of one stream and of a connection: the bytes that clients may send before a handler reads
// them. The budget counts a stream's window while its body is open. A stalled stream leaves half of the connection's
// window to others.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 512 << 10;
// LIMIT: streams that a client opened and reset before they were handled; more is an attack (rapid reset).
const RESETS: usize = 64;
const LOCAL_RESETS: usize = 1_024;
// LIMIT: bytes that are written ahead to one HTTP/2 stream.
const SEND_AHEAD: usize = 64 << 10;
// LIMIT: bytes that one HTTP/1 connection reads or writes ahead; it must hold a whole head.
const BUFFER: usize = 128 << 10;
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_WITHIN: Duration = Duration::from_secs(20);

/// All listeners of one server. Cloning is cheap.
#[derive(Clone)]
pub struct HttpServer(Arc<ListenerShared>);

struct ListenerShared {
    proxy: Proxy,
    fronts: Router,
    limits: Limits,
    closing: Closing,
    /// Further origins whose pages may open WebSockets of the API.
    origins: Vec<String>,
    http1: http1::Builder,
    http2: http2::Builder<TokioExecutor>,
    room: Arc<Semaphore>,
    strangers: Arc<StrangerConnections>,
    tasks: TaskTracker,
    /// Ends every remaining task.
    ends: CancellationToken,
    tls: OnceLock<Tls>,
    plain_port: AtomicU16,
    tls_port: AtomicU16,
}

impl HttpServer {
    /// Makes listeners for a proxy and for the fronts, which get every request that is not a preview. Pages of the
    /// server's own origin and of `origins` may open WebSockets of the fronts.
    #[must_use]
    pub fn new(proxy: Proxy, fronts: Router, limits: Limits, closing: Closing, origins: Vec<String>) -> Self {
        Self(Arc::new(ListenerShared {
            proxy,
            fronts,
            origins,
            http1: http1(&limits),
            http2: http2(&limits),
            room: Arc::new(Semaphore::new(limits.connections)),
            // Clients with a key always find a slot.
            strangers: StrangerConnections::new(limits.connections / 2),
            limits,
            closing,
            tasks: TaskTracker::new(),
            ends: CancellationToken::new(),
            tls: OnceLock::new(),
            plain_port: AtomicU16::new(0),
            tls_port: AtomicU16::new(0),
        }))
    }

    /// Serves plain connections until the server closes.
    pub async fn serve(&self, listener: TcpListener) {
        self.0.plain_port.store(port(&listener), Ordering::Relaxed);
        self.accept_all(listener, None).await;
    }

    /// Serves TLS connections until the server closes.
    pub async fn serve_tls(&self, listener: TcpListener, tls: Tls) {
        self.0.tls_port.store(port(&listener), Ordering::Relaxed);
        let _ = self.0.tls.set(tls.clone());
        self.accept_all(listener, Some(tls)).await;
    }

    /// Resolves when the server begins to close.
    pub async fn closes(&self) {
        self.0.closing.draining.cancelled().await;
    }

    /// How many connections are open.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.0.tasks.len()
    }

    /// Waits until every connection has ended, within the limits and until the second signal.
    pub async fn drain(&self) {
        let inner = &self.0;
        inner.tasks.close();
        tokio::select! {
            () = inner.tasks.wait() => return,
            () = inner.closing.forced.cancelled() => tracing::warn!("closing at once"),
            () = tokio::time::sleep(inner.limits.drain_for) => {
                tracing::warn!(within = ?inner.limits.drain_for, "requests were still in progress");
            }
        }
        inner.ends.cancel();
        inner.tasks.wait().await;
    }

    /// Serves connections through a Unix socket until the server closes. `identify` says which user of the machine is at
    /// the other end; a connection of which that is not known is closed.
    pub async fn serve_unix(
        &self,
        listener: UnixListener,
        identify: impl Fn(&UnixStream) -> std::io::Result<UnixPeer>,
    ) {
        loop {
            let accepted = tokio::select! {
                biased;
                () = self.0.closing.draining.cancelled() => return,
                accepted = accept(listener.accept(), &self.0.room) => accepted,
            };
            let Some((stream, place)) = accepted else { continue };
            match identify(&stream) {
                Ok(peer) => self.start(
                    stream,
                    place,
                    None,
                    ConnectionOrigin { address: None, user: Some(Arc::new(peer)) },
                ),
                Err(error) => tracing::warn!(%error, "the user at the other end of the socket is not known"),
            }
        }
    }

    async fn accept_all(&self, listener: TcpListener, tls: Option<Tls>) {
        loop {
            let accepted = tokio::select! {
                biased;
                () = self.0.closing.draining.cancelled() => return,
                accepted = accept(listener.accept(), &self.0.room) => accepted,
            };
            let Some((stream, place)) = accepted else { continue };
            prepare(&stream, &self.0.limits);
            let address = stream.peer_addr().ok();
            self.start(stream, place, tls.clone(), ConnectionOrigin { address, user: None });
        }
    }

    /// Serves one connection in a task.
    fn start<I: connection::Stream>(
        &self,
        stream: I,
        place: OwnedSemaphorePermit,
        tls: Option<Tls>,
        origin: ConnectionOrigin,
    ) {
        let ConnectionOrigin { address: peer, user } = origin;
        let forwarded = peer.and_then(|peer| HeaderValue::from_str(&peer.ip().to_string()).ok());
        let owner = BudgetOwner::stranger(peer.map(|peer| peer.ip()));
        let connection = self.0.strangers.enter(owner);
        let evicted = connection.evicted();
        let arrival = Arrival {
            peer,
            user,
            forwarded,
            is_secure: tls.is_some(),
            is_inside: false,
            connection,
            turn: RequestTurn::default(),
        };
        let server = self.clone();
        let stream = GuardedBody::new(stream, place);
        self.spawn(async move {
            let serving = async {
                match tls {
                    Some(tls) => server.secure(stream, tls, arrival).await,
                    None => server.connection(stream, arrival).await,
                }
            };
            tokio::select! { () = serving => {}, () = evicted.cancelled() => {} }
        });
    }

    /// Spawns a task that ends with the listener.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let ends = self.0.ends.clone();
        self.0.tasks.spawn(async move {
            tokio::select! { () = task => {}, () = ends.cancelled() => {} }
        });
    }
}

/// The other end of a connection.
struct ConnectionOrigin {
    address: Option<SocketAddr>,
    /// The user of the machine, for a connection through the Unix socket.
    user: Option<Arc<UnixPeer>>,
}

/// Cancel-safe: a slot is given back when this is dropped, and `accept` takes no connection until it is done.
async fn accept<S, A>(
    accepting: impl Future<Output = std::io::Result<(S, A)>>,
    room: &Arc<Semaphore>,
) -> Option<(S, OwnedSemaphorePermit)> {
    let place = Arc::clone(room).acquire_owned().await.ok()?;
    match accepting.await {
        Ok((stream, _)) => Some((stream, place)),
        Err(error) => {
            tracing::warn!(%error, "cannot accept a connection");
            tokio::time::sleep(ACCEPT_PAUSE).await;
            None
        }
    }
}

fn port(listener: &TcpListener) -> u16 {
    listener.local_addr().map_or(0, |address| address.port())
}

/// Best effort: a socket that refuses an option still works.
fn prepare(stream: &TcpStream, limits: &Limits) {
    let unread_ms = u32::try_from(limits.unread_for.as_millis()).unwrap_or(u32::MAX);
    let _ = stream.set_nodelay(true);
    let _ = rustix::net::sockopt::set_socket_keepalive(stream, true);
    // The kernel gives up on a peer that is gone, and on one that keeps its window closed.
    let _ = rustix::net::sockopt::set_tcp_user_timeout(stream, unread_ms);
}

fn http1(limits: &Limits) -> http1::Builder {
    let mut http = http1::Builder::new();
    // The number of header fields stays at hyper's 100, which it keeps on the stack.
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.head_within)
        .max_header_size(limits.head_bytes)
        .max_buf_size(BUFFER)
        .keep_alive(true)
        .half_close(false)
        // Header names to and from an app keep their case.
        .preserve_header_case(true);
    http
}

fn http2(limits: &Limits) -> http2::Builder<TokioExecutor> {
    let mut http = http2::Builder::new(TokioExecutor::new());
    http.timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams)
        .max_header_list_size(u32::try_from(limits.head_bytes).unwrap_or(u32::MAX))
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_pending_accept_reset_streams(RESETS)
        .max_local_error_reset_streams(LOCAL_RESETS)
        .max_send_buf_size(SEND_AHEAD)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_WITHIN);
    http
}
