//! Collects entries that are not needed any more.
//!
//! ```text
//! versions: not in `used`, not held, not touched lately, not worth keeping as build cache
//!   └─ merged folders and layers of no remaining version
//!        └─ records of blobs, then blobs of no layer; downloads that were not continued for a day
//! ```
//!
//! Each is renamed under the lock of `held` and deleted outside it, so a create never waits for the deletion of files.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};

use super::layer::named;
use super::version::ImageVersion;
use super::{BLOBS, CACHE, ImageError, Images, LAYERS, MERGED, PACKED, PackedLayer};
use crate::layers::Digest;
use crate::staging::{self, Trash};

/// LIMIT: a download that was not continued for this long is deleted.
const PART_AGE: Duration = Duration::from_secs(24 * 3600);

/// What a collection removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollectionReport {
    /// Unused versions.
    pub versions: u64,
    /// Layers of no version.
    pub layers: u64,
    /// Blobs of no layer, and abandoned downloads.
    pub blobs: u64,
    /// Bytes that were freed, as far as known.
    pub bytes: u64,
    /// Bytes of layers that only the build cache keeps.
    pub cached_bytes: u64,
    /// Versions that were kept because they were used a moment ago, or are being used.
    pub recent: u64,
}

impl CollectionReport {
    /// Whether anything was removed.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.versions == 0 && self.layers == 0 && self.blobs == 0
    }
}

/// Digests that are still needed.
#[derive(Default)]
struct Needed {
    layers: HashSet<Digest>,
    merged: HashSet<Digest>,
    bases: HashSet<Digest>,
}

impl Images {
    /// Removes versions that are not in `used`, not held, not within the grace period and not worth keeping as build
    /// cache (the newest of those up to `keep_cache_bytes`); then layers of no version, blobs of no layer and old
    /// downloads.
    pub fn collect(
        &self,
        used: &HashSet<String>,
        keep_cache_bytes: u64,
    ) -> Result<CollectionReport, ImageError> {
        let began = Instant::now();
        let used: HashSet<Digest> = used.iter().filter_map(|version| Digest::parse(version).ok()).collect();
        let mut collected = CollectionReport::default();
        self.collect_versions(&used, keep_cache_bytes, began, &mut collected)?;
        // Read again: a version that was added meanwhile has touched its layers after `began`, and one that could not
        // be removed still needs them.
        let needed = Needed::of(&self.all_versions()?);
        self.collect_folders(LAYERS, &needed.layers, began, &mut collected)?;
        self.collect_folders(MERGED, &needed.merged, began, &mut collected)?;
        let blobs = self.collect_notes(&needed, began)?;
        self.collect_blobs(&blobs, began, &mut collected)?;
        self.uses.forget_old(self.bounds.grace);
        Ok(collected)
    }

    fn collect_versions(
        &self,
        used: &HashSet<Digest>,
        keep_cache_bytes: u64,
        began: Instant,
        collected: &mut CollectionReport,
    ) -> Result<(), ImageError> {
        let all = self.all_versions()?;
        let is_used =
            |version: &&ImageVersion| Digest::parse(&version.digest).is_ok_and(|it| used.contains(&it));
        let mut kept: HashSet<Digest> =
            all.iter().filter(is_used).flat_map(|version| &version.layers).map(|layer| layer.0).collect();
        let (mut left, mut full) = (keep_cache_bytes, false);
        let cached = self.cached_versions(&all)?;
        let spare = all.iter().filter(|version| !is_used(version));
        let order = |version: &&ImageVersion| cached.iter().position(|digest| *digest == version.digest);
        let mut spare: Vec<&ImageVersion> = spare.collect();
        spare.sort_by_key(|version| order(version).unwrap_or(usize::MAX));
        for version in spare {
            let fresh = version.layers.iter().filter(|layer| !kept.contains(&layer.0));
            let cost: u64 =
                fresh.filter_map(|layer| self.layer(layer).ok()).map(|layer| layer.bytes.max(4096)).sum();
            if order(&version).is_some() && !full && cost <= left {
                left -= cost;
                collected.cached_bytes += cost;
                kept.extend(version.layers.iter().map(|layer| layer.0));
                continue;
            }
            // Versions that were used before one that did not fit are removed too.
            full |= order(&version).is_some();
            self.remove_version(version, began, collected)?;
        }
        self.forget_cached()
    }

    fn remove_version(
        &self,
        version: &ImageVersion,
        began: Instant,
        collected: &mut CollectionReport,
    ) -> Result<(), ImageError> {
        let Ok(digest) = Digest::parse(&version.digest) else { return Ok(()) };
        let path = self.version_path(&digest);
        let removed =
            self.uses.unless_needed(&digest, began, self.bounds.grace, || std::fs::remove_file(&path));
        match removed {
            None => {
                collected.recent += 1;
                Ok(())
            }
            Some(Ok(())) => {
                collected.versions += 1;
                Ok(())
            }
            Some(Err(cause)) if cause.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Some(Err(cause)) => Err(ImageError::io("remove", &path)(cause)),
        }
    }

    /// Versions in the build cache, the last used first.
    fn cached_versions(&self, all: &[ImageVersion]) -> Result<Vec<String>, ImageError> {
        let mut found: Vec<(SystemTime, String)> = Vec::new();
        for path in files_of(&self.dir.join(CACHE))? {
            let Ok(version) = std::fs::read_to_string(&path) else { continue };
            let at =
                std::fs::metadata(&path).and_then(|file| file.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
            found.push((at, version.trim().to_owned()));
        }
        let known: HashSet<&str> = all.iter().map(|version| version.digest.as_str()).collect();
        found.retain(|(_, version)| known.contains(version.as_str()));
        found.sort_by(|a, b| b.cmp(a));
        let mut seen = HashSet::new();
        found.retain(|(_, version)| seen.insert(version.clone()));
        Ok(found.into_iter().map(|(_, version)| version).collect())
    }

    /// Removes cache entries of versions that are gone.
    fn forget_cached(&self) -> Result<(), ImageError> {
        for path in files_of(&self.dir.join(CACHE))? {
            let version = std::fs::read_to_string(&path).unwrap_or_default();
            let is_here =
                Digest::parse(version.trim()).is_ok_and(|digest| self.version_path(&digest).is_file());
            if !is_here {
                // Another build may be writing the same key; then its version exists.
                let _ = std::fs::remove_file(&path);
            }
        }
        Ok(())
    }

    fn collect_folders(
        &self,
        below: &str,
        needed: &HashSet<Digest>,
        began: Instant,
        collected: &mut CollectionReport,
    ) -> Result<(), ImageError> {
        for (digest, path) in named_in(&self.dir.join(below))? {
            if needed.contains(&digest) {
                continue;
            }
            let bytes =
                if below == LAYERS { self.layer(&digest.into()).map_or(0, |layer| layer.bytes) } else { 0 };
            let trash = self
                .uses
                .unless_needed(&digest, began, self.bounds.grace, || Trash::take(&path))
                .transpose()?;
            if let Some(trash) = trash {
                trash.empty()?;
                collected.bytes += bytes;
                collected.layers += u64::from(below == LAYERS);
            }
        }
        Ok(())
    }

    /// Removes records of blobs whose layer is gone; returns the blobs that are still needed.
    fn collect_notes(&self, needed: &Needed, began: Instant) -> Result<HashSet<Digest>, ImageError> {
        let mut blobs = HashSet::new();
        for path in files_of(&self.dir.join(PACKED))? {
            let Some(key) = path.file_stem().and_then(named) else { continue };
            let is_needed = needed.layers.contains(&key)
                || needed.bases.contains(&key)
                || self.layer_folder(&key.into()).is_dir();
            let remove = || std::fs::remove_file(&path);
            if !is_needed && self.uses.unless_needed(&key, began, self.bounds.grace, remove).is_some() {
                continue;
            }
            blobs.extend(PackedLayer::read(&path).map(|noted| noted.digest));
        }
        Ok(blobs)
    }

    fn collect_blobs(
        &self,
        needed: &HashSet<Digest>,
        began: Instant,
        collected: &mut CollectionReport,
    ) -> Result<(), ImageError> {
        for path in files_of(&self.dir.join(BLOBS))? {
            let Some(digest) = path.file_stem().and_then(named) else { continue };
            let Ok(file) = std::fs::metadata(&path) else { continue };
            let is_part = path.extension().is_some();
            let age = file.modified().ok().and_then(|at| at.elapsed().ok()).unwrap_or_default();
            let is_needed =
                if is_part { age < PART_AGE || is_locked(&path) } else { needed.contains(&digest) };
            if is_needed {
                continue;
            }
            let remove = || std::fs::remove_file(&path);
            if let Some(Ok(())) = self.uses.unless_needed(&digest, began, self.bounds.grace, remove) {
                collected.blobs += 1;
                collected.bytes += file.len();
            }
        }
        staging::sweep(&self.dir.join(BLOBS))?;
        Ok(())
    }
}

impl Needed {
    fn of(versions: &[ImageVersion]) -> Self {
        let mut needed = Self::default();
        for version in versions {
            needed.layers.extend(version.layers.iter().map(|layer| layer.0));
            let merged =
                version.found.stack.iter().filter_map(|name| name.strip_prefix(MERGED)?.strip_prefix('/'));
            needed.merged.extend(merged.filter_map(|hex| Digest::parse(hex).ok()));
            needed.bases.extend(version.base.as_ref().map(super::pack::base_key));
        }
        needed
    }
}

/// Whether a download is being continued at this moment.
fn is_locked(path: &Path) -> bool {
    std::fs::File::open(path).is_ok_and(|file| file.try_lock().is_err())
}

fn files_of(folder: &Path) -> Result<Vec<PathBuf>, ImageError> {
    let list = std::fs::read_dir(folder).map_err(ImageError::io("list", folder))?;
    let files =
        list.filter_map(Result::ok).filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
    Ok(files.map(|entry| entry.path()).collect())
}

fn named_in(folder: &Path) -> Result<Vec<(Digest, PathBuf)>, ImageError> {
    let list = std::fs::read_dir(folder).map_err(ImageError::io("list", folder))?;
    Ok(list
        .filter_map(Result::ok)
        .filter_map(|entry| Some((named(&entry.file_name())?, entry.path())))
        .collect())
}
