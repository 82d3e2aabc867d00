//! Decodes bodies: clients of S3 may frame them in signed chunks inside of HTTP's own chunks.
//!
//! ```text
//! HEXLEN[;chunk-signature=…]\r\n BYTES \r\n … 0[;…]\r\n [trailers \r\n] \r\n
//! ```

use std::io;

use axum::http::{HeaderMap, header};
use bytes::{Buf, Bytes, BytesMut};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};

/// LIMIT: bytes of the line before a chunk; the longest signature is far shorter.
const LINE_MAX: usize = 1_024;

/// The bytes of an object as they arrive.
pub(super) type Bytestream = BoxStream<'static, io::Result<Bytes>>;

pub(super) fn plain(headers: &HeaderMap, stream: Bytestream) -> Bytestream {
    if is_framed(headers) { unframed(stream) } else { stream }
}

fn is_framed(headers: &HeaderMap) -> bool {
    let says = |name: &str, word: &str| {
        headers.get(name).and_then(|value| value.to_str().ok()).is_some_and(|value| value.contains(word))
    };
    says(header::CONTENT_ENCODING.as_str(), "aws-chunked") || says("x-amz-content-sha256", "STREAMING-")
}

fn unframed(stream: Bytestream) -> Bytestream {
    let reader = Reader { stream, held: BytesMut::new(), state: ChunkState::Line };
    futures::stream::try_unfold(reader, |mut reader| async move {
        Ok(reader.next().await?.map(|bytes| (bytes, reader)))
    })
    .boxed()
}

struct Reader {
    stream: Bytestream,
    held: BytesMut,
    state: ChunkState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChunkState {
    /// Before the line of a chunk.
    Line,
    /// This many bytes of the chunk remain.
    Bytes(usize),
    /// Before the line end after the chunk.
    Behind,
    /// After the last chunk; trailers may follow.
    Done,
}

impl Reader {
    async fn next(&mut self) -> io::Result<Option<Bytes>> {
        loop {
            match self.state {
                ChunkState::Line => match self.line()? {
                    Some(0) => self.state = ChunkState::Done,
                    Some(size) => self.state = ChunkState::Bytes(size),
                    None => self.more().await?,
                },
                ChunkState::Bytes(left) if !self.held.is_empty() => {
                    let taken = self.held.split_to(left.min(self.held.len())).freeze();
                    let left = left - taken.len();
                    self.state = if left == 0 { ChunkState::Behind } else { ChunkState::Bytes(left) };
                    return Ok(Some(taken));
                }
                ChunkState::Behind if self.held.len() >= 2 => {
                    if !self.held.starts_with(b"\r\n") {
                        return Err(bad("a chunk is longer than its size"));
                    }
                    self.held.advance(2);
                    self.state = ChunkState::Line;
                }
                ChunkState::Bytes(_) | ChunkState::Behind => self.more().await?,
                ChunkState::Done => {
                    // The rest of the stream is read and ignored.
                    while self.stream.try_next().await?.is_some() {}
                    return Ok(None);
                }
            }
        }
    }

    /// The size in the next line, once the line is complete.
    fn line(&mut self) -> io::Result<Option<usize>> {
        let Some(end) = self.held.windows(2).position(|pair| pair == b"\r\n") else {
            return if self.held.len() > LINE_MAX { Err(bad("a line has no end")) } else { Ok(None) };
        };
        let line = self.held.split_to(end);
        self.held.advance(2);
        let digits = line.as_ref().split(|byte: &u8| *byte == b';').next().unwrap_or_default();
        let text = std::str::from_utf8(digits).map_err(|_| bad("a chunk has no valid size"))?;
        let size = usize::from_str_radix(text.trim(), 16).map_err(|_| bad("a chunk has no valid size"))?;
        Ok(Some(size))
    }

    async fn more(&mut self) -> io::Result<()> {
        match self.stream.try_next().await? {
            Some(bytes) => self.held.extend_from_slice(&bytes),
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
        Ok(())
    }
}

fn bad(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    async fn read(text: &'static str, at_once: usize) -> io::Result<Vec<u8>> {
        let pieces: Vec<_> =
            text.as_bytes().chunks(at_once).map(|piece| Ok(Bytes::from_static(piece))).collect();
        let whole: Vec<Bytes> = unframed(futures::stream::iter(pieces).boxed()).try_collect().await?;
        Ok(whole.concat())
    }

    #[tokio::test]
    async fn chunks_are_put_together_however_they_come() {
        let text = "5;chunk-signature=ab\r\nhello\r\n6\r\n world\r\n0\r\nx-amz-checksum-crc32:AA==\r\n\r\n";
        for at_once in [1, 2, 3, 7, 100] {
            assert_eq!(read(text, at_once).await.unwrap(), b"hello world", "{at_once}");
        }
    }

    #[tokio::test]
    async fn what_breaks_off_or_lies_is_an_error() {
        for text in ["5\r\nhel", "x\r\nhello\r\n", "3\r\nhello\r\n0\r\n\r\n", "5\r\nhello\r\n", ""] {
            assert!(read(text, 3).await.is_err(), "{text:?}");
        }
    }

    #[test]
    fn any_chunks_are_read_the_same_however_they_are_cut() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let read = |bytes: &[u8], piece: usize| {
            let pieces: Vec<_> = bytes.chunks(piece).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
            let whole = unframed(futures::stream::iter(pieces).boxed()).try_collect::<Vec<Bytes>>();
            runtime.block_on(whole).ok().map(|whole| whole.concat())
        };
        atoll_robustness::check("s3_chunks", |bytes| {
            let whole = read(bytes, bytes.len().max(1));
            assert!(whole.as_ref().is_none_or(|whole| whole.len() <= bytes.len()));
            if bytes.len() <= LINE_MAX {
                assert_eq!(read(bytes, 3), whole);
            }
        });
    }
}
