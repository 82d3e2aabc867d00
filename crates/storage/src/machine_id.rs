//! The machine id of a sandbox that begins as a copy of another one's files: its own, never the other's.
//!
//! `/etc/machine-id` is written anew, and D-Bus' copy of it where there is one. Somebody who has removed it, or made it a link,
//! keeps that. All else that should be unique and lies in files (host keys of SSH, seeds, certificates) is the user's own: only
//! they know whether a copy of their files should speak with the same voice.

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

/// A real folder of the layer; whatever a sandbox has put in its place is nothing of ours.
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
