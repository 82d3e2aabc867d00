//! Reads in small pieces. The HTTP library takes as much as there is, up to its limit, and holds several such pieces for as
//! long as the other side does not take them: a sandbox that downloads a lot and reads none of it would fill the server.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// LIMIT: bytes of one read: as much as a TLS record holds.
const AT_ONCE: usize = 16 << 10;

/// A stream that gives a little at a time, and takes as much as it ever did.
#[derive(Debug)]
pub(crate) struct ReadLimiter<S>(pub(crate) S);

impl<S: AsyncRead + Unpin> AsyncRead for ReadLimiter<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let most = buffer.remaining().min(AT_ONCE);
        let mut part = ReadBuf::new(buffer.initialize_unfilled_to(most));
        ready!(Pin::new(&mut self.0).poll_read(cx, &mut part))?;
        let read = part.filled().len();
        buffer.advance(read);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ReadLimiter<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn everything_comes_and_never_much_at_once() {
        let sent: Vec<u8> = (0..100_000u32).map(|n| n as u8).collect();
        let mut stream = ReadLimiter(tokio::io::join(&sent[..], tokio::io::sink()));
        let mut got = Vec::new();
        loop {
            let mut buffer = vec![0; 64 << 10];
            let read = stream.read(&mut buffer).await.unwrap();
            assert!(read <= AT_ONCE);
            if read == 0 {
                break;
            }
            got.extend_from_slice(&buffer[..read]);
        }
        assert_eq!(got, sent);
    }
}
