//! Watched files (inotify): finds them again by their path.
//!
//! For a watch the kernel reports only the file system and the inode. CRIU finds the path by checking every file in the
//! given folders, but an overlay reports another device for a file than for itself.

use std::ffi::{CStr, c_char, c_int, c_void};

use crate::{Next, variable};

type StatAt = unsafe extern "C" fn(c_int, *const c_char, *mut libc::stat, c_int) -> c_int;

static STATAT: Next = Next::new(c"fstatat64");
/// The kernel's limit for a path.
const PATH_MOST: usize = 4_096;

/// Replaces fstatat64(3): a file that is looked up without following links gets the device of its folder. CRIU does
/// that only for watched files and for links.
///
/// # Safety
/// As for the call.
#[unsafe(no_mangle)]
unsafe extern "C" fn fstatat64(
    at: c_int,
    path: *const c_char,
    about: *mut libc::stat,
    flags: c_int,
) -> c_int {
    // SAFETY: the address is that of fstatat64(3), which has this type.
    let next = unsafe { std::mem::transmute::<*mut c_void, StatAt>(STATAT.address()) };
    // SAFETY: the arguments are the caller's.
    let answer = unsafe { next(at, path, about, flags) };
    if answer != 0 || flags != libc::AT_SYMLINK_NOFOLLOW || variable(c"ATOLL_CRIU_ROOT").is_none() {
        return answer;
    }
    // SAFETY: the kernel has just read the path and filled the struct.
    let (path, about) = unsafe { (CStr::from_ptr(path), &mut *about) };
    if about.st_mode & libc::S_IFMT != libc::S_IFREG {
        return answer;
    }
    let mut folder = [0u8; PATH_MOST];
    if !folder_of(path.to_bytes(), &mut folder) {
        return answer;
    }
    // SAFETY: the path ends with a NUL, the struct is plain data, and both live through the call.
    unsafe {
        let mut above: libc::stat = std::mem::zeroed();
        if next(at, folder.as_ptr().cast(), &raw mut above, 0) == 0 {
            about.st_dev = above.st_dev;
        }
    }
    answer
}

/// Writes the path of the parent folder, with a trailing NUL; `false` if it does not fit.
fn folder_of(path: &[u8], room: &mut [u8; PATH_MOST]) -> bool {
    let folder = match path.iter().rposition(|byte| *byte == b'/') {
        Some(0) => &b"/"[..],
        Some(end) => &path[..end],
        None => &b"."[..],
    };
    match room.get_mut(..folder.len()) {
        Some(start) if folder.len() < PATH_MOST => start.copy_from_slice(folder),
        _ => return false,
    }
    true
}
