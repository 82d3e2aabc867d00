//! Reads and discards the rest of a request body when the response is already decided, so that the client receives the
//! response.
//!
//! A refused upload is answered before its body was read. Closing a connection with unread bytes makes the kernel reset
//! it, and the client loses a response that it has not read yet. So a request body that is dropped before its end goes
//! back to its connection ([`Leftovers`]), which reads on, within limits, while the response is written. A response
//! before a rest that may be longer than the limit has `Connection: close`: a client that has sent everything would
//! otherwise reuse the connection, and wait for a response that never comes.
//!
//! ```text
//! handler ── drops the body ──► Leftovers (same task as the connection) ── at most LEFTOVER_MAX; after LEFTOVER_FOR it is dropped
//! ```
//!
//! It starts no task, and never asks a client that waits for `100 Continue` to send an unwanted body.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Bytes;
use http::{HeaderMap, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::sync::mpsc;

// LIMIT: twice the largest JSON body. If the rest is longer, reading stops: the client notices that it cannot send, and
// reads the response.
const LEFTOVER_MAX: usize = 16 << 20;
// LIMIT: enough for LEFTOVER_MAX over a slow connection of 25 Mbit/s.
const LEFTOVER_FOR: Duration = Duration::from_secs(5);

/// The bodies of one connection that were dropped before their end.
pub(crate) struct Leftovers {
    dropped: mpsc::Receiver<Incoming>,
}

/// Makes the [`RecoverableBody`] bodies of one connection.
#[derive(Clone)]
pub(crate) struct BodyRecovery {
    back: mpsc::Sender<Incoming>,
    /// The rest of a dropped body is not read to its end.
    gives_up: Arc<AtomicBool>,
}

/// Both ends for one connection.
pub(crate) fn leftovers() -> (BodyRecovery, Leftovers) {
    // HTTP/1 has one body at a time; an additional one is dropped without recovery.
    let (sender, dropped) = mpsc::channel(1);
    (BodyRecovery { back: sender, gives_up: Arc::default() }, Leftovers { dropped })
}

impl BodyRecovery {
    /// The body of a request with these headers.
    pub(crate) fn body(&self, headers: &HeaderMap, body: Incoming) -> RecoverableBody {
        let asks_first = headers.contains_key(header::EXPECT);
        RecoverableBody { body: Some(body), asks_first, recovery: self.clone() }
    }

    /// Whether the connection cannot be used for another request, because the rest of a body stays unread.
    pub(crate) fn gives_up(&self) -> bool {
        self.gives_up.load(Ordering::Relaxed)
    }
}

impl Leftovers {
    /// Reads the rest of bodies, one after the other, as long as it is polled together with the connection.
    pub(crate) async fn discard(&mut self) -> Infallible {
        while let Some(body) = self.dropped.recv().await {
            let _ = tokio::time::timeout(LEFTOVER_FOR, discard(body)).await;
        }
        // The connection has dropped its service; its end is awaited elsewhere.
        std::future::pending().await
    }
}

async fn discard(mut body: Incoming) {
    let mut read = 0;
    while let Some(Ok(frame)) = body.frame().await {
        read += frame.data_ref().map_or(0, Bytes::len);
        if read > LEFTOVER_MAX {
            // Closing now would reset the connection and lose a response in flight.
            return std::future::pending().await;
        }
    }
}

/// A request body that is recovered when it is dropped early.
pub(crate) struct RecoverableBody {
    body: Option<Incoming>,
    /// The client waits for `100 Continue`, which was not sent: no bytes are in flight.
    asks_first: bool,
    recovery: BodyRecovery,
}

impl Body for RecoverableBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        self.asks_first = false;
        match &mut self.body {
            Some(body) => Pin::new(body).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

impl Drop for RecoverableBody {
    fn drop(&mut self) {
        if let Some(body) = self.body.take()
            && !body.is_end_stream()
            && !self.asks_first
        {
            let is_short = body.size_hint().exact().is_some_and(|left| left <= LEFTOVER_MAX as u64);
            self.recovery.gives_up.fetch_or(!is_short, Ordering::Relaxed);
            let _ = self.recovery.back.try_send(body);
        }
    }
}
