//! A connection to an app that speaks HTTP/1, moved by whoever waits for its answer.
//!
//! There is no task behind it: request, answer and body are moved by the task of the client's connection, so that nothing
//! is handed from thread to thread. While it waits in the pool nobody moves it; whoever takes it looks first whether it
//! still stands. It ends with its incarnation, and a while after the server began to close.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use atoll_service::PreviewGuard;
use axum::body::Body;
use bytes::Bytes;
use http::{Request, Response};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::pool::{Pool, PoolKey, RequestPermit};

/// LIMIT: a head of an app, and what is read of a body at once.
const BUFFER: usize = 256 << 10;

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The connection.
pub(crate) struct AppConnection {
    sender: http1::SendRequest<Body>,
    connection: Option<Boxed<hyper::Result<()>>>,
    ends: Boxed<()>,
    /// It was let go before its answer was whole.
    was_cut: bool,
}

impl AppConnection {
    /// Over a fresh stream; `ends` resolves when it must not be used any more.
    pub(crate) async fn open(
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        ends: impl Future<Output = ()> + Send + 'static,
    ) -> hyper::Result<Self> {
        let mut http = http1::Builder::new();
        // Most requests are a head alone: copied into one piece they are sent with less ado.
        http.max_buf_size(BUFFER).writev(false);
        // As the client wrote them. HTTP/2 has lower case only, and HTTP/1 servers are used to capitals.
        http.preserve_header_case(true).title_case_headers(true);
        let (sender, connection) = http.handshake(TokioIo::new(stream)).await?;
        Ok(Self {
            sender,
            connection: Some(Box::pin(connection.with_upgrades())),
            ends: Box::pin(ends),
            was_cut: false,
        })
    }

    /// Moves what can be moved now.
    pub(crate) fn advance(&mut self, cx: &mut Context<'_>) {
        let Some(connection) = &mut self.connection else { return };
        let ended = match connection.as_mut().poll(cx) {
            Poll::Ready(ended) => Some(ended),
            Poll::Pending => {
                self.was_cut = self.ends.as_mut().poll(cx).is_ready();
                self.was_cut.then_some(Ok(()))
            }
        };
        if let Some(ended) = ended {
            self.connection = None;
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection to an app ended early");
            }
        }
    }

    /// Whether the next request can be sent; looks once, and does not wait.
    pub(crate) async fn is_ready(&mut self) -> bool {
        std::future::poll_fn(|cx| {
            self.advance(cx);
            Poll::Ready(self.stands())
        })
        .await
    }

    fn stands(&self) -> bool {
        self.connection.is_some() && self.sender.is_ready()
    }

    /// Sends a request and waits for the head of its answer.
    pub(crate) async fn send(
        &mut self,
        request: Request<Body>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Body>>> {
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

/// Why an answer is not whole.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    /// The app broke off.
    #[error("the app broke off")]
    App(#[source] hyper::Error),
    /// Its incarnation ended, or the server.
    #[error("the sandbox ended in the middle of an answer")]
    Ended,
}

/// The body of an app's answer. It moves its connection, and gives it back at its end. While somebody reads it, the
/// sandbox is busy.
pub(crate) struct PooledBody {
    body: Incoming,
    line: Option<(AppConnection, PoolKey)>,
    pool: Arc<Pool>,
    _held: (PreviewGuard, RequestPermit),
}

impl PooledBody {
    pub(crate) fn new(
        body: Incoming,
        line: Option<(AppConnection, PoolKey)>,
        pool: &Arc<Pool>,
        held: (PreviewGuard, RequestPermit),
    ) -> Self {
        Self { body, line, pool: Arc::clone(pool), _held: held }
    }

    /// The answer is read: the connection can serve the next one, if it stands.
    fn finish(&mut self, cx: &mut Context<'_>) {
        if let Some((mut line, key)) = self.line.take() {
            line.advance(cx);
            if line.stands() {
                self.pool.put(key, line);
            }
        }
    }
}

impl http_body::Body for PooledBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        let mut polled = Pin::new(&mut this.body).poll_frame(cx);
        if polled.is_pending()
            && let Some((line, _)) = &mut this.line
        {
            line.advance(cx);
            polled = Pin::new(&mut this.body).poll_frame(cx);
        }
        let is_end = match &polled {
            Poll::Ready(None) => true,
            // Who knows the length does not ask again.
            Poll::Ready(Some(Ok(_))) => this.body.is_end_stream(),
            Poll::Ready(Some(Err(_))) | Poll::Pending => false,
        };
        // A connection that we let go of in the middle looks like an end to whoever reads its body.
        if matches!(polled, Poll::Ready(None)) && this.line.as_ref().is_some_and(|(line, _)| line.was_cut) {
            return Poll::Ready(Some(Err(BodyError::Ended)));
        }
        if is_end {
            this.finish(cx);
        }
        polled.map_err(BodyError::App)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn names_without_a_known_case_get_capitals() {
        let (near, mut far) = tokio::io::duplex(1_024);
        let mut line = AppConnection::open(near, std::future::pending()).await.unwrap();
        // As it comes over HTTP/2, which has lower case only.
        let request = Request::builder().uri("/").header("host", "h").header("x-some-name", "v");
        let request = request.body(Body::empty()).unwrap();
        let mut head = vec![0; 1_024];
        let sent = tokio::select! {
            read = far.read(&mut head) => read.unwrap(),
            _ = line.send(request) => panic!("nobody answers"),
        };
        let head = String::from_utf8_lossy(&head[..sent]).into_owned();
        assert!(head.contains("\r\nX-Some-Name: v\r\n") && head.contains("\r\nHost: h\r\n"), "{head}");
    }
}
