//! Packs files and trees of the sandbox into a tar stream, chunk by chunk.
//!
//! Sources are resolved before the first byte. A file that vanishes afterwards is skipped. A file that shrinks while it
//! is read aborts the stream, because its length was already announced.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};

use atoll_glob::docker::{Glob, is_pattern};
use atoll_tar::write::push_header;
use atoll_tar::{BLOCK, TarEntry, TarKind, padding, sparse};
use bytes::Bytes;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::pattern::Excluded;
use crate::error::AgentError;
use crate::files::tree::BELOW;
use crate::files::{open, open_at, proc_path, refuse, reopen, resolve, shown};
use crate::users::User;

/// LIMIT: names of one folder that are held in memory for sorting.
const NAMES_MAX: usize = 1 << 20;
/// LIMIT: matches of all patterns.
const SOURCES_MAX: usize = 100_000;
/// LIMIT: levels of folders; each holds a descriptor.
const DEPTH_MAX: usize = 256;
/// LIMIT: files with several names that are tracked; further ones are packed as separate files.
const LINKED_MAX: usize = 100_000;
/// LIMIT: pieces of a file with holes, as many as a reader takes. Its map is held in memory: 1 MiB, and up to 3 MiB as text.
const PIECES_MAX: usize = sparse::PIECES;
/// Pieces of a file of which many may be packed at once.
const PIECES_FEW: usize = 4_096;
/// LIMIT: files with larger maps that are packed at once; small holes of further ones are sent as data.
const LARGE_MAPS_MAX: usize = 8;
static LARGE_MAPS: AtomicUsize = AtomicUsize::new(0);
/// LIMIT: bytes of one extended attribute, and of all names; the kernel's limit.
const XATTR_MAX: usize = 65_536;

/// No NOFOLLOW: the descriptor is opened through its link in /proc.
const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NONBLOCK);

/// How entries are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    Contents,
    Named,
    Parents,
}

pub(super) struct PackRequest {
    pub(super) sources: Vec<PackSource>,
    pub(super) globs: bool,
    pub(super) layout: Layout,
    pub(super) exclude: Vec<Vec<u8>>,
    pub(super) holes: Holes,
}

/// What becomes of the holes of sparse files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Holes {
    /// They are sent as zeros, which any reader understands.
    Filled,
    Kept,
}

/// A path, and how many of its components `Parents` drops.
pub(super) struct PackSource {
    path: Vec<u8>,
    pivot: usize,
}

pub(super) fn source(raw: &[u8], user: &User) -> Result<PackSource, AgentError> {
    let pivot = match raw.windows(3).position(|w| w == b"/./") {
        Some(at) => parts(&resolve(&raw[..at.max(1)], user)?).count(),
        None => 0,
    };
    Ok(PackSource { path: resolve(raw, user)?, pivot })
}

/// A pack in progress.
pub(super) struct Packer {
    layout: Layout,
    excluded: Excluded,
    sources: VecDeque<PackSource>,
    levels: Vec<PackLevel>,
    reading: Option<Reading>,
    linked: HashMap<(u64, u64), Vec<u8>>,
    chunk: usize,
    holes: Holes,
    ended: bool,
}

struct PackLevel {
    dir: OwnedFd,
    /// The prefix of entry names below it, empty or with a trailing slash.
    prefix: Vec<u8>,
    /// Their path below the source, for patterns.
    below: Vec<u8>,
    /// Sorted in reverse: the next name is the last one.
    names: Vec<Vec<u8>>,
}

struct Reading {
    file: OwnedFd,
    path: Vec<u8>,
    /// The data to read, as (offset, length); the last one is next.
    pieces: Vec<(u64, u64)>,
    /// Held until the file is read.
    _map: Option<LargeMap>,
    padding: usize,
}

impl Packer {
    /// Each turn gives about `chunk` bytes.
    pub(super) fn plan(wanted: PackRequest, chunk: usize) -> Result<Self, AgentError> {
        let mut sources = VecDeque::new();
        for source in wanted.sources {
            let found = if wanted.globs { expand(&source.path)? } else { vec![source.path.clone()] };
            if found.len() + sources.len() > SOURCES_MAX {
                return Err(AgentError::Exhausted(format!("more than {SOURCES_MAX} sources match")));
            }
            for path in found {
                open(&path, OFlags::PATH, Mode::empty()).map_err(|errno| refuse(errno, &path))?;
                sources.push_back(PackSource { path, pivot: source.pivot });
            }
        }
        Ok(Self {
            layout: wanted.layout,
            excluded: Excluded::parse(&wanted.exclude)?,
            sources,
            levels: Vec::new(),
            reading: None,
            linked: HashMap::new(),
            chunk,
            holes: wanted.holes,
            ended: false,
        })
    }

    /// The next bytes; `None` after the end.
    pub(super) fn next_chunk(&mut self) -> Result<Option<Bytes>, AgentError> {
        if self.ended {
            return Ok(None);
        }
        let mut out = Vec::with_capacity(self.chunk);
        while out.len() < self.chunk - 4 * BLOCK && !self.ended {
            if let Some(reading) = &mut self.reading {
                if reading.go_on(&mut out, self.chunk)? {
                    self.reading = None;
                }
            } else if let Some(level) = self.levels.last_mut() {
                match level.names.pop() {
                    Some(name) => self.entry(&name, &mut out)?,
                    None => drop(self.levels.pop()),
                }
            } else if let Some(source) = self.sources.pop_front() {
                self.top(&source, &mut out)?;
            } else {
                out.resize(out.len() + 2 * BLOCK, 0);
                self.ended = true;
            }
        }
        Ok(Some(out.into()))
    }

    fn top(&mut self, source: &PackSource, out: &mut Vec<u8>) -> Result<(), AgentError> {
        let path = &source.path;
        let bad = |errno| refuse(errno, path);
        let handle = open(path, OFlags::PATH, Mode::empty()).map_err(bad)?;
        let stat = rustix::fs::fstat(&handle).map_err(bad)?;
        let is_folder = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let base = path.rsplit(|b| *b == b'/').next().unwrap_or_default();
        let name = match self.layout {
            Layout::Contents if is_folder => b".".to_vec(),
            Layout::Contents | Layout::Named => base.to_vec(),
            Layout::Parents => parts(path).skip(source.pivot).collect::<Vec<_>>().join(&b'/'),
        };
        // Patterns apply to paths below a source; a single file is matched by its own name.
        if !is_folder && self.excluded.matches(base) {
            return Ok(());
        }
        if !is_folder {
            return self.file(handle, stat, name, out);
        }
        let dir = reopen(&handle, FOLDER).map_err(bad)?;
        let (entry_name, prefix) = match &name[..] {
            b"." | b"" => (b"./".to_vec(), Vec::new()),
            _ => ([&name[..], b"/"].concat(), [&name[..], b"/"].concat()),
        };
        push_header(out, &described(&dir, &stat, entry_name, TarKind::Folder));
        self.levels.push(PackLevel { names: names_in(&dir, path)?, dir, prefix, below: Vec::new() });
        Ok(())
    }

    fn entry(&mut self, name: &[u8], out: &mut Vec<u8>) -> Result<(), AgentError> {
        let Some(level) = self.levels.last() else { return Ok(()) };
        let below = [&level.below[..], name].concat();
        let path = [&level.prefix[..], name].concat();
        let excluded = self.excluded.matches(&below);
        let flags = OFlags::PATH | OFlags::NOFOLLOW;
        let handle = match open_at(&level.dir, name, flags, Mode::empty(), BELOW) {
            Ok(handle) => handle,
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(refuse(errno, &path)),
        };
        let stat = rustix::fs::fstat(&handle).map_err(|errno| refuse(errno, &path))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            return if excluded { Ok(()) } else { self.file(handle, stat, path, out) };
        }
        if excluded && self.excluded.may_prune() {
            return Ok(());
        }
        if self.levels.len() >= DEPTH_MAX {
            return Err(AgentError::Invalid(format!(
                "'{}' is deeper than {DEPTH_MAX} folders",
                shown(&path)
            )));
        }
        let dir = reopen(&handle, FOLDER).map_err(|errno| refuse(errno, &path))?;
        let prefix = [&path[..], b"/"].concat();
        if !excluded {
            push_header(out, &described(&dir, &stat, prefix.clone(), TarKind::Folder));
        }
        let below = [&below[..], b"/"].concat();
        self.levels.push(PackLevel { names: names_in(&dir, &path)?, dir, prefix, below });
        Ok(())
    }

    /// A file, link or FIFO. Sockets and devices are useless elsewhere and are skipped.
    fn file(
        &mut self,
        handle: OwnedFd,
        stat: Stat,
        name: Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<(), AgentError> {
        let bad = |errno| refuse(errno, &name);
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => TarKind::File,
            FileType::Symlink => TarKind::Symlink,
            FileType::Fifo => TarKind::Fifo,
            _ => return Ok(()),
        };
        let mut entry = described(&handle, &stat, name.clone(), kind);
        let inode = (stat.st_dev, stat.st_ino);
        if kind == TarKind::File && stat.st_nlink > 1 {
            if let Some(first) = self.linked.get(&inode) {
                (entry.kind, entry.link, entry.size) = (TarKind::HardLink, first.clone(), 0);
                entry.xattrs.clear();
                push_header(out, &entry);
                return Ok(());
            }
            if self.linked.len() < LINKED_MAX {
                self.linked.insert(inode, name.clone());
            }
        }
        match kind {
            TarKind::Symlink => {
                entry.link = rustix::fs::readlinkat(&handle, c"", Vec::new()).map_err(bad)?.into_bytes();
                push_header(out, &entry);
            }
            TarKind::File => {
                let file = reopen(&handle, OFlags::RDONLY | OFlags::NONBLOCK).map_err(bad)?;
                let mut large = LargeMap::take().filter(|_| self.holes == Holes::Kept);
                if self.holes == Holes::Kept {
                    let most = if large.is_some() { PIECES_MAX } else { PIECES_FEW };
                    let map = sparse::map(&file, entry.size, most);
                    entry.map = map.map_err(|error| unreadable(&error, &name))?;
                }
                large.take_if(|_| entry.map.as_ref().is_none_or(|map| map.len() <= PIECES_FEW));
                push_header(out, &entry);
                let padding = padding(entry.data_bytes());
                let mut pieces = entry.map.unwrap_or_else(|| vec![(0, entry.size)]);
                pieces.reverse();
                self.reading = Some(Reading { file, path: name, pieces, _map: large, padding });
            }
            _ => push_header(out, &entry),
        }
        Ok(())
    }
}

/// The right to hold the map of a file with many pieces.
struct LargeMap;

impl LargeMap {
    fn take() -> Option<Self> {
        let more = |held: usize| (held < LARGE_MAPS_MAX).then_some(held + 1);
        LARGE_MAPS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok().then_some(Self)
    }
}

impl Drop for LargeMap {
    fn drop(&mut self) {
        LARGE_MAPS.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Reading {
    /// Continues with the current file. True: all of it is read.
    fn go_on(&mut self, out: &mut Vec<u8>, chunk: usize) -> Result<bool, AgentError> {
        let room = chunk.saturating_sub(out.len()).max(BLOCK);
        if let Some((offset, left)) = self.pieces.pop() {
            let size = usize::try_from(left).unwrap_or(usize::MAX).min(room);
            self.read(out, offset, size)?;
            if left > size as u64 {
                self.pieces.push((offset + size as u64, left - size as u64));
            }
        }
        if self.pieces.is_empty() {
            out.resize(out.len() + self.padding, 0);
        }
        Ok(self.pieces.is_empty())
    }

    fn read(&self, out: &mut Vec<u8>, offset: u64, size: usize) -> Result<(), AgentError> {
        let from = out.len();
        out.resize(from + size, 0);
        let mut filled = 0;
        while filled < size {
            match rustix::io::pread(&self.file, &mut out[from + filled..], offset + filled as u64) {
                Ok(0) => {
                    let text = format!("'{}' became shorter while it was read", shown(&self.path));
                    return Err(AgentError::Conflict(text));
                }
                Ok(n) => filled += n,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(refuse(errno, &self.path)),
            }
        }
        Ok(())
    }
}

fn unreadable(error: &std::io::Error, path: &[u8]) -> AgentError {
    refuse(Errno::from_io_error(error).unwrap_or(Errno::IO), path)
}

fn parts(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|b| *b == b'/').filter(|part| !part.is_empty())
}

fn described(handle: &OwnedFd, stat: &Stat, name: Vec<u8>, kind: TarKind) -> TarEntry {
    let size = if kind == TarKind::File { u64::try_from(stat.st_size).unwrap_or(0) } else { 0 };
    let xattrs =
        if matches!(kind, TarKind::File | TarKind::Folder) { read_xattrs(handle) } else { Vec::new() };
    TarEntry {
        name,
        kind,
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid.into(),
        gid: stat.st_gid.into(),
        size,
        mtime: (stat.st_mtime, 0),
        xattrs,
        ..TarEntry::default()
    }
}

/// The attributes that are useful elsewhere. Empty on a file system without attributes.
fn read_xattrs(handle: &OwnedFd) -> Vec<(Vec<u8>, Vec<u8>)> {
    let path = proc_path(handle);
    let mut names = Vec::new();
    match rustix::fs::listxattr(&path, &mut [0u8; 0][..]) {
        Ok(0) | Err(_) => return Vec::new(),
        Ok(len) => names.resize((len + 256).min(XATTR_MAX), 0u8),
    }
    let Ok(len) = rustix::fs::listxattr(&path, &mut names[..]) else { return Vec::new() };
    let mut found = Vec::new();
    for name in names[..len].split(|b| *b == 0) {
        if !(name.starts_with(b"user.") || name == b"security.capability") {
            continue;
        }
        let mut value = vec![0u8; XATTR_MAX];
        if let Ok(len) = rustix::fs::getxattr(&path, name, &mut value[..]) {
            found.push((name.to_vec(), value[..len].to_vec()));
        }
    }
    found
}

fn names_in(dir: &OwnedFd, path: &[u8]) -> Result<Vec<Vec<u8>>, AgentError> {
    let bad = |errno| refuse(errno, path);
    let mut names = Vec::new();
    for entry in Dir::read_from(dir).map_err(bad)? {
        let entry = entry.map_err(bad)?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            if names.len() >= NAMES_MAX {
                let text = format!("'{}' contains more than {NAMES_MAX} names", shown(path));
                return Err(AgentError::Exhausted(text));
            }
            names.push(name.to_vec());
        }
    }
    names.sort_unstable_by(|a, b| b.cmp(a));
    Ok(names)
}

/// The paths that a pattern matches, sorted. A path without pattern characters matches itself.
fn expand(path: &[u8]) -> Result<Vec<Vec<u8>>, AgentError> {
    if !is_pattern(path) {
        return Ok(vec![path.to_vec()]);
    }
    let mut found = vec![Vec::new()];
    for part in parts(path) {
        if !is_pattern(part) {
            found.iter_mut().for_each(|path: &mut Vec<u8>| path.extend([b"/", part].concat()));
            continue;
        }
        let glob = Glob::name(part)?;
        let mut next = Vec::new();
        for above in found {
            let at: &[u8] = if above.is_empty() { b"/" } else { &above };
            // A missing folder, or a path that is not a folder, contains no match.
            let Ok(dir) = open(at, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK, Mode::empty())
            else {
                continue;
            };
            let names = names_in(&dir, at)?;
            let fits = names.iter().rev().filter(|name| glob.matches(name, &mut 0));
            next.extend(fits.map(|name| [&above[..], b"/", name].concat()));
            if next.len() > SOURCES_MAX {
                return Err(AgentError::Exhausted(format!("more than {SOURCES_MAX} paths match")));
            }
        }
        found = next;
    }
    found.retain(|path| {
        let (dir, name) = match crate::files::open_parent(path) {
            Ok(found) => found,
            Err(_) => return false,
        };
        rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    });
    Ok(found)
}
