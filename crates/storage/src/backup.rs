//! Copies of what a pool holds, for a backup: made beside a server that may run, and put into an empty pool again.
//!
//! ```text
//! DATA/pool/backup/lock              held by the process that makes a backup
//!                 /layers/<sandbox>  /volumes/<volume>  /snapshots/<snapshot>   read-only subvolumes
//!                 /memory/<name>/checkpoint/                                    shares its blocks with the original
//! ```
//!
//! The copies belong to the process that holds the lock and end with its [`PoolCopies`], as does the folder. What a killed one
//! leaves is removed by the next backup, or by the next server that opens the pool.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::btrfs::{self, Access};
use crate::format::ReadError;
use crate::snapshots::passing_name;
use crate::volumes::FILES;
use crate::{Layers, Seal, StorageKind, clear, make_private, pack, unpack};

/// How much is free at least before a restore writes.
const RESTORE_ROOM: u64 = 1 << 30;
const FOLDER: &str = "backup";
const LOCK: &str = "lock";
const MEMORY: &str = "memory";
const CHECKPOINT: &str = "checkpoint";
const KINDS: [&str; 3] = ["layers", "volumes", "snapshots"];

/// What a copy is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CopyKind {
    /// The files of a sandbox.
    Layer,
    /// The files of a volume.
    Volume,
    /// The files of a snapshot.
    Snapshot,
    /// The memory of a paused sandbox.
    SandboxMemory,
    /// The memory of a snapshot.
    SnapshotMemory,
}

/// The copies of one backup.
#[derive(Debug)]
pub struct PoolCopies {
    pool: PathBuf,
    at: PathBuf,
    /// Locked as long as the copies are needed.
    _lock: File,
}

/// Copies cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum CopiesError {
    /// The pool is a plain folder, of which no copy can be made in one moment.
    #[error("{} is not a btrfs file system", .0.display())]
    NotBtrfs(PathBuf),
    /// Another process makes a backup.
    #[error("another backup of {} is being made", .0.display())]
    Busy(PathBuf),
    /// Another error.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl PoolCopies {
    /// Begins a backup of the pool of `data`; removes what killed backups left.
    pub fn begin(data: &Path) -> Result<Self, CopiesError> {
        let pool = data.join("pool");
        if !pool.is_dir() || rustix::fs::statfs(&pool).map_err(io::Error::from)?.f_type as u64 != btrfs::MAGIC
        {
            return Err(CopiesError::NotBtrfs(pool));
        }
        let at = pool.join(FOLDER);
        let Some(lock) = lock(&at)? else { return Err(CopiesError::Busy(pool)) };
        sweep(&at)?;
        for kind in KINDS.into_iter().chain([MEMORY]) {
            make_private(&at.join(kind))?;
        }
        Ok(Self { pool, at, _lock: lock })
    }

    /// Makes a copy, in place of an earlier one of the same name. `false`: there is no such thing in the pool.
    pub fn add(&self, kind: CopyKind, name: &str) -> io::Result<bool> {
        self.drop_copy(kind, name)?;
        let made = match kind {
            CopyKind::Layer => self.copy_subvolume(&self.pool.join("layers").join(name), kind, name),
            CopyKind::Volume => self.copy_subvolume(&self.pool.join("volumes").join(name), kind, name),
            CopyKind::Snapshot => {
                self.copy_subvolume(&self.pool.join("snapshots").join(name).join(FILES), kind, name)
            }
            CopyKind::SandboxMemory => {
                self.copy_memory(&self.pool.join("checkpoints").join(name), kind, name)
            }
            CopyKind::SnapshotMemory => {
                self.copy_memory(&self.pool.join("snapshots").join(name).join(MEMORY), kind, name)
            }
        };
        match made {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.drop_copy(kind, name)?;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn copy_subvolume(&self, of: &Path, kind: CopyKind, name: &str) -> io::Result<()> {
        let to = self.path(kind, name);
        btrfs::copy_subvolume(of, to.parent().unwrap_or(&self.at), name, Access::ReadOnly)
    }

    /// The blocks are shared, and what is written to the original afterwards does not change the copy.
    fn copy_memory(&self, of: &Path, kind: CopyKind, name: &str) -> io::Result<()> {
        // A folder with a manifest is complete.
        fs::metadata(of.join("manifest.json"))?;
        let to = self.path(kind, name).join(CHECKPOINT);
        fs::create_dir_all(&to)?;
        copy_folder(of, &to)
    }

    /// Removes one copy. Nothing there is fine.
    pub fn drop_copy(&self, kind: CopyKind, name: &str) -> io::Result<()> {
        let path = self.path(kind, name);
        match (kind, path.exists()) {
            (_, false) => Ok(()),
            (CopyKind::SandboxMemory | CopyKind::SnapshotMemory, true) => clear::remove_tree(&path),
            (CopyKind::Layer | CopyKind::Volume | CopyKind::Snapshot, true) => {
                btrfs::remove_subvolume(path.parent().unwrap_or(&self.at), name)
            }
        }
    }

    /// Writes a copy as a stream.
    pub fn pack(&self, kind: CopyKind, name: &str, out: &mut impl Write) -> io::Result<()> {
        pack::write_parts(&self.path(kind, name), parts(kind), out)
    }

    /// The path of a file that ends with the copies.
    pub fn scratch(&self, name: &str) -> PathBuf {
        self.at.join(name)
    }

    /// Bytes that the files of a copy take on disk.
    pub fn bytes(&self, kind: CopyKind, name: &str) -> io::Result<u64> {
        crate::walk::disk_bytes(crate::walk::open_folder(rustix::fs::CWD, self.path(kind, name))?)
    }

    fn path(&self, kind: CopyKind, name: &str) -> PathBuf {
        match kind {
            CopyKind::Layer => self.at.join("layers").join(name),
            CopyKind::Volume => self.at.join("volumes").join(name),
            CopyKind::Snapshot => self.at.join("snapshots").join(name),
            CopyKind::SandboxMemory => self.at.join(MEMORY).join(name),
            CopyKind::SnapshotMemory => self.at.join(MEMORY).join(format!("snapshot-{name}")),
        }
    }
}

impl Drop for PoolCopies {
    fn drop(&mut self) {
        if let Err(cause) = remove_folder(&self.at) {
            tracing::warn!(%cause, "the copies of a backup could not be removed; the next start of the server removes them");
        }
    }
}

fn parts(kind: CopyKind) -> &'static [&'static str] {
    match kind {
        CopyKind::Layer | CopyKind::Snapshot => &pack::PARTS,
        CopyKind::Volume => &[FILES],
        CopyKind::SandboxMemory | CopyKind::SnapshotMemory => &[CHECKPOINT],
    }
}

/// Writes the named entries of some folders of `root` as a stream that [`unpack_folders`] reads.
pub fn pack_folders(
    root: &Path,
    selected: &BTreeMap<String, BTreeSet<String>>,
    out: &mut impl Write,
) -> io::Result<()> {
    pack::write_selected(root, selected, out)
}

/// Makes these folders in `root`, none of which may exist, from a stream.
pub fn unpack_folders(root: &Path, folders: &[&str], input: &mut impl Read) -> Result<(), ReadError> {
    unpack::read_plain(root, folders, input)
}

/// Removes what a killed backup left in the pool, unless a backup is being made.
pub(crate) fn remove_abandoned_copies(pool: &Path) -> io::Result<()> {
    let at = pool.join(FOLDER);
    if !at.is_dir() {
        return Ok(());
    }
    match lock(&at)? {
        Some(_lock) => remove_folder(&at),
        None => Ok(()),
    }
}

/// The lock in the folder, which is made if there is none; `None` while another process holds it.
fn lock(at: &Path) -> io::Result<Option<File>> {
    let path = at.join(LOCK);
    loop {
        make_private(at)?;
        let file = match File::options().write(true).create(true).truncate(false).open(&path) {
            // The process that held it has removed the folder.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            opened => opened?,
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(cause)) => return Err(cause),
        }
        let own = file.metadata()?.ino();
        if fs::metadata(&path).is_ok_and(|about| about.ino() == own) {
            return Ok(Some(file));
        }
    }
}

/// Removes every copy and the folder. The caller holds the lock, which goes last.
fn remove_folder(at: &Path) -> io::Result<()> {
    sweep(at)?;
    fs::remove_file(at.join(LOCK))?;
    match fs::remove_dir(at) {
        // The next backup has begun.
        Err(error) if matches!(error.kind(), io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::NotFound) => {
            Ok(())
        }
        removed => removed,
    }
}

/// Removes every copy; the lock stays.
fn sweep(at: &Path) -> io::Result<()> {
    for kind in KINDS {
        let folder = at.join(kind);
        for entry in fs::read_dir(&folder).into_iter().flatten() {
            btrfs::remove_subvolume(&folder, &entry?.file_name().to_string_lossy())?;
        }
    }
    for entry in fs::read_dir(at)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => clear::remove_tree(&entry.path())?,
            false if entry.file_name() == LOCK => {}
            false => fs::remove_file(entry.path())?,
        }
    }
    Ok(())
}

/// Removes the pool of `data` with everything in it, for a restore that is undone. Nobody may use it.
pub fn discard_pool(data: &Path) -> io::Result<()> {
    crate::unmount(data)?;
    let pool = data.join("pool");
    if pool.is_dir() && rustix::fs::statfs(&pool)?.f_type as u64 == btrfs::MAGIC {
        // The data folder itself is on btrfs: subvolumes cannot be removed like folders.
        for kind in KINDS {
            for entry in fs::read_dir(pool.join(kind)).into_iter().flatten() {
                let entry = entry?;
                for (parent, name) in [(entry.path(), FILES.to_owned()), (pool.join(kind), name_of(&entry))] {
                    match btrfs::remove_subvolume(&parent, &name) {
                        Err(error)
                            if matches!(
                                error.raw_os_error(),
                                Some(libc::ENOENT | libc::EINVAL | libc::ENOTDIR)
                            ) => {}
                        removed => removed?,
                    }
                }
            }
        }
    }
    if pool.exists() {
        clear::remove_tree(&pool)?;
    }
    match fs::remove_file(data.join("pool.btrfs")) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn name_of(entry: &fs::DirEntry) -> String {
    entry.file_name().to_string_lossy().into_owned()
}

/// Copies files and folders; the files share their blocks.
fn copy_folder(from: &Path, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let next = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            fs::create_dir(&next)?;
            fs::set_permissions(&next, entry.metadata()?.permissions())?;
            copy_folder(&entry.path(), &next)?;
            continue;
        }
        let (source, target) = (File::open(entry.path())?, File::create_new(&next)?);
        rustix::fs::ioctl_ficlone(&target, &source)?;
        target.set_permissions(source.metadata()?.permissions())?;
    }
    Ok(())
}

impl Layers {
    /// Lets the pool grow before a restore fills it.
    pub fn expect_restore(&self) {
        self.expect(RESTORE_ROOM);
        if let Err(cause) = self.grow() {
            tracing::warn!(%cause, "the pool cannot grow");
        }
    }

    /// Makes a volume from a stream that [`PoolCopies::pack`] wrote.
    pub fn restore_volume(
        &self,
        volume: &str,
        limit_bytes: Option<u64>,
        input: &mut impl Read,
    ) -> Result<(), ReadError> {
        let next = passing_name(".new-", volume)?;
        let path = self.volumes().join(&next);
        match &self.kind {
            StorageKind::Btrfs { .. } => btrfs::create_subvolume(&self.volumes(), &next)?,
            StorageKind::Folders => fs::create_dir(&path)?,
        }
        unpack::read_with(&path, parts(CopyKind::Volume), input)?;
        // A full volume may take a little more space than before; its files can still be removed.
        self.limit_volume(&next, limit_bytes)?;
        fs::rename(&path, self.volumes().join(volume))?;
        Ok(self.commit_names()?)
    }

    /// Makes the files of a snapshot from a stream; returns its new seal. `images`: the hash of what describes its processes.
    pub fn restore_snapshot(
        &self,
        snapshot: &str,
        images: Option<String>,
        input: &mut impl Read,
    ) -> Result<Seal, ReadError> {
        let layer = passing_name(".restore-", snapshot)?;
        match &self.kind {
            StorageKind::Btrfs { .. } => btrfs::create_subvolume(&self.root, &layer)?,
            StorageKind::Folders => fs::create_dir(self.path(&layer))?,
        }
        unpack::read(&self.path(&layer), input)?;
        self.snapshot(&layer, snapshot)?;
        let seal = self.seal(&layer, snapshot, images)?;
        self.remove(&layer)?;
        Ok(seal)
    }

    /// Makes the memory of a paused sandbox or of a snapshot from a stream.
    pub fn restore_memory(&self, kind: CopyKind, name: &str, input: &mut impl Read) -> Result<(), ReadError> {
        let checkpoints = self.at.join("checkpoints");
        make_private(&checkpoints)?;
        let half = checkpoints.join(passing_name(".restore-", name)?);
        make_private(&half)?;
        unpack::read_plain(&half, parts(kind), input)?;
        let to = match kind {
            CopyKind::SnapshotMemory => self.snapshot_folder(name)?.join(MEMORY),
            CopyKind::SandboxMemory | CopyKind::Layer | CopyKind::Volume | CopyKind::Snapshot => {
                checkpoints.join(name)
            }
        };
        fs::rename(half.join(CHECKPOINT), to)?;
        Ok(fs::remove_dir(half)?)
    }
}
