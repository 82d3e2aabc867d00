//! A connection that is moved by whoever uses it, and the few that wait for their next request.

use std::io;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;

use crate::client::transport::Transport;
use crate::error::AgentError;

/// LIMIT: a client with many commands at once has as many connections; these are kept for its next ones.
const IDLE_MAX: usize = 16;

/// LIMIT: an agent keeps connections ten times as long, and a fresh one costs 0.1 ms.
const IDLE_FOR: Duration = Duration::from_secs(30);

/// LIMIT: a head of an agent, and what is read of a body at once.
const BUFFER_MAX: usize = 256 << 10;

pub(super) type ForwardBody = UnsyncBoxBody<Bytes, io::Error>;
type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The connection.
pub(crate) struct ForwardConnection {
    sender: http1::SendRequest<ForwardBody>,
    connection: Option<BoxFuture<hyper::Result<()>>>,
    /// Resolves when its instance is no more.
    gone: BoxFuture<()>,
    was_cut: bool,
    idle_since: Instant,
}

pub(super) async fn connect(
    transport: &Transport,
    gone: impl Future<Output = ()> + Send + 'static,
) -> Result<ForwardConnection, AgentError> {
    let stream = transport.dial().await?;
    let (sender, connection) = http1::Builder::new()
        .max_buf_size(BUFFER_MAX)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(AgentError::Transport)?;
    let connection: BoxFuture<_> = Box::pin(connection);
    Ok(ForwardConnection {
        sender,
        connection: Some(connection),
        gone: Box::pin(gone),
        was_cut: false,
        idle_since: Instant::now(),
    })
}

impl ForwardConnection {
    /// Moves what can be moved now.
    pub(super) fn advance(&mut self, cx: &mut Context<'_>) {
        let Some(connection) = &mut self.connection else { return };
        // How it ended is told to whoever waits for the answer.
        if connection.as_mut().poll(cx).is_ready() {
            self.connection = None;
        } else if self.gone.as_mut().poll(cx).is_ready() {
            self.connection = None;
            self.was_cut = true;
        }
    }

    /// The instance ended before the connection did.
    pub(super) fn was_cut(&self) -> bool {
        self.was_cut
    }

    /// Another user knows better when the instance is gone.
    pub(super) fn ends_with(&mut self, gone: impl Future<Output = ()> + Send + 'static) {
        self.gone = Box::pin(gone);
    }

    pub(super) fn stands(&self) -> bool {
        self.connection.is_some() && self.sender.is_ready()
    }

    /// Whether the next request can be sent; looks once, and does not wait.
    pub(super) async fn is_ready(&mut self) -> bool {
        std::future::poll_fn(|cx| {
            self.advance(cx);
            Poll::Ready(self.stands())
        })
        .await
    }

    /// Sends a request and waits for the head of its answer.
    pub(super) async fn send(
        &mut self,
        request: Request<ForwardBody>,
    ) -> Result<Response<Incoming>, TrySendError<Request<ForwardBody>>> {
        let mut answer = std::pin::pin!(self.sender.try_send_request(request));
        std::future::poll_fn(|cx| {
            // An answer that is there counts, also if the connection ended behind it.
            if let Poll::Ready(answer) = answer.as_mut().poll(cx) {
                return Poll::Ready(answer);
            }
            self.advance(cx);
            answer.as_mut().poll(cx)
        })
        .await
    }
}

/// Those that wait, the last one used first.
#[derive(Default)]
pub(crate) struct Lines(Mutex<Vec<ForwardConnection>>);

impl Lines {
    pub(super) fn take(&self) -> Option<ForwardConnection> {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.retain(|line| line.idle_since.elapsed() < IDLE_FOR);
        waiting.pop()
    }

    pub(super) fn put(&self, mut line: ForwardConnection) {
        line.idle_since = Instant::now();
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() < IDLE_MAX {
            waiting.push(line);
        }
    }
}
