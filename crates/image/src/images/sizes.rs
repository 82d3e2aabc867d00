//! How many bytes the layers of each version take, and which of them it shares with others.

use std::collections::{HashMap, HashSet};

use super::{ImageError, Images};

/// The size of one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionSize {
    /// The version.
    pub digest: String,
    /// Bytes of layers that no other version has.
    pub own_bytes: u64,
    /// Bytes of layers that other versions have too.
    pub shared_bytes: u64,
}

impl Images {
    /// The size of every version.
    pub fn version_sizes(&self) -> Result<Vec<VersionSize>, ImageError> {
        let all = self.all_versions()?;
        let mut users = HashMap::new();
        for version in &all {
            let layers: HashSet<_> = version.layers.iter().map(|layer| layer.0).collect();
            for layer in layers {
                *users.entry(layer).or_insert(0_u32) += 1;
            }
        }
        let sizes = all.iter().map(|version| {
            let mut size = VersionSize { digest: version.digest.clone(), own_bytes: 0, shared_bytes: 0 };
            let mut seen = HashSet::new();
            for layer in version.layers.iter().filter(|layer| seen.insert(layer.0)) {
                let bytes = self.layer(layer).map_or(0, |stored| stored.bytes);
                match users.get(&layer.0) {
                    Some(1) | None => size.own_bytes += bytes,
                    Some(_) => size.shared_bytes += bytes,
                }
            }
            size
        });
        Ok(sizes.collect())
    }

    /// Versions that are not in `used`, and the bytes of the layers that only they have.
    pub fn unused_versions(&self, used: &HashSet<String>) -> Result<(u64, u64), ImageError> {
        let all = self.all_versions()?;
        let is_used = |digest: &str| used.contains(digest);
        let needed: HashSet<_> = all
            .iter()
            .filter(|version| is_used(&version.digest))
            .flat_map(|version| version.layers.iter().map(|layer| layer.0))
            .collect();
        let (mut count, mut bytes, mut seen) = (0, 0, HashSet::new());
        for version in all.iter().filter(|version| !is_used(&version.digest)) {
            count += 1;
            for layer in &version.layers {
                if !needed.contains(&layer.0) && seen.insert(layer.0) {
                    bytes += self.layer(layer).map_or(0, |stored| stored.bytes);
                }
            }
        }
        Ok((count, bytes))
    }
}
