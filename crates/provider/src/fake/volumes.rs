//! The volumes of the fake: files by path behind a lock, shared by every instance that mounts them.
//!
//! A folder is a path that ends in `/`, or the beginning of another path. Owners, links and times are not simulated.

use std::io;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use atoll_model::VolumeId;
use tokio::io::AsyncReadExt;

use super::FakeFiles;
use super::world::World;
use crate::{
    InstanceMount, MountSource, Packed, ProviderError, VolumeEntry, VolumeEntryKind, VolumeFiles, VolumeOwner,
};

const MIB: u64 = 1 << 20;

#[derive(Default, Clone)]
pub(super) struct FakeVolume {
    pub(super) files: Arc<Mutex<FakeFiles>>,
    pub(super) size_mib: Option<u32>,
}

impl FakeVolume {
    pub(super) fn bytes(&self) -> u64 {
        self.files.lock().unwrap().values().map(|content| content.len() as u64).sum()
    }
}

/// A volume as mounted in an instance.
#[derive(Clone)]
pub(super) struct MountedVolume {
    at: String,
    /// The folder of the volume.
    folder: String,
    files: Arc<Mutex<FakeFiles>>,
    pub(super) read_only: bool,
}

impl MountedVolume {
    /// The path in the volume for the path `path` in an instance.
    pub(super) fn inside(&self, path: &str) -> Option<(Arc<Mutex<FakeFiles>>, String)> {
        let rest = path.strip_prefix(self.at.as_str()).filter(|rest| rest.starts_with('/'))?;
        Some((Arc::clone(&self.files), format!("{}{rest}", self.folder)))
    }
}

fn no_volume(volume: &VolumeId) -> ProviderError {
    ProviderError::NoVolume { volume: volume.clone() }
}

impl World {
    pub(super) fn seen(&self, mounts: &[InstanceMount]) -> Result<Vec<MountedVolume>, ProviderError> {
        let mut seen = Vec::new();
        for mount in mounts {
            let (files, folder) = match &mount.source {
                MountSource::Volume { volume, sub_path } => {
                    let found = self.volumes.get(volume).ok_or_else(|| no_volume(volume))?;
                    let folder = sub_path.as_ref().map(|path| format!("/{path}")).unwrap_or_default();
                    (Arc::clone(&found.files), folder)
                }
                // The host's folders are not used here: each instance has its own empty one.
                MountSource::Folder { .. } | MountSource::Memory { .. } => (Arc::default(), String::new()),
            };
            seen.push(MountedVolume { at: mount.path.clone(), folder, files, read_only: mount.read_only });
        }
        Ok(seen)
    }

    pub(super) fn create_volume(&mut self, volume: &VolumeId, size_mib: Option<u32>) {
        self.volumes.entry(volume.clone()).or_default().size_mib = size_mib;
    }

    pub(super) fn copy_volume(
        &mut self,
        from: &VolumeId,
        to: &VolumeId,
        size_mib: Option<u32>,
    ) -> Result<(), ProviderError> {
        if self.volumes.contains_key(to) {
            return Ok(());
        }
        let source = self.volumes.get(from).ok_or_else(|| no_volume(from))?;
        fits(source, size_mib)?;
        let files = source.files.lock().unwrap().clone();
        self.volumes.insert(to.clone(), FakeVolume { files: Arc::new(Mutex::new(files)), size_mib });
        Ok(())
    }

    pub(super) fn resize_volume(&mut self, volume: &VolumeId, size_mib: u32) -> Result<(), ProviderError> {
        let found = self.volumes.get_mut(volume).ok_or_else(|| no_volume(volume))?;
        fits(found, Some(size_mib))?;
        found.size_mib = Some(size_mib);
        Ok(())
    }

    pub(super) fn volume(&self, volume: &VolumeId) -> Result<FakeVolume, ProviderError> {
        self.volumes.get(volume).cloned().ok_or_else(|| no_volume(volume))
    }
}

fn fits(volume: &FakeVolume, size_mib: Option<u32>) -> Result<(), ProviderError> {
    let (wanted_mib, used_mib) = (u64::from(size_mib.unwrap_or(u32::MAX)), volume.bytes().div_ceil(MIB));
    if used_mib > wanted_mib {
        return Err(ProviderError::BelowUse { what: "size_mib", wanted_mib, used_mib });
    }
    Ok(())
}

fn clean(path: &str) -> String {
    format!("/{}", path.trim_matches('/'))
}

fn is_folder(files: &FakeFiles, path: &str) -> bool {
    let below = format!("{}/", path.trim_end_matches('/'));
    path == "/" || files.keys().any(|key| key.starts_with(&below))
}

fn entry(files: &FakeFiles, path: &str) -> io::Result<VolumeEntry> {
    let path = clean(path);
    let (kind, size) = match files.get(&path) {
        Some(content) => (VolumeEntryKind::File, content.len() as u64),
        None if is_folder(files, &path) => (VolumeEntryKind::Folder, 0),
        None => return Err(io::ErrorKind::NotFound.into()),
    };
    let mode = if kind == VolumeEntryKind::File { 0o644 } else { 0o755 };
    Ok(VolumeEntry {
        path,
        kind,
        size,
        mode,
        uid: 0,
        gid: 0,
        accessed_ms: 0,
        modified_ms: 0,
        changed_ms: 0,
        target: None,
    })
}

fn parent_is_there(files: &FakeFiles, path: &str) -> io::Result<()> {
    let above = path.rsplit_once('/').map_or("/", |(above, _)| if above.is_empty() { "/" } else { above });
    if is_folder(files, above) { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
}

/// Parent folders stay when their content is removed.
fn make_parents(files: &mut FakeFiles, path: &str) {
    for (at, _) in path.match_indices('/').skip(1) {
        files.insert(path[..=at].to_owned(), Vec::new());
    }
}

#[async_trait]
impl VolumeFiles for FakeVolume {
    async fn stat(&self, path: &str) -> io::Result<VolumeEntry> {
        entry(&self.files.lock().unwrap(), path)
    }

    async fn list(&self, path: &str, depth: u32, most: usize) -> io::Result<Vec<VolumeEntry>> {
        let files = self.files.lock().unwrap();
        let path = clean(path);
        if entry(&files, &path)?.kind != VolumeEntryKind::Folder {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        let below = format!("{}/", path.trim_end_matches('/'));
        let mut seen = std::collections::BTreeSet::new();
        for rest in files.keys().filter_map(|key| key.strip_prefix(&below)) {
            let mut so_far = below.trim_end_matches('/').to_owned();
            for name in rest.split('/').filter(|name| !name.is_empty()).take(depth.max(1) as usize) {
                so_far = format!("{so_far}/{name}");
                seen.insert(so_far.clone());
            }
        }
        seen.iter().take(most).map(|path| entry(&files, path)).collect()
    }

    async fn read(&self, path: &str) -> io::Result<(VolumeEntry, Packed)> {
        let files = self.files.lock().unwrap();
        let entry = entry(&files, path)?;
        if entry.kind == VolumeEntryKind::Folder {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        let content = files.get(&entry.path).cloned().unwrap_or_default();
        Ok((entry, Box::new(io::Cursor::new(content))))
    }

    async fn write(
        &self,
        path: &str,
        _owner: VolumeOwner,
        parents: bool,
        mut bytes: Packed,
    ) -> io::Result<VolumeEntry> {
        let mut content = Vec::new();
        bytes.read_to_end(&mut content).await?;
        let path = clean(path);
        if self.size_mib.is_some_and(|size| self.bytes() + content.len() as u64 > u64::from(size) * MIB) {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let mut files = self.files.lock().unwrap();
        if is_folder(&files, &path) {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        if !parents {
            parent_is_there(&files, &path)?;
        }
        make_parents(&mut files, &path);
        files.insert(path.clone(), content);
        entry(&files, &path)
    }

    async fn make_folder(&self, path: &str, _owner: VolumeOwner, parents: bool) -> io::Result<VolumeEntry> {
        let mut files = self.files.lock().unwrap();
        let path = clean(path);
        if files.contains_key(&path) || (is_folder(&files, &path) && !parents) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        if !parents {
            parent_is_there(&files, &path)?;
        }
        make_parents(&mut files, &path);
        files.insert(format!("{path}/"), Vec::new());
        entry(&files, &path)
    }

    async fn change(&self, path: &str, _owner: VolumeOwner) -> io::Result<VolumeEntry> {
        entry(&self.files.lock().unwrap(), path)
    }

    async fn rename(&self, from: &str, to: &str) -> io::Result<VolumeEntry> {
        let mut files = self.files.lock().unwrap();
        let (from, to) = (clean(from), clean(to));
        entry(&files, &from)?;
        parent_is_there(&files, &to)?;
        let moved: Vec<String> = files
            .keys()
            .filter(|key| **key == from || key.starts_with(&format!("{from}/")))
            .cloned()
            .collect();
        for key in moved {
            let content = files.remove(&key).unwrap_or_default();
            files.insert(format!("{to}{}", &key[from.len()..]), content);
        }
        entry(&files, &to)
    }

    async fn remove(&self, path: &str) -> io::Result<()> {
        let mut files = self.files.lock().unwrap();
        let path = clean(path);
        entry(&files, &path)?;
        files.retain(|key, _| *key != path && !key.starts_with(&format!("{path}/")));
        Ok(())
    }
}
