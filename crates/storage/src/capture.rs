//! Writes what a sandbox changed as the tar of an OCI layer, from the upper folder of its overlay.
//!
//! | in the upper folder | in the layer |
//! |---|---|
//! | a character device 0/0 | `.wh.NAME`, if the name exists below |
//! | `trusted.overlay.opaque=y` | `.wh..wh..opq` after the folder, if a folder exists below |
//! | a second name of a file | a hard link |
//! | a folder that was only copied up | nothing, unless an entry in it is written |
//! | a socket; what engine and agent write at boot ([`super::boot_files`]) | nothing |
//!
//! Entries are in the order of names. Ids are canonical. Sparse files are written in full. A capture never follows a
//! link, and never changes a file.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use crate::boot_files::{self, Trace, Traces};
use crate::format::{self, EntryType, Records};
use crate::pack::{self, Packer};
use crate::walk::{Walk, WalkEntry, open_folder};

const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
/// LIMIT: the sizes of all files of one layer together. A hole takes no space in a sandbox, but takes bytes here.
const BYTES_MOST: u64 = 64 << 30;

/// Writes what the layer at `layer`, the sandbox `name`'s, has over the folders `lower`, the top one first. Nobody may change
/// any of them meanwhile.
pub(crate) fn write(layer: &Path, name: &str, lower: &[PathBuf], out: &mut impl Write) -> io::Result<()> {
    let root = open_folder(CWD, layer.join("upper"))?;
    let lower = Lower::open(lower)?;
    let traces = Traces::of(layer, root.as_fd(), name)?;
    let mut capture = Capture {
        packer: Packer::new(out, is_told),
        folders: vec![CapturedFolder::root(&lower)],
        lower: &lower,
        traces,
        bytes: 0,
    };
    let mut walk = Walk::new(root)?;
    while let Some(entry) = walk.next()? {
        let path = walk.path().to_vec();
        capture.leave_to(path.iter().filter(|byte| **byte == b'/').count())?;
        capture.entry(walk.here(), &entry, path)?;
    }
    capture.leave_to(0)?;
    capture.packer.end()
}

/// Whether a layer of an image keeps the attribute. The marks of an overlay are written as names of entries instead.
fn is_told(name: &[u8]) -> bool {
    // The records of a tar cannot hold a name with `=`.
    format::is_kept(name) && !name.starts_with(b"trusted.") && !name.contains(&b'=')
}

/// A folder on the path to the current entry.
struct CapturedFolder {
    path: Vec<u8>,
    stat: Option<Stat>,
    records: Records,
    /// The lower layers that are visible in it.
    under: Vec<usize>,
    /// Whether it hides a folder below it.
    hides: bool,
    is_told: bool,
    /// Whether it is new, or differs from the folder below.
    has_changed: bool,
    /// Whether only its time differs.
    has_new_time: bool,
    /// Whether a file that Atoll wrote was left out of it.
    has_trace: bool,
}

impl CapturedFolder {
    /// The root belongs to no layer.
    fn root(lower: &Lower) -> Self {
        Self {
            path: Vec::new(),
            stat: None,
            records: Records::new(),
            under: (0..lower.layers.len()).collect(),
            hides: false,
            is_told: true,
            has_changed: false,
            has_new_time: false,
            has_trace: false,
        }
    }
}

struct Capture<'a, W> {
    packer: Packer<'a, W>,
    lower: &'a Lower,
    traces: Traces,
    /// From the root to the current folder.
    folders: Vec<CapturedFolder>,
    bytes: u64,
}

impl<W: Write> Capture<'_, W> {
    fn entry(&mut self, here: BorrowedFd<'_>, entry: &WalkEntry, path: Vec<u8>) -> io::Result<()> {
        if entry.kind == FileType::Directory {
            return self.enter(here, entry, path);
        }
        let is_whiteout = entry.kind == FileType::CharacterDevice && entry.stat.st_rdev == 0;
        if is_whiteout {
            return self.whiteout(entry, &path);
        }
        refuse_marks(entry, &path)?;
        if boot_files::is_inside_ours(&path) || entry.kind == FileType::Socket {
            return Ok(());
        }
        match self.traces.look(here, entry, &path)? {
            Trace::None => {}
            Trace::Ours => return self.leave_out(),
            Trace::Mixed(theirs) => return self.rewritten(here, entry, path, &theirs),
        }
        if entry.kind == FileType::RegularFile {
            self.count(&entry.stat, &path)?;
        }
        self.tell_folders()?;
        self.packer.entry(here, entry, path)
    }

    /// Enters a folder. It is written when an entry in it is written, or when the walk leaves it.
    fn enter(&mut self, here: BorrowedFd<'_>, entry: &WalkEntry, path: Vec<u8>) -> io::Result<()> {
        refuse_marks(entry, &path)?;
        let above = self.folders.last().map(|folder| folder.under.as_slice()).unwrap_or_default();
        let mut below = self.lower.look(above, &path)?;
        let attributes = Overlaid::of(here)?;
        if attributes.is_redirected {
            return Err(refused(&path, "was moved in a way that a layer cannot represent"));
        }
        let hides = attributes.is_opaque && !below.folders.is_empty();
        if attributes.is_opaque {
            below.folders.clear();
        }
        let records = pack::attributes(here, is_told)?;
        let same = match &below.top {
            Some((layer, stat)) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                is_same(stat, &entry.stat) && self.lower.records(*layer, &path)? == records
            }
            _ => false,
        };
        let time = |stat: &Stat| (stat.st_mtime, stat.st_mtime_nsec);
        self.folders.push(CapturedFolder {
            stat: Some(entry.stat),
            records,
            under: below.folders,
            hides,
            is_told: false,
            has_changed: !same || hides,
            has_new_time: below.top.is_none_or(|(_, stat)| time(&stat) != time(&entry.stat)),
            has_trace: self.traces.is_mounted_on(&path),
            path,
        });
        Ok(())
    }

    /// Leaves folders until `depth` of them, besides the root, remain.
    fn leave_to(&mut self, depth: usize) -> io::Result<()> {
        while self.folders.len() > depth + 1 {
            let folder = &self.folders[self.folders.len() - 1];
            let is_ours = folder.has_trace
                && (!folder.has_changed || folder.stat.as_ref().is_some_and(is_plain))
                || boot_files::is_inside_ours(&folder.path);
            if !folder.is_told && !is_ours && (folder.has_changed || folder.has_new_time) {
                self.tell_folders()?;
            }
            let left = self.folders.pop();
            if let (Some(left), Some(above)) = (left, self.folders.last_mut()) {
                above.has_trace |= left.has_trace;
            }
        }
        Ok(())
    }

    fn leave_out(&mut self) -> io::Result<()> {
        if let Some(folder) = self.folders.last_mut() {
            folder.has_trace = true;
        }
        Ok(())
    }

    /// Writes the folders on the path that are not written yet.
    fn tell_folders(&mut self) -> io::Result<()> {
        for folder in self.folders.iter_mut().filter(|folder| !folder.is_told) {
            folder.is_told = true;
            let Some(stat) = &folder.stat else { continue };
            let path = [folder.path.as_slice(), b"/"].concat();
            self.packer.head(EntryType::Directory, path, stat, std::mem::take(&mut folder.records))?;
            if folder.hides {
                let path = [folder.path.as_slice(), b"/", OPAQUE].concat();
                self.packer.mark(path)?;
            }
        }
        Ok(())
    }

    fn whiteout(&mut self, entry: &WalkEntry, path: &[u8]) -> io::Result<()> {
        let under = self.folders.last().map(|folder| folder.under.as_slice()).unwrap_or_default();
        if boot_files::is_inside_ours(path) || self.lower.look(under, path)?.top.is_none() {
            return Ok(());
        }
        self.tell_folders()?;
        let folder = &path[..path.len() - entry.name.as_bytes().len()];
        self.packer.mark([folder, WHITEOUT, entry.name.as_bytes()].concat())
    }

    /// Writes a file that both the sandbox and Atoll changed, without the lines of Atoll. Writes nothing if it then
    /// equals the file below.
    fn rewritten(
        &mut self,
        here: BorrowedFd<'_>,
        entry: &WalkEntry,
        path: Vec<u8>,
        theirs: &[u8],
    ) -> io::Result<()> {
        let under = self.folders.last().map(|folder| folder.under.as_slice()).unwrap_or_default();
        let below = match self.lower.look(under, &path)?.top {
            Some((layer, stat)) => self.lower.read(layer, &path)?.map(|content| (content, stat)),
            None => None,
        };
        let content =
            self.traces.without_ours(&path, theirs, below.as_ref().map(|(content, _)| content.as_slice()));
        let is_as_it_was = match &below {
            Some((before, stat)) => content == *before && is_same(stat, &entry.stat),
            None => content.is_empty(),
        };
        if is_as_it_was {
            return self.leave_out();
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(here, &entry.name, flags, Mode::empty())?;
        let records = pack::attributes(file.as_fd(), is_told)?;
        self.tell_folders()?;
        self.packer.small_file(path, &entry.stat, records, &content)
    }

    fn count(&mut self, stat: &Stat, path: &[u8]) -> io::Result<()> {
        self.bytes = self.bytes.saturating_add(u64::try_from(stat.st_size).unwrap_or(u64::MAX));
        if self.bytes > BYTES_MOST {
            return Err(refused(path, &format!("makes the layer larger than {} GiB", BYTES_MOST >> 30)));
        }
        Ok(())
    }
}

/// Refuses names that have a special meaning in a layer.
fn refuse_marks(entry: &WalkEntry, path: &[u8]) -> io::Result<()> {
    if entry.name.as_bytes().starts_with(WHITEOUT) && !boot_files::is_inside_ours(path) {
        return Err(refused(path, "has a name that means a deletion in a layer"));
    }
    Ok(())
}

fn refused(path: &[u8], why: &str) -> io::Error {
    let text = format!("/{} {why}", String::from_utf8_lossy(path));
    io::Error::new(io::ErrorKind::InvalidData, text)
}

fn is_same(one: &Stat, other: &Stat) -> bool {
    (one.st_mode, one.st_uid, one.st_gid) == (other.st_mode, other.st_uid, other.st_gid)
}

/// Whether a folder has the attributes with which engine and agent make folders.
fn is_plain(stat: &Stat) -> bool {
    (stat.st_mode & 0o7777, stat.st_uid, stat.st_gid) == (0o755, 0, 0)
}

/// The marks of the overlay on a folder.
struct Overlaid {
    is_opaque: bool,
    is_redirected: bool,
}

impl Overlaid {
    fn of(folder: BorrowedFd<'_>) -> io::Result<Self> {
        let value = |name: &str| -> io::Result<Option<Vec<u8>>> {
            let mut value = [0; 512];
            match rustix::fs::fgetxattr(folder, name, &mut value) {
                Ok(length) => Ok(Some(value[..length].to_vec())),
                Err(Errno::NODATA | Errno::NOTSUP) => Ok(None),
                Err(Errno::RANGE) => Ok(Some(Vec::new())),
                Err(error) => Err(error.into()),
            }
        };
        Ok(Self {
            is_opaque: value("trusted.overlay.opaque")?.is_some_and(|value| value == b"y"),
            is_redirected: value("trusted.overlay.redirect")?.is_some(),
        })
    }
}

/// The folders below the layer, as the overlay merges them.
struct Lower {
    /// The top one first.
    layers: Vec<OwnedFd>,
}

/// What the lower layers have at a path.
struct Subtree {
    /// The layer that is visible, and its entry.
    top: Option<(usize, Stat)>,
    /// If the entry is a folder: all layers that are visible in it.
    folders: Vec<usize>,
}

impl Lower {
    fn open(layers: &[PathBuf]) -> io::Result<Self> {
        let layers = layers.iter().map(|layer| open_folder(CWD, layer)).collect::<io::Result<_>>()?;
        Ok(Self { layers })
    }

    /// `under`: the layers that are visible in the parent folder of `path`.
    fn look(&self, under: &[usize], path: &[u8]) -> io::Result<Subtree> {
        let mut below = Subtree { top: None, folders: Vec::new() };
        for layer in under {
            let Some(node) = self.node(*layer, path, OFlags::PATH)? else { continue };
            let stat = rustix::fs::fstat(&node)?;
            let kind = FileType::from_raw_mode(stat.st_mode);
            if kind == FileType::CharacterDevice && stat.st_rdev == 0 {
                break;
            }
            if kind != FileType::Directory {
                // A file below a folder is hidden.
                below.top = below.top.or(Some((*layer, stat)));
                break;
            }
            below.top = below.top.or(Some((*layer, stat)));
            below.folders.push(*layer);
            let mut value = [0; 1];
            let noted = format!("/proc/self/fd/{}", node.as_raw_fd());
            let opaque = rustix::fs::getxattr(noted, "trusted.overlay.opaque", &mut value);
            if opaque.is_ok() && value == *b"y" {
                break;
            }
        }
        Ok(below)
    }

    fn node(&self, layer: usize, path: &[u8], how: OFlags) -> io::Result<Option<OwnedFd>> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let flags = how | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::openat2(&self.layers[layer], path, flags, Mode::empty(), resolve) {
            Ok(node) => Ok(Some(node)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            // No template has a path of that length.
            Err(Errno::NAMETOOLONG) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The attributes of a folder.
    fn records(&self, layer: usize, path: &[u8]) -> io::Result<Records> {
        match self.node(layer, path, OFlags::RDONLY | OFlags::DIRECTORY)? {
            Some(folder) => pack::attributes(folder.as_fd(), is_told),
            None => Ok(Records::new()),
        }
    }

    /// The content of a small file.
    fn read(&self, layer: usize, path: &[u8]) -> io::Result<Option<Vec<u8>>> {
        let Some(node) = self.node(layer, path, OFlags::RDONLY | OFlags::NONBLOCK)? else { return Ok(None) };
        boot_files::read_small(&File::from(node))
    }
}
