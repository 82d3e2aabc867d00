//! Limits the size of reads. The HTTP library reads as much as is available, up to its limit, and holds several such
//! pieces as long as the other side does not read them: a sandbox that downloads a lot and reads none of it would fill
//! the server's memory.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use atoll_relay::stream::poll_read_at_most;
use tokio::io::{AsyncRead, ReadBuf};

/// LIMIT: bytes of one read: the size of a TLS record.
const AT_ONCE: usize = 16 << 10;

/// A stream with small reads and unlimited writes.
#[derive(Debug)]
pub(crate) struct ReadLimiter<S>(pub(crate) S);

impl<S: AsyncRead + Unpin> AsyncRead for ReadLimiter<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        poll_read_at_most(Pin::new(&mut self.0), cx, buffer, AT_ONCE).map_ok(|_| ())
    }
}

atoll_relay::delegate_write!(ReadLimiter, 0);

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
