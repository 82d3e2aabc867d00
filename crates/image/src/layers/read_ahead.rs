//! Reads and hashes on one thread, unpacks on another: on two cores the total time is that of the slower one.
//!
//! The pieces between them are few and are reused, so memory use is constant whatever the length of the archive.

use std::io::{self, BufRead, Read};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use sha2::{Digest as _, Sha256};

use super::digest::Digest;

/// LIMIT: bytes of one piece; larger pieces do not fit the processor's cache.
const PIECE: usize = 256 << 10;
/// LIMIT: pieces in circulation.
const PIECES: usize = 4;

type Piece = (Vec<u8>, usize);

/// The reading side, as a stream.
pub(crate) struct ReadAheadStream {
    full: Receiver<io::Result<Piece>>,
    empty: SyncSender<Vec<u8>>,
    now: Vec<u8>,
    at: usize,
    end: usize,
    ended: bool,
}

/// Runs `work` on a stream of everything that `from` returns, while another thread reads and hashes it. Returns the
/// result of `work`, and the digest and length of the input if it was read to its end.
pub(crate) fn hashed<T>(
    from: impl Read + Send,
    work: impl FnOnce(ReadAheadStream) -> T,
) -> (T, Option<(Digest, u64)>) {
    let (full, from_reader) = sync_channel(PIECES);
    let (to_reader, empty) = sync_channel(PIECES);
    for _ in 0..PIECES {
        // The channel has room for all of them, and its other end is in this function.
        let _ = to_reader.send(vec![0; PIECE]);
    }
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || read(from, &full, &empty));
        let ahead = ReadAheadStream {
            full: from_reader,
            empty: to_reader,
            now: Vec::new(),
            at: 0,
            end: 0,
            ended: false,
        };
        let done = work(ahead);
        // `work` has dropped the stream, so the reader ends after its current read.
        (done, reader.join().unwrap_or(None))
    })
}

fn read(
    mut from: impl Read,
    full: &SyncSender<io::Result<Piece>>,
    empty: &Receiver<Vec<u8>>,
) -> Option<(Digest, u64)> {
    let (mut hash, mut bytes) = (Sha256::new(), 0_u64);
    while let Ok(mut piece) = empty.recv() {
        match fill(&mut from, &mut piece) {
            Ok(0) => return Some((Digest::from_hash(hash), bytes)),
            Ok(some) => {
                hash.update(&piece[..some]);
                bytes += some as u64;
                full.send(Ok((piece, some))).ok()?;
            }
            Err(cause) => {
                let _ = full.send(Err(cause));
                return None;
            }
        }
    }
    None
}

/// Reads until the piece is full or the stream ends.
fn fill(from: &mut impl Read, piece: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < piece.len() {
        match from.read(&mut piece[filled..]) {
            Ok(0) => break,
            Ok(some) => filled += some,
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            Err(cause) => return Err(cause),
        }
    }
    Ok(filled)
}

impl BufRead for ReadAheadStream {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.at == self.end && !self.ended {
            let used = std::mem::take(&mut self.now);
            (self.at, self.end) = (0, 0);
            if !used.is_empty() {
                let _ = self.empty.send(used);
            }
            match self.full.recv() {
                Ok(Ok((piece, end))) => (self.now, self.end) = (piece, end),
                Ok(Err(cause)) => {
                    self.ended = true;
                    return Err(cause);
                }
                Err(_) => self.ended = true,
            }
        }
        Ok(&self.now[self.at..self.end])
    }

    fn consume(&mut self, bytes: usize) {
        self.at = (self.at + bytes).min(self.end);
    }
}

impl Read for ReadAheadStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let piece = self.fill_buf()?;
        let some = piece.len().min(into.len());
        into[..some].copy_from_slice(&piece[..some]);
        self.consume(some);
        Ok(some)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_arrives_whole_and_hashed() {
        let bytes: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
        let (read, hashed) = hashed(&bytes[..], |mut ahead| {
            let mut all = Vec::new();
            ahead.read_to_end(&mut all).map(|_| all)
        });
        assert_eq!(hashed, Some((Digest::of(&bytes), 3_000_000)));
        assert!(read.unwrap() == bytes);
    }

    #[test]
    fn work_that_gives_up_ends_the_reader() {
        let (kind, hashed) = hashed(std::io::repeat(7), |mut ahead| ahead.fill_buf().map(<[u8]>::len));
        assert_eq!((kind.unwrap(), hashed), (PIECE, None));
    }

    #[test]
    fn an_error_of_the_source_arrives() {
        struct FailingReader;
        impl Read for FailingReader {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::other("broken"))
            }
        }
        let (read, hashed) = hashed(FailingReader, |mut ahead| ahead.read_to_end(&mut Vec::new()));
        assert_eq!((read.unwrap_err().to_string(), hashed), ("broken".to_owned(), None));
    }
}
