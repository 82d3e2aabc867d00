//! Which files of the store some versions need: for a backup beside a server that uses the store.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::version::read_record;
use super::{ImageError, LAYERS, MERGED, VERSIONS};
use crate::layers::Digest;

/// The parts of the store that versions need.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct VersionFiles {
    /// Entries by the folder that they are in.
    pub entries: BTreeMap<String, BTreeSet<String>>,
    /// The names of the built-in templates below them.
    pub bases: BTreeSet<String>,
    /// Versions whose files are not in this store.
    pub missing: Vec<String>,
}

impl VersionFiles {
    /// Reads the records of versions in the store at `dir`. Nothing is changed.
    pub fn of(dir: &Path, versions: &BTreeSet<String>) -> Result<Self, ImageError> {
        let mut files = Self::default();
        for name in versions {
            let digest = Digest::parse(name)?;
            let record = format!("{}.json", digest.hex());
            let version = match read_record(&dir.join(VERSIONS).join(&record), name) {
                Err(ImageError::NotFound { version }) => {
                    files.missing.push(version);
                    continue;
                }
                read => read?,
            };
            files.add(VERSIONS, record);
            version.layers.iter().for_each(|layer| files.add(LAYERS, layer.hex()));
            for folder in &version.found.stack {
                if let Some((parent @ (LAYERS | MERGED), name)) = folder.split_once('/') {
                    files.add(parent, name.to_owned());
                }
            }
            files.bases.extend(version.base.map(|(name, _)| name));
        }
        Ok(files)
    }

    fn add(&mut self, folder: &str, name: String) {
        self.entries.entry(folder.to_owned()).or_default().insert(name);
    }
}
