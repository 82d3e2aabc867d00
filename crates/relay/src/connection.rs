//! One HTTP/1 client connection, polled by its user.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Whether the peer may change the protocol of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Upgrades {
    /// `hyper::upgrade::on` a response gives the stream.
    Supported,
    /// The connection speaks HTTP only.
    Unsupported,
}

/// A connection to an app or an agent. Dropping it closes the stream.
pub struct RelayConnection<B> {
    sender: http1::SendRequest<B>,
    /// `None`: the connection is closed.
    connection: Option<BoxFuture<hyper::Result<()>>>,
    ends: BoxFuture<()>,
    was_cut: bool,
}

impl<B> std::fmt::Debug for RelayConnection<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RelayConnection").field("was_cut", &self.was_cut).finish_non_exhaustive()
    }
}

impl<B> RelayConnection<B>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    /// Starts HTTP/1 over a new stream. The connection is closed when `ends` resolves, also in the middle of a
    /// response.
    pub async fn open(
        http: &http1::Builder,
        upgrades: Upgrades,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        ends: impl Future<Output = ()> + Send + 'static,
    ) -> hyper::Result<Self> {
        let (sender, connection) = http.handshake(TokioIo::new(stream)).await?;
        let connection: BoxFuture<_> = match upgrades {
            Upgrades::Supported => Box::pin(connection.with_upgrades()),
            Upgrades::Unsupported => Box::pin(connection),
        };
        Ok(Self { sender, connection: Some(connection), ends: Box::pin(ends), was_cut: false })
    }

    /// Sends a request and waits for the head of its response.
    pub async fn send(
        &mut self,
        request: Request<B>,
    ) -> Result<Response<Incoming>, TrySendError<Request<B>>> {
        let mut response = std::pin::pin!(self.sender.try_send_request(request));
        std::future::poll_fn(|cx| {
            // A response that has arrived counts, even if the connection ended after it.
            if let Poll::Ready(response) = response.as_mut().poll(cx) {
                return Poll::Ready(response);
            }
            self.advance(cx);
            response.as_mut().poll(cx)
        })
        .await
    }
}

impl<B> RelayConnection<B> {
    /// Reads and writes as much as the stream allows now.
    pub fn advance(&mut self, cx: &mut Context<'_>) {
        let Some(connection) = &mut self.connection else { return };
        match connection.as_mut().poll(cx) {
            Poll::Ready(ended) => {
                // The error also reaches the caller that waits for the response.
                if let Err(error) = ended {
                    tracing::debug!(%error, "a relayed connection ended early");
                }
            }
            Poll::Pending if self.ends.as_mut().poll(cx).is_ready() => self.was_cut = true,
            Poll::Pending => return,
        }
        self.connection = None;
    }

    /// Whether the next request can be sent; polls the connection once, and does not wait.
    pub async fn is_ready(&mut self) -> bool {
        std::future::poll_fn(|cx| {
            self.advance(cx);
            Poll::Ready(self.is_open())
        })
        .await
    }

    /// Whether the next request can be sent, according to the last poll of the connection.
    pub fn is_open(&self) -> bool {
        self.connection.is_some() && self.sender.is_ready()
    }

    /// Whether it was closed because `ends` resolved: the response may be incomplete.
    pub fn was_cut(&self) -> bool {
        self.was_cut
    }

    /// Replaces the future that closes the connection.
    pub fn ends_with(&mut self, ends: impl Future<Output = ()> + Send + 'static) {
        self.ends = Box::pin(ends);
    }
}
