//! Downloads a blob. Three parts share one `.part` file:
//!
//! ```text
//! registry ──chunks──► [writer: appends, hashes] ──► <hex>.part ──► [follower: reads behind the writer]
//!     ▲ Range: the missing part, after each interruption                    ends only when the hash is right
//! ```
//!
//! The file is the buffer between them: a slow reader never delays the network, only a few chunks are in memory, and an
//! interrupted download continues at the end of the file. A blob gets its name when its digest is verified.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use atoll_disk::SpaceWriter;
use bytes::Bytes;
use reqwest::Method;
use reqwest::header::{CONTENT_LENGTH, CONTENT_RANGE, HeaderMap, RANGE};
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;

use super::error::RegistryError;
use super::manifest::LayerDescriptor;
use super::retry::{Patience, RetryDecision};
use super::session::{RegistryRequest, RegistrySession, next_chunk};
use crate::images::Images;
use crate::layers::{Digest, LayerError};
use crate::staging::Staging;

/// How often to check whether another download of the same blob has ended.
const TICK: Duration = Duration::from_millis(50);

/// LIMIT: how long to wait for another download of the same blob. It comes from a registry that another caller chose,
/// and may be very slow.
const PATIENCE: Duration = Duration::from_secs(60);

/// LIMIT: a download that receives less than this in a window is aborted, because others wait for its slot.
const SLOWEST: u64 = 1 << 20;
const WINDOW: Duration = Duration::from_secs(60);

/// The file of an incomplete blob, locked by this download.
#[derive(Debug)]
pub(super) struct PartialBlob {
    file: File,
    path: PathBuf,
    /// Bytes from an earlier download.
    pub(super) had: u64,
    /// The private folder of this download, if it has one; removed with it.
    _own: Option<Staging>,
}

impl PartialBlob {
    /// Takes over the partial file when no other download of this blob runs. After a limited wait it begins a private
    /// one. `None`: the blob has been completed meanwhile.
    pub(super) async fn take(
        images: &Images,
        wanted: &LayerDescriptor,
    ) -> Result<Option<Self>, RegistryError> {
        Self::take_within(images, wanted, PATIENCE).await
    }

    async fn take_within(
        images: &Images,
        wanted: &LayerDescriptor,
        patience: Duration,
    ) -> Result<Option<Self>, RegistryError> {
        let path = images.part_path(&wanted.digest);
        let whole = images.blob_path(&wanted.digest);
        let begun = Instant::now();
        loop {
            if whole.exists() {
                return Ok(None);
            }
            if let Some(file) = lock(&path)? {
                // The other download may have completed the blob between the check and the lock.
                if whole.exists() {
                    return Ok(None);
                }
                let mut had = file.metadata().map_err(RegistryError::io("stat", &path))?.len();
                if had > wanted.size {
                    file.set_len(0).map_err(RegistryError::io("cut", &path))?;
                    had = 0;
                }
                return Ok(Some(Self { file, path, had, _own: None }));
            }
            if begun.elapsed() > patience {
                return Self::own(&path).map(Some);
            }
            tokio::time::sleep(TICK).await;
        }
    }

    /// A private file, below the folder of the shared one.
    fn own(common: &Path) -> Result<Self, RegistryError> {
        let staged = |cause| RegistryError::Layer(LayerError::io("stage", common)(cause));
        let staging = common
            .parent()
            .ok_or_else(|| std::io::ErrorKind::NotFound.into())
            .and_then(|folder| Staging::new(folder).map_err(|error| io::Error::other(error.to_string())));
        let staging = staging.map_err(staged)?;
        let path = staging.path().join("blob.part");
        let file = lock(&path)?.ok_or_else(|| staged(io::ErrorKind::WouldBlock.into()))?;
        Ok(Self { file, path, had: 0, _own: Some(staging) })
    }

    /// Discards the bytes received so far.
    pub(super) fn restart(&mut self) -> Result<(), RegistryError> {
        self.file.set_len(0).map_err(RegistryError::io("cut", &self.path))?;
        self.had = 0;
        Ok(())
    }

    /// The same file, for the writer or the follower.
    pub(super) fn file(&self) -> Result<File, RegistryError> {
        self.file.try_clone().map_err(RegistryError::io("open", &self.path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the file: its content is wrong.
    pub(super) fn discard(self) {
        if let Err(cause) = std::fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %cause, "a damaged download could not be removed; the next collection removes it");
        }
    }

    /// Gives the blob its name; its digest has been verified.
    pub(super) fn publish(self, images: &Images, digest: &Digest) -> Result<(), RegistryError> {
        std::fs::rename(&self.path, images.blob_path(digest))
            .map_err(RegistryError::io("publish", &self.path))
    }
}

/// The file at `path`, made when missing, if no other download has locked it.
fn lock(path: &Path) -> Result<Option<File>, RegistryError> {
    let opened = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path);
    let file = opened.map_err(|cause| RegistryError::Layer(LayerError::io("create", path)(cause)))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(cause)) => return Err(RegistryError::io("lock", path)(cause)),
    }
    let ours = file.metadata().map_err(RegistryError::io("stat", path))?;
    let same =
        std::fs::symlink_metadata(path).is_ok_and(|now| (now.dev(), now.ino()) == (ours.dev(), ours.ino()));
    Ok(same.then_some(file))
}

/// The state that the writer shares with the follower.
#[derive(Debug, Default)]
pub(super) struct BlobFeed {
    state: Mutex<BlobProgress>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct BlobProgress {
    written: u64,
    end: Option<End>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// All bytes are written and their digest is right.
    Proven,
    /// No more bytes will arrive.
    Broken,
}

impl BlobFeed {
    fn state(&self) -> MutexGuard<'_, BlobProgress> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The feed of a blob that is complete from the start.
    pub(super) fn whole(size: u64) -> Arc<Self> {
        let state = BlobProgress { written: size, end: Some(End::Proven) };
        Arc::new(Self { state: Mutex::new(state), changed: Condvar::new() })
    }

    fn advance(&self, bytes: u64) {
        self.state().written += bytes;
        self.changed.notify_all();
    }

    /// Only the first end counts.
    fn end(&self, end: End) {
        self.state().end.get_or_insert(end);
        self.changed.notify_all();
    }

    /// The number of bytes available after `at`; 0 at the end of the blob, once it is verified.
    fn wait(&self, at: u64, size: u64) -> io::Result<u64> {
        let mut state = self.state();
        loop {
            match state.end {
                Some(End::Broken) => return Err(io::Error::other("the download ended early")),
                Some(End::Proven) => return Ok(size.saturating_sub(at)),
                None if at < state.written => return Ok(state.written - at),
                None => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

/// Reads a blob while it is being written.
pub(super) struct Follower {
    pub file: File,
    pub flow: Arc<BlobFeed>,
    pub at: u64,
    pub size: u64,
}

impl Read for Follower {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let there = self.flow.wait(self.at, self.size)?;
        let length = buf.len().min(usize::try_from(there).unwrap_or(usize::MAX));
        let taken = self.file.read_at(&mut buf[..length], self.at)?;
        if taken == 0 && length > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.at += taken as u64;
        Ok(taken)
    }
}

/// Marks the feed as broken unless the writer ends successfully.
struct Writing(Arc<BlobFeed>);

impl Drop for Writing {
    fn drop(&mut self) {
        self.0.end(End::Broken);
    }
}

/// The result of a writer after its last chunk.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BlobVerdict {
    Proven,
    Wrong {
        found: Digest,
    },
    /// The download did not reach its end.
    Cut,
}

/// Appends chunks to the file and hashes the whole content. Blocking; ends when the sender is dropped.
pub(super) fn write(
    mut file: File,
    had: u64,
    wanted: &LayerDescriptor,
    mut chunks: mpsc::Receiver<Bytes>,
    flow: &Arc<BlobFeed>,
    mut space: SpaceWriter,
) -> io::Result<BlobVerdict> {
    let writing = Writing(Arc::clone(flow));
    flow.advance(had);
    let mut hash = Sha256::new();
    hash_file(&file, had, &mut hash)?;
    let mut written = had;
    while let Some(chunk) = chunks.blocking_recv() {
        space.take(chunk.len() as u64)?;
        file.write_all(&chunk)?;
        written += chunk.len() as u64;
        flow.advance(chunk.len() as u64);
        hash.update(&chunk);
    }
    if written != wanted.size {
        return Ok(BlobVerdict::Cut);
    }
    let found = Digest::from_hash(hash);
    if found != wanted.digest {
        return Ok(BlobVerdict::Wrong { found });
    }
    writing.0.end(End::Proven);
    Ok(BlobVerdict::Proven)
}

/// Whether an existing blob still matches its digest. Blocking.
pub(super) fn is_right(path: &Path, wanted: &LayerDescriptor) -> io::Result<bool> {
    let file = File::open(path)?;
    let mut hash = Sha256::new();
    let size = file.metadata()?.len();
    hash_file(&file, size, &mut hash)?;
    Ok(size == wanted.size && Digest::from_hash(hash) == wanted.digest)
}

fn hash_file(file: &File, size: u64, hash: &mut Sha256) -> io::Result<()> {
    let mut piece = vec![0; if size == 0 { 0 } else { 256 << 10 }];
    let mut at = 0;
    while at < size {
        let taken = match file.read_at(&mut piece, at)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            taken => taken.min(usize::try_from(size - at).unwrap_or(usize::MAX)),
        };
        hash.update(&piece[..taken]);
        at += taken as u64;
    }
    Ok(())
}

/// Fetches the missing part of a blob and passes it to the writer; resumes after interruptions.
pub(super) async fn download(
    session: &RegistrySession<'_>,
    wanted: &LayerDescriptor,
    had: u64,
    chunks: &mpsc::Sender<Bytes>,
    moved: impl Fn(u64),
) -> Result<(), RegistryError> {
    let what = format!("the layer {}", wanted.digest);
    let mut at = had;
    let mut patience = Patience::default();
    let mut window = (Instant::now(), at);
    while at < wanted.size {
        let mut ask =
            RegistryRequest::new(Method::GET, session.url(&format!("blobs/{}", wanted.digest)), what.clone());
        if at > 0 {
            ask.headers.push((RANGE.as_str(), format!("bytes={at}-")));
        }
        let mut response = session.send(&ask).await?;
        let mut skip = begins_at(&what, response.status().as_u16(), response.headers(), at, wanted)?;
        let before = at;
        let broke = loop {
            let mut chunk = match next_chunk(&mut response).await {
                Ok(Some(chunk)) => chunk,
                Ok(None) => break None,
                Err(error) => break Some(error),
            };
            // A registry without range requests sends the blob from the beginning; bytes that exist already are
            // skipped.
            let known = skip.min(chunk.len() as u64);
            skip -= known;
            let chunk = chunk.split_off(usize::try_from(known).unwrap_or_default());
            if at + chunk.len() as u64 > wanted.size {
                return Err(RegistryError::damaged(&what, format!("it has more than {} bytes", wanted.size)));
            }
            if chunk.is_empty() {
                continue;
            }
            at += chunk.len() as u64;
            if chunks.send(chunk).await.is_err() {
                // The writer failed and reports why.
                return Ok(());
            }
            moved(at);
            if window.0.elapsed() > WINDOW {
                if at - window.1 < SLOWEST {
                    return Err(RegistryError::BrokenOff { host: session.place.host.clone(), what });
                }
                window = (Instant::now(), at);
            }
        };
        if at == wanted.size {
            break;
        }
        if at > before {
            patience.moved();
        }
        match patience.failed(None) {
            RetryDecision::Wait(wait) => tokio::time::sleep(wait).await,
            RetryDecision::TooLong(_) | RetryDecision::GiveUp => {
                let host = session.place.host.clone();
                return Err(broke.unwrap_or(RegistryError::BrokenOff { host, what }));
            }
        }
    }
    Ok(())
}

/// How many bytes of a response exist already; also checks the size that the response announces.
fn begins_at(
    what: &str,
    status: u16,
    headers: &HeaderMap,
    at: u64,
    wanted: &LayerDescriptor,
) -> Result<u64, RegistryError> {
    let text = |name| headers.get(name).and_then(|value: &reqwest::header::HeaderValue| value.to_str().ok());
    let wrong_size = |found: &str| {
        RegistryError::damaged(what, format!("it has {found} bytes, {} were promised", wanted.size))
    };
    match status {
        404 => Err(RegistryError::damaged(what, "the registry does not have it")),
        416 => Err(RegistryError::damaged(what, format!("it ends before byte {at}"))),
        206 => {
            let range = text(CONTENT_RANGE).and_then(|range| range.strip_prefix("bytes "));
            let (first, total) = range
                .and_then(|range| Some((range.split_once('-')?.0, range.split_once('/')?.1)))
                .ok_or_else(|| {
                    RegistryError::damaged(what, "the registry does not say which range it sends")
                })?;
            if total != "*" && total.parse() != Ok(wanted.size) {
                return Err(wrong_size(total));
            }
            let first: Option<u64> = first.trim().parse().ok().filter(|first| *first <= at);
            first
                .map(|first| at - first)
                .ok_or_else(|| RegistryError::damaged(what, "the registry sends another range"))
        }
        _ => match text(CONTENT_LENGTH) {
            Some(length) if length.parse() != Ok(wanted.size) => Err(wrong_size(length)),
            _ => Ok(at),
        },
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_download_that_crawls_does_not_keep_others_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let images = Images::open(dir.path(), crate::Bounds::default()).unwrap();
        let digest = Digest::of(b"blob");
        let wanted = LayerDescriptor { digest, size: 4, diff_id: crate::layers::DiffId(digest) };
        let first = PartialBlob::take(&images, &wanted).await.unwrap().unwrap();
        let second =
            PartialBlob::take_within(&images, &wanted, Duration::from_millis(100)).await.unwrap().unwrap();
        assert_ne!(first.path(), second.path());
        let own = second.path().parent().unwrap().to_owned();
        second.file().unwrap().write_all(b"blob").unwrap();
        second.publish(&images, &digest).unwrap();
        assert_eq!(std::fs::read(images.blob_path(&digest)).unwrap(), b"blob");
        assert!(!own.exists());
        assert!(PartialBlob::take(&images, &wanted).await.unwrap().is_none());
        drop(first);
    }
}
