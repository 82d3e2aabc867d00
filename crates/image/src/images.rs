//! Images: the content-addressed store of layers, blobs and versions that templates of tenants stand on.
//!
//! ```text
//! DATA/images/
//!   blobs/sha256/<hex>          compressed layers as they came, `<hex>.part` while they come
//!   layers/<hex>/               fs/ (what the overlay stacks), layer.json (written last)
//!   merged/<hex>/               the same form, made of several layers by hard links
//!   versions/<hex>.json         what a version is made of
//!   packed/<hex>.json           which blob a layer without one was packed to
//!   cache/<hex>                 a build step's key, and the version it gave
//!   */.build-*, */.trash-*      being made or removed; swept at open unless locked
//! ```
//!
//! Everything appears whole or not at all. Nothing is changed after it appeared, so readers need no lock; what is removed
//! is removed by [`Images::collect`] alone, which spares what is held, in use, or young.
//!
//! Whose a version is, and which name and tag point to it, is the caller's to know.

mod error;
mod version;

pub use error::ImageError;
pub use version::{Found, NewVersion, Version};

use std::collections::{BTreeMap, HashSet};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use atoll_model::StartSettings;
use oci_spec::image::ImageConfiguration;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::layers::{DiffId, Digest, LayerError};
use crate::template::Template;

/// How much may come in.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// LIMIT: bytes of one layer once unpacked.
    pub layer_bytes: u64,
    /// LIMIT: bytes of all layers of an image once unpacked.
    pub image_bytes: u64,
    /// LIMIT: entries of one layer.
    pub entries: u64,
    /// LIMIT: bytes of the disk that stay free.
    pub reserve_bytes: u64,
    /// LIMIT: what is younger than this is not collected.
    pub grace: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            layer_bytes: 32 << 30,
            image_bytes: 32 << 30,
            entries: 2_000_000,
            reserve_bytes: 1 << 30,
            grace: Duration::from_secs(60),
        }
    }
}

/// The store.
#[derive(Debug)]
pub struct Images {
    dir: PathBuf,
    bounds: Bounds,
}

/// A layer that is here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    /// What it is called.
    pub diff_id: DiffId,
    /// Bytes of its files.
    pub bytes: u64,
    /// Entries in it.
    pub entries: u64,
    /// Bytes of the uncompressed archive it came from.
    pub tar_bytes: u64,
    /// What was skipped or changed while unpacking, and how often.
    #[serde(default)]
    pub notes: BTreeMap<String, u64>,
}

/// Where the layer's archive can be had without packing it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackedLayer {
    /// Of the blob.
    pub digest: Digest,
    /// Of the blob, in bytes.
    pub size: u64,
    /// Of the archive in it. A layer whose blob is gone is packed anew, and then it may differ from the layer's own.
    pub diff_id: DiffId,
    /// Of the archive in it, in bytes.
    pub tar_bytes: u64,
    /// `application/vnd.oci.image.layer.v1.tar+gzip` and the like.
    pub media_type: String,
}

/// An image as registries know it; its blobs are at [`Images::blob_path`].
#[derive(Debug, Clone)]
pub struct Packed {
    /// The manifest (OCI), exactly as it is to be sent.
    pub manifest: Vec<u8>,
    /// Of those bytes.
    pub manifest_digest: Digest,
    /// The config, exactly as the manifest names it.
    pub config: Vec<u8>,
    /// Of those bytes.
    pub config_digest: Digest,
    /// The bottom one first.
    pub layers: Vec<PackedLayer>,
}

/// What an archive is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ImportAs {
    /// Look and see.
    #[default]
    Auto,
    /// `docker save`.
    DockerArchive,
    /// An OCI layout in a tar.
    OciArchive,
    /// The files of a root.
    Rootfs,
}

/// What an archive is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExportAs {
    /// An OCI layout in a tar.
    OciArchive,
    /// As `docker load` takes it.
    DockerArchive,
}

/// What an import brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    /// The version it became.
    pub version: String,
    /// Names that the archive itself had for it.
    pub names: Vec<String>,
}

/// What a collection removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collected {
    /// Versions that nobody uses.
    pub versions: u64,
    /// Layers of no version.
    pub layers: u64,
    /// Blobs of no layer, and downloads that nobody went on with.
    pub blobs: u64,
    /// Bytes that were freed.
    pub bytes: u64,
}

/// Keeps a version from being collected for as long as it lives.
#[derive(Debug)]
pub struct Held {
    version: String,
}

/// Work under way: no layer or blob that is looked at or added while this lives is collected before it ends.
#[derive(Debug)]
pub struct Working {}

/// What an image's config says about how to start: user, workdir, environment, port.
#[must_use]
pub fn start_settings(_config: &ImageConfiguration) -> StartSettings {
    StartSettings::default()
}

impl Held {
    /// Which version.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }
}

fn later<T>() -> Result<T, ImageError> {
    Err(ImageError::Unsupported { what: "not yet".into() })
}

impl Images {
    /// Opens the folder, makes it when missing, and clears what interrupted makers left. Downloads that were under way stay.
    pub fn open(dir: impl Into<PathBuf>, bounds: Bounds) -> Result<Arc<Self>, ImageError> {
        Ok(Arc::new(Self { dir: dir.into(), bounds }))
    }

    /// Where built-in templates are, for versions that stand on one.
    pub(crate) fn stand_on(&self, _templates: &Path) {}

    /// Says that work begins which will look at layers and blobs and then make a version of them.
    pub fn begin(self: &Arc<Self>) -> Working {
        Working {}
    }

    /// Answers whether so many bytes more leave the reserve of the disk alone.
    pub fn room_for(&self, _bytes: u64) -> Result<(), LayerError> {
        Ok(())
    }

    /// Whether this layer is here, whole.
    #[must_use]
    pub fn has_layer(&self, _diff_id: &DiffId) -> bool {
        false
    }

    /// What is known of a layer.
    pub fn layer(&self, diff_id: &DiffId) -> Result<Layer, ImageError> {
        Err(ImageError::LayerMissing { layer: *diff_id })
    }

    /// Unpacks an uncompressed archive. Blocks; one flight per expected id: a second caller waits and then reads nothing.
    /// An error that the reader answers comes back as [`LayerError::Source`].
    pub fn add_layer(
        &self,
        _expected: Option<&DiffId>,
        _tar: impl Read,
        _cancel: &CancellationToken,
    ) -> Result<Layer, LayerError> {
        Err(LayerError::Cancelled)
    }

    /// Notes that the blob at [`Images::blob_path`] is this layer, compressed; push and export then use it.
    pub fn set_blob(&self, _diff_id: &DiffId, _blob: &Digest, _media_type: &str) -> Result<(), ImageError> {
        later()
    }

    /// Makes a version; answers its digest. Making the same again answers the same.
    pub fn put_version(&self, _new: NewVersion) -> Result<String, ImageError> {
        later()
    }

    /// A version by its digest (`sha256:` may be left out).
    pub fn version(&self, version: &str) -> Result<Version, ImageError> {
        Err(ImageError::NotFound { version: version.to_owned() })
    }

    /// What the engine boots. Every layer is looked at: a version that is not whole is refused as damaged.
    pub fn template(&self, version: &str) -> Result<Template, ImageError> {
        Err(ImageError::NotFound { version: version.to_owned() })
    }

    /// Keeps a version from being collected; fails when it is not here.
    pub fn hold(self: &Arc<Self>, version: &str) -> Result<Held, ImageError> {
        Err(ImageError::NotFound { version: version.to_owned() })
    }

    /// Where a blob is, or would be.
    #[must_use]
    pub fn blob_path(&self, digest: &Digest) -> PathBuf {
        self.dir.join("blobs/sha256").join(digest.hex())
    }

    /// Where a blob is while it comes.
    #[must_use]
    pub fn part_path(&self, digest: &Digest) -> PathBuf {
        self.dir.join("blobs/sha256").join(format!("{}.part", digest.hex()))
    }

    /// Makes sure that every layer of a version (and its base) is there as a blob, packing those that are not. Blocks.
    pub fn pack(&self, _version: &str, _cancel: &CancellationToken) -> Result<Packed, ImageError> {
        later()
    }

    /// Reads an image or a root file system; compressed or not. Blocks.
    pub fn import(
        self: &Arc<Self>,
        _from: impl Read,
        _what: ImportAs,
        _cancel: &CancellationToken,
    ) -> Result<Imported, ImageError> {
        later()
    }

    /// Reads an image from an OCI layout folder. Blocks.
    pub fn import_layout(
        self: &Arc<Self>,
        _dir: &Path,
        _cancel: &CancellationToken,
    ) -> Result<Imported, ImageError> {
        later()
    }

    /// Writes a version as an archive that other tools read, with these names in it. Blocks.
    pub fn export(
        &self,
        _version: &str,
        _what: ExportAs,
        _names: &[String],
        _to: impl Write,
        _cancel: &CancellationToken,
    ) -> Result<(), ImageError> {
        later()
    }

    /// Removes versions that are not in `used`, not held, not younger than the grace and not worth keeping as build cache
    /// (the newest of those up to `keep_cache_bytes`); then layers of no version, blobs of no layer and old downloads.
    pub fn collect(&self, _used: &HashSet<String>, _keep_cache_bytes: u64) -> Result<Collected, ImageError> {
        later()
    }

    /// The version that a build step with this key gave before.
    #[must_use]
    pub fn cached(&self, _key: &str) -> Option<String> {
        None
    }

    /// Notes which version a build step with this key gave.
    pub fn remember(&self, _key: &str, _version: &str) -> Result<(), ImageError> {
        later()
    }
}
