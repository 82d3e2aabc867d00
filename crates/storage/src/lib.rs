//! Layers, snapshots and volumes of sandboxes on disk: btrfs where possible, limits, archives.
//!
//! ```text
//! DATA/pool/            the pool, 0700 root; mounted nosuid nodev from DATA/pool.btrfs where DATA is not on btrfs
//!   layers/<sandbox>/   a subvolume with a limit of its own:  upper/ work/ [usr-upper/ usr-work/]
//!   snapshots/<id>/     read-only copies of layers
//!   volumes/<id>/       a subvolume with a limit of its own:  files/
//!   backup/             copies for a backup that is being made
//! ```
//!
//! Ids in layers are canonical. Without btrfs a layer is a plain folder, and no disk limit can be enforced.

#![expect(unsafe_code, reason = "btrfs and loop devices are driven by ioctls, which have no safe wrappers")]

mod backup;
mod boot_files;
mod btrfs;
mod capture;
mod clear;
mod format;
mod groups;
mod inventory;
pub mod ioctl;
mod live_tree;
mod loopback;
mod machine_id;
pub mod mountinfo;
mod pack;
mod pool;
mod snapshots;
mod space;
mod tenants;
#[cfg(test)]
mod tests;
mod unpack;
mod unpacked_size;
mod volume_files;
mod volumes;
mod walk;

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use atoll_disk::is_full;

pub use atoll_disk::{Reserve, TenantNumber, TenantShares};
pub use backup::{CopiesError, CopyKind, PoolCopies, discard_pool, pack_folders, unpack_folders};
pub use clear::remove_tree;
pub use format::{IDS, ReadError};
pub use inventory::{PoolEntry, PoolEntryKind};
pub use live_tree::{copy_live_tree, live_tree_bytes};
pub use machine_id::renew as renew_machine_id;
pub use pool::unmount;
pub use snapshots::{CopyError, Seal};
pub use space::waiting_name;
pub use tenants::ShareRoom;
pub use unpacked_size::TooLargeToPack;
pub use volume_files::{EntryAttributes, OpenedEntry, VolumeFolder, host_folder};

/// How layers are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StorageChoice {
    /// btrfs if possible, otherwise plain folders.
    #[default]
    Best,
    /// btrfs or an error.
    Btrfs,
    /// Plain folders, without disk limits.
    Folders,
}

/// The storage could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot {step} for the pool at {}", path.display())]
pub struct StorageError {
    step: &'static str,
    path: PathBuf,
    #[source]
    cause: io::Error,
}

/// The layers of one server.
#[derive(Debug)]
pub struct Layers {
    /// The reserve of free space on the disk below the pool, and in the pool.
    disk: Arc<Reserve>,
    at: PathBuf,
    /// The pool's folder of layers.
    root: PathBuf,
    kind: StorageKind,
}

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a server has one")]
enum StorageKind {
    Btrfs { pool: pool::Pool, quota: btrfs::QuotaGroups, tenants: tenants::TenantGroups },
    Folders,
}

impl Layers {
    /// Makes the pool or finds it again. `legacy`: full quota groups instead of simple quotas.
    pub fn open(
        data: &Path,
        choice: StorageChoice,
        legacy: bool,
        disk: &Arc<Reserve>,
    ) -> Result<Self, StorageError> {
        let at = data.join("pool");
        let failed = |step, cause| StorageError { step, path: at.clone(), cause };
        make_private(&at).map_err(|cause| failed("make a folder", cause))?;
        if choice != StorageChoice::Folders {
            match Self::open_btrfs(data, &at, legacy, disk) {
                Ok(layers) => return layers.opened().map_err(|cause| failed("list the layers", cause)),
                // Plain folders that were made now, on a disk without room, would be hidden once a pool is mounted over
                // them.
                Err((step, cause)) if choice == StorageChoice::Btrfs || is_full(&cause) => {
                    return Err(failed(step, cause));
                }
                Err((step, cause)) => {
                    tracing::warn!(step, %cause, "no btrfs pool: disk limits cannot be enforced")
                }
            }
        }
        let disk = Arc::clone(disk);
        let layers = Self { disk, root: at.join("layers"), at: at.clone(), kind: StorageKind::Folders };
        layers.opened().map_err(|cause| failed("make a folder", cause))
    }

    /// Makes the folders, and removes the quota groups of layers that no longer exist.
    fn opened(self) -> io::Result<Self> {
        make_private(&self.root)?;
        make_private(&self.at.join("snapshots"))?;
        make_private(&self.volumes())?;
        if self.limits_disk() {
            backup::remove_abandoned_copies(&self.at)?;
        }
        self.remove_abandoned_groups()?;
        self.arrange_groups()?;
        self.keep_reserve()?;
        Ok(self)
    }

    fn open_btrfs(
        data: &Path,
        at: &Path,
        legacy: bool,
        disk: &Arc<Reserve>,
    ) -> Result<Self, (&'static str, io::Error)> {
        let pool = pool::Pool::open(data, at, disk)?;
        let quota = btrfs::enable_quota(at, legacy).map_err(|cause| ("switch quotas on", cause))?;
        quota.make_groups(at).map_err(|cause| ("make the quota groups", cause))?;
        let disk = Arc::clone(disk);
        Ok(Self {
            disk,
            at: at.to_owned(),
            root: at.join("layers"),
            kind: StorageKind::Btrfs { pool, quota, tenants: tenants::TenantGroups::default() },
        })
    }

    /// Whether a disk limit holds.
    pub fn limits_disk(&self) -> bool {
        matches!(self.kind, StorageKind::Btrfs { .. })
    }

    /// Where a layer is.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Whether there is such a layer.
    pub fn exists(&self, name: &str) -> bool {
        self.path(name).join("upper").is_dir()
    }

    /// Makes an empty layer of at most `limit_bytes`.
    pub fn create(&self, name: &str, with_usr: bool, limit_bytes: u64) -> io::Result<PathBuf> {
        let path = self.path(name);
        match &self.kind {
            StorageKind::Btrfs { .. } => btrfs::create_subvolume(&self.root, name)?,
            StorageKind::Folders => fs::create_dir(&path)?,
        }
        let fill = || -> io::Result<()> {
            self.set_limit(name, limit_bytes)?;
            prepare(&path, with_usr)
        };
        match fill() {
            Ok(()) => Ok(path),
            Err(cause) => {
                let _ = self.remove(name);
                Err(cause)
            }
        }
    }

    /// Makes a kept layer ready for the next instance. Its limit is open until [`Layers::set_limit`] sets it again: also a
    /// full layer must start, and starting makes a few folders in it.
    pub fn reopen(&self, name: &str, with_usr: bool) -> io::Result<PathBuf> {
        let path = self.path(name);
        if !self.exists(name) {
            return Err(io::ErrorKind::NotFound.into());
        }
        if let StorageKind::Btrfs { .. } = &self.kind {
            btrfs::limit(&path, btrfs::UNLIMITED)?;
            self.leave_group(name, &path)?;
        }
        prepare(&path, with_usr)?;
        Ok(path)
    }

    /// Notes where volumes are mounted in a layer, so that a capture knows whose folders those are.
    pub fn note_mounts(&self, name: &str, places: &[String]) -> io::Result<()> {
        boot_files::note_mounts(&self.path(name), places)
    }

    /// Changes the limit of a layer.
    pub fn set_limit(&self, name: &str, limit_bytes: u64) -> io::Result<()> {
        match &self.kind {
            StorageKind::Btrfs { .. } => {
                let path = self.path(name);
                btrfs::limit(&path, self.own_limit(name, limit_bytes))?;
                // Afterwards, so that a pool that shrinks meanwhile finds the limit.
                self.expect(limit_bytes);
                self.join_group(name, &path)
            }
            StorageKind::Folders => Ok(()),
        }
    }

    /// Gives a layer made ahead of time to its sandbox.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path(from), self.path(to))?;
        self.change_group(from, to)
    }

    /// Removes a layer with everything in it. Nothing there is fine.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        let path = self.path(name);
        if !path.exists() {
            return Ok(());
        }
        match &self.kind {
            StorageKind::Btrfs { .. } => btrfs::remove_subvolume(&self.root, name),
            StorageKind::Folders => clear::remove_tree(&path),
        }
    }

    /// Bytes that a layer takes, as far as it can be said cheaply.
    pub fn used_bytes(&self, name: &str) -> io::Result<u64> {
        match &self.kind {
            StorageKind::Btrfs { quota, .. } => {
                Ok(quota.used_bytes(&self.path(name))? + self.inherited(name))
            }
            StorageKind::Folders => Ok(0),
        }
    }

    /// Every layer there is.
    pub fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.root)? {
            names.extend(entry?.file_name().into_string().ok());
        }
        Ok(names)
    }
}

/// Makes the folders that an overlay needs. The work folder is always a new one: a volatile overlay or a crash may have
/// left marks in the old one.
fn prepare(layer: &Path, with_usr: bool) -> io::Result<()> {
    let pairs: &[(&str, &str)] =
        if with_usr { &[("upper", "work"), ("usr-upper", "usr-work")] } else { &[("upper", "work")] };
    for (upper, work) in pairs {
        match fs::DirBuilder::new().mode(0o755).create(layer.join(upper)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
            Ok(()) => {
                fs::set_permissions(layer.join(upper), std::os::unix::fs::PermissionsExt::from_mode(0o755))?
            }
        }
        match fs::DirBuilder::new().mode(0o700).create(layer.join(work)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                clear::remove_tree(&layer.join(work))?;
                fs::DirBuilder::new().mode(0o700).create(layer.join(work))?;
            }
            other => other?,
        }
    }
    Ok(())
}

fn make_private(path: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o700))
        }
        other => other,
    }
}
