//! Copies layers: snapshots, sandboxes that begin as a copy of one, and rollbacks.
//!
//! ```text
//! DATA/pool/snapshots/<snapshot>/files/    a copy of the layer, read-only
//!                               /memory/   its processes, if they were kept (see `checkpoint`)
//! DATA/pool/layers/.new-<sandbox>-…/       a copy that a rollback will exchange with the layer, or a layer to be removed
//! ```
//!
//! On btrfs the kernel makes every copy in a few milliseconds, whatever its size, and the copy is on disk when the call
//! returns. On plain folders all files are copied: the result is the same, but takes as long as reading and writing
//! everything. The sandbox is frozen during the copy.
//!
//! **Which bytes count.** With simple quotas a byte counts for the layer that wrote it and for no copy. So that a limit
//! still bounds what a sandbox holds, a layer made from a snapshot records how many bytes it began with
//! ([`INHERITED`]); these are subtracted from its limit and added to its usage. Inherited bytes that the sandbox
//! deletes or overwrites still count. If more than half of the limit is inherited, the snapshot's files are counted
//! again. With full quota groups the kernel counts all bytes that a layer refers to, and nothing is recorded.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, XattrFlags};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::btrfs::{self, Access};
use crate::format::ReadError;
use crate::unpacked_size::unpack_limit;
use crate::{Layers, StorageKind, capture, clear, make_private, pack, prepare, unpack, walk};

/// The attribute of a layer that holds the number of bytes it began with.
const INHERITED: &str = "trusted.atoll.inherited";
const FILES: &str = "files";
const NEXT: &str = ".new-";
const FLUSH: &str = ".flush-";
/// LIMIT: this much can always be written, however much was inherited: a user must be able to write to tidy up a full
/// sandbox.
const ROOM_LEAST: u64 = 4 << 20;
/// The dirty bytes that a frozen sandbox may wait for; more are written to disk before it is frozen.
const DIRTY_MOST: u64 = 4 << 20;

/// How one can tell later that a snapshot is what was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seal {
    files: FilesSeal,
    /// Bytes that a layer made from it begins with, as far as it was known cheaply.
    pub bytes: u64,
    /// Whether `bytes` may be too high, because the layer was itself made from a snapshot.
    is_estimate: bool,
    /// The hash of what describes its processes, where it has some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub images: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum FilesSeal {
    /// The subvolume, and the transaction that last changed it. To change a file, a process must make the subvolume
    /// writable, and the kernel records that change.
    Btrfs { uuid: String, changed_in: u64 },
    /// The hash of its stream.
    Tree { sha256: String },
}

/// A copy could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The snapshot differs from what was sealed.
    #[error("{0}")]
    Damaged(String),
    /// The limit is below the size of the snapshot.
    #[error("it holds {used_bytes} bytes")]
    BelowUse { used_bytes: u64 },
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// LIMIT: how far a full layer may exceed its limit; a fork of one with 64 MiB was measured at up to 1 MiB more.
const OVERRUN: u64 = 1 << 20;

impl Seal {
    pub fn parse(text: &str) -> Result<Self, CopyError> {
        serde_json::from_str(text).map_err(|_| CopyError::Damaged("its seal is malformed".into()))
    }

    pub fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl Layers {
    fn snapshots(&self) -> PathBuf {
        self.at.join("snapshots")
    }

    /// Where a snapshot is.
    pub fn snapshot_path(&self, snapshot: &str) -> PathBuf {
        self.snapshots().join(snapshot)
    }

    /// Brings most of what a layer's sandbox wrote to disk while it runs, so that it stands still for a short time only.
    pub fn settle_writes(&self, name: &str) -> io::Result<()> {
        let StorageKind::Btrfs { quota, .. } = &self.kind else { return Ok(()) };
        if quota.dirty_bytes(&self.path(name))? <= DIRTY_MOST {
            return Ok(());
        }
        self.flush(name)
    }

    /// Writes all data of one layer to disk. No system call does this without the other layers, but making a copy does.
    fn flush(&self, name: &str) -> io::Result<()> {
        self.flush_at(&self.path(name), name)
    }

    pub(crate) fn flush_at(&self, path: &Path, name: &str) -> io::Result<()> {
        let copy = passing_name(FLUSH, name)?;
        btrfs::copy_subvolume(path, &self.snapshots(), &copy, Access::ReadOnly)?;
        btrfs::remove_subvolume(&self.snapshots(), &copy)
    }

    /// Makes the folder of a snapshot.
    pub fn snapshot_folder(&self, snapshot: &str) -> io::Result<PathBuf> {
        let at = self.snapshot_path(snapshot);
        make_private(&at)?;
        Ok(at)
    }

    /// Keeps a layer as it is now; nobody may write to it meanwhile. On disk when it returns.
    pub fn snapshot(&self, name: &str, snapshot: &str) -> io::Result<()> {
        let at = self.snapshot_folder(snapshot)?;
        match &self.kind {
            StorageKind::Btrfs { .. } => {
                btrfs::copy_subvolume(&self.path(name), &at, FILES, Access::ReadOnly)
            }
            StorageKind::Folders => copy_folders(&self.path(name), &at.join(FILES), &pack::PARTS),
        }
    }

    /// Seals a snapshot that was just made of the layer `name`. `images`: the hash of what describes its processes.
    pub fn seal(&self, name: &str, snapshot: &str, images: Option<String>) -> io::Result<Seal> {
        let files = self.snapshot_path(snapshot).join(FILES);
        let sealed = match &self.kind {
            StorageKind::Btrfs { .. } => {
                let identity = btrfs::identity(&files)?;
                FilesSeal::Btrfs { uuid: hex::encode(identity.uuid), changed_in: identity.changed_in }
            }
            StorageKind::Folders => FilesSeal::Tree { sha256: tree_hash(&files)? },
        };
        Ok(Seal {
            files: sealed,
            bytes: self.used_bytes(name)?,
            is_estimate: self.inherited(name) > 0,
            images,
        })
    }

    /// A quick look whether a snapshot is the one that was sealed. On plain folders it reads everything.
    pub fn check(&self, snapshot: &str, seal: &Seal) -> Result<(), CopyError> {
        let files = self.snapshot_path(snapshot).join(FILES);
        let damaged = |why: &str| Err(CopyError::Damaged(why.to_owned()));
        if !files.join("upper").is_dir() {
            return damaged("its files are missing");
        }
        match (&self.kind, &seal.files) {
            (StorageKind::Btrfs { .. }, FilesSeal::Btrfs { uuid, changed_in }) => {
                let found = btrfs::identity(&files)?;
                match found {
                    _ if hex::encode(found.uuid) != *uuid => damaged("other files are in its place"),
                    _ if !found.is_read_only => damaged("it was made writable"),
                    _ if found.changed_in != *changed_in => damaged("it was changed"),
                    _ => Ok(()),
                }
            }
            (StorageKind::Folders, FilesSeal::Tree { sha256 }) => match tree_hash(&files)? {
                found if found == *sha256 => Ok(()),
                _ => damaged("it was changed"),
            },
            _ => damaged("it was made on storage of another kind"),
        }
    }

    /// Reads all files of a snapshot; the file system's sums are checked on the way. (Files that somebody inside has set to be
    /// written in place have none.)
    pub fn verify(&self, snapshot: &str, seal: &Seal) -> Result<(), CopyError> {
        self.check(snapshot, seal)?;
        if matches!(self.kind, StorageKind::Folders) {
            return Ok(());
        }
        let read = pack::read_through(&self.snapshot_path(snapshot).join(FILES));
        read.map_err(|cause| match cause.raw_os_error() {
            Some(libc::EIO | libc::EUCLEAN) => CopyError::Damaged("the disk has lost a part of it".into()),
            _ => CopyError::Io(cause),
        })
    }

    /// Makes the layer `name` from a snapshot. Its limit is open until [`Layers::set_limit`] sets it; `limit_bytes` is what
    /// that will be.
    pub fn create_from(
        &self,
        name: &str,
        snapshot: &str,
        seal: &Seal,
        with_usr: bool,
        limit_bytes: u64,
    ) -> Result<PathBuf, CopyError> {
        self.check(snapshot, seal)?;
        let inherited = self.inheritance(snapshot, seal, limit_bytes)?;
        let path = self.path(name);
        if path.exists() {
            return Err(io::Error::from(io::ErrorKind::AlreadyExists).into());
        }
        let fill = || -> Result<(), CopyError> {
            self.copy_of(snapshot, seal, name)?;
            self.note_inherited(&path, inherited)?;
            Ok(prepare(&path, with_usr)?)
        };
        match fill() {
            Ok(()) => Ok(path),
            Err(cause) => {
                let _ = self.remove(name);
                Err(cause)
            }
        }
    }

    fn copy_of(&self, snapshot: &str, seal: &Seal, name: &str) -> Result<(), CopyError> {
        let files = self.snapshot_path(snapshot).join(FILES);
        match &self.kind {
            StorageKind::Btrfs { quota, .. } => {
                btrfs::copy_subvolume(&files, &self.root, name, Access::Writable)?;
                // With full quota groups the copy has the limit of its source, and is as full.
                if !quota.is_simple {
                    btrfs::limit(&self.path(name), btrfs::UNLIMITED)?;
                }
                // A change that was only in memory before is visible now, because the copy has written it to disk.
                self.check(snapshot, seal)
            }
            StorageKind::Folders => Ok(copy_folders(&files, &self.path(name), &pack::PARTS)?),
        }
    }

    /// How many bytes a layer made from the snapshot begins with; an error where that is more than it may hold.
    pub fn inheritance(&self, snapshot: &str, seal: &Seal, limit_bytes: u64) -> Result<u64, CopyError> {
        if !self.limits_disk() {
            return Ok(0);
        }
        let mut bytes = seal.bytes;
        if seal.is_estimate && bytes > limit_bytes / 2 {
            let files = walk::open_folder(CWD, self.snapshot_path(snapshot).join(FILES))?;
            bytes = bytes.min(walk::disk_bytes(files)?);
        }
        // A full layer holds a little more than its limit, because of what the file system needs for itself. Its copies
        // are as full as it is, which is no reason to refuse them.
        if bytes > limit_bytes + OVERRUN {
            return Err(CopyError::BelowUse { used_bytes: bytes });
        }
        Ok(bytes.min(limit_bytes))
    }

    pub(crate) fn note_inherited(&self, layer: &Path, bytes: u64) -> io::Result<()> {
        match &self.kind {
            StorageKind::Btrfs { quota, .. } if quota.is_simple => {
                let text = bytes.to_string();
                Ok(rustix::fs::setxattr(layer, INHERITED, text.as_bytes(), XattrFlags::empty())?)
            }
            _ => Ok(()),
        }
    }

    /// Bytes that a layer began with and that the kernel does not count for it.
    pub(crate) fn inherited(&self, name: &str) -> u64 {
        inherited_at(&self.path(name))
    }

    /// What is left of a limit for what a layer writes itself.
    pub(crate) fn own_limit(&self, name: &str, limit_bytes: u64) -> u64 {
        own_limit_at(&self.path(name), limit_bytes)
    }

    /// Makes a copy of the snapshot beside the layer `name`, for [`Layers::swap_in`]; answers its name. The layer may be in
    /// use.
    pub fn prepare_rollback(
        &self,
        name: &str,
        snapshot: &str,
        seal: &Seal,
        limit_bytes: u64,
    ) -> Result<String, CopyError> {
        self.check(snapshot, seal)?;
        let inherited = self.inheritance(snapshot, seal, limit_bytes)?;
        let next = passing_name(NEXT, name)?;
        let make = || -> Result<(), CopyError> {
            self.copy_of(snapshot, seal, &next)?;
            self.note_inherited(&self.path(&next), inherited)?;
            Ok(self.set_limit(&next, limit_bytes)?)
        };
        match make() {
            Ok(()) => Ok(next),
            Err(cause) => {
                let _ = self.remove(&next);
                Err(cause)
            }
        }
    }

    /// Gives a layer that is about to be removed a name that nothing had before; `None` where there is none.
    pub fn put_aside(&self, name: &str) -> io::Result<Option<String>> {
        if !self.path(name).exists() {
            return Ok(None);
        }
        if name.starts_with(NEXT) {
            return Ok(Some(name.to_owned()));
        }
        let aside = passing_name(NEXT, name)?;
        match self.rename(name, &aside) {
            Ok(()) => Ok(Some(aside)),
            // The reaper may have removed it, after a create that was abandoned.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Exchanges the layer `name` with the copy `next`, in one step: whatever happens, its files are the old or the new ones.
    /// On disk when it returns; the old ones are then at `next`.
    pub fn swap_in(&self, name: &str, next: &str) -> io::Result<()> {
        let (new, old) = (self.path(next), self.path(name));
        match rustix::fs::renameat_with(CWD, &new, CWD, &old, RenameFlags::EXCHANGE) {
            Ok(()) => {}
            Err(rustix::io::Errno::NOENT) => fs::rename(&new, &old)?,
            Err(error) => return Err(error.into()),
        }
        self.commit_names()
    }

    /// The ids of all subvolumes that are layers, snapshots or volumes.
    pub(crate) fn live_subvolumes(&self) -> io::Result<HashSet<u64>> {
        let mut live = HashSet::new();
        for folder in [&self.root, &self.snapshots(), &self.volumes()] {
            for entry in fs::read_dir(folder)? {
                let path = entry?.path();
                // If the entry is not a subvolume, this is the id of the subvolume that contains it, which has a group
                // of its own.
                live.extend(
                    [path.clone(), path.join(FILES)].iter().filter_map(|at| btrfs::subvolume_id(at).ok()),
                );
            }
        }
        Ok(live)
    }

    /// Removes a snapshot with everything in it. Nothing there is fine.
    pub fn remove_snapshot(&self, snapshot: &str) -> io::Result<()> {
        let at = self.snapshot_path(snapshot);
        if !at.exists() {
            return Ok(());
        }
        if let StorageKind::Btrfs { .. } = &self.kind {
            if snapshot.starts_with(FLUSH) {
                return btrfs::remove_subvolume(&self.snapshots(), snapshot);
            }
            match btrfs::remove_subvolume(&at, FILES) {
                // The subvolume does not exist, or was replaced by something else.
                Err(error)
                    if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINVAL | libc::ENOTDIR)) => {}
                other => other?,
            }
        }
        clear::remove_tree(&at)
    }

    /// Removes every snapshot, when the server is taken off the machine: what is read-only can't be removed like a folder.
    pub fn remove_all_snapshots(&self) -> io::Result<()> {
        self.unwanted_snapshots(&HashSet::new())?.iter().try_for_each(|name| self.remove_snapshot(name))
    }

    /// Every snapshot that is not wanted, half-made ones included.
    pub fn unwanted_snapshots(&self, wanted: &HashSet<String>) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.snapshots())? {
            names.extend(entry?.file_name().into_string().ok().filter(|name| !wanted.contains(name)));
        }
        Ok(names)
    }

    /// Writes the layer `name` as a stream.
    pub fn pack(&self, name: &str, out: &mut impl Write) -> io::Result<()> {
        pack::write(&self.path(name), out)
    }

    /// Writes what the layer `name` has over the folders `lower`, the top one first, as the layer of an image.
    pub fn capture(&self, name: &str, lower: &[PathBuf], out: &mut impl Write) -> io::Result<()> {
        capture::write(&self.path(name), name, lower, out)
    }

    /// Makes the layer `name` from a stream: under its name when all of it is on disk, or not at all.
    pub fn unpack(&self, name: &str, limit_bytes: u64, input: &mut impl Read) -> Result<(), ReadError> {
        let half = passing_name(".unpack-", name)?;
        match &self.kind {
            StorageKind::Btrfs { .. } => btrfs::create_subvolume(&self.root, &half)?,
            StorageKind::Folders => fs::create_dir(self.path(&half))?,
        }
        let mut fill = || -> Result<(), ReadError> {
            self.set_limit(&half, unpack_limit(limit_bytes))?;
            // The stream may fill the layer faster than the pool grows by itself.
            self.grow()?;
            unpack::read(&self.path(&half), input)?;
            self.sync()?;
            if self.path(name).exists() {
                return Err(io::Error::from(io::ErrorKind::AlreadyExists).into());
            }
            self.rename(&half, name)?;
            self.commit_names()?;
            Ok(())
        };
        let filled = fill();
        if filled.is_err() {
            let _ = self.remove(&half);
        }
        filled
    }

    /// Waits until everything in the pool is on disk.
    pub fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(fs::File::open(&self.root)?)?)
    }

    pub(crate) fn commit_names(&self) -> io::Result<()> {
        match &self.kind {
            StorageKind::Btrfs { .. } => btrfs::commit(&self.root),
            StorageKind::Folders => fs::File::open(&self.root)?.sync_all(),
        }
    }

    /// Whether a limit is below the one in force.
    pub fn is_smaller(&self, name: &str, limit_bytes: u64) -> io::Result<bool> {
        match &self.kind {
            StorageKind::Btrfs { quota, .. } => {
                Ok(self.own_limit(name, limit_bytes) < quota.limit_bytes(&self.path(name))?)
            }
            StorageKind::Folders => Ok(false),
        }
    }

    /// Bytes that a layer takes now, not as of the last time the books were settled.
    pub fn used_bytes_now(&self, name: &str) -> io::Result<u64> {
        if let StorageKind::Btrfs { .. } = &self.kind {
            self.flush(name)?;
        }
        self.used_bytes(name)
    }
}

/// Bytes that a subvolume began with and that the kernel does not count for it.
pub(crate) fn inherited_at(path: &Path) -> u64 {
    let mut text = [0; 20];
    let read = rustix::fs::getxattr(path, INHERITED, &mut text);
    let text = read.ok().and_then(|length| std::str::from_utf8(text.get(..length)?).ok());
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// What is left of a limit for what is written to a subvolume itself.
pub(crate) fn own_limit_at(path: &Path, limit_bytes: u64) -> u64 {
    match inherited_at(path) {
        0 => limit_bytes,
        inherited => limit_bytes.saturating_sub(inherited).max(ROOM_LEAST),
    }
}

/// A name that nothing had before: what is under an old one may be about to be removed.
pub(crate) fn passing_name(kind: &str, of: &str) -> io::Result<String> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    Ok(format!("{kind}{of}-{}", hex::encode(random)))
}

/// Copies the content of a layer or volume between plain folders, and brings it to disk.
pub(crate) fn copy_folders(from: &Path, to: &Path, parts: &'static [&'static str]) -> io::Result<()> {
    let half = to.with_file_name(format!(".half-{}", to.file_name().unwrap_or_default().to_string_lossy()));
    let half = half.as_path();
    if half.exists() {
        clear::remove_tree(half)?;
    }
    make_private(half)?;
    let (mut read, mut write) = io::pipe()?;
    let copied = std::thread::scope(|scope| {
        let packer = scope.spawn(move || {
            let mut out = io::BufWriter::with_capacity(64 << 10, &mut write);
            pack::write_parts(from, parts, &mut out)
        });
        let unpacked = unpack::read_with(half, parts, &mut read);
        drop(read);
        let packed = packer.join().unwrap_or_else(|_| Err(io::Error::other("copying a layer panicked")));
        match unpacked {
            Err(ReadError::Io(cause)) => Err(cause),
            Err(ReadError::Damaged(why)) => Err(packed.err().unwrap_or_else(|| io::Error::other(why))),
            Ok(()) => packed,
        }
    });
    let finish = || {
        copied?;
        rustix::fs::syncfs(fs::File::open(half)?)?;
        fs::rename(half, to)?;
        fs::File::open(to.parent().unwrap_or(to))?.sync_all()
    };
    finish().inspect_err(|_| drop(clear::remove_tree(half)))
}

/// The hash of everything in a layer.
fn tree_hash(layer: &Path) -> io::Result<String> {
    struct Hasher(Sha256);
    impl Write for Hasher {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.update(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut hasher = Hasher(Sha256::new());
    pack::write(layer, &mut hasher)?;
    Ok(hex::encode(hasher.0.finalize()))
}
