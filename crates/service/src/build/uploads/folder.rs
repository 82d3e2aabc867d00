//! The uploads of one tenant on disk.
//!
//! ```text
//! TENANT/HASH                     a whole archive
//! TENANT/HASH.RANDOM.part         an archive that is being received
//! TENANT/HASH.UPLOAD.parts/00001  a part of a multipart upload; `N.RANDOM.part` while it is received
//! TENANT/HASH.UPLOAD.joining/     a multipart upload whose parts are being joined
//! ```
//!
//! A name appears by a rename when its content is complete. What a killed server was receiving or joining is removed at the
//! next start; parts that were received stay.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use atoll_model::TenantId;

use super::super::context::create;
use super::not_kept;
use crate::ServiceError;

/// LIMIT: how long an archive is kept that no build uses.
const KEPT: Duration = Duration::from_secs(24 * 3_600);
/// LIMIT: how long an upload is kept that no byte was added to; the credentials for it have expired then.
const UNFINISHED_KEPT: Duration = Duration::from_secs(2 * 3_600);
/// LIMIT: archives and unfinished uploads of a tenant.
pub(super) const ENTRIES_MAX: usize = 1_024;
const PART: &str = ".part";
const PARTS: &str = ".parts";
const JOINING: &str = ".joining";

/// The name that a sender gives an archive: a hash of what is in it. It is also the name of a file, and never a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadHash(String);

impl UploadHash {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The text is not the hash of an upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a hash has 16 to 128 letters and digits")]
pub struct BadUploadHash;

impl FromStr for UploadHash {
    type Err = BadUploadHash;

    fn from_str(text: &str) -> Result<Self, BadUploadHash> {
        let is_hash =
            (16..=128).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if is_hash { Ok(Self(text.to_owned())) } else { Err(BadUploadHash) }
    }
}

/// The folder of one tenant.
#[derive(Debug, Clone)]
pub(super) struct UploadFolder(PathBuf);

impl UploadFolder {
    pub(super) fn new(data: &Path, tenant: &TenantId) -> Self {
        Self(root(data).join(tenant.as_str()))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    pub(super) fn create(&self) -> io::Result<()> {
        create_folder(&self.0)
    }

    pub(super) fn archive(&self, hash: &UploadHash) -> PathBuf {
        self.0.join(hash.as_str())
    }

    /// The folder of a multipart upload, which is there.
    pub(super) fn parts(&self, hash: &UploadHash, upload: &str) -> Option<PathBuf> {
        let is_id = upload.bytes().all(|byte| byte.is_ascii_hexdigit());
        let parts = is_id.then(|| self.0.join(format!("{}.{upload}{PARTS}", hash.as_str())));
        parts.filter(|parts| parts.is_dir())
    }

    /// Makes the folder of a multipart upload with this id.
    pub(super) fn create_parts(&self, hash: &UploadHash, upload: &str) -> io::Result<()> {
        create_folder(&self.0.join(format!("{}.{upload}{PARTS}", hash.as_str())))
    }
}

/// The folder of all tenants.
pub(super) fn root(data: &Path) -> PathBuf {
    data.join("uploads")
}

fn create_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// A file that is being received; it is removed unless it is kept.
#[derive(Debug)]
pub(super) struct PartialFile(PathBuf);

impl PartialFile {
    pub(super) fn new(folder: &Path, name: &str, random: [u8; 8]) -> Self {
        Self(folder.join(format!("{name}.{}{PART}", hex::encode(random))))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Gives it its final name, in place of a file that has it.
    pub(super) fn keep(self, to: &Path) -> io::Result<()> {
        std::fs::rename(&self.0, to)
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

/// The name of a part's file: the order of names is the order of parts.
pub(super) fn part_name(number: u32) -> String {
    format!("{number:05}")
}

/// A multipart upload that no other request can change any more. It is removed when this is dropped.
#[derive(Debug)]
pub(super) struct JoinedParts {
    folder: PathBuf,
    /// In their order.
    pub(super) parts: Vec<PathBuf>,
    pub(super) bytes: u64,
}

impl JoinedParts {
    /// Takes the parts of an upload. `None` if there is no such upload; blocks.
    pub(super) fn take(parts: &Path) -> io::Result<Option<Self>> {
        let folder = parts.with_extension(&JOINING[1..]);
        match std::fs::rename(parts, &folder) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        }
        let mut taken = Self { folder, parts: Vec::new(), bytes: 0 };
        for entry in std::fs::read_dir(&taken.folder)? {
            let entry = entry?;
            // Parts that are still being received are not among them.
            if entry.file_name().to_string_lossy().bytes().all(|byte| byte.is_ascii_digit()) {
                taken.bytes += entry.metadata()?.len();
                taken.parts.push(entry.path());
            }
        }
        taken.parts.sort();
        Ok(Some(taken))
    }

    /// Gives the parts back, because they cannot be joined.
    pub(super) fn give_back(self) {
        let parts = self.folder.with_extension(&PARTS[1..]);
        if let Err(error) = std::fs::rename(&self.folder, parts) {
            tracing::warn!(folder = %self.folder.display(), %error, "the parts of an upload could not be given back");
        }
    }

    /// Writes all parts behind each other. Each part is removed when it is copied, so it takes no space twice; blocks.
    pub(super) fn write(
        &self,
        to: &Path,
        mut take: impl FnMut(u64) -> Result<(), ServiceError>,
    ) -> Result<(), ServiceError> {
        let mut out = create(to)?;
        for path in &self.parts {
            let mut part = File::open(path).map_err(not_kept)?;
            take(part.metadata().map_err(not_kept)?.len())?;
            io::copy(&mut part, &mut out).map_err(not_kept)?;
            std::fs::remove_file(path).map_err(not_kept)?;
        }
        Ok(())
    }
}

impl Drop for JoinedParts {
    fn drop(&mut self) {
        remove(&self.folder);
    }
}

/// An entry of a tenant's folder.
struct UploadEntry {
    path: PathBuf,
    used: SystemTime,
    bytes: u64,
    is_whole: bool,
}

fn entries(folder: &Path) -> Vec<UploadEntry> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let known = entries.flatten().filter_map(|entry| {
        let (metadata, path) = (entry.metadata().ok()?, entry.path());
        let bytes = if metadata.is_dir() { bytes_below(&path) } else { metadata.len() };
        // The name of a whole archive has no dot.
        let is_whole = path.extension().is_none();
        Some(UploadEntry { path, used: metadata.modified().ok()?, bytes, is_whole })
    });
    known.collect()
}

/// Bytes of all files below a folder.
pub(super) fn bytes_below(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => bytes_below(&entry.path()),
        Ok(found) => found.len(),
        Err(_) => 0,
    });
    sizes.sum()
}

/// Removes the least recently used archives until `more` bytes fit below the bound. Answers the bytes that are left; `None`
/// if unfinished uploads alone leave no room.
pub(super) fn make_room(folder: &Path, bound_bytes: u64, more: u64) -> Option<u64> {
    let mut all = entries(folder);
    all.sort_by_key(|entry| entry.used);
    let (mut bytes, mut count) = (all.iter().map(|entry| entry.bytes).sum::<u64>(), all.len());
    let fits = |bytes: u64, count: usize| bytes.saturating_add(more) <= bound_bytes && count <= ENTRIES_MAX;
    for archive in all.iter().filter(|entry| entry.is_whole) {
        if fits(bytes, count) {
            break;
        }
        remove(&archive.path);
        bytes -= archive.bytes;
        count -= 1;
    }
    fits(bytes, count).then_some(bytes)
}

/// Removes archives and unfinished uploads that were not used for long.
pub(super) fn sweep(root: &Path) {
    for_each_entry(root, |entry| {
        let kept = if entry.is_whole { KEPT } else { UNFINISHED_KEPT };
        if entry.used.elapsed().is_ok_and(|ago| ago > kept) {
            remove(&entry.path);
        }
    });
}

/// Removes what a server that ended was receiving or joining.
pub(super) fn recover(root: &Path) {
    for_each_entry(root, |entry| match entry.path.extension().and_then(|extension| extension.to_str()) {
        Some("part" | "joining") => remove(&entry.path),
        Some("parts") => {
            let parts = std::fs::read_dir(&entry.path).into_iter().flatten().flatten();
            parts.filter(|part| part.path().extension().is_some()).for_each(|part| remove(&part.path()));
        }
        _ => {}
    });
}

fn for_each_entry(root: &Path, act: impl Fn(&UploadEntry)) {
    for tenant in std::fs::read_dir(root).into_iter().flatten().flatten() {
        entries(&tenant.path()).iter().for_each(&act);
        // Only an empty folder is removed.
        let _ = std::fs::remove_dir(tenant.path());
    }
}

fn remove(path: &Path) {
    let removed = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
    if let Err(error) = removed
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "an upload could not be removed");
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn file(folder: &Path, name: &str, bytes: usize, age: Duration) {
        let path = folder.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, vec![0; bytes]).unwrap();
        File::options().append(true).open(&path).unwrap().set_modified(SystemTime::now() - age).unwrap();
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            entries(folder).iter().map(|e| e.path.file_name().unwrap().to_string_lossy().into()).collect();
        names.sort();
        names
    }

    const NOW: Duration = Duration::ZERO;
    const fn hours(hours: u64) -> Duration {
        Duration::from_secs(hours * 3_600)
    }

    #[test]
    fn a_hash_is_no_path() {
        assert!("a1".repeat(32).parse::<UploadHash>().is_ok());
        for bad in ["", "short", "../../../../etc/passwd", "a/aaaaaaaaaaaaaaaaaa", &"a".repeat(129)] {
            assert_eq!(bad.parse::<UploadHash>(), Err(BadUploadHash), "{bad}");
        }
    }

    #[test]
    fn the_least_recently_used_archives_make_room_and_unfinished_uploads_never_do() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        file(at, "old", 10, hours(3));
        file(at, "new", 10, hours(1));
        file(at, "x.1.part", 10, NOW);
        file(at, "x.2.parts/00001", 10, NOW);
        assert_eq!(make_room(at, 40, 0), Some(40));
        assert_eq!(make_room(at, 40, 10), Some(30));
        assert_eq!(names(at), ["new", "x.1.part", "x.2.parts"]);
        assert_eq!(make_room(at, 40, 21), None);
        assert_eq!(names(at), ["x.1.part", "x.2.parts"], "archives went in vain");
    }

    #[test]
    fn the_number_of_entries_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..ENTRIES_MAX {
            std::fs::create_dir(folder.path().join(format!("{number}.x.parts"))).unwrap();
        }
        file(folder.path(), "archive", 1, NOW);
        assert_eq!(make_room(folder.path(), 100, 1), Some(0));
        std::fs::create_dir(folder.path().join("more.x.parts")).unwrap();
        assert_eq!(make_room(folder.path(), 100, 1), None);
    }

    #[test]
    fn a_sweep_removes_what_was_not_used_for_long() {
        let root = tempfile::tempdir().unwrap();
        let tenant = root.path().join("tenant");
        file(&tenant, "fresh", 1, hours(23));
        file(&tenant, "stale", 1, hours(25));
        file(&tenant, "a.1.part", 1, hours(1));
        file(&tenant, "b.2.part", 1, hours(3));
        file(&root.path().join("gone"), "stale", 1, hours(25));
        sweep(root.path());
        assert_eq!(names(&tenant), ["a.1.part", "fresh"]);
        sweep(root.path());
        assert!(!root.path().join("gone").exists());
    }

    #[test]
    fn a_start_removes_what_was_half_received_and_keeps_parts() {
        let root = tempfile::tempdir().unwrap();
        let tenant = root.path().join("tenant");
        for name in ["whole", "a.1.part", "b.2.joining/00001", "c.3.parts/00001", "c.3.parts/2.7.part"] {
            file(&tenant, name, 1, NOW);
        }
        recover(root.path());
        assert_eq!(names(&tenant), ["c.3.parts", "whole"]);
        assert_eq!(names(&tenant.join("c.3.parts")), ["00001"]);
    }

    #[test]
    fn parts_are_joined_once_in_the_order_of_their_numbers() {
        let folder = tempfile::tempdir().unwrap();
        let parts = folder.path().join("hash.0.parts");
        std::fs::create_dir(&parts).unwrap();
        for (number, text) in [(10, "c"), (2, "b"), (1, "a")] {
            std::fs::write(parts.join(part_name(number)), text).unwrap();
        }
        std::fs::write(parts.join("3.ab.part"), "half").unwrap();
        let joined = JoinedParts::take(&parts).unwrap().unwrap();
        assert!(JoinedParts::take(&parts).unwrap().is_none(), "another request finds no upload");
        assert_eq!(joined.bytes, 3);
        joined.give_back();
        let joined = JoinedParts::take(&parts).unwrap().unwrap();
        let whole = folder.path().join("whole");
        joined.write(&whole, |_| Ok(())).unwrap();
        drop(joined);
        assert_eq!(std::fs::read_to_string(&whole).unwrap(), "abc");
        assert_eq!(names(folder.path()), ["whole"]);
    }
}
