//! Packed files of sandboxes in object storage: a folder, or any S3.
//!
//! ```text
//! <sandbox>/chunks/<sha256>              pieces of the stream, each compressed separately and named by its content
//! <sandbox>/<sha256 of this file>.json   the manifest, written last: an archive exists only when its manifest does
//! ```
//!
//! Every byte is checked before it is returned. This module does not know what a pack contains or who may read it.

mod location;
mod read;
mod write;

pub use read::PackedFiles;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use atoll_disk::Reserve;
use atoll_model::{ArchiveRef, ErrorKind, Limits, SandboxId};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path as Key;
use object_store::{ObjectStore, ObjectStoreExt};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// LIMIT: bytes of the stream per piece. Larger pieces compress no better; smaller ones cost more requests.
const CHUNK: usize = 8 << 20;
/// LIMIT: pieces in transfer at once, each held in memory twice.
const AT_ONCE: usize = 4;
/// LIMIT: a manifest has about 150 bytes per piece; this is enough for 4 TiB.
const MANIFEST_MAX: u64 = 96 << 20;
const FORMAT: u32 = 1;

/// Where archives are kept.
#[derive(Debug, Clone)]
pub struct Archives {
    store: Arc<dyn ObjectStore>,
    place: String,
    /// Checked before anything is written to a folder.
    disk: Option<Arc<Reserve>>,
}

/// The properties of an archived sandbox, so that it can be created again on any server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ArchivedSandbox {
    /// Which sandbox.
    pub sandbox: SandboxId,
    /// Its template.
    pub template: String,
    /// The exact version of the template.
    pub template_version: String,
    /// Environment without private values.
    pub env: BTreeMap<String, String>,
    /// The user that runs commands.
    pub user: String,
    /// Where commands start.
    pub workdir: String,
    /// Run at every boot.
    pub command: Option<Vec<String>>,
    /// Its limits.
    pub limits: Limits,
    /// When it was archived, in milliseconds since the Unix epoch.
    pub archived_at_ms: i64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct ArchiveManifest {
    format: u32,
    about: ArchivedSandbox,
    chunks: Vec<Chunk>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Chunk {
    /// Of the compressed bytes.
    sha256: String,
    /// Before compression.
    bytes: u64,
    /// After it.
    stored: u64,
}

/// An archive could not be written, read or removed.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The configured location is not supported.
    #[error("archives cannot be stored at {place:?}: {why}")]
    BadPlace {
        /// The configured value, without credentials.
        place: String,
        /// What is wrong with it.
        why: String,
    },
    /// There is no such archive.
    #[error("there is no archive {key}")]
    NotFound { key: String },
    /// The stored data differs from what was written.
    #[error("archive {key} is damaged: {why}")]
    Damaged {
        key: String,
        /// How the damage was detected.
        why: String,
    },
    /// The packed files could not be read.
    #[error("the files could not be packed")]
    Source(#[source] std::io::Error),
    /// The disk with the folder of archives has no room for one more.
    #[error("the server's disk has no space for this archive")]
    NoSpace(#[source] std::io::Error),
    /// Object storage refused or did not answer.
    #[error("object storage failed to {action}")]
    Storage {
        action: &'static str,
        #[source]
        cause: object_store::Error,
    },
}

impl ArchiveError {
    /// The class of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::BadPlace { .. } => ErrorKind::Invalid,
            Self::NotFound { .. } => ErrorKind::NotFound,
            Self::Damaged { .. } => ErrorKind::Conflict,
            Self::Source(_) => ErrorKind::Internal,
            Self::NoSpace(_) => ErrorKind::Exhausted,
            Self::Storage { .. } => ErrorKind::Unavailable,
        }
    }
}

/// Removes files that a killed process left half-written in a folder. They have temporary names, which no listing
/// shows.
fn remove_half_written(folder: &std::path::Path) -> std::io::Result<()> {
    for folder in [folder.join("chunks"), folder.to_owned()] {
        let entries = match std::fs::read_dir(&folder) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            other => other?,
        };
        for entry in entries {
            let entry = entry?;
            if entry.file_name().to_string_lossy().contains('#') {
                std::fs::remove_file(entry.path())?;
            }
        }
        // A folder that is not empty stays.
        let _ = std::fs::remove_dir(&folder);
    }
    Ok(())
}

fn storage(action: &'static str) -> impl Fn(object_store::Error) -> ArchiveError {
    move |cause| ArchiveError::Storage { action, cause }
}

impl Archives {
    /// Opens a location: a folder (`/path` or `file:///path`), or `s3://bucket/prefix` with the options `endpoint`,
    /// `region` and `allow_http` after a `?`. Credentials come from the usual environment variables of S3 tools. No
    /// request is sent yet.
    pub fn open(place: &str) -> Result<Self, ArchiveError> {
        let (store, place) = location::open(place)?;
        Ok(Self { store, place, disk: None })
    }

    /// Keeps archives in a folder from filling its disk. Remote object storage has its own limits.
    #[must_use]
    pub fn with_reserve(self, disk: &Arc<Reserve>) -> Self {
        let disk = self.folder().is_some().then(|| Arc::clone(disk));
        Self { disk, ..self }
    }

    /// The folder of the archives, if they are in one.
    fn folder(&self) -> Option<&std::path::Path> {
        self.place.starts_with('/').then(|| std::path::Path::new(&self.place))
    }

    /// The location for display, without credentials.
    #[must_use]
    pub fn place(&self) -> &str {
        &self.place
    }

    /// The archive with this key, and its content.
    pub async fn find(&self, key: &str) -> Result<(ArchiveRef, ArchivedSandbox), ArchiveError> {
        let manifest = self.manifest(key).await?;
        let sum = |of: fn(&Chunk) -> u64| manifest.chunks.iter().map(of).sum();
        let found = ArchiveRef {
            key: key.to_owned(),
            bytes: sum(|chunk| chunk.bytes),
            stored_bytes: sum(|c| c.stored),
        };
        Ok((found, manifest.about))
    }

    /// Removes everything of a sandbox, including unfinished uploads. A sandbox without archives is no error.
    pub async fn remove(&self, sandbox: &SandboxId) -> Result<(), ArchiveError> {
        self.remove_all_but(sandbox, &HashSet::new()).await
    }

    /// Manifests are removed first: an archive that lacks a piece must not be found.
    async fn remove_all_but(&self, sandbox: &SandboxId, keep: &HashSet<Key>) -> Result<(), ArchiveError> {
        let prefix = Key::from(sandbox.as_str());
        let all: Vec<_> = self.store.list(Some(&prefix)).try_collect().await.map_err(storage("list"))?;
        let doomed = all.into_iter().map(|object| object.location).filter(|key| !keep.contains(key));
        let (manifests, chunks): (Vec<Key>, Vec<Key>) =
            doomed.partition(|key| key.filename().is_some_and(|name| name.ends_with(".json")));
        for keys in [manifests, chunks] {
            let keys = futures::stream::iter(keys.into_iter().map(Ok)).boxed();
            let removed = self.store.delete_stream(keys).map(|one| match one {
                Ok(_) | Err(object_store::Error::NotFound { .. }) => Ok(()),
                Err(cause) => Err(cause),
            });
            removed.try_collect::<Vec<()>>().await.map_err(storage("remove"))?;
        }
        if let Some(folder) = self.folder() {
            let folder = folder.join(sandbox.as_str());
            let tidied = tokio::task::spawn_blocking(move || remove_half_written(&folder)).await;
            let tidied = tidied.unwrap_or_else(|panic| Err(std::io::Error::other(panic)));
            tidied
                .map_err(|cause| object_store::Error::Generic { store: "folder", source: cause.into() })
                .map_err(storage("remove"))?;
        }
        Ok(())
    }

    async fn manifest(&self, key: &str) -> Result<ArchiveManifest, ArchiveError> {
        let damaged = |why: &str| ArchiveError::Damaged { key: key.to_owned(), why: why.to_owned() };
        let not_found = || ArchiveError::NotFound { key: key.to_owned() };
        let (sandbox, digest) = key.split_once('/').ok_or_else(not_found)?;
        let is_plain = sandbox.parse::<SandboxId>().is_ok()
            && digest.len() == 64
            && digest.bytes().all(|b| b.is_ascii_hexdigit());
        if !is_plain {
            return Err(not_found());
        }
        let location = Key::from(format!("{key}.json"));
        let got = match self.store.get(&location).await {
            Err(object_store::Error::NotFound { .. }) => return Err(not_found()),
            other => other.map_err(storage("read a manifest"))?,
        };
        if got.meta.size > MANIFEST_MAX {
            return Err(damaged("its manifest is far too large"));
        }
        let bytes = got.bytes().await.map_err(storage("read a manifest"))?;
        if hex::encode(Sha256::digest(&bytes)) != digest {
            return Err(damaged("its manifest has changed"));
        }
        let manifest: ArchiveManifest =
            serde_json::from_slice(&bytes).map_err(|_| damaged("its manifest cannot be parsed"))?;
        if manifest.format != FORMAT {
            return Err(damaged("this version of Atoll does not support its format"));
        }
        Ok(manifest)
    }
}

fn chunk_key(sandbox: &SandboxId, sha256: &str) -> Key {
    Key::from(format!("{sandbox}/chunks/{sha256}"))
}

/// LIMIT: how long a request may hang before it is retried, and for how long it is retried.
const REQUEST: Duration = Duration::from_secs(60);
const TRIES: Duration = Duration::from_secs(90);
