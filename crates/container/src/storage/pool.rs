//! The btrfs that layers lie on: a loop file of ours that grows, or the data folder's own file system.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::mount::{MountFlags, UnmountFlags};

use super::{btrfs, free_at, loopback};

const BTRFS_MAGIC: u64 = 0x9123_683e;
const GIB: u64 = 1 << 30;
/// The first size, and each step. Space is taken for good (fallocated), so that a full host never becomes an I/O error inside.
const FIRST_BYTES: u64 = GIB;
const STEP_BYTES: u64 = 2 * GIB;
const STEP_LEAST: u64 = GIB / 4;
/// The pool grows until this much is free, or as much as the largest single layer may take, up to a bound.
const LOW_BYTES: u64 = GIB;
const HEADROOM_MAX: u64 = 16 * GIB;
/// Left to the host: the pool never grows into it.
const RESERVE_BYTES: u64 = 2 * GIB;

/// Where the pool is and whether it can grow.
#[derive(Debug)]
pub(super) struct Pool {
    at: PathBuf,
    /// `None` on the host's own btrfs.
    backing: Option<Backing>,
    /// What one layer may ask for at once.
    headroom: AtomicU64,
}

#[derive(Debug)]
struct Backing {
    file: PathBuf,
    device: PathBuf,
    /// One grows it at a time.
    turn: Mutex<()>,
}

type Failed = (&'static str, io::Error);

impl Pool {
    /// Mounts the pool at `at`, unless it is mounted there already. The mount outlives this process.
    pub(super) fn open(data: &Path, at: &Path) -> Result<Self, Failed> {
        let magic = |path| rustix::fs::statfs(path).map(|stat| stat.f_type as u64).map_err(io::Error::from);
        if magic(data).map_err(|cause| ("look at the data folder", cause))? == BTRFS_MAGIC {
            return Ok(Self { at: at.to_owned(), backing: None, headroom: AtomicU64::new(0) });
        }
        let file = data.join("pool.btrfs");
        make_file(&file).map_err(|cause| ("make the pool's file", cause))?;
        if magic(at).map_err(|cause| ("look at the pool", cause))? != BTRFS_MAGIC {
            let device = loopback::attach(&file).map_err(|cause| ("attach the pool's file", cause))?;
            rustix::mount::mount(
                &device.path,
                at,
                "btrfs",
                MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOATIME,
                c"nodiscard",
            )
            .map_err(|cause| ("mount the pool", cause.into()))?;
        }
        let device = loopback::find(&file).and_then(|found| found.ok_or(io::ErrorKind::NotFound.into()));
        let device = device.map_err(|cause| ("find the pool's device", cause))?;
        let backing = Backing { file, device, turn: Mutex::new(()) };
        Ok(Self { at: at.to_owned(), backing: Some(backing), headroom: AtomicU64::new(LOW_BYTES) })
    }

    pub(super) fn free_bytes(&self) -> io::Result<u64> {
        let inside = free_at(&self.at)?;
        let outside = match &self.backing {
            Some(backing) => backing.host_free()?.saturating_sub(RESERVE_BYTES),
            None => 0,
        };
        Ok(inside + outside)
    }

    /// Notes how much one layer may take.
    pub(super) fn expect(&self, bytes: u64) {
        self.headroom.fetch_max(bytes.min(HEADROOM_MAX), Ordering::Relaxed);
    }

    pub(super) fn grow(&self) -> io::Result<()> {
        self.grow_for(0)
    }

    /// Grows it until so much more than what is kept free anyway is free.
    pub(super) fn grow_for(&self, more: u64) -> io::Result<()> {
        let Some(backing) = &self.backing else { return Ok(()) };
        let _turn = backing.turn.lock().unwrap_or_else(PoisonError::into_inner);
        while free_at(&self.at)? < self.headroom.load(Ordering::Relaxed).saturating_add(more) {
            let Some(step) = next_step(backing.host_free()?) else { break };
            let file = OpenOptions::new().write(true).open(&backing.file)?;
            rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), file.metadata()?.len(), step)?;
            loopback::take_new_size(&backing.device)?;
            btrfs::grow(&self.at)?;
        }
        Ok(())
    }
}

/// How far the pool grows next. The last steps are short ones, so that what counts as free can also be had.
fn next_step(host_free: u64) -> Option<u64> {
    let room = host_free.saturating_sub(RESERVE_BYTES);
    Some(room.min(STEP_BYTES) / STEP_LEAST * STEP_LEAST).filter(|step| *step > 0)
}

impl Backing {
    fn host_free(&self) -> io::Result<u64> {
        free_at(self.file.parent().unwrap_or(Path::new("/")))
    }
}

/// Appears under its name only when it is complete.
fn make_file(path: &Path) -> io::Result<()> {
    if path.exists() {
        return Ok(());
    }
    let next = path.with_extension("btrfs-new");
    let file = File::create(&next)?;
    std::os::unix::fs::fchown(&file, Some(0), Some(0))?;
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, FIRST_BYTES)?;
    drop(file);
    let program =
        ["/usr/sbin/mkfs.btrfs", "/sbin/mkfs.btrfs"].into_iter().find(|path| Path::new(path).exists());
    let output = Command::new(program.unwrap_or("mkfs.btrfs"))
        .args(["--quiet", "--force", "--data", "single", "--metadata", "single", "--nodiscard"])
        .arg(&next)
        .stdin(Stdio::null())
        .output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(format!("mkfs.btrfs: {}", said.lines().next().unwrap_or("failed"))));
    }
    File::open(&next)?.sync_all()?;
    std::fs::rename(next, path)
}

/// Unmounts the pool of `data`; for tests and uninstalling.
pub(crate) fn unmount(data: &Path) -> io::Result<()> {
    let at = data.join("pool");
    let mounted = crate::mountinfo::read()?.iter().any(|mount| mount.point == at);
    if mounted { Ok(rustix::mount::unmount(&at, UnmountFlags::empty())?) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pool_grows_to_the_reserve_and_not_into_it() {
        assert_eq!(next_step(100 * GIB), Some(STEP_BYTES));
        assert_eq!(next_step(RESERVE_BYTES + GIB), Some(GIB));
        assert_eq!(next_step(RESERVE_BYTES + STEP_LEAST + 1), Some(STEP_LEAST));
        assert_eq!(next_step(RESERVE_BYTES + STEP_LEAST - 1), None);
        assert_eq!(next_step(0), None);
    }
}
