//! The working directory: created when the image lacks it, and then owned by the default user.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, Gid, Mode, OFlags, Uid, fchown, mkdirat, openat};
use rustix::io::Errno;

use crate::users;

const NEW: Mode = Mode::from_raw_mode(0o755);

/// Creates a missing directory. Its missing parents belong to root, the directory itself to `user`; an existing
/// directory is not changed.
pub(crate) fn ensure(path: &str, user: &str) -> rustix::io::Result<()> {
    let path = Path::new(path);
    if path.is_dir() {
        return Ok(());
    }
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Err(Errno::INVAL) };
    std::fs::create_dir_all(parent).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent: OwnedFd = openat(CWD, parent, flags | OFlags::PATH, Mode::empty())?;
    mkdirat(&parent, name, NEW)?;
    // By descriptor and without following a link: programs of the sandbox may already run when a paused one is resumed.
    let made = openat(&parent, name, flags | OFlags::NOFOLLOW, Mode::empty())?;
    match users::find(user) {
        Ok(user) => fchown(&made, Some(Uid::from_raw(user.ids.uid)), Some(Gid::from_raw(user.ids.gid))),
        // Commands of a user that does not exist are refused when they start.
        Err(_) => Ok(()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn only_a_missing_directory_is_made_and_given_away() {
        let root = tempfile::tempdir().unwrap();
        let (old, new) = (root.path().join("old"), root.path().join("a/b/new"));
        std::fs::create_dir(&old).unwrap();
        let own = std::fs::metadata(&old).unwrap().uid();
        // Numbers need no entry in passwd. Only root can change the owner of a directory.
        let to = if own == 0 { "4321".to_owned() } else { own.to_string() };
        ensure(old.to_str().unwrap(), &to).unwrap();
        assert_eq!(std::fs::metadata(&old).unwrap().uid(), own);
        ensure(new.to_str().unwrap(), &to).unwrap();
        assert_eq!(std::fs::metadata(&new).unwrap().uid().to_string(), to);
        assert_eq!(std::fs::metadata(new.parent().unwrap()).unwrap().uid(), own);
        let link = root.path().join("link");
        std::os::unix::fs::symlink(root.path().join("nowhere"), &link).unwrap();
        assert!(ensure(link.to_str().unwrap(), &to).is_err());
    }
}
