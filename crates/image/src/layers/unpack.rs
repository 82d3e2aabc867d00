//! Unpacks archives: the only way in.
//!
//! A refused entry is reported by name, and the caller drops the folder, so nothing stays. All access is by descriptor
//! (see `tree`), and the last entry of a name replaces earlier ones.

use std::collections::BTreeMap;
use std::io::{BufRead, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use atoll_disk::SpaceWriter;
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Timespec, Uid, XattrFlags};
use rustix::io::Errno;
use tokio_util::sync::CancellationToken;

use super::digest::Digest;
use super::rules::{self, EntryAction, refuse};
use super::tree::{self, ExistingEntry, OPAQUE, Tree, look, make_whiteout, times};
use super::{LayerError, read_ahead};
use atoll_tar::read::Archive;
use atoll_tar::{TarEntry, TarKind};

/// Ids of a sandbox. Higher ids become the user nobody.
const IDS: u64 = 65_536;
const NOBODY: u32 = 65_534;
/// The minimal disk space of an entry without data.
const ENTRY_BYTES: u64 = 4096;

/// The size of holes in file systems.
const BLOCK: usize = 4096;

/// Limits of one unpacking.
#[derive(Debug)]
pub(crate) struct UnpackLimits {
    /// Bytes of files, including holes.
    pub(crate) bytes: u64,
    pub(crate) entries: u64,
    /// Space on the disk.
    pub(crate) space: SpaceWriter,
}

/// The result of unpacking.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Unpacked {
    pub(crate) bytes: u64,
    pub(crate) entries: u64,
    /// Folders that no entry names.
    pub(crate) implied: u64,
    /// Whether the layer hides all layers below it.
    pub(crate) is_opaque: bool,
    pub(crate) notes: BTreeMap<String, u64>,
}

/// Unpacks an archive into the empty folder `into` while another thread reads and hashes it; also returns its digest
/// and length.
pub(crate) fn unpack_hashed(
    from: impl Read + Send,
    into: &Path,
    allowed: UnpackLimits,
    cancel: &CancellationToken,
) -> Result<(Unpacked, Digest, u64), LayerError> {
    let (unpacked, read) = read_ahead::hashed(from, |ahead| unpack(ahead, into, allowed, cancel));
    let unpacked = unpacked?;
    // Unpacking read to the end, so the hash covers the whole archive.
    let (digest, bytes) = read.ok_or(LayerError::Cancelled)?;
    Ok((unpacked, digest, bytes))
}

/// Unpacks an archive into the empty folder `into`, and reads it to its end.
pub(crate) fn unpack(
    from: impl BufRead,
    into: &Path,
    allowed: UnpackLimits,
    cancel: &CancellationToken,
) -> Result<Unpacked, LayerError> {
    let mut archive = Archive::new(from);
    let drained = allowed.bytes.saturating_add(allowed.entries.saturating_mul(4096)).saturating_add(1 << 30);
    let mut unpacker = Unpacker {
        tree: Tree::open(into)?,
        disk: Disk { allowed },
        umask: umask(),
        done: Unpacked::default(),
    };
    unpacker.disk.take(ENTRY_BYTES)?;
    let (mut entry, mut path, mut link) = (TarEntry::default(), Vec::new(), Vec::new());
    while archive.next(&mut entry)? {
        if cancel.is_cancelled() {
            return Err(LayerError::Cancelled);
        }
        rules::clean(&entry.name, &mut path).map_err(refuse(&entry.name))?;
        unpacker.take(&mut archive, &entry, &path, &mut link, cancel)?;
    }
    // The headers of that many entries, and data after the last.
    archive.drain(drained)?;
    let Unpacker { tree, mut done, .. } = unpacker;
    done.implied = tree.implied;
    tree.close()?;
    Ok(done)
}

struct Unpacker {
    tree: Tree,
    disk: Disk,
    umask: u32,
    done: Unpacked,
}

impl Unpacker {
    fn take<R: BufRead>(
        &mut self,
        archive: &mut Archive<R>,
        entry: &TarEntry,
        path: &[u8],
        link: &mut Vec<u8>,
        cancel: &CancellationToken,
    ) -> Result<(), LayerError> {
        self.done.entries += 1;
        if self.done.entries + self.tree.implied > self.disk.allowed.entries {
            return Err(LayerError::TooBig { what: "entries", limit: self.disk.allowed.entries });
        }
        match rules::asks(path).map_err(refuse(&entry.name))? {
            EntryAction::Nothing => self.note("entries below /dev, /proc, /sys or /.atoll left out"),
            EntryAction::Root => return self.root(entry),
            EntryAction::Opaque { folder } => return self.opaque(folder, entry),
            EntryAction::Whiteout { parent, name } => return self.whiteout(parent, name, entry),
            EntryAction::Place { parent, name } => {
                if parent.is_empty() && rules::is_covered(name) && entry.kind != TarKind::Folder {
                    return Err(LayerError::refused(&entry.name, "it must be a real folder"));
                }
                match entry.kind {
                    TarKind::Folder => return self.folder(parent, name, entry),
                    TarKind::File => return self.file(archive, (parent, name), entry, cancel),
                    TarKind::Symlink => return self.symlink(parent, name, entry),
                    TarKind::Fifo => return self.fifo(parent, name, entry),
                    TarKind::HardLink => {
                        rules::clean(&entry.link, link).map_err(|why| {
                            LayerError::refused(
                                &entry.name,
                                format!("it is a hard link whose target is refused: {why}"),
                            )
                        })?;
                        return self.hard_link(parent, name, link, entry);
                    }
                    TarKind::CharDevice | TarKind::BlockDevice => {
                        return Err(LayerError::refused(&entry.name, "it is a device"));
                    }
                }
            }
        }
        Ok(())
    }

    fn root(&mut self, entry: &TarEntry) -> Result<(), LayerError> {
        if entry.kind != TarKind::Folder {
            return Err(LayerError::refused(&entry.name, "the root must be a folder"));
        }
        let owner = self.owner(entry);
        let root = self.tree.folder(b"", &entry.name)?;
        let dropped = dress(root, entry, owner, 0o7777)?;
        self.tree.set_folder_time(time(entry));
        self.note_dropped(dropped);
        Ok(())
    }

    fn folder(&mut self, parent: &[u8], name: &[u8], entry: &TarEntry) -> Result<(), LayerError> {
        let owner = self.owner(entry);
        let folder = self.tree.make_folder(parent, name, &entry.name)?;
        // Its mode is set explicitly, because it was made with a private mode.
        let dropped = dress(folder, entry, owner, 0o7777)?;
        self.tree.set_folder_time(time(entry));
        self.note_dropped(dropped);
        self.count_entry()
    }

    fn file<R: BufRead>(
        &mut self,
        archive: &mut Archive<R>,
        (parent, name): (&[u8], &[u8]),
        entry: &TarEntry,
        cancel: &CancellationToken,
    ) -> Result<(), LayerError> {
        let limit = self.disk.allowed.bytes;
        self.done.bytes = self.done.bytes.saturating_add(entry.size);
        if self.done.bytes > limit {
            return Err(LayerError::TooBig { what: "bytes", limit });
        }
        let owner = self.owner(entry);
        let file = self.create(parent, name, entry)?;
        write_data(archive, &file, entry, &mut self.disk, cancel)?;
        let dropped = dress(file.as_fd(), entry, owner, self.umask)?;
        rustix::fs::futimens(&file, &times(time(entry))).map_err(failed("set the time of", entry))?;
        self.note_dropped(dropped);
        self.count_entry()
    }

    /// Makes a new file; replaces an existing entry.
    fn create(&mut self, parent: &[u8], name: &[u8], entry: &TarEntry) -> Result<OwnedFd, LayerError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(entry.mode & 0o777);
        self.make_way_for(parent, name, entry, |folder| rustix::fs::openat(folder, name, flags, mode))
    }

    fn symlink(&mut self, parent: &[u8], name: &[u8], entry: &TarEntry) -> Result<(), LayerError> {
        if entry.link.is_empty() || entry.link.len() > 4095 || entry.link.contains(&0) {
            return Err(LayerError::refused(&entry.name, "it is a link with an invalid target"));
        }
        self.make_way_for(parent, name, entry, |folder| {
            rustix::fs::symlinkat(&entry.link[..], folder, name)
        })?;
        self.dress_by_name(parent, name, entry)?;
        self.count_entry()
    }

    fn fifo(&mut self, parent: &[u8], name: &[u8], entry: &TarEntry) -> Result<(), LayerError> {
        let mode = Mode::from_raw_mode(entry.mode & 0o7777);
        self.make_way_for(parent, name, entry, |folder| {
            rustix::fs::mknodat(folder, name, FileType::Fifo, mode, 0)?;
            // The umask may have changed the mode; only this process uses the folder, so the name still refers to the
            // pipe.
            rustix::fs::chmodat(folder, name, mode, AtFlags::empty())
        })?;
        self.dress_by_name(parent, name, entry)?;
        self.count_entry()
    }

    fn hard_link(
        &mut self,
        parent: &[u8],
        name: &[u8],
        to: &[u8],
        entry: &TarEntry,
    ) -> Result<(), LayerError> {
        let missing =
            || LayerError::refused(&entry.name, "it is a hard link to a file that is not in this layer");
        if to.is_empty() || to == tree::joined(parent, name) {
            return Err(missing());
        }
        let (folder, target) = match tree::target(&self.tree, to) {
            Ok(found) => found,
            Err(Errno::LOOP) => {
                return Err(LayerError::refused(&entry.name, "it is a hard link through another link"));
            }
            Err(_) => return Err(missing()),
        };
        match look(folder.as_fd(), target).map_err(failed("inspect the target of", entry))? {
            ExistingEntry::Other => {}
            ExistingEntry::Nothing | ExistingEntry::Whiteout => return Err(missing()),
            ExistingEntry::Folder => {
                return Err(LayerError::refused(&entry.name, "it is a hard link to a folder"));
            }
        }
        let linked = self.make_way_for(parent, name, entry, |place| {
            rustix::fs::linkat(&folder, target, place, name, AtFlags::empty())
        });
        match linked {
            // The replaced entry contained its target.
            Err(LayerError::Io { cause, .. }) if cause.kind() == std::io::ErrorKind::NotFound => {
                Err(missing())
            }
            Err(LayerError::Io { cause, .. }) if cause.kind() == std::io::ErrorKind::TooManyLinks => {
                Err(LayerError::refused(&entry.name, "its file has more names than this disk allows"))
            }
            Err(other) => Err(other),
            Ok(()) => self.count_entry(),
        }
    }

    fn whiteout(&mut self, parent: &[u8], name: &[u8], entry: &TarEntry) -> Result<(), LayerError> {
        let folder = self.tree.folder(parent, &entry.name)?;
        match look(folder, name).map_err(failed("inspect", entry))? {
            ExistingEntry::Nothing => make_whiteout(folder, name).map_err(failed("hide", entry))?,
            // The layer itself has a folder there: the folder stays visible, and everything below it in lower layers is
            // hidden.
            ExistingEntry::Folder => {
                let path = tree::joined(parent, name);
                let folder = self.tree.folder(&path, &entry.name)?;
                mark_opaque(folder).map_err(failed("hide what is below", entry))?;
            }
            ExistingEntry::Whiteout | ExistingEntry::Other => {}
        }
        self.count_entry()
    }

    fn opaque(&mut self, path: &[u8], entry: &TarEntry) -> Result<(), LayerError> {
        let folder = self.tree.folder(path, &entry.name)?;
        mark_opaque(folder).map_err(failed("hide what is below", entry))?;
        self.done.is_opaque |= path.is_empty();
        Ok(())
    }

    /// Makes an entry; if that fails because of an existing entry, removes that one and retries.
    fn make_way_for<T>(
        &mut self,
        parent: &[u8],
        name: &[u8],
        entry: &TarEntry,
        make: impl Fn(BorrowedFd<'_>) -> Result<T, Errno>,
    ) -> Result<T, LayerError> {
        let folder = self.tree.folder(parent, &entry.name)?;
        match make(folder) {
            Err(Errno::EXIST) => {
                self.tree.clear(parent, name, &entry.name)?;
                make(self.tree.folder(parent, &entry.name)?)
            }
            other => other,
        }
        .map_err(failed("unpack", entry))
    }

    /// Sets owner and time of an entry that cannot be opened.
    fn dress_by_name(&mut self, parent: &[u8], name: &[u8], entry: &TarEntry) -> Result<(), LayerError> {
        let owner = self.owner(entry);
        let folder = self.tree.folder(parent, &entry.name)?;
        if owner != (0, 0) {
            let (uid, gid) = (Uid::from_raw(owner.0), Gid::from_raw(owner.1));
            rustix::fs::chownat(folder, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
                .map_err(failed("give away", entry))?;
        }
        rustix::fs::utimensat(folder, name, &times(time(entry)), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(failed("set the time of", entry))
    }

    fn owner(&mut self, entry: &TarEntry) -> (u32, u32) {
        let inside = |id: u64| u32::try_from(id).ok().filter(|_| id < IDS);
        let owner = (inside(entry.uid), inside(entry.gid));
        if owner.0.is_none() || owner.1.is_none() {
            self.note("owners above 65,535 became nobody (65534)");
        }
        (owner.0.unwrap_or(NOBODY), owner.1.unwrap_or(NOBODY))
    }

    fn count_entry(&mut self) -> Result<(), LayerError> {
        self.disk.take(ENTRY_BYTES)
    }

    fn note_dropped(&mut self, dropped: u64) {
        if dropped > 0 {
            *self.done.notes.entry("extended attributes left out".to_owned()).or_default() += dropped;
        }
    }

    fn note(&mut self, what: &str) {
        match self.done.notes.get_mut(what) {
            Some(times) => *times += 1,
            None => drop(self.done.notes.insert(what.to_owned(), 1)),
        }
    }
}

struct Disk {
    allowed: UnpackLimits,
}

impl Disk {
    /// Checks the free space before so many bytes are written.
    fn take(&mut self, bytes: u64) -> Result<(), LayerError> {
        self.allowed
            .space
            .take(bytes)
            .map_err(LayerError::io("measure the disk of", "a layer being unpacked"))
    }
}

/// Writes the data of a file; holes stay holes. Blocks of zeros become holes too: a hole in a sandbox's file arrives as
/// zeros, and must not take disk space on the host that it did not take in the sandbox.
fn write_data<R: BufRead>(
    archive: &mut Archive<R>,
    file: &OwnedFd,
    entry: &TarEntry,
    disk: &mut Disk,
    cancel: &CancellationToken,
) -> Result<(), LayerError> {
    let whole = [(0, entry.size)];
    let mut has_holes = entry.map.is_some();
    for &(offset, length) in entry.map.as_deref().unwrap_or(&whole) {
        let mut written = 0;
        while written < length {
            let piece = archive.data()?;
            let most = usize::try_from(length - written).unwrap_or(usize::MAX).min(piece.len());
            if most == 0 {
                return Err(LayerError::refused(&entry.name, "it has less data than its header says"));
            }
            let (run, is_zeros) = run_of(&piece[..most], offset + written);
            if !is_zeros {
                disk.take(run as u64)?;
            }
            let some = match is_zeros {
                true => run,
                false => match rustix::io::pwrite(file, &piece[..run], offset + written) {
                    Err(Errno::INTR) => continue,
                    other => other.map_err(failed("write", entry))?,
                },
            };
            archive.took(some);
            written += some as u64;
            has_holes |= is_zeros;
            if cancel.is_cancelled() {
                return Err(LayerError::Cancelled);
            }
        }
    }
    if has_holes {
        rustix::fs::ftruncate(file, entry.size).map_err(failed("stretch", entry))?;
    }
    Ok(())
}

/// The length of the run of whole blocks at this position that are all zeros, or that are not.
fn run_of(piece: &[u8], at: u64) -> (usize, bool) {
    // All bytes are combined, but only if the first one is zero: that is fast in both cases.
    let is_zeros = |block: &[u8]| block[0] == 0 && block.iter().fold(0, |all, byte| all | byte) == 0;
    let first = (BLOCK - (at % BLOCK as u64) as usize).min(piece.len());
    let zeros = is_zeros(&piece[..first]);
    let rest = piece[first..].chunks(BLOCK).take_while(|block| is_zeros(block) == zeros);
    (first + rest.map(<[u8]>::len).sum::<usize>(), zeros)
}

/// Sets owner, attributes and mode of a file. The order matters: a change of owner removes setuid bits and
/// capabilities. `unsure`: mode bits that may not have been set at creation. Returns how many attributes were dropped.
fn dress(file: BorrowedFd<'_>, entry: &TarEntry, owner: (u32, u32), unsure: u32) -> Result<u64, LayerError> {
    if owner != (0, 0) {
        let (uid, gid) = (Uid::from_raw(owner.0), Gid::from_raw(owner.1));
        rustix::fs::fchown(file, Some(uid), Some(gid)).map_err(failed("give away", entry))?;
    }
    let mut dropped = 0;
    for (name, value) in &entry.xattrs {
        if !is_kept(name) {
            dropped += 1;
            continue;
        }
        match rustix::fs::fsetxattr(file, &name[..], value, XattrFlags::empty()) {
            Ok(()) => {}
            // Too large for the file system, or not supported: the file is kept without the attribute.
            Err(Errno::NOSPC | Errno::TOOBIG | Errno::OPNOTSUPP | Errno::RANGE) => dropped += 1,
            Err(Errno::INVAL) => {
                return Err(LayerError::refused(&entry.name, "it has an attribute that the kernel refuses"));
            }
            Err(errno) => return Err(failed("set an attribute of", entry)(errno)),
        }
    }
    if unsure == 0o7777 || entry.mode & (unsure | 0o7000) != 0 {
        rustix::fs::fchmod(file, Mode::from_raw_mode(entry.mode))
            .map_err(failed("set the mode of", entry))?;
    }
    Ok(dropped)
}

/// Whether an attribute has a meaning in a sandbox. All others address the host's kernel or an overlay.
pub(super) fn is_kept(name: &[u8]) -> bool {
    name == b"security.capability" || (name.starts_with(b"user.") && !name.starts_with(b"user.overlay."))
}

fn mark_opaque(folder: BorrowedFd<'_>) -> Result<(), Errno> {
    rustix::fs::fsetxattr(folder, OPAQUE, b"y", XattrFlags::empty())
}

fn time(entry: &TarEntry) -> Timespec {
    Timespec { tv_sec: entry.mtime.0, tv_nsec: entry.mtime.1.into() }
}

fn failed(action: &'static str, entry: &TarEntry) -> impl FnOnce(Errno) -> LayerError {
    move |errno| LayerError::io(action, super::error::shown(&entry.name))(errno.into())
}

/// The umask of this process. Reading it with umask(2) would change it for all threads.
fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let noted = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    noted.and_then(|octal| u32::from_str_radix(octal.trim(), 8).ok()).unwrap_or(0o7777)
}
