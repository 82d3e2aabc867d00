//! Volumes: files that outlive sandboxes. Each volume is a subvolume of the pool with a limit of its own.
//!
//! ```text
//! DATA/pool/volumes/<volume>/files/    the files that sandboxes see; ids are canonical
//! DATA/pool/volumes/.new-<volume>-…/   incomplete, or about to be removed
//! ```
//!
//! A volume has its name only when it is complete. The kernel makes a copy of a volume at one moment, and its inherited
//! bytes count as they do for layers (see [`super::snapshots`]). On plain folders there is no limit, and all files are
//! copied.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use rustix::fs::CWD;

use crate::snapshots::{copy_folders, inherited_at, own_limit_at, passing_name};
use crate::walk::{self, open_folder};
use crate::{CopyError, Layers, StorageKind, btrfs, clear};

/// The part of a volume that sandboxes see.
pub(crate) const FILES: &str = "files";
const NEXT: &str = ".new-";
/// LIMIT: the space that a removal from a full volume may need temporarily.
const ROOM_TO_REMOVE: u64 = 16 << 20;
/// LIMIT: the space that the pool takes from the host for a volume before any data is written. Most volumes are never
/// full, and the pool grows faster than sandboxes write.
pub(crate) const HEADROOM_MOST: u64 = 4 << 30;
/// Held while the limit of a volume is raised for a removal.
static RAISED: Mutex<()> = Mutex::new(());

impl Layers {
    pub(crate) fn volumes(&self) -> PathBuf {
        self.at.join("volumes")
    }

    fn volume(&self, volume: &str) -> PathBuf {
        self.volumes().join(volume)
    }

    /// The folder that sandboxes see; `None` where there is no such volume.
    pub fn volume_folder(&self, volume: &str) -> io::Result<Option<OwnedFd>> {
        match open_folder(CWD, self.volume(volume).join(FILES)) {
            Ok(folder) => Ok(Some(folder)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes an empty volume, or sets the limit of the one that is there.
    pub fn create_volume(&self, volume: &str, limit_bytes: Option<u64>) -> io::Result<()> {
        if self.volume(volume).exists() {
            return self.limit_volume(volume, limit_bytes);
        }
        let next = passing_name(NEXT, volume)?;
        let path = self.volume(&next);
        match &self.kind {
            StorageKind::Btrfs { .. } => btrfs::create_subvolume(&self.volumes(), &next)?,
            StorageKind::Folders => fs::create_dir(&path)?,
        }
        self.publish_volume(&next, volume, || {
            let files = path.join(FILES);
            fs::create_dir(&files)?;
            // Every user in a sandbox that mounts the volume may write.
            fs::set_permissions(&files, PermissionsExt::from_mode(0o777))?;
            Ok(self.limit_volume(&next, limit_bytes)?)
        })
        .map_err(plain)
    }

    /// Makes a volume with the files of another. One that is there already is left as it is.
    pub fn copy_volume(&self, from: &str, to: &str, limit_bytes: Option<u64>) -> Result<(), CopyError> {
        if self.volume(to).exists() {
            return Ok(());
        }
        if !self.volume(from).exists() {
            return Err(io::Error::from(io::ErrorKind::NotFound).into());
        }
        let next = passing_name(NEXT, to)?;
        let path = self.volume(&next);
        match &self.kind {
            StorageKind::Btrfs { quota, .. } => {
                let used = self.volume_bytes_now(from)?;
                if limit_bytes.is_some_and(|limit| used > limit) {
                    return Err(CopyError::BelowUse { used_bytes: used });
                }
                let access = btrfs::Access::Writable;
                btrfs::copy_subvolume(&self.volume(from), &self.volumes(), &next, access)?;
                self.publish_volume(&next, to, || {
                    if !quota.is_simple {
                        btrfs::limit(&path, btrfs::UNLIMITED)?;
                    }
                    self.note_inherited(&path, used)?;
                    Ok(self.limit_volume(&next, limit_bytes)?)
                })
            }
            StorageKind::Folders => {
                copy_folders(&self.volume(from), &path, &[FILES])?;
                self.publish_volume(&next, to, || Ok(()))
            }
        }
    }

    /// Fills an incomplete volume and gives it its name, or removes it.
    fn publish_volume(
        &self,
        next: &str,
        volume: &str,
        fill: impl FnOnce() -> Result<(), CopyError>,
    ) -> Result<(), CopyError> {
        let named = || {
            fs::rename(self.volume(next), self.volume(volume))?;
            self.commit_names()
        };
        let filled = fill().and_then(|()| Ok(named()?));
        if filled.is_err() {
            let _ = self.erase_volume(next);
        }
        filled
    }

    pub(crate) fn limit_volume(&self, name: &str, limit_bytes: Option<u64>) -> io::Result<()> {
        let StorageKind::Btrfs { .. } = &self.kind else { return Ok(()) };
        let path = self.volume(name);
        self.expect(limit_bytes.unwrap_or(0).min(HEADROOM_MOST));
        let limit = limit_bytes.map_or(btrfs::UNLIMITED, |bytes| own_limit_at(&path, bytes));
        btrfs::limit(&path, limit)?;
        self.join_group(name, &path)
    }

    /// Changes the limit of a volume; an error where it holds more.
    pub fn resize_volume(&self, volume: &str, limit_bytes: u64) -> Result<(), CopyError> {
        let used_bytes = self.volume_bytes_now(volume)?;
        if used_bytes > limit_bytes {
            return Err(CopyError::BelowUse { used_bytes });
        }
        Ok(self.limit_volume(volume, Some(limit_bytes))?)
    }

    /// Bytes in a volume.
    pub fn volume_bytes(&self, volume: &str) -> io::Result<u64> {
        let path = self.volume(volume);
        if !path.exists() {
            return Err(io::ErrorKind::NotFound.into());
        }
        match &self.kind {
            StorageKind::Btrfs { quota, .. } => Ok(quota.used_bytes(&path)? + inherited_at(&path)),
            StorageKind::Folders => walk::disk_bytes(open_folder(CWD, path.join(FILES))?),
        }
    }

    /// The number of bytes in a volume now, not as of the last commit of btrfs.
    fn volume_bytes_now(&self, volume: &str) -> io::Result<u64> {
        if let StorageKind::Btrfs { .. } = &self.kind
            && self.volume(volume).exists()
        {
            self.flush_at(&self.volume(volume), volume)?;
        }
        self.volume_bytes(volume)
    }

    /// Removes a volume with all files. Nothing there is fine.
    pub fn remove_volume(&self, volume: &str) -> io::Result<()> {
        let aside = passing_name(NEXT, volume)?;
        match fs::rename(self.volume(volume), self.volume(&aside)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other?,
        }
        self.commit_names()?;
        self.erase_volume(&aside)
    }

    fn erase_volume(&self, name: &str) -> io::Result<()> {
        match &self.kind {
            StorageKind::Btrfs { .. } => match btrfs::remove_subvolume(&self.volumes(), name) {
                // The subvolume was replaced by something else.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOTDIR)) => {
                    clear::remove_tree(&self.volume(name))
                }
                other => other,
            },
            StorageKind::Folders => clear::remove_tree(&self.volume(name)),
        }
    }

    /// Removes what was half made, every volume that is not known, and what known ones were letting go of. One that fails keeps
    /// no other from being swept.
    pub fn sweep_volumes(&self, known: &HashSet<String>) -> io::Result<()> {
        let mut outcome = Ok(());
        for entry in fs::read_dir(self.volumes())? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            let swept =
                if known.contains(&name) { self.sweep_volume(&name) } else { self.erase_volume(&name) };
            outcome = outcome.and(swept);
        }
        outcome
    }

    /// Removes folders whose removal was interrupted by the end of the server. They would count towards the limit of
    /// their volume forever, and no sandbox sees them.
    fn sweep_volume(&self, volume: &str) -> io::Result<()> {
        for entry in fs::read_dir(self.volume_back_room(volume))? {
            let entry = entry?;
            if entry.file_name() != FILES && entry.file_type()?.is_dir() {
                self.with_room_to_remove(volume, || clear::remove_tree(&entry.path()))?;
            }
        }
        Ok(())
    }

    /// Removes what a volume's files were put aside as. Also a full volume must let go of files, and for that something may
    /// have to be written.
    pub fn with_room_to_remove<T>(
        &self,
        volume: &str,
        mut work: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        let StorageKind::Btrfs { quota, .. } = &self.kind else { return work() };
        match work() {
            Err(error) if error.kind() == io::ErrorKind::QuotaExceeded => {}
            other => return other,
        }
        let path = self.volume(volume);
        // Two at once would mistake each other's raised limit for the volume's own.
        let _one = RAISED.lock().unwrap_or_else(PoisonError::into_inner);
        let limit = quota.limit_bytes(&path)?;
        btrfs::limit(&path, limit.saturating_add(ROOM_TO_REMOVE))?;
        self.leave_group(volume, &path)?;
        let done = work();
        self.join_group(volume, &path)?;
        // The limit is only restored if it was not changed meanwhile.
        if quota.limit_bytes(&path)? == limit.saturating_add(ROOM_TO_REMOVE) {
            btrfs::limit(&path, limit)?;
        }
        done
    }

    /// The folder that a volume's own folder lies in; nothing inside a sandbox reaches it.
    pub fn volume_back_room(&self, volume: &str) -> PathBuf {
        self.volume(volume)
    }
}

fn plain(error: CopyError) -> io::Error {
    match error {
        CopyError::Io(cause) => cause,
        other => io::Error::other(other),
    }
}
