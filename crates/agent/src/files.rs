//! Files of the sandbox, with the permissions of a named user. Of the wire protocol only `/files` is known here.
//!
//! Every path is opened by `openat2` without magic links, so `/proc/*/root` and `/proc/*/fd` cannot be followed; where
//! the sandbox has no `openat2`, by the same rules in [`walk`].
//! Everything except regular files is refused before the real open, so no thread waits on a FIFO and no device is
//! accessed.

pub(crate) mod archive;
mod body;
mod change;
mod copy;
mod download;
mod entry;
mod lines;
mod path;
mod readers;
mod search;
mod tree;
mod upload;
mod upload_queue;
mod walk;

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd, RawFd};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

pub(crate) use body::drain;
pub(crate) use change::{OwnerChange, change};
pub(crate) use copy::copy_entry;
pub(crate) use download::get;
pub(crate) use entry::{FileEntry, FileKind, stat};
pub(crate) use path::{decode_query, resolve};
pub(crate) use readers::{ConnectionEnd, Readers};
pub(crate) use search::{Search, SearchOptions};
pub(crate) use tree::{Existing, list, make_dir, move_entry, remove};
pub(crate) use upload::{TempName, post};

use crate::error::AgentError;

/// Opens a path in the sandbox; follows ordinary symbolic links only.
pub(crate) fn open(path: &[u8], flags: OFlags, mode: Mode) -> rustix::io::Result<OwnedFd> {
    open_at(CWD, path, flags, mode, ResolveFlags::NO_MAGICLINKS)
}

/// Opens a path relative to a folder.
pub(crate) fn open_at(
    dir: impl AsFd,
    path: &[u8],
    flags: OFlags,
    mode: Mode,
    resolve: ResolveFlags,
) -> rustix::io::Result<OwnedFd> {
    loop {
        // EAGAIN and EINTR: a rename raced with the path walk, or a signal arrived; the call must be repeated.
        match rustix::fs::openat2(&dir, path, flags | OFlags::CLOEXEC, mode, resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(Errno::NOSYS) => return walk::open(dir.as_fd(), path, flags, mode, resolve),
            other => return other,
        }
    }
}

/// Opens a directory by raw system call, for use between fork and exec. The descriptor is close-on-exec.
pub(crate) fn open_dir_raw(path: &CStr) -> Result<RawFd, i32> {
    let how = libc_open_how();
    // SAFETY: a system call on a NUL-terminated path and a structure of the kernel's layout.
    let fd = unsafe {
        libc::syscall(libc::SYS_openat2, libc::AT_FDCWD, path.as_ptr(), &raw const how, size_of::<[u64; 3]>())
    };
    match i32::try_from(fd) {
        Ok(fd) if fd >= 0 => Ok(fd),
        // SAFETY: errno's address is valid for the running thread.
        _ => match unsafe { *libc::__errno_location() } {
            libc::ENOSYS => {
                let flags = OFlags::PATH | OFlags::DIRECTORY;
                let opened =
                    walk::open(CWD, path.to_bytes(), flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS);
                opened.map(IntoRawFd::into_raw_fd).map_err(Errno::raw_os_error)
            }
            errno => Err(errno),
        },
    }
}

/// flags, mode, resolve: the kernel's `struct open_how`.
fn libc_open_how() -> [u64; 3] {
    [(libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC) as u64, 0, ResolveFlags::NO_MAGICLINKS.bits()]
}

/// The directory that contains a path, and the last name. The root has no parent.
fn open_parent(path: &[u8]) -> Result<(OwnedFd, &[u8]), AgentError> {
    let cut = path.iter().rposition(|b| *b == b'/').unwrap_or(0);
    let (parent, name) = (&path[..cut.max(1)], &path[cut + 1..]);
    if name.is_empty() {
        return Err(AgentError::Invalid("the root directory itself cannot be changed".into()));
    }
    let dir = open(parent, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).map_err(|e| refuse(e, path))?;
    Ok((dir, name))
}

/// Opens a regular file for reading or writing, and nothing else: the type is checked before the real open.
fn open_regular(path: &[u8], flags: OFlags) -> Result<(OwnedFd, Stat), AgentError> {
    let handle = open(path, OFlags::PATH, Mode::empty()).map_err(|e| refuse(e, path))?;
    let stat = rustix::fs::fstat(&handle).map_err(|e| refuse(e, path))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {}
        FileType::Directory => {
            return Err(AgentError::Invalid(format!("path '{}' is a directory", shown(path))));
        }
        _ => return Err(AgentError::Invalid(format!("path '{}' is not a regular file", shown(path)))),
    }
    let file = reopen(&handle, flags | OFlags::NONBLOCK | OFlags::NOCTTY).map_err(|e| refuse(e, path))?;
    Ok((file, stat))
}

/// Opens the same file through its descriptor: the path is not walked again, so the file cannot be replaced in between.
fn reopen(handle: &OwnedFd, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    rustix::fs::open(proc_path(handle), flags | OFlags::CLOEXEC, Mode::empty())
}

fn proc_path(handle: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", handle.as_raw_fd())
}

/// The absolute path of a descriptor's file.
fn real_path(handle: &OwnedFd) -> rustix::io::Result<Vec<u8>> {
    Ok(rustix::fs::readlink(proc_path(handle), Vec::new())?.into_bytes())
}

/// Makes a directory and its missing parents. True: the directory was made now.
fn make_dirs(path: &[u8], mode: Mode) -> Result<bool, AgentError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    match open(path, flags, Mode::empty()) {
        Ok(_) => return Ok(false),
        Err(Errno::NOENT) => {}
        Err(errno) => return Err(refuse(errno, path)),
    }
    let mut made = false;
    let mut dir = open(b"/", flags, Mode::empty()).map_err(|e| refuse(e, path))?;
    for name in path.split(|b| *b == b'/').filter(|name| !name.is_empty()) {
        match rustix::fs::mkdirat(&dir, name, mode) {
            Ok(()) => made = true,
            Err(Errno::EXIST) => made = false,
            // Parents may be unwritable or read-only if they exist.
            Err(Errno::ACCESS | Errno::PERM | Errno::ROFS)
                if rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW).is_ok() =>
            {
                made = false;
            }
            Err(errno) => return Err(refuse(errno, path)),
        }
        dir = open_at(&dir, name, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS)
            .map_err(|e| refuse(e, path))?;
    }
    Ok(made)
}

/// The set-user-ID and set-group-ID bits.
const SPECIAL_BITS: Mode = Mode::SUID.union(Mode::SGID);

/// Gives a file the mode that it had elsewhere. In a sandbox that refuses the special bits it gets the others.
fn set_former_mode(file: &OwnedFd, mode: Mode) -> rustix::io::Result<()> {
    match rustix::fs::fchmod(file, mode) {
        Err(Errno::PERM) if mode.intersects(SPECIAL_BITS) => rustix::fs::fchmod(file, mode - SPECIAL_BITS),
        done => done,
    }
}

/// The error for a mode that was asked for and could not be set.
fn refuse_mode(errno: Errno, mode: Mode, path: &[u8]) -> AgentError {
    if errno != Errno::PERM || !mode.intersects(SPECIAL_BITS) {
        return refuse(errno, path);
    }
    AgentError::Denied(format!(
        "path '{}': permission denied; in a sandbox that writes to a folder of the host no file gets the set-user-ID or \
         set-group-ID bit",
        shown(path)
    ))
}

fn refuse(errno: Errno, path: &[u8]) -> AgentError {
    AgentError::from_errno(errno, &format!("path '{}'", shown(path)))
}

/// A path for display: control characters and invalid UTF-8 are replaced, and its length is limited.
pub(crate) fn shown(path: &[u8]) -> String {
    let text = String::from_utf8_lossy(&path[..path.len().min(512)]);
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}
