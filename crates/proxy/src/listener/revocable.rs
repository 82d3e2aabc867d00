//! Ends the responses and connections of a request when its credential is revoked: a response that is still being
//! written is aborted, and an upgraded connection is closed.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use atoll_service::RequestScope;
use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::io::{AsyncRead, ReadBuf};
use tokio_util::sync::{CancellationToken, DropGuard, WaitForCancellationFutureOwned};

/// LIMIT: a response of this size is written at once, so it is not watched.
const SMALL: u64 = 64 << 10;

/// The body of a response, which is aborted when the scope ends.
pub(super) fn body(scope: RequestScope, body: Body) -> Body {
    match http_body::Body::size_hint(&body).exact() {
        Some(..=SMALL) => body,
        Some(_) | None => {
            Body::new(RevocableBody { ended: Box::pin(scope.ended()), body: Some(body), _scope: scope })
        }
    }
}

struct RevocableBody {
    ended: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// `None`: it was aborted.
    body: Option<Body>,
    _scope: RequestScope,
}

impl http_body::Body for RevocableBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        // First, so that a body that always has more data ends too.
        if self.body.is_some() && self.ended.as_mut().poll(cx).is_ready() {
            self.body = None;
            return Poll::Ready(Some(Err(axum::Error::new(RevokedError))));
        }
        match &mut self.body {
            Some(body) => Pin::new(body).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(http_body::Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(SizeHint::default, http_body::Body::size_hint)
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the credential of this request was withdrawn")]
struct RevokedError;

/// Ends an upgraded connection.
#[derive(Clone, Default)]
pub(super) struct ConnectionCutter {
    /// Set once the protocol was upgraded.
    armed: Arc<OnceLock<CancellationToken>>,
    gone: CancellationToken,
}

impl ConnectionCutter {
    /// Resolves when the connection is to be closed or is gone; closes it if `scope` ends first.
    pub(super) fn when_ended(&self, scope: RequestScope) -> impl Future<Output = ()> + Send + 'static {
        let token = self.armed.get_or_init(CancellationToken::new).clone();
        let gone = self.gone.clone();
        async move {
            tokio::select! { () = scope.ended() => token.cancel(), () = gone.cancelled() => {} }
        }
    }
}

/// A connection that [`ConnectionCutter`] can end. It has no cost before the protocol is upgraded.
pub(super) struct Severable<I> {
    io: I,
    cut: ConnectionCutter,
    reading: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    writing: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    _gone: DropGuard,
}

impl<I> Severable<I> {
    pub(super) fn new(io: I, cut: ConnectionCutter) -> Self {
        let _gone = cut.gone.clone().drop_guard();
        Self { io, cut, reading: None, writing: None, _gone }
    }

    /// Each direction has its own waker: they may belong to different tasks.
    fn poll_cut(
        cut: &ConnectionCutter,
        waits: &mut Option<Pin<Box<WaitForCancellationFutureOwned>>>,
        cx: &mut Context<'_>,
    ) -> io::Result<()> {
        let Some(token) = cut.armed.get() else { return Ok(()) };
        let waits = waits.get_or_insert_with(|| Box::pin(token.clone().cancelled_owned()));
        match waits.as_mut().poll(cx) {
            Poll::Ready(()) => Err(io::ErrorKind::ConnectionAborted.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Severable<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        Self::poll_cut(&this.cut, &mut this.reading, cx)?;
        Pin::new(&mut this.io).poll_read(cx, buf)
    }
}

atoll_relay::delegate_write!(
    Severable,
    io,
    before | this,
    cx | { Self::poll_cut(&this.cut, &mut this.writing, cx) }
);
