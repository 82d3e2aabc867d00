//! The btrfs file system that holds the layers: a loop file that grows, or the file system of the data folder.

use std::ffi::CStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use atoll_disk::{Purpose, Reserve, free_bytes};
use rustix::mount::{MountFlags, UnmountFlags};

use super::{btrfs, loopback};

const BTRFS_MAGIC: u64 = 0x9123_683e;
const GIB: u64 = 1 << 30;
/// The first size, and each step. The space is allocated permanently (fallocate), so that a full host never causes an
/// I/O error in a sandbox.
const FIRST_BYTES: u64 = GIB;
const STEP_BYTES: u64 = 2 * GIB;
const STEP_LEAST: u64 = GIB / 4;
/// The pool grows until this much is free, or as much as the largest single layer may take, up to a bound.
const LOW_BYTES: u64 = GIB;
const HEADROOM_MAX: u64 = 16 * GIB;

/// Where the pool is and whether it can grow.
#[derive(Debug)]
pub(crate) struct Pool {
    at: PathBuf,
    /// `None` if the pool is on the host's own btrfs.
    backing: Option<Backing>,
    /// The number of bytes that one layer may take at once.
    headroom: AtomicU64,
    disk: Arc<Reserve>,
}

#[derive(Debug)]
struct Backing {
    file: PathBuf,
    device: PathBuf,
    /// Only one caller grows the pool at a time.
    turn: Mutex<()>,
}

type Failed = (&'static str, io::Error);

impl Pool {
    /// Mounts the pool at `at`, unless it is mounted there already. The mount outlives this process.
    pub(crate) fn open(data: &Path, at: &Path, disk: &Arc<Reserve>) -> Result<Self, Failed> {
        let disk = Arc::clone(disk);
        let magic = |path| rustix::fs::statfs(path).map(|stat| stat.f_type as u64).map_err(io::Error::from);
        if magic(data).map_err(|cause| ("inspect the data folder", cause))? == BTRFS_MAGIC {
            return Ok(Self { at: at.to_owned(), backing: None, headroom: AtomicU64::new(0), disk });
        }
        let file = data.join("pool.btrfs");
        make_file(&file, &disk).map_err(|cause| ("make the pool's file", cause))?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOATIME;
        let options = options(&file).map_err(|cause| ("inspect the pool's file", cause))?;
        if magic(at).map_err(|cause| ("inspect the pool", cause))? != BTRFS_MAGIC {
            let device = loopback::attach(&file).map_err(|cause| ("attach the pool's file", cause))?;
            rustix::mount::mount(&device.path, at, "btrfs", flags, options)
                .map_err(|cause| ("mount the pool", cause.into()))?;
        } else {
            // An earlier server may have mounted it with other options.
            rustix::mount::mount_remount(at, flags, options)
                .map_err(|cause| ("mount the pool again", cause.into()))?;
        }
        let device = loopback::find(&file).and_then(|found| found.ok_or(io::ErrorKind::NotFound.into()));
        let device = device.map_err(|cause| ("find the pool's device", cause))?;
        let backing = Backing { file, device, turn: Mutex::new(()) };
        Ok(Self { at: at.to_owned(), backing: Some(backing), headroom: AtomicU64::new(LOW_BYTES), disk })
    }

    /// The folder whose disk it grows into; `None` where it is the disk itself.
    pub(crate) fn grows_in(&self) -> Option<&Path> {
        self.backing.as_ref().map(Backing::folder)
    }

    /// Notes how much one layer may take.
    pub(crate) fn expect(&self, bytes: u64) {
        self.headroom.fetch_max(bytes.min(HEADROOM_MAX), Ordering::Relaxed);
    }

    /// Grows it until so much more than what is kept free anyway is free; `pending` bytes are promised to writers already.
    pub(crate) fn grow_for(&self, more: u64, pending: u64, purpose: Purpose) -> io::Result<()> {
        let Some(backing) = &self.backing else { return Ok(()) };
        let _turn = backing.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = self.headroom.load(Ordering::Relaxed).saturating_add(more).saturating_add(pending);
        while free_bytes(&self.at)? < wanted {
            let Some(step) = next_step(self.disk.room(backing.folder(), purpose)?) else { break };
            let file = OpenOptions::new().write(true).open(&backing.file)?;
            rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), file.metadata()?.len(), step)?;
            loopback::take_new_size(&backing.device)?;
            btrfs::grow(&self.at)?;
        }
        Ok(())
    }
}

/// The size of the next step. The last steps are short ones, so that all room that counts as free can be used.
fn next_step(room: u64) -> Option<u64> {
    Some(whole_steps(room.min(STEP_BYTES))).filter(|step| *step > 0)
}

/// How far the pool can grow into so much room.
pub(crate) fn whole_steps(room: u64) -> u64 {
    room / STEP_LEAST * STEP_LEAST
}

impl Backing {
    fn folder(&self) -> &Path {
        self.file.parent().unwrap_or(Path::new("/"))
    }
}

/// Mount options. btrfs allocates space for data in large chunks, and when all space is allocated, none may be left for
/// metadata: then the file system is full although it has room. So it allocates a chunk for metadata after every few
/// chunks of data; a small pool does so more often.
fn options(file: &Path) -> io::Result<&'static CStr> {
    let is_large = file.metadata()?.len() > 50 * GIB;
    Ok(if is_large { c"nodiscard,metadata_ratio=20" } else { c"nodiscard,metadata_ratio=4" })
}

/// Makes the pool's file. It has its final name only when it is complete.
fn make_file(path: &Path, disk: &Reserve) -> io::Result<()> {
    if path.exists() {
        return Ok(());
    }
    let folder = path.parent().unwrap_or(Path::new("/"));
    let bytes = next_step(disk.room(folder, Purpose::Data)?.min(FIRST_BYTES));
    let bytes = bytes.ok_or_else(|| {
        let needed = (disk.bytes() + STEP_LEAST) >> 20;
        io::Error::new(
            io::ErrorKind::StorageFull,
            format!("{needed} MiB must be free, including the reserve"),
        )
    })?;
    let next = path.with_extension("btrfs-new");
    let file = File::create(&next)?;
    std::os::unix::fs::fchown(&file, Some(0), Some(0))?;
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes)?;
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
pub fn unmount(data: &Path) -> io::Result<()> {
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
        assert_eq!(next_step(GIB), Some(GIB));
        assert_eq!(next_step(STEP_LEAST + 1), Some(STEP_LEAST));
        assert_eq!(next_step(STEP_LEAST - 1), None);
        assert_eq!(next_step(0), None);
    }
}
