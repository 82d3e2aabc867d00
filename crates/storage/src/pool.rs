//! The btrfs file system that holds the layers: a loop file that grows and shrinks, or the file system of the data folder.
//!
//! Every byte of the file is allocated on the host at all times. To shrink, btrfs first moves everything below the new
//! end and commits that; then the end of the file is cut off. So a death in between leaves a file that is too long, and
//! the next step cuts it or uses it. Nothing is discarded and no hole is punched: a hole would need space of the host
//! again when it is written to.

use std::ffi::CStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use atoll_disk::{Purpose, Reserve, free_bytes};
use rustix::mount::{MountFlags, UnmountFlags};

use super::{btrfs, loopback};
use crate::space::total_bytes;

const GIB: u64 = 1 << 30;
/// The first size, and each step. The space is allocated permanently (fallocate), so that a full host never causes an
/// I/O error in a sandbox.
const FIRST_BYTES: u64 = GIB;
const STEP_BYTES: u64 = 2 * GIB;
const STEP_LEAST: u64 = GIB / 4;
/// The pool grows until this much is free, or as much as the largest single layer may take, up to a bound.
const LOW_BYTES: u64 = GIB;
const HEADROOM_MAX: u64 = 16 * GIB;
/// A pool that shrinks keeps this much more than it would grow for.
const SLACK_BYTES: u64 = GIB;
/// LIMIT: how long the pool has not grown before it shrinks.
const SHRINKS_AFTER: Duration = Duration::from_secs(20);

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
    /// Only one caller changes the size of the pool at a time.
    size: Mutex<SizeChange>,
}

/// How the size of the pool changed last.
#[derive(Debug)]
struct SizeChange {
    /// When it grew, or could not shrink.
    grown: Instant,
    /// It has begun to shrink, and goes on until it has the size that it needs.
    is_shrinking: bool,
}

impl SizeChange {
    fn growth() -> Self {
        Self { grown: Instant::now(), is_shrinking: false }
    }
}

type Failed = (&'static str, io::Error);

impl Pool {
    /// Mounts the pool at `at`, unless it is mounted there already. The mount outlives this process.
    pub(crate) fn open(data: &Path, at: &Path, disk: &Arc<Reserve>) -> Result<Self, Failed> {
        let disk = Arc::clone(disk);
        let magic = |path| rustix::fs::statfs(path).map(|stat| stat.f_type as u64).map_err(io::Error::from);
        if magic(data).map_err(|cause| ("inspect the data folder", cause))? == btrfs::MAGIC {
            return Ok(Self { at: at.to_owned(), backing: None, headroom: AtomicU64::new(0), disk });
        }
        let file = data.join("pool.btrfs");
        make_file(&file, &disk).map_err(|cause| ("make the pool's file", cause))?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOATIME;
        let options = options(&file).map_err(|cause| ("inspect the pool's file", cause))?;
        if magic(at).map_err(|cause| ("inspect the pool", cause))? != btrfs::MAGIC {
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
        let backing = Backing { file, device, size: Mutex::new(SizeChange::growth()) };
        Ok(Self { at: at.to_owned(), backing: Some(backing), headroom: AtomicU64::new(LOW_BYTES), disk })
    }

    /// The folder whose disk it grows into; `None` where it is the disk itself.
    pub(crate) fn grows_in(&self) -> Option<&Path> {
        self.backing.as_ref().map(Backing::folder)
    }

    /// What the file has beyond what btrfs uses: more than 0 only while the pool changes its size.
    pub(crate) fn unused_bytes(&self) -> io::Result<u64> {
        let Some(backing) = &self.backing else { return Ok(0) };
        Ok(backing.file.metadata()?.len().saturating_sub(total_bytes(&self.at)?))
    }

    /// Notes how much one layer may take.
    pub(crate) fn expect(&self, bytes: u64) {
        self.headroom.fetch_max(bytes.min(HEADROOM_MAX), Ordering::Relaxed);
    }

    /// Grows it until so much more than what is kept free anyway is free; `pending` bytes are promised to writers already.
    pub(crate) fn grow_for(&self, more: u64, pending: u64, purpose: Purpose) -> io::Result<()> {
        let Some(backing) = &self.backing else { return Ok(()) };
        let mut size = backing.size.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = self.headroom.load(Ordering::Relaxed).saturating_add(more).saturating_add(pending);
        while free_bytes(&self.at)? < wanted {
            let Some(step) = next_step(self.disk.room(backing.folder(), purpose)?) else { break };
            let file = OpenOptions::new().write(true).open(&backing.file)?;
            rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), file.metadata()?.len(), step)?;
            loopback::take_new_size(&backing.device)?;
            btrfs::grow(&self.at)?;
            *size = SizeChange::growth();
        }
        Ok(())
    }

    /// Whether the pool would be mostly free if no layer had a large limit. Cheap.
    pub(crate) fn may_shrink(&self, pending: u64) -> io::Result<bool> {
        let Some(backing) = &self.backing else { return Ok(false) };
        let size = backing.size.lock().unwrap_or_else(PoisonError::into_inner);
        let (length, total) = (backing.file.metadata()?.len(), total_bytes(&self.at)?);
        let used = total.saturating_sub(free_bytes(&self.at)?);
        let is_too_large =
            shrunk(total, used.saturating_add(pending), LOW_BYTES, size.is_shrinking).is_some();
        Ok(size.grown.elapsed() >= SHRINKS_AFTER && (length > total || is_too_large))
    }

    /// Forgets how much a layer may take; [`Pool::expect`] is called for every layer that exists.
    pub(crate) fn forget_expected(&self) {
        self.headroom.store(LOW_BYTES, Ordering::Relaxed);
    }

    /// One step towards the size that the pool needs, if most of it is free. Another caller may grow it between two steps.
    pub(crate) fn shrink(&self, pending: u64) -> io::Result<()> {
        let Some(backing) = &self.backing else { return Ok(()) };
        let mut size = backing.size.lock().unwrap_or_else(PoisonError::into_inner);
        let total = total_bytes(&self.at)?;
        let used = total.saturating_sub(free_bytes(&self.at)?).saturating_add(pending);
        let wanted = shrunk(total, used, self.headroom.load(Ordering::Relaxed), size.is_shrinking);
        size.is_shrinking = wanted.is_some();
        if let Some(wanted) = wanted {
            let next = wanted.max(total.saturating_sub(STEP_BYTES));
            match btrfs::shrink(&self.at, next) {
                // What is at the end does not fit below it now.
                Err(error) if error.kind() == io::ErrorKind::StorageFull => *size = SizeChange::growth(),
                other => other?,
            }
            btrfs::commit(&self.at)?;
        }
        backing.cut(total_bytes(&self.at)?)
    }
}

/// The size that a pool of `total` bytes shrinks to. `None`: it stays as it is. It begins when less than half is needed.
fn shrunk(total: u64, used: u64, headroom: u64, is_shrinking: bool) -> Option<u64> {
    let wanted = used.saturating_add(headroom).saturating_add(SLACK_BYTES).next_multiple_of(STEP_LEAST);
    let from = if is_shrinking { total.saturating_sub(STEP_LEAST) } else { total / 2 };
    Some(wanted).filter(|wanted| *wanted <= from)
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

    /// Cuts off what btrfs does not use of the file.
    fn cut(&self, bytes: u64) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(&self.file)?;
        let length = file.metadata()?.len();
        if length > bytes {
            file.set_len(bytes)?;
            loopback::take_new_size(&self.device)?;
            tracing::info!(
                from_mib = length >> 20,
                to_mib = bytes >> 20,
                "the pool was mostly free and has shrunk"
            );
        }
        Ok(())
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

    #[test]
    fn the_pool_shrinks_only_if_most_of_it_is_free_and_keeps_what_it_would_grow_for() {
        let wanted = Some(2 * GIB + STEP_LEAST);
        assert_eq!(shrunk(13 * GIB, 16 << 20, GIB, false), wanted);
        assert_eq!(shrunk(13 * GIB, 16 << 20, 8 * GIB, false), None, "a layer may take more");
        assert_eq!(shrunk(13 * GIB, 5 * GIB, GIB, false), None, "it would grow again soon");
        assert_eq!(shrunk(3 * GIB, 16 << 20, GIB, false), None, "it is small");
        assert_eq!(shrunk(3 * GIB, 16 << 20, GIB, true), wanted, "what it began it ends");
        assert_eq!(shrunk(2 * GIB + STEP_LEAST, 16 << 20, GIB, true), None, "it has ended");
    }
}
