//! The reserve of the server's disk: every writer below the data folder asks it first.
//!
//! ```text
//! free bytes   │ data of tenants │ pause, snapshot │ records, new rows │ database, delete, start │
//!              R ────────────► R/2 ────────────► R/4 ───────────────► 0 ── + the headroom file
//! ```
//!
//! `R` is the operator's `--disk-reserve`. Each [`Purpose`] may write until its floor is reached, so that what is needed to
//! free space is refused last. Updates of rows and deletes never ask. When the disk is full all the same, because another
//! program filled it, the [headroom](Reserve::before_database_write) file is removed and its bytes are theirs.
//!
//! Bytes that were granted and are not written yet are counted, so that writers at the same time can't pass the floor
//! together.

mod headroom;
mod writer;

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headroom::Headroom;
pub use writer::{Guarded, SpaceWriter};

/// What is written; decides how much stays free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// What tenants send or make: uploads, build contexts, archives, images, templates, growth of the pool.
    Data,
    /// Memory and files of sandboxes that are paused or snapshotted.
    Memory,
    /// What is small and bounded: rows of new things, logs of builds, egress records.
    Records,
}

/// The reserve of the file systems below one data folder.
#[derive(Debug)]
pub struct Reserve {
    bytes: u64,
    /// Per device: bytes that were granted and may not be on disk yet.
    granted: Mutex<HashMap<u64, u64>>,
    headroom: Option<Headroom>,
}

/// A write would touch the reserve.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the disk of {} has {free} bytes free, of which {reserve} are reserved; the request needs {asked} more",
    at.display()
)]
pub struct NoSpace {
    /// Where it should be written.
    pub at: PathBuf,
    /// Free now, without what other writers were granted.
    pub free: u64,
    /// What stays free.
    pub reserve: u64,
    /// How much should be written.
    pub asked: u64,
}

impl From<NoSpace> for io::Error {
    fn from(full: NoSpace) -> Self {
        Self::new(io::ErrorKind::StorageFull, full)
    }
}

impl Reserve {
    /// A reserve of so many bytes, without headroom; for tests and for tools that run beside a server.
    #[must_use]
    pub fn new(bytes: u64) -> Arc<Self> {
        Arc::new(Self { bytes, granted: Mutex::default(), headroom: None })
    }

    /// The reserve of a server over its data folder, which is there. Sets the headroom aside where the disk has room; on a
    /// full disk it gives the headroom up instead, so that the server can start.
    #[must_use]
    pub fn open(data: &Path, bytes: u64) -> Arc<Self> {
        let headroom = Headroom::new(data, bytes);
        let reserve = Arc::new(Self { bytes, granted: Mutex::default(), headroom: Some(headroom) });
        reserve.before_database_write();
        reserve.keep_headroom();
        reserve
    }

    /// The operator's setting.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What stays free after a write for this purpose.
    #[must_use]
    pub const fn floor(&self, purpose: Purpose) -> u64 {
        match purpose {
            Purpose::Data => self.bytes,
            Purpose::Memory => self.bytes / 2,
            Purpose::Records => self.bytes / 4,
        }
    }

    /// Whether `at` is on the disk of the data folder. A place that the operator chose elsewhere needs no reserve of ours.
    #[must_use]
    pub fn guards(&self, at: &Path) -> bool {
        let Some(headroom) = &self.headroom else { return true };
        match (device(headroom.data()), device(at)) {
            (Ok(data), Ok(at)) => data == at,
            // The write itself meets what is wrong with it.
            _ => true,
        }
    }

    /// Bytes that may still be written at `at`, which is there, for this purpose.
    pub fn room(&self, at: &Path, purpose: Purpose) -> io::Result<u64> {
        let granted = self.granted().get(&device(at)?).copied().unwrap_or(0);
        Ok(free_bytes(at)?.saturating_sub(granted).saturating_sub(self.floor(purpose)))
    }

    /// Whether so many bytes may be written at `at` now. Nothing is kept for the caller: for short writes, and before long
    /// ones that then use a [`SpaceWriter`].
    pub fn admit(&self, at: &Path, purpose: Purpose, bytes: u64) -> io::Result<()> {
        let device = device(at)?;
        self.judge(&self.granted(), device, at, purpose, bytes)
    }

    /// Asks for room piece by piece while something is written at `at`, a folder or a file that is there.
    pub fn writer(self: &Arc<Self>, at: &Path, purpose: Purpose) -> io::Result<SpaceWriter> {
        SpaceWriter::new(Arc::clone(self), at, purpose)
    }

    /// Called before each transaction of the database: gives the headroom up when the disk is full.
    pub fn before_database_write(&self) {
        if let Some(headroom) = &self.headroom {
            headroom.give_up_if_full();
        }
    }

    /// Whether rows of new things may be added to the database. Changes and deletes always may.
    #[must_use]
    pub fn takes_records(&self) -> bool {
        match &self.headroom {
            // A disk that can't be looked at is met again by the write itself.
            Some(headroom) => {
                !matches!(self.admit(headroom.data(), Purpose::Records, 0), Err(full) if is_full(&full))
            }
            None => true,
        }
    }

    /// Sets the headroom aside again once there is room; called now and then.
    pub fn keep_headroom(&self) {
        if let Some(headroom) = &self.headroom {
            headroom.keep(self.floor(Purpose::Records));
        }
    }

    fn judge(
        &self,
        granted: &HashMap<u64, u64>,
        device: u64,
        at: &Path,
        purpose: Purpose,
        bytes: u64,
    ) -> io::Result<()> {
        let reserve = self.floor(purpose);
        let free = free_bytes(at)?.saturating_sub(granted.get(&device).copied().unwrap_or(0));
        if free >= reserve.saturating_add(bytes) {
            return Ok(());
        }
        Err(NoSpace { at: at.to_owned(), free, reserve, asked: bytes }.into())
    }

    fn granted(&self) -> MutexGuard<'_, HashMap<u64, u64>> {
        self.granted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether an error says that a disk has no room, by our reserve or by the kernel.
#[must_use]
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Bytes that are free on the file system of `at`.
pub fn free_bytes(at: &Path) -> io::Result<u64> {
    let disk = rustix::fs::statvfs(at)?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

fn device(at: &Path) -> io::Result<u64> {
    Ok(std::fs::metadata(at)?.dev())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_frees_space_is_refused_last() {
        let reserve = Reserve::new(1 << 30);
        let floors = [Purpose::Data, Purpose::Memory, Purpose::Records].map(|purpose| reserve.floor(purpose));
        assert_eq!(floors, [1 << 30, 1 << 29, 1 << 28]);
    }

    #[test]
    fn a_write_that_touches_the_reserve_is_refused_as_a_full_disk() {
        let folder = tempfile::tempdir().unwrap();
        let free = free_bytes(folder.path()).unwrap();
        assert!(Reserve::new(free / 2).admit(folder.path(), Purpose::Data, 1).is_ok());
        let refused = Reserve::new(u64::MAX).admit(folder.path(), Purpose::Data, 1).unwrap_err();
        assert!(is_full(&refused), "{refused}");
        assert_eq!(Reserve::new(u64::MAX).room(folder.path(), Purpose::Data).unwrap(), 0);
    }
}
