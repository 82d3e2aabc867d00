//! Accesses the files of a volume without a sandbox, while sandboxes change them: every file is opened relative to a
//! descriptor.
//!
//! Links on the path are resolved inside of the volume, as if it were the root of the file system. The last name of a
//! path is never followed for an operation that makes, changes, moves or removes an entry. Pipes, sockets and devices
//! are never opened.

use std::collections::BinaryHeap;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Uid};
use rustix::io::Errno;

use super::format::IDS;

/// LIMIT: how often a lookup is repeated because a sandbox moved folders meanwhile.
const RETRIES: usize = 32;
/// LIMIT: the depth of a listing.
const DEPTH_MOST: u32 = 64;
/// LIMIT: bytes of one path, as in the kernel.
const PATH_MOST: usize = 4_095;

/// The folder of one volume.
#[derive(Debug)]
pub struct VolumeFolder {
    root: OwnedFd,
}

/// What to give an entry.
#[derive(Debug, Clone, Copy, Default)]
pub struct EntryAttributes {
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub mode: Option<u32>,
}

/// One entry.
#[derive(Debug)]
pub struct OpenedEntry {
    pub path: String,
    pub stat: Stat,
    pub target: Option<String>,
}

impl OpenedEntry {
    pub fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }
}

impl EntryAttributes {
    fn check(&self) -> io::Result<()> {
        let is_known = |id: Option<u32>| id.is_none_or(|id| id < IDS);
        if is_known(self.uid) && is_known(self.gid) {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::InvalidInput, "no sandbox can have this user or group"))
    }

    /// The permissions without setuid and setgid.
    fn mode_or(&self, usual: u32) -> Mode {
        Mode::from_raw_mode(self.mode.unwrap_or(usual) & 0o1777)
    }

    fn ids(&self) -> (Option<Uid>, Option<Gid>) {
        (self.uid.map(Uid::from_raw), self.gid.map(Gid::from_raw))
    }
}

impl VolumeFolder {
    pub fn new(root: OwnedFd) -> Self {
        Self { root }
    }

    /// One entry; a link itself.
    pub fn stat(&self, path: &str) -> io::Result<OpenedEntry> {
        let (folder, name) = match split(path)? {
            Some((above, name)) => (self.folder(above)?, name),
            None => (self.root.try_clone()?, "."),
        };
        found(&folder, name, clean(path))
    }

    /// What is in a folder, down to `depth`, in the order of names; `most` entries at most.
    pub fn list(&self, path: &str, depth: u32, most: usize) -> io::Result<Vec<OpenedEntry>> {
        let mut all = Vec::new();
        let path = clean(path);
        let folder = self.open(trimmed(&path), OFlags::RDONLY | OFlags::DIRECTORY)?;
        list_into(&folder, path.trim_end_matches('/'), depth.clamp(1, DEPTH_MOST), most, &mut all)?;
        Ok(all)
    }

    /// Opens a regular file to be read.
    pub fn read(&self, path: &str) -> io::Result<(OpenedEntry, File)> {
        let path = clean(path);
        let node = self.open(trimmed(&path), OFlags::PATH)?;
        let stat = rustix::fs::fstat(&node)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {}
            FileType::Directory => return Err(io::ErrorKind::IsADirectory.into()),
            _ => return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file")),
        }
        // Opens the node that was checked, whatever has its name by now.
        let again = format!("/proc/self/fd/{}", node.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(CWD, again, flags, Mode::empty())?;
        Ok((OpenedEntry { path, stat, target: None }, file.into()))
    }

    /// Begins a file that has no name yet, on the disk of the folder that it is to be in.
    pub fn begin(&self, path: &str, owner: EntryAttributes, parents: bool) -> io::Result<Draft> {
        owner.check()?;
        let (above, name) = split(path)?.ok_or(io::ErrorKind::IsADirectory)?;
        let folder = if parents { self.make_all(above, owner)? } else { self.folder(above)? };
        let before = rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW).ok();
        if before.is_some_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory) {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        let before = before.filter(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
        let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&folder, ".", flags, Mode::from_raw_mode(0o600))?.into();
        Ok(Draft { folder, name: name.to_owned(), path: clean(path), file, owner, before })
    }

    /// Makes a folder. With `parents` those above it too, and one that is there is fine.
    pub fn make_folder(&self, path: &str, owner: EntryAttributes, parents: bool) -> io::Result<OpenedEntry> {
        owner.check()?;
        let Some((above, name)) = split(path)? else {
            return if parents { self.stat("/") } else { Err(io::ErrorKind::AlreadyExists.into()) };
        };
        let folder = if parents { self.make_all(above, owner)? } else { self.folder(above)? };
        match make(&folder, name, owner, owner.mode_or(0o755)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && parents => {
                self.open(trimmed(path), OFlags::PATH | OFlags::DIRECTORY)?;
            }
            other => other?,
        }
        found(&folder, name, clean(path))
    }

    /// Changes owner and permissions of an entry; a link has only the former.
    pub fn change(&self, path: &str, owner: EntryAttributes) -> io::Result<OpenedEntry> {
        owner.check()?;
        let (folder, name) = match split(path)? {
            Some((above, name)) => (self.folder(above)?, name),
            None => (self.root.try_clone()?, "."),
        };
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let node = rustix::fs::openat(&folder, name, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&node)?;
        let (uid, gid) = owner.ids();
        rustix::fs::chownat(&node, "", uid, gid, AtFlags::EMPTY_PATH)?;
        if owner.mode.is_some() && FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
            let at = format!("/proc/self/fd/{}", node.as_raw_fd());
            rustix::fs::chmodat(CWD, at, owner.mode_or(0), AtFlags::empty())?;
        }
        found(&folder, name, clean(path))
    }

    /// Moves an entry; a file in the way is replaced.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<OpenedEntry> {
        let root = || io::Error::new(io::ErrorKind::InvalidInput, "the volume itself cannot be moved");
        let ((from_above, old), (to_above, new)) =
            (split(from)?.ok_or_else(root)?, split(to)?.ok_or_else(root)?);
        let (old_folder, new_folder) = (self.folder(from_above)?, self.folder(to_above)?);
        rustix::fs::renameat(&old_folder, old, &new_folder, new)?;
        found(&new_folder, new, clean(to))
    }

    /// Takes an entry away: a folder is moved to `aside` under a name of ours, to be removed there; `true` says so.
    pub fn take_away(&self, path: &str, aside: &OwnedFd, as_name: &str) -> io::Result<bool> {
        let root = || io::Error::new(io::ErrorKind::InvalidInput, "the volume itself is removed by its name");
        let (above, name) = split(path)?.ok_or_else(root)?;
        let folder = self.folder(above)?;
        let stat = rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            rustix::fs::renameat(&folder, name, aside, as_name)?;
            return Ok(true);
        }
        rustix::fs::unlinkat(&folder, name, AtFlags::empty())?;
        Ok(false)
    }

    /// Opens a folder for a mount: no link on the way, made where it is missing, for everybody to write.
    pub fn for_mount(&self, sub_path: Option<&str>, new: Option<EntryAttributes>) -> io::Result<OwnedFd> {
        let mut folder = self.root.try_clone()?;
        for name in sub_path.into_iter().flat_map(|path| path.split('/')) {
            if matches!(name, "" | "." | "..") {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            folder = match (open_strictly(&folder, name), new) {
                (Err(error), Some(owner)) if error.kind() == io::ErrorKind::NotFound => {
                    match make(&folder, name, owner, owner.mode_or(0o755)) {
                        // Another sandbox made it first.
                        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                        other => other?,
                    }
                    open_strictly(&folder, name)?
                }
                (opened, _) => opened?,
            };
        }
        Ok(folder)
    }

    /// Opens a folder of the volume.
    fn folder(&self, path: &str) -> io::Result<OwnedFd> {
        self.open(path, OFlags::PATH | OFlags::DIRECTORY)
    }

    /// Opens a path; the result is inside of the volume whatever the path contains.
    fn open(&self, path: &str, how: OFlags) -> io::Result<OwnedFd> {
        let path = if path.is_empty() { "." } else { path };
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
        for _ in 0..RETRIES {
            match rustix::fs::openat2(&self.root, path, how | OFlags::CLOEXEC, Mode::empty(), resolve) {
                Err(Errno::AGAIN) => {}
                other => return Ok(other?),
            }
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }

    /// Opens a folder; missing folders on the path are made.
    fn make_all(&self, path: &str, owner: EntryAttributes) -> io::Result<OwnedFd> {
        let mut so_far = String::new();
        let mut folder = self.root.try_clone()?;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            so_far.push('/');
            so_far.push_str(name);
            folder = match self.folder(trimmed(&so_far)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    match make(&folder, name, owner, Mode::from_raw_mode(0o755)) {
                        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                        other => other?,
                    }
                    self.folder(trimmed(&so_far))?
                }
                opened => opened?,
            };
        }
        Ok(folder)
    }
}

/// A folder of the host, and the owner of `path`. The path was checked to be allowed and free of symbolic links, and
/// must still have none.
pub fn host_folder(
    path: &Path,
    sub_path: Option<&str>,
    read_only: bool,
) -> io::Result<(OwnedFd, (u32, u32))> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    if !path.is_absolute() {
        return Err(io::ErrorKind::NotFound.into());
    }
    let folder = rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?;
    let stat = rustix::fs::fstat(&folder)?;
    let owner = (stat.st_uid, stat.st_gid);
    // No folder is made through a read-only mount.
    let new =
        (!read_only).then_some(EntryAttributes { uid: Some(owner.0), gid: Some(owner.1), mode: Some(0o755) });
    Ok((VolumeFolder::new(folder).for_mount(sub_path, new)?, owner))
}

/// A file that has no name yet; dropped, it is gone.
#[derive(Debug)]
pub struct Draft {
    folder: OwnedFd,
    name: String,
    path: String,
    pub file: File,
    owner: EntryAttributes,
    before: Option<Stat>,
}

impl Draft {
    /// Gives it owner, permissions and name in one step. What had the name is replaced, and what it was stays where nothing else
    /// was asked for.
    pub fn publish(self) -> io::Result<OpenedEntry> {
        let usual =
            self.before.map_or((0, 0, 0o644), |stat| (stat.st_uid, stat.st_gid, stat.st_mode & 0o777));
        let ids = (self.owner.uid.unwrap_or(usual.0), self.owner.gid.unwrap_or(usual.1));
        rustix::fs::fchown(&self.file, Some(Uid::from_raw(ids.0)), Some(Gid::from_raw(ids.1)))?;
        rustix::fs::fchmod(&self.file, self.owner.mode_or(usual.2))?;
        self.file.sync_data()?;
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(io::Error::other)?;
        let passing = format!(".atoll-{}", hex::encode(random));
        let own = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        rustix::fs::linkat(CWD, own, &self.folder, &passing, AtFlags::SYMLINK_FOLLOW)?;
        if let Err(error) = rustix::fs::renameat(&self.folder, &passing, &self.folder, &self.name) {
            let _ = rustix::fs::unlinkat(&self.folder, &passing, AtFlags::empty());
            return Err(error.into());
        }
        found(&self.folder, &self.name, self.path)
    }
}

fn make(folder: &OwnedFd, name: &str, owner: EntryAttributes, mode: Mode) -> io::Result<()> {
    rustix::fs::mkdirat(folder, name, Mode::from_raw_mode(0o700))?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let made = rustix::fs::openat(folder, name, flags, Mode::empty())?;
    let (uid, gid) = owner.ids();
    rustix::fs::fchown(&made, uid, gid)?;
    // mkdir applies the umask of the server, so the mode is set separately.
    Ok(rustix::fs::fchmod(&made, mode)?)
}

fn open_strictly(at: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat2(at, name, flags, Mode::empty(), resolve)?)
}

fn found(folder: &OwnedFd, name: &str, path: String) -> io::Result<OpenedEntry> {
    let name = CString::new(name)?;
    look(folder, &name, path)
}

fn look(folder: impl AsFd, name: &CString, path: String) -> io::Result<OpenedEntry> {
    let stat = rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let target = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Symlink => {
            let target = rustix::fs::readlinkat(&folder, name, Vec::new())?;
            Some(target.to_string_lossy().into_owned())
        }
        _ => None,
    };
    Ok(OpenedEntry { path, stat, target })
}

/// Lists a folder; folders are before their entries. For a folder with more names than requested, only the first names
/// are kept in memory.
fn list_into(
    folder: &OwnedFd,
    path: &str,
    depth: u32,
    most: usize,
    all: &mut Vec<OpenedEntry>,
) -> io::Result<()> {
    let room = most.saturating_sub(all.len());
    let mut names = BinaryHeap::new();
    for entry in Dir::read_from(folder)? {
        let name = entry?.file_name().to_owned();
        if !matches!(name.to_bytes(), b"." | b"..") {
            names.push(name);
            if names.len() > room {
                names.pop();
            }
        }
    }
    for name in names.into_sorted_vec() {
        if all.len() >= most {
            break;
        }
        let path = format!("{path}/{}", name.to_string_lossy());
        let one = match look(folder, &name, path.clone()) {
            Ok(one) => one,
            // The entry was removed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let is_folder = one.kind() == FileType::Directory;
        all.push(one);
        if is_folder && depth > 1 {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            match rustix::fs::openat(folder, &name, flags, Mode::empty()) {
                Ok(inner) => list_into(&inner, &path, depth - 1, most, all)?,
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

/// A path as responses show it.
fn clean(path: &str) -> String {
    format!("/{}", trimmed(path))
}

fn trimmed(path: &str) -> &str {
    path.trim_matches('/')
}

/// The folder and the name of an entry; `None` for the volume itself.
fn split(path: &str) -> io::Result<Option<(&str, &str)>> {
    let path = trimmed(path);
    // This is checked before any folder on the path is made.
    if path.len() > PATH_MOST {
        return Err(io::ErrorKind::InvalidFilename.into());
    }
    if path.split('/').any(|part| matches!(part, "." | "..")) || path.contains('\0') {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a path must not contain .."));
    }
    if path.is_empty() {
        return Ok(None);
    }
    Ok(Some(path.rsplit_once('/').unwrap_or(("", path))))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::Write as _;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::path::Path;

    fn volume() -> (tempfile::TempDir, VolumeFolder) {
        let all = tempfile::tempdir().unwrap();
        std::fs::create_dir(all.path().join("files")).unwrap();
        std::fs::write(all.path().join("secret"), "the host's").unwrap();
        let root = super::super::walk::open_folder(CWD, all.path().join("files")).unwrap();
        (all, VolumeFolder::new(root))
    }

    fn put(folder: &VolumeFolder, path: &str, text: &str) -> io::Result<OpenedEntry> {
        let mut draft = folder.begin(path, EntryAttributes::default(), true)?;
        draft.file.write_all(text.as_bytes())?;
        draft.publish()
    }

    fn names(at: &Path) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(at)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn no_link_leads_out() {
        let (all, folder) = volume();
        let files = all.path().join("files");
        symlink("../secret", files.join("up")).unwrap();
        symlink(all.path().join("secret"), files.join("far")).unwrap();
        symlink("/", files.join("root")).unwrap();
        symlink("..", files.join("above")).unwrap();
        symlink("/proc/self/root", files.join("magic")).unwrap();
        for path in ["/up", "/far", "/root/secret", "/above/secret", "/magic/etc/passwd", "/root/etc/passwd"]
        {
            assert!(folder.read(path).is_err(), "{path}");
        }
        for path in ["/..", "/../secret", "/a/../../secret", "/./x"] {
            assert_eq!(folder.stat(path).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{path}");
        }
        // The root of a link is the volume.
        put(&folder, "/root/made", "x").unwrap();
        put(&folder, "/above/made too", "x").unwrap();
        assert!(files.join("made").exists() && files.join("made too").exists());
        assert_eq!(names(all.path()), ["files", "secret"]);
        assert_eq!(folder.stat("/far").unwrap().target.unwrap(), all.path().join("secret").to_str().unwrap());
        // A link at the path of a new file is replaced, and its target stays unchanged.
        put(&folder, "/far", "mine").unwrap();
        assert_eq!(std::fs::read_to_string(all.path().join("secret")).unwrap(), "the host's");
        let changed = EntryAttributes { uid: Some(7), mode: Some(0o777), ..EntryAttributes::default() };
        folder.change("/up", changed).unwrap();
        assert_ne!(std::fs::metadata(all.path().join("secret")).unwrap().uid(), 7);
        for path in ["root", "above", "magic", "far"] {
            assert!(folder.for_mount(Some(path), Some(EntryAttributes::default())).is_err(), "{path}");
        }
    }

    #[test]
    fn pipes_are_never_opened_and_setuid_is_never_given() {
        let (all, folder) = volume();
        let files = all.path().join("files");
        rustix::fs::mknodat(CWD, files.join("pipe"), FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
        assert_eq!(folder.read("/pipe").unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(folder.stat("/pipe").unwrap().kind(), FileType::Fifo);
        let owner = EntryAttributes { uid: Some(1000), gid: Some(33), mode: Some(0o6755) };
        folder.begin("/file", owner, false).unwrap().publish().unwrap();
        folder.make_folder("/folder", owner, false).unwrap();
        for name in ["file", "folder"] {
            let made = std::fs::metadata(files.join(name)).unwrap();
            assert_eq!((made.uid(), made.gid(), made.permissions().mode() & 0o7777), (1000, 33, 0o755));
        }
        // A replacement keeps owner and permissions.
        put(&folder, "/file", "new").unwrap();
        assert_eq!(std::fs::metadata(files.join("file")).unwrap().uid(), 1000);
        for id in [65_536, u32::MAX] {
            let nobody = EntryAttributes { uid: Some(id), ..EntryAttributes::default() };
            assert!(folder.change("/file", nobody).is_err() && folder.begin("/x", nobody, true).is_err());
        }
        let endless = "a/".repeat(PATH_MOST) + "b";
        assert!(folder.make_folder(&endless, EntryAttributes::default(), true).is_err());
        assert!(put(&folder, &endless, "x").is_err());
        put(&folder, "/pipe", "a file now").unwrap();
        assert_eq!(names(&files), ["file", "folder", "pipe"], "no draft is left");
    }

    #[test]
    fn a_draft_that_is_dropped_and_a_long_list_leave_nothing_and_stay_bounded() {
        let (all, folder) = volume();
        let files = all.path().join("files");
        let mut draft = folder.begin("/half", EntryAttributes::default(), false).unwrap();
        draft.file.write_all(b"half").unwrap();
        drop(draft);
        assert_eq!(names(&files), Vec::<String>::new());
        for n in 0..300 {
            std::fs::write(files.join(format!("{n:03}")), "").unwrap();
        }
        let first: Vec<String> = folder.list("/", 1, 3).unwrap().into_iter().map(|one| one.path).collect();
        assert_eq!(first, ["/000", "/001", "/002"]);
        let mut deep = files.clone();
        for _ in 0..100 {
            deep.push("d");
            std::fs::create_dir(&deep).unwrap();
        }
        assert_eq!(folder.list("/d", u32::MAX, 10_000).unwrap().len(), DEPTH_MOST as usize);
        assert_eq!(folder.list("/000", 1, 10).unwrap_err().kind(), io::ErrorKind::NotADirectory);
        assert_eq!(folder.list("/none", 1, 10).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
