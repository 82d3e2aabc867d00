//! Gives a sandbox that begins as a copy of another sandbox's files a machine id of its own.
//!
//! `/etc/machine-id` is written again, and so is the copy of D-Bus if it exists. A file that the user has removed or
//! replaced by a link stays as it is. All other unique data in files (host keys of SSH, seeds, certificates) belongs to
//! the user: only the user knows whether a copy should keep it.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use super::walk::open_folder;

/// What the file of a sandbox holds.
pub(crate) fn of(sandbox: &str) -> String {
    let digest = Sha256::new().chain_update("machine-id ").chain_update(sandbox).finalize();
    format!("{}\n", hex::encode(&digest[..16]))
}

/// Gives the layer an id that comes from the name of its sandbox.
pub fn renew(layer: &Path, sandbox: &str) -> io::Result<()> {
    let upper = open_folder(CWD, layer.join("upper"))?;
    let text = of(sandbox);
    match rustix::fs::mkdirat(&upper, "etc", Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    if let Some(etc) = folder_in(&upper, "etc")? {
        replace(&etc, &text, true)?;
    }
    if let Some(dbus) = folder_in(&upper, "var/lib/dbus")? {
        replace(&dbus, &text, false)?;
    }
    Ok(())
}

/// A folder of the layer; `None` if the sandbox has replaced it by something else.
fn folder_in(upper: &OwnedFd, path: &str) -> io::Result<Option<OwnedFd>> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match rustix::fs::openat2(upper, path, flags, Mode::empty(), resolve) {
        Ok(folder) => Ok(Some(folder)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn replace(folder: &OwnedFd, text: &str, also_missing: bool) -> io::Result<()> {
    const NAME: &str = "machine-id";
    match rustix::fs::statat(folder, NAME, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => {
            rustix::fs::unlinkat(folder, NAME, AtFlags::empty())?;
        }
        Err(Errno::NOENT) if also_missing => {}
        Ok(_) | Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(folder, NAME, flags, Mode::from_raw_mode(0o444))?;
    std::fs::File::from(file).write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_id_is_replaced_and_no_link_out_of_the_layer_is_followed() {
        let layer = tempfile::tempdir().unwrap();
        let at = |path: &str| layer.path().join("upper").join(path);
        std::fs::create_dir_all(at("etc")).unwrap();
        std::fs::write(at("etc/machine-id"), "old").unwrap();
        renew(layer.path(), "a").unwrap();
        let first = std::fs::read_to_string(at("etc/machine-id")).unwrap();
        renew(layer.path(), "b").unwrap();
        let second = std::fs::read_to_string(at("etc/machine-id")).unwrap();
        assert!(first != second && second.trim().len() == 32, "{first} {second}");
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("machine-id"), "the host's").unwrap();
        std::fs::remove_dir_all(at("etc")).unwrap();
        std::os::unix::fs::symlink(outside.path(), at("etc")).unwrap();
        renew(layer.path(), "c").unwrap();
        assert_eq!(std::fs::read_to_string(outside.path().join("machine-id")).unwrap(), "the host's");
    }
}
