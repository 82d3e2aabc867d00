//! Files that are watched (inotify), found again by their path.
//!
//! The kernel tells of a watch only the file system and the inode. CRIU looks for the path by asking for every file of the
//! folders that it was told, but an overlay answers another device for a file than the one that it has itself.

use std::ffi::{CStr, c_char, c_int, c_void};

use crate::{Next, variable};

type StatAt = unsafe extern "C" fn(c_int, *const c_char, *mut libc::stat, c_int) -> c_int;

static STATAT: Next = Next::new(c"fstatat64");
/// The kernel's bound for a path.
const PATH_MOST: usize = 4_096;

/// Takes the place of fstatat64(3): a file that is looked for without following links has the device of its folder. CRIU asks so
/// for watched files only, and for links.
///
/// # Safety
/// As that of the call.
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

/// Writes the path of the folder that something lies in, with a NUL behind it; `false` where there is no room.
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
