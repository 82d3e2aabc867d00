//! Converts a version to the form of a registry: blobs, a config and a manifest.
//!
//! A pulled layer keeps its blob, so it is pushed unchanged. A layer without a blob (built, imported from a plain tar,
//! or the files of a built-in template) is packed when it is first needed, and the blob is kept.

use std::io::{BufWriter, Read};
use std::path::{Path, PathBuf};

use atoll_disk::Guarded;
use atoll_model::StartSettings;
use oci_spec::image::{History, ImageConfiguration};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::version::ImageVersion;
use super::{BLOBS, ImageError, Images, PACKED};
use crate::layers::{self, DiffId, Digest, Hashing, LayerError};
use crate::staging::{Staging, write_durably};

/// A layer as a blob.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackedLayer {
    /// Digest of the blob.
    pub digest: Digest,
    /// Size of the blob in bytes.
    pub size: u64,
    /// Id of the archive in the blob. A layer whose blob is gone is packed again, and may then have another id than the
    /// layer itself.
    pub diff_id: DiffId,
    /// Size of the archive in bytes.
    pub tar_bytes: u64,
    /// `application/vnd.oci.image.layer.v1.tar+gzip` and the like.
    pub media_type: String,
}

/// An image in the form of a registry; its blobs are at [`Images::blob_path`].
#[derive(Debug, Clone)]
pub struct Packed {
    /// The manifest (OCI), exactly as it is sent.
    pub manifest: Vec<u8>,
    /// The digest of the manifest.
    pub manifest_digest: Digest,
    /// The config, exactly as the manifest refers to it.
    pub config: Vec<u8>,
    /// The digest of the config.
    pub config_digest: Digest,
    /// The bottom one first.
    pub layers: Vec<PackedLayer>,
}

/// LIMIT: the compression level of layers: three times as fast as the default 6, with a result that is a tenth larger.
const GZIP_LEVEL: u32 = 3;
/// LIMIT: bytes written to a blob at once.
const PIECE: usize = 256 << 10;
const GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub(super) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

impl Images {
    /// Records that the blob at [`Images::blob_path`] is this layer, compressed; push and export then use it.
    pub fn set_blob(&self, diff_id: &DiffId, blob: &Digest, media_type: &str) -> Result<(), ImageError> {
        let path = self.blob_path(blob);
        let size = std::fs::metadata(&path).map_err(ImageError::io("find", &path))?.len();
        let tar_bytes = self.layer(diff_id)?.tar_bytes;
        let (diff_id, media_type) = (*diff_id, media_type.to_owned());
        self.note(&diff_id.0, &PackedLayer { digest: *blob, size, diff_id, tar_bytes, media_type })
    }

    /// Makes sure that every layer of a version (and its base) exists as a blob, and packs those that do not. Blocking.
    pub fn pack(&self, version: &str, cancel: &CancellationToken) -> Result<Packed, ImageError> {
        let version = self.version(version)?;
        let mut layers = Vec::with_capacity(version.layers.len() + 1);
        if let Some(base) = &version.base {
            layers.push(self.packed(&base_key(base), &self.base_files(base)?, cancel)?);
        }
        for layer in &version.layers {
            self.layer(layer)?;
            layers.push(self.packed(&layer.0, &self.layer_files(layer), cancel)?);
        }
        Ok(described(&version, layers))
    }

    /// The blob of a folder, by the digest that names the folder.
    fn packed(
        &self,
        key: &Digest,
        files: &Path,
        cancel: &CancellationToken,
    ) -> Result<PackedLayer, ImageError> {
        self.uses.touch(key);
        if let Some(noted) = PackedLayer::read(&self.note_path(key)) {
            let blob = self.blob_path(&noted.digest);
            if std::fs::metadata(&blob).is_ok_and(|file| file.len() == noted.size) {
                return Ok(noted);
            }
        }
        self.room_for(0)?;
        let mut blob = self.new_blob()?;
        let mut tar = Hashing::new(blob.gzip());
        layers::pack(files, &mut tar, cancel).map_err(LayerError::of_blob)?;
        let (zip, diff_id, tar_bytes) = tar.finish();
        zip.finish().map_err(|cause| LayerError::Sink(cause).of_blob())?;
        let (digest, size) = self.keep_blob(blob)?;
        let (diff_id, media_type) = (DiffId(diff_id), GZIP.to_owned());
        let noted = PackedLayer { digest, size, diff_id, tar_bytes, media_type };
        self.note(key, &noted)?;
        Ok(noted)
    }

    /// Whether the blob of a layer exists, and contains exactly that layer.
    pub(super) fn has_packed(&self, diff_id: &DiffId) -> bool {
        let noted = PackedLayer::read(&self.note_path(&diff_id.0));
        noted.is_some_and(|noted| noted.diff_id == *diff_id && self.blob_path(&noted.digest).is_file())
    }

    /// A blob that has no name yet; removed when dropped.
    pub(super) fn new_blob(&self) -> Result<NewBlob, ImageError> {
        let staging = Staging::new(&self.dir.join(BLOBS))?;
        let path = staging.path().join("blob");
        let file = std::fs::File::create_new(&path).map_err(ImageError::io("create", &path))?;
        let file = Guarded::new(Hashing::new(file), self.space()?);
        Ok(NewBlob { staging, file: BufWriter::with_capacity(PIECE, file) })
    }

    /// Gives a blob its name; returns its digest and size.
    pub(super) fn keep_blob(&self, blob: NewBlob) -> Result<(Digest, u64), ImageError> {
        let fresh = blob.staging.path().join("blob");
        let file =
            blob.file.into_inner().map_err(|error| LayerError::io("write", &fresh)(error.into_error()))?;
        let (file, digest, size) = file.into_inner().finish();
        file.sync_all().map_err(ImageError::io("flush", &fresh))?;
        let path = self.blob_path(&digest);
        std::fs::rename(&fresh, &path).map_err(ImageError::io("keep", &path))?;
        Ok((digest, size))
    }

    fn note(&self, key: &Digest, noted: &PackedLayer) -> Result<(), ImageError> {
        let record = serde_json::to_vec(noted).expect("a note holds only strings and numbers");
        Ok(write_durably(&self.note_path(key), &record)?)
    }

    fn note_path(&self, key: &Digest) -> PathBuf {
        self.dir.join(PACKED).join(format!("{}.json", key.hex()))
    }
}

type BlobFile = BufWriter<Guarded<Hashing<std::fs::File>>>;

/// A blob being written and hashed.
pub(super) struct NewBlob {
    staging: Staging,
    file: BlobFile,
}

impl NewBlob {
    /// Compresses the bytes that are written to it, always in the same way.
    fn gzip(&mut self) -> flate2::write::GzEncoder<&mut BlobFile> {
        flate2::write::GzEncoder::new(&mut self.file, flate2::Compression::new(GZIP_LEVEL))
    }

    pub(super) fn write(&mut self, mut from: impl Read) -> Result<(), ImageError> {
        std::io::copy(&mut from, &mut self.file).map_err(LayerError::io("copy", "a blob"))?;
        Ok(())
    }

    pub(super) fn write_gzip(&mut self, mut from: impl Read) -> Result<(), ImageError> {
        let mut zip = self.gzip();
        let copied = std::io::copy(&mut from, &mut zip).and_then(|_| zip.finish());
        Ok(copied.map(drop).map_err(LayerError::io("compress", "a blob"))?)
    }
}

impl PackedLayer {
    pub(super) fn read(path: &Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(path).ok()?).ok()
    }
}

/// The key under which the blob of a built-in template's files is recorded.
pub(super) fn base_key((name, digest): &(String, String)) -> Digest {
    Digest::of(format!("base {name} {digest}").as_bytes())
}

/// Config and manifest of a version with these layers.
fn described(version: &ImageVersion, layers: Vec<PackedLayer>) -> Packed {
    let mut config = version.config.clone();
    config.rootfs_mut().set_diff_ids(layers.iter().map(|layer| layer.diff_id.to_string()).collect());
    fit_history(&mut config, layers.len());
    apply_settings(&mut config, &version.settings);
    let json = |value: serde_json::Value| super::version::sorted(value).to_string().into_bytes();
    let config = json(serde_json::json!(config));
    let config_digest = Digest::of(&config);
    let listed = layers.iter().map(|layer| {
        serde_json::json!({ "mediaType": layer.media_type, "digest": layer.digest, "size": layer.size })
    });
    let manifest = json(serde_json::json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": { "mediaType": CONFIG, "digest": config_digest, "size": config.len() },
        "layers": listed.collect::<Vec<_>>(),
    }));
    Packed { manifest_digest: Digest::of(&manifest), manifest, config, config_digest, layers }
}

/// A history has one line per layer, or none at all: some readers count the lines.
fn fit_history(config: &mut ImageConfiguration, layers: usize) {
    let Some(history) = config.history().clone() else { return };
    let lines = history.iter().filter(|line| line.empty_layer() != Some(true)).count();
    if lines > layers {
        config.set_history(None);
    } else if lines < layers {
        let mut below = History::default();
        below.set_created_by(Some("layers below".to_owned()));
        let mut all = vec![below; layers - lines];
        all.extend(history);
        config.set_history(Some(all));
    }
}

/// Applies template settings that changed since the config was written.
fn apply_settings(config: &mut ImageConfiguration, settings: &StartSettings) {
    let said = super::start_settings(config);
    if said.user == settings.user && said.workdir == settings.workdir && said.env == settings.env {
        return;
    }
    let mut inner = config.config().clone().unwrap_or_default();
    inner.set_user(settings.user.clone());
    inner.set_working_dir(settings.workdir.clone());
    inner.set_env(Some(settings.env.iter().map(|(key, value)| format!("{key}={value}")).collect()));
    config.set_config(Some(inner));
}
