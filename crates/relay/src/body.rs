//! The body of a relayed response.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use crate::RelayConnection;

/// Why a response is incomplete.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// The peer closed the connection or did not send HTTP.
    #[error("the peer broke off in the middle of a response")]
    Peer(#[source] hyper::Error),
    /// The connection was closed on this side: its sandbox or the server ended.
    #[error("the sandbox ended in the middle of a response")]
    Ended,
}

/// Where a connection goes after its response was read.
pub trait ConnectionPool<B> {
    /// Keeps the connection for the next request, or drops it.
    fn put(&mut self, connection: RelayConnection<B>);
}

/// The body of a response. It drives its connection, and gives it to the pool at its end; if dropped earlier, it closes
/// it.
#[derive(Debug)]
pub struct RelayBody<B, P: ConnectionPool<B>> {
    body: Incoming,
    connection: Option<RelayConnection<B>>,
    pool: P,
}

impl<B, P: ConnectionPool<B>> RelayBody<B, P> {
    /// `connection` is `None` if other code drives it, as with HTTP/2. `pool` is kept as long as the body.
    pub fn new(body: Incoming, connection: Option<RelayConnection<B>>, pool: P) -> Self {
        Self { body, connection, pool }
    }

    /// The response was read: the connection can serve the next request, if it is still open.
    fn finish(&mut self, cx: &mut Context<'_>) {
        if let Some(mut connection) = self.connection.take() {
            connection.advance(cx);
            if connection.is_open() {
                self.pool.put(connection);
            }
        }
    }
}

impl<B, P: ConnectionPool<B> + Unpin> Body for RelayBody<B, P> {
    type Data = Bytes;
    type Error = RelayError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RelayError>>> {
        let this = &mut *self;
        let mut polled = Pin::new(&mut this.body).poll_frame(cx);
        if polled.is_pending()
            && let Some(connection) = &mut this.connection
        {
            connection.advance(cx);
            polled = Pin::new(&mut this.body).poll_frame(cx);
        }
        match &polled {
            // For the reader of a body, a connection that was closed on this side appears as a regular end.
            Poll::Ready(None) if this.connection.as_ref().is_some_and(RelayConnection::was_cut) => {
                return Poll::Ready(Some(Err(RelayError::Ended)));
            }
            Poll::Ready(None) => this.finish(cx),
            // A reader that knows the length does not poll again.
            Poll::Ready(Some(Ok(_))) if this.body.is_end_stream() => this.finish(cx),
            Poll::Ready(Some(_)) | Poll::Pending => {}
        }
        polled.map_err(RelayError::Peer)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// An empty body is never polled; its connection can serve the next request anyway.
impl<B, P: ConnectionPool<B>> Drop for RelayBody<B, P> {
    fn drop(&mut self) {
        if self.body.is_end_stream()
            && let Some(connection) = self.connection.take()
        {
            // Not polled here: the next user checks whether it is open.
            self.pool.put(connection);
        }
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
