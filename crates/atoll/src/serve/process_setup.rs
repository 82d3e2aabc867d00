//! Prepares the server's own process: session, descriptors, priority, state folder.
//!
//! The machine is not changed: every step is about this process or about DATA.

use std::{
    fs::{self, DirBuilder},
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit, setsid};

use crate::failure::Failure;

/// Leaves the terminal's session, so that the server outlives it.
pub(super) fn leave_session() {
    // Refused only for the leader of a process group, which a background server never is.
    let _ = setsid();
}

/// Raises the soft limit of open files to the hard one: every live sandbox uses a few.
pub(super) fn raise_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if limit.current != limit.maximum && setrlimit(Resource::Nofile, raised).is_err() {
        tracing::warn!("the limit of open files could not be raised");
    }
}

/// Makes the OOM killer choose other processes first. Needs a privilege that containers often lack.
pub(super) fn spare_from_oom() {
    if let Err(cause) = fs::write("/proc/self/oom_score_adj", "-500") {
        tracing::debug!(%cause, "oom_score_adj could not be set");
    }
}

/// Makes DATA, accessible only to its owner, and returns its full path.
pub(crate) fn open_data(data: &Path) -> Result<PathBuf, Failure> {
    let cannot = |what: &str, e: std::io::Error| {
        Failure::new("io", format!("{} cannot be {what}: {e}", data.display()))
            .hint("choose another folder with --data, or use sudo")
    };
    DirBuilder::new().recursive(true).mode(0o700).create(data).map_err(|e| cannot("made", e))?;
    let whole = data.canonicalize().map_err(|e| cannot("found", e))?;
    let about = fs::metadata(&whole).map_err(|e| cannot("read", e))?;
    if about.uid() != rustix::process::geteuid().as_raw() {
        return Err(Failure::new("forbidden", format!("{} belongs to another user", whole.display()))
            .hint("the data folder must belong to the user of the server; choose another with --data"));
    }
    if about.mode() & 0o077 != 0 {
        fs::set_permissions(&whole, fs::Permissions::from_mode(0o700))
            .map_err(|e| cannot("closed to others", e))?;
    }
    if atoll_backup::is_unfinished(&whole) {
        let message = format!("a restore into {} has not ended", whole.display());
        return Err(Failure::new("unfinished_restore", message)
            .hint("run `atoll server restore` again, which starts over; or remove the folder with `atoll server uninstall`"));
    }
    Ok(whole)
}

/// The embedded engine needs root; checked early, with a clear error.
pub(super) fn need_root() -> Result<(), Failure> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(Failure::new("forbidden", "the server needs root to create namespaces, mounts and limits")
        .hint("sudo atoll serve"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_folder_is_closed_to_others() {
        let parent = tempfile::tempdir().expect("temporary folder");
        let data = parent.path().join("a/b");
        let whole = open_data(&data).expect("writable");
        assert_eq!(fs::metadata(&whole).expect("made").mode() & 0o777, 0o700);
        fs::set_permissions(&whole, fs::Permissions::from_mode(0o755)).expect("ours");
        open_data(&data).expect("there already");
        assert_eq!(fs::metadata(&whole).expect("made").mode() & 0o777, 0o700);
    }
}
