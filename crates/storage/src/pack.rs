//! Writes a layer as one stream (see [`super::format`]). The same tree always gives the same stream, byte for byte, so
//! the hash of the stream is also a hash of the tree.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};

use crate::format::{self, EntryType, IDS, PIECES_MOST, PackedEntry, Records};
use crate::walk::{Walk, WalkEntry, open_folder};

/// The parts of a layer that are its content; the first is always there.
pub(crate) const PARTS: [&str; 2] = ["upper", "usr-upper"];
const BUFFER: usize = 256 << 10;

/// Writes the layer at `layer`. Nobody may change it meanwhile.
pub(crate) fn write(layer: &Path, out: &mut impl Write) -> io::Result<()> {
    write_parts(layer, &PARTS, out)
}

/// Writes those of the parts of a folder that are there.
pub(crate) fn write_parts(layer: &Path, parts: &[&str], out: &mut impl Write) -> io::Result<()> {
    let mut packer = Packer { is_sparse: true, ..Packer::new(out, format::is_kept) };
    format::begin(packer.out)?;
    for part in parts {
        match open_folder(CWD, layer.join(part)) {
            Ok(root) => packer.part(part, root)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    packer.end()
}

/// Writes the named entries of some folders of `root`: for each folder of it, the folders and files in it that are kept.
/// Nobody may change them meanwhile.
pub(crate) fn write_selected(
    root: &Path,
    selected: &BTreeMap<String, BTreeSet<String>>,
    out: &mut impl Write,
) -> io::Result<()> {
    let mut packer = Packer { is_sparse: true, ..Packer::new(out, format::is_kept) };
    format::begin(packer.out)?;
    for (part, names) in selected {
        // A server's own folder, which may be a link.
        let folder: OwnedFd = File::open(root.join(part))?.into();
        let (stat, records) = (rustix::fs::fstat(&folder)?, attributes(folder.as_fd(), format::is_kept)?);
        packer.head(EntryType::Directory, format!("{part}/").into_bytes(), &stat, records)?;
        for name in names {
            let path = format!("{part}/{name}");
            match open_folder(&folder, name.as_str()) {
                Ok(inner) => packer.part(&path, inner)?,
                Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
                    let stat = rustix::fs::statat(&folder, name.as_str(), AtFlags::SYMLINK_NOFOLLOW)?;
                    let kind = FileType::from_raw_mode(stat.st_mode);
                    let name = CString::new(name.as_str())?;
                    packer.entry(folder.as_fd(), &WalkEntry { name, stat, kind }, path.into_bytes())?;
                }
                Err(error) => return Err(error),
            }
        }
    }
    packer.end()
}

/// Writes entries.
pub(crate) struct Packer<'a, W> {
    out: &'a mut W,
    names: HardLinkNames,
    buffer: Vec<u8>,
    /// Which extended attributes are written.
    is_kept: fn(&[u8]) -> bool,
    /// Whether holes are left out.
    is_sparse: bool,
}

impl<'a, W: Write> Packer<'a, W> {
    /// For any reader of tars: holes are written out.
    pub(crate) fn new(out: &'a mut W, is_kept: fn(&[u8]) -> bool) -> Self {
        Self { out, names: HardLinkNames::default(), buffer: vec![0; BUFFER], is_kept, is_sparse: false }
    }

    /// Writes the end.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        format::end(self.out)?;
        self.out.flush()
    }

    fn part(&mut self, part: &str, root: OwnedFd) -> io::Result<()> {
        let stat = rustix::fs::fstat(&root)?;
        let records = attributes(root.as_fd(), self.is_kept)?;
        self.head(EntryType::Directory, format!("{part}/").into_bytes(), &stat, records)?;
        self.names.begin(part);
        let mut walk = Walk::new(root)?;
        while let Some(entry) = walk.next()? {
            let path = [part.as_bytes(), b"/", walk.path()].concat();
            self.entry(walk.here(), &entry, path)?;
        }
        Ok(())
    }

    pub(crate) fn entry(
        &mut self,
        here: BorrowedFd<'_>,
        entry: &WalkEntry,
        mut path: Vec<u8>,
    ) -> io::Result<()> {
        let is_whiteout = entry.kind == FileType::CharacterDevice && entry.stat.st_rdev == 0;
        // All whiteouts of an overlay are hard links of one node; separate nodes have the same meaning.
        if entry.stat.st_nlink > 1
            && !matches!(entry.kind, FileType::Directory | FileType::Socket)
            && !is_whiteout
            && let Some(first) = self.names.first(entry.stat.st_ino, &path)
        {
            return self.about(EntryType::Link, path, &entry.stat, first, 0, Records::new());
        }
        match entry.kind {
            FileType::Directory => {
                path.push(b'/');
                self.head(EntryType::Directory, path, &entry.stat, attributes(here, self.is_kept)?)
            }
            FileType::RegularFile => {
                // A volume may be changed while it is copied: opening a pipe that took the name of a file must not wait.
                let flags =
                    OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NOATIME | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let file = rustix::fs::openat(here, &entry.name, flags, Mode::empty())?;
                if FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) != FileType::RegularFile {
                    return Err(io::Error::new(
                        io::ErrorKind::ResourceBusy,
                        "a file was replaced while it was read",
                    ));
                }
                let records = attributes(file.as_fd(), self.is_kept)?;
                self.file(File::from(file), path, &entry.stat, records)
            }
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(here, &entry.name, Vec::new())?.into_bytes();
                let records = attributes_of_node(here, entry, self.is_kept)?;
                self.about(EntryType::Symlink, path, &entry.stat, target, 0, records)
            }
            FileType::Fifo => {
                let records = attributes_of_node(here, entry, self.is_kept)?;
                self.head(EntryType::Fifo, path, &entry.stat, records)
            }
            FileType::CharacterDevice if is_whiteout => {
                let records = attributes_of_node(here, entry, self.is_kept)?;
                self.head(EntryType::Char, path, &entry.stat, records)
            }
            // A socket has no use without its process, and a layer cannot contain any other device.
            _ => Ok(()),
        }
    }

    pub(crate) fn head(
        &mut self,
        kind: EntryType,
        path: Vec<u8>,
        stat: &Stat,
        records: Records,
    ) -> io::Result<()> {
        self.about(kind, path, stat, Vec::new(), 0, records)
    }

    /// An empty file that only its name says something by.
    pub(crate) fn mark(&mut self, path: Vec<u8>) -> io::Result<()> {
        let about = PackedEntry {
            kind: EntryType::Regular,
            path,
            link: Vec::new(),
            mode: 0,
            uid: 0,
            gid: 0,
            seconds: 0,
            nanoseconds: 0,
            size: 0,
            device: (0, 0),
        };
        format::write_head(self.out, &about, Records::new())
    }

    /// A file with this content instead of its own.
    pub(crate) fn small_file(
        &mut self,
        path: Vec<u8>,
        stat: &Stat,
        records: Records,
        content: &[u8],
    ) -> io::Result<()> {
        let size = content.len() as u64;
        self.about(EntryType::Regular, path, stat, Vec::new(), size, records)?;
        self.out.write_all(content)?;
        format::pad(self.out, size)
    }

    fn about(
        &mut self,
        kind: EntryType,
        path: Vec<u8>,
        stat: &Stat,
        link: Vec<u8>,
        size: u64,
        records: Records,
    ) -> io::Result<()> {
        if stat.st_uid >= IDS || stat.st_gid >= IDS {
            let why = format!("the owner of {} is not an id of the sandbox", String::from_utf8_lossy(&path));
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let about = PackedEntry {
            kind,
            path,
            link,
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            seconds: stat.st_mtime,
            nanoseconds: u32::try_from(stat.st_mtime_nsec).unwrap_or(0),
            size,
            device: (0, 0),
        };
        format::write_head(self.out, &about, records)
    }

    fn file(&mut self, mut file: File, path: Vec<u8>, stat: &Stat, mut records: Records) -> io::Result<()> {
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let pieces = if self.is_sparse {
            atoll_tar::sparse::pieces(&file, size, PIECES_MOST)?
        } else {
            vec![(0, size)]
        };
        if pieces == [(0, size)] || size == 0 {
            self.about(EntryType::Regular, path, stat, Vec::new(), size, records)?;
            self.data(&mut file, 0, size)?;
            return format::pad(self.out, size);
        }
        let mut map = format!("{}\n", pieces.len());
        for (offset, length) in &pieces {
            map.push_str(&format!("{offset}\n{length}\n"));
        }
        map.extend(std::iter::repeat_n('\0', format::padding(map.len() as u64)));
        records.extend([
            (b"GNU.sparse.major".to_vec(), b"1".to_vec()),
            (b"GNU.sparse.minor".to_vec(), b"0".to_vec()),
            (b"GNU.sparse.name".to_vec(), path),
            (b"GNU.sparse.realsize".to_vec(), size.to_string().into_bytes()),
        ]);
        let stored = map.len() as u64 + pieces.iter().map(|(_, length)| length).sum::<u64>();
        self.about(EntryType::Regular, b"GNUSparseFile.0".to_vec(), stat, Vec::new(), stored, records)?;
        self.out.write_all(map.as_bytes())?;
        for (offset, length) in pieces {
            self.data(&mut file, offset, length)?;
        }
        format::pad(self.out, stored)
    }

    fn data(&mut self, file: &mut File, offset: u64, mut left: u64) -> io::Result<()> {
        file.seek(SeekFrom::Start(offset))?;
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(BUFFER).min(BUFFER);
            match file.read(&mut self.buffer[..most])? {
                0 => {
                    return Err(io::Error::new(
                        io::ErrorKind::ResourceBusy,
                        "a file shrank while it was read",
                    ));
                }
                got => {
                    self.out.write_all(&self.buffer[..got])?;
                    left -= got as u64;
                }
            }
        }
        Ok(())
    }
}

/// The attributes of an open file or folder, as records of an archive.
pub(crate) fn attributes(fd: BorrowedFd<'_>, is_kept: fn(&[u8]) -> bool) -> io::Result<Records> {
    Ok(keyed(named_attributes(fd, is_kept)?))
}

/// The attributes of an open file or folder, by name.
pub(crate) fn named_attributes(fd: BorrowedFd<'_>, is_kept: fn(&[u8]) -> bool) -> io::Result<Records> {
    read_attributes(
        is_kept,
        |list| rustix::fs::flistxattr(fd, list),
        |name, value| rustix::fs::fgetxattr(fd, name, value),
    )
}

/// The attributes of an entry that cannot be opened: a link, a pipe, a whiteout.
pub(crate) fn attributes_of_node(
    here: BorrowedFd<'_>,
    entry: &WalkEntry,
    is_kept: fn(&[u8]) -> bool,
) -> io::Result<Records> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let node = rustix::fs::openat(here, &entry.name, flags, Mode::empty())?;
    let path = format!("/proc/self/fd/{}", node.as_raw_fd());
    let named = read_attributes(
        is_kept,
        |list| rustix::fs::listxattr(&path, list),
        |name, value| rustix::fs::getxattr(&path, name, value),
    );
    Ok(keyed(named?))
}

/// Attributes under their keys in an archive.
fn keyed(named: Records) -> Records {
    let key = |name: Vec<u8>| match name.contains(&b'=') {
        true => [format::XATTR_HEX, hex::encode(name).as_bytes()].concat(),
        false => [format::XATTR, &name].concat(),
    };
    named.into_iter().map(|(name, value)| (key(name), value)).collect()
}

fn read_attributes(
    is_kept: fn(&[u8]) -> bool,
    list: impl Fn(&mut [u8]) -> rustix::io::Result<usize>,
    get: impl Fn(&[u8], &mut [u8]) -> rustix::io::Result<usize>,
) -> io::Result<Records> {
    let mut names = [0; 512];
    let names = match list(&mut names) {
        Ok(length) => names[..length].to_vec(),
        Err(rustix::io::Errno::RANGE) => {
            // LIMIT: that of the kernel for a list of names, and for a value.
            let mut names = vec![0; 64 << 10];
            let length = list(&mut names)?;
            names.truncate(length);
            names
        }
        Err(rustix::io::Errno::NOTSUP) => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    let mut sorted: Vec<&[u8]> =
        names.split(|byte| *byte == 0).filter(|name| !name.is_empty() && is_kept(name)).collect();
    sorted.sort_unstable();
    let mut records = Records::new();
    let mut total = 0;
    for name in sorted {
        let mut value = vec![0; 64 << 10];
        let length = get(name, &mut value)?;
        value.truncate(length);
        total += name.len() + length;
        if total > format::RECORDS_MOST {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a file has too many attributes"));
        }
        records.push((name.to_vec(), value));
    }
    Ok(records)
}

/// The first names of files that have several names. Each folder is stored once, so that deep trees do not store their
/// paths again and again.
#[derive(Default)]
struct HardLinkNames {
    seen: HashMap<u64, (usize, Box<[u8]>)>,
    /// Each with the number of its parent; the first is the part itself.
    folders: Vec<(usize, Box<[u8]>)>,
    /// The folders on the path to the last file, with their numbers.
    way: Vec<(Box<[u8]>, usize)>,
}

impl HardLinkNames {
    /// All parts are in one subvolume and share its inode numbers, so the known files are kept.
    fn begin(&mut self, part: &str) {
        self.folders.push((usize::MAX, part.as_bytes().into()));
        self.way = vec![(part.as_bytes().into(), self.folders.len() - 1)];
    }

    /// The path under which this file was seen first; `None` if this is the first time, which is then recorded.
    fn first(&mut self, inode: u64, path: &[u8]) -> Option<Vec<u8>> {
        if let Some((folder, name)) = self.seen.get(&inode) {
            return Some(self.path(*folder, name));
        }
        let mut parts: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
        let name = parts.pop().unwrap_or_default();
        let same = self.way.iter().zip(&parts).take_while(|((known, _), part)| **known == ***part).count();
        self.way.truncate(same);
        for part in &parts[same..] {
            let above = self.way.last().map_or(usize::MAX, |(_, number)| *number);
            self.folders.push((above, (*part).into()));
            self.way.push(((*part).into(), self.folders.len() - 1));
        }
        let folder = self.way.last().map_or(usize::MAX, |(_, number)| *number);
        self.seen.insert(inode, (folder, name.into()));
        None
    }

    fn path(&self, mut folder: usize, name: &[u8]) -> Vec<u8> {
        let mut parts = vec![name];
        while let Some((above, name)) = self.folders.get(folder) {
            parts.push(name);
            folder = *above;
        }
        parts.reverse();
        parts.join(&b'/')
    }
}

/// Reads everything of a layer from the disk, and so lets the file system check its sums.
pub(crate) fn read_through(layer: &Path) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    for part in PARTS {
        let root = match open_folder(CWD, layer.join(part)) {
            Ok(root) => root,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let mut walk = Walk::new(root)?;
        while let Some(entry) = walk.next()? {
            match entry.kind {
                FileType::RegularFile => {
                    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NOATIME | OFlags::CLOEXEC;
                    let file = rustix::fs::openat(walk.here(), &entry.name, flags, Mode::empty())?;
                    // Cached pages say nothing about the disk, so they are dropped.
                    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
                    let mut file = File::from(file);
                    let size = u64::try_from(entry.stat.st_size).unwrap_or(0);
                    for (offset, length) in atoll_tar::sparse::pieces(&file, size, PIECES_MOST)? {
                        file.seek(SeekFrom::Start(offset))?;
                        let mut piece = (&mut file).take(length);
                        while piece.read(&mut buffer)? > 0 {}
                    }
                    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
                }
                FileType::Symlink => {
                    rustix::fs::readlinkat(walk.here(), &entry.name, Vec::new())?;
                }
                _ => {
                    rustix::fs::statat(walk.here(), c".", AtFlags::empty())?;
                }
            }
        }
    }
    Ok(())
}
