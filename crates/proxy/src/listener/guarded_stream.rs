//! A client's connection with its slot. The slot is freed with the stream: a connection that was upgraded, or used for
//! `CONNECT`, also uses a descriptor until it is closed.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;

const CONNECTIONS: &str = "atoll_http_connections";

pub(super) struct GuardedBody<I> {
    io: I,
    _place: OwnedSemaphorePermit,
}

impl<I> GuardedBody<I> {
    pub(super) fn new(io: I, place: OwnedSemaphorePermit) -> Self {
        metrics::gauge!(CONNECTIONS).increment(1.0);
        Self { io, _place: place }
    }
}

impl<I> Drop for GuardedBody<I> {
    fn drop(&mut self) {
        metrics::gauge!(CONNECTIONS).decrement(1.0);
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for GuardedBody<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

atoll_relay::delegate_write!(GuardedBody, io);
