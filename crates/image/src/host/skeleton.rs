//! The folders of a root that shows the host's `/usr`: links into it, and empty folders for everything else.

use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;

use crate::error::TemplateError;

/// The owner of a folder in a template.
#[derive(Debug, Clone, Copy)]
pub(crate) enum FolderOwner {
    Root,
    User,
}

/// Folders of every generated root: path, mode, owner. `/.atoll` and `/usr` are mount points.
#[rustfmt::skip]
pub(crate) const FOLDERS: &[(&str, u32, FolderOwner)] = &[
    ("",           0o755,  FolderOwner::Root), (".atoll",    0o755,  FolderOwner::Root), ("usr",       0o755,  FolderOwner::Root),
    ("etc",        0o755,  FolderOwner::Root), ("dev",       0o755,  FolderOwner::Root), ("proc",      0o555,  FolderOwner::Root),
    ("sys",        0o555,  FolderOwner::Root), ("run",       0o755,  FolderOwner::Root), ("run/lock",  0o1777, FolderOwner::Root),
    ("mnt",        0o755,  FolderOwner::Root), ("media",     0o755,  FolderOwner::Root), ("opt",       0o755,  FolderOwner::Root),
    ("srv",        0o755,  FolderOwner::Root), ("root",      0o700,  FolderOwner::Root), ("home",      0o755,  FolderOwner::Root),
    ("home/user",  0o755,  FolderOwner::User), ("tmp",       0o1777, FolderOwner::Root), ("var",       0o755,  FolderOwner::Root),
    ("var/tmp",    0o1777, FolderOwner::Root), ("var/lib",   0o755,  FolderOwner::Root), ("var/log",   0o755,  FolderOwner::Root),
    ("var/cache",  0o755,  FolderOwner::Root), ("var/spool", 0o755,  FolderOwner::Root), ("var/opt",   0o755,  FolderOwner::Root),
];

const LINKS: &[(&str, &str)] = &[("var/run", "/run"), ("var/lock", "/run/lock")];

/// Links into `/usr` on a host with a merged `/usr`.
const MERGED: &[&str] = &["bin", "sbin", "lib", "lib32", "lib64", "libx32"];

/// Makes the root of a host template, except its `/etc`.
pub(crate) fn build(host_root: &Path, rootfs: &Path) -> Result<(), TemplateError> {
    folders(rootfs)?;
    for name in MERGED {
        let original = host_root.join(name);
        match std::fs::read_link(&original) {
            Ok(target) if target.starts_with("usr") || target.starts_with("/usr") => {
                link(&target, &rootfs.join(name))?
            }
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {}
            // A separate folder (or a link elsewhere) would have to be copied with all its programs.
            _ => return Err(TemplateError::HostNotMerged { folder: name }),
        }
    }
    Ok(())
}

/// Makes the empty folders and the links between them.
pub(crate) fn folders(rootfs: &Path) -> Result<(), TemplateError> {
    for (path, mode, owner) in FOLDERS {
        folder(&rootfs.join(path), *mode, *owner)?;
    }
    LINKS.iter().try_for_each(|(path, target)| link(Path::new(target), &rootfs.join(path)))
}

pub(crate) fn folder(path: &Path, mode: u32, owner: FolderOwner) -> Result<(), TemplateError> {
    match std::fs::create_dir(path) {
        Err(cause) if cause.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(TemplateError::io("create", path)(cause));
        }
        _ => {}
    }
    if let FolderOwner::User = owner {
        chown(path, Some(1000), Some(1000)).map_err(TemplateError::io("give away", path))?;
    }
    // Set after creation, so that the umask has no effect.
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode))
        .map_err(TemplateError::io("set the mode of", path))
}

/// Writes a file that all users may read, or run.
pub(crate) fn file(path: &Path, content: &[u8], mode: u32) -> Result<(), TemplateError> {
    std::fs::write(path, content).map_err(TemplateError::io("write", path))?;
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode))
        .map_err(TemplateError::io("set the mode of", path))
}

pub(crate) fn link(target: &Path, path: &Path) -> Result<(), TemplateError> {
    symlink(target, path).map_err(TemplateError::io("link", path))
}
