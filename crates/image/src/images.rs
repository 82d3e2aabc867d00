//! Images: the content-addressed store of layers, blobs and versions for templates of tenants.
//!
//! ```text
//! DATA/images/
//!   blobs/sha256/<hex>          compressed layers as received, `<hex>.part` while they are downloaded
//!   layers/<hex>/               fs/ (the folder that the overlay stacks), layer.json (written last)
//!   merged/<hex>/               the same form, made of several layers by hard links
//!   versions/<hex>.json         the parts of a version
//!   packed/<hex>.json           the blob that a layer without one was packed to
//!   cache/<hex>                 a build step's key, and the resulting version
//!   */.build-*, */.trash-*      being made or removed; removed at open unless locked
//! ```
//!
//! Every entry appears complete or not at all. It does not change after that, so readers need no lock. Only
//! [`Images::collect`] removes entries, and it spares those that are held, in use, or young.
//!
//! The caller knows which tenant owns a version, and which name and tag point to it.

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
mod sizes;
mod stack;
mod template;
mod version;
mod version_files;
mod view;

pub use collect::CollectionReport;
pub use error::ImageError;
pub use export::ExportAs;
pub use import::{ImportAs, Imported};
pub use in_use::{VersionLease, WorkGuard};
pub use layer::StoredLayer;
pub use pack::{Packed, PackedLayer};
pub use settings::start_settings;
pub use sizes::VersionSize;
pub use version::{DetectedSettings, ImageVersion, NewVersion};
pub use version_files::VersionFiles;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use atoll_disk::{Purpose, Reserve, SpaceWriter};

use crate::layers::{Digest, LayerError};
use crate::staging;
use in_use::UseTracker;

/// Limits of the store.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// LIMIT: bytes of one layer once unpacked.
    pub layer_bytes: u64,
    /// LIMIT: bytes of all layers of an image once unpacked.
    pub image_bytes: u64,
    /// LIMIT: entries of one layer.
    pub entries: u64,
    /// The disk space that stays free.
    pub disk: Arc<Reserve>,
    /// LIMIT: entries younger than this are not collected.
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
    /// The folder of the built-in templates.
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
/// The folder in which archives are unpacked that may be images.
const IMPORTS: &str = "imports";

impl Images {
    /// Opens the folder, makes it when missing, and removes the leftovers of interrupted operations. Partial downloads
    /// stay.
    pub fn open(dir: impl Into<PathBuf>, bounds: Bounds) -> Result<Arc<Self>, ImageError> {
        let dir = dir.into();
        let mut swept = 0;
        for name in [LAYERS, MERGED, VERSIONS, PACKED, CACHE, BLOBS, IMPORTS] {
            let folder = dir.join(name);
            std::fs::create_dir_all(&folder).map_err(ImageError::io("create", &folder))?;
            swept += staging::sweep(&folder)?;
        }
        // Files inside have canonical ids: root's setuid programs are real ones on the host. Only root may enter the
        // folder.
        std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o700))
            .map_err(ImageError::io("close", &dir))?;
        if swept > 0 {
            tracing::info!(swept, "unfinished layers and blobs removed");
        }
        resolver_files::make(&dir)?;
        let (uses, flights) = (UseTracker::default(), layer::UnpacksInFlight::default());
        Ok(Arc::new(Self { dir, bounds, templates: OnceLock::new(), uses, flights }))
    }

    /// Sets the folder of the built-in templates, for versions that are based on one.
    pub(crate) fn stand_on(&self, templates: &Path) {
        // There is one catalog per server; a second one would use the same folder.
        let _ = self.templates.set(templates.to_owned());
    }

    /// The reserve of the disk, which all writers of a server share.
    #[must_use]
    pub fn disk(&self) -> &Arc<Reserve> {
        &self.bounds.disk
    }

    /// Checks that so many more bytes leave the reserve of the disk untouched.
    pub fn room_for(&self, bytes: u64) -> Result<(), LayerError> {
        let asked = self.bounds.disk.admit(&self.dir, Purpose::Data, bytes);
        asked.map_err(LayerError::io("measure the disk of", &self.dir))
    }

    /// Checks the free space during a long write.
    pub(crate) fn space(&self) -> Result<SpaceWriter, LayerError> {
        let space = self.bounds.disk.writer(&self.dir, Purpose::Data);
        space.map_err(LayerError::io("measure the disk of", &self.dir))
    }

    /// The path of a blob, whether it exists or not.
    #[must_use]
    pub fn blob_path(&self, digest: &Digest) -> PathBuf {
        self.uses.touch(digest);
        self.dir.join(BLOBS).join(digest.hex())
    }

    /// The path of a blob during its download.
    #[must_use]
    pub fn part_path(&self, digest: &Digest) -> PathBuf {
        self.uses.touch(digest);
        self.dir.join(BLOBS).join(format!("{}.part", digest.hex()))
    }
}
