//! Proves that a registry really has a layer that exists already.
//!
//! Layers are stored once for all tenants, and the digests of a private image are not secret. A registry that a tenant
//! chose could name any layer: for a layer that this tenant has not had before, it has to send the bytes. They are
//! read, checked and discarded.

use std::io::{self, Read};

use bytes::{Buf, Bytes};
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;

use super::unzip::Unzip;
use crate::layers::{DiffId, Digest};

/// LIMIT: bytes that are read at once.
const PIECE: usize = 64 << 10;

/// The layers whose bytes the puller has had before.
pub type KnownLayers = std::sync::Arc<dyn Fn(&DiffId) -> bool + Send + Sync>;

/// The digests of a blob's bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BlobDigests {
    pub blob: Digest,
    /// Digest of the uncompressed archive, if requested.
    pub tar: Option<Digest>,
}

/// Reads a blob while it arrives. Decompresses it if the length of its archive is given; a longer one is refused.
/// Blocking.
pub(super) fn read(chunks: mpsc::Receiver<Bytes>, tar_bytes: Option<u64>) -> io::Result<BlobDigests> {
    let mut from = Incoming { chunks, piece: Bytes::new(), hash: Sha256::new() };
    let tar = match tar_bytes {
        Some(length) => Some(hash(Unzip::new(&mut from)?.take(length.saturating_add(1)))?),
        None => None,
    };
    hash(&mut from)?;
    Ok(BlobDigests { blob: Digest::from_hash(from.hash), tar })
}

fn hash(mut from: impl Read) -> io::Result<Digest> {
    let (mut hash, mut piece) = (Sha256::new(), vec![0; PIECE]);
    loop {
        match from.read(&mut piece) {
            Ok(0) => return Ok(Digest::from_hash(hash)),
            Ok(some) => hash.update(&piece[..some]),
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            Err(cause) => return Err(cause),
        }
    }
}

/// Chunks of a download, hashed as they are read.
struct Incoming {
    chunks: mpsc::Receiver<Bytes>,
    piece: Bytes,
    hash: Sha256,
}

impl Read for Incoming {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.chunks.blocking_recv() {
                Some(piece) => self.piece = piece,
                None => return Ok(0),
            }
        }
        let some = into.len().min(self.piece.len());
        self.piece.copy_to_slice(&mut into[..some]);
        self.hash.update(&into[..some]);
        Ok(some)
    }
}
