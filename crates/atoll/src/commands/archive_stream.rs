//! Archives that are written while they are sent: a thread packs, the request sends, and neither runs ahead of the
//! other.

use std::{
    io::{self, Write},
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use tokio::sync::mpsc;

use super::progress::Transfer;
use crate::failure::Failure;

/// LIMIT: pieces are large enough that system calls do not matter, and few, so that memory use is constant.
const PIECE: usize = 256 * 1024;
const PIECES: usize = 4;

/// An archive that is being packed.
pub(super) struct Packed {
    pub(super) body: reqwest::Body,
    fault: Arc<Mutex<Option<Failure>>>,
}

impl Packed {
    /// Starts packing with `work` on a separate thread.
    pub(super) fn begin(
        transfer: Transfer,
        work: impl FnOnce(&mut dyn Write) -> Result<(), Failure> + Send + 'static,
    ) -> Self {
        let (sender, mut receiver) = mpsc::channel::<io::Result<Bytes>>(PIECES);
        let fault = Arc::new(Mutex::new(None));
        let noted = Arc::clone(&fault);
        std::thread::spawn(move || {
            let mut pieces = ChunkSender { sender, buffer: Vec::with_capacity(PIECE), transfer };
            let packed = work(&mut pieces);
            let ended = packed.and_then(|()| pieces.flush().map_err(|e| Failure::new("io", e.to_string())));
            if let Err(failure) = ended {
                let text = failure.message.clone();
                noted.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
                // A truncated archive must not appear complete.
                let _ = pieces.sender.blocking_send(Err(io::Error::other(text)));
            }
            pieces.transfer.done();
        });
        let stream = futures::stream::poll_fn(move |context| receiver.poll_recv(context));
        Self { body: reqwest::Body::wrap_stream(stream), fault }
    }

    /// The error of packing, to be checked after the request has failed.
    pub(super) fn fault(&self) -> PackFault {
        PackFault(Arc::clone(&self.fault))
    }
}

/// The error of packing, if that broke the request.
pub(super) struct PackFault(Arc<Mutex<Option<Failure>>>);

impl PackFault {
    pub(super) fn or(self, failure: Failure) -> Failure {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or(failure)
    }
}

struct ChunkSender {
    sender: mpsc::Sender<io::Result<Bytes>>,
    buffer: Vec<u8>,
    transfer: Transfer,
}

impl Write for ChunkSender {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(data);
        if self.buffer.len() >= PIECE {
            self.flush()?;
        }
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.buffer, Vec::with_capacity(PIECE));
        self.transfer.add(piece.len() as u64);
        self.sender
            .blocking_send(Ok(piece.into()))
            .map_err(|_| io::Error::new(io::ErrorKind::BrokenPipe, "the server stopped reading"))
    }
}
