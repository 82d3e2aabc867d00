//! What a client still sends when its answer is already decided: read and thrown away, so that the answer arrives.
//!
//! A refused upload is answered before its body was read. Closing a connection with unread bytes makes the kernel reset
//! it, and the client loses an answer that it had not read yet. So a request's body that is dropped before its end goes
//! back to its connection ([`Leftovers`]), which reads on, within bounds, while the answer is written. An answer before a rest
//! that may be longer than the bound says `Connection: close`: a client that has sent everything would use the connection
//! again, and wait for an answer that never comes.
//!
//! ```text
//! handler ── drops the body ──► Leftovers (same task as the connection) ── at most LEFTOVER_MAX; after LEFTOVER_FOR it is dropped
//! ```
//!
//! Never: starts a task, or asks a client that waits for `100 Continue` to send what nobody wants.

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

// LIMIT: twice the largest JSON body. Of a longer one nothing more is read: the client finds that it cannot send, and reads.
const LEFTOVER_MAX: usize = 16 << 20;
// LIMIT: enough for LEFTOVER_MAX over a slow line of 25 Mbit/s.
const LEFTOVER_FOR: Duration = Duration::from_secs(5);

/// The bodies of one connection that were dropped before their end.
pub(crate) struct Leftovers {
    dropped: mpsc::Receiver<Incoming>,
}

/// Makes [`RecoverableBody`] bodies of one connection.
#[derive(Clone)]
pub(crate) struct BodyRecovery {
    back: mpsc::Sender<Incoming>,
    /// The rest of a dropped body is not read to its end.
    gives_up: Arc<AtomicBool>,
}

/// Both ends for one connection.
pub(crate) fn leftovers() -> (BodyRecovery, Leftovers) {
    // HTTP/1 has one body at a time; when there is one too many, it is dropped as if nobody watched.
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
    /// Reads on, one body after the other, for as long as it is waited for: beside the connection.
    pub(crate) async fn discard(&mut self) -> Infallible {
        while let Some(body) = self.dropped.recv().await {
            let _ = tokio::time::timeout(LEFTOVER_FOR, discard(body)).await;
        }
        // The connection has let go of its service; its own end is waited for elsewhere.
        std::future::pending().await
    }
}

async fn discard(mut body: Incoming) {
    let mut read = 0;
    while let Some(Ok(frame)) = body.frame().await {
        read += frame.data_ref().map_or(0, Bytes::len);
        if read > LEFTOVER_MAX {
            // Closing now would reset the connection, also for an answer that is on its way.
            return std::future::pending().await;
        }
    }
}

/// A request's body that is not lost when it is dropped early.
pub(crate) struct RecoverableBody {
    body: Option<Incoming>,
    /// The client waits to be told to go on, and nobody has told it: there is nothing on its way.
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
