//! Reads the pieces of an archive as one stream. A piece is returned only after its digest was verified.

use std::io;

use atoll_model::{ArchiveRef, SandboxId};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use object_store::ObjectStoreExt;
use sha2::{Digest, Sha256};
use tokio::io::AsyncRead;
use tokio_util::io::StreamReader;

use super::{AT_ONCE, ArchiveError, ArchivedSandbox, Archives, CHUNK, Chunk, chunk_key, storage};

/// The packed files of an archive.
pub type PackedFiles = Box<dyn AsyncRead + Send + Unpin>;

impl Archives {
    /// The archived sandbox, and its stream. A missing or damaged piece is an error of the stream, whose source is an
    /// [`ArchiveError`].
    pub async fn get(&self, at: &ArchiveRef) -> Result<(ArchivedSandbox, PackedFiles), ArchiveError> {
        let manifest = self.manifest(&at.key).await?;
        let (own, key, sandbox) = (self.clone(), at.key.clone(), manifest.about.sandbox.clone());
        let pieces = futures::stream::iter(manifest.chunks)
            .map(move |chunk| {
                let (own, key, sandbox) = (own.clone(), key.clone(), sandbox.clone());
                async move { own.fetch(&key, &sandbox, chunk).await }
            })
            .buffered(AT_ONCE)
            .map_err(io::Error::other);
        Ok((manifest.about, Box::new(StreamReader::new(pieces.boxed()))))
    }

    async fn fetch(&self, key: &str, sandbox: &SandboxId, chunk: Chunk) -> Result<Bytes, ArchiveError> {
        let damaged = |why: &str| ArchiveError::Damaged {
            key: key.to_owned(),
            why: format!("piece {}: {why}", chunk.sha256),
        };
        if chunk.bytes > CHUNK as u64 {
            return Err(damaged("it is larger than a piece may be"));
        }
        let got = match self.store.get(&chunk_key(sandbox, &chunk.sha256)).await {
            Err(object_store::Error::NotFound { .. }) => return Err(damaged("it is missing")),
            other => other.map_err(storage("read a piece"))?,
        };
        if got.meta.size != chunk.stored {
            return Err(damaged("it has another length"));
        }
        let packed = got.bytes().await.map_err(storage("read a piece"))?;
        let (sha256, bytes) = (chunk.sha256.clone(), usize::try_from(chunk.bytes).unwrap_or(CHUNK));
        let unpack = move || -> Option<Vec<u8>> {
            if hex::encode(Sha256::digest(&packed)) != sha256 {
                return None;
            }
            zstd::bulk::decompress(&packed, bytes).ok().filter(|piece| piece.len() == bytes)
        };
        let piece = tokio::task::spawn_blocking(unpack).await.ok().flatten();
        piece.map(Bytes::from).ok_or_else(|| damaged("its content has changed"))
    }
}
