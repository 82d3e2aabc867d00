//! Layers in the store: lookup, and adding by unpacking.

use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;

use super::{ImageError, Images, LAYERS};
use crate::error::TemplateError;
use crate::layers::{DiffId, Digest, LayerError, UnpackLimits, Unpacked, unpack_hashed};
use crate::staging::{Staging, write_durably};

/// The files of a layer, beside its record.
pub(super) const FILES: &str = "fs";
const RECORD: &str = "layer.json";

/// LIMIT: how long a caller waits for another one that unpacks the same layer, before it unpacks the layer itself.
const PATIENCE: Duration = Duration::from_secs(30);
const TICK: Duration = Duration::from_millis(5);
const PIECE: usize = 64 << 10;

/// A layer in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredLayer {
    /// The id of the layer.
    pub diff_id: DiffId,
    /// Bytes of its files.
    pub bytes: u64,
    /// Entries in it.
    pub entries: u64,
    /// Bytes of the uncompressed archive it came from.
    pub tar_bytes: u64,
    /// Folders in it that its archive does not name: their permissions come from the layers below.
    #[serde(default)]
    pub implied: u64,
    /// Whether it hides all layers below it.
    #[serde(default)]
    pub is_opaque: bool,
    /// What was skipped or changed during unpacking, and how often.
    #[serde(default)]
    pub notes: BTreeMap<String, u64>,
}

/// Layers that are being unpacked; a second caller waits for the first.
#[derive(Debug, Default)]
pub(super) struct UnpacksInFlight(Mutex<HashMap<DiffId, Arc<Mutex<()>>>>);

/// An unpacked archive that has no name yet.
pub(super) struct Unnamed {
    pub(super) staging: Staging,
    layer: StoredLayer,
}

impl Images {
    /// Whether this layer exists and is complete. It is not collected during work that [`Images::begin`] started.
    #[must_use]
    pub fn has_layer(&self, diff_id: &DiffId) -> bool {
        // Touched before the check, so that an existing layer is spared.
        self.uses.touch(&diff_id.0);
        self.layer_folder(diff_id).join(RECORD).is_file()
    }

    /// The record of a layer.
    pub fn layer(&self, diff_id: &DiffId) -> Result<StoredLayer, ImageError> {
        let path = self.layer_folder(diff_id).join(RECORD);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {
                return Err(ImageError::LayerMissing { layer: *diff_id });
            }
            Err(cause) => return Err(ImageError::io("read", &path)(cause)),
        };
        let damaged = |why: String| ImageError::Damaged { what: format!("layer {diff_id}"), why };
        let layer: StoredLayer =
            serde_json::from_slice(&bytes).map_err(|cause| damaged(cause.to_string()))?;
        if layer.diff_id != *diff_id {
            return Err(damaged("its record is of another layer".into()));
        }
        Ok(layer)
    }

    /// Unpacks an uncompressed archive. Blocking. One caller per expected id unpacks; a second one waits, and then its
    /// bytes are only read and checked. They must be read: a caller that names a layer has to prove that it has the
    /// bytes, so that a tenant cannot get another tenant's layer by its name. An error of the reader is returned as
    /// [`LayerError::Source`].
    pub fn add_layer(
        &self,
        expected: Option<&DiffId>,
        tar: impl Read + Send,
        cancel: &CancellationToken,
    ) -> Result<StoredLayer, LayerError> {
        let flight = expected.map(|diff_id| self.flights.of(diff_id));
        let turn = flight.as_ref().map(|flight| turn(flight, cancel)).transpose()?;
        if let Some(diff_id) = expected
            && self.has_layer(diff_id)
            && let Ok(layer) = self.layer(diff_id)
        {
            drop(turn);
            return same(layer, tar, cancel);
        }
        let unnamed = self.unpack(LAYERS, tar, cancel)?;
        if let Some(expected) = expected
            && unnamed.layer.diff_id != *expected
        {
            return Err(LayerError::WrongDigest { expected: expected.0, found: unnamed.layer.diff_id.0 });
        }
        self.publish(unnamed)
    }

    /// Unpacks below one of the store's folders, without giving the result a name.
    pub(super) fn unpack(
        &self,
        below: &str,
        tar: impl Read + Send,
        cancel: &CancellationToken,
    ) -> Result<Unnamed, LayerError> {
        let staging = Staging::new(&self.dir.join(below)).map_err(of_staging)?;
        let files = staging.path().join(FILES);
        make_folder(&files)?;
        let allowed = UnpackLimits {
            bytes: self.bounds.layer_bytes,
            entries: self.bounds.entries,
            space: self.space()?,
        };
        let (unpacked, digest, tar_bytes) = unpack_hashed(tar, &files, allowed, cancel)?;
        let Unpacked { bytes, entries, implied, is_opaque, notes } = unpacked;
        let layer =
            StoredLayer { diff_id: DiffId(digest), bytes, entries, tar_bytes, implied, is_opaque, notes };
        Ok(Unnamed { staging, layer })
    }

    /// Gives an unpacked layer its name. If the same layer has been added meanwhile, that one stays.
    pub(super) fn publish(&self, unnamed: Unnamed) -> Result<StoredLayer, LayerError> {
        let Unnamed { staging, layer } = unnamed;
        self.uses.touch(&layer.diff_id.0);
        let folder = self.layer_folder(&layer.diff_id);
        if folder.join(RECORD).is_file() {
            return Ok(layer);
        }
        let record = serde_json::to_vec_pretty(&layer).expect("a layer holds only strings, numbers and maps");
        // Written last of all files, and synced with them when the folder gets its name.
        write_durably(&staging.path().join(RECORD), &record).map_err(of_staging)?;
        match staging.publish("layer", &folder) {
            Ok(()) | Err(TemplateError::Exists { .. }) => {}
            Err(error) => return Err(of_staging(error)),
        }
        self.uses.touch(&layer.diff_id.0);
        Ok(layer)
    }

    pub(super) fn layer_folder(&self, diff_id: &DiffId) -> PathBuf {
        self.dir.join(LAYERS).join(diff_id.hex())
    }

    pub(super) fn layer_files(&self, diff_id: &DiffId) -> PathBuf {
        self.layer_folder(diff_id).join(FILES)
    }
}

impl Unnamed {
    pub(super) fn is_empty(&self) -> bool {
        self.layer.entries == 0
    }

    pub(super) fn files(&self) -> PathBuf {
        self.staging.path().join(FILES)
    }
}

impl UnpacksInFlight {
    fn of(&self, diff_id: &DiffId) -> Arc<Mutex<()>> {
        let mut flights = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Those without a waiting caller are referenced only by this map.
        flights.retain(|_, flight| Arc::strong_count(flight) > 1);
        Arc::clone(flights.entry(*diff_id).or_default())
    }
}

/// Waits for the caller that unpacks the same layer, but only for a limited time: its bytes come from a source that
/// another tenant chose and may never arrive.
fn turn<'a>(
    flight: &'a Mutex<()>,
    cancel: &CancellationToken,
) -> Result<Option<MutexGuard<'a, ()>>, LayerError> {
    let begun = Instant::now();
    loop {
        match flight.try_lock() {
            Ok(turn) => return Ok(Some(turn)),
            Err(TryLockError::Poisoned(poisoned)) => return Ok(Some(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) if cancel.is_cancelled() => return Err(LayerError::Cancelled),
            Err(TryLockError::WouldBlock) if begun.elapsed() > PATIENCE => return Ok(None),
            Err(TryLockError::WouldBlock) => std::thread::sleep(TICK),
        }
    }
}

/// Returns the layer if these bytes are its archive.
fn same(layer: StoredLayer, tar: impl Read, cancel: &CancellationToken) -> Result<StoredLayer, LayerError> {
    let mut hash = Sha256::new();
    // Not more than the layer has: any further byte means that the archive is another one.
    let mut tar = tar.take(layer.tar_bytes.saturating_add(1));
    let mut piece = vec![0; PIECE];
    loop {
        if cancel.is_cancelled() {
            return Err(LayerError::Cancelled);
        }
        match tar.read(&mut piece) {
            Ok(0) => break,
            Ok(some) => hash.update(&piece[..some]),
            Err(cause) if cause.kind() == std::io::ErrorKind::Interrupted => {}
            Err(cause) => return Err(LayerError::Source(cause)),
        }
    }
    match Digest::from_hash(hash) {
        found if found == layer.diff_id.0 => Ok(layer),
        found => Err(LayerError::WrongDigest { expected: layer.diff_id.0, found }),
    }
}

/// A folder for files of a layer. Its mode is that of the root unless an entry sets another.
pub(super) fn make_folder(path: &Path) -> Result<(), LayerError> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::create_dir(path)
        .and_then(|()| std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)))
        .map_err(LayerError::io("create", path))
}

/// Converts an error of staging.
pub(super) fn of_staging(error: TemplateError) -> LayerError {
    match error {
        TemplateError::Io { action, path, cause } => LayerError::io(action, path)(cause),
        other => LayerError::Io {
            action: "stage",
            path: PathBuf::from("a layer"),
            cause: std::io::Error::other(other.to_string()),
        },
    }
}

/// The digest in the name of a file or folder of the store.
pub(super) fn named(name: &std::ffi::OsStr) -> Option<Digest> {
    name.to_str().and_then(|name| Digest::parse(name).ok()).filter(|_| name.len() == 64)
}
