//! The disk reserve of the server, which every writer below the data folder respects.
//!
//! ```text
//! free bytes   │ data of tenants │ pause, snapshot │ records, new rows │ database, delete, start │
//!              R ────────────► R/2 ────────────► R/4 ───────────────► 0 ── + the headroom file
//! ```
//!
//! `R` is the operator's `--disk-reserve`. Each [`Purpose`] may write until its floor is reached, so that operations
//! that free space are refused last. Updates of rows and deletes are always allowed. If another program fills the disk
//! anyway, the [headroom](Reserve::before_database_write) file is removed, and its bytes are available to them.
//!
//! Bytes that were granted and are not written yet are counted, so that concurrent writers can't exceed the floor
//! together.
//!
//! [`TenantShares`] says how much of the space one tenant may fill.

mod headroom;
mod shares;
mod writer;

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headroom::Headroom;
pub use shares::{TenantNumber, TenantShares};
pub use writer::{Guarded, SpaceWriter};

/// The purpose of a write; it decides how much stays free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Data of tenants: uploads, build contexts, archives, images, templates, growth of the pool.
    Data,
    /// Memory and files of sandboxes that are paused or snapshotted.
    Memory,
    /// Small and bounded data: new rows, logs of builds, egress records.
    Records,
}

/// The reserve of the file systems below one data folder.
#[derive(Debug)]
pub struct Reserve {
    bytes: u64,
    /// Per device: bytes that were granted and may not be on disk yet.
    granted: Mutex<HashMap<u64, u64>>,
    headroom: Option<Headroom>,
    shares: TenantShares,
}

/// A write would use the reserve.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the disk of {} has {free} bytes free, of which {reserve} are reserved; the request needs {asked} more",
    at.display()
)]
pub struct NoSpace {
    /// The location of the write.
    pub at: PathBuf,
    /// Free now, without bytes granted to other writers.
    pub free: u64,
    /// The bytes that stay free.
    pub reserve: u64,
    /// The bytes to be written.
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
        Self::with_shares(bytes, TenantShares::default())
    }

    /// The same with shares of tenants.
    #[must_use]
    pub fn with_shares(bytes: u64, shares: TenantShares) -> Arc<Self> {
        Arc::new(Self { bytes, granted: Mutex::default(), headroom: None, shares })
    }

    /// The reserve of a server for its data folder, which must exist. Makes the headroom file if the disk has space; on
    /// a full disk it removes the file instead, so that the server can start.
    #[must_use]
    pub fn open(data: &Path, bytes: u64, shares: TenantShares) -> Arc<Self> {
        let headroom = Some(Headroom::new(data, bytes));
        let reserve = Arc::new(Self { bytes, granted: Mutex::default(), headroom, shares });
        reserve.before_database_write();
        reserve.keep_headroom();
        reserve
    }

    /// The operator's setting.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How much of the pool each tenant may fill, and whose files are whose.
    #[must_use]
    pub const fn shares(&self) -> &TenantShares {
        &self.shares
    }

    /// The bytes that stay free after a write for this purpose.
    #[must_use]
    pub const fn floor(&self, purpose: Purpose) -> u64 {
        match purpose {
            Purpose::Data => self.bytes,
            Purpose::Memory => self.bytes / 2,
            Purpose::Records => self.bytes / 4,
        }
    }

    /// Whether `at` is on the disk of the data folder. Other disks that the operator chose have no reserve.
    #[must_use]
    pub fn guards(&self, at: &Path) -> bool {
        let Some(headroom) = &self.headroom else { return true };
        match (device(headroom.data()), device(at)) {
            (Ok(data), Ok(at)) => data == at,
            // The write itself reports the error.
            _ => true,
        }
    }

    /// Bytes that may still be written at `at`, which must exist, for this purpose.
    pub fn room(&self, at: &Path, purpose: Purpose) -> io::Result<u64> {
        let granted = self.granted().get(&device(at)?).copied().unwrap_or(0);
        Ok(free_bytes(at)?.saturating_sub(granted).saturating_sub(self.floor(purpose)))
    }

    /// Whether so many bytes may be written at `at` now. Nothing is reserved for the caller: for short writes, and
    /// before long ones that then use a [`SpaceWriter`].
    pub fn admit(&self, at: &Path, purpose: Purpose, bytes: u64) -> io::Result<()> {
        let device = device(at)?;
        self.judge(&self.granted(), device, at, purpose, bytes)
    }

    /// Checks the space piece by piece during a write at `at`, an existing folder or file.
    pub fn writer(self: &Arc<Self>, at: &Path, purpose: Purpose) -> io::Result<SpaceWriter> {
        SpaceWriter::new(Arc::clone(self), at, purpose)
    }

    /// Called before each transaction of the database: removes the headroom file when the disk is full.
    pub fn before_database_write(&self) {
        if let Some(headroom) = &self.headroom {
            headroom.give_up_if_full();
        }
    }

    /// Whether new rows may be added to the database. Updates and deletes always may.
    #[must_use]
    pub fn takes_records(&self) -> bool {
        match &self.headroom {
            // If the disk can't be inspected, the write itself reports the error.
            Some(headroom) => {
                !matches!(self.admit(headroom.data(), Purpose::Records, 0), Err(full) if is_full(&full))
            }
            None => true,
        }
    }

    /// Makes the headroom file again once there is space; called periodically.
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

/// Whether an error means that a disk is full, by the reserve or by the kernel.
#[must_use]
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Free bytes on the file system of `at`.
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
