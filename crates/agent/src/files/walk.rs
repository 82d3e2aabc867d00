//! Opens a path name by name, for sandboxes without `openat2`: the engine refuses that call where a sandbox writes to a
//! folder of the host, because its mode cannot be checked there.
//!
//! The rules are those of `openat2` with the same flags, and stricter in two points: `..` is refused with `BENEATH`,
//! and with `IN_ROOT` every symbolic link is. A link is never followed by the kernel, so a rename or a new link
//! during the walk leads nowhere else. Nothing is allocated, because a forked child uses it too.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// LIMIT: symbolic links of one walk, as in the kernel.
const LINKS_MAX: u32 = 40;
/// LIMIT: bytes of a path, as in the kernel.
const PATH_MAX: usize = 4096;
/// LIMIT: bytes of a name, as in the kernel.
const NAME_MAX: usize = 255;
/// The type of the file system at `/proc`, and the number of its root folder.
const PROC_MAGIC: i64 = 0x9fa0;
const PROC_ROOT: u64 = 1;

/// Opens `path` relative to `dir`, as `openat2` does.
pub(super) fn open(
    dir: BorrowedFd<'_>,
    path: &[u8],
    flags: OFlags,
    mode: Mode,
    resolve: ResolveFlags,
) -> rustix::io::Result<OwnedFd> {
    PathWalk { rest: Rest::of(path)?, at: None, dir, flags, mode, resolve, links: 0 }.open()
}

struct PathWalk<'a> {
    rest: Rest,
    /// The folder that the walk has reached; `None`: `dir`.
    at: Option<OwnedFd>,
    dir: BorrowedFd<'a>,
    flags: OFlags,
    mode: Mode,
    resolve: ResolveFlags,
    links: u32,
}

impl PathWalk<'_> {
    fn open(mut self) -> rustix::io::Result<OwnedFd> {
        self.begin()?;
        let mut buffer = [0; NAME_MAX + 1];
        loop {
            let name = self.rest.next(&mut buffer)?;
            if self.rest.is_empty() {
                if let Some(opened) = self.last(name)? {
                    return Ok(opened);
                }
            } else {
                self.step(name)?;
            }
        }
    }

    /// Goes to the root for an absolute path.
    fn begin(&mut self) -> rustix::io::Result<()> {
        if self.rest.starts_at_root() {
            if self.resolve.intersects(ResolveFlags::BENEATH | ResolveFlags::IN_ROOT) {
                return Err(Errno::XDEV);
            }
            self.at = Some(rustix::fs::openat(CWD, c"/", FOLDER, Mode::empty())?);
        }
        Ok(())
    }

    fn here(&self) -> BorrowedFd<'_> {
        self.at.as_ref().map_or(self.dir, AsFd::as_fd)
    }

    /// Enters a folder, or follows a link to it.
    fn step(&mut self, name: &CStr) -> rustix::io::Result<()> {
        self.check(name)?;
        let entry = rustix::fs::openat(self.here(), name, OFlags::PATH | ALWAYS, Mode::empty())?;
        match FileType::from_raw_mode(rustix::fs::fstat(&entry)?.st_mode) {
            FileType::Directory => self.at = Some(entry),
            FileType::Symlink => self.follow(name)?,
            _ => return Err(Errno::NOTDIR),
        }
        Ok(())
    }

    /// Opens the last name, or follows it if it is a link.
    fn last(&mut self, name: &CStr) -> rustix::io::Result<Option<OwnedFd>> {
        self.check(name)?;
        let is_exclusive = self.flags.contains(OFlags::CREATE | OFlags::EXCL);
        // A slash after a link names the folder behind it.
        if !is_exclusive && (self.rest.names_folder || !self.flags.contains(OFlags::NOFOLLOW)) {
            let found = rustix::fs::statat(self.here(), name, AtFlags::SYMLINK_NOFOLLOW);
            let is_link = |mode| FileType::from_raw_mode(mode) == FileType::Symlink;
            if found.is_ok_and(|stat| is_link(stat.st_mode)) {
                self.follow(name)?;
                return Ok(None);
            }
        }
        let folder = if self.rest.names_folder { OFlags::DIRECTORY } else { OFlags::empty() };
        rustix::fs::openat(self.here(), name, self.flags | folder | ALWAYS, self.mode).map(Some)
    }

    fn check(&self, name: &CStr) -> rustix::io::Result<()> {
        let confined = ResolveFlags::BENEATH | ResolveFlags::IN_ROOT;
        if name == c".." && self.resolve.intersects(confined) { Err(Errno::XDEV) } else { Ok(()) }
    }

    /// Puts the target of a link in place of its name.
    fn follow(&mut self, name: &CStr) -> rustix::io::Result<()> {
        self.links += 1;
        let no_links = ResolveFlags::NO_SYMLINKS | ResolveFlags::IN_ROOT;
        if self.links > LINKS_MAX || self.resolve.intersects(no_links) || self.is_magic()? {
            return Err(Errno::LOOP);
        }
        let mut buffer = [MaybeUninit::uninit(); PATH_MAX];
        let (target, _) = rustix::fs::readlinkat_raw(self.here(), name, &mut buffer)?;
        self.rest.prepend(target)?;
        self.begin()
    }

    /// Whether a link in this folder is one of the kernel's own, which lead to open files and other roots. Those in the
    /// top folder of proc are plain.
    fn is_magic(&self) -> rustix::io::Result<bool> {
        if !self.resolve.contains(ResolveFlags::NO_MAGICLINKS) {
            return Ok(false);
        }
        let file_system = rustix::fs::fstatfs(self.here())?;
        Ok(file_system.f_type == PROC_MAGIC && rustix::fs::fstat(self.here())?.st_ino != PROC_ROOT)
    }
}

const ALWAYS: OFlags = OFlags::NOFOLLOW.union(OFlags::CLOEXEC);
const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(ALWAYS);

/// The names that are still to be walked: the end of a buffer of fixed size, so that the target of a link fits before
/// them.
struct Rest {
    bytes: [u8; 2 * PATH_MAX],
    start: usize,
    /// The path ends with a slash.
    names_folder: bool,
}

impl Rest {
    fn of(path: &[u8]) -> rustix::io::Result<Self> {
        if path.is_empty() {
            return Err(Errno::NOENT);
        }
        if path.contains(&0) {
            return Err(Errno::INVAL);
        }
        let mut rest = Self { bytes: [0; 2 * PATH_MAX], start: 2 * PATH_MAX, names_folder: false };
        rest.prepend(path)?;
        Ok(rest)
    }

    /// Puts `path` before the rest.
    fn prepend(&mut self, path: &[u8]) -> rustix::io::Result<()> {
        if path.is_empty() {
            return Err(Errno::NOENT);
        }
        if self.is_empty() {
            self.names_folder |= path.ends_with(b"/");
        } else {
            self.put(b"/")?;
        }
        self.put(path)
    }

    fn put(&mut self, bytes: &[u8]) -> rustix::io::Result<()> {
        let start = self.start.checked_sub(bytes.len()).ok_or(Errno::NAMETOOLONG)?;
        self.bytes[start..self.start].copy_from_slice(bytes);
        self.start = start;
        Ok(())
    }

    fn starts_at_root(&self) -> bool {
        self.bytes[self.start..].starts_with(b"/")
    }

    fn skip_slashes(&mut self) {
        while self.starts_at_root() {
            self.start += 1;
        }
    }

    fn is_empty(&self) -> bool {
        self.bytes[self.start..].iter().all(|byte| *byte == b'/')
    }

    /// Takes the next name; `.` if nothing but slashes is left.
    fn next<'a>(&mut self, name: &'a mut [u8; NAME_MAX + 1]) -> rustix::io::Result<&'a CStr> {
        self.skip_slashes();
        let left = &self.bytes[self.start..];
        let length = left.iter().position(|byte| *byte == b'/').unwrap_or(left.len());
        if length > NAME_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        let taken: &[u8] = if length == 0 { b"." } else { &left[..length] };
        name[..taken.len()].copy_from_slice(taken);
        name[taken.len()] = 0;
        self.start += length;
        CStr::from_bytes_until_nul(name).map_err(|_| Errno::INVAL)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::symlink;

    use proptest::prelude::*;

    use super::*;

    /// A small tree with links of every kind, and a descriptor of its top.
    fn tree() -> (tempfile::TempDir, OwnedFd) {
        let top = tempfile::tempdir().unwrap();
        let at = |name: &str| top.path().join(name);
        std::fs::create_dir_all(at("a/b")).unwrap();
        std::fs::write(at("a/f"), "f").unwrap();
        std::fs::write(at("f"), "top").unwrap();
        symlink("a", at("l")).unwrap();
        symlink("../f", at("a/up")).unwrap();
        symlink("f", at("a/here")).unwrap();
        symlink(at("a"), at("far")).unwrap();
        symlink("b/", at("a/slash")).unwrap();
        symlink("loop", at("loop")).unwrap();
        symlink("nowhere", at("gone")).unwrap();
        let fd = rustix::fs::open(top.path(), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        (top, fd)
    }

    fn by_kernel(
        dir: &OwnedFd,
        path: &[u8],
        flags: OFlags,
        resolve: ResolveFlags,
    ) -> rustix::io::Result<(u64, u64)> {
        seen(rustix::fs::openat2(dir, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve))
    }

    fn by_walk(
        dir: &OwnedFd,
        path: &[u8],
        flags: OFlags,
        resolve: ResolveFlags,
    ) -> rustix::io::Result<(u64, u64)> {
        seen(open(dir.as_fd(), path, flags, Mode::empty(), resolve))
    }

    fn seen(opened: rustix::io::Result<OwnedFd>) -> rustix::io::Result<(u64, u64)> {
        let stat = rustix::fs::fstat(&opened?)?;
        Ok((stat.st_dev, stat.st_ino))
    }

    const NAMES: [&str; 13] =
        ["a", "b", "f", "l", "up", "here", "far", "slash", "loop", "gone", ".", "", "nothing"];

    proptest! {
        #[test]
        fn a_walk_finds_what_the_kernel_finds(
            names in prop::collection::vec(prop::sample::select(&NAMES[..]), 1..5),
            is_path in any::<bool>(),
            folder in any::<bool>(),
            nofollow in any::<bool>(),
            confined in any::<bool>(),
        ) {
            let (_keep, dir) = tree();
            let path = names.join("/");
            prop_assume!(!path.is_empty());
            prop_assume!(!confined || !path.starts_with('/'));
            let mut flags = if is_path { OFlags::PATH } else { OFlags::RDONLY };
            flags.set(OFlags::DIRECTORY, folder);
            flags.set(OFlags::NOFOLLOW, nofollow);
            let below = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::BENEATH;
            let resolve = if confined { below } else { ResolveFlags::NO_MAGICLINKS };
            let (kernel, walk) =
                (by_kernel(&dir, path.as_bytes(), flags, resolve), by_walk(&dir, path.as_bytes(), flags, resolve));
            match (kernel, walk) {
                (Ok(kernel), Ok(walk)) => prop_assert_eq!(kernel, walk, "{}", path),
                // The number of the error may differ where two of them apply.
                (kernel, walk) => prop_assert_eq!(kernel.is_ok(), walk.is_ok(), "{}: {:?} {:?}", path, kernel, walk),
            }
        }
    }

    #[test]
    fn links_of_the_kernel_and_ways_out_are_refused() {
        let (top, dir) = tree();
        let plain = ResolveFlags::NO_MAGICLINKS;
        let find = |path: &str, resolve| by_walk(&dir, path.as_bytes(), OFlags::PATH, resolve);
        for magic in ["/proc/self/root/etc", "/proc/self/cwd", "/proc/self/fd/0", "/proc/self/exe"] {
            assert_eq!(find(magic, plain), Err(Errno::LOOP), "{magic}");
        }
        assert!(find("/proc/self/status", plain).is_ok(), "a plain link in /proc");
        assert_eq!(find("a/../f", plain), by_kernel(&dir, b"f", OFlags::PATH, plain));
        for out in ["..", "a/..", "/etc"] {
            assert_eq!(find(out, ResolveFlags::BENEATH), Err(Errno::XDEV), "{out}");
            assert_eq!(find(out, ResolveFlags::IN_ROOT), Err(Errno::XDEV), "{out}");
        }
        assert_eq!(find("far", ResolveFlags::IN_ROOT), Err(Errno::LOOP));
        assert_eq!(find("loop", plain), Err(Errno::LOOP));
        assert_eq!(find("", plain), Err(Errno::NOENT));
        assert_eq!(find("a\0b", plain), Err(Errno::INVAL));
        assert_eq!(find(&"x".repeat(256), plain), Err(Errno::NAMETOOLONG));
        assert_eq!(find(&"x/".repeat(5000), plain), Err(Errno::NAMETOOLONG));
        let make = |path: &str, more: OFlags| {
            let flags = OFlags::WRONLY | OFlags::CREATE | more;
            open(dir.as_fd(), path.as_bytes(), flags, Mode::from_raw_mode(0o600), plain)
        };
        make("l/new", OFlags::EXCL).unwrap();
        assert!(top.path().join("a/new").exists());
        assert_eq!(make("gone", OFlags::EXCL).unwrap_err(), Errno::EXIST);
        make("gone", OFlags::empty()).unwrap();
        assert!(top.path().join("nowhere").exists(), "a file is made through a link");
    }
}
