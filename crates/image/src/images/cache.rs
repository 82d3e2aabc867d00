//! The build cache: the resulting version of each step. A key is a hash from the build; each key is one file.

use std::path::PathBuf;

use super::{CACHE, ImageError, Images};
use crate::layers::Digest;
use crate::staging::write_durably;

impl Images {
    /// The version that a build step with this key gave before. It is not collected within the grace period from now.
    #[expect(clippy::disallowed_methods, reason = "the file time that says when an entry was used last")]
    #[must_use]
    pub fn cached(&self, key: &str) -> Option<String> {
        let path = self.cache_path(key);
        let version = std::fs::read_to_string(&path).ok()?;
        let digest = Digest::parse(version.trim()).ok()?;
        self.uses.touch(&digest);
        if !self.version_path(&digest).is_file() {
            return None;
        }
        // The file time is the time of the last use.
        if let Ok(file) = std::fs::File::open(&path) {
            let _ = file.set_modified(std::time::SystemTime::now());
        }
        Some(digest.to_string())
    }

    /// Stores the version that a build step with this key gave.
    pub fn remember(&self, key: &str, version: &str) -> Result<(), ImageError> {
        let digest = Digest::parse(version)?;
        if !self.version_path(&digest).is_file() {
            return Err(ImageError::NotFound { version: version.to_owned() });
        }
        Ok(write_durably(&self.cache_path(key), format!("{digest}\n").as_bytes())?)
    }

    fn cache_path(&self, key: &str) -> PathBuf {
        self.dir.join(CACHE).join(Digest::of(key.as_bytes()).hex())
    }
}
