//! Descriptors that CRIU receives from a process: replaces `/dev/tty` by the terminal behind it.

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::{Next, variable};

type RecvMsg = unsafe extern "C" fn(c_int, *mut libc::msghdr, c_int) -> libc::ssize_t;

static RECVMSG: Next = Next::new(c"recvmsg");
const TERMINALS: c_uint = 136;

/// Replaces recvmsg(2).
///
/// # Safety
/// As for the call.
#[unsafe(no_mangle)]
unsafe extern "C" fn recvmsg(socket: c_int, message: *mut libc::msghdr, flags: c_int) -> libc::ssize_t {
    // SAFETY: the address is that of recvmsg(2), which has this type; the arguments are the caller's.
    let got =
        unsafe { std::mem::transmute::<*mut c_void, RecvMsg>(RECVMSG.address())(socket, message, flags) };
    let Some(root) = variable(c"ATOLL_CRIU_ROOT").filter(|_| got >= 0 && !message.is_null()) else {
        return got;
    };
    // SAFETY: the kernel has just filled the message; the macros stay within its length, and descriptors may be
    // unaligned.
    unsafe {
        let mut part = libc::CMSG_FIRSTHDR(message);
        while !part.is_null() {
            if (*part).cmsg_level == libc::SOL_SOCKET && (*part).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*part).cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
                let descriptors = libc::CMSG_DATA(part).cast::<RawFd>();
                for n in 0..bytes / size_of::<RawFd>() {
                    exchange(root, descriptors.add(n).read_unaligned());
                }
            }
            part = libc::CMSG_NXTHDR(message, part);
        }
    }
    got
}

/// Replaces `/dev/tty` by the terminal. If that is not possible, CRIU reports the problem.
fn exchange(root: &CStr, fd: RawFd) {
    if device_of(fd) != Some(libc::makedev(5, 0)) {
        return;
    }
    let mut packed: c_uint = 0;
    // SAFETY: the request fills one integer.
    let better = if unsafe { libc::ioctl(fd, libc::TIOCGDEV, &raw mut packed) } == 0 {
        // As the kernel encodes it: the major number in bits 8 to 19.
        let (major, minor) = ((packed >> 8) & 0xfff, (packed & 0xff) | ((packed >> 12) & 0xfff00));
        if major != TERMINALS {
            return;
        }
        let mut path = [0u8; 32];
        // The last byte stays zero: the longest number has seven digits.
        let _ = write!(&mut path[..31], "dev/pts/{minor}");
        CStr::from_bytes_until_nul(&path).ok().and_then(|path| open(root, path, libc::makedev(major, minor)))
    } else {
        // Hung up: it returns only end of file and errors.
        open(root, c"dev/null", libc::makedev(1, 3))
    };
    if let Some(better) = better {
        // SAFETY: both are open descriptors of this process; the received one belongs to the caller before and after.
        unsafe { libc::dup3(better.as_raw_fd(), fd, libc::O_CLOEXEC) };
    }
}

/// Opens a device of the sandbox, which is untrusted: only below its root, without links, and only the wanted device.
fn open(root: &CStr, path: &CStr, wanted: libc::dev_t) -> Option<OwnedFd> {
    let owned = |fd: i64| {
        let fd = RawFd::try_from(fd).ok().filter(|fd| *fd >= 0)?;
        // SAFETY: a new descriptor without another owner.
        Some(unsafe { OwnedFd::from_raw_fd(fd) })
    };
    // SAFETY: C strings and a struct that live through the calls.
    let place = unsafe {
        let at = owned(libc::open(root.as_ptr(), libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC).into())?;
        let mut how: libc::open_how = std::mem::zeroed();
        how.flags = (libc::O_PATH | libc::O_CLOEXEC) as u64;
        how.resolve = libc::RESOLVE_IN_ROOT | libc::RESOLVE_NO_SYMLINKS | libc::RESOLVE_NO_MAGICLINKS;
        let size = size_of::<libc::open_how>();
        owned(libc::syscall(libc::SYS_openat2, at.as_raw_fd(), path.as_ptr(), &raw const how, size))?
    };
    if device_of(place.as_raw_fd()) != Some(wanted) {
        return None;
    }
    use std::os::unix::fs::OpenOptionsExt;
    // Without blocking, and never as this process's controlling terminal.
    let mut options = File::options();
    options.read(true).write(true).custom_flags(libc::O_NOCTTY | libc::O_NONBLOCK);
    options.open(format!("/proc/self/fd/{}", place.as_raw_fd())).ok().map(Into::into)
}

/// The number of a character device.
fn device_of(fd: RawFd) -> Option<libc::dev_t> {
    // SAFETY: the call fills the struct, which is plain data.
    let about = unsafe {
        let mut about: libc::stat = std::mem::zeroed();
        (libc::fstat(fd, &raw mut about) == 0).then_some(about)?
    };
    (about.st_mode & libc::S_IFMT == libc::S_IFCHR).then_some(about.st_rdev)
}
