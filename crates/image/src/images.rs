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

mod cache;
mod collect;
mod error;
mod export;
mod import;
mod in_use;
mod layer;
mod pack;
mod resolver_files;
mod settings;
mod stack;
mod template;
mod version;
mod view;

pub use collect::CollectionReport;
pub use error::ImageError;
pub use export::ExportAs;
pub use import::{ImportAs, Imported};
pub use in_use::{VersionLease, WorkGuard};
pub use layer::StoredLayer;
pub use pack::{Packed, PackedLayer};
pub use settings::start_settings;
pub use version::{DetectedSettings, ImageVersion, NewVersion};

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use atoll_disk::{Purpose, Reserve, SpaceWriter};

use crate::layers::{Digest, LayerError};
use crate::staging;
use in_use::UseTracker;

/// How much may come in.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// LIMIT: bytes of one layer once unpacked.
    pub layer_bytes: u64,
    /// LIMIT: bytes of all layers of an image once unpacked.
    pub image_bytes: u64,
    /// LIMIT: entries of one layer.
    pub entries: u64,
    /// What stays free on the disk.
    pub disk: Arc<Reserve>,
    /// LIMIT: what is younger than this is not collected.
    pub grace: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            layer_bytes: 32 << 30,
            image_bytes: 32 << 30,
            entries: 2_000_000,
            disk: Reserve::new(1 << 30),
            grace: Duration::from_secs(60),
        }
    }
}

/// The store.
#[derive(Debug)]
pub struct Images {
    dir: PathBuf,
    bounds: Bounds,
    /// Where built-in templates are.
    templates: OnceLock<PathBuf>,
    uses: UseTracker,
    flights: layer::UnpacksInFlight,
}

const LAYERS: &str = "layers";
const MERGED: &str = "merged";
const VERSIONS: &str = "versions";
const PACKED: &str = "packed";
const CACHE: &str = "cache";
const BLOBS: &str = "blobs/sha256";
/// Where archives are unpacked that may turn out to be images.
const IMPORTS: &str = "imports";

impl Images {
    /// Opens the folder, makes it when missing, and clears what interrupted makers left. Downloads that were under way stay.
    pub fn open(dir: impl Into<PathBuf>, bounds: Bounds) -> Result<Arc<Self>, ImageError> {
        let dir = dir.into();
        let mut swept = 0;
        for name in [LAYERS, MERGED, VERSIONS, PACKED, CACHE, BLOBS, IMPORTS] {
            let folder = dir.join(name);
            std::fs::create_dir_all(&folder).map_err(ImageError::io("create", &folder))?;
            swept += staging::sweep(&folder)?;
        }
        // Files inside have canonical ids: root's setuid programs are real ones on the host. Nobody else gets in.
        std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o700))
            .map_err(ImageError::io("close", &dir))?;
        if swept > 0 {
            tracing::info!(swept, "unfinished layers and blobs removed");
        }
        resolver_files::make(&dir)?;
        let (uses, flights) = (UseTracker::default(), layer::UnpacksInFlight::default());
        Ok(Arc::new(Self { dir, bounds, templates: OnceLock::new(), uses, flights }))
    }

    /// Where built-in templates are, for versions that stand on one.
    pub(crate) fn stand_on(&self, templates: &Path) {
        // There is one catalog per server; a second one would be of the same folder.
        let _ = self.templates.set(templates.to_owned());
    }

    /// The reserve of the disk, which all writers of a server share.
    #[must_use]
    pub fn disk(&self) -> &Arc<Reserve> {
        &self.bounds.disk
    }

    /// Answers whether so many bytes more leave the reserve of the disk alone.
    pub fn room_for(&self, bytes: u64) -> Result<(), LayerError> {
        let asked = self.bounds.disk.admit(&self.dir, Purpose::Data, bytes);
        asked.map_err(LayerError::io("look at the disk of", &self.dir))
    }

    /// Asks for room while something long is written here.
    pub(crate) fn space(&self) -> Result<SpaceWriter, LayerError> {
        let space = self.bounds.disk.writer(&self.dir, Purpose::Data);
        space.map_err(LayerError::io("look at the disk of", &self.dir))
    }

    /// Where a blob is, or would be.
    #[must_use]
    pub fn blob_path(&self, digest: &Digest) -> PathBuf {
        self.uses.touch(digest);
        self.dir.join(BLOBS).join(digest.hex())
    }

    /// Where a blob is while it comes.
    #[must_use]
    pub fn part_path(&self, digest: &Digest) -> PathBuf {
        self.uses.touch(digest);
        self.dir.join(BLOBS).join(format!("{}.part", digest.hex()))
    }
}
