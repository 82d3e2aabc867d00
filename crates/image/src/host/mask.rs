//! Hides parts of the host's `/usr`: a folder of whiteouts that the engine stacks above it.
//!
//! Root in a sandbox has the permissions of the host's root on these files, so a file that only root may read would be
//! readable. Everything that other users may not read on the host is therefore whited out; so are mount points,
//! sockets, pipes and devices. `/usr/local` and `/usr/src` are replaced by empty folders. Debian's marker file that
//! keeps pip from installing packages is hidden too, because packages in a sandbox cannot harm the host.
//!
//! Setuid programs stay visible: host templates are not `sudo`, so no_new_privs disables the setuid bit, and in a user
//! namespace it could give no more than that namespace's root.

use std::collections::HashSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, XattrFlags};

use super::HostSource;
use super::skeleton::{self, FolderOwner};
use crate::error::TemplateError;

/// Folders that are replaced by empty ones by default, with the subfolders that programs expect in them.
const EMPTIED: &[(&str, &[&str])] =
    &[("local", &["bin", "etc", "games", "include", "lib", "sbin", "share", "src"]), ("src", &[])];

/// Makes the mask for the host's `/usr`.
pub(crate) fn build(source: &HostSource, mask: &Path) -> Result<(), TemplateError> {
    let usr = std::fs::canonicalize(source.usr()).map_err(TemplateError::io("find", &source.usr()))?;
    same_folder(&usr, mask)?;
    for hidden in hidden(&usr, source.with_local)? {
        let relative = hidden.strip_prefix(&usr).expect("the walk begins at /usr");
        parents(&usr, mask, relative)?;
        whiteout(&mask.join(relative))?;
    }
    if !source.with_local {
        for (name, inside) in EMPTIED.iter().filter(|(name, _)| usr.join(name).is_dir()) {
            empty(&mask.join(name), inside)?;
        }
    }
    Ok(())
}

/// Debian's marker that pip must not install packages for the system's Python.
fn is_pip_refusal(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == "EXTERNALLY-MANAGED")
        && path
            .parent()
            .and_then(Path::file_name)
            .is_some_and(|folder| folder.as_encoded_bytes().starts_with(b"python3"))
}

/// Every path to hide, topmost only: everything below a hidden folder is hidden with it.
fn hidden(usr: &Path, with_local: bool) -> Result<Vec<PathBuf>, TemplateError> {
    let table = Path::new("/proc/self/mountinfo");
    let mounts = mount_points(&std::fs::read(table).map_err(TemplateError::io("read", table))?, usr);
    let device = std::fs::metadata(usr).map_err(TemplateError::io("stat", usr))?.dev();
    let mut hidden = Vec::new();
    let mut open = vec![usr.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(&folder).map_err(TemplateError::io("list", &folder))? {
            let entry = entry.map_err(TemplateError::io("list", &folder))?;
            let path = entry.path();
            let kind = entry.file_type().map_err(TemplateError::io("stat", &path))?;
            let emptied =
                !with_local && folder == *usr && EMPTIED.iter().any(|(name, _)| entry.file_name() == *name);
            if kind.is_symlink() || emptied && kind.is_dir() {
                continue;
            }
            let metadata = match entry.metadata() {
                Ok(metadata) => metadata,
                // Removed during the walk; a package is being changed, which the fingerprint detects.
                Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => continue,
                Err(cause) => return Err(TemplateError::io("stat", &path)(cause)),
            };
            let needed = if kind.is_dir() { 0o005 } else { 0o004 };
            let public =
                metadata.permissions().mode() & needed == needed && (kind.is_dir() || kind.is_file());
            if !public || metadata.dev() != device || mounts.contains(&path) || is_pip_refusal(&path) {
                hidden.push(path);
            } else if kind.is_dir() {
                open.push(path);
            }
        }
    }
    hidden.sort();
    Ok(hidden)
}

/// The mount points below `usr`, from a mount table in the kernel's format.
fn mount_points(table: &[u8], usr: &Path) -> HashSet<PathBuf> {
    let fields =
        table.split(|byte| *byte == b'\n').filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    fields.map(unescape).filter(|point| point.starts_with(usr) && point != usr).collect()
}

/// A path of mountinfo, in which space, tab, newline and backslash are written as `\ooo`.
fn unescape(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail
            .get(..3)
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match octal {
            Some(byte) if first == b'\\' => {
                out.push(byte);
                rest = &tail[3..];
            }
            _ => {
                out.push(first);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

/// Makes the folders above a whiteout. Owner and mode of the upper folder are visible, so they are copied.
fn parents(usr: &Path, mask: &Path, relative: &Path) -> Result<(), TemplateError> {
    let mut above: Vec<&Path> =
        relative.ancestors().skip(1).filter(|path| !path.as_os_str().is_empty()).collect();
    above.reverse();
    above
        .into_iter()
        .filter(|path| !mask.join(path).exists())
        .try_for_each(|path| same_folder(&usr.join(path), &mask.join(path)))
}

fn same_folder(original: &Path, copy: &Path) -> Result<(), TemplateError> {
    let metadata = std::fs::metadata(original).map_err(TemplateError::io("stat", original))?;
    skeleton::folder(copy, metadata.permissions().mode() & 0o7777, FolderOwner::Root)?;
    chown(copy, Some(metadata.uid()), Some(metadata.gid())).map_err(TemplateError::io("give away", copy))
}

/// Makes a whiteout of the overlay: a character device 0:0.
fn whiteout(path: &Path) -> Result<(), TemplateError> {
    rustix::fs::mknodat(CWD, path, FileType::CharacterDevice, Mode::empty(), rustix::fs::makedev(0, 0))
        .map_err(|errno| TemplateError::io("white out", path)(errno.into()))
}

/// A folder that hides the one below it instead of adding to it.
fn empty(path: &Path, inside: &[&str]) -> Result<(), TemplateError> {
    skeleton::folder(path, 0o755, FolderOwner::Root)?;
    rustix::fs::setxattr(path, "trusted.overlay.opaque", b"y", XattrFlags::empty())
        .map_err(|errno| TemplateError::io("make opaque", path)(errno.into()))?;
    inside.iter().try_for_each(|name| skeleton::folder(&path.join(name), 0o755, FolderOwner::Root))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_mounted_below_usr_counts() {
        let table = b"22 1 254:0 / / rw - ext4 /dev/vda rw\n\
                      30 22 0:30 / /usr rw - ext4 /dev/vdb rw\n\
                      31 30 0:31 / /usr/share/secret\\040box rw shared:1 - tmpfs none rw\n\
                      32 22 0:32 / /usrlocal rw - tmpfs none rw\n\nshort line\n";
        let points = mount_points(table, Path::new("/usr"));
        assert_eq!(points, HashSet::from([PathBuf::from("/usr/share/secret box")]));
    }

    #[test]
    fn only_debians_mark_for_pip_is_hidden_for_what_it_is() {
        assert!(is_pip_refusal(Path::new("/usr/lib/python3.11/EXTERNALLY-MANAGED")));
        for path in ["/usr/lib/python3.11/os.py", "/usr/share/doc/EXTERNALLY-MANAGED", "/EXTERNALLY-MANAGED"]
        {
            assert!(!is_pip_refusal(Path::new(path)), "{path}");
        }
    }

    #[test]
    fn escaped_mount_points_are_read() {
        assert_eq!(unescape(br"/usr/with\040space\134"), PathBuf::from("/usr/with space\\"));
        assert_eq!(unescape(br"/plain\x"), PathBuf::from(r"/plain\x"));
        assert_eq!(unescape(br"/end\04"), PathBuf::from(r"/end\04"));
    }
}
