//! Accepts connections and serves each in its own task.
//!
//! Programs in the sandbox can connect too, without a token: the number of such connections is limited, so that they
//! never displace the host's.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::files::ConnectionEnd;
use crate::host_mode::HostMode;
use crate::http::ConnectionHandler;
use crate::process::reap_forever;
use crate::rpc;
use crate::setup::AgentListener;
use crate::state::Agent;

/// LIMIT: connections that have not presented the token. The oldest is closed after it had time to present it, or at
/// once if there are very many; a burst of the host's own connections is below that.
const STRANGERS_MAX: usize = 64;
const STRANGERS_CRUSH: usize = 1024;
const INTRODUCTION: Duration = Duration::from_secs(2);
/// LIMIT: a connection that sends no complete request header for this long is closed. Hosts drop idle ones earlier.
const HEAD_LIMIT: Duration = Duration::from_secs(300);
/// LIMIT: bytes of a header, and of one read of a body; below malloc's mmap threshold, so that the memory is reused.
const BUFFER_MAX: usize = 128 * 1024;

/// LIMIT: bytes that wait in a socket (the kernel doubles it, for its own use). Data that was sent and not received
/// when a checkpoint closes the connection must fit the tails (see `process::output`).
const SOCKET_MAX: usize = 128 * 1024;

/// Serves until the runtime ends.
pub(crate) async fn serve(listener: AgentListener, token: Vec<u8>, host: Option<HostMode>) -> io::Result<()> {
    let listener = Listener::new(listener)?;
    let agent = Arc::new(Agent::new(token, host));
    let rpc = rpc::service(&agent);
    let front = ConnectionHandler { rpc, agent: Arc::clone(&agent), end: Arc::default() };
    // Reaping and accepting both run until the process ends.
    tokio::select! {
        ended = reap_forever(&agent.processes) => ended,
        ended = accept(listener, front) => ended,
    }
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

enum Connection {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Listener {
    fn new(listener: AgentListener) -> io::Result<Self> {
        Ok(match listener {
            AgentListener::Tcp(listener) => Self::Tcp(TcpListener::from_std(listener)?),
            AgentListener::Unix(listener) => Self::Unix(UnixListener::from_std(listener)?),
        })
    }

    async fn accept(&self) -> io::Result<Connection> {
        match self {
            Self::Tcp(listener) => listener.accept().await.map(|(stream, _)| Connection::Tcp(stream)),
            Self::Unix(listener) => listener.accept().await.map(|(stream, _)| Connection::Unix(stream)),
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "`strangers` holds its handle; a known connection ends with its peer"
)]
async fn accept(listener: Listener, front: ConnectionHandler) -> io::Result<()> {
    let mut strangers: VecDeque<(AbortHandle, Arc<AtomicBool>, Instant)> = VecDeque::new();
    loop {
        let stream = match listener.accept().await {
            Ok(stream) => stream,
            Err(_) => {
                // Out of descriptors, or a connection that died in the queue: other tasks get their turn meanwhile.
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            }
        };
        let known = Arc::new(AtomicBool::new(false));
        let task = tokio::spawn(connection(stream, front.clone(), Arc::clone(&known)));
        strangers.push_back((task.abort_handle(), known, Instant::now()));
        strangers.retain(|(task, known, _)| !known.load(Ordering::Relaxed) && !task.is_finished());
        while let Some((oldest, _, since)) = strangers.front()
            && strangers.len() > STRANGERS_MAX
            && (strangers.len() > STRANGERS_CRUSH || since.elapsed() > INTRODUCTION)
        {
            oldest.abort();
            strangers.pop_front();
        }
    }
}

async fn connection(stream: Connection, front: ConnectionHandler, known: Arc<AtomicBool>) {
    match stream {
        Connection::Tcp(stream) => {
            // Responses are small and awaited, so they are sent without delay.
            let _ = stream.set_nodelay(true);
            let _ = rustix::net::sockopt::set_socket_send_buffer_size(&stream, SOCKET_MAX);
            answer_all(stream, front, known).await;
        }
        Connection::Unix(stream) => answer_all(stream, front, known).await,
    }
}

async fn answer_all<S>(stream: S, front: ConnectionHandler, known: Arc<AtomicBool>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let end = ConnectionEnd::default();
    let front = ConnectionHandler { end: Arc::clone(&end), ..front };
    let answer = service_fn(move |request| {
        let (front, known) = (front.clone(), Arc::clone(&known));
        async move { Ok::<_, Infallible>(front.answer(request, &known).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_LIMIT)
        .max_buf_size(BUFFER_MAX)
        .serve_connection(TokioIo::new(stream), answer);
    tokio::select! {
        // An error means that the peer closed the connection.
        _ = served => {}
        () = end.notified() => {}
    }
}
