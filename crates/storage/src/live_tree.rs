//! Trees of files that sandboxes may change while they are read: they are copied file by file, and measured.
//!
//! Every entry is opened by its own name in a folder that is open already, without following a link or entering another
//! mount, and only then is its kind determined. Pipes, sockets and devices are never opened. Entries that are removed or
//! replaced meanwhile may be missing in the result. The copy must be in a folder that no other process reaches.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, SeekFrom, Stat, Timespec, Timestamps, Uid,
    XattrFlags,
};
use rustix::io::Errno;

use crate::format::{self, Records};
use crate::pack;
use crate::walk::open_folder;

/// LIMIT: folders inside each other. Each open folder takes two descriptors.
const DEPTH_MOST: usize = 200;
/// LIMIT: entries of a copy. A sandbox could make new ones as fast as they are copied.
const ENTRIES_MOST: u64 = 4 << 20;
/// LIMIT: the length of a path that the kernel looks up at once.
const PATH_MOST: usize = 4_000;
/// LIMIT: bytes of the paths of files with several names, which are held until the end of a copy.
const FIRST_NAMES_MOST: usize = 32 << 20;
/// LIMIT: bytes that are copied by one call of the kernel.
const RANGE_MOST: u64 = 64 << 20;
const BUFFER: usize = 256 << 10;

/// Copies everything in the folder `from` into the empty folder `to`, with owners, permissions, times, extended
/// attributes, hard links and holes, and brings it to disk. Sockets and devices are left out.
///
/// # Errors
/// The tree has more folders inside each other, or more entries, than the limits of this module; or the disk fails.
pub fn copy_live_tree(from: impl AsFd, to: impl AsFd) -> io::Result<()> {
    // Opened again: a copy of a descriptor would share its place in the list of names.
    let (from, below) = (open_folder(from, c".")?, open_folder(&to, c".")?);
    let mut copy = TreeCopy {
        root: open_folder(&to, c".")?,
        levels: vec![CopyLevel::new(from, below, 0)?],
        path: Vec::new(),
        first_names: HashMap::new(),
        first_names_bytes: 0,
        entries: 0,
    };
    while copy.step()? {}
    Ok(rustix::fs::syncfs(to)?)
}

/// Bytes that the entries below `root` take on disk; a file with two names counts twice. `None` where there are more
/// than `entries_most`, or more folders inside each other than can be open.
///
/// # Errors
/// The disk fails.
pub fn live_tree_bytes(root: impl AsFd, entries_most: u64) -> io::Result<Option<u64>> {
    let mut levels = vec![Dir::new(open_folder(root, c".")?)?];
    let (mut bytes, mut entries) = (0, 0);
    while let Some(names) = levels.last_mut() {
        let Some(name) = next_name(names)? else {
            levels.pop();
            continue;
        };
        let Some((node, stat)) = open_node(names.fd()?, &name)? else { continue };
        bytes += u64::try_from(stat.st_blocks).unwrap_or(0) * 512;
        entries += 1;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory
            && let Some(folder) = open_contents(&node)?
        {
            levels.push(Dir::new(folder)?);
        }
        if entries > entries_most || levels.len() > DEPTH_MOST {
            return Ok(None);
        }
    }
    Ok(Some(bytes))
}

/// A copy that is under way.
struct TreeCopy {
    root: OwnedFd,
    levels: Vec<CopyLevel>,
    /// The path of the innermost folder, below the root.
    path: Vec<u8>,
    /// Where files with several names were copied first, by device and inode.
    first_names: HashMap<(u64, u64), Box<[u8]>>,
    first_names_bytes: usize,
    entries: u64,
}

/// A folder whose entries are being copied.
struct CopyLevel {
    names: Dir,
    to: OwnedFd,
    attributes: NodeAttributes,
    /// The length of the path of the folder above.
    path_length: usize,
}

impl CopyLevel {
    fn new(from: OwnedFd, to: OwnedFd, path_length: usize) -> io::Result<Self> {
        let attributes = NodeAttributes::of(from.as_fd())?;
        Ok(Self { names: Dir::new(from)?, to, attributes, path_length })
    }
}

impl TreeCopy {
    /// Copies the next entry, or completes a folder; `false` at the end.
    fn step(&mut self) -> io::Result<bool> {
        let Some(level) = self.levels.last_mut() else { return Ok(false) };
        let Some(name) = next_name(&mut level.names)? else {
            level.attributes.set(level.to.as_fd())?;
            self.path.truncate(level.path_length);
            self.levels.pop();
            return Ok(true);
        };
        self.entries += 1;
        if self.entries > ENTRIES_MOST {
            return Err(refused(format!("it has more than {ENTRIES_MOST} files and folders")));
        }
        if let Some((node, stat)) = open_node(level.names.fd()?, &name)? {
            // A name that was read twice, because the folder changed, is there already.
            match self.entry(&name, node, &stat) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                other => other?,
            }
        }
        Ok(true)
    }

    fn entry(&mut self, name: &CStr, node: OwnedFd, stat: &Stat) -> io::Result<()> {
        let Some(level) = self.levels.last() else { return Ok(()) };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => self.folder(name, &node),
            FileType::RegularFile => self.file(name, &node, stat),
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(&node, c"", Vec::new())?;
                rustix::fs::symlinkat(&target, &level.to, name)?;
                finish_node(&level.to, name, stat)
            }
            FileType::Fifo => {
                let mode = Mode::from_raw_mode(stat.st_mode & 0o777);
                rustix::fs::mknodat(&level.to, name, FileType::Fifo, mode, 0)?;
                finish_node(&level.to, name, stat)
            }
            // A socket has no use without its process, and a device is not a file of the volume.
            _ => Ok(()),
        }
    }

    fn folder(&mut self, name: &CStr, node: &OwnedFd) -> io::Result<()> {
        if self.levels.len() > DEPTH_MOST {
            return Err(refused(format!("it has more than {DEPTH_MOST} folders inside each other")));
        }
        let (Some(level), Some(from)) = (self.levels.last(), open_contents(node)?) else { return Ok(()) };
        rustix::fs::mkdirat(&level.to, name, Mode::from_raw_mode(0o700))?;
        let below = CopyLevel::new(from, open_folder(&level.to, name)?, self.path.len())?;
        self.path = self.path_of(name);
        self.levels.push(below);
        Ok(())
    }

    fn file(&mut self, name: &CStr, node: &OwnedFd, stat: &Stat) -> io::Result<()> {
        let (inode, path) = ((stat.st_dev, stat.st_ino), self.path_of(name));
        let Some(level) = self.levels.last() else { return Ok(()) };
        if stat.st_nlink > 1 {
            if let Some(first) = self.first_names.get(&inode) {
                return Ok(rustix::fs::linkat(&self.root, &first[..], &level.to, name, AtFlags::empty())?);
            }
            self.first_names_bytes += path.len();
            if self.first_names_bytes > FIRST_NAMES_MOST || path.len() > PATH_MOST {
                return Err(refused(
                    "it has too many files with several names, or one whose path is too long".into(),
                ));
            }
            self.first_names.insert(inode, path.into());
        }
        // Opens the node that was looked at, whatever has its name by now.
        let again = format!("/proc/self/fd/{}", node.as_raw_fd());
        let from = rustix::fs::openat(CWD, again, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let to = rustix::fs::openat(&level.to, name, flags, Mode::from_raw_mode(0o600))?;
        let attributes = NodeAttributes::of(from.as_fd())?;
        let to = copy_content(from.into(), to.into())?;
        attributes.set(to.as_fd())
    }

    fn path_of(&self, name: &CStr) -> Vec<u8> {
        let separator: &[u8] = if self.path.is_empty() { b"" } else { b"/" };
        [&self.path[..], separator, name.to_bytes()].concat()
    }
}

/// The next name in a folder, without `.` and `..`.
fn next_name(names: &mut Dir) -> io::Result<Option<CString>> {
    for entry in names {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            return Ok(Some(entry.file_name().to_owned()));
        }
    }
    Ok(None)
}

/// Opens an entry without reading it; a link itself. `None`: it was removed, or another file system is mounted there.
fn open_node(folder: BorrowedFd<'_>, name: &CStr) -> io::Result<Option<(OwnedFd, Stat)>> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    match rustix::fs::openat2(folder, name, flags, Mode::empty(), resolve) {
        Ok(node) => {
            let stat = rustix::fs::fstat(&node)?;
            Ok(Some((node, stat)))
        }
        Err(Errno::NOENT | Errno::XDEV) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Opens a folder to be listed; `None` where it was removed.
fn open_contents(node: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    match open_folder(node, c".") {
        Ok(folder) => Ok(Some(folder)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Copies the parts of a file that have data. Only the size that it has now is copied, also where it grows.
fn copy_content(from: File, to: File) -> io::Result<File> {
    let size = from.metadata()?.len();
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(&from, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let stop = rustix::fs::seek(&from, SeekFrom::Hole(start)).unwrap_or(size).min(size);
        if start >= stop || !copy_range(&from, &to, start, stop)? {
            break;
        }
        at = stop;
    }
    to.set_len(size.min(from.metadata()?.len()))?;
    Ok(to)
}

/// Copies bytes of a file; `false` where it ends before.
fn copy_range(from: &File, to: &File, start: u64, stop: u64) -> io::Result<bool> {
    let mut at = start;
    while at < stop {
        let (mut read_at, mut write_at) = (at, at);
        let length = usize::try_from((stop - at).min(RANGE_MOST)).unwrap_or(BUFFER);
        match rustix::fs::copy_file_range(from, Some(&mut read_at), to, Some(&mut write_at), length) {
            Ok(0) => return Ok(false),
            Ok(_) => at = read_at,
            Err(Errno::INTR) => {}
            Err(Errno::INVAL | Errno::XDEV | Errno::NOSYS | Errno::OPNOTSUPP) => {
                return copy_bytes(from, to, at, stop);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}

/// [`copy_range`] for file systems whose files the kernel cannot copy.
fn copy_bytes(from: &File, to: &File, start: u64, stop: u64) -> io::Result<bool> {
    let (mut at, mut buffer) = (start, vec![0; BUFFER]);
    while at < stop {
        let most = usize::try_from(stop - at).unwrap_or(BUFFER).min(BUFFER);
        let got = from.read_at(&mut buffer[..most], at)?;
        if got == 0 {
            return Ok(false);
        }
        to.write_all_at(&buffer[..got], at)?;
        at += got as u64;
    }
    Ok(true)
}

/// Owner, permissions, extended attributes and times of a file or folder.
struct NodeAttributes {
    stat: Stat,
    records: Records,
}

impl NodeAttributes {
    fn of(node: BorrowedFd<'_>) -> io::Result<Self> {
        let records = pack::named_attributes(node, is_kept)?;
        Ok(Self { stat: rustix::fs::fstat(node)?, records })
    }

    /// In this order: a change of owner removes privileges of a file, and all changes but the last one update its time.
    fn set(&self, node: BorrowedFd<'_>) -> io::Result<()> {
        let (user, group) = owner(&self.stat);
        rustix::fs::fchown(node, Some(user), Some(group))?;
        rustix::fs::fchmod(node, Mode::from_raw_mode(self.stat.st_mode & 0o7777))?;
        for (name, value) in &self.records {
            rustix::fs::fsetxattr(node, name.as_slice(), value, XattrFlags::empty())?;
        }
        Ok(rustix::fs::futimens(node, &times(&self.stat))?)
    }
}

/// Attributes that belong to files of a volume. Those of an overlay would change what an overlay over the copy shows.
fn is_kept(name: &[u8]) -> bool {
    format::is_kept(name) && !name.starts_with(b"trusted.")
}

/// Gives a link or a pipe, which cannot be opened, its owner and times.
fn finish_node(folder: &OwnedFd, name: &CStr, stat: &Stat) -> io::Result<()> {
    let (user, group) = owner(stat);
    rustix::fs::chownat(folder, name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(rustix::fs::utimensat(folder, name, &times(stat), AtFlags::SYMLINK_NOFOLLOW)?)
}

fn owner(stat: &Stat) -> (Uid, Gid) {
    (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid))
}

fn times(stat: &Stat) -> Timestamps {
    let time = |seconds, nanoseconds: u64| Timespec {
        tv_sec: seconds,
        tv_nsec: i64::try_from(nanoseconds).unwrap_or(0),
    };
    Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
    }
}

fn refused(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::path::Path;

    fn open(path: &Path) -> OwnedFd {
        open_folder(CWD, path).unwrap()
    }

    fn folders() -> (tempfile::TempDir, std::path::PathBuf, std::path::PathBuf) {
        let top = tempfile::tempdir().unwrap();
        let (from, to) = (top.path().join("from"), top.path().join("to"));
        fs::create_dir(&from).unwrap();
        fs::create_dir(&to).unwrap();
        (top, from, to)
    }

    #[test]
    fn owners_modes_times_links_attributes_and_holes_are_copied() {
        let (top, from, to) = folders();
        fs::set_permissions(&from, PermissionsExt::from_mode(0o1777)).unwrap();
        fs::create_dir_all(from.join("a/b")).unwrap();
        fs::write(from.join("a/b/file"), "content").unwrap();
        fs::set_permissions(from.join("a/b/file"), PermissionsExt::from_mode(0o4751)).unwrap();
        std::os::unix::fs::chown(from.join("a/b"), Some(1_000), Some(70_000)).unwrap();
        fs::hard_link(from.join("a/b/file"), from.join("again")).unwrap();
        fs::write(top.path().join("secret"), "of the host").unwrap();
        symlink("../secret", from.join("link")).unwrap();
        std::os::unix::fs::lchown(from.join("link"), Some(7), Some(8)).unwrap();
        let sparse = File::create(from.join("sparse")).unwrap();
        sparse.write_all_at(b"end", 1 << 30).unwrap();
        let _ = rustix::fs::setxattr(from.join("again"), "user.note", b"kept", XattrFlags::empty());
        copy_live_tree(open(&from), open(&to)).unwrap();

        let about = |path: &str| fs::symlink_metadata(to.join(path)).unwrap();
        assert_eq!(about("").mode() & 0o7777, 0o1777);
        assert_eq!((about("a/b").uid(), about("a/b").gid()), (1_000, 70_000));
        assert_eq!(about("a/b/file").mode() & 0o7777, 0o4751);
        assert_eq!(about("a/b/file").mtime_nsec(), fs::metadata(from.join("again")).unwrap().mtime_nsec());
        assert_eq!((about("again").ino(), about("again").nlink()), (about("a/b/file").ino(), 2));
        assert_eq!(fs::read_to_string(to.join("again")).unwrap(), "content");
        assert_eq!(fs::read_link(to.join("link")).unwrap(), Path::new("../secret"));
        assert_eq!((about("link").uid(), about("link").gid()), (7, 8));
        assert_eq!(about("sparse").len(), (1 << 30) + 3);
        assert!(about("sparse").blocks() * 512 < 16 << 20, "holes stay holes");
        let mut note = [0; 8];
        let attribute = |at: &Path, note: &mut [u8; 8]| rustix::fs::getxattr(at, "user.note", &mut note[..]);
        if attribute(&from.join("again"), &mut note).is_ok() {
            assert_eq!(attribute(&to.join("again"), &mut note), Ok(4));
        }
        let bytes = live_tree_bytes(open(&to), 100).unwrap().unwrap();
        assert!((1..64 << 20).contains(&bytes), "{bytes}");
        assert_eq!(live_tree_bytes(open(&to), 3).unwrap(), None, "beyond the limit nothing is said");
    }

    #[test]
    fn a_folder_that_was_measured_is_copied_whole() {
        let (_top, from, to) = folders();
        fs::write(from.join("file"), "content").unwrap();
        let opened = open(&from);
        assert!(live_tree_bytes(&opened, 10).unwrap().is_some());
        copy_live_tree(&opened, open(&to)).unwrap();
        assert_eq!(fs::read_to_string(to.join("file")).unwrap(), "content");
    }

    #[test]
    fn pipes_are_copied_and_devices_and_sockets_are_neither_opened_nor_copied() {
        let (_top, from, to) = folders();
        let make = |name: &str, kind, device| {
            rustix::fs::mknodat(CWD, from.join(name), kind, Mode::from_raw_mode(0o666), device)
        };
        make("pipe", FileType::Fifo, 0).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(from.join("socket")).unwrap();
        // Without the privilege to make a device there is none to be copied.
        let _ = make("device", FileType::CharacterDevice, rustix::fs::makedev(1, 9));
        copy_live_tree(open(&from), open(&to)).unwrap();
        let names: Vec<_> = fs::read_dir(&to).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["pipe"]);
    }

    #[test]
    fn a_tree_that_is_too_deep_is_refused_and_a_changing_one_is_copied() {
        let (_top, from, to) = folders();
        let mut deep = from.join("deep");
        for _ in 0..=DEPTH_MOST {
            deep.push("d");
        }
        fs::create_dir_all(&deep).unwrap();
        let refusal = copy_live_tree(open(&from), open(&to)).unwrap_err();
        assert!(refusal.to_string().contains("inside each other"), "{refusal}");
        assert_eq!(live_tree_bytes(open(&from), 10_000).unwrap(), None);
        fs::remove_dir_all(from.join("deep")).unwrap();
        fs::remove_dir_all(to.join("deep")).unwrap();

        // Files, folders, links and pipes take each other's names while they are copied.
        fs::write(from.join("kept"), "kept").unwrap();
        symlink("/etc/passwd", from.join("0")).unwrap();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let paths: Vec<_> = (0..8).map(|number| from.join(number.to_string())).collect();
                let mut turn = 0_usize;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let path = &paths[turn % paths.len()];
                    let _ = fs::remove_file(path);
                    let _ = fs::remove_dir(path);
                    let _ = match turn % 4 {
                        0 => fs::write(path, "text"),
                        1 => fs::create_dir(path),
                        2 => symlink("/etc/passwd", path),
                        _ => rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0)
                            .map_err(Into::into),
                    };
                    turn += 3;
                }
            });
            for round in 0..40 {
                let copy = to.join(round.to_string());
                fs::create_dir(&copy).unwrap();
                copy_live_tree(open(&from), open(&copy)).unwrap();
                assert_eq!(fs::read_to_string(copy.join("kept")).unwrap(), "kept");
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        for round in 0..40 {
            for entry in fs::read_dir(to.join(round.to_string())).unwrap() {
                let entry = entry.unwrap();
                let is_small = entry.file_type().unwrap().is_file();
                assert!(!is_small || entry.metadata().unwrap().len() <= 4, "no link was followed");
            }
        }
    }
}
