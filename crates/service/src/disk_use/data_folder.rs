//! The parts of the data folder, by the bytes that they take on the disk.

use std::collections::{BTreeMap, HashSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::DiskPart;

/// What an entry of the data folder is.
fn part_of(path: &Path) -> &'static str {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    match name.as_ref() {
        "pool.btrfs" | "pool" => "pool",
        "templates" => "templates",
        "images" => "layers of images",
        "builds" => "builds",
        "uploads" => "uploads",
        "archive" => "archives",
        "egress" => "egress logs",
        "headroom" => "headroom",
        "agent" => "agents",
        "providers" => "providers",
        name if name.starts_with("sandbox.db") => "database",
        name if name.starts_with("server.log") => "server log",
        _ => "other",
    }
}

/// The parts of the data folder and the cache of downloads, the largest first. What is removed meanwhile is left out.
pub(crate) fn parts(data: &Path) -> Vec<DiskPart> {
    let mut bytes: BTreeMap<&'static str, u64> = BTreeMap::new();
    for entry in std::fs::read_dir(data).into_iter().flatten().flatten() {
        *bytes.entry(part_of(&entry.path())).or_insert(0) += folder_bytes(&entry.path());
    }
    let cache = atoll_image::default_cache_dir();
    if !cache.starts_with(data) {
        bytes.insert("cache of downloads", folder_bytes(&cache));
    }
    let mut parts: Vec<DiskPart> = bytes.into_iter().map(|(name, bytes)| DiskPart { name, bytes }).collect();
    parts.sort_by_key(|part| std::cmp::Reverse(part.bytes));
    parts
}

/// Bytes on the disk of everything below a path, each file once, without other file systems that are mounted there.
pub(crate) fn folder_bytes(path: &Path) -> u64 {
    let parent = path.parent().and_then(|parent| parent.symlink_metadata().ok());
    let Some(device) = parent.map(|parent| parent.dev()) else { return 0 };
    let (mut left, mut linked, mut bytes) = (vec![path.to_path_buf()], HashSet::new(), 0);
    while let Some(path) = left.pop() {
        let Ok(about) = path.symlink_metadata() else { continue };
        if about.dev() != device || (about.nlink() > 1 && about.is_file() && !linked.insert(about.ino())) {
            continue;
        }
        bytes += about.blocks() * 512;
        if about.is_dir() {
            left.extend(children(&path));
        }
    }
    bytes
}

fn children(folder: &Path) -> impl Iterator<Item = PathBuf> {
    std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_on_the_disk_and_a_file_with_two_names_counts_once() {
        let data = tempfile::tempdir().unwrap();
        std::fs::create_dir(data.path().join("archive")).unwrap();
        std::fs::write(data.path().join("archive/one"), vec![1; 100_000]).unwrap();
        std::fs::hard_link(data.path().join("archive/one"), data.path().join("archive/two")).unwrap();
        std::fs::File::create(data.path().join("sandbox.db")).unwrap().set_len(1 << 30).unwrap();
        let parts = parts(data.path());
        let of = |name: &str| parts.iter().find(|part| part.name == name).unwrap().bytes;
        assert!((100_000..200_000).contains(&of("archives")), "{parts:?}");
        assert_eq!(of("database"), 0, "a hole takes no space");
    }
}
