//! For types that wrap a byte stream: writes that pass unchanged, short reads, and bytes that were read ahead.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, ReadBuf};

/// Implements `AsyncWrite` for `Type<I>` by passing every call to its field of type `I`.
///
/// `before PATH` names a function `fn(&mut Self, &mut Context<'_>) -> io::Result<()>` that is called before each write
/// and flush; its error is returned. A shutdown is always passed on.
#[macro_export]
macro_rules! delegate_write {
    ($wrapper:ident, $io:tt) => {
        $crate::delegate_write!($wrapper, $io, before | _, _ | ::std::io::Result::Ok(()));
    };
    ($wrapper:ident, $io:tt, before $before:expr) => {
        impl<I: ::tokio::io::AsyncWrite + Unpin> ::tokio::io::AsyncWrite for $wrapper<I> {
            fn poll_write(
                mut self: ::std::pin::Pin<&mut Self>,
                cx: &mut ::std::task::Context<'_>,
                bytes: &[u8],
            ) -> ::std::task::Poll<::std::io::Result<usize>> {
                let before: fn(&mut Self, &mut ::std::task::Context<'_>) -> ::std::io::Result<()> = $before;
                before(&mut self, cx)?;
                ::std::pin::Pin::new(&mut self.$io).poll_write(cx, bytes)
            }

            fn poll_write_vectored(
                mut self: ::std::pin::Pin<&mut Self>,
                cx: &mut ::std::task::Context<'_>,
                slices: &[::std::io::IoSlice<'_>],
            ) -> ::std::task::Poll<::std::io::Result<usize>> {
                let before: fn(&mut Self, &mut ::std::task::Context<'_>) -> ::std::io::Result<()> = $before;
                before(&mut self, cx)?;
                ::std::pin::Pin::new(&mut self.$io).poll_write_vectored(cx, slices)
            }

            fn is_write_vectored(&self) -> bool {
                self.$io.is_write_vectored()
            }

            fn poll_flush(
                mut self: ::std::pin::Pin<&mut Self>,
                cx: &mut ::std::task::Context<'_>,
            ) -> ::std::task::Poll<::std::io::Result<()>> {
                let before: fn(&mut Self, &mut ::std::task::Context<'_>) -> ::std::io::Result<()> = $before;
                before(&mut self, cx)?;
                ::std::pin::Pin::new(&mut self.$io).poll_flush(cx)
            }

            fn poll_shutdown(
                mut self: ::std::pin::Pin<&mut Self>,
                cx: &mut ::std::task::Context<'_>,
            ) -> ::std::task::Poll<::std::io::Result<()>> {
                ::std::pin::Pin::new(&mut self.$io).poll_shutdown(cx)
            }
        }
    };
}

/// Reads at most `most` bytes; returns how many.
pub fn poll_read_at_most<I: AsyncRead>(
    io: Pin<&mut I>,
    cx: &mut Context<'_>,
    buf: &mut ReadBuf<'_>,
    most: usize,
) -> Poll<io::Result<usize>> {
    let mut part = ReadBuf::new(buf.initialize_unfilled_to(most.min(buf.remaining())));
    ready!(io.poll_read(cx, &mut part))?;
    let read = part.filled().len();
    buf.advance(read);
    Poll::Ready(Ok(read))
}

/// Moves bytes that were read ahead into `buf`.
pub fn read_ahead(ahead: &mut Bytes, buf: &mut ReadBuf<'_>) {
    let size = ahead.len().min(buf.remaining());
    buf.put_slice(&ahead[..size]);
    ahead.advance(size);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use tokio::io::{AsyncWrite, AsyncWriteExt};

    use super::*;

    struct Plain<I>(I);
    crate::delegate_write!(Plain, 0);

    struct Closable<I> {
        io: I,
        is_closed: bool,
    }
    crate::delegate_write!(
        Closable,
        io,
        before | this,
        _ | match this.is_closed {
            true => Err(io::ErrorKind::ConnectionAborted.into()),
            false => Ok(()),
        }
    );

    #[tokio::test]
    async fn writes_pass_to_the_wrapped_stream() {
        let mut plain = Plain(Vec::new());
        plain.write_all(b"abc").await.unwrap();
        let slices = [io::IoSlice::new(b"de"), io::IoSlice::new(b"f")];
        assert_eq!(plain.write_vectored(&slices).await.unwrap(), 3);
        assert!(plain.is_write_vectored());
        plain.flush().await.unwrap();
        assert_eq!(plain.0, b"abcdef");
    }

    #[tokio::test]
    async fn a_check_that_fails_stops_writes_and_flushes_but_not_a_shutdown() {
        let mut closable = Closable { io: Vec::new(), is_closed: false };
        closable.write_all(b"abc").await.unwrap();
        closable.is_closed = true;
        assert!(closable.write(b"d").await.is_err());
        assert!(closable.write_vectored(&[io::IoSlice::new(b"d")]).await.is_err());
        assert!(closable.flush().await.is_err());
        closable.shutdown().await.unwrap();
        assert_eq!(closable.io, b"abc");
    }

    #[tokio::test]
    async fn reads_are_as_short_as_asked() {
        let mut space = [0; 8];
        let mut buf = ReadBuf::new(&mut space);
        let mut from = &b"abcdef"[..];
        let read = std::future::poll_fn(|cx| poll_read_at_most(Pin::new(&mut from), cx, &mut buf, 4));
        assert_eq!(read.await.unwrap(), 4);
        assert_eq!((buf.filled(), from), (&b"abcd"[..], &b"ef"[..]));
        let mut ahead = Bytes::from_static(b"123456");
        read_ahead(&mut ahead, &mut buf);
        assert_eq!((buf.filled(), &ahead[..]), (&b"abcd1234"[..], &b"56"[..]));
    }
}
