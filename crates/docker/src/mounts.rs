//! Folders of this machine in containers. The daemon binds them by path, while sandboxes that have the same folder may change
//! what is below that path. So each folder is opened first, without following a link, and compared with what the container
//! really shows before any program of a caller runs in it.

use std::io;
use std::os::fd::OwnedFd;

use atoll_provider::{Capability, InstanceMount, InstanceSpec, MountSource, ProviderError};
use bollard::models::{Mount, MountPoint, MountType};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};

use crate::{Shared, agent_folder};

/// Paths of every container that are not the caller's.
const RESERVED: [&str; 4] = [agent_folder::INSIDE, "/proc", "/sys", "/dev"];

/// A folder that a container is to show.
#[derive(Debug)]
pub(crate) struct BoundFolder {
    inside: String,
    source: String,
    read_only: bool,
    folder: OwnedFd,
}

impl Shared {
    /// Opens the folders of an instance. A daemon on another machine has none of them.
    pub(crate) fn open_folders(&self, spec: &InstanceSpec) -> Result<Vec<BoundFolder>, ProviderError> {
        spec.mounts.iter().map(|mount| self.open_folder(mount)).collect()
    }

    fn open_folder(&self, mount: &InstanceMount) -> Result<BoundFolder, ProviderError> {
        let MountSource::Folder { path, sub_path, .. } = &mount.source else {
            return Err(self.missing(Capability::Volume));
        };
        if self.settings.is_remote() {
            return Err(self.missing(Capability::Volume));
        }
        let is_reserved = |at: &&str| mount.path == **at || mount.path.starts_with(&format!("{at}/"));
        if RESERVED.iter().any(is_reserved) || !mount.path.starts_with('/') || mount.path == "/" {
            return Err(refused(&mount.path, "that path is reserved"));
        }
        let opened = atoll_storage::host_folder(path, sub_path.as_deref(), mount.read_only);
        let (folder, _) = opened.map_err(|cause| refused(&mount.path, &why(&cause)))?;
        let source = sub_path.iter().fold(path.clone(), |path, below| path.join(below));
        let source = source.to_str().ok_or_else(|| refused(&mount.path, "the folder's path is not UTF-8"))?;
        Ok(BoundFolder {
            inside: mount.path.clone(),
            source: source.to_owned(),
            read_only: mount.read_only,
            folder,
        })
    }
}

impl BoundFolder {
    pub(crate) fn mount(&self) -> Mount {
        Mount {
            target: Some(self.inside.clone()),
            source: Some(self.source.clone()),
            typ: Some(MountType::BIND),
            read_only: Some(self.read_only),
            ..Mount::default()
        }
    }

    /// Refuses a container that shows another folder: a part of the path was replaced by a link after it was opened.
    pub(crate) fn check(&self, pid: i32) -> Result<(), ProviderError> {
        let seen = self.shown_by(pid).and_then(|shown| {
            let (wanted, shown) = (rustix::fs::fstat(&self.folder)?, rustix::fs::fstat(&shown)?);
            Ok((wanted.st_dev, wanted.st_ino) == (shown.st_dev, shown.st_ino))
        });
        match seen {
            Ok(true) => Ok(()),
            Ok(false) => Err(refused(&self.inside, "the folder was replaced while it was mounted")),
            Err(cause) => Err(refused(&self.inside, &why(&cause))),
        }
    }

    fn shown_by(&self, pid: i32) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, format!("/proc/{pid}/root"), flags, Mode::empty())?;
        let below = self.inside.trim_start_matches('/');
        Ok(rustix::fs::openat2(&root, below, flags, Mode::empty(), ResolveFlags::IN_ROOT)?)
    }
}

/// Whether a container shows these folders and no others, beside the agent's.
pub(crate) fn are_same(mounts: &[MountPoint], folders: &[BoundFolder]) -> bool {
    let is_other = |mount: &&MountPoint| {
        mount.typ.as_deref() == Some("bind") && mount.destination.as_deref() != Some(agent_folder::INSIDE)
    };
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let shown = mounts.iter().filter(is_other);
    let mut shown: Vec<_> =
        shown.map(|mount| (text(&mount.destination), text(&mount.source), mount.rw == Some(false))).collect();
    let wanted =
        folders.iter().map(|folder| (folder.inside.clone(), folder.source.clone(), folder.read_only));
    let mut wanted: Vec<_> = wanted.collect();
    shown.sort();
    wanted.sort();
    shown == wanted
}

fn refused(path: &str, why: &str) -> ProviderError {
    ProviderError::NotMountable { path: path.to_owned(), why: why.to_owned() }
}

fn why(cause: &io::Error) -> String {
    match cause.kind() {
        io::ErrorKind::NotFound => "the folder to mount does not exist".to_owned(),
        _ => format!("the folder to mount cannot be opened ({cause}); its path may contain no link"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn bound(inside: &std::path::Path, folder: &std::path::Path) -> BoundFolder {
        let (folder, _) = atoll_storage::host_folder(folder, None, true).unwrap();
        BoundFolder {
            inside: inside.to_str().unwrap().to_owned(),
            source: String::new(),
            read_only: true,
            folder,
        }
    }

    #[test]
    fn a_container_that_shows_another_folder_is_refused() {
        let top = std::env::temp_dir().join(format!("atoll-docker-mounts-{}", std::process::id()));
        let (wanted, other) = (top.join("wanted"), top.join("other"));
        std::fs::create_dir_all(&wanted).unwrap();
        std::fs::create_dir_all(&other).unwrap();
        // This process stands for the container: its root is the machine's.
        let own = i32::try_from(std::process::id()).unwrap();
        bound(&wanted, &wanted).check(own).unwrap();
        for shown in [&other, &top.join("missing")] {
            let refused = bound(shown, &wanted).check(own).unwrap_err();
            assert!(matches!(refused, ProviderError::NotMountable { .. }), "{refused}");
        }
        std::fs::remove_dir_all(&top).unwrap();
    }

    #[test]
    fn the_folders_of_a_container_are_compared_without_the_agents() {
        let here = std::env::temp_dir();
        let folder = bound(&here, &here);
        let point = |destination: &str, source: &str| MountPoint {
            typ: Some("bind".to_owned()),
            destination: Some(destination.to_owned()),
            source: Some(source.to_owned()),
            rw: Some(false),
            ..MountPoint::default()
        };
        let (agent, shown) = (point(agent_folder::INSIDE, "/agent"), point(&folder.inside, &folder.source));
        let volume = MountPoint { typ: Some("volume".to_owned()), ..point("/of-the-image", "") };
        assert!(are_same(&[agent.clone(), shown.clone(), volume], std::slice::from_ref(&folder)));
        let writable = MountPoint { rw: Some(true), ..shown };
        assert!(!are_same(&[agent.clone(), writable], std::slice::from_ref(&folder)));
        assert!(!are_same(std::slice::from_ref(&agent), &[folder]));
        assert!(are_same(&[agent], &[]));
    }
}
