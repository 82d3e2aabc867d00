//! Versions: a list of layers with start settings, named by its digest.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use atoll_model::StartSettings;
use oci_spec::image::ImageConfiguration;
use serde::{Deserialize, Serialize};

use super::{ImageError, Images, VERSIONS};
use crate::layers::{DiffId, Digest};
use crate::staging::write_durably;

/// The parts of a new version.
#[derive(Debug, Clone, Default)]
pub struct NewVersion {
    /// A built-in template whose files are below all layers: its name and its digest.
    pub base: Option<(String, String)>,
    /// The bottom one first. All of them exist already.
    pub layers: Vec<DiffId>,
    /// The config of the image; its list of layers is replaced.
    pub config: ImageConfiguration,
    /// The start settings; [`crate::images::start_settings`] reads them from a config.
    pub settings: StartSettings,
}

/// A version in the store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ImageVersion {
    /// `sha256:…` of base, layers, config and settings.
    pub digest: String,
    /// A built-in template below all layers: its name and its digest.
    pub base: Option<(String, String)>,
    /// The bottom one first.
    pub layers: Vec<DiffId>,
    /// The config of the image.
    pub config: ImageConfiguration,
    /// The start settings.
    pub settings: StartSettings,
    /// The settings that were found in its files when it was made.
    pub found: DetectedSettings,
    /// Bytes of its files: all layers, without the base.
    pub bytes: u64,
    /// Entries of all layers.
    pub entries: u64,
    /// Notes for the user: what was skipped or changed, and how often.
    pub notes: BTreeMap<String, u64>,
    /// When it was first made.
    pub created_at: jiff::Timestamp,
}

/// Settings that are derived from the files of a version.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DetectedSettings {
    /// The user that runs commands; a name if the files contain one.
    pub user: String,
    /// The home of that user.
    pub home: String,
    /// Whether a program in the sandbox may become root.
    pub sudo: bool,
    /// The folders to stack, the top one first, relative to the store.
    pub stack: Vec<String>,
}

/// LIMIT: layers of one image. Docker's limit is 127.
const LAYERS_MAX: usize = 500;
/// LIMIT: bytes of a record that are read; a config with its history has a few thousand.
const RECORD_MAX: u64 = 16 << 20;

impl Images {
    /// Makes a version; returns its digest. The same input gives the same digest.
    pub fn put_version(&self, new: NewVersion) -> Result<String, ImageError> {
        let number = self.uses.begin();
        let put = self.put(new);
        self.uses.end(number);
        put
    }

    #[expect(clippy::disallowed_methods, reason = "the creation time that a version shows")]
    fn put(&self, mut new: NewVersion) -> Result<String, ImageError> {
        if new.layers.len() > LAYERS_MAX {
            return Err(ImageError::TooBig { what: "layers", limit: LAYERS_MAX as u64 });
        }
        let diff_ids = new.layers.iter().map(DiffId::to_string).collect();
        new.config.rootfs_mut().set_diff_ids(diff_ids);
        let digest = digest_of(&new);
        self.uses.touch_all(new.layers.iter().map(|layer| &layer.0).chain([&digest]));
        if self.version_path(&digest).is_file() && self.template(&digest.to_string()).is_ok() {
            return Ok(digest.to_string());
        }
        let layers = new.layers.iter().map(|id| self.layer(id)).collect::<Result<Vec<_>, _>>()?;
        let bytes: u64 = layers.iter().map(|layer| layer.bytes).sum();
        if bytes > self.bounds.image_bytes {
            return Err(ImageError::TooBig { what: "bytes", limit: self.bounds.image_bytes });
        }
        let mut notes = BTreeMap::new();
        for (note, times) in layers.iter().flat_map(|layer| &layer.notes) {
            *notes.entry(note.clone()).or_default() += times;
        }
        let found = self.found(&new, &layers)?;
        let version = ImageVersion {
            digest: digest.to_string(),
            base: new.base,
            layers: new.layers,
            config: new.config,
            settings: new.settings,
            found,
            bytes,
            entries: layers.iter().map(|layer| layer.entries).sum(),
            notes,
            created_at: jiff::Timestamp::now(),
        };
        let record =
            serde_json::to_vec(&version).expect("a version holds only strings, numbers, lists and maps");
        write_durably(&self.version_path(&digest), &record)?;
        // From here on the version keeps them; a collection that began before it was written must notice that.
        let merged =
            version.found.stack.iter().filter_map(|name| Digest::parse(name.rsplit('/').next()?).ok());
        let merged: Vec<Digest> = merged.collect();
        self.uses.touch_all(version.layers.iter().map(|layer| &layer.0).chain(&merged).chain([&digest]));
        Ok(version.digest)
    }

    /// A version by its digest (`sha256:` is optional).
    pub fn version(&self, version: &str) -> Result<ImageVersion, ImageError> {
        read_record(&self.version_path(&Digest::parse(version)?), version)
    }

    pub(super) fn version_path(&self, digest: &Digest) -> PathBuf {
        self.dir.join(VERSIONS).join(format!("{}.json", digest.hex()))
    }
}

/// Reads the record of a version.
pub(super) fn read_record(path: &Path, version: &str) -> Result<ImageVersion, ImageError> {
    let digest = Digest::parse(version)?;
    let bytes = match std::fs::File::open(path) {
        Ok(file) => {
            let mut bytes = Vec::new();
            file.take(RECORD_MAX).read_to_end(&mut bytes).map_err(ImageError::io("read", path))?;
            bytes
        }
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {
            return Err(ImageError::NotFound { version: version.to_owned() });
        }
        Err(cause) => return Err(ImageError::io("read", path)(cause)),
    };
    let damaged = |why: String| ImageError::Damaged { what: format!("template version {digest}"), why };
    let read: ImageVersion = serde_json::from_slice(&bytes).map_err(|cause| damaged(cause.to_string()))?;
    if read.digest != digest.to_string() {
        return Err(damaged("its record is of another version".into()));
    }
    Ok(read)
}

/// Hashes everything that defines a version in one canonical form, with sorted keys.
fn digest_of(new: &NewVersion) -> Digest {
    let content = serde_json::json!({
        "base": new.base, "layers": new.layers, "config": new.config, "settings": new.settings,
    });
    Digest::of(sorted(content).to_string().as_bytes())
}

/// The same value with the keys of every map sorted, because some maps are unordered.
pub(super) fn sorted(value: serde_json::Value) -> serde_json::Value {
    use serde_json::Value;
    match value {
        Value::Object(map) => {
            let mut pairs: Vec<_> = map.into_iter().map(|(key, value)| (key, sorted(value))).collect();
            pairs.sort_by(|a, b| a.0.cmp(&b.0));
            Value::Object(pairs.into_iter().collect())
        }
        Value::Array(values) => Value::Array(values.into_iter().map(sorted).collect()),
        plain => plain,
    }
}
