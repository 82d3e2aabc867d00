//! Volumes, and folders of this machine, in containers. The daemon binds folders by path, while sandboxes that have the same
//! folder may change what is below that path. So each folder is opened first, without following a link, and compared with what
//! the container really shows before any program of a caller runs in it.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use atoll_model::VolumeId;
use atoll_provider::{Capability, InstanceMount, InstanceSpec, MountSource, ProviderError};
use atoll_storage::{EntryAttributes, VolumeFolder};
use bollard::models::{Mount, MountBindOptions, MountPoint, MountType, MountVolumeOptions};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, StatVfsMountFlags};

use crate::daemon::VolumeRole;
use crate::{Shared, agent_folder};

/// Paths of every container that are not the caller's.
const RESERVED: [&str; 4] = [agent_folder::INSIDE, "/proc", "/sys", "/dev"];
/// New folders of a volume are writable for every user in the sandbox.
const FOR_ALL: EntryAttributes = EntryAttributes { uid: None, gid: None, mode: Some(0o777) };

/// A folder that a container is to show.
#[derive(Debug)]
pub(crate) struct BoundFolder {
    inside: String,
    source: String,
    read_only: bool,
    folder: OwnedFd,
    /// The volume of the daemon of which this is the whole content.
    volume: Option<NamedVolume>,
}

/// A volume by the daemon's name.
#[derive(Debug)]
struct NamedVolume {
    name: String,
    labels: HashMap<String, String>,
}

impl Shared {
    /// Opens the folders of an instance. A daemon on another machine has none of them.
    pub(crate) async fn open_folders(&self, spec: &InstanceSpec) -> Result<Vec<BoundFolder>, ProviderError> {
        let mut folders = Vec::with_capacity(spec.mounts.len());
        for mount in &spec.mounts {
            folders.push(self.open_folder(mount).await?);
        }
        Ok(folders)
    }

    async fn open_folder(&self, mount: &InstanceMount) -> Result<BoundFolder, ProviderError> {
        if self.settings.is_remote() {
            return Err(self.missing(Capability::Volume));
        }
        let is_reserved = |at: &&str| mount.path == **at || mount.path.starts_with(&format!("{at}/"));
        if RESERVED.iter().any(is_reserved) || !mount.path.starts_with('/') || mount.path == "/" {
            return Err(refused(&mount.path, "that path is reserved"));
        }
        match &mount.source {
            MountSource::Folder { path, sub_path, .. } => {
                let opened = atoll_storage::host_folder(path, sub_path.as_deref(), mount.read_only);
                let (folder, _) = opened.map_err(|cause| refused(&mount.path, &why(&cause)))?;
                if !mount.read_only {
                    check_restrictions(&folder, &mount.path)?;
                }
                BoundFolder::new(mount, path, sub_path.as_deref(), folder)
            }
            MountSource::Volume { volume, sub_path } => {
                self.open_volume(mount, volume, sub_path.as_deref()).await
            }
            MountSource::Memory { .. } => Err(self.missing(Capability::Volume)),
        }
    }

    /// Opens a volume as a whole, or a folder of it. Docker mounts no part of a volume before its version 26, so a part is
    /// bound by its path.
    async fn open_volume(
        &self,
        mount: &InstanceMount,
        volume: &VolumeId,
        sub_path: Option<&str>,
    ) -> Result<BoundFolder, ProviderError> {
        let (found, root) = self.volume_root(volume).await?;
        // No folder is made through a read-only mount.
        let new = (!mount.read_only).then_some(FOR_ALL);
        let opened = VolumeFolder::new(root).for_mount(sub_path, new);
        let folder = opened.map_err(|cause| refused(&mount.path, &why(&cause)))?;
        let bound = BoundFolder::new(mount, &found.path, sub_path, folder)?;
        // The labels are those that the daemon gives a volume that was removed meanwhile and that it makes again.
        let named =
            || NamedVolume { name: found.name, labels: self.daemon.volume_labels(volume, VolumeRole::Files) };
        Ok(BoundFolder { volume: sub_path.is_none().then(named), ..bound })
    }
}

impl BoundFolder {
    fn new(
        mount: &InstanceMount,
        path: &Path,
        sub_path: Option<&str>,
        folder: OwnedFd,
    ) -> Result<Self, ProviderError> {
        let source = sub_path.iter().fold(path.to_owned(), |path, below| path.join(below));
        let source = source.to_str().ok_or_else(|| refused(&mount.path, "the folder's path is not UTF-8"))?;
        let (inside, source) = (mount.path.clone(), source.to_owned());
        Ok(Self { inside, source, read_only: mount.read_only, folder, volume: None })
    }

    pub(crate) fn mount(&self) -> Mount {
        let (typ, source, volume_options) = match &self.volume {
            None => (MountType::BIND, self.source.clone(), None),
            Some(volume) => {
                let options = MountVolumeOptions {
                    // The image's files at that path are hidden, as everywhere; Docker would copy them into an empty volume.
                    no_copy: Some(true),
                    labels: Some(volume.labels.clone()),
                    ..MountVolumeOptions::default()
                };
                (MountType::VOLUME, volume.name.clone(), Some(options))
            }
        };
        // Without file systems that are mounted below the folder: they have restrictions of their own.
        let bind = MountBindOptions { non_recursive: Some(true), ..MountBindOptions::default() };
        Mount {
            bind_options: (typ == MountType::BIND).then_some(bind),
            target: Some(self.inside.clone()),
            source: Some(source),
            typ: Some(typ),
            read_only: Some(self.read_only),
            volume_options,
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

/// Refuses a folder in which a file of a container could give its rights to a user of the host. Root in a container sets
/// every bit and makes devices, and only the file system of the host can make them ineffective.
fn check_restrictions(folder: &OwnedFd, path: &str) -> Result<(), ProviderError> {
    let flags = rustix::fs::fstatvfs(folder).map_err(|cause| refused(path, &why(&cause.into())))?.f_flag;
    if flags.contains(StatVfsMountFlags::NOSUID | StatVfsMountFlags::NODEV) {
        return Ok(());
    }
    Err(refused(
        path,
        "programs inside could leave a set-user-ID program or a device in it; mount its file system on the host with nosuid \
         and nodev, or mount the folder read-only",
    ))
}

/// Whether a container shows these folders and no others, beside the agent's and the unnamed volumes of its image.
pub(crate) fn are_same(mounts: &[MountPoint], folders: &[BoundFolder]) -> bool {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let is_other = |mount: &&MountPoint| match mount.typ.as_deref() {
        Some("bind") => mount.destination.as_deref() != Some(agent_folder::INSIDE),
        Some("volume") => mount.name.as_deref().is_some_and(|name| name.starts_with("atoll-")),
        Some(_) | None => false,
    };
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

/// The refusal of a container by the daemon. It names the folder that it could not mount, as one of which a part was removed or
/// replaced after it was opened.
pub(crate) fn told(error: ProviderError, folders: &[BoundFolder]) -> ProviderError {
    let ProviderError::Failed { cause, .. } = &error else { return error };
    let said = cause.to_string();
    // A path inside may be short and part of another word.
    let is_named = |folder: &&BoundFolder| {
        said.contains(&folder.source) || said.contains(&format!("\"{}\"", folder.inside))
    };
    match folders.iter().filter(|folder| folder.volume.is_none()).find(is_named) {
        Some(folder) => refused(&folder.inside, "the folder was replaced while it was mounted"),
        None => error,
    }
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
            volume: None,
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
    fn a_refusal_of_the_daemon_that_names_a_folder_is_one_of_the_mount() {
        let here = std::env::temp_dir();
        let folder = BoundFolder {
            inside: "/data".to_owned(),
            source: "/volumes/atoll-volume/_data/part".to_owned(),
            ..bound(&here, &here)
        };
        let failed = |said: &str| ProviderError::Failed {
            step: "starting the container by the Docker daemon".to_owned(),
            cause: said.to_owned().into(),
        };
        for said in [
            "invalid mount config for type \"bind\": bind source path does not exist: /volumes/atoll-volume/_data/part",
            "failed to create task: error mounting \"/elsewhere\" to rootfs at \"/data\": not a directory: unknown",
        ] {
            let refusal = told(failed(said), std::slice::from_ref(&folder));
            assert!(
                matches!(&refusal, ProviderError::NotMountable { path, .. } if path == "/data"),
                "{refusal}"
            );
        }
        for said in ["cannot start /database", "no such image"] {
            let other = told(failed(said), std::slice::from_ref(&folder));
            assert!(matches!(other, ProviderError::Failed { .. }), "{other}");
        }
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
        let named = MountPoint {
            typ: Some("volume".to_owned()),
            name: Some("atoll-volume".to_owned()),
            ..point("/data", "/volumes/atoll-volume/_data")
        };
        assert!(!are_same(&[agent.clone(), named.clone()], &[]), "a volume that is not wanted");
        let wanted = BoundFolder {
            inside: "/data".to_owned(),
            source: "/volumes/atoll-volume/_data".to_owned(),
            ..bound(&here, &here)
        };
        assert!(are_same(&[agent.clone(), named], &[wanted]));
        assert!(!are_same(std::slice::from_ref(&agent), &[folder]));
        assert!(are_same(&[agent], &[]));
    }
}
