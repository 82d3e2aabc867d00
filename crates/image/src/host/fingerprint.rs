//! The state of the host that a template was made from, and the check whether it is still current.
//!
//! The check before a start is four system calls; contents are hashed only when a time or size differs.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::HostSource;
use crate::error::{HostChanged, TemplateError};
use crate::template::Template;

/// Increased when skeleton, mask or their rules change, so that an old template does not count as current.
const RECIPE: u32 = 2;

/// The package manager's list of packages.
const PACKAGES: &str = "var/lib/dpkg/status";

/// Files that change whenever a package is installed, removed or upgraded.
const WATCHED: &[&str] = &[PACKAGES, "etc/ld.so.cache"];

/// A state of the host's packages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    recipe: u32,
    with_local: bool,
    usr: PathBuf,
    usr_identity: Identity,
    files: Vec<FileState>,
}

/// The file system and folder of `/usr`. The id of the file system survives a reboot; a device number may not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Identity {
    filesystem: u64,
    inode: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct FileState {
    path: PathBuf,
    /// `None` on hosts without this package manager.
    seen: Option<PackageDatabase>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct PackageDatabase {
    modified_s: i64,
    modified_ns: i64,
    size: u64,
    sha256: String,
}

impl Fingerprint {
    /// Takes the fingerprint of the current state of a host.
    pub(crate) fn take(source: &HostSource) -> Result<Self, TemplateError> {
        let usr = source.usr();
        let usr_identity = identity(&usr).map_err(TemplateError::io("identify", &usr))?;
        let files = WATCHED
            .iter()
            .map(|relative| {
                let path = source.root.join(relative);
                let seen = look(&path).map_err(TemplateError::io("read", &path))?;
                Ok(FileState { path, seen })
            })
            .collect::<Result<_, TemplateError>>()?;
        Ok(Self { recipe: RECIPE, with_local: source.with_local, usr, usr_identity, files })
    }

    /// The name of the state: equal contents give equal names, whatever the times are.
    pub fn id(&self) -> String {
        let mut hash = Sha256::new();
        hash.update(format!(
            "{} {} {:x} {:x}\n",
            self.recipe, self.with_local, self.usr_identity.filesystem, self.usr_identity.inode
        ));
        for file in &self.files {
            let content = file.seen.as_ref().map_or("absent", |seen| seen.sha256.as_str());
            hash.update(format!("{} {content}\n", file.path.display()));
        }
        hex::encode(&hash.finalize()[..12])
    }

    /// Whether this was made by the rules of this program, for the same choice of folders.
    pub(crate) fn fits(&self, source: &HostSource) -> bool {
        self.recipe == RECIPE && self.with_local == source.with_local && self.usr == source.usr()
    }

    /// Whether the host is still in this state.
    pub(crate) fn check(&self) -> Result<(), HostChanged> {
        let changed = |path: &Path| HostChanged { what: path.display().to_string() };
        if identity(&self.usr).ok() != Some(self.usr_identity) {
            return Err(changed(&self.usr));
        }
        for file in &self.files {
            if !file.unchanged() {
                return Err(changed(&file.path));
            }
        }
        Ok(())
    }
}

/// Whether a sandbox of this template may start again. Costs a few system calls; always succeeds for templates other
/// than `host`.
pub fn verify_host(template: &Template) -> Result<(), HostChanged> {
    template.host.as_ref().map_or(Ok(()), Fingerprint::check)
}

impl FileState {
    fn unchanged(&self) -> bool {
        match (&self.seen, std::fs::metadata(&self.path)) {
            (None, Err(cause)) => cause.kind() == std::io::ErrorKind::NotFound,
            (Some(seen), Ok(now))
                if (seen.modified_s, seen.modified_ns, seen.size)
                    == (now.mtime(), now.mtime_nsec(), now.size()) =>
            {
                true
            }
            // Rewritten with the same content: still the same state.
            (Some(seen), Ok(_)) => hash_watched(&self.path).is_ok_and(|sha256| sha256 == seen.sha256),
            _ => false,
        }
    }
}

fn identity(usr: &Path) -> std::io::Result<Identity> {
    let filesystem = rustix::fs::statvfs(usr)?.f_fsid;
    Ok(Identity { filesystem, inode: std::fs::metadata(usr)?.ino() })
}

fn look(path: &Path) -> std::io::Result<Option<PackageDatabase>> {
    let before = match std::fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(cause) => return Err(cause),
    };
    // Times are read before the content: a change in between is detected by the next check.
    Ok(Some(PackageDatabase {
        modified_s: before.mtime(),
        modified_ns: before.mtime_nsec(),
        size: before.size(),
        sha256: hash_watched(path)?,
    }))
}

/// The SHA-256 of a watched file, in hex. Atoll's own package does not count in the list of packages: sandboxes use nothing
/// of it, and an upgrade of the server must not refuse their start.
fn hash_watched(path: &Path) -> std::io::Result<String> {
    if !path.ends_with(PACKAGES) {
        return hash_file(path);
    }
    let mut lines = BufReader::new(std::fs::File::open(path)?);
    let (mut hash, mut line, mut is_own) = (Sha256::new(), Vec::new(), false);
    while lines.read_until(b'\n', &mut line)? > 0 {
        if line.starts_with(b"Package: ") {
            is_own = line == b"Package: atoll\n";
        }
        if !is_own {
            hash.update(&line);
        }
        line.clear();
    }
    Ok(hex::encode(hash.finalize()))
}

/// The SHA-256 of a file, in hex.
pub(crate) fn hash_file(path: &Path) -> std::io::Result<String> {
    let mut file = std::fs::File::open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex::encode(hash.finalize())),
            n => hash.update(&buffer[..n]),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn host() -> (tempfile::TempDir, HostSource) {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["usr", "etc", "var/lib/dpkg"] {
            std::fs::create_dir_all(dir.path().join(folder)).unwrap();
        }
        std::fs::write(dir.path().join("var/lib/dpkg/status"), "Package: a\n").unwrap();
        std::fs::write(dir.path().join("etc/ld.so.cache"), "cache").unwrap();
        let source = HostSource { root: dir.path().to_owned(), with_local: false };
        (dir, source)
    }

    #[test]
    fn an_untouched_host_passes() {
        let (_dir, source) = host();
        Fingerprint::take(&source).unwrap().check().unwrap();
    }

    #[test]
    fn an_upgrade_of_the_same_size_is_noticed_and_named() {
        let (dir, source) = host();
        let taken = Fingerprint::take(&source).unwrap();
        std::fs::write(dir.path().join("var/lib/dpkg/status"), "Package: b\n").unwrap();
        assert!(taken.check().unwrap_err().what.ends_with("var/lib/dpkg/status"));
        assert_ne!(taken.id(), Fingerprint::take(&source).unwrap().id());
    }

    #[test]
    fn the_same_content_written_again_is_the_same_state() {
        let (dir, source) = host();
        let taken = Fingerprint::take(&source).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        std::fs::write(dir.path().join("etc/ld.so.cache"), "cache").unwrap();
        taken.check().unwrap();
        assert_eq!(taken.id(), Fingerprint::take(&source).unwrap().id());
    }

    #[test]
    fn an_upgrade_or_removal_of_atoll_itself_is_the_same_state() {
        let (dir, source) = host();
        let write = |text: &str| std::fs::write(dir.path().join(PACKAGES), text).unwrap();
        let (before, after) = ("Package: a\nVersion: 1\n\n", "Package: atoll-other\nVersion: 1\n\n");
        write(&format!("{before}Package: atoll\nVersion: 1\nDescription: a\n Package: a\n\n{after}"));
        let taken = Fingerprint::take(&source).unwrap();
        write(&format!("{before}Package: atoll\nVersion: 1.10\n\n{after}"));
        taken.check().unwrap();
        assert_eq!(taken.id(), Fingerprint::take(&source).unwrap().id());
        write(&format!("{before}{after}"));
        taken.check().unwrap();
        write(before);
        assert!(taken.check().is_err(), "another package was removed");
    }

    #[test]
    fn another_usr_in_its_place_is_noticed() {
        let (dir, source) = host();
        let taken = Fingerprint::take(&source).unwrap();
        std::fs::rename(dir.path().join("usr"), dir.path().join("usr.old")).unwrap();
        std::fs::create_dir(dir.path().join("usr")).unwrap();
        assert!(taken.check().unwrap_err().what.ends_with("usr"));
    }

    #[test]
    fn a_host_without_dpkg_passes_until_it_gets_one() {
        let (dir, source) = host();
        std::fs::remove_file(dir.path().join("var/lib/dpkg/status")).unwrap();
        let taken = Fingerprint::take(&source).unwrap();
        taken.check().unwrap();
        std::fs::write(dir.path().join("var/lib/dpkg/status"), "").unwrap();
        assert!(taken.check().is_err());
    }
}
