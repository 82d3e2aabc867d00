//! Packs the folder of a layer into an archive. The same folder always gives the same bytes: names are sorted, times
//! are in whole seconds, and nothing depends on the machine.

use std::collections::HashMap;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use tokio_util::sync::CancellationToken;

use super::LayerError;
use super::walk::{self, is_opaque, names, open_folder};
use atoll_tar::write::Archive;
use atoll_tar::{TarEntry, TarKind};

/// LIMIT: bytes read from a file at once.
const PIECE: usize = 256 << 10;

/// The result of packing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackedTar {
    /// Bytes of the archive.
    pub tar_bytes: u64,
    /// Entries in it.
    pub entries: u64,
}

/// Packs a folder in overlay form as a layer's archive.
pub fn pack(folder: &Path, to: impl Write, cancel: &CancellationToken) -> Result<PackedTar, LayerError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = rustix::fs::open(folder, flags, Mode::empty())
        .map_err(|errno| LayerError::io("open", folder)(errno.into()))?;
    let mut packer = Packer {
        archive: Archive::new(to),
        linked: HashMap::new(),
        buffer: vec![0; PIECE],
        cancel,
        folder,
        entries: 0,
    };
    packer.content(root.as_fd(), &mut Vec::new())?;
    let (_, tar_bytes) = packer.archive.finish().map_err(LayerError::Sink)?;
    Ok(PackedTar { tar_bytes, entries: packer.entries })
}

struct Packer<'a, W> {
    archive: Archive<W>,
    /// The first name of every file with several names.
    linked: HashMap<(u64, u64), Vec<u8>>,
    buffer: Vec<u8>,
    cancel: &'a CancellationToken,
    /// For error messages only.
    folder: &'a Path,
    entries: u64,
}

impl<W: Write> Packer<'_, W> {
    /// Packs the content of a folder. `path` is its path; it has the same value again afterwards.
    fn content(&mut self, folder: BorrowedFd<'_>, path: &mut Vec<u8>) -> Result<(), LayerError> {
        if is_opaque(folder).map_err(|errno| self.failed("read", errno))? {
            self.marker(path, b".wh..wh..opq")?;
        }
        for name in names(folder).map_err(|errno| self.failed("list", errno))? {
            if self.cancel.is_cancelled() {
                return Err(LayerError::Cancelled);
            }
            let above = path.len();
            if above > 0 {
                path.push(b'/');
            }
            path.extend_from_slice(&name);
            self.one(folder, &name, path)?;
            path.truncate(above);
        }
        Ok(())
    }

    fn one(&mut self, folder: BorrowedFd<'_>, name: &[u8], path: &mut Vec<u8>) -> Result<(), LayerError> {
        let stat = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|errno| self.failed("inspect", errno))?;
        let mut entry = entry_of(&stat, path);
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::CharacterDevice if stat.st_rdev == 0 => {
                let (above, _) = super::rules::split(path);
                return self.marker(above, &[b".wh.", name].concat());
            }
            FileType::Directory => {
                let inside = open_folder(folder, name).map_err(|errno| self.failed("open", errno))?;
                entry.kind = TarKind::Folder;
                entry.name.push(b'/');
                entry.xattrs =
                    walk::xattrs(&inside).map_err(|errno| self.failed("read attributes of", errno))?;
                self.header(&entry)?;
                return self.content(inside.as_fd(), path);
            }
            FileType::RegularFile | FileType::Symlink | FileType::Fifo => {}
            // Sockets and devices are not part of a layer.
            _ => return Ok(()),
        }
        if stat.st_nlink > 1 {
            let file = (stat.st_dev, stat.st_ino);
            if let Some(first) = self.linked.get(&file) {
                (entry.kind, entry.link) = (TarKind::HardLink, first.clone());
                return self.header(&entry);
            }
            self.linked.insert(file, path.clone());
        }
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(folder, name, Vec::new())
                    .map_err(|errno| self.failed("read a link of", errno))?;
                (entry.kind, entry.link, entry.mode) = (TarKind::Symlink, target.into_bytes(), 0o777);
                self.header(&entry)
            }
            FileType::Fifo => {
                entry.kind = TarKind::Fifo;
                self.header(&entry)
            }
            _ => self.file(folder, name, entry),
        }
    }

    fn file(&mut self, folder: BorrowedFd<'_>, name: &[u8], mut entry: TarEntry) -> Result<(), LayerError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(folder, name, flags, Mode::empty())
            .map_err(|errno| self.failed("open", errno))?;
        entry.xattrs = walk::xattrs(&file).map_err(|errno| self.failed("read attributes of", errno))?;
        self.header(&entry)?;
        self.data(&file, entry.size)?;
        self.archive.pad(entry.size).map_err(LayerError::Sink)
    }

    fn data(&mut self, file: &OwnedFd, size: u64) -> Result<(), LayerError> {
        let mut left = size;
        while left > 0 {
            if self.cancel.is_cancelled() {
                return Err(LayerError::Cancelled);
            }
            let most = usize::try_from(left).unwrap_or(usize::MAX).min(PIECE);
            let some = match rustix::io::read(file, &mut self.buffer[..most]) {
                Err(Errno::INTR) => continue,
                other => other.map_err(|errno| self.failed("read", errno))?,
            };
            if some == 0 {
                return Err(self.failed("read all of", Errno::IO));
            }
            self.archive.data(&self.buffer[..some]).map_err(LayerError::Sink)?;
            left -= some as u64;
        }
        Ok(())
    }

    /// An empty file that marks something about a folder.
    fn marker(&mut self, folder: &[u8], name: &[u8]) -> Result<(), LayerError> {
        let path = super::tree::joined(folder, name);
        self.header(&TarEntry { name: path, mode: 0o644, ..TarEntry::default() })
    }

    fn header(&mut self, entry: &TarEntry) -> Result<(), LayerError> {
        self.entries += 1;
        self.archive.entry(entry).map_err(LayerError::Sink)
    }

    fn failed(&self, action: &'static str, errno: Errno) -> LayerError {
        LayerError::io(action, self.folder)(errno.into())
    }
}

fn entry_of(stat: &Stat, path: &[u8]) -> TarEntry {
    TarEntry {
        name: path.to_owned(),
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid.into(),
        gid: stat.st_gid.into(),
        mtime: (stat.st_mtime, 0),
        size: u64::try_from(stat.st_size).unwrap_or(0),
        ..TarEntry::default()
    }
}
