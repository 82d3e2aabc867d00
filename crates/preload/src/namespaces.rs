//! Namespaces of a sandbox that was restored before.
//!
//! CRIU enters the sandbox's user namespace and checks from there whether the other namespaces belong to it. The agent
//! forbids inspection (`PR_SET_DUMPABLE`), and its memory was made by CRIU itself, so for the kernel it belongs to the
//! host: its namespaces cannot be opened from inside. They are opened before CRIU enters, and returned when the kernel
//! refuses.

use std::ffi::{CStr, c_char, c_int};
use std::sync::atomic::{AtomicI32, Ordering};

use crate::{Next, variable};

type Setns = unsafe extern "C" fn(c_int, c_int) -> c_int;
type OpenAt = unsafe extern "C" fn(c_int, *const c_char, c_int, ...) -> c_int;

static SETNS: Next = Next::new(c"setns");
static OPENAT: Next = Next::new(c"openat64");
static NAMES: [&CStr; 7] = [c"ns/net", c"ns/uts", c"ns/ipc", c"ns/mnt", c"ns/time", c"ns/pid", c"ns/cgroup"];
/// Descriptors of these namespaces, once CRIU has entered.
static OPENED: [AtomicI32; 7] = [const { AtomicI32::new(-1) }; 7];

fn next_openat() -> OpenAt {
    // SAFETY: the address is that of openat64(3), which has this type.
    unsafe { std::mem::transmute::<*mut std::ffi::c_void, OpenAt>(OPENAT.address()) }
}

/// Replaces setns(2).
///
/// # Safety
/// As for the call.
#[unsafe(no_mangle)]
unsafe extern "C" fn setns(fd: c_int, kind: c_int) -> c_int {
    if kind == libc::CLONE_NEWUSER
        && let Some(root) = variable(c"ATOLL_CRIU_ROOT")
        && let Some(process) = root.to_bytes().strip_suffix(b"root")
    {
        for (name, opened) in NAMES.iter().zip(&OPENED) {
            let path = [process, name.to_bytes_with_nul()].concat();
            // SAFETY: the path ends with a NUL, and lives through the call.
            let fd = unsafe {
                next_openat()(libc::AT_FDCWD, path.as_ptr().cast(), libc::O_RDONLY | libc::O_CLOEXEC)
            };
            opened.store(fd, Ordering::Relaxed);
        }
    }
    // SAFETY: the address is that of setns(2), which has this type; the arguments are the caller's.
    unsafe { std::mem::transmute::<*mut std::ffi::c_void, Setns>(SETNS.address())(fd, kind) }
}

/// Replaces openat64(3).
///
/// # Safety
/// As for the call.
#[unsafe(no_mangle)]
unsafe extern "C" fn openat64(at: c_int, path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    // SAFETY: the arguments are the caller's; without a mode argument the mode is not used.
    let answer = unsafe { next_openat()(at, path, flags, mode) };
    // SAFETY: errno of this thread, and a path that the kernel has just read.
    let (refused, path) = unsafe {
        let refused = answer < 0 && *libc::__errno_location() == libc::EACCES;
        if !refused || path.is_null() {
            return answer;
        }
        (refused, CStr::from_ptr(path))
    };
    let kept = NAMES.iter().zip(&OPENED).find(|(name, _)| refused && **name == path);
    match kept.map(|(_, opened)| opened.load(Ordering::Relaxed)) {
        // SAFETY: a descriptor of this library that stays open.
        Some(fd) if fd >= 0 => unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) },
        _ => answer,
    }
}
