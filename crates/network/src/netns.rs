//! Network namespaces: pins one at a path, finds it again, enters and leaves one.
//!
//! Only the calling thread moves. No function changes the process as a whole, and none leaves a thread in a foreign
//! namespace: if a thread cannot return to its own, the process is aborted.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::mount::UnmountFlags;
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

/// The magic number of the file system of namespace files.
const NSFS_MAGIC: u64 = 0x6e73_6673;

/// The network namespace of the calling thread.
pub fn current() -> io::Result<OwnedFd> {
    Ok(File::open("/proc/thread-self/ns/net")?.into())
}

/// Moves the calling thread into `namespace` permanently.
pub fn join(namespace: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::thread::move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))?)
}

/// Runs `work` inside `namespace` on the calling thread and returns. For work that cannot panic and takes microseconds.
pub(crate) fn briefly_in<T>(
    namespace: BorrowedFd<'_>,
    work: impl FnOnce() -> io::Result<T>,
) -> io::Result<T> {
    let home = current()?;
    briefly_in_from(home.as_fd(), namespace, work)
}

/// As [`briefly_in`], with the original namespace already open.
pub(crate) fn briefly_in_from<T>(
    home: BorrowedFd<'_>,
    namespace: BorrowedFd<'_>,
    work: impl FnOnce() -> io::Result<T>,
) -> io::Result<T> {
    join(namespace)?;
    let result = work();
    if join(home).is_err() {
        // Continuing would mean to act for the host in a sandbox's network.
        std::process::abort();
    }
    result
}

/// Runs `work` on a separate thread inside `namespace`; the caller's thread does not move. For set-up work.
pub fn run_in<T: Send>(namespace: BorrowedFd<'_>, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let worker = std::thread::Builder::new().name("netns-work".into()).spawn_scoped(scope, || {
            join(namespace)?;
            Ok(work())
        })?;
        worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Makes a new network namespace that exists as long as a descriptor or a process refers to it.
pub fn create() -> io::Result<OwnedFd> {
    std::thread::scope(|scope| {
        let worker = std::thread::Builder::new().name("netns-make".into()).spawn_scoped(scope, || {
            // SAFETY: only the network namespace of this short-lived thread changes; files and memory stay shared.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }?;
            current()
        })?;
        worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Opens the namespace pinned at `path`; `None` if no namespace is pinned there.
pub fn open_pinned(path: &Path) -> io::Result<Option<OwnedFd>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let is_namespace = rustix::fs::fstatfs(&file)?.f_type as u64 == NSFS_MAGIC;
    Ok(is_namespace.then(|| file.into()))
}

/// Opens the namespace pinned at `path`, or makes and pins one. The pin outlives this process.
pub(crate) fn open_or_pin(path: &Path) -> io::Result<OwnedFd> {
    if let Some(found) = open_pinned(path)? {
        return Ok(found);
    }
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
    std::thread::scope(|scope| {
        let worker = std::thread::Builder::new().name("netns-pin".into()).spawn_scoped(scope, || {
            // SAFETY: only the network namespace of this short-lived thread changes; files and memory stay shared.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }?;
            rustix::mount::mount_bind("/proc/thread-self/ns/net", path)?;
            current()
        })?;
        worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Removes the pin; the namespace ends with its last reference.
pub(crate) fn unpin(path: &Path) -> io::Result<()> {
    while open_pinned(path)?.is_some() {
        rustix::mount::unmount(path, UnmountFlags::DETACH)?;
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
