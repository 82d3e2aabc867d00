//! Folders of the host as volumes: only below roots that the operator allowed, and without following links.

use std::path::{Component, Path, PathBuf};

use atoll_model::Code;
use rustix::fs::{Mode, OFlags, ResolveFlags};

use crate::{ServiceConfig, ServiceError};

/// Returns the folder as it may be mounted. It is looked up from the root's descriptor, part by part and without links,
/// so that the checked folder is the mounted one.
pub(super) fn check(config: &ServiceConfig, folder: &str) -> Result<PathBuf, ServiceError> {
    let refused = |why: &str| {
        Err(ServiceError::new(Code::Forbidden, format!("folder: {why}"))
            .hint("the operator can allow folders: atoll serve --volume-root"))
    };
    let path = Path::new(folder);
    let is_clean = path.is_absolute()
        && !folder.contains('\0')
        && path.components().skip(1).all(|part| matches!(part, Component::Normal(_)))
        && !folder.split('/').any(|part| part == "." || part == "..");
    if !is_clean {
        return refused("must be an absolute path without . and ..");
    }
    let Some((root, below)) = config
        .volume_roots
        .iter()
        .filter(|root| root.as_path() != Path::new("/"))
        .find_map(|root| path.strip_prefix(root).ok().map(|below| (root, below)))
    else {
        return refused(&format!("{folder} is not below a folder that the operator allowed"));
    };
    if !opens(root, below) {
        return refused("there is no such folder, or a part of its path is a link");
    }
    // Write access to the data folder would give control of this server.
    let data = config.data.canonicalize().unwrap_or_else(|_| config.data.clone());
    if path.starts_with(&data) || data.starts_with(path) {
        return refused("it contains files of this server");
    }
    Ok(root.join(below))
}

fn opens(root: &Path, below: &Path) -> bool {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let below = if below.as_os_str().is_empty() { Path::new(".") } else { below };
    rustix::fs::openat2(rustix::fs::CWD, root, flags, Mode::empty(), resolve)
        .and_then(|root| {
            rustix::fs::openat2(&root, below, flags, Mode::empty(), resolve | ResolveFlags::BENEATH)
        })
        .is_ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_folders_below_a_root_and_without_links_are_taken() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        for folder in ["roots/a/b", "other", "data/x"] {
            std::fs::create_dir_all(top.join(folder)).unwrap();
        }
        std::fs::write(top.join("roots/file"), "x").unwrap();
        std::os::unix::fs::symlink("/etc", top.join("roots/etc")).unwrap();
        std::os::unix::fs::symlink("a", top.join("roots/inner")).unwrap();
        let mut config = ServiceConfig::new(top.join("data"));
        config.volume_roots = vec![top.join("roots"), PathBuf::from("/"), top.join("data")];
        let at = |path: &str| check(&config, top.join(path).to_str().unwrap());
        assert_eq!(at("roots/a/b").unwrap(), top.join("roots/a/b"));
        assert_eq!(at("roots").unwrap(), top.join("roots"));
        for bad in [
            "other",
            "roots/etc",
            "roots/inner/b",
            "roots/file",
            "roots/none",
            "roots/a/../../other",
            "data/x",
            "rootsx",
        ] {
            assert_eq!(at(bad).unwrap_err().code, Code::Forbidden, "{bad}");
        }
        for bad in ["/", "/etc", "", "roots/a", "/proc/self/root/etc", "/etc/\0"] {
            assert_eq!(check(&config, bad).unwrap_err().code, Code::Forbidden, "{bad}");
        }
    }
}
