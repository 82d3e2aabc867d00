//! Packs the files of a sandbox into one stream, and unpacks them. A thread reads or writes the layer. A short queue of
//! pieces connects it with the async side, so that neither side runs ahead of the other.

use std::io::{self, Read, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use atoll_model::{Limits, Storage};
use atoll_provider::{Packed, ProviderError, Target};
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};
use tokio::sync::mpsc;

use super::snapshot::blocking;
use super::{EngineShared, failed};
use atoll_storage::ReadError;

const MIB: u64 = 1 << 20;
const PIECE: usize = 256 << 10;
/// LIMIT: pieces in the queue; 2 MiB per stream.
const PIECES: usize = 8;

/// A piece of the stream, or its end.
enum Piece {
    Bytes(Vec<u8>),
    End(io::Result<()>),
}

impl EngineShared {
    pub(super) fn can_pack(&self) -> bool {
        true
    }

    pub(super) async fn pack(&self, target: &Target) -> Result<Packed, ProviderError> {
        let name = target.sandbox.as_str().to_owned();
        if !self.resources.layers.exists(&name) {
            return Err(ProviderError::Gone { sandbox: target.sandbox.clone() });
        }
        if self.instances.live(target).is_ok() {
            return Err(ProviderError::Unsupported {
                what: "packing the files of a running sandbox".into(),
                hint: "stop it first".into(),
            });
        }
        let layers = Arc::clone(&self.resources.layers);
        Ok(stream(move |out| layers.pack(&name, out)))
    }

    pub(super) async fn check_pack(&self, target: &Target, limits: &Limits) -> Result<(), ProviderError> {
        let (layers, name) = (Arc::clone(&self.resources.layers), target.sandbox.as_str().to_owned());
        if !layers.exists(&name) {
            return Err(ProviderError::Gone { sandbox: target.sandbox.clone() });
        }
        let limit = u64::from(limits.disk_mib) * MIB;
        let checked = blocking(move || layers.check_packable(&name, limit)).await;
        checked.map_err(failed("measuring the files"))?.map_err(|too_large| ProviderError::TooLargeToPack {
            needed_mib: too_large.needed / MIB,
            limit_mib: limits.disk_mib.into(),
        })
    }

    pub(super) async fn capture(
        &self,
        target: &Target,
        template: &str,
        template_version: &str,
    ) -> Result<Packed, ProviderError> {
        let name = target.sandbox.as_str().to_owned();
        let unsupported = |what: &str, hint: &str| {
            Err(ProviderError::Unsupported { what: what.to_owned(), hint: hint.to_owned() })
        };
        if let Ok(live) = self.instances.live(target) {
            return match live.facts.storage {
                Storage::Memory => unsupported(
                    "a layer of files in memory",
                    "files in memory end with their sandbox; create it with its files on disk",
                ),
                Storage::Disk => unsupported("a layer of the changes of a running sandbox", "stop it first"),
            };
        }
        if !self.resources.layers.exists(&name) {
            return Err(ProviderError::Gone { sandbox: target.sandbox.clone() });
        }
        let template = self.pinned(template, template_version).await?;
        if template.usr_overlay.is_some() {
            return unsupported(
                "a layer over the host's own files",
                "use a template with its own files, such as debian",
            );
        }
        let layers = Arc::clone(&self.resources.layers);
        Ok(stream(move |out| layers.capture(&name, &template.layers, out)))
    }

    pub(super) async fn unpack(
        &self,
        target: &Target,
        limits: &Limits,
        files: Packed,
    ) -> Result<(), ProviderError> {
        let slot = self.instances.slot(&target.sandbox);
        let (sender, pieces) = mpsc::channel(PIECES);
        let (layers, name) = (Arc::clone(&self.resources.layers), target.sandbox.as_str().to_owned());
        let limit = u64::from(limits.disk_mib) * MIB;
        let work = move || {
            // The thread holds the turn: when the call is dropped, the next operation waits until this one has ended.
            let _turn = slot.turn_blocking();
            if slot.live().is_some() || layers.exists(&name) {
                return Ok(None);
            }
            let mut input = Incoming { pieces, piece: Vec::new(), read: 0, has_ended: false };
            Ok(Some(layers.unpack(&name, limit, &mut input)))
        };
        let (feed, work) = (feed(files, sender), blocking(work));
        tokio::pin!(feed, work);
        let (fed, unpacked) = tokio::select! {
            // The thread may end early, and the rest of the stream may never arrive.
            unpacked = &mut work => (Ok(()), unpacked),
            fed = &mut feed => (fed, work.await),
        };
        let unpacked = unpacked.map_err(failed("unpacking"))?.ok_or_else(|| ProviderError::Unsupported {
            what: "unpacking over existing files".into(),
            hint: "delete them first".into(),
        })?;
        fed.map_err(failed("reading the packed files"))?;
        unpacked.map_err(|error| not_unpacked(error, limits))
    }
}

/// A stream of the bytes that a thread writes. The thread ends by itself, or when the reader is dropped.
pub(super) fn stream(write: impl FnOnce(&mut ChunkWriter<'_>) -> io::Result<()> + Send + 'static) -> Packed {
    let (sender, pieces) = mpsc::channel(PIECES);
    tokio::task::spawn_blocking(move || {
        let mut out = ChunkWriter { sender: &sender, piece: Vec::with_capacity(PIECE) };
        let written = write(&mut out);
        let _ = sender.blocking_send(Piece::End(written));
    });
    Box::new(PackedFiles { pieces, piece: Vec::new(), read: 0, has_ended: false })
}

fn not_unpacked(error: ReadError, limits: &Limits) -> ProviderError {
    match error {
        ReadError::Damaged(why) => ProviderError::Damaged { what: "the packed files".into(), why },
        ReadError::Io(cause) => match cause.kind() {
            io::ErrorKind::QuotaExceeded => {
                ProviderError::Exhausted { what: format!("disk within the limit of {} MiB", limits.disk_mib) }
            }
            io::ErrorKind::StorageFull => {
                ProviderError::Exhausted { what: "disk space for sandboxes".into() }
            }
            _ => failed("unpacking")(cause),
        },
    }
}

/// Forwards a stream in pieces. An error of the stream ends the other side, and is the error that is reported.
async fn feed(mut files: Packed, pieces: mpsc::Sender<Piece>) -> io::Result<()> {
    loop {
        let mut piece = Vec::with_capacity(PIECE);
        while piece.len() < PIECE && files.read_buf(&mut piece).await? > 0 {
            if piece.len() == piece.capacity() {
                break;
            }
        }
        let is_end = piece.is_empty();
        let next = if is_end { Piece::End(Ok(())) } else { Piece::Bytes(piece) };
        // The other side has ended and reports its own error.
        if pieces.send(next).await.is_err() || is_end {
            return Ok(());
        }
    }
}

/// The writing side of a queue of pieces.
pub(super) struct ChunkWriter<'a> {
    sender: &'a mpsc::Sender<Piece>,
    piece: Vec<u8>,
}

impl Write for ChunkWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let fits = bytes.len().min(PIECE - self.piece.len());
        self.piece.extend_from_slice(&bytes[..fits]);
        if self.piece.len() == PIECE {
            self.flush()?;
        }
        Ok(fits)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.piece.is_empty() {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE));
        self.sender.blocking_send(Piece::Bytes(piece)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// The reading side, for async readers.
struct PackedFiles {
    pieces: mpsc::Receiver<Piece>,
    piece: Vec<u8>,
    read: usize,
    has_ended: bool,
}

impl AsyncRead for PackedFiles {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.read == self.piece.len() && !self.has_ended {
            match std::task::ready!(self.pieces.poll_recv(context)) {
                Some(Piece::Bytes(piece)) => (self.piece, self.read) = (piece, 0),
                Some(Piece::End(outcome)) => {
                    self.has_ended = true;
                    outcome?;
                }
                // The thread ended without reporting a result.
                None => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
            }
        }
        let fits = (self.piece.len() - self.read).min(buffer.remaining());
        buffer.put_slice(&self.piece[self.read..self.read + fits]);
        self.read += fits;
        Poll::Ready(Ok(()))
    }
}

/// The reading side, for a thread.
struct Incoming {
    pieces: mpsc::Receiver<Piece>,
    piece: Vec<u8>,
    read: usize,
    has_ended: bool,
}

impl Read for Incoming {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.read == self.piece.len() && !self.has_ended {
            match self.pieces.blocking_recv() {
                Some(Piece::Bytes(piece)) => (self.piece, self.read) = (piece, 0),
                Some(Piece::End(outcome)) => {
                    self.has_ended = true;
                    outcome?;
                }
                None => return Err(io::ErrorKind::ConnectionAborted.into()),
            }
        }
        let fits = (self.piece.len() - self.read).min(buffer.len());
        buffer[..fits].copy_from_slice(&self.piece[self.read..self.read + fits]);
        self.read += fits;
        Ok(fits)
    }
}
