//! The folders of a root that shows the host's `/usr`: links into it, and empty places for everything else.

use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;

use crate::error::TemplateError;

/// The owner of a folder in a template.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Owner {
    Root,
    User,
}

/// Folders of every root we make by hand: path, mode, owner. `/.atoll` and `/usr` are mount points.
#[rustfmt::skip]
pub(crate) const FOLDERS: &[(&str, u32, Owner)] = &[
    ("",           0o755,  Owner::Root), (".atoll",    0o755,  Owner::Root), ("usr",       0o755,  Owner::Root),
    ("etc",        0o755,  Owner::Root), ("dev",       0o755,  Owner::Root), ("proc",      0o555,  Owner::Root),
    ("sys",        0o555,  Owner::Root), ("run",       0o755,  Owner::Root), ("run/lock",  0o1777, Owner::Root),
    ("mnt",        0o755,  Owner::Root), ("media",     0o755,  Owner::Root), ("opt",       0o755,  Owner::Root),
    ("srv",        0o755,  Owner::Root), ("root",      0o700,  Owner::Root), ("home",      0o755,  Owner::Root),
    ("home/user",  0o755,  Owner::User), ("tmp",       0o1777, Owner::Root), ("var",       0o755,  Owner::Root),
    ("var/tmp",    0o1777, Owner::Root), ("var/lib",   0o755,  Owner::Root), ("var/log",   0o755,  Owner::Root),
    ("var/cache",  0o755,  Owner::Root), ("var/spool", 0o755,  Owner::Root), ("var/opt",   0o755,  Owner::Root),
];

const LINKS: &[(&str, &str)] = &[("var/run", "/run"), ("var/lock", "/run/lock")];

/// Where a host with everything in `/usr` has links into it.
const MERGED: &[&str] = &["bin", "sbin", "lib", "lib32", "lib64", "libx32"];

/// Makes the root of a host template, all but its `/etc`.
pub(crate) fn build(host_root: &Path, rootfs: &Path) -> Result<(), TemplateError> {
    folders(rootfs)?;
    for name in MERGED {
        let original = host_root.join(name);
        match std::fs::read_link(&original) {
            Ok(target) if target.starts_with("usr") || target.starts_with("/usr") => {
                link(&target, &rootfs.join(name))?
            }
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {}
            // A folder of its own (or a link elsewhere) would have to be copied with all programs in it.
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

pub(crate) fn folder(path: &Path, mode: u32, owner: Owner) -> Result<(), TemplateError> {
    match std::fs::create_dir(path) {
        Err(cause) if cause.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(TemplateError::io("create", path)(cause));
        }
        _ => {}
    }
    if let Owner::User = owner {
        chown(path, Some(1000), Some(1000)).map_err(TemplateError::io("give away", path))?;
    }
    // Set after creation, so that our own umask has no say.
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode))
        .map_err(TemplateError::io("set the mode of", path))
}

/// Writes a file that is everybody's to read, or to run.
pub(crate) fn file(path: &Path, content: &[u8], mode: u32) -> Result<(), TemplateError> {
    std::fs::write(path, content).map_err(TemplateError::io("write", path))?;
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode))
        .map_err(TemplateError::io("set the mode of", path))
}

pub(crate) fn link(target: &Path, path: &Path) -> Result<(), TemplateError> {
    symlink(target, path).map_err(TemplateError::io("link", path))
}
