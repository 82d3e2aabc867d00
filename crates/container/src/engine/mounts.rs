//! Mounts of a sandbox besides its root. The server opens and clones them by descriptor, the launcher maps them to the
//! sandbox's ids, and the first process attaches them.
//!
//! Sandboxes write to volumes and to folders of the host while other sandboxes mount them, so no path is resolved twice
//! and no symbolic link is followed. The server makes the clones because only the server sees all mounts of the host:
//! the launcher has detached most of them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use atoll_provider::{InstanceMount, MountSource, ProviderError};
use rustix::mount::{OpenTreeFlags, open_tree};

use super::snapshot::blocking;
use super::{EngineShared, failed};
use crate::launcher::protocol::{MAP, MountSpec, Mounted, PLACE, StepFailure};
use crate::sys;
use atoll_storage::{EntryAttributes, IDS, Layers, VolumeFolder, host_folder};

const MIB: u64 = 1 << 20;
/// Paths in every root that belong to the engine.
const RESERVED: [&str; 4] = ["proc", "sys", "dev", ".atoll"];
/// New folders of a volume are writable for every user in the sandbox.
const FOR_ALL: EntryAttributes = EntryAttributes { uid: None, gid: None, mode: Some(0o777) };

/// Mounts, and a detached clone of each mount from outside, in the same order.
#[derive(Debug, Default)]
pub(super) struct ResolvedMounts {
    pub(super) mounts: Vec<MountSpec>,
    pub(super) clones: Vec<OwnedFd>,
}

impl EngineShared {
    /// Resolves the mounts of a request.
    pub(super) async fn find_mounts(
        &self,
        wanted: &[InstanceMount],
    ) -> Result<ResolvedMounts, ProviderError> {
        if wanted.is_empty() {
            return Ok(ResolvedMounts::default());
        }
        let (layers, wanted) = (Arc::clone(&self.resources.layers), wanted.to_vec());
        let find = move || {
            let mut found = ResolvedMounts::default();
            for mount in &wanted {
                if let Err(error) = add(&layers, mount, &mut found) {
                    return Ok(Err(error));
                }
            }
            Ok(Ok(found))
        };
        blocking(find).await.map_err(failed("finding the folder to mount"))?
    }
}

fn add(layers: &Layers, mount: &InstanceMount, found: &mut ResolvedMounts) -> Result<(), ProviderError> {
    let refused = |why: String| ProviderError::NotMountable { path: mount.path.clone(), why };
    let at = mount.path.strip_prefix('/').unwrap_or_default();
    if at.split('/').any(|part| matches!(part, "" | "." | "..")) || at.contains('\0') {
        return Err(refused("it is not a normalized path below /".into()));
    }
    if at.split('/').next().is_some_and(|first| RESERVED.contains(&first)) {
        return Err(refused("Atoll reserves that path".into()));
    }
    let not_there = |cause: io::Error| match cause.kind() {
        io::ErrorKind::NotFound => refused("the folder to mount does not exist".into()),
        _ if matches!(cause.raw_os_error(), Some(libc::ELOOP | libc::ENOTDIR | libc::EXDEV)) => {
            refused("the path of the folder to mount contains a link or a file".into())
        }
        io::ErrorKind::QuotaExceeded | io::ErrorKind::StorageFull => {
            ProviderError::Exhausted { what: "room in the volume".into() }
        }
        _ => failed("opening the folder to mount")(cause),
    };
    let (folder, what) = match &mount.source {
        MountSource::Volume { volume, sub_path } => {
            let root = layers.volume_folder(volume.as_str()).map_err(failed("opening a volume"))?;
            let root = root.ok_or_else(|| ProviderError::NoVolume { volume: volume.clone() })?;
            // No folder is made through a read-only mount.
            let new = (!mount.read_only).then_some(FOR_ALL);
            let folder = VolumeFolder::new(root).for_mount(sub_path.as_deref(), new);
            (folder.map_err(not_there)?, Mounted::Volume)
        }
        MountSource::Folder { path, sub_path, seen_as } => {
            let (folder, owner) =
                host_folder(path, sub_path.as_deref(), mount.read_only).map_err(not_there)?;
            if (owner.0 == 0 || owner.1 == 0) && !mount.read_only {
                return Err(refused(
                    "the folder belongs to root or its group, so programs inside could place setuid programs of root in it; \
                     give it to another user and group, or mount it read-only"
                        .into(),
                ));
            }
            if seen_as.0 >= IDS || seen_as.1 >= IDS {
                return Err(refused(
                    "the sandbox has a user or group above 65535, which is not allowed".into(),
                ));
            }
            (folder, Mounted::Folder { owner, seen_as: *seen_as })
        }
        MountSource::Memory { size_mib } => {
            let what = Mounted::Memory { bytes: u64::from(*size_mib) * MIB };
            found.mounts.push(MountSpec { at: at.to_owned(), read_only: false, what });
            return Ok(());
        }
    };
    found.clones.push(clone_of(&folder).map_err(failed("cloning the folder to mount"))?);
    found.mounts.push(MountSpec { at: at.to_owned(), read_only: mount.read_only, what });
    Ok(())
}

/// A detached mount of this folder alone; mounts below it on the host are not included.
fn clone_of(folder: &OwnedFd) -> io::Result<OwnedFd> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let clone = open_tree(folder, "", flags)?;
    sys::make_private(clone.as_fd())?;
    Ok(clone)
}

/// The error of a failed step that concerns a mount.
pub(super) fn explain(failure: &StepFailure) -> Option<ProviderError> {
    let refused = |path: &str, why: &str| {
        Some(ProviderError::NotMountable { path: format!("/{path}"), why: why.to_owned() })
    };
    if let Some(path) = failure.step.strip_prefix(PLACE) {
        return match failure.errno {
            // A symbolic link where a folder is expected causes one of the two errors.
            libc::ELOOP | libc::ENOTDIR => {
                refused(path, "a file or a link is at that path inside, and links are not followed")
            }
            libc::EDQUOT | libc::ENOSPC => {
                Some(ProviderError::Exhausted { what: "disk for the place of a mount".into() })
            }
            _ => None,
        };
    }
    match failure.step.strip_prefix(MAP) {
        Some(path) if failure.errno == libc::EINVAL || failure.errno == libc::EOPNOTSUPP => {
            refused(path, "the file system of this folder does not support id-mapped mounts")
        }
        _ => None,
    }
}
