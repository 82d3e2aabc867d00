//! What is in the pool, and how many bytes of it.

use std::fs;
use std::io;
use std::path::Path;

use atoll_disk::free_bytes;
use rustix::fs::CWD;

use crate::space::{is_waiting, total_bytes};
use crate::tenants::gone_is_none;
use crate::walk::{disk_bytes, open_folder};
use crate::{Layers, StorageKind};

/// A kind of files in the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolEntryKind {
    /// The layer of a sandbox.
    Layer,
    /// The layer of an instance that waits to be claimed.
    Waiting,
    /// The memory of a paused sandbox.
    Checkpoint,
    /// A snapshot, its memory included.
    Snapshot,
    /// A volume.
    Volume,
}

/// One thing in the pool. Bytes that several things share count for the one that wrote them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolEntry {
    /// Its kind.
    pub kind: PoolEntryKind,
    /// The id of the sandbox, snapshot or volume.
    pub name: String,
    /// Its own bytes.
    pub bytes: u64,
}

impl Layers {
    /// The bytes that the pool takes from the host and those of them that are free; `None` if it is not a file of its own.
    pub fn pool_bytes(&self) -> io::Result<Option<(u64, u64)>> {
        match &self.kind {
            StorageKind::Btrfs { pool, .. } if pool.grows_in().is_some() => {
                Ok(Some((total_bytes(&self.at)? + pool.unused_bytes()?, free_bytes(&self.at)?)))
            }
            _ => Ok(None),
        }
    }

    /// Everything in the pool that has an owner. What is removed meanwhile is left out. Walks over memory on disk, and over all
    /// files where there is no btrfs: slow.
    pub fn inventory(&self) -> io::Result<Vec<PoolEntry>> {
        let mut found = Vec::new();
        let mut add = |kind, name: String, bytes: io::Result<u64>| -> io::Result<()> {
            if let (false, Some(bytes)) = (name.starts_with('.'), gone_is_none(bytes)?) {
                found.push(PoolEntry { kind, name, bytes });
            }
            Ok(())
        };
        for name in self.list()? {
            let kind = if is_waiting(&name) { PoolEntryKind::Waiting } else { PoolEntryKind::Layer };
            let bytes = self.own_bytes(&self.path(&name));
            add(kind, name, bytes)?;
        }
        for name in names(&self.volumes())? {
            let bytes = self.own_bytes(&self.volumes().join(&name));
            add(PoolEntryKind::Volume, name, bytes)?;
        }
        for name in names(&self.at.join("checkpoints"))? {
            let bytes = walked(&self.at.join("checkpoints").join(&name));
            add(PoolEntryKind::Checkpoint, name, bytes)?;
        }
        for name in names(&self.at.join("snapshots"))? {
            let folder = self.at.join("snapshots").join(&name);
            let files = gone_is_none(self.own_bytes(&folder.join("files")))?.unwrap_or(0);
            let memory = gone_is_none(walked(&folder.join("memory")))?.unwrap_or(0);
            add(PoolEntryKind::Snapshot, name, Ok(files + memory))?;
        }
        Ok(found)
    }

    /// Bytes that were written in a subvolume, and not in what it was copied from.
    fn own_bytes(&self, path: &Path) -> io::Result<u64> {
        match &self.kind {
            StorageKind::Btrfs { quota, .. } => quota.used_bytes(path),
            StorageKind::Folders => walked(path),
        }
    }
}

fn walked(folder: &Path) -> io::Result<u64> {
    open_folder(CWD, folder).and_then(disk_bytes)
}

fn names(folder: &Path) -> io::Result<Vec<String>> {
    let Some(entries) = gone_is_none(fs::read_dir(folder))? else { return Ok(Vec::new()) };
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect())
}
