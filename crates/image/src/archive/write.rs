//! Writes a stream as pieces: split, compressed, named and sent, a few at a time, with the manifest last.

use std::collections::{HashMap, HashSet};
use std::io;

use atoll_disk::Purpose;
use atoll_model::{ArchiveRef, SandboxId};
use bytes::Bytes;
use futures::stream::FuturesOrdered;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path as Key;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncRead, AsyncReadExt};

use super::{
    AT_ONCE, ArchiveError, ArchiveManifest, ArchivedSandbox, Archives, CHUNK, Chunk, FORMAT, chunk_key,
    storage,
};

/// LIMIT: the fastest level; disks and networks are slower than it.
const LEVEL: i32 = 1;

impl Archives {
    /// Stores a stream. When it returns, all of it is in object storage and was verified there; an earlier archive of
    /// the same sandbox is removed. On an error pieces may be left, but never an archive; the next `put` or `remove`
    /// deletes them. If the disk had no space for all of them, none is left.
    pub async fn put(
        &self,
        about: ArchivedSandbox,
        files: impl AsyncRead + Send + Unpin,
    ) -> Result<ArchiveRef, ArchiveError> {
        let sandbox = about.sandbox.clone();
        let kept = self.put_pieces(about, files).await;
        if matches!(kept, Err(ArchiveError::NoSpace(_)))
            && let Err(error) = self.remove_unfinished(&sandbox).await
        {
            tracing::warn!(%sandbox, %error, "pieces of a failed archive could not be removed");
        }
        kept
    }

    /// Removes the pieces that belong to no archive.
    async fn remove_unfinished(&self, sandbox: &SandboxId) -> Result<(), ArchiveError> {
        let prefix = Key::from(sandbox.as_str());
        let all: Vec<_> = self.store.list(Some(&prefix)).try_collect().await.map_err(storage("list"))?;
        let mut keep = HashSet::new();
        for object in all {
            let Some(digest) = object.location.filename().and_then(|name| name.strip_suffix(".json")) else {
                continue;
            };
            let manifest = self.manifest(&format!("{sandbox}/{digest}")).await?;
            keep.extend(manifest.chunks.iter().map(|chunk| chunk_key(sandbox, &chunk.sha256)));
            keep.insert(object.location.clone());
        }
        self.remove_all_but(sandbox, &keep).await
    }

    async fn put_pieces(
        &self,
        about: ArchivedSandbox,
        mut files: impl AsyncRead + Send + Unpin,
    ) -> Result<ArchiveRef, ArchiveError> {
        let sandbox = about.sandbox.clone();
        let mut space = match (&self.disk, self.folder()) {
            (Some(disk), Some(folder)) if disk.guards(folder) => {
                Some(disk.writer(folder, Purpose::Data).map_err(no_space)?)
            }
            _ => None,
        };
        let mut chunks = Vec::new();
        let mut sending = FuturesOrdered::new();
        let read = async {
            loop {
                let piece = read_piece(&mut files).await.map_err(ArchiveError::Source)?;
                if piece.is_empty() {
                    return Ok(());
                }
                if let Some(space) = &mut space {
                    // Earlier pieces may still be in transfer.
                    space.take((piece.len() * AT_ONCE) as u64).map_err(no_space)?;
                }
                sending.push_back(self.send(&sandbox, piece));
                if sending.len() >= AT_ONCE
                    && let Some(sent) = sending.next().await
                {
                    chunks.push(sent?);
                }
            }
        };
        let mut outcome: Result<(), ArchiveError> = read.await;
        // After an error too: a write to a folder continues when its future is dropped, and would create the piece
        // after `put` has removed the others.
        while let Some(sent) = sending.next().await {
            outcome = outcome.and(sent.map(|chunk| chunks.push(chunk)));
        }
        outcome?;
        self.see_all(&sandbox, &chunks).await?;
        self.finish(ArchiveManifest { format: FORMAT, about, chunks }).await
    }

    async fn send(&self, sandbox: &SandboxId, piece: Vec<u8>) -> Result<Chunk, ArchiveError> {
        let bytes = piece.len() as u64;
        let pack = move || -> io::Result<(String, Vec<u8>)> {
            let packed = zstd::bulk::compress(&piece, LEVEL)?;
            Ok((hex::encode(Sha256::digest(&packed)), packed))
        };
        let packed = tokio::task::spawn_blocking(pack).await.map_err(io::Error::other);
        let (sha256, packed) = packed.and_then(|done| done).map_err(ArchiveError::Source)?;
        let stored = packed.len() as u64;
        let payload = PutPayload::from_bytes(Bytes::from(packed));
        self.store.put(&chunk_key(sandbox, &sha256), payload).await.map_err(not_written("write a piece"))?;
        Ok(Chunk { sha256, bytes, stored })
    }

    /// Checks that the listing shows every piece with its length, which is stronger evidence than the status 200 of
    /// each upload.
    async fn see_all(&self, sandbox: &SandboxId, chunks: &[Chunk]) -> Result<(), ArchiveError> {
        let prefix = Key::from(format!("{sandbox}/chunks"));
        let seen: HashMap<Key, u64> = self
            .store
            .list(Some(&prefix))
            .map_ok(|object| (object.location, object.size))
            .try_collect()
            .await
            .map_err(storage("list"))?;
        match chunks.iter().find(|chunk| seen.get(&chunk_key(sandbox, &chunk.sha256)) != Some(&chunk.stored))
        {
            None => Ok(()),
            Some(lost) => Err(ArchiveError::Damaged {
                key: sandbox.to_string(),
                why: format!("piece {} was written but is missing or incomplete", lost.sha256),
            }),
        }
    }

    async fn finish(&self, manifest: ArchiveManifest) -> Result<ArchiveRef, ArchiveError> {
        let sandbox = manifest.about.sandbox.clone();
        let text = serde_json::to_vec(&manifest).map_err(|cause| ArchiveError::Source(cause.into()))?;
        let key = format!("{sandbox}/{}", hex::encode(Sha256::digest(&text)));
        let location = Key::from(format!("{key}.json"));
        let mut keep: HashSet<Key> =
            manifest.chunks.iter().map(|chunk| chunk_key(&sandbox, &chunk.sha256)).collect();
        keep.insert(location.clone());
        self.store.put(&location, PutPayload::from(text)).await.map_err(not_written("write a manifest"))?;
        // Read back and checked like any other. Earlier archives may be removed now; if that fails, a later call
        // removes them.
        let (found, _) = self.find(&key).await?;
        if let Err(error) = self.remove_all_but(&sandbox, &keep).await {
            tracing::warn!(%sandbox, %error, "an earlier archive could not be removed from object storage");
        }
        Ok(found)
    }
}

fn no_space(cause: io::Error) -> ArchiveError {
    if atoll_disk::is_full(&cause) {
        return ArchiveError::NoSpace(cause);
    }
    // The folder of archives cannot be inspected; reported like unreachable object storage.
    let cause = object_store::Error::Generic { store: "LocalFileSystem", source: Box::new(cause) };
    ArchiveError::Storage { action: "write", cause }
}

/// Reports a full disk below a folder as such, however deep the cause is in the error of the object store.
fn not_written(action: &'static str) -> impl Fn(object_store::Error) -> ArchiveError {
    move |cause| {
        let mut next: Option<&(dyn std::error::Error + 'static)> = Some(&cause);
        while let Some(now) = next {
            if now.downcast_ref::<io::Error>().is_some_and(atoll_disk::is_full) {
                return ArchiveError::NoSpace(io::Error::new(io::ErrorKind::StorageFull, cause));
            }
            next = now.source();
        }
        ArchiveError::Storage { action, cause }
    }
}

async fn read_piece(files: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let mut piece = Vec::with_capacity(CHUNK);
    let mut part = files.take(CHUNK as u64);
    while part.read_buf(&mut piece).await? > 0 {}
    Ok(piece)
}
